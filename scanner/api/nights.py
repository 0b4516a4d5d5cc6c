"""A night from a program: the scan, its tables, and the explanation of one flag."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from scanner import results as queries
from scanner.results.transactions import Place

if TYPE_CHECKING:
    import polars as pl

    from scanner.cluster import ScanOutcome
    from scanner.evidence.explanation import Explanation


class ResultTables:
    """The tables of results as lazy frames of polars: of each document what is newest. See `results`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def verdicts(self) -> "pl.LazyFrame":
        """One row a document that was read."""
        return queries.verdicts(self._place)

    @property
    def flagged(self) -> "pl.LazyFrame":
        """Flagged documents, newest first, with exact p-values, names and the state of their audit."""
        return queries.flagged(self._place)

    @property
    def spans(self) -> "pl.LazyFrame":
        """Parts of texts that are marked by themselves."""
        return queries.spans(self._place)

    @property
    def accounts(self) -> "pl.LazyFrame":
        """Accounts whose posts together are marked."""
        return queries.accounts(self._place)

    @property
    def quarantine(self) -> "pl.LazyFrame":
        """Rows that could not be scored, and why."""
        return queries.quarantine(self._place)

    @property
    def nights(self) -> "pl.LazyFrame":
        """Totals by the date of the data, newest first."""
        return queries.nights(self._place)

    @property
    def scans(self) -> "pl.LazyFrame":
        """All scans, oldest first."""
        return queries.scans(self._place)

    @property
    def audits(self) -> "pl.LazyFrame":
        """Audits of the false-positive rate."""
        return queries.audits(self._place)

    @property
    def decisions(self) -> "pl.LazyFrame":
        """What people decided about flags, oldest first."""
        return queries.decisions(self._place)


def results(place: Place) -> ResultTables:
    """The tables of results. A table that no scan has written raises Refused when it is named.

    Args:
        place: folder or URI of the results, or the file of the scan's configuration.
    """
    return ResultTables(place)


def scan(config: Path | str, night: date | None = None) -> "ScanOutcome":
    """Scan what the configuration names and is not committed yet, as `brickscan scan` does, on Ray.

    Args:
        config: the file of the scan's configuration.
        night: fills `{date}`.

    Returns:
        What became of it; `exit_code` is that of the command.

    Raises:
        Refused: something cannot be right; ScanFailed: the work had to stop, and what was committed stays.
    """
    from scanner.cluster import run_scan
    from scanner.scan_plan import make_plan

    return run_scan(make_plan(Path(config), night), lambda work, totals: None)


def explain(place: Path | str, document: str) -> "Explanation":
    """Explain one flag: what was found, where it stands in the text, what the registry says of it.

    Args:
        place: the file of the scan's configuration; of a folder or URI of results the text is not shown.
        document: id of a document, or PATH:ROW.

    Raises:
        Refused: there is no such flag.
    """
    from scanner.evidence.explainer import Explainer

    return Explainer(Path(place) if Path(place).is_file() else place).explain(document)
