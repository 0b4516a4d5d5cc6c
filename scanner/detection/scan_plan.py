"""A scan before it begins: everything that can be refused is checked here, while nothing has been done yet."""

import datetime
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scanner.detection.admitted import LeftOut, refuse_unadmitted
from scanner.detection.detector import Detector
from scanner.detection.filtering import NO_FILTER, Filter
from scanner.detection.proving import ProvedKey, Prover
from scanner.detection.proving_spans import Which
from scanner.detection.published import TextIds
from scanner.detection.shares import NO_VARIANTS, Weights
from scanner.detection.under_test import KeyUnderTest, as_it_is
from scanner.errors import Refused
from scanner.input.documents import Columns
from scanner.input.files import resolve
from scanner.input.shards import key_set, what_decides
from scanner.registry import (
    Holders,
    check_secret,
    load_registry,
    open_key,
    read_secret,
    registry_sha256,
    tokenizer_path,
)
from scanner.registry.keys_file import gives_p_values
from scanner.registry.weights import first_keys
from scanner.storage.canonical import digest
from scanner.storage.locations import absolute, real_location
from scanner.storage.toml import read_toml
from scanner.tokens import Tokenizer, load_tokenizer
from scanner.watermark import Watermark
from scanner.watermark.abilities import Proves
from scanner.watermark.formats import format_of
from schemas.config import Dedup, ScanConfig, SecondScoreConfig
from schemas.registry import Canaries, MasterKey, Registry

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Plan:
    """The whole plan of a scan: the configuration with its paths made absolute, and the keys on record. No secrets.

    registry and results: folder or URI; locations: the input's paths, resolved; keys: those under test, in the
    registry's order; keys_tested: all keys of the registry that give p-values, among which those without weights share:
    another configuration may name the others; second: the configured second score, its model's path made absolute;
    audit_secret: where the secret of decoy keys and of text_id is; canaries: of the registry, None where there
    are none, or the input has no accounts; documents: of the input, None until its footers were read; first_keys: ids
    of the registry's keys that shared equally before any had a weight, none where none has one; date: of the input,
    None: none was given; filter_sha256: digest of the filter of common n-grams, None: no filter.
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
        return frozenset(canary.account_id for canary in self.canaries.made) if self.canaries else frozenset()

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
        return digest(self.config.model_dump(mode="json"))


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
    refuse_unadmitted(keys, config, tested, LeftOut(config.filter.texts) if config.filter else None)
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


def check_plan(plan: Plan) -> None:
    """Refuse, before any work, secrets, tokenizers and users that workers could not open. Opens no key, keeps nothing.

    Raises:
        SecretError: a secret cannot be read or is not the one on record.
        TokenizerError: a tokenizer file cannot be read or is not the pinned one.
        Refused: the users cannot be read.
    """
    for look in (check_secrets, check_tokenizers, check_users):
        look(plan)


def check_secrets(plan: Plan) -> None:
    """The part of `check_plan` that looks at secrets. Raises SecretError."""
    for key in plan.keys:
        check_secret(plan.registry, key)
    open_text_ids(plan)


def check_tokenizers(plan: Plan) -> None:
    """The part of `check_plan` that loads tokenizers. Raises TokenizerError."""
    _load_tokenizers(plan.registry, plan.keys)


def check_users(plan: Plan) -> None:
    """The part of `check_plan` that reads users. Raises Refused."""
    Holders.load(plan.registry, [key.key_id for key in plan.keys])


def open_detector(plan: Plan, device: "torch.device | None" = None, without: Filter = NO_FILTER) -> Detector:
    """Read secrets, tokenizers and users; every worker does so itself. Raises as `check_plan` does.

    device: all messages of a key are scored there; without: n-grams that are left out of scoring.
    """
    tests = open_keys(plan.registry, plan.keys, _mover_to(device))
    config = plan.config
    rates = config.false_positive_rate, config.misnaming_rate
    prover = open_prover(
        plan.registry, tests, plan.keys_tested, config.dedup, *rates, weights=plan.weights, without=without
    )
    return Detector(
        tests,
        Holders.load(plan.registry, [key.key_id for key in plan.keys]),
        keys_tested=plan.keys_tested,
        dedup=config.dedup,
        min_scored=config.min_scored,
        false_positive_rate=config.false_positive_rate,
        misnaming_rate=config.misnaming_rate,
        prover=prover,
        weights=plan.weights,
        without=without,
    )


def open_text_ids(plan: Plan) -> TextIds:
    """Read the audit secret, as every worker does itself. Raises SecretError."""
    return TextIds(read_secret(plan.audit_secret, plan.registry))


def open_prover(
    registry: Path | str,
    tests: Sequence[KeyUnderTest],
    keys_tested: int,
    dedup: Dedup,
    false_positive_rate: float,
    misnaming_rate: float | None = None,
    *,
    weights: Weights = NO_VARIANTS,
    without: Filter = NO_FILTER,
) -> Prover:
    """The prover of keys' flags: it reads the secrets once more, for the slow paths. Raises SecretError."""
    keys, secret = [], b""
    for test in tests:
        how, secret = format_of(test.key), check_secret(registry, test.key)
        path = how.proof(secret) if isinstance(how, Proves) else None
        among = weights.tests(test.key, keys_tested)
        of_spans = weights.tests_of_spans(test.key, keys_tested)
        common = without.of(test.key.tokenizer.sha256, test.watermark.rule)
        keys.append(ProvedKey(path, test.tokenizer.reference, test.key.messages, among, of_spans, common))
    return Prover(
        keys,
        secret[:64],
        dedup=dedup,
        false_positive_rate=false_positive_rate,
        misnaming_rate=misnaming_rate,
        which=Which(weights.windows, weights.segments),
    )


def open_keys(
    registry: Path | str,
    keys: Sequence[MasterKey],
    to_device: Callable[[Watermark], Watermark] = as_it_is,
    *,
    fast: bool = True,
) -> list[KeyUnderTest]:
    """Keys with their secrets and tokenizers; `fast` as for scanner.tokens. Raises SecretError and TokenizerError."""
    tokenizers = _load_tokenizers(registry, keys, fast=fast)
    return [
        KeyUnderTest(key, to_device(open_key(registry, key)), tokenizers[key.tokenizer.sha256], to_device)
        for key in keys
    ]


def _load_tokenizers(registry: Path | str, keys: Sequence[MasterKey], *, fast: bool = True) -> dict[str, Tokenizer]:
    """Tokenizers of keys, each once, by their SHA-256."""
    of_sha256 = {key.tokenizer.sha256: key for key in reversed(keys)}
    return {
        sha256: load_tokenizer(tokenizer_path(registry, key), sha256, fast=fast) for sha256, key in of_sha256.items()
    }


def _mover_to(device: "torch.device | None") -> Callable[[Watermark], Watermark]:
    if device is None:
        return as_it_is
    from scanner.gpu.marks import on_device

    return functools.partial(on_device, device=device)
