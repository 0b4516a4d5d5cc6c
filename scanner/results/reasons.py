"""Why documents and files are in quarantine, counted, for people who have a line to read it in."""

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

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
