"""A scan before it begins: everything that can be refused is looked at here, while nothing has been done yet."""

import datetime
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scanner.detection.detector import Detector, KeyUnderTest, as_it_is
from scanner.detection.proving import ProvedKey, Prover
from scanner.detection.published import TextIds
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
from scanner.storage.canonical import digest
from scanner.storage.locations import absolute, real_location
from scanner.storage.toml import read_toml
from scanner.tokens import Tokenizer, load_tokenizer
from scanner.watermark import Watermark
from scanner.watermark.format import Proves
from scanner.watermark.formats import format_of
from schemas.config import Dedup, ScanConfig, SecondScoreConfig
from schemas.registry import Canaries, MasterKey, Registry

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Plan:
    """What a scan is to do: the configuration with its paths made absolute, and the keys on record. No secrets.

    registry and results: folder or URI; locations: the input's paths, resolved; keys: those under test, in the
    registry's order; keys_tested: K of SPEC §3, all keys of the registry that give p-values: another configuration may
    name the others; second: the configured second score, its model's path made absolute;
    audit_secret: where the secret of decoy keys and of text_id is; canaries: of the registry, None where there
    are none, or the input has no accounts; documents: of the input, None until its footers were read.
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
        """What must be known of names under the keys under test, each with the keys that it is true of."""
        said: dict[str, list[str]] = {}
        for key in self.keys:
            for caution in format_of(key).cautions(key.messages):
                said.setdefault(caution, []).append(key.key_id)
        return [f"under {', '.join(key_ids)}: {caution}" for caution, key_ids in said.items()]

    @cached_property
    def decides(self) -> str:
        """All that decides verdicts besides the file (scanner.input.shards)."""
        config = self.config
        variants = ["normalised"] if config.variants.normalised else []
        return what_decides(self.keys, self.keys_tested, config.dedup, config.min_scored, self.columns, variants)

    def tested_among(self, key: MasterKey) -> int:
        """K of SPEC §3 for a key."""
        return key.tested_among(self.keys_tested, 1 + self.config.variants.normalised)

    @property
    def keys_on_record(self) -> list[dict[str, object]]:
        """What a row of `scans` says of the keys under test."""
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
    tested = keys_tested(registry, normalised=config.variants.normalised)
    _refuse_unadmitted(keys, config.false_positive_rate, tested, of_all=config.audit.require_admission)
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
        audit_secret=_audit_secret(folder, registry),
        canaries=_canaries(config, registry),
    )


def _audit_secret(folder: str, registry: Registry) -> str:
    """Where it is. Without it rows could tell texts apart by a public digest alone, which says if a guess was there."""
    if registry.audit_secret is None:
        raise Refused(
            f"registry {folder!r} has no audit secret, under which rows of verdicts tell texts apart; make it with "
            f"`brickscan keys audit-secret --registry {folder}`"
        )
    return registry.audit_secret


def _canaries(config: ScanConfig, registry: Registry) -> Canaries | None:
    """The registry's canaries, where they can be told by their accounts."""
    if config.audit.canaries is not None and registry.canaries is None:
        what = f"registry {config.registry!r} has no canaries; make them with `brickscan canaries`, or leave it out"
        raise Refused(f"audit.canaries = {config.audit.canaries}: {what}")
    if config.audit.canaries is not None and config.input.account is None:
        what = "canaries are told by their accounts; name their column in input.account, or leave it out"
        raise Refused(f"audit.canaries = {config.audit.canaries}: {what}")
    return registry.canaries if config.input.account is not None else None


def _refuse_own_tables(field: str, folder: str, locations: tuple[str, ...]) -> None:
    """Refuse tables of our own that are, or lie in, an input path: every run would scan what the last one wrote."""
    for location in locations:
        if Path(real_location(folder)).is_relative_to(real_location(location)):
            raise Refused(f"{field}: {folder} lies in the input path {location}; give a folder outside of the input")


def keys_tested(registry: Registry, *, normalised: bool = False) -> int:
    """K of SPEC §3, for keys without weights: all of a registry that give p-values, at least 1.

    Each counts twice with normalised texts.
    """
    return max(1, sum(format_of(key).law() is not None for key in registry.keys)) * (1 + normalised)


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


def _refuse_unadmitted(keys: tuple[MasterKey, ...], all_keys: float, tested: int, *, of_all: bool) -> None:
    """Refuse keys whose audit does not reach a rate: all, or those whose p-values nothing else speaks for.

    Of these it must reach what is left of the rate when all keys have their share: an audit is of one key.
    """
    for key in keys:
        assumed = format_of(key).basis().assumed
        if not of_all and not assumed:
            continue
        rate = all_keys / key.tested_among(tested) if assumed else all_keys
        asked = "audit.require_admission" if of_all else f"false_positive_rate: {key.format!r} has no law over its keys"
        if key.admission is None or key.admitted_by is None:
            raise Refused(
                f"{asked}: key {key.key_id!r} never passed an audit with its {key.messages} messages; "
                f"audit it with `brickscan calibrate` and record that with `brickscan keys admit {key.key_id}`"
            )
        if key.admission.holds_down_to > rate:
            share = "" if rate == all_keys else f", of which it has {rate:.2g} among the registry's keys"
            raise Refused(
                f"{asked}: the rate of key {key.key_id!r} is known to hold down to "
                f"{key.admission.holds_down_to:g}, not to false_positive_rate = {all_keys:g}{share}; audit it over "
                f"more documents (`brickscan calibrate --down-to {rate:.2g}` says how many), or scan at a higher rate"
            )


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


def open_detector(plan: Plan, device: "torch.device | None" = None) -> Detector:
    """Read secrets, tokenizers and users; every worker does so itself. Raises as `check_plan` does.

    With a device, all messages of a key are scored there.
    """
    tests = open_keys(plan.registry, plan.keys, _mover_to(device))
    config = plan.config
    rates, normalised = (config.false_positive_rate, config.misnaming_rate), config.variants.normalised
    return Detector(
        tests,
        Holders.load(plan.registry, [key.key_id for key in plan.keys]),
        keys_tested=plan.keys_tested,
        dedup=config.dedup,
        min_scored=config.min_scored,
        false_positive_rate=config.false_positive_rate,
        misnaming_rate=config.misnaming_rate,
        prover=open_prover(plan.registry, tests, plan.keys_tested, config.dedup, *rates, normalised=normalised),
        normalised=normalised,
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
    normalised: bool = False,
) -> Prover:
    """What proves the flags of keys: their secrets are read once more, by the slow paths. Raises SecretError."""
    keys, secret = [], b""
    for test in tests:
        how, secret = format_of(test.key), check_secret(registry, test.key)
        path = how.proof(secret) if isinstance(how, Proves) else None
        among = test.key.tested_among(keys_tested, 1 + normalised)
        keys.append(ProvedKey(path, test.tokenizer.reference, test.key.messages, among))
    return Prover(
        keys, secret[:64], dedup=dedup, false_positive_rate=false_positive_rate, misnaming_rate=misnaming_rate
    )


def open_keys(
    registry: Path | str,
    keys: Sequence[MasterKey],
    to_device: Callable[[Watermark], Watermark] = as_it_is,
    *,
    fast: bool = True,
) -> list[KeyUnderTest]:
    """Keys with their secrets and tokenizers; `fast` as of scanner.tokens. Raises SecretError and TokenizerError."""
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
