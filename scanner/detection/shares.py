"""Shares of the false-positive rate for the ways to test a text under each key (SPEC §3).

A p-value is corrected by 1/(weight of the key · weight of the unit · weight of the variant). The weights of each kind
sum to 1 at most, so that P(flagged falsely in any way) stays within the rate, also when another way is turned on later.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from schemas.config import ScanConfig, as_written
from schemas.registry import MasterKey


class Weights(NamedTuple):
    """Weights of units and of variants of texts.

    document: weight of a document as a whole; as_written: of its text as it stands; normalised: of its normalised text,
    None: not scored; span: of its parts together, None: not tested; windows, segments: which parts; account: of all
    posts of an account together, None: not tested.
    """

    document: float = 1.0
    as_written: float = 1.0
    normalised: float | None = None
    span: float | None = None
    windows: bool = True
    segments: bool = False
    account: float | None = None

    @classmethod
    def of(cls, config: ScanConfig) -> "Weights":
        """Weights as a configuration states them, else equal shares of the units and variants that it turns on."""
        stated, normalised, spans = config.weights, config.variants.normalised, config.spans.tested
        accounts = config.accounts is not None
        equal = cls.equal(normalised=normalised, spans=spans, accounts=accounts)
        return cls(
            document=equal.document if stated.document is None else stated.document,
            span=stated.span if spans and stated.span is not None else equal.span,
            account=stated.account if accounts and stated.account is not None else equal.account,
            as_written=equal.as_written if stated.as_written is None else stated.as_written,
            normalised=stated.normalised if normalised and stated.normalised is not None else equal.normalised,
            windows=config.spans.windows or not spans,
            segments=config.spans.segments,
        )

    @classmethod
    def equal(cls, *, normalised: bool, spans: bool = False, accounts: bool = False) -> "Weights":
        """Equal shares of the units and of the variants that are on."""
        unit, variant = round(1 / (1 + spans + accounts), 4), 0.5 if normalised else 1.0  # 3 · 0.3333 ≤ 1
        of_span, of_account = unit if spans else None, unit if accounts else None
        return cls(unit, variant, 0.5 if normalised else None, of_span, account=of_account)

    def decide(self) -> dict[str, float]:
        """The weights' part of shard ids: empty for equal shares, since ids existed before weights.

        Where spans or accounts are tested, their weight stands in it, and the kinds of spans unless these are windows
        alone, since ids are older than segments.
        """
        if self == self.equal(normalised=self.normalised is not None):
            return {}
        of_units = {name: weight for name, weight in self._asdict().items() if weight is not None}
        of_parts = {name: of_units.pop(name) for name in ("windows", "segments")}
        return of_units | of_parts if self.segments else of_units

    def tests(self, key: MasterKey, keys_tested: int) -> tuple[float, ...]:
        """K of SPEC §3 for a key: for texts as they stand and, where these are scored, for normalised texts.

        Args:
            key: the key whose p-values are corrected.
            keys_tested: how many keys share equally, for a key without a weight of its own.
        """
        variants = [weight for weight in (self.as_written, self.normalised) if weight is not None]
        of_key = key.tested_among(keys_tested) / as_written(self.document)
        return tuple(float(of_key / as_written(weight)) for weight in variants)

    def tests_of_spans(self, key: MasterKey, keys_tested: int) -> float | None:
        """K of SPEC §3 for the spans of a key. None: spans are not tested.

        Spans are looked for only in texts as they stand.
        """
        return None if self.span is None else float(key.tested_among(keys_tested) / as_written(self.span))

    def tests_of_accounts(self, key: MasterKey, keys_tested: int) -> float:
        """K of SPEC §3 for the posts of accounts under a key.

        Raises:
            ValueError: accounts are not tested.
        """
        if self.account is None:
            raise ValueError("accounts have no weight: they are not tested")
        return float(key.tested_among(keys_tested) / as_written(self.account))


NO_VARIANTS = Weights()
"""Weights of documents as they stand alone."""


def columns_of_tests(tests: float) -> dict[str, float | None]:
    """K in the form of the columns of VERDICTS."""
    whole = math.ceil(tests)
    return {"keys_tested": whole, "tests": None if whole == tests else tests}


def recorded_tests(row: Mapping[str, Any]) -> float:
    """K of a flagged row of VERDICTS or FLAGS."""
    tests: float = row["keys_tested"] if row.get("tests") is None else row["tests"]
    return tests
