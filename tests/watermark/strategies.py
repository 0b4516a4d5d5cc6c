"""Documents, windows and shares of green that hypothesis and random numbers draw for the tests of this folder."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

GAMMAS = [Fraction(n, 2**b) for b in range(1, 9) for n in range(1, 2**b, 2)]
DEDUPS = ("ngram", "context", "none")

few = settings(max_examples=30)
many = settings(max_examples=150)

# Small vocabularies repeat windows; extreme ids reach past 32 bits once the message is added.
token_ids = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1), st.sampled_from([31, 32, 255, 256, 2**32 - 1]))
documents = st.lists(st.one_of(st.lists(st.integers(0, 2), max_size=40), st.lists(token_ids, max_size=12)), max_size=6)
windows = st.integers(0, 16)


def random_documents(seed: int, lengths: Sequence[int], vocabulary: int = 50_000) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, vocabulary, length, dtype=np.uint32) for length in lengths]
