"""A scan before it begins: everything that can be refused is looked at here, while nothing has been done yet."""

import datetime
import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scanner.detection.detector import Detector, KeyUnderTest, as_it_is
from scanner.errors import Refused
from scanner.input.documents import Columns
from scanner.input.files import resolve
from scanner.input.shards import what_decides
from scanner.registry import Holders, load_registry, open_key, registry_sha256, tokenizer_path
from scanner.storage.locations import place, real_place
from scanner.tokens import Tokenizer, load_tokenizer
from scanner.watermark import Watermark
from schemas.config import ConfigError, ScanConfig, SecondScoreConfig, read_toml
from schemas.registry import MasterKey, Registry

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Plan:
    """What a scan is to do: the configuration with its paths made absolute, and the keys on record. No secrets.

    registry and results: folder or URI; locations: the input's paths, resolved; keys: those under test, in the
    registry's order; keys_tested: K of SPEC §3, all keys of the registry: another configuration may name the others;
    second: the configured second score, its model's path made absolute;
    audit_secret: where the secret of decoy keys is, None: there are none.
    """

    config: ScanConfig
    registry: str
    results: str
    locations: tuple[str, ...]
    keys: tuple[MasterKey, ...]
    keys_tested: int
    registry_sha256: str
    second: SecondScoreConfig | None = None
    audit_secret: str | None = None

    @property
    def columns(self) -> Columns:
        """Names of the input's columns."""
        return Columns.of(self.config.input)

    @cached_property
    def decides(self) -> str:
        """All that decides verdicts besides the file (scanner.input.shards)."""
        return what_decides(self.keys, self.keys_tested, self.config.dedup, self.config.min_scored, self.columns)

    @property
    def keys_on_record(self) -> list[dict[str, object]]:
        """What a row of `scans` says of the keys under test."""
        names = ("key_id", "commitment", "method", "messages", "window", "gamma", "admitted_by")
        return [
            {name: getattr(key, name) for name in names} | {"tokenizer_sha256": key.tokenizer.sha256}
            for key in self.keys
        ]

    @property
    def config_sha256(self) -> str:
        """Digest of the configuration as it was read, as hex text."""
        return hashlib.sha256(json.dumps(self.config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def read_config(config_file: Path) -> ScanConfig:
    """Read a configuration.

    Raises:
        Refused: it cannot be right; names file, field, value and what is allowed.
    """
    try:
        return read_toml(config_file, ScanConfig)
    except ConfigError as error:
        raise Refused(str(error)) from None


def results_of(config: ScanConfig, config_file: Path) -> str:
    """Folder or URI of the results; a relative path starts at the configuration's folder.

    Raises:
        Refused: a password or options in a URI.
    """
    return place("results", config.results, config_file.absolute().parent)


def make_plan(config_file: Path, date: datetime.date | None = None) -> Plan:
    """Read a configuration and the registry that it names. Relative paths start at the configuration's folder.

    Raises:
        Refused: one of them cannot be right; names file, field, value and what is allowed.
    """
    config = read_config(config_file)
    base = config_file.absolute().parent
    folder = place("registry", config.registry, base)
    registry = load_registry(folder)
    results = results_of(config, config_file)
    locations = tuple(resolve(path, base, date) for path in config.input.paths)
    keys = _keys_under_test(registry, config)
    if config.audit.require_admission:
        _refuse_unadmitted(keys)
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
        keys_tested=len(registry.keys),
        registry_sha256=registry_sha256(registry),
        second=second,
        audit_secret=registry.audit_secret,
    )


def _refuse_own_tables(field: str, folder: str, locations: tuple[str, ...]) -> None:
    """Refuse tables of our own that are, or lie in, an input path: every run would scan what the last one wrote."""
    for location in locations:
        if Path(real_place(folder)).is_relative_to(real_place(location)):
            raise Refused(f"{field}: {folder} lies in the input path {location}; give a folder outside of the input")


def _keys_under_test(registry: Registry, config: ScanConfig) -> tuple[MasterKey, ...]:
    known = [key.key_id for key in registry.keys]
    if not known:
        raise Refused(f"registry {config.registry!r} has no keys; make one with `brickscan keys new`")
    for key_id in config.keys or ():
        if key_id not in known:
            raise Refused(f"keys: {key_id!r} is not in registry {config.registry!r}; its keys: {', '.join(known)}")
    return tuple(key for key in registry.keys if config.keys is None or key.key_id in config.keys)


def _refuse_unadmitted(keys: tuple[MasterKey, ...]) -> None:
    for key in keys:
        if key.admitted_by is None:
            raise Refused(
                f"audit.require_admission: key {key.key_id!r} never passed an audit with its {key.messages} messages; "
                f"audit it with `brickscan calibrate` and record that with `brickscan keys admit {key.key_id}`"
            )


def open_detector(plan: Plan, device: "torch.device | None" = None) -> Detector:
    """Read secrets, tokenizers and users. Every worker does so itself; the driver, to refuse before any work.

    With a device, all messages of a key are scored there.

    Raises:
        SecretError: a secret cannot be read or is not the one on record.
        TokenizerError: a tokenizer file cannot be read or is not the pinned one.
        Refused: the users cannot be read.
    """
    tokenizers: dict[str, Tokenizer] = {}
    tests = []
    place = _place_on(device)
    for key in plan.keys:
        pinned = key.tokenizer.sha256
        if pinned not in tokenizers:
            tokenizers[pinned] = load_tokenizer(tokenizer_path(plan.registry, key), pinned)
        tests.append(KeyUnderTest(key, place(open_key(plan.registry, key)), tokenizers[pinned], place))
    return Detector(
        tests,
        Holders.load(plan.registry, [key.key_id for key in plan.keys]),
        keys_tested=plan.keys_tested,
        dedup=plan.config.dedup,
        min_scored=plan.config.min_scored,
        false_positive_rate=plan.config.false_positive_rate,
    )


def _place_on(device: "torch.device | None") -> Callable[[Watermark], Watermark]:
    if device is None:
        return as_it_is
    from scanner.gpu.marks import on_device

    return functools.partial(on_device, device=device)
