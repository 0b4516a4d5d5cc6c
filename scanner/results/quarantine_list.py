"""Documents and files in quarantine: by reason, by account or one by one.

Why documents and files are in quarantine, counted, for people who have a line to read it in.

Documents and files in quarantine to this day: by reason or by account, or document by document.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, NamedTuple

import polars as pl

from scanner.results.newest import newest_quarantine
from scanner.results.queries import ask, scanned_and_one_of

MOST_TOLD = 3


class Reason(NamedTuple):
    """A reason of schemas.words, and how many documents, and whole files, are in quarantine for it."""

    reason: str
    documents: int
    files: int


def reasons(quarantine: pl.LazyFrame) -> tuple[Reason, ...]:
    """Count rows of schemas.tables.QUARANTINE by reason, most frequent first."""
    counted = (
        quarantine.group_by("reason")
        .agg(documents=pl.col("row").count(), files=pl.col("row").null_count())
        .sort(pl.col("documents") + pl.col("files"), "reason", descending=[True, False])
    )
    return tuple(Reason(*row) for row in counted.collect().iter_rows())


def in_words(counted: Iterable[Reason]) -> str:
    """The first reasons with counts, such as `null_text 3 documents, not_parquet 1 file, …`."""
    counts = [
        f"{reason} {number:,} {what}" + "s" * (number != 1)
        for reason, documents, files in counted
        for number, what in ((documents, "document"), (files, "file"))
        if number
    ]
    return ", ".join([*counts[:MOST_TOLD], *(["…"] if len(counts) > MOST_TOLD else [])])


By = Literal["reason", "account", "document"]

_GROUPS: Mapping[By, tuple[str, ...]] = {"reason": ("reason",), "account": ("account_id",)}


class Unscored(NamedTuple):
    """Which rows of quarantine are asked for: since and before these times, and with one of each; empty: any.

    scans: ids of the scans that made the rows.
    """

    since: datetime | None = None
    before: datetime | None = None
    reasons: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    scans: tuple[str, ...] = ()

    def expression(self) -> pl.Expr:
        """The filter, on columns of schemas.tables.QUARANTINE."""
        columns = {"reason": self.reasons, "account_id": self.accounts, "scan_id": self.scans}
        return scanned_and_one_of(self.since, self.before, columns)


class InQuarantine(NamedTuple):
    """The rows that are shown (see `in_quarantine`), and totals of everything asked for: rows; documents; files."""

    rows: pl.DataFrame
    entries: int
    documents: int
    files: int


def in_quarantine(results: str, wanted: Unscored, limit: int | None, by: By) -> InQuarantine:
    """Quarantine that no later scan resolved, added up, the most frequent first; or by document, newest first.

    Columns: reason (by reason) or account_id (by account, of documents whose account is known or null); documents,
    files, accounts, reasons and texts, int64, the last three distinct and without null; first and last, when they were
    scanned. By document: as in schemas.tables.QUARANTINE.

    Args:
        results: folder or URI.
        wanted: which rows.
        limit: how many rows at most; None: all.
        by: the unit of a row.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased all the while.
    """

    def question() -> InQuarantine:
        standing = newest_quarantine(results, wanted.expression())
        counts = standing.select(documents=pl.col("row").count(), files=pl.col("row").null_count())
        asked = _newest_first(standing, limit) if by == "document" else _summed(standing, _GROUPS[by])
        found, totals = pl.collect_all([asked, counts])
        documents, files = totals.row(0)
        entries = documents + files if by == "document" else len(found)
        return InQuarantine(found.head(entries if limit is None else limit), entries, documents, files)

    return ask(results, question)


def _newest_first(standing: pl.LazyFrame, limit: int | None) -> pl.LazyFrame:
    by_age = standing.sort("scanned_at", "path", "row", descending=[True, False, False])
    return by_age if limit is None else by_age.head(limit)


def _summed(standing: pl.LazyFrame, group: tuple[str, ...]) -> pl.LazyFrame:
    distinct = {"accounts": "account_id", "reasons": "reason", "texts": "text_sha256"}
    return (
        standing.group_by(group)
        .agg(
            documents=pl.col("row").count().cast(pl.Int64),
            files=pl.col("row").null_count().cast(pl.Int64),
            **{name: pl.col(column).drop_nulls().n_unique().cast(pl.Int64) for name, column in distinct.items()},
            first=pl.col("scanned_at").min(),
            last=pl.col("scanned_at").max(),
        )
        .sort(pl.col("documents") + pl.col("files"), *group, descending=[True, *(False for _ in group)])
    )
