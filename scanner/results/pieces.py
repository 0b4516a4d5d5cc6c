"""Evidence is counted once: near-duplicates of one text, marked for the same message, are one piece.

An edited copy of a text that is flagged by chance is flagged again far more often than by chance, since it keeps the
n-grams. Texts of one key and message that share more than a fifth of their n-grams are one piece, and so are those that
a chain of such pairs connects.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.detection.sketches import PLACES

ALIKE = 4
"""Equal places of two sketches of 64 from which texts are one piece: texts of one length that share a fifth agree in 7
on average, and in fewer than 4 in one case of 12; texts that share nothing agree in none.
"""

AT_A_TIME = 200_000
"""Texts whose sketches are held at a time."""

MOST_READS = 10
"""Most reads of the flags, of AT_A_TIME texts each: for more than two million texts, pieces are not counted."""

OF = ("text_sha256", "key_id", "message")
"""Columns that a piece of evidence shares, with the text."""

_GROUP = OF[1:]  # texts of two groups are never one piece


def pieces(flags: pl.LazyFrame) -> pl.DataFrame:
    """Each flagged text with its piece, a number.

    Columns: those of OF, and piece, int64; null where there are too many texts to tell: of a key and message with more
    than AT_A_TIME, or of all where MOST_READS are too few.

    Args:
        flags: rows of schemas.tables.FLAGS.
    """
    found, first = [_in_memory(flags.head(0).select(*OF, "sketch").collect())], 0
    for groups, tell in _parts(flags.select(OF).unique().group_by(_GROUP).len().collect(engine="streaming")):
        these = flags.join(groups.lazy().select(_GROUP), on=_GROUP, how="semi", nulls_equal=True)
        if tell:
            texts = these.select(*OF, "sketch").unique(OF, keep="any").collect(engine="streaming")
            found.append(_in_memory(texts).with_columns(pl.col("piece") + first))
            first += len(texts)
        else:
            untold = these.select(OF).unique().with_columns(piece=pl.lit(None, pl.Int64))
            found.append(untold.collect(engine="streaming"))
    return pl.concat(found)


def sizes_of(flags: pl.LazyFrame, of_flags: pl.DataFrame) -> pl.DataFrame:
    """How many documents, distinct texts and distinct accounts each piece has.

    Columns: piece, and piece_documents, piece_texts and piece_accounts, int64. Texts whose piece is null are left out.

    Args:
        flags: rows of schemas.tables.FLAGS, one a document.
        of_flags: rows of `pieces` of these flags.
    """
    rows = flags.join(of_flags.drop_nulls("piece").lazy(), on=OF, how="inner", nulls_equal=True)
    distinct = {"piece_texts": "text_sha256", "piece_accounts": "account_id"}
    counts = {name: pl.col(column).drop_nulls().n_unique().cast(pl.Int64) for name, column in distinct.items()}
    return rows.group_by("piece").agg(piece_documents=pl.len().cast(pl.Int64), **counts).collect(engine="streaming")


def _parts(sizes: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, bool]]:
    """Groups that are read together, AT_A_TIME texts at most, and whether their pieces are counted.

    Args:
        sizes: `len` texts of each group.
    """
    numbers, part, size = [], 0, 0
    ordered = sizes.sort("len", *_GROUP)
    for length in ordered["len"].to_list():
        part, size = (part, size + length) if size + length <= AT_A_TIME else (part + 1, length)
        numbers.append(part if length <= AT_A_TIME else -1)
    numbered = ordered.with_columns(part=pl.Series(numbers, dtype=pl.Int64))
    whole = max(numbers, default=0) < MOST_READS
    numbered = numbered if whole else numbered.with_columns(part=pl.lit(-1, pl.Int64))
    for (number,), groups in numbered.group_by("part", maintain_order=True):
        yield groups, number != -1


def _in_memory(texts: pl.DataFrame) -> pl.DataFrame:
    """As `pieces`, for texts that fit in memory."""
    texts = texts.sort(OF).with_row_index("text")
    sketched = texts.drop_nulls("sketch")
    places = np.frombuffer(b"".join(sketched["sketch"]), "<u4").reshape(len(sketched), PLACES)
    numbers = sketched["text"].to_numpy()
    about = [f"{message} {key_id}" for key_id, message in sketched.select("key_id", "message").iter_rows()]
    group = np.unique(np.array(about, np.str_), return_inverse=True)[1]
    parent = np.arange(len(texts))
    for place in range(PLACES):
        order = np.lexsort((numbers, places[:, place], group))
        same = (group[order[1:]] == group[order[:-1]]) & (places[order[1:], place] == places[order[:-1], place])
        for at in np.flatnonzero(same).tolist():
            a, b = int(order[at]), int(order[at + 1])
            if (places[a] == places[b]).sum() >= ALIKE:
                _join(parent, int(numbers[a]), int(numbers[b]))
    piece = np.array([_root(parent, text) for text in range(len(texts))], np.int64)
    return texts.select(OF).with_columns(piece=pl.Series(piece, dtype=pl.Int64))


def _root(parent: NDArray[np.int64], text: int) -> int:
    while parent[text] != text:
        parent[text] = parent[parent[text]]
        text = int(parent[text])
    return text


def _join(parent: NDArray[np.int64], a: int, b: int) -> None:
    a, b = _root(parent, a), _root(parent, b)
    parent[max(a, b)] = min(a, b)
