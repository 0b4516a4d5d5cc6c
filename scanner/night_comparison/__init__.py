"""Each night held against the nights before it: what workers count of texts, the figures of a night, and the judge.

Nothing outside this folder imports from it but a line in scanner.comparing.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanner.detection.rows import TextIds
    from scanner.night_comparison.compared import ComparedNight
    from scanner.night_comparison.text_counts import TextCounter


class NightComparison:
    """See scanner.comparing.Comparison. Workers need no library of tables, and `status` none of those of workers."""

    def counter(self, text_ids: "TextIds") -> "TextCounter":
        """See scanner.comparing.Comparison."""
        from scanner.night_comparison.text_counts import TextCounter

        return TextCounter(text_ids)

    def compare(
        self, results: str, nights: Collection[date], ending: Mapping[date, Collection[str]]
    ) -> "Sequence[ComparedNight]":
        """See scanner.comparing.Comparison."""
        from scanner.night_comparison.compared import compare

        return compare(results, nights, ending)


NIGHT_COMPARISON = NightComparison()
