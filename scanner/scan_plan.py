"""Plan a scan before it begins. Everything that can be refused is refused here."""

import datetime
import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scanner.error_shares import ErrorShares, looks_beyond_record, looks_lacking
from scanner.errors import Refused
from scanner.input.columns import Columns
from scanner.input.files import resolve
from scanner.input.shards import key_set, verdict_settings
from scanner.input.tables import DELTA_PREFIX, TableReading
from scanner.key_support import ScanFilter, UnsupportedKey, supported_keys
from scanner.registry import audit_secret_of, lasting_secret_of, load_registry, registry_sha256
from scanner.registry.key_records import read_record
from scanner.registry.keys import first_keys
from scanner.registry.keys_file import gives_p_values
from scanner.registry.shown_seeds import ShownUpTo
from scanner.storage.locations import absolute, is_uri, real_location
from scanner.storage.toml import canonical, digest, read_toml
from scanner.watermark.format import SMALLEST_CLAIMED_WINDOW
from scanner.watermark.formats import format_of, shares_of_levels
from schemas.config import LevelsConfig, ScanConfig
from schemas.registry import Canaries, Canary, MasterKey, Registry
from schemas.words import OF_PASS


@dataclass(frozen=True)
class Plan:
    """The whole plan of a scan: the configuration with absolute paths, and the keys on record. It holds no secrets.

    registry, results: folder or URI.
    locations: the input's paths, resolved.
    keys: the keys under test, in the registry's order.
    keys_tested: number of all keys of the registry that give p-values. Keys without weights share equally among these.
        A scan with another configuration may test the others.
    levels: settings by which a model reads texts, with an absolute path.
    reader_sha256: digest of the model, only in the plan of its pass.
    pass_after: `key_set` of the plan of all texts, only in the plan of a pass.
    audit_secret: reference to the secret for decoy keys and text_id.
    lasting_secret: reference to the secret by which nights are compared with earlier ones.
    canaries: canaries of the registry. None if there are none, or the input has no accounts.
    documents: number of documents in the input. None before footers are read.
    first_keys: ids of the registry's first keys, which share the rate equally. Empty while no key has a weight.
    date: date of the input. None: none was given.
    filter_sha256: digest of the filter. None: no filter.
    unsupported_keys: keys that no text is scored under, because neither law nor audit supports their p-values.
    trial: the registry was made for a trial.
    shown: for each key id with shown seeds, the last event whose seeds are left out. Empty before the scan begins: then
        all events on record count.
    beyond_records: for each key id, the reason why no flag under it can become a claim that anybody can check. Either
        the key's public record lacks a look or a share of this scan, or it cannot be read.
    """

    config: ScanConfig
    registry: str
    results: str
    locations: tuple[str, ...]
    keys: tuple[MasterKey, ...]
    keys_tested: int
    registry_sha256: str
    levels: LevelsConfig | None = None
    reader_sha256: str | None = None
    pass_after: str | None = None
    audit_secret: str = ""
    lasting_secret: str = ""
    canaries: Canaries | None = None
    documents: int | None = None
    first_keys: frozenset[str] = frozenset()
    date: datetime.date | None = None
    filter_sha256: str | None = None
    unsupported_keys: tuple[UnsupportedKey, ...] = ()
    trial: bool = False
    shown: tuple[tuple[str, ShownUpTo], ...] = ()
    beyond_records: tuple[tuple[str, str], ...] = ()

    @cached_property
    def columns(self) -> Columns:
        """Return the names of the input's columns."""
        return Columns.of(self.config.input)

    @property
    def table_reading(self) -> TableReading:
        """Return how tables of the input are read."""
        given, date = self.config.input, self.date
        where = given.where if given.where is None or date is None else given.where.replace("{date}", date.isoformat())
        return TableReading(given.version, given.timestamp, where)

    @cached_property
    def key_set(self) -> str:
        """Return the digest of the ids of the keys under test: column `keys` of SHARDS.

        In a pass it is made of the digest of its scan.
        """
        return key_set(key.key_id for key in self.keys) if self.pass_after is None else self.pass_after + OF_PASS

    @property
    def cautions(self) -> list[str]:
        """Return warnings about names and looks under the keys under test, each with the keys that it is true of."""
        keys_of: dict[str, list[str]] = {}
        for key in self.keys:
            beyond_record = [caution for key_id, caution in self.beyond_records if key_id == key.key_id]
            for caution in [*format_of(key).cautions(key.messages), *looks_lacking(key, self.weights), *beyond_record]:
                keys_of.setdefault(caution, []).append(key.key_id)
        return [f"key{'s' * (len(ids) > 1)} {', '.join(ids)}: {caution}" for caution, ids in keys_of.items()]

    @cached_property
    def verdict_settings(self) -> str:
        """Return all data that decides verdicts, except the file (scanner.input.shards)."""
        return self.verdict_settings_under(self.keys)

    def verdict_settings_under(self, keys: Sequence[MasterKey], keys_tested: int | None = None) -> str:
        """Return `verdict_settings` of a scan under other keys.

        keys_tested: its value in that scan. None: the same as now.
        """
        config, tested = self.config, self.keys_tested if keys_tested is None else keys_tested
        variants = ["normalised"] if config.variants.normalised else []
        rules = config.dedup, config.min_scored, self.columns
        weights = self.weights.digest_fields() | shares_of_levels(keys, self.weights.levels)
        settings = verdict_settings(keys, tested, *rules, variants, weights, self.filter_sha256)
        if self.levels is None or self.reader_sha256 is None:
            return settings
        return canonical([settings, self.reader_sha256, self.levels.cut, self.levels.share])

    @property
    def tests_sha256(self) -> str:
        """Return the digest of `verdict_settings`, as hex."""
        return hashlib.sha256(self.verdict_settings.encode()).hexdigest()

    @cached_property
    def canary_accounts(self) -> frozenset[str]:
        """Return the accounts of texts that are marked on purpose."""
        return frozenset(canary.account_id for canary in self.canaries_made)

    @cached_property
    def canaries_made(self) -> tuple[Canary, ...]:
        """Return the canaries of the registry. Empty if the input has no accounts."""
        return self.canaries.made if self.canaries else ()

    def under(self, key_ids: Collection[str]) -> "Plan":
        """Return the plan with only some of its keys. Without key ids: with all of them."""
        return replace(self, keys=tuple(key for key in self.keys if key.key_id in key_ids)) if key_ids else self

    @property
    def weights(self) -> ErrorShares:
        """Return the weights of looks and of variants of texts."""
        return ErrorShares.of(self.config)

    def corrections_of(self, key: MasterKey) -> NDArray[np.float64]:
        """Return K of SPEC §3 for a key (ErrorShares.corrections): float64[variant, has_normal_form, has_parts]."""
        return self.weights.corrections(key, self.keys_tested)

    @property
    def keys_on_record(self) -> list[dict[str, object]]:
        """Return the keys under test, as a row of `scans` has them."""
        names, shown = ("key_id", "commitment", "messages", "admitted_by"), dict(self.shown)
        return [
            {name: getattr(key, name) for name in names}
            | {"method": key.format, "label": format_of(key).label(), "tokenizer_sha256": key.tokenizer.sha256}
            | dict(zip(("event", "events_head"), shown.get(key.key_id, (None, None)), strict=True))
            for key in self.keys
        ]

    @property
    def config_sha256(self) -> str:
        """Return the digest of the configuration as it was read, as hex, without the fields that no scan reads."""
        return digest(self.config.model_dump(mode="json", exclude={"version", "claims"}))


def read_config(config_file: Path) -> ScanConfig:
    """Read a configuration.

    Raises:
        Refused: it cannot be right. The message names file, field, value and the allowed values.
    """
    return read_toml(config_file, ScanConfig)


def results_beside(registry: Path | str) -> str | None:
    """Return the folder or URI of the results of the `scan.toml` beside a registry, where `init` writes it.

    None: no such file.
    """
    config_file = Path(registry).absolute().parent / "scan.toml"
    if is_uri(registry) or not config_file.is_file():
        return None
    try:
        config = read_config(config_file)
        named = absolute("registry", config.registry, config_file.parent)
        return results_of(config, config_file) if named == str(Path(registry).absolute()) else None
    except Refused:  # a scan will report the fault in it
        return None


def results_of(config: ScanConfig, config_file: Path) -> str:
    """Return the folder or URI of the results. A relative path starts at the configuration's folder.

    Raises:
        Refused: a URI contains a password or options.
    """
    return absolute("results", config.results, config_file.absolute().parent)


def make_plan(config_file: Path, date: datetime.date | None = None) -> Plan:
    """Read a configuration and its registry. Relative paths start at the configuration's folder.

    Raises:
        Refused: one of them cannot be right. The message names file, field, value and the allowed values.
    """
    config = read_config(config_file)
    base, by = config_file.absolute().parent, config.levels
    folder = absolute("registry", config.registry, base)
    registry, results = load_registry(folder), results_of(config, config_file)
    locations = tuple(resolve(path, base, date) for path in config.input.paths)
    if date is None and "{date}" in (config.input.where or ""):
        raise Refused(f"input.where: {config.input.where!r} contains {{date}}; give the date with --date yesterday")
    keys = keys_under_test(registry, config.registry, config.keys)
    tested = keys_tested(registry)
    filtered = ScanFilter(config.filter.texts, by_account=config.input.account is not None) if config.filter else None
    keys, unsupported = supported_keys(keys, config, tested, filtered)
    _refuse_results_as_input("registry", folder, locations)
    _refuse_results_as_input("results", results, locations)
    return Plan(
        config=config,
        registry=folder,
        results=results,
        locations=locations,
        keys=keys,
        keys_tested=tested,
        registry_sha256=registry_sha256(registry),
        levels=by and by.model_copy(update={"model": str(base / by.model)}),
        audit_secret=audit_secret_of(folder, registry),
        lasting_secret=lasting_secret_of(folder, registry),
        canaries=_canaries(config, registry),
        first_keys=frozenset(key.key_id for key in first_keys(registry.keys, gives_p_values)),
        date=date,
        unsupported_keys=unsupported,
        trial=bool(registry.trial),
        beyond_records=() if is_uri(folder) else tuple(_beyond_records(folder, keys, ErrorShares.of(config))),
    )


def _beyond_records(folder: str, keys: Sequence[MasterKey], weights: ErrorShares) -> Iterator[tuple[str, str]]:
    """Yield ids of keys with public records, each with the part of the scan that its record lacks.

    See Plan.beyond_records.
    """
    for key in keys:
        if key.record is not None and format_of(key).rule().context >= SMALLEST_CLAIMED_WINDOW:
            try:
                cautions = looks_beyond_record(read_record(folder, key)[0].looks, weights)
            except Refused as error:
                cautions = [str(error)]
            yield from ((key.key_id, caution) for caution in cautions)


def _canaries(config: ScanConfig, registry: Registry) -> Canaries | None:
    """Return the registry's canaries. None if the input has no accounts by which to recognise them."""
    if config.audit.canaries is not None and registry.canaries is None:
        what = (
            f"registry {config.registry!r} has no canaries; make them with `brickscan canaries`, or leave "
            "audit.canaries out"
        )
        raise Refused(f"audit.canaries = {config.audit.canaries}: {what}")
    if config.audit.canaries is not None and config.input.account is None:
        what = (
            "canaries are recognised by their accounts; name the account column in input.account, or leave "
            "audit.canaries out"
        )
        raise Refused(f"audit.canaries = {config.audit.canaries}: {what}")
    return registry.canaries if config.input.account is not None else None


def _refuse_results_as_input(field: str, folder: str, locations: tuple[str, ...]) -> None:
    """Refuse tables of our own in an input path. Every run would scan the output of the last run."""
    for location in (location.removeprefix(DELTA_PREFIX) for location in locations):
        if Path(real_location(folder)).is_relative_to(real_location(location)):
            raise Refused(f"{field}: {folder} is inside the input path {location}; give a folder outside the input")


def keys_tested(registry: Registry) -> int:
    """Count all keys of a registry that give p-values, at least 1.

    A key without a weight of its own has the weight 1 over this count.
    """
    return max(1, sum(map(gives_p_values, registry.keys)))


def keys_under_test(registry: Registry, folder: str, key_ids: Sequence[str] | None) -> tuple[MasterKey, ...]:
    """Return the named keys of a registry, or all, in the registry's order.

    A key whose record names a beacon without a value yet has marked no text, and is left out.

    Raises:
        Refused: the registry has no keys, a named key is not in it, or a named key waits for its beacon.
    """
    known = [key.key_id for key in registry.keys]
    if not known:
        raise Refused(f"registry {folder!r} has no keys; make one with `brickscan keys new`")
    for key_id in key_ids or ():
        if key_id not in known:
            raise Refused(f"keys: {key_id!r} is not in registry {folder!r}; its keys: {', '.join(known)}")
    waiting = [
        key.key_id for key in registry.keys if key.waits_for_beacon and (key_ids is None or key.key_id in key_ids)
    ]
    if waiting and (key_ids is not None or len(waiting) == len(known)):
        raise Refused(
            f"key {waiting[0]!r} of registry {folder!r} waits for the beacon that its record names; set its value with "
            "`brickscan keys beacon`"
        )
    return tuple(
        key for key in registry.keys if not key.waits_for_beacon and (key_ids is None or key.key_id in key_ids)
    )
