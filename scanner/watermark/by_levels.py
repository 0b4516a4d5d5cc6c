"""A mark under which tokens count by levels, and its slow path: what a model expected says little, surprises say much.

The law of Σ level · term depends on how many scored tokens of the text have each level (scanner.watermark.level_laws).
So the score is −ln of the p-value that the text's own law gives the sum, as SynthID's is, and everything else goes its
way: corrections for messages and keys, names, ranks, proofs. Levels depend on the text alone, hence under H0 on no key.

A search bounds the scores of all numbers of a run, level by level (SPEC_2 §3): Σ v · (score over the steps of level v).
The numbers of largest bounds are scored exactly, and more of them until no other can be better. Its rules are those of
the search without levels: the best two of all messages, and others that are as rare as one in M; with groups the best
user of the best group, and of other groups whose own p is 1/B or less.
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
from scanner.watermark.native import green_runs, gumbel_runs
from scanner.watermark.native.secret import rule_of
from scanner.watermark.native.streams import is_group_step
from scanner.watermark.native.version2_marks import (
    MOST_GROUPS_SEARCHED,
    Version2GreenList,
    Version2Gumbel,
    Version2Mark,
)
from scanner.watermark.positions import Dedup, Positions, Tokens
from scanner.watermark.pvalues import LN10
from schemas.registry import MOST_NUMBERS

MOST_MESSAGES = 16
"""Most candidates of a text under a key without groups."""

LevelTail = Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]
"""Function that gives log10 p of sums, float64[D], over tokens of which so many have each level, [D, LEVELS + 1]."""

_AT_FIRST = 64  # numbers that are scored exactly, at first
_ROOM = 1e-9  # slack in log10 p, so that rounding decides nothing


class LevelSteps(NamedTuple):
    """The T scored positions of one text that count. ids: uint32[T]; nonces: uint64[T]; levels: uint8[T], above 0."""

    ids: NDArray[np.uint32]
    nonces: NDArray[np.uint64]
    levels: NDArray[np.uint8]

    def some(self, mask: NDArray[np.bool_]) -> "LevelSteps":
        """Those of them that a mask of bool[T] holds."""
        return LevelSteps(self.ids[mask], self.nonces[mask], self.levels[mask])


def best_of_run(
    mark: Version2Mark, steps: LevelSteps, first: int, length: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The numbers of largest sums of a run, best first, ties to the smaller: int64[most], float64[most].

    Args:
        mark: the opened key.
        steps: of one text.
        first: the run's first number, the first of a block.
        length: how many numbers the run has.
        most: how many are returned, `length` at most.
    """
    bounds = np.zeros(length)
    for level in np.unique(steps.levels).tolist():
        bounds += level * _bounds(mark, steps.some(steps.levels == level), first, length)
    exact = min(max(_AT_FIRST, most), length)
    while True:
        by_bound = np.argpartition(-bounds, min(exact, length - 1))
        numbers = np.sort(by_bound[:exact])
        sums = bounds[numbers]
        if isinstance(mark, Version2Gumbel):
            sums = gumbel_runs.level_sums(mark.sub_keys.chacha, *steps, first + numbers)
        best_first = np.argsort(-sums, kind="stable")[:most]
        if exact == length or bounds[by_bound[exact]] < sums[best_first[-1]]:
            return numbers[best_first], sums[best_first]
        exact = min(8 * exact, length)


def _bounds(mark: Version2Mark, steps: LevelSteps, first: int, length: int) -> NDArray[np.float64]:
    """What no score over some steps exceeds, for each number of a run; green counts are exact: float64[length]."""
    number_range = mark.sub_keys.chacha, steps.ids, steps.nonces, first, length
    if isinstance(mark, Version2GreenList):
        return green_runs.counts_of_run(*number_range, rule_of(mark.gamma))
    return gumbel_runs.largest_scores(*number_range)


def candidates_of(mark: Version2Mark, steps: LevelSteps, count: int, tail: LevelTail) -> list[int]:
    """The messages among 0 … count−1 that a search of one text looks into; the best of all is among them."""
    if not len(steps.ids):
        return list(range(min(count, 2)))
    if mark.groups is None:
        message, sums = best_of_run(mark, steps, 0, count, min(MOST_MESSAGES, count))
        return list(map(int, message[_rare(sums, steps, tail, count, 2)]))
    shared = is_group_step(steps.nonces)
    of_group, of_user = steps.some(shared), steps.some(~shared)
    groups = range(min(MOST_GROUPS_SEARCHED, mark.groups))
    if len(of_group.ids):
        best, sums = best_of_run(mark, of_group, 0, mark.groups, len(groups))
        groups = best[_rare(sums, of_group, tail, mark.groups, 1)].tolist()
    users = [
        best_of_run(mark, of_user, group * MOST_NUMBERS, mark.groups, 1)[0][0] if len(of_user.ids) else 0
        for group in groups
    ]
    return [int(group * mark.groups + user) for group, user in zip(groups, users, strict=True)]


def _rare(sums: NDArray[np.float64], steps: LevelSteps, tail: LevelTail, count: int, least: int) -> NDArray[np.bool_]:
    """Which of the best sums are looked into: the first ones, and those that are as rare as one in so many."""
    counts = np.bincount(steps.levels, minlength=LEVELS + 1)[None]
    rare = tail(sums, np.repeat(counts, len(sums), axis=0)) <= _ROOM - np.log10(count)
    rare[:least] = True
    return np.asarray(rare, np.bool_)


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
        from scanner.watermark.proof import ln_tail

        score = math.fsum((levels * terms).tolist())
        return max(-ln_tail(score, np.bincount(levels, minlength=LEVELS + 1).tolist(), self._gamma), 0.0)
