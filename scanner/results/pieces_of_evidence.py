"""Count pieces of evidence: near-duplicates of one text, marked for the same message of one key, count once.

Near-duplicates are recognised by their sketches (scanner.detection.sketches).
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from scanner.detection.sketches import SKETCH_BYTES, pieces_of

MOST_SKETCHES = 200_000
"""Largest number of texts whose sketches are held at a time."""

MOST_READS = 10
"""Most reads of the flags, of MOST_SKETCHES texts each. For more than two million texts, pieces are not counted."""

EVIDENCE_COLUMNS = ("text_sha256", "key_id", "message")
"""Columns of a text's digest, key and message. Texts of one piece have the same key and message."""

_SKETCH = pl.when(pl.col("sketch").bin.size() == SKETCH_BYTES).then("sketch")  # another one somebody changed

_GROUP = EVIDENCE_COLUMNS[1:]  # texts of two groups are never one piece


def pieces_of_evidence(flags: pl.LazyFrame) -> pl.DataFrame:
    """Return each flagged text with its piece, a number.

    Returns:
        Columns: those of EVIDENCE_COLUMNS, and piece, int64. It is null for texts of a key and message with more than
        MOST_SKETCHES texts, and for all texts if MOST_READS reads are too few.
    """
    frames, first = [_in_memory(flags.head(0).select(*EVIDENCE_COLUMNS, "sketch").collect())], 0
    for groups, tell in _parts(
        flags.select(EVIDENCE_COLUMNS).unique().group_by(_GROUP).len().collect(engine="streaming")
    ):
        group_flags = flags.join(groups.lazy().select(_GROUP), on=_GROUP, how="semi", nulls_equal=True)
        if tell:
            texts = (
                group_flags.select(*EVIDENCE_COLUMNS, _SKETCH)
                .unique(EVIDENCE_COLUMNS, keep="any")
                .collect(engine="streaming")
            )
            frames.append(_in_memory(texts).with_columns(pl.col("piece") + first))
            first += len(texts)
        else:
            untold = group_flags.select(EVIDENCE_COLUMNS).unique().with_columns(piece=pl.lit(None, pl.Int64))
            frames.append(untold.collect(engine="streaming"))
    return pl.concat(frames)


def sizes_of(flags: pl.LazyFrame, of_flags: pl.DataFrame) -> pl.DataFrame:
    """Count the documents, distinct texts and distinct accounts of each piece.

    Args:
        flags: rows of schemas.tables.FLAGS, one for each document.
        of_flags: rows of `pieces_of_evidence` of these flags.

    Returns:
        Columns: piece, and piece_documents, piece_texts and piece_accounts, int64. Texts with a null piece are left
        out.
    """
    rows = flags.join(of_flags.drop_nulls("piece").lazy(), on=EVIDENCE_COLUMNS, how="inner", nulls_equal=True)
    distinct = {"piece_texts": "text_sha256", "piece_accounts": "account_id"}
    counts = {name: pl.col(column).drop_nulls().n_unique().cast(pl.Int64) for name, column in distinct.items()}
    return rows.group_by("piece").agg(piece_documents=pl.len().cast(pl.Int64), **counts).collect(engine="streaming")


def _parts(sizes: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, bool]]:
    """Yield groups of texts to read together, MOST_SKETCHES texts at most, and whether their pieces are counted."""
    numbers, part, size = [], 0, 0
    ordered = sizes.sort("len", *_GROUP)
    for length in ordered["len"].to_list():
        part, size = (part, size + length) if size + length <= MOST_SKETCHES else (part + 1, length)
        numbers.append(part if length <= MOST_SKETCHES else -1)
    numbered = ordered.with_columns(part=pl.Series(numbers, dtype=pl.Int64))
    all_fit = max(numbers, default=0) < MOST_READS
    numbered = numbered if all_fit else numbered.with_columns(part=pl.lit(-1, pl.Int64))
    for (number,), groups in numbered.group_by("part", maintain_order=True):
        yield groups, number != -1


def _in_memory(texts: pl.DataFrame) -> pl.DataFrame:
    """Return `pieces_of_evidence` for texts that fit in memory."""
    texts = texts.sort(EVIDENCE_COLUMNS)
    marks = [f"{message} {key_id}" for key_id, message in texts.select("key_id", "message").iter_rows()]
    group = np.unique(np.array(marks, np.str_), return_inverse=True)[1]
    piece = pieces_of(texts["sketch"].to_list(), group)
    return texts.select(EVIDENCE_COLUMNS).with_columns(piece=pl.Series(piece, dtype=pl.Int64))
