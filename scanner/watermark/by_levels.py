"""A mark under which tokens count by levels, and its slow path: what a model expected says little, surprises say much.

The law of Σ level · term depends on how many scored tokens of the text have each level (scanner.watermark.level_laws).
So the score is −ln of the p-value that the text's own law gives the sum, as SynthID's is, and everything else goes its
way: corrections for messages and keys, names, ranks, proofs. Levels depend on the text alone, hence under H0 on no key.
"""

import math
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.format import (
    Candidates,
    Format,
    ProofPath,
    ProvesParts,
    ScoresParts,
    UserEvidence,
    Watermark,
)
from scanner.watermark.laws import Binomial, Gamma, Law, Surprise
from scanner.watermark.level_laws import LEVELS, log10_greenlist_levels, log10_gumbel_levels
from scanner.watermark.native.level_search import LevelSteps, LevelTail, candidates_of
from scanner.watermark.native.version2_marks import Version2Mark
from scanner.watermark.positions import Dedup, Positions, Tokens
from scanner.watermark.pvalues import LN10

_VALUES = np.arange(LEVELS + 1)
_BITS_OF_A_TERM = 32  # no score exceeds T times as many ln 2: p is no smaller than that every draw is the largest


LevelsOf = Callable[[Tokens], NDArray[np.uint8]]
"""Function that gives the level of each token of a batch: uint8[N]."""


def tail_of(law: Law | None) -> LevelTail | None:
    """The law of sums by levels of scores that have a law; None: it is not known."""
    if isinstance(law, Gamma):
        return lambda sums, counts: log10_gumbel_levels(sums, counts, _VALUES)
    if isinstance(law, Binomial):
        gamma = law.gamma
        return lambda sums, counts: log10_greenlist_levels(sums, counts, _VALUES, gamma)
    return None


def lacks_for_levels(form: Format, messages: int) -> str:
    """What a key of a format and so many messages lacks to be scored by levels; empty: nothing."""
    if form.version is None or tail_of(form.law()) is None:
        return "only the marks of this project's own formats are scored by levels"
    if messages > 1 and form.version != 2:
        return "its messages share draws, and are not searched by levels"
    return ""


class _Sums(NamedTuple):
    """Σ level · term of D texts, float64[D], and how many of their scored tokens have each level, [D, LEVELS + 1]."""

    sums: NDArray[np.float64]
    counts: NDArray[np.int64]


class ByLevels:
    """A watermark by levels.

    Args:
        mark: the opened key, of a format of which `lacks_for_levels` says nothing.
        levels_of: gives levels of tokens.

    Raises:
        ValueError: a key that cannot be scored by levels.
    """

    def __init__(self, mark: Watermark, levels_of: LevelsOf) -> None:
        tail = tail_of(mark.law)
        if tail is None or not isinstance(mark, ScoresParts):
            raise ValueError(f"{mark.label}: has no scores by levels")
        self._mark, self._adds, self._levels_of, self._tail = mark, mark, levels_of, tail
        self.label, self.rule, self.basis = mark.label, mark.rule, mark.basis
        self.law: Law = Surprise(_BITS_OF_A_TERM)

    def __repr__(self) -> str:
        return f"{self._mark!r} by levels"

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """−ln p of the sum of each document under its message: float64[D]."""
        return self._surprise(self._sums(tokens, positions, messages))

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """See Searches.

        Raises:
            ValueError: several messages of a key that cannot be searched by levels.
        """
        if count == 1:
            score = self.score(tokens, positions, 0)
            message = np.broadcast_to(np.array([0, -1]), (len(score), 2))
            independent = isinstance(self._mark, Version2Mark)
            return Candidates(message, np.stack([score, np.zeros_like(score)], axis=1), independent=independent)
        if not isinstance(self._mark, Version2Mark):
            raise ValueError(f"{self.label}: cannot be searched by levels for {count} messages")
        found = self._candidates(self._mark, tokens, positions, count)
        width = max(2, *map(len, found)) if found else 2
        message = np.array([one + [-1] * (width - len(one)) for one in found], np.int64).reshape(-1, width)
        there, score = message >= 0, np.zeros(message.shape)
        for place in range(width):
            score[:, place] = self.score(tokens, positions, np.maximum(message[:, place], 0))
        order = np.lexsort((message, np.where(there, -score, np.inf)), axis=1)
        message, score = (np.take_along_axis(a, order, axis=1) for a in (message, np.where(there, score, 0.0)))
        return Candidates(message, score, self._user_evidence(self._mark, tokens, positions, message), independent=True)

    def _candidates(self, mark: Version2Mark, tokens: Tokens, positions: Positions, count: int) -> list[list[int]]:
        ids, nonces, offsets = mark.steps(tokens, positions)
        levels, found = self._levels_of(tokens)[positions.index], []
        for begin, end in pairwise(offsets.tolist()):
            steps = LevelSteps(ids[begin:end], nonces[begin:end], levels[begin:end])
            found.append(candidates_of(mark, steps.some(steps.levels > 0), count, self._tail))
        return found

    def _user_evidence(
        self, mark: Version2Mark, tokens: Tokens, positions: Positions, message: NDArray[np.int64]
    ) -> UserEvidence | None:
        """What each candidate shares with no other of its group."""
        if mark.groups is None:
            return None
        of_user, score = ~mark.group_steps(tokens, positions), np.zeros(message.shape)
        for place in range(message.shape[1]):
            wanted = np.maximum(message[:, place], 0)
            score[:, place] = self._surprise(self._sums(tokens, positions, wanted, of_user))
        scored = np.bincount(_documents(positions)[of_user], minlength=len(message))
        return UserEvidence(score, scored, mark.groups)

    def _sums(
        self,
        tokens: Tokens,
        positions: Positions,
        messages: NDArray[np.int64] | int,
        counted: NDArray[np.bool_] | None = None,
    ) -> _Sums:
        """Sums over the positions that a mask of bool[P] holds; None: all."""
        terms, documents = self._adds.terms(tokens, positions, messages), len(positions.offsets) - 1
        levels = self._levels_of(tokens)[positions.index].astype(np.int64)
        if counted is not None:
            levels = np.where(counted, levels, 0)
        of = _documents(positions)
        sums = np.bincount(of, levels * terms, documents).astype(np.float64)
        counts = np.bincount(of * (LEVELS + 1) + levels, minlength=documents * (LEVELS + 1))
        return _Sums(sums, counts.reshape(documents, LEVELS + 1))

    def _surprise(self, summed: _Sums) -> NDArray[np.float64]:
        return np.asarray(np.maximum(-LN10 * self._tail(summed.sums, summed.counts), 0.0), np.float64)


def _documents(positions: Positions) -> NDArray[np.int64]:
    """The document of each scored position: int64[P]."""
    return np.repeat(np.arange(len(positions.offsets) - 1), positions.scored)


class ByLevelsProof:
    """The slow path of a mark by levels.

    Args:
        path: the slow path of the mark without levels, which scores parts.
        levels_of: gives levels of tokens.
        form: the mark's format.
    """

    def __init__(self, path: ProofPath, levels_of: LevelsOf, form: Format) -> None:
        if not isinstance(path, ProvesParts):
            raise TypeError(f"{form.label()}: its slow path does not say what each position adds")
        self._path, self._levels_of = path, levels_of
        law = form.law()
        self._gamma = law.gamma if isinstance(law, Binomial) else None

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, left_out: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See ProofPath: −ln p of each message's sum."""
        places, terms, _, _ = self._path.parts(tokens, messages, dedup, left_out)
        levels = self._levels(tokens)[places]
        return len(places), [self._surprise(levels, of_one) for of_one in terms]

    def user_evidence(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, left_out: Collection[int] = ()
    ) -> tuple[int, list[float], int] | None:
        """See ProvesUserEvidence."""
        places, terms, of_user, users = self._path.parts(tokens, messages, dedup, left_out)
        if of_user is None:
            return None
        levels = self._levels(tokens)[places][of_user]
        return len(levels), [self._surprise(levels, of_one[of_user]) for of_one in terms], users

    def log10_p(self, score: float, scored: int) -> float:
        """See ProofPath."""
        return -score / math.log(10.0) if scored else 0.0

    def _levels(self, tokens: NDArray[np.uint32]) -> NDArray[np.int64]:
        return self._levels_of(Tokens(tokens, np.array([0, len(tokens)], np.int64))).astype(np.int64)

    def _surprise(self, levels: NDArray[np.int64], terms: NDArray[np.float64]) -> float:
        from scanner.watermark.level_proof import ln_tail

        score = math.fsum((levels * terms).tolist())
        return max(-ln_tail(score, np.bincount(levels, minlength=LEVELS + 1).tolist(), self._gamma), 0.0)
