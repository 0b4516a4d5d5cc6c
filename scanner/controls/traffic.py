"""Count distinct texts of a scan's verdicts, by which several controls judge.

A text posted a million times is one piece of evidence, so rows are joined by the digest of their text, over all shards.
Digests are taken a share at a time, so memory stays flat.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import polars as pl

from scanner.results.expected_false_flags import ExpectedFalseFlags
from schemas.registry import is_reserved
from schemas.tables import SCORED
from schemas.words import Naming

ROWS_JOINED_AT_A_TIME = 1 << 23
"""Approximate number of rows of verdicts that are joined at a time."""


class Traffic(NamedTuple):
    """Counts of distinct texts.

    texts: texts that were scored.
    flagged: texts that were flagged at all.
    reserved: texts that were flagged for a reserved message.
    unheld: texts that were flagged for a message that no user holds.
    scans: ids of the scans that wrote the verdicts.
    unproved, unproved_accounts: rows, with those of canaries, and accounts, whose proof differs.
    lengths: number of texts for each number of scored positions, as rows have it.
    pieces: number of pieces of evidence among the flagged texts, where fillings of one template are one piece
        (scanner.detection.sketches). None: too many to tell.
    false_flags: expected number of false flags among the flagged texts. None: not counted.
    """

    texts: int
    flagged: int
    reserved: int
    unheld: int
    scans: tuple[str, ...]
    unproved: int = 0
    unproved_accounts: int = 0
    lengths: Mapping[int, int] = MappingProxyType({})
    pieces: int | None = None
    false_flags: ExpectedFalseFlags | None = None


def measure(verdicts: pl.LazyFrame, log10_rate: float) -> Traffic:
    """Count distinct texts that have a p-value. Scores of formats without a law test nothing.

    Args:
        verdicts: rows of schemas.tables.VERDICTS, of one list of keys, flagged rows with their p-values.
        log10_rate: log10 of the false-positive rate. Flags at or below it count.
    """
    scored = scored_rows(verdicts)
    rows, scans, unproved = pl.collect_all(
        [
            scored.select(pl.len()),
            verdicts.select(pl.col("scan_id").unique().sort()),
            verdicts.select((pl.col("naming") == Naming.UNPROVED).sum()),
        ],
        engine="streaming",
    )
    # copies of a text have one p-value and one message, but its holder may depend on when a copy was written
    texts = scored.select(
        text=pl.col("text_id").hash(0),
        flagged=(pl.col("flagged") & (pl.col("log10_p_global") <= log10_rate)).fill_null(value=False),
        reserved=is_reserved(pl.col("message")),
        # a key of one message marks for everybody alike, so no user holds it
        unheld=pl.col("naming").is_in([Naming.RESERVED, Naming.UNALLOCATED, Naming.HELD_LATER])
        & (pl.col("messages_tested") > 1),
        scored="scored",
    )
    totals, lengths = _totals(texts, -(-int(rows.item()) // ROWS_JOINED_AT_A_TIME))
    return Traffic(*totals, tuple(scans["scan_id"]), int(unproved.item()), lengths=lengths)


def scored_rows(verdicts: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows of VERDICTS that have a p-value."""
    has_p = pl.col("p_class").is_not_null() | pl.col("log10_p_global").is_not_null()
    return verdicts.filter(pl.col("status").is_in(SCORED), has_p)


def _totals(texts: pl.LazyFrame, parts: int) -> tuple[tuple[int, int, int, int], dict[int, int]]:
    """Count distinct texts.

    Returns:
        The numbers of all texts, of flagged texts, and of texts flagged for reserved messages and for messages that no
        user held.
        The number of texts for each number of scored positions.
    """
    totals, flagged, lengths = np.zeros(4, np.int64), pl.col("flagged"), Counter[int]()
    for_nobody = (pl.col("unheld") | ~flagged).all()  # rows of a text under other keys do not count
    for part in range(parts):
        distinct = (
            texts.filter(pl.col("text") % parts == part)
            .group_by("text")
            .agg(
                flagged.any(), pl.col("scored").max(), reserved=(flagged & pl.col("reserved")).any(), unheld=for_nobody
            )
        )
        sums = distinct.select(
            pl.len(), flagged.sum(), pl.col("reserved").sum(), unheld=(flagged & pl.col("unheld")).sum()
        )
        row, by_length = pl.collect_all([sums, distinct.group_by("scored").len()], engine="streaming")
        totals += np.array(row.row(0), np.int64)
        lengths.update(dict(by_length.iter_rows()))
    texts_, flags, for_reserved, unheld = map(int, totals)
    return (texts_, flags, for_reserved, unheld), dict(lengths)
