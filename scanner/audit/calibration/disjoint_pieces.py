"""The paper's figure: a few master keys over disjoint pieces of documents, three tests of each piece (paper, Sec. 3).

Under one key documents share n-grams, so hits are not independent; the keys are the clusters, and bands come from the
spread between them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.expectation import chances
from scanner.watermark import Dedup, Format, Tokens
from scanner.watermark.laws import Law, Normal
from scanner.watermark.positions import PositionRule

PANELS: tuple[tuple[str, Dedup], ...] = (("z", "none"), ("exact", "none"), ("exact", "ngram"))
"""Tests, with the repeats left out: the Z-test of the past, the exact test, the exact test with repeats left out."""


class Worst(NamedTuple):
    """The piece with the smallest p when repeats are scored, and its p when they are left out."""

    log10_p: float
    log10_p_ngram: float
    scored: int
    scored_ngram: int
    key: int
    ids: NDArray[np.uint32]


class PieceCounts(NamedTuple):
    """Counts of one part of the pieces for one format and window; parts can be added.

    hits: int64[K, 3, J], of K keys in the PANELS at J thresholds; expected: float64[3, J], of one key; tests: pieces.
    """

    hits: NDArray[np.int64]
    expected: NDArray[np.float64]
    tests: int
    worst: Worst

    def plus(self, other: "PieceCounts") -> "PieceCounts":
        """Both parts together."""
        worst = min(self.worst, other.worst, key=lambda worst: worst.log10_p)
        return PieceCounts(self.hits + other.hits, self.expected + other.expected, self.tests + other.tests, worst)


def pieces(tokens: Tokens, counts: NDArray[np.int64], length: int) -> Tokens:
    """The first counts[d] disjoint pieces of exactly `length` tokens of each document d."""
    numbers = np.concatenate([np.arange(count) for count in counts]) if len(counts) else np.empty(0, np.int64)
    begins = np.repeat(tokens.offsets[:-1], counts) + length * numbers.astype(np.int64)
    index = begins[:, None] + np.arange(length)[None, :]
    return Tokens(tokens.ids[index].ravel(), np.arange(len(begins) + 1, dtype=np.int64) * length)


def piece_counts(how: Format, secrets: Sequence[bytes], tokens: Tokens, thresholds: Sequence[float]) -> PieceCounts:
    """Score pieces under every key, with repeats and without.

    Args:
        how: the keys' format.
        secrets: the secrets of the K keys.
        tokens: at least one piece.
        thresholds: α[J].

    Raises:
        ValueError: no keys, or a format without a law.
    """
    marks, exact = [how.open(secret) for secret in secrets], how.law()
    if exact is None:
        raise ValueError(f"{how.label()} has no law; pieces are tested by one")
    log10_alpha = np.log10(np.asarray(thresholds))
    positions = {dedup: how.rule().positions(tokens, dedup) for dedup in dict.fromkeys(d for _, d in PANELS)}
    laws: dict[str, Law] = {"z": Normal(exact), "exact": exact}
    hits = np.zeros((len(marks), len(PANELS), len(thresholds)), np.int64)
    worst: Worst | None = None
    for k, mark in enumerate(marks):
        score = {dedup: mark.score(tokens, where, 0) for dedup, where in positions.items()}
        p = {panel: laws[panel[0]].log10_p(score[panel[1]], positions[panel[1]].scored) for panel in PANELS}
        for i, panel in enumerate(PANELS):
            hits[k, i] = (p[panel][:, None] <= log10_alpha[None, :]).sum(axis=0)
        at = int(p["exact", "none"].argmin())
        if worst is None or p["exact", "none"][at] < worst.log10_p:
            worst = Worst(
                float(p["exact", "none"][at]),
                float(p["exact", "ngram"][at]),
                int(positions["none"].scored[at]),
                int(positions["ngram"].scored[at]),
                k,
                tokens.ids[tokens.offsets[at] : tokens.offsets[at + 1]],
            )
    if worst is None:
        raise ValueError("no keys: pieces are tested under at least one")
    expected = [_expected(laws[test], positions[dedup].scored, thresholds) for test, dedup in PANELS]
    return PieceCounts(hits, np.array(expected), len(tokens.offsets) - 1, worst)


def _expected(law: Law, scored: NDArray[np.int64], thresholds: Sequence[float]) -> NDArray[np.float64]:
    distinct, times = np.unique(scored, return_counts=True)
    if isinstance(law, Normal):  # the Z-test takes scores for continuous, so it promises the threshold itself
        return len(scored) * np.asarray(thresholds, np.float64)
    return np.asarray(times @ chances(law, distinct, thresholds), np.float64)


def repeated(ids: NDArray[np.uint32], rule: PositionRule, most: int) -> list[tuple[int, tuple[int, ...]]]:
    """The n-grams that stand more than once in a text: (times, tokens), most frequent first."""
    found: dict[tuple[int, ...], int] = {}
    text = Tokens(ids, np.array([0, len(ids)], np.int64))
    for place in rule.positions(text, "none").index.tolist():
        gram = rule.ngram(text, place)
        found[gram] = found.get(gram, 0) + 1
    return sorted(((times, gram) for gram, times in found.items() if times > 1), key=lambda pair: -pair[0])[:most]
