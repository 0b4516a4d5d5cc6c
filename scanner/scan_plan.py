"""A scan before it begins: its plan, whether an audit supports its keys, and shares of its rate.

An audit supports a key down to a rate, over the positions that it scores. An audit that left common n-grams out says
nothing of scans that score them. So its admission holds for scans that leave out as much: as many texts or fewer make
an n-gram common, and the filter was learnt from as many texts or more. An admission over all positions holds for every
scan, since common n-grams make hits under one key come together. Everything that can be refused is checked here.

Each way to test a text under a key has a share of the false-positive rate (SPEC §3): a p-value is corrected by
1/(weight of the key · weight of the look · weight of the variant). The weights of each kind sum to 1 at most, so that
P(flagged falsely in any way) stays within the rate. A way that a text does not have gives its share to another way
(ErrorShares.corrections). Other weights for texts that were scanned are further looks at them, and raise the rate by a
factor (price_of_looks): a scan refuses them, unless it is told to pay.
"""

import datetime
import hashlib
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.errors import Refused
from scanner.input.columns import Columns
from scanner.input.files import resolve
from scanner.input.shards import key_set, verdict_settings
from scanner.input.tables import DELTA_PREFIX, TableReading
from scanner.registry import load_registry, registry_sha256
from scanner.registry.keys import first_keys
from scanner.registry.keys_file import gives_p_values
from scanner.storage.locations import absolute, is_uri, real_location
from scanner.storage.toml import canonical, digest, read_toml
from scanner.watermark.formats import can_have_levels, format_of, shares_of_levels
from scanner.watermark.positions import reach_of
from schemas.config import DEFAULT_LOOKS, ScanConfig, SpansConfig, VariantsConfig, WeightsByConfig, exact_fraction
from schemas.registry import Canaries, Canary, MasterKey, Registry
from schemas.words import OF_PASS

AS_WRITTEN, NORMALISED = 0, 1
"""Variants of a text, by their places in tables of corrections: as it is written, and its normalised text."""


class ErrorShares(NamedTuple):
    """Weights of looks and of variants of texts.

    document: weight of a document as a whole; as_written: of its text as it stands; normalised: of its normalised text,
    None: not scored; span: of its parts together, None: not tested; windows, segments: which parts; account: of all
    posts of an account together, None: not tested; weighed: of the whole text with tokens that count by a model, None:
    not tested.
    """

    document: float = 1.0
    as_written: float = 1.0
    normalised: float | None = None
    span: float | None = None
    windows: bool = True
    segments: bool = False
    account: float | None = None
    weighed: float | None = None

    @classmethod
    def of(cls, config: ScanConfig) -> "ErrorShares":
        """Weights as a configuration states them, else equal shares of the looks and variants that it turns on."""
        stated, normalised, spans = config.weights, config.variants.normalised, config.spans.tested
        accounts, weighed = config.accounts is not None, config.weights_by is not None
        equal = cls.equal(normalised=normalised, looks=1 + spans + accounts + weighed)
        return cls(
            document=equal.document if stated.document is None else stated.document,
            span=(stated.span or equal.document) if spans else None,
            account=(stated.account or equal.document) if accounts else None,
            weighed=(stated.weighed or equal.document) if weighed else None,
            as_written=equal.as_written if stated.as_written is None else stated.as_written,
            normalised=stated.normalised if normalised and stated.normalised is not None else equal.normalised,
            windows=config.spans.windows or not spans,
            segments=config.spans.segments,
        )

    @classmethod
    def equal(cls, *, normalised: bool, looks: int = 1) -> "ErrorShares":
        """Equal shares of documents beside other looks, and of the variants that are on."""
        return cls(round(1 / looks, 4), 0.5 if normalised else 1.0, 0.5 if normalised else None)  # 3 · 0.3333 ≤ 1

    @classmethod
    def by_default(cls) -> "ErrorShares":
        """Equal shares of DEFAULT_LOOKS, for texts that no scan's configuration is about."""
        looks = tomllib.loads(DEFAULT_LOOKS)
        variants, spans = VariantsConfig(**looks["variants"]), SpansConfig(**looks["spans"])
        equal = cls.equal(normalised=variants.normalised, looks=1 + spans.tested)
        return equal._replace(span=equal.document, windows=spans.windows, segments=spans.segments)

    def digest_fields(self) -> dict[str, float]:
        """The weights' part of shard ids: empty for equal shares, since ids existed before weights.

        Where spans or accounts are tested, their weight stands in it, and the kinds of spans unless these are windows
        alone, since ids are older than segments.
        """
        if self == self.equal(normalised=self.normalised is not None):
            return {}
        of_units = {name: weight for name, weight in self._asdict().items() if weight is not None}
        of_parts = {name: of_units.pop(name) for name in ("windows", "segments")}
        return of_units | of_parts if self.segments else of_units

    def looks(self, key: MasterKey, *, has_normal_form: bool, has_parts: bool) -> dict[str, float]:
        """The share of each look that a text of some form has under a key, by a name: at most 1 together.

        has_normal_form, has_parts: as for `corrections`.
        """
        shares = key.tested_among(1) / self.corrections(key, 1)[:, int(has_normal_form), int(has_parts)]
        found = {"as written": float(shares[AS_WRITTEN])}
        if self.normalised is not None and has_normal_form and reads_normal_forms(key):
            found["normalised"] = float(shares[NORMALISED])
        if self.span is not None and has_parts and format_of(key).scores_parts:  # other kinds of parts are other looks
            found[f"parts {self.windows:d}{self.segments:d}"] = self.span
        if self.account is not None:
            found["account"] = self.account
        if self.weighed is not None and can_have_levels(key):
            found["weighed"] = self.weighed
        return found

    def of_model_pass(self) -> "ErrorShares":
        """Weights of a text whose tokens count by a model: as a whole, as it stands. Raises ValueError: not tested."""
        if self.weighed is None:
            raise ValueError("texts whose tokens count by a model have no weight: they are not tested")
        return ErrorShares(self.weighed)

    def corrections(self, key: MasterKey, keys_tested: int) -> NDArray[np.float64]:
        """Return K of SPEC §3 for whole texts under a key: float64[variant, has_normal_form, has_parts].

        K = 1 / (weight of the key · weight of the look · weight of the variant).

        A text that lacks a look gives its weight to the text as a whole, as it is written:
        - without another normal form, `as_written` has the weight of `normalised` too;
        - without parts, `document` has the weight of `span` too;
        - under a key whose tokens no model can weigh, `document` has the weight of `weighed` too.

        So the weights of the looks that a text has are at most 1 together. A look passes where p ≤ 1 − (1 − α)^weight.
        The scores of one key increase in the same independent draws, so P(no look passes) ≥ Π (1 − α)^weight ≥ 1 − α.
        All three facts are known before any draw: no score, cut or missing machine moves a weight.

        Example: one of two keys, document 0.6, span 0.4, as_written 0.75 and normalised 0.25.

            variant     has_normal_form  has_parts  K
            AS_WRITTEN  0                0          2 / (1.0 · 1.00) = 2.00
            AS_WRITTEN  0                1          2 / (0.6 · 1.00) = 3.33
            AS_WRITTEN  1                0          2 / (1.0 · 0.75) = 2.67
            AS_WRITTEN  1                1          2 / (0.6 · 0.75) = 4.44
            NORMALISED  1                0          2 / (1.0 · 0.25) = 8.00
            NORMALISED  1                1          2 / (0.6 · 0.25) = 13.33

        Args:
            key: a key whose law is assumed reads no normal form, and marks of some formats score no parts. Under it all
                texts have K of a text without.
            keys_tested: keys that share equally, for a key without a weight of its own.

        Returns:
            variant: AS_WRITTEN, and NORMALISED if normalised texts are scored.
            has_normal_form: 1 where the normalised text is another one.
            has_parts: 1 where the text has parts that are tested.
        """
        key_tests = key.tested_among(keys_tested)
        as_written, normalised, span, weighed = (
            exact_fraction(weight or 0) for weight in (self.as_written, self.normalised, self.span, self.weighed)
        )
        document = exact_fraction(self.document) + (0 if can_have_levels(key) else weighed)
        table = np.empty((1 if self.normalised is None else 2, 2, 2))
        for has_normal_form, has_parts in product((0, 1), repeat=2):
            look = document + (0 if has_parts and format_of(key).scores_parts else span)
            given_back = 0 if has_normal_form and reads_normal_forms(key) else normalised
            table[AS_WRITTEN, has_normal_form, has_parts] = key_tests / (look * (as_written + given_back))
            if self.normalised is not None:
                table[NORMALISED, has_normal_form, has_parts] = key_tests / (look * normalised)
        return table

    def correction_of_spans(self, key: MasterKey, keys_tested: int) -> float | None:
        """K of SPEC §3 for the spans of a key. None: spans are not tested.

        Spans are looked for only in texts as they stand.
        """
        return None if self.span is None else float(key.tested_among(keys_tested) / exact_fraction(self.span))

    def correction_of_accounts(self, key: MasterKey, keys_tested: int) -> float:
        """K of SPEC §3 for the posts of accounts under a key. Raises ValueError: accounts are not tested."""
        if self.account is None:
            raise ValueError("accounts have no weight: they are not tested")
        return float(key.tested_among(keys_tested) / exact_fraction(self.account))


def reads_normal_forms(key: MasterKey) -> bool:
    """Whether normalised texts are scored under a key: its law holds for any text that was fixed before the draw.

    An assumed law was audited on texts as they stand, and says nothing of others.
    """
    return not format_of(key).basis().assumed


LOOK_SUPPORT: Mapping[str, Callable[[MasterKey], bool]] = {
    "normalised text": reads_normal_forms,
    "parts of texts": lambda key: format_of(key).scores_parts,
    "all posts of an account": lambda key: format_of(key).basis().proven,
    "tokens weighed by a model": can_have_levels,
}
"""Looks besides that at the whole text as it stands, and whether a key takes them."""


def _looks_on(weights: ErrorShares) -> list[str]:
    shares = (weights.normalised, weights.span, weights.account, weights.weighed)
    return [look for look, share in zip(LOOK_SUPPORT, shares, strict=True) if share is not None]


def looks_lacking(key: MasterKey, weights: ErrorShares) -> list[str]:
    """Sentences on the looks that are turned on and that a key does not take."""
    return [
        f"no look at {look}, which its format does not offer"
        for look in _looks_on(weights)
        if not LOOK_SUPPORT[look](key)
    ]


def looks_in_words(keys: Sequence[MasterKey], weights: ErrorShares) -> list[str]:
    """A sentence on each look that is turned on, and the keys that take it."""
    sentences = []
    for look in _looks_on(weights):
        under = [key.key_id for key in keys if LOOK_SUPPORT[look](key)]
        where = "every key" if len(under) == len(keys) else ", ".join(under) + " alone" if under else "none of the keys"
        sentences.append(f"a look at {look}: under {where}")
    return sentences


def price_of_looks(history: Collection[ErrorShares], keys: Sequence[MasterKey]) -> float:
    """How many times the false-positive rate texts may be flagged falsely that were tested with several shares.

    A look that had several shares flags at the largest of them, so that the price is the sum of the looks' largest, in
    the form of text and under the key where it is largest. Example: a text that was tested as it stands with all of the
    rate, then with one half as it stands and one half normalised, is flagged falsely at most 1 + 1/2 times as often.
    """
    prices = [1.0]
    for key in keys:
        for has_normal_form, has_parts in product((False, True), repeat=2):
            largest: dict[str, float] = {}
            for shares in history:
                for look, share in shares.looks(key, has_normal_form=has_normal_form, has_parts=has_parts).items():
                    largest[look] = max(largest.get(look, 0.0), share)
            prices.append(sum(largest.values()))
    return round(max(prices), 9)  # what shares as decimal numbers leave of 1


NO_VARIANTS = ErrorShares()
"""Weights of documents as they stand alone."""


class ScanFilter(NamedTuple):
    """What the filter of a scan leaves out.

    texts: distinct texts that make an n-gram common, or accounts where by_account; learnt: how many texts it was learnt
    from, by the SHA-256 of the tokenizer and by how far the n-grams reach; None: the night's filter is not known yet.
    """

    texts: int
    learnt: Mapping[tuple[str, int], int] | None = None
    by_account: bool = False


class UnsupportedKey(NamedTuple):
    """A key that a scan leaves out, and why neither law nor audit supports its p-values, with what to do."""

    key_id: str
    why: str


def lacks(key: MasterKey, scan_filter: ScanFilter | None) -> str:
    """What a scan lacks to leave out the n-grams that the key's admission left out; empty: nothing.

    scan_filter: None: the scan scores all positions.
    """
    audited = None if key.admission is None else key.admission.filter
    if audited is None:
        return ""
    if scan_filter is None:
        return "it has no filter"
    if scan_filter.by_account:
        return "its filter counts accounts, since [input] names a column of them, and that of the audit counts texts"
    if scan_filter.texts > audited.texts:
        return f"its filter leaves out n-grams of {scan_filter.texts} texts, the audit those of {audited.texts}"
    kind = key.tokenizer.sha256, reach_of(format_of(key).rule())
    learnt = audited.learnt if scan_filter.learnt is None else scan_filter.learnt.get(kind, 0)
    if learnt < audited.learnt:
        return f"its filter was learnt from {learnt:,} texts, that of the audit from {audited.learnt:,}"
    return ""


def supported_keys(
    keys: Sequence[MasterKey], config: ScanConfig, tested: int, scan_filter: ScanFilter | None
) -> tuple[tuple[MasterKey, ...], tuple[UnsupportedKey, ...]]:
    """The keys whose p-values law or audit supports in a scan, and the keys that it leaves out.

    Only keys that the configuration does not name are left out; where it has `audit.require_admission`, none is.

    tested: keys of the registry that give p-values; scan_filter: as for `lacks`.

    Raises:
        Refused: a key may not be left out, or none would be left; names the key, and what to do.
    """
    found = [UnsupportedKey(key.key_id, _fault(key, config, tested, scan_filter)) for key in keys]
    supported = tuple(key for key, fault in zip(keys, found, strict=True) if not fault.why)
    others = ", ".join(f'"{key.key_id}"' for key in supported)
    leave_it_out = f"; or leave it out on purpose: keys = [{others}]" if supported else ""
    wrong = tuple(key._replace(why=key.why + leave_it_out) for key in found if key.why)
    if wrong and (config.keys is not None or config.audit.require_admission or not supported):
        raise Refused(wrong[0].why)
    return supported, wrong


def _fault(key: MasterKey, config: ScanConfig, tested: int, scan_filter: ScanFilter | None) -> str:
    """Why neither law nor audit supports a key, and what to do; empty: one does."""
    # The audit is asked of all keys by `require_admission`, else of keys whose p-values no law over keys supports. For
    # these it must reach what is left of the rate when all keys have their share, since an audit is of one key.
    all_keys, of_all = config.false_positive_rate, config.audit.require_admission
    assumed = format_of(key).basis().assumed
    if not of_all and not assumed:
        return ""
    rate = all_keys / ErrorShares.of(config).corrections(key, tested)[AS_WRITTEN, 1, 1] if assumed else all_keys
    setting = "audit.require_admission" if of_all else f"false_positive_rate: {key.format!r} has no law over its keys"
    if key.admission is None or key.admitted_by is None:
        return (
            f"{setting}: key {key.key_id!r} never passed an audit with its {key.messages} message"
            f"{'s' * (key.messages != 1)}; audit it with `brickscan calibrate` and record that with `brickscan keys "
            f"admit {key.key_id}`"
        )
    if key.admission.holds_down_to > rate:
        share = "" if rate == all_keys else f", of which it has {rate:.2g} among the registry's keys"
        return (
            f"{setting}: the rate of key {key.key_id!r} is known to hold down to "
            f"{key.admission.holds_down_to:g}, not to false_positive_rate = {all_keys:g}{share}; audit it over "
            f"more documents (`brickscan calibrate --down-to {rate:.2g}` says how many), or scan at a higher rate"
        )
    if key.admission.dedup != config.dedup:
        return (
            f"{setting}: key {key.key_id!r} passed an audit with keys.dedup = {key.admission.dedup!r}, which scores "
            f"other positions than this scan with dedup = {config.dedup!r}; audit it as it is scanned"
        )
    lacking = lacks(key, scan_filter)
    if lacking:
        return (
            f"{setting}: key {key.key_id!r} passed an audit that left out common n-grams, and this scan would score "
            f"more: {lacking}; {_advice(scan_filter)}"
        )
    return ""


def _advice(scan_filter: ScanFilter | None) -> str:
    if scan_filter is None or scan_filter.learnt is None:
        return "set `filter` as the audit's keys.filter is, or audit the key without keys.filter"
    return (
        "scan earlier nights under other keys of its tokenizer and window first, or audit the key with a smaller "
        "keys.filter.learnt, or without keys.filter"
    )


@dataclass(frozen=True)
class Plan:
    """The whole plan of a scan: the configuration with its paths made absolute, and the keys on record. No secrets.

    registry and results: folder or URI; locations: the input's paths, resolved; keys: those under test, in the
    registry's order; keys_tested: all keys of the registry that give p-values, among which those without weights share:
    another configuration may name the others; weights_by: how a model reads texts, its path made absolute;
    reader_sha256: digest of the model, in the plan of its pass alone; pass_after: `key_set` of the plan of all texts,
    in that of a pass; audit_secret: where the secret of decoy keys and of text_id is; canaries: of the registry, None
    where there are none, or the input has no accounts; documents: of the input, None before footers are read;
    first_keys: ids of the registry's keys that shared equally before any had a weight, none where none has one; date:
    of the input, None: none was given; filter_sha256: digest of the filter, None: no filter; unsupported_keys: keys
    that no text is scored under, since neither law nor audit supports their p-values; trial: the registry was made for
    a trial.
    """

    config: ScanConfig
    registry: str
    results: str
    locations: tuple[str, ...]
    keys: tuple[MasterKey, ...]
    keys_tested: int
    registry_sha256: str
    weights_by: WeightsByConfig | None = None
    reader_sha256: str | None = None
    pass_after: str | None = None
    audit_secret: str = ""
    canaries: Canaries | None = None
    documents: int | None = None
    first_keys: frozenset[str] = frozenset()
    date: datetime.date | None = None
    filter_sha256: str | None = None
    unsupported_keys: tuple[UnsupportedKey, ...] = ()
    trial: bool = False

    @cached_property
    def columns(self) -> Columns:
        """Names of the input's columns."""
        return Columns.of(self.config.input)

    @property
    def table_reading(self) -> TableReading:
        """How tables of the input are read."""
        given, date = self.config.input, self.date
        where = given.where if given.where is None or date is None else given.where.replace("{date}", date.isoformat())
        return TableReading(given.version, given.timestamp, where)

    @cached_property
    def key_set(self) -> str:
        """Digest of the ids of the keys under test, in a pass of those of its scan (column `keys` of SHARDS)."""
        return key_set(key.key_id for key in self.keys) if self.pass_after is None else self.pass_after + OF_PASS

    @property
    def cautions(self) -> list[str]:
        """Warnings about names and looks under the keys under test, each with the keys that it is true of."""
        keys_of: dict[str, list[str]] = {}
        for key in self.keys:
            for caution in [*format_of(key).cautions(key.messages), *looks_lacking(key, self.weights)]:
                keys_of.setdefault(caution, []).append(key.key_id)
        return [f"under {', '.join(key_ids)}: {caution}" for caution, key_ids in keys_of.items()]

    @cached_property
    def verdict_settings(self) -> str:
        """Everything but the file that decides verdicts (scanner.input.shards)."""
        return self.verdict_settings_under(self.keys)

    def verdict_settings_under(self, keys: Sequence[MasterKey], keys_tested: int | None = None) -> str:
        """As `verdict_settings`, for a scan under other keys; keys_tested: as it was then, None: as it is."""
        config, tested = self.config, self.keys_tested if keys_tested is None else keys_tested
        variants = ["normalised"] if config.variants.normalised else []
        rules = config.dedup, config.min_scored, self.columns
        weights = self.weights.digest_fields() | shares_of_levels(keys, self.weights.weighed)
        settings = verdict_settings(keys, tested, *rules, variants, weights, self.filter_sha256)
        if self.weights_by is None or self.reader_sha256 is None:
            return settings
        return canonical([settings, self.reader_sha256, self.weights_by.cut, self.weights_by.share])

    @property
    def tests_sha256(self) -> str:
        """Digest of `verdict_settings`, as hex text."""
        return hashlib.sha256(self.verdict_settings.encode()).hexdigest()

    @cached_property
    def canary_accounts(self) -> frozenset[str]:
        """Accounts of texts that are marked on purpose."""
        return frozenset(canary.account_id for canary in self.canaries_made)

    @cached_property
    def canaries_made(self) -> tuple[Canary, ...]:
        """Canaries of the registry; none where the input has no accounts."""
        return self.canaries.made if self.canaries else ()

    def under(self, key_ids: Collection[str]) -> "Plan":
        """The plan with some of its keys alone; all of them where none are named."""
        return replace(self, keys=tuple(key for key in self.keys if key.key_id in key_ids)) if key_ids else self

    @property
    def weights(self) -> ErrorShares:
        """Weights of looks and of variants of texts."""
        return ErrorShares.of(self.config)

    def corrections_of(self, key: MasterKey) -> NDArray[np.float64]:
        """K of SPEC §3 for a key (ErrorShares.corrections): float64[variant, has_normal_form, has_parts]."""
        return self.weights.corrections(key, self.keys_tested)

    @property
    def keys_on_record(self) -> list[dict[str, object]]:
        """The keys under test, as a row of `scans` has them."""
        names = ("key_id", "commitment", "messages", "admitted_by")
        return [
            {name: getattr(key, name) for name in names}
            | {"method": key.format, "label": format_of(key).label(), "tokenizer_sha256": key.tokenizer.sha256}
            for key in self.keys
        ]

    @property
    def config_sha256(self) -> str:
        """Digest of the configuration as it was read, as hex text."""
        return digest(self.config.model_dump(mode="json", exclude={"version"}))


def read_config(config_file: Path) -> ScanConfig:
    """Read a configuration. Raises Refused: it cannot be right; names file, field, value and what is allowed."""
    return read_toml(config_file, ScanConfig)


def results_beside(registry: Path | str) -> str | None:
    """Folder or URI of the results of the `scan.toml` beside a registry, as `init` lays it; None: there is none."""
    config_file = Path(registry).absolute().parent / "scan.toml"
    if is_uri(registry) or not config_file.is_file():
        return None
    try:
        config = read_config(config_file)
        named = absolute("registry", config.registry, config_file.parent)
        return results_of(config, config_file) if named == str(Path(registry).absolute()) else None
    except Refused:  # it is for scans to say what is wrong with it
        return None


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
    base, by = config_file.absolute().parent, config.weights_by
    folder = absolute("registry", config.registry, base)
    registry, results = load_registry(folder), results_of(config, config_file)
    locations = tuple(resolve(path, base, date) for path in config.input.paths)
    if date is None and "{date}" in (config.input.where or ""):
        raise Refused(f"input.where: {config.input.where!r} holds {{date}}; say which with --date yesterday")
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
        weights_by=by and by.model_copy(update={"model": str(base / by.model)}),
        audit_secret=audit_secret_of(folder, registry),
        canaries=_canaries(config, registry),
        first_keys=frozenset(key.key_id for key in first_keys(registry.keys, gives_p_values)),
        date=date,
        unsupported_keys=unsupported,
        trial=bool(registry.trial),
    )


def audit_secret_of(folder: str, registry: Registry) -> str:
    """Reference to the audit secret of a registry: a public digest would show whether a guessed text was there.

    Raises Refused: it has none.
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


def _refuse_results_as_input(field: str, folder: str, locations: tuple[str, ...]) -> None:
    """Refuse tables of our own that are, or lie in, an input path: every run would scan what the last run wrote."""
    for location in (location.removeprefix(DELTA_PREFIX) for location in locations):
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
