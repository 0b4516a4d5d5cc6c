"""A scan before it begins: everything that can be refused is checked here, while nothing has been done yet."""

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from scanner.detection.admitted import LeftOut, UnsupportedKey, supported_keys
from scanner.detection.shares import Weights
from scanner.errors import Refused
from scanner.input.documents import Columns
from scanner.input.files import resolve
from scanner.input.shards import key_set, what_decides
from scanner.registry import (
    load_registry,
    registry_sha256,
)
from scanner.registry.keys_file import gives_p_values
from scanner.registry.weights import first_keys
from scanner.storage.canonical import digest
from scanner.storage.locations import absolute, real_location
from scanner.storage.toml import read_toml
from scanner.watermark.formats import format_of
from schemas.config import ScanConfig, SecondScoreConfig
from schemas.registry import Canaries, Canary, MasterKey, Registry


@dataclass(frozen=True)
class Plan:
    """The whole plan of a scan: the configuration with its paths made absolute, and the keys on record. No secrets.

    registry and results: folder or URI; locations: the input's paths, resolved; keys: those under test, in the
    registry's order; keys_tested: all keys of the registry that give p-values, among which those without weights share:
    another configuration may name the others; second: the configured second score, its model's path made absolute;
    audit_secret: where the secret of decoy keys and of text_id is; canaries: of the registry, None where there
    are none, or the input has no accounts; documents: of the input, None until its footers were read; first_keys: ids
    of the registry's keys that shared equally before any had a weight, none where none has one; date: of the input,
    None: none was given; filter_sha256: digest of the filter of common n-grams, None: no filter; left_out: keys
    that no text is scored under, since neither law nor audit supports their p-values; trial: the registry was made
    for a trial.
    """

    config: ScanConfig
    registry: str
    results: str
    locations: tuple[str, ...]
    keys: tuple[MasterKey, ...]
    keys_tested: int
    registry_sha256: str
    second: SecondScoreConfig | None = None
    audit_secret: str = ""
    canaries: Canaries | None = None
    documents: int | None = None
    first_keys: frozenset[str] = frozenset()
    date: datetime.date | None = None
    filter_sha256: str | None = None
    left_out: tuple[UnsupportedKey, ...] = ()
    trial: bool = False

    @property
    def columns(self) -> Columns:
        """Names of the input's columns."""
        return Columns.of(self.config.input)

    @property
    def key_set(self) -> str:
        """Digest of the ids of the keys under test, in whatever order (column `keys` of schemas.tables.SHARDS)."""
        return key_set(key.key_id for key in self.keys)

    @property
    def cautions(self) -> list[str]:
        """Warnings about names under the keys under test, each with the keys that it is true of."""
        said: dict[str, list[str]] = {}
        for key in self.keys:
            for caution in format_of(key).cautions(key.messages):
                said.setdefault(caution, []).append(key.key_id)
        return [f"under {', '.join(key_ids)}: {caution}" for caution, key_ids in said.items()]

    @cached_property
    def decides(self) -> str:
        """Everything but the file that decides verdicts (scanner.input.shards)."""
        return self.decides_under(self.keys)

    def decides_under(self, keys: Sequence[MasterKey], keys_tested: int | None = None) -> str:
        """As `decides`, for a scan under other keys; keys_tested: as it was then, None: as it is."""
        config, tested = self.config, self.keys_tested if keys_tested is None else keys_tested
        variants = ["normalised"] if config.variants.normalised else []
        rules = config.dedup, config.min_scored, self.columns
        return what_decides(keys, tested, *rules, variants, self.weights.decide(), self.filter_sha256)

    @property
    def canary_accounts(self) -> frozenset[str]:
        """Accounts of texts that are marked on purpose."""
        return frozenset(canary.account_id for canary in self.canaries_made)

    @property
    def canaries_made(self) -> tuple[Canary, ...]:
        """Canaries of the registry; none where the input has no accounts."""
        return self.canaries.made if self.canaries else ()

    def under(self, key_ids: Collection[str]) -> "Plan":
        """The plan with some of its keys alone; all of them where none are named."""
        return replace(self, keys=tuple(key for key in self.keys if key.key_id in key_ids)) if key_ids else self

    @property
    def weights(self) -> Weights:
        """Weights of units and of variants of texts."""
        return Weights.of(self.config)

    def tested_among(self, key: MasterKey) -> tuple[float, ...]:
        """K of SPEC §3 for a key, of each variant that is scored (Weights.tests)."""
        return self.weights.tests(key, self.keys_tested)

    @property
    def keys_on_record(self) -> list[dict[str, object]]:
        """The keys under test, as a row of `scans` has them."""
        names = ("key_id", "commitment", "messages", "admitted_by")
        return [
            {name: getattr(key, name) for name in names}
            | format_of(key).columns()._asdict()
            | {"tokenizer_sha256": key.tokenizer.sha256}
            for key in self.keys
        ]

    @property
    def labels_on_record(self) -> list[str]:
        """Labels of the keys under test, in their order."""
        return [format_of(key).label() for key in self.keys]

    @property
    def config_sha256(self) -> str:
        """Digest of the configuration as it was read, as hex text."""
        return digest(self.config.model_dump(mode="json", exclude={"version"}))


def read_config(config_file: Path) -> ScanConfig:
    """Read a configuration.

    Raises:
        Refused: it cannot be right; names file, field, value and what is allowed.
    """
    return read_toml(config_file, ScanConfig)


def results_of(config: ScanConfig, config_file: Path) -> str:
    """Folder or URI of the results; a relative path starts at the configuration's folder.

    Raises:
        Refused: a password or options in a URI.
    """
    return absolute("results", config.results, config_file.absolute().parent)


def make_plan(config_file: Path, date: datetime.date | None = None) -> Plan:
    """Read a configuration and the registry that it names. Relative paths start at the configuration's folder.

    Raises:
        Refused: one of them cannot be right; names file, field, value and what is allowed.
    """
    config = read_config(config_file)
    base = config_file.absolute().parent
    folder = absolute("registry", config.registry, base)
    registry = load_registry(folder)
    results = results_of(config, config_file)
    locations = tuple(resolve(path, base, date) for path in config.input.paths)
    keys = keys_under_test(registry, config.registry, config.keys)
    tested = keys_tested(registry)
    filtered = LeftOut(config.filter.texts, by_account=config.input.account is not None) if config.filter else None
    keys, left_out = supported_keys(keys, config, tested, filtered)
    _refuse_own_tables("registry", folder, locations)
    _refuse_own_tables("results", results, locations)
    second = config.second_score
    if second is not None and second.model is not None:
        second = second.model_copy(update={"model": str(base / second.model)})
    return Plan(
        config=config,
        registry=folder,
        results=results,
        locations=locations,
        keys=keys,
        keys_tested=tested,
        registry_sha256=registry_sha256(registry),
        second=second,
        audit_secret=audit_secret_of(folder, registry),
        canaries=_canaries(config, registry),
        first_keys=frozenset(key.key_id for key in first_keys(registry.keys, gives_p_values)),
        date=date,
        left_out=left_out,
        trial=bool(registry.trial),
    )


def audit_secret_of(folder: str, registry: Registry) -> str:
    """Reference to the audit secret of a registry.

    Without it rows could tell texts apart by a public digest alone, which shows whether a guessed text was there.

    Raises:
        Refused: it has none.
    """
    if registry.audit_secret is None:
        raise Refused(
            f"registry {folder!r} has no audit secret, under which rows of verdicts tell texts apart; make it with "
            f"`brickscan keys audit-secret --registry {folder}`"
        )
    return registry.audit_secret


def _canaries(config: ScanConfig, registry: Registry) -> Canaries | None:
    """The registry's canaries, where the input has accounts to recognise them by."""
    if config.audit.canaries is not None and registry.canaries is None:
        what = f"registry {config.registry!r} has no canaries; make them with `brickscan canaries`, or leave it out"
        raise Refused(f"audit.canaries = {config.audit.canaries}: {what}")
    if config.audit.canaries is not None and config.input.account is None:
        what = "canaries are told by their accounts; name their column in input.account, or leave it out"
        raise Refused(f"audit.canaries = {config.audit.canaries}: {what}")
    return registry.canaries if config.input.account is not None else None


def _refuse_own_tables(field: str, folder: str, locations: tuple[str, ...]) -> None:
    """Refuse tables of our own that are, or lie in, an input path: every run would scan what the last run wrote."""
    for location in locations:
        if Path(real_location(folder)).is_relative_to(real_location(location)):
            raise Refused(f"{field}: {folder} lies in the input path {location}; give a folder outside of the input")


def keys_tested(registry: Registry) -> int:
    """1 over the weight of keys without one of their own: all keys of a registry that give p-values, at least 1."""
    return max(1, sum(map(gives_p_values, registry.keys)))


def keys_under_test(registry: Registry, folder: str, key_ids: Sequence[str] | None) -> tuple[MasterKey, ...]:
    """The keys of a registry that are named, or all, in the registry's order.

    Raises:
        Refused: it has none, or not one that is named.
    """
    known = [key.key_id for key in registry.keys]
    if not known:
        raise Refused(f"registry {folder!r} has no keys; make one with `brickscan keys new`")
    for key_id in key_ids or ():
        if key_id not in known:
            raise Refused(f"keys: {key_id!r} is not in registry {folder!r}; its keys: {', '.join(known)}")
    return tuple(key for key in registry.keys if key_ids is None or key.key_id in key_ids)
