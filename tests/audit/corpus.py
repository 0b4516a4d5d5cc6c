"""Tokens for the tests of this folder, cut from the demo's sample."""

import numpy as np

from scanner.watermark import Tokens


def documents_of(tokens: Tokens, count: int, length: int) -> Tokens:
    """The first documents that have enough tokens, each cut to the same length."""
    lengths = np.diff(tokens.offsets)
    chosen = np.flatnonzero(lengths >= length)[:count]
    assert len(chosen) == count, f"the sample has {len(chosen)} documents of {length} tokens, not {count}"
    ids = np.concatenate([tokens.ids[tokens.offsets[d] : tokens.offsets[d] + length] for d in chosen])
    return Tokens(ids, np.arange(count + 1, dtype=np.int64) * length)
