"""Reach the comparison of nights.

All other code uses it through this file. Without the line in COMPARISONS there is none.

It tells whether a night is like the nights before it, or has for example fewer documents, more empty texts, or other
scripts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from scanner.night_comparison import NIGHT_COMPARISON

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.detection.attribution import BatchOrigin
    from scanner.detection.rows import TextIds


class TextCounter(Protocol):
    """An object that counts visible traits of texts while they are scanned. Each worker makes its own."""

    @property
    def table(self) -> str:
        """Return the name of the table of the counts. It is committed beside `verdicts`."""

    def rows(self, documents: "pa.RecordBatch", verdicts: "pa.RecordBatch", origin: "BatchOrigin") -> "pa.RecordBatch":
        """Return the counts of each document of a batch, with its `row`.

        verdicts: exact rows of VERDICTS on some of the documents, in their order.
        """

    def in_order(self, batches: "Sequence[pa.RecordBatch]") -> "list[pa.RecordBatch]":
        """Return the rows to write, from all results of `rows`."""


class ComparedNight(Protocol):
    """A night, compared with the nights before it."""

    @property
    def night(self) -> date:
        """Return its date."""

    @property
    def moved(self) -> str | None:
        """Return a sentence on the figures that moved, and since when. None: none did."""

    @property
    def waiting(self) -> str | None:
        """Return a sentence if there are too few earlier nights to compare it with. None: there are enough."""

    @property
    def figures(self) -> Sequence[str]:
        """Return the names of the figures that moved, each once."""

    @property
    def record(self) -> Mapping[str, Any]:
        """Return the same for programs."""


class Comparison(Protocol):
    """A whole comparison of nights."""

    def counter(self, text_ids: "TextIds") -> TextCounter:
        """Create the counter of a worker."""

    def compare(
        self, results: str, nights: Collection[date], ending: Mapping[date, Collection[str]]
    ) -> Sequence[ComparedNight]:
        """Compare nights with the nights before each, the newest first. Nights that may still grow are left out.

        If the same figure moved since the same night in several nights, only the newest of them has the sentence.

        Args:
            results: folder or URI of results.
            nights: dates.
            ending: nights whose scan is just ending and has no row in `scans` yet, with the ids of its keys.

        Raises:
            Refused: there are no results.
            ScanFailed: a table cannot be read.
        """


COMPARISONS: tuple[Comparison, ...] = (NIGHT_COMPARISON,)
"""The only comparison, on a line that can be deleted together with its folder."""


def text_counters(text_ids: "TextIds") -> list[TextCounter]:
    """Create the counters of texts in a worker."""
    return [each.counter(text_ids) for each in COMPARISONS]


def compare_nights(
    results: str, nights: Iterable[date], ending: Mapping[date, Collection[str]] = MappingProxyType({})
) -> list[ComparedNight]:
    """See Comparison.compare. Empty if there is no comparison."""
    dates = {*nights}
    return [night for each in COMPARISONS for night in each.compare(results, dates, ending)]
