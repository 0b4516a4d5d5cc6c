"""The filter of common n-grams, section [filter] of scan.toml: what it learns, keeps in tables and leaves out.

Nothing outside this folder imports from it but a line in scanner.filtering.
"""

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scanner.detection.left_out import LeftOut, NgramFilter
from scanner.follow_up import CommittedScan, OnActors
from scanner.ngram_filter.common_ngrams import LEAST_REACH, CommonNgrams, common_in, hash_key
from scanner.scan_plan import Plan
from scanner.watermark import Tokens

if TYPE_CHECKING:
    from scanner.ngram_filter.night_filter import NightFilter


class CommonNgramFilter:
    """See scanner.filtering.Filtering. Libraries of tables are imported where one is read: most workers read none."""

    least_reach = LEAST_REACH

    def fix(self, plan: Plan, scan_id: str | None) -> Plan:
        """See scanner.filtering.Filtering."""
        from scanner.ngram_filter.night_filter import with_filter

        return with_filter(plan, scan_id)

    def open(self, results: str, sha256: str, secret: bytes) -> NgramFilter:
        """See scanner.filtering.Filtering."""
        from scanner.ngram_filter.night_filter import open_filter

        return open_filter(results, sha256, secret)

    def of_config(self, config_file: Path, night: date) -> "NightFilter | None":
        """See scanner.filtering.Filtering."""
        from scanner.ngram_filter.night_filter import filter_of_config

        return filter_of_config(config_file, night)

    def digests(self, results: str, night: date) -> set[str]:
        """See scanner.filtering.Filtering."""
        from scanner.ngram_filter.night_filter import filters_used, fixed_filter

        fixed = fixed_filter(results, night)
        return filters_used(results, night) | (set() if fixed is None else {fixed})

    def learn(self, scan: CommittedScan, on_actors: OnActors) -> None:
        """See scanner.filtering.Filtering."""
        from scanner.ngram_filter.follow_up import learn_ngrams

        learn_ngrams(scan, on_actors)

    def find_common(
        self, texts: Iterable[tuple[Tokens, NDArray[np.uint64]]], reach: int, seed: bytes, common_from: int
    ) -> NDArray[np.uint8]:
        """See scanner.filtering.Filtering."""
        return common_in(texts, reach, hash_key(seed), common_from)

    def left_out(self, reach: int, seed: bytes, common: NDArray[np.uint8]) -> LeftOut:
        """See scanner.filtering.Filtering."""
        return CommonNgrams(reach, hash_key(seed), common)


COMMON_NGRAMS = CommonNgramFilter()
