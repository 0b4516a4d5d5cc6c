"""Evidence is counted once: near-duplicates of one text, marked for the same message, are one piece.

Of a text that is flagged by chance, an edited copy is flagged again far more often than chance has it, since it keeps
its n-grams. Texts of one key and message that share more than a fifth of their n-grams are one piece, and so are those
that a chain of such pairs connects.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.detection.sketches import PLACES

ALIKE = 4
"""Places of two sketches of 64 that agree: texts of one length that share a fifth agree in 7 on average, and in fewer
than 4 in one case of 12; those that share nothing in none."""

MOST_TEXTS = 200_000
"""That are told apart; of more, nothing is said."""

OF = ("text_sha256", "key_id", "message")
"""What a piece of evidence is of."""


def pieces(flags: pl.LazyFrame) -> pl.DataFrame | None:
    """Each flagged text with its piece, a number; None where there are more than MOST_TEXTS.

    Columns: those of OF, and piece, int64. Rows without a sketch, which older versions wrote, are pieces of their own.

    Args:
        flags: rows of schemas.tables.FLAGS.
    """
    texts = flags.select(*OF, "sketch").unique(OF, keep="any").head(MOST_TEXTS + 1).collect(engine="streaming")
    if len(texts) > MOST_TEXTS:
        return None
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
