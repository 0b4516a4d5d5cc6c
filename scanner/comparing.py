"""The comparison of nights, through which the rest of the tree reaches it; without its line no night is compared.

It says whether a night is like the nights before it: fewer documents, more empty texts, other scripts.
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
    """Counts what shows of texts while they are scanned. Each worker makes its own."""

    @property
    def table(self) -> str:
        """Name of the table of the counts, which is committed beside `verdicts`."""

    def rows(self, documents: "pa.RecordBatch", verdicts: "pa.RecordBatch", origin: "BatchOrigin") -> "pa.RecordBatch":
        """Return what is counted of each document of a batch, with its `row`.

        verdicts: exact rows of VERDICTS on some of the documents, in their order.
        """

    def in_order(self, batches: "Sequence[pa.RecordBatch]") -> "list[pa.RecordBatch]":
        """Return the rows that are written, of what `rows` gave."""


class ComparedNight(Protocol):
    """A night, held against the nights before it."""

    @property
    def night(self) -> date:
        """Its date."""

    @property
    def moved(self) -> str | None:
        """A sentence on what moved and since when; None: nothing did."""

    @property
    def waiting(self) -> str | None:
        """A sentence where there are too few earlier nights to hold it against; None: there are enough."""

    @property
    def figures(self) -> Sequence[str]:
        """Names of the figures that moved, each once."""

    @property
    def record(self) -> Mapping[str, Any]:
        """The same for programs."""


class Comparison(Protocol):
    """The comparison, whole."""

    def counter(self, text_ids: "TextIds") -> TextCounter:
        """Create the counter of a worker."""

    def compare(
        self, results: str, nights: Collection[date], ending: Mapping[date, Collection[str]]
    ) -> Sequence[ComparedNight]:
        """Hold nights against the nights before each, the newest first. Nights that may still grow are left out.

        A sentence that the same figure moved since the same night stands in the newest of them only.

        Args:
            results: folder or URI of results.
            nights: dates.
            ending: nights whose scan comes to its end now, and has no row in `scans` yet, with the ids of its keys.

        Raises:
            Refused: there are no results.
            ScanFailed: a table cannot be read.
        """


COMPARISONS: tuple[Comparison, ...] = (NIGHT_COMPARISON,)
"""The comparison that there is, on a line that can be taken out with its folder."""


def text_counters(text_ids: "TextIds") -> list[TextCounter]:
    """Create what counts texts in a worker."""
    return [each.counter(text_ids) for each in COMPARISONS]


def compare_nights(
    results: str, nights: Iterable[date], ending: Mapping[date, Collection[str]] = MappingProxyType({})
) -> list[ComparedNight]:
    """See Comparison.compare; no night where there is no comparison."""
    dates = {*nights}
    return [night for each in COMPARISONS for night in each.compare(results, dates, ending)]
