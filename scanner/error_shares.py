"""Divide the false-positive rate: correct p for all ways in which a text is tested.

Each way to test a text under a key has a share of the false-positive rate (SPEC §3). A p-value is corrected by
1/(weight of the key · weight of the look · weight of the variant). The weights of each kind sum to at most 1, so
P(flagged falsely in any way) stays within the rate. If a text lacks one of these ways, its share goes to another way
(ErrorShares.corrections). If texts that were already scanned get other weights, that is a further look at them. It
raises the rate by a factor (price_of_looks). A scan refuses this, unless it is told to pay.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.formats import can_have_levels, format_of
from scanner.watermark.parts import PartKinds
from schemas.config import DEFAULT_LOOKS, ScanConfig, SpansConfig, VariantsConfig, exact_fraction
from schemas.registry import MasterKey

AS_WRITTEN, NORMALISED = 0, 1
"""Variants of a text, by their places in tables of corrections: the text as written, and the normalised text."""


class ErrorShares(NamedTuple):
    """Weights of looks and of variants of texts.

    document: weight of a document as a whole.
    as_written: weight of its text as written.
    normalised: weight of its normalised text. None: not scored.
    span: weight of its parts together. None: not tested.
    windows, segments: which parts are tested.
    account: weight of all posts of an account together. None: not tested.
    levels: weight of the whole text with tokens weighed by a model. None: not tested.
    """

    document: float = 1.0
    as_written: float = 1.0
    normalised: float | None = None
    span: float | None = None
    windows: bool = True
    segments: bool = False
    account: float | None = None
    levels: float | None = None

    @classmethod
    def of(cls, config: ScanConfig) -> "ErrorShares":
        """Return the weights of a configuration.

        By default, the looks and variants that it turns on have equal shares.
        """
        stated, normalised, spans = config.weights, config.variants.normalised, config.spans.tested
        accounts, levels = config.accounts is not None, config.levels is not None
        equal = cls.equal(normalised=normalised, looks=1 + spans + accounts + levels)
        return cls(
            document=equal.document if stated.document is None else stated.document,
            span=(stated.span or equal.document) if spans else None,
            account=(stated.account or equal.document) if accounts else None,
            levels=(stated.levels or equal.document) if levels else None,
            as_written=equal.as_written if stated.as_written is None else stated.as_written,
            normalised=stated.normalised if normalised and stated.normalised is not None else equal.normalised,
            windows=config.spans.windows or not spans,
            segments=config.spans.segments,
        )

    @classmethod
    def equal(cls, *, normalised: bool, looks: int = 1) -> "ErrorShares":
        """Return equal shares of documents and the other looks, and of the variants that are on."""
        # rounded, and the sum is still at most 1: 3 · 0.3333 ≤ 1
        return cls(round(1 / looks, 4), 0.5 if normalised else 1.0, 0.5 if normalised else None)

    @classmethod
    def by_default(cls) -> "ErrorShares":
        """Return equal shares of DEFAULT_LOOKS, for texts outside any scan's configuration."""
        looks = tomllib.loads(DEFAULT_LOOKS)
        variants, spans = VariantsConfig(**looks["variants"]), SpansConfig(**looks["spans"])
        equal = cls.equal(normalised=variants.normalised, looks=1 + spans.tested)
        return equal._replace(span=equal.document, windows=spans.windows, segments=spans.segments)

    @property
    def part_kinds(self) -> PartKinds:
        """Return the kinds of parts of texts that are tested, if any are."""
        return PartKinds(self.windows, self.segments)

    def digest_fields(self) -> dict[str, float]:
        """Return the weights' part of shard ids. It is empty for equal shares, because ids existed before weights.

        If spans or accounts are tested, their weight is part of it. So are the kinds of spans, except if they are only
        windows, because ids are older than segments.
        """
        if self == self.equal(normalised=self.normalised is not None):
            return {}
        of_units = {name: weight for name, weight in self._asdict().items() if weight is not None}
        of_parts = {name: of_units.pop(name) for name in ("windows", "segments")}
        return of_units | of_parts if self.segments else of_units

    def looks(self, key: MasterKey, *, has_normal_form: bool, has_parts: bool) -> dict[str, float]:
        """Return the share of each look, by name, that a text of some form has under a key. They sum to at most 1.

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
        if self.levels is not None and can_have_levels(key):
            found["levels"] = self.levels
        return found

    def published(self) -> dict[str, float]:
        """Return the share of each look that is on, by its name and version, as public records of keys have them."""
        whole = {"as written/1": self.as_written, "normalised/1": self.normalised or 0.0}
        shares = {name: self.document * weight for name, weight in whole.items()}
        others = {"parts/1": self.span, "account/1": self.account, "levels/1": self.levels}
        shares |= {name: weight or 0.0 for name, weight in others.items()}
        return {name: share for name, share in shares.items() if share > 0}

    def for_levels(self) -> "ErrorShares":
        """Return weights for a text with tokens weighed by a model: as a whole, as written.

        Raises:
            ValueError: such texts are not tested.
        """
        if self.levels is None:
            raise ValueError("texts weighted by a model have no weight: they are not tested")
        return ErrorShares(self.levels)

    def corrections(self, key: MasterKey, keys_tested: int) -> NDArray[np.float64]:
        """Return K of SPEC §3 for whole texts under a key: float64[variant, has_normal_form, has_parts].

        K = 1 / (weight of the key · weight of the look · weight of the variant).

        If a text lacks a look, the look's weight goes to the text as a whole, as written:

        - without another normal form, `as_written` also has the weight of `normalised`
        - without parts, `document` also has the weight of `span`
        - under a key whose tokens no model can weigh, `document` also has the weight of `levels`

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
            key: a key whose law is assumed reads no normal form, and marks of some formats score no parts. Under such a
                key every text has the K of a text without them.
            keys_tested: number of keys that share equally, for a key without a weight of its own.

        Returns:
            variant: AS_WRITTEN, and NORMALISED if normalised texts are scored.
            has_normal_form: 1 if the normalised text is another one.
            has_parts: 1 if the text has parts that are tested.
        """
        key_tests = key.tested_among(keys_tested)
        as_written, normalised, span, levels = (
            exact_fraction(weight or 0) for weight in (self.as_written, self.normalised, self.span, self.levels)
        )
        document = exact_fraction(self.document) + (0 if can_have_levels(key) else levels)
        table = np.empty((1 if self.normalised is None else 2, 2, 2))
        for has_normal_form, has_parts in product((0, 1), repeat=2):
            look = document + (0 if has_parts and format_of(key).scores_parts else span)
            given_back = 0 if has_normal_form and reads_normal_forms(key) else normalised
            table[AS_WRITTEN, has_normal_form, has_parts] = key_tests / (look * (as_written + given_back))
            if self.normalised is not None:
                table[NORMALISED, has_normal_form, has_parts] = key_tests / (look * normalised)
        return table

    def correction_of_spans(self, key: MasterKey, keys_tested: int) -> float | None:
        """Return K of SPEC §3 for the spans of a key. None: spans are not tested.

        Spans are looked for only in texts as written.
        """
        return None if self.span is None else float(key.tested_among(keys_tested) / exact_fraction(self.span))

    def correction_of_accounts(self, key: MasterKey, keys_tested: int) -> float:
        """Return K of SPEC §3 for the posts of accounts under a key.

        Raises:
            ValueError: accounts are not tested.
        """
        if self.account is None:
            raise ValueError("accounts have no weight: they are not tested")
        return float(key.tested_among(keys_tested) / exact_fraction(self.account))


def reads_normal_forms(key: MasterKey) -> bool:
    """Return whether normalised texts are scored under a key: its law holds for any text fixed before the draw.

    An assumed law was audited on texts as written, and says nothing about others.
    """
    return not format_of(key).basis().assumed


LOOK_SUPPORT: Mapping[str, Callable[[MasterKey], bool]] = {
    "normalised text": reads_normal_forms,
    "parts of texts": lambda key: format_of(key).scores_parts,
    "all posts of an account": lambda key: format_of(key).basis().proven,
    "tokens weighted by a model": can_have_levels,
}
"""Each look besides that at the whole text as written, with a function that tells whether a key takes it."""


def _looks_on(weights: ErrorShares) -> list[str]:
    shares = (weights.normalised, weights.span, weights.account, weights.levels)
    return [look for look, share in zip(LOOK_SUPPORT, shares, strict=True) if share is not None]


def looks_lacking(key: MasterKey, weights: ErrorShares) -> list[str]:
    """Write a sentence on each look that is turned on but not taken by a key."""
    return [
        f"scans do not look at {look}, because the key's format does not support it"
        for look in _looks_on(weights)
        if not LOOK_SUPPORT[look](key)
    ]


def looks_beyond_record(record: Mapping[str, float], weights: ErrorShares) -> list[str]:
    """Write a sentence on each look that has a larger share of the rate than a key's public record gives it.

    A claim corrects by the record's share (SPEC_3 §5). Then its p is larger than the scan's, and may not reach the
    rate. Accounts, and tokens weighed by a model, are left out, because their flags never become claims.

    Args:
        record: shares by name and version, as `ErrorShares.published` returns them.
        weights: weights of a scan.
    """
    sentences = []
    for look, share in weights._replace(account=None, levels=None).published().items():
        if look not in record:
            sentences.append(f"the public record lacks the look {look!r}, so flags of that look cannot become claims")
        elif share > record[look] * (1 + 1e-9):  # products of decimal shares
            sentences.append(
                f"the public record gives the look {look!r} {record[look]:g} of the rate, and this scan {share:g}: a "
                f"claim follows the record, so its p is {share / record[look]:.3g} times the p of the scan"
            )
    return sentences


def looks_in_words(keys: Sequence[MasterKey], weights: ErrorShares) -> list[str]:
    """Write a sentence on each look that is turned on, with the keys that take it."""
    sentences = []
    for look in _looks_on(weights):
        under = [key.key_id for key in keys if LOOK_SUPPORT[look](key)]
        where = "every key" if len(under) == len(keys) else ", ".join(under) + " alone" if under else "none of the keys"
        sentences.append(f"a look at {look}: under {where}")
    return sentences


_SHARES_IN_WORDS = {
    "as written/1": "texts as written",
    "normalised/1": "texts normalised",
    "parts/1": "parts of texts",
    "account/1": "all posts of an account",
    "levels/1": "texts weighted by a model",
}


def shares_in_words(weights: ErrorShares) -> list[str]:
    """Write a sentence on how the looks share the false-positive rate; none where one look has all of it."""
    shares = [f"{_SHARES_IN_WORDS[name]} {share:.3g}" for name, share in weights.published().items()]
    return [f"shares of the false-positive rate: {', '.join(shares)}"] if len(shares) > 1 else []


def price_of_looks(history: Collection[ErrorShares], keys: Sequence[MasterKey]) -> float:
    """Return the factor on the false-positive rate of texts that were tested with several shares.

    A look that had several shares flags at the largest of them. So the price is the sum of the looks' largest shares,
    for the form of text and the key where it is largest.

    Example: a text was tested as written with the whole rate, then with one half as written and one half normalised. It
    is flagged falsely at most 1 + 1/2 times as often.
    """
    prices = [1.0]
    for key in keys:
        for has_normal_form, has_parts in product((False, True), repeat=2):
            largest: dict[str, float] = {}
            for shares in history:
                for look, share in shares.looks(key, has_normal_form=has_normal_form, has_parts=has_parts).items():
                    largest[look] = max(largest.get(look, 0.0), share)
            prices.append(sum(largest.values()))
    return round(max(prices), 9)  # rounded, because decimal shares do not sum to exactly 1


NO_VARIANTS = ErrorShares()
"""Weights of whole documents as written, without other looks or variants."""
