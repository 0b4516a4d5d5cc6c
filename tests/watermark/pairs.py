"""The fast path and the reference under one roof, and ragged batches from lists: shared by the tests of this folder."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from scanner.watermark import Format, GreenList, Gumbel, LogGumbel, Positions, Tokens, scored_positions
from scanner.watermark.laws import Binomial, Gamma, Law
from scanner.watermark.native.format import GreenListFormat, GumbelFormat
from tests import reference

SECRET = bytes(range(100, 132))


class Pair(NamedTuple):
    """One watermark twice: the fast path and the reference."""

    fast: GreenList | Gumbel | LogGumbel
    plain: reference.Method

    def positions(self, tokens: Tokens, dedup: str = "ngram") -> Positions:
        return scored_positions(tokens, self.fast.window, dedup)


def greenlist(window: int, gamma: Fraction = Fraction(1, 4), secret: bytes = SECRET) -> Pair:
    return Pair(GreenList(secret, window, gamma), reference.Method("greenlist", secret, window, gamma))


def gumbel(window: int, secret: bytes = SECRET) -> Pair:
    return Pair(Gumbel(secret, window), reference.Method("gumbel", secret, window))


def log_gumbel(window: int, secret: bytes = SECRET) -> Pair:
    return Pair(LogGumbel(secret, window), reference.Method("gumbel-log", secret, window))


def law_of(gamma: Fraction | None) -> Law:
    """The law of the green list with share γ; of Gumbel's score for None."""
    return Gamma() if gamma is None else Binomial(gamma)


def format_for(gamma: Fraction | None, window: int) -> Format:
    """The format of the green list with share γ; Gumbel's for None."""
    return GumbelFormat(window=window) if gamma is None else GreenListFormat(window=window, gamma=str(gamma))


def both(window: int) -> list[Pair]:
    return [greenlist(window, Fraction(3, 8)), gumbel(window)]


def batch_tokens(documents: Iterable[Sequence[int]]) -> Tokens:
    """Documents as one batch: ids uint32[N], offsets int64[D + 1]."""
    documents = [np.asarray(document, np.uint32) for document in documents]
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    return Tokens(np.concatenate([np.empty(0, np.uint32), *documents]), offsets)


def split(positions: Positions, tokens: Tokens) -> list[list[int]]:
    """Scored positions of each document, counted from its own beginning."""
    bounds = zip(pairwise(positions.offsets.tolist()), tokens.offsets.tolist(), strict=False)
    return [(positions.index[begin:end] - start).tolist() for (begin, end), start in bounds]


def scores_of_all(pair: Pair, tokens: Tokens, positions: Positions, count: int) -> np.ndarray:
    """Scores [D, M] of every message by the one-message path, which test_scores compares with the reference."""
    return np.stack([pair.fast.score(tokens, positions, message) for message in range(count)], axis=1)


def sum_error(scored: int, score: float) -> float:
    """Most by which two double sums of T terms in one order differ when their logarithms differ by an ulp or two."""
    return (scored + 4) * 2.0**-52 * max(1.0, abs(score))
