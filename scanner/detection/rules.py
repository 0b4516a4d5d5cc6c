"""Define the rules that decide on a text, as one value for scans, checks, proofs and replays."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scanner.detection.left_out import NO_FILTER, NgramFilter
from scanner.detection.stated_shares import StatedShares
from scanner.error_shares import NO_VARIANTS, ErrorShares
from scanner.looks.normalising import check_variants
from scanner.looks.text_parts import check_parts
from schemas.config import ScanConfig
from schemas.words import Dedup


@dataclass(frozen=True)
class Rules:
    """The rules that decide on a text, besides its keys and their users.

    Args:
        false_positive_rate: a document is flagged if its corrected p-value is at most this.
        keys_tested: number of keys whose p could be reported for a document, scored here or not. Keys without weights
            of their own share equally.
        misnaming_rate: users of a group are named if the corrected p of their user evidence is at most this. None: the
            false-positive rate.
        dedup: the repeats that are left out.
        min_scored: number of scored positions below which a key does not score a document.
        weights: weights of looks and of variants. Normalised texts with a weight are scored too, if they differ. Spans
            with a weight are looked for.
        ngram_filter: n-grams that are left out of scoring.
        stated: the shares that proofs correct by, as the configuration states them. None: the weights on record.
    """

    false_positive_rate: float
    keys_tested: int
    misnaming_rate: float | None = None
    dedup: Dedup = ScanConfig.model_fields["dedup"].default
    min_scored: int = ScanConfig.model_fields["min_scored"].default
    weights: ErrorShares = NO_VARIANTS
    ngram_filter: NgramFilter = NO_FILTER
    stated: StatedShares | None = None

    @classmethod
    def of(cls, config: ScanConfig, keys_tested: int, ngram_filter: NgramFilter = NO_FILTER) -> "Rules":
        """Return the rules of a scan's configuration.

        Raises:
            Refused: a look at texts does not exist here.
        """
        check_variants(config.variants)
        check_parts(tested=config.spans.tested)
        rates = config.false_positive_rate, keys_tested, config.misnaming_rate
        weights, stated = ErrorShares.of(config), StatedShares.of_config(config)
        return cls(*rates, config.dedup, config.min_scored, weights, ngram_filter, stated)

    @classmethod
    def recorded(
        cls,
        scan: Mapping[str, Any],
        keys_tested: int,
        weights: ErrorShares = NO_VARIANTS,
        ngram_filter: NgramFilter = NO_FILTER,
    ) -> "Rules":
        """Return the rules of a scan by its row of SCANS.

        Raises:
            Refused: it had a look that does not exist here.
        """
        check_parts(tested=weights.span is not None)
        rates = scan["false_positive_rate"], keys_tested, scan["misnaming_rate"]
        return cls(*rates, scan["dedup"], scan["min_scored"], weights, ngram_filter)

    def for_levels(self) -> "Rules":
        """Return the rules of the look at texts with tokens weighed by a model."""
        return replace(self, weights=self.weights.for_levels(), stated=self.shares_of_proofs.of_levels())

    @property
    def shares_of_proofs(self) -> StatedShares:
        """Return the shares by which proofs correct p-values."""
        return self.stated or StatedShares.on_record(**self.weights._asdict())

    @functools.cached_property
    def rates(self) -> tuple[float, float]:
        """Return two rates: at or below the first a p flags a text, at or below the second it names its user."""
        return self.false_positive_rate, self.misnaming_rate or self.false_positive_rate
