"""Define a mark that counts tokens by levels, and its slow path.

Tokens that a model expected say little, surprises much.

The law of Σ level · term depends on how many scored tokens of the text have each level (scanner.watermark.level_laws).
So, as for SynthID, the score is −ln of the p-value of the sum under the text's own law. Corrections for messages and
keys, names, ranks, floors and proofs then work as for any score. Levels depend only on the text, so under H0 they
depend on no key. If two keys may have marked a token (vLLM), each has a sum. The score is the best over several weights
of the two sums, each with a share of the error, as without levels.

A search (SPEC_3 §4) only finds messages. It needs no law, because p of every message found is corrected for all
messages. Steps have keys of their own, so a step that is listed v times adds v times as much, and the search without
levels can be used:

1. List each step as many times as its level. Steps of level 0 are gone.
2. Without groups, compute sums of all messages. The best two are candidates, and others that are as rare as one in M.
3. With groups, count Σ level · rough score for all groups. The rough score of a green list is its score, that of a
   Gumbel mark the leading ones of eight digits. The eight groups of largest sum are drawn in full.
4. Look into the best of these groups, and into others whose own p is 1/B or less. The user of largest Σ level · rough
   score over the user steps is the candidate.
5. Score each candidate from the text: Σ level · term over all steps and over the user steps only, and −ln p of both
   sums.

The numbers of step 5 are the same for a message however it was found, so its p-value is exact.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.format import (
    Candidates,
    Format,
    MarkAbility,
    ProofPath,
    ProvesParts,
    RanksAmongDecoys,
    ScoresParts,
    UserEvidence,
    Watermark,
)
from scanner.watermark.laws import Binomial, Floored, Gamma, Law, SeveralWeights, Surprise
from scanner.watermark.level_laws import LEVELS, log10_greenlist_levels, log10_gumbel_levels, most_added
from scanner.watermark.native.steps import Steps, is_group_step
from scanner.watermark.native.version3_marks import GROUPS_DRAWN_IN_FULL, Version3Mark, best_first
from scanner.watermark.positions import Dedup, Positions, Tokens, positions_where
from scanner.watermark.pvalues import LN10
from schemas.registry import MOST_NUMBERS

MOST_MESSAGES = 16
"""Largest number of candidates of a text under a key without groups."""

LevelTail = Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]
"""A function that returns log10 p of sums.

It takes the sums, float64[D, K] of K keys, and the number of tokens of each level, [D, LEVELS + 1].
"""

KeyWeights = tuple[tuple[tuple[float, ...], float], ...]
"""Weights of a mark's keys by which its sums are added up, and the share of the error of each choice of weights."""

ONE_KEY: KeyWeights = (((1.0,), 1.0),)
"""Weights of a mark with one key: its sum counts as it is."""


@runtime_checkable
class CountsByLevels(Protocol):
    """A format whose tokens can count by levels, at least under some keys."""

    def lacks_for_levels(self, messages: int) -> str:
        """Return the reason why a key of so many messages cannot be scored by levels. Empty if it can."""


@runtime_checkable
class TermsOfKeys(Watermark, Protocol, metaclass=MarkAbility):
    """A watermark that scores no parts, but returns the terms of each position for the sum of each of its K keys.

    Under H0 all terms are independent, each of the law that `law` is made of.
    """

    def terms_of_keys(
        self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int
    ) -> NDArray[np.float64]:
        """Compute the term of each scored position for each key's sum: float64[K, P].

        Positions may come in any order.
        """


@runtime_checkable
class SearchesByLevels(Watermark, Protocol, metaclass=MarkAbility):
    """A watermark of several messages, each with draws of its own, that can be searched by levels."""

    def search_by_levels(
        self, tokens: Tokens, positions: Positions, levels: NDArray[np.uint8], count: int
    ) -> Candidates:
        """Search as Searches.search does, with scores Σ level · term.

        Args:
            tokens: of the batch.
            positions: the scored positions.
            levels: uint8[P], of the scored positions.
            count: messages 0 … count−1 are searched.
        """


@runtime_checkable
class ProvesTermsOfKeys(Protocol):
    """A `ProofPath` of a mark that returns the terms of each position for the sum of each of its K keys."""

    @property
    def weights(self) -> KeyWeights:
        """Return the weights by which the law adds up the sums of the keys."""

    def terms_of_keys(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, common_places: Collection[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Compute the term of each scored token of a text, under each of M messages and K keys.

        The arguments are those of `ProofPath.scores`.

        Returns:
            The places of the scored tokens, int64[P].
            Their terms, float64[M, K, P].
        """


@runtime_checkable
class BoundsRounding(Protocol):
    """A `ProofPath` whose scores differ by rounding from the exact ones by more than a share of 1e-9."""

    def rounding(self, scored: int) -> float:
        """Return how much a score of so many positions may differ from the exact one, beyond the share of 1e-9."""


_ROOM = 1e-9  # slack in log10 p, so that rounding decides nothing


class _Search(NamedTuple):
    """A search of D documents by levels.

    mark: the opened key.
    steps: the steps, each as many times as its level.
    counts: int64[D, LEVELS + 1], how many different steps have each level.
    tail: the law of the sums.
    """

    mark: Version3Mark
    steps: Steps
    counts: NDArray[np.int64]
    tail: LevelTail

    @classmethod
    def of_steps(cls, mark: Version3Mark, steps: Steps, levels: NDArray[np.uint8], tail: LevelTail) -> "_Search":
        """Create the search over steps with these levels, uint8[P]."""
        return cls(mark, steps.repeated(levels), level_counts(levels, steps.scored), tail)

    def best_messages(self, count: int) -> list[list[int]]:
        """List the messages among 0 … count−1 to look into, for each document."""
        return self._rare(count, 2, MOST_MESSAGES)

    def best_groups(self, groups: int) -> list[list[int]]:
        """List the groups to look into, for each document."""
        return self._rare(groups, 1, GROUPS_DRAWN_IN_FULL)

    def best_users(self, groups: list[list[int]], users: int) -> list[list[int]]:
        """List the message of the best user in each group of a document. Without steps, it is that of user 0."""
        scored = self.steps.scored > 0
        rows = [
            (document, group)
            for document, document_groups in enumerate(groups)
            for group in document_groups
            if scored[document]
        ]
        documents, first = np.array(rows, np.int64).reshape(-1, 2).T
        best = iter(self._best_numbers(documents, first * MOST_NUMBERS, users, 1)[0][:, 0].tolist() if rows else ())
        return [
            [group * users + (next(best) if has_steps else 0) for group in document_groups]
            for document_groups, has_steps in zip(groups, scored.tolist(), strict=True)
        ]

    def _best_numbers(
        self, documents: NDArray[np.int64], first: NDArray[np.int64], length: int, limit: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        numbers, sums = self.mark.best_numbers(self.steps, documents, first, length, limit)
        return numbers, sums.astype(np.float64)

    def _rare(self, count: int, least: int, limit: int) -> list[list[int]]:
        """List the best numbers of each document: `least`, and up to `limit` that are as rare as one in `count`."""
        # Sums fall, so the law is computed only up to the first number that is not rare. Without steps none is rare.
        least, limit, scored = min(least, count), min(limit, count), self.steps.scored
        rare_numbers, documents = [[*range(least)] for _ in scored], np.flatnonzero(scored)
        if not len(documents):
            return rare_numbers
        number, sums = self._best_numbers(documents, np.zeros_like(documents), count, limit)
        rare_counts, rows = np.full(len(documents), least), np.arange(len(documents))
        for place in range(least, limit):
            log10_p = self.tail(sums[rows, place][:, None], self.counts[documents[rows]])
            rows = rows[log10_p <= _ROOM - np.log10(count)]
            rare_counts[rows] += 1
            if not len(rows):
                break
        for document, best_numbers, rare_count in zip(
            documents.tolist(), number.tolist(), rare_counts.tolist(), strict=True
        ):
            rare_numbers[document] = best_numbers[:rare_count]
        return rare_numbers


_VALUES = np.arange(LEVELS + 1)
_BITS_OF_A_TERM = 64  # for two keys: no score exceeds T times as many ln 2, the score if all draws are the largest


LevelsOf = Callable[[Tokens], NDArray[np.uint8]]
"""A function that returns the level of each token of a batch: uint8[N]."""


def tail_of(law: Law | None) -> LevelTail | None:
    """Return the law of sums by levels for scores of this law, without its floor. None if it is not known."""
    if isinstance(law, Floored):
        return tail_of(law.of)
    if isinstance(law, Gamma):
        return partial(_log10_exponential, ONE_KEY)
    if isinstance(law, SeveralWeights):
        return partial(
            _log10_exponential,
            tuple(((1.0 - second_weight, second_weight), share) for second_weight, share in law.weights),
        )
    if isinstance(law, Binomial):
        gamma = law.gamma
        return lambda sums, counts: log10_greenlist_levels(sums[:, 0], counts, _VALUES, gamma)
    return None


def _log10_exponential(
    key_weights: KeyWeights, sums: NDArray[np.float64], counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Compute a LevelTail of exponential terms.

    It is the smallest p over several weights of the keys, each divided by its share.
    """
    log10_p = [
        log10_gumbel_levels(
            sums @ np.array(weights), np.tile(counts, (1, len(weights))), np.outer(weights, _VALUES).ravel()
        )
        - math.log10(share)
        for weights, share in key_weights
    ]
    return np.asarray(np.minimum(np.min(log10_p, axis=0), 0.0), np.float64)


def level_counts(levels: NDArray[np.integer], scored: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the positions of each level in each of D texts: int64[D, LEVELS + 1] for [P] and [D]."""
    cells = np.repeat(np.arange(len(scored)), scored) * (LEVELS + 1) + levels
    return np.bincount(cells, minlength=len(scored) * (LEVELS + 1)).reshape(-1, LEVELS + 1)


def lacks_for_levels(form: Format, messages: int) -> str:
    """Return the reason why a key of a format and so many messages cannot be scored by levels. Empty if it can."""
    if not isinstance(form, CountsByLevels):
        return "its format does not say what each token adds"
    return form.lacks_for_levels(messages)


def _rows_of(messages: list[list[int]]) -> NDArray[np.int64]:
    """Return lists of messages as rows of one length, 2 or more: int64[D, C]. −1 where there are fewer."""
    width = max(2, *map(len, messages)) if messages else 2
    rows = [document_messages + [-1] * (width - len(document_messages)) for document_messages in messages]
    return np.array(rows, np.int64).reshape(-1, width)


class ByLevels:
    """A watermark by levels. Its p-values have the floor of the mark's law, and its decoys are those of the mark.

    Args:
        mark: the opened key, of a format for which `lacks_for_levels` returns an empty text.
        levels_of: returns the level of each token of a batch.

    Raises:
        ValueError: the key cannot be scored by levels, or it needs a rank and has no decoys.
    """

    def __init__(self, mark: Watermark, levels_of: LevelsOf) -> None:
        tail = tail_of(mark.law)
        if tail is None or not isinstance(mark, ScoresParts | TermsOfKeys):
            raise ValueError(f"{mark.label}: has no scores by levels")
        if not (mark.basis.proven or isinstance(mark, RanksAmongDecoys)):
            raise ValueError(f"{mark.label}: has no decoys, without which no score by levels is ranked")
        self._mark: ScoresParts | TermsOfKeys = mark
        self._levels_of, self._tail = levels_of, tail
        self.label, self.rule, self.basis = mark.label, mark.rule, mark.basis
        score_law = Surprise(_BITS_OF_A_TERM)
        self.law: Law = Floored(score_law, mark.law.bits) if isinstance(mark.law, Floored) else score_law

    def __repr__(self) -> str:
        return f"{self._mark!r} by levels"

    def decoy(self, number: int) -> Watermark:
        """See RanksAmongDecoys: the mark's decoy, with levels of the same text.

        Raises:
            ValueError: the mark has no decoys, because it needs no rank.
        """
        if not isinstance(self._mark, RanksAmongDecoys):
            raise ValueError(f"{self.label}: has no decoys")
        return ByLevels(self._mark.decoy(number), self._levels_of)

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Compute −ln p of the sum of each document under its message: float64[D]."""
        message = np.broadcast_to(messages, len(positions.scored))[:, None]
        (score,) = self._scores(tokens, positions, message, self._levels(tokens, positions))
        return score[:, 0]

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """See Searches.

        Raises:
            ValueError: the key has several messages and cannot be searched by levels.
        """
        mark, levels = self._mark, self._levels(tokens, positions)
        if isinstance(mark, SearchesByLevels):
            best = mark.search_by_levels(tokens, positions, levels, count)
            (score,) = self._scores(tokens, positions, best.message, levels)
            return best._replace(score=score)
        if count == 1:
            score = self.score(tokens, positions, 0)
            message = np.broadcast_to(np.array([0, -1]), (len(score), 2))
            independent = isinstance(mark, Version3Mark)
            return Candidates(message, np.stack([score, np.zeros_like(score)], axis=1), independent=independent)
        if not isinstance(mark, Version3Mark):
            raise ValueError(f"{self.label}: cannot be searched by levels for {count} messages")
        steps = mark.steps(tokens, positions)
        if mark.groups is None:
            messages = _Search.of_steps(mark, steps, levels, self._tail).best_messages(count)
            message = _rows_of(messages)
            (score,) = self._scores(tokens, positions, message, levels)
            message, score = best_first(message, score)
            return Candidates(message, score, independent=True)
        is_shared = is_group_step(steps.keys)
        of_groups, of_users = (
            _Search.of_steps(mark, steps.where(mask), levels[mask], self._tail) for mask in (is_shared, ~is_shared)
        )
        message = _rows_of(of_users.best_users(of_groups.best_groups(mark.groups), mark.groups))
        message, *scores = best_first(
            message, *self._scores(tokens, positions, message, levels, np.where(is_shared, 0, levels))
        )
        scored = positions_where(positions, ~is_shared).scored
        return Candidates(message, scores[0], UserEvidence(scores[1], scored, mark.groups), independent=True)

    def user_evidence(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64]) -> UserEvidence | None:
        """See TellsUserEvidence: −ln p of the sum over the user steps. None without groups."""
        mark = self._mark
        if not isinstance(mark, Version3Mark) or mark.groups is None:
            return None
        shared = mark.group_steps(tokens, positions)
        user_levels = np.where(shared, 0, self._levels(tokens, positions))
        (score,) = self._scores(tokens, positions, messages[:, None], user_levels)
        return UserEvidence(score, positions_where(positions, ~shared).scored, mark.groups)

    def _levels(self, tokens: Tokens, positions: Positions) -> NDArray[np.uint8]:
        return self._levels_of(tokens)[positions.index]

    def _terms(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Compute the term of each scored position for the sums of K keys: float64[K, P]."""
        if isinstance(self._mark, TermsOfKeys):
            return self._mark.terms_of_keys(tokens, positions, messages)
        return self._mark.terms(tokens, positions, messages)[None]

    def _scores(
        self, tokens: Tokens, positions: Positions, message: NDArray[np.int64], *level_arrays: NDArray[np.integer]
    ) -> list[NDArray[np.float64]]:
        """Score candidates, int64[D, C], by each of several levels of the positions. 0 where there is no candidate."""
        scores, counts = (
            [np.zeros(message.shape) for _ in level_arrays],
            [level_counts(levels, positions.scored) for levels in level_arrays],
        )
        document = np.repeat(np.arange(len(message)), positions.scored)
        for place in range(int((message >= 0).sum(axis=1).max(initial=0))):
            documents = message[:, place] >= 0
            # a document without a candidate is scored for message 0, and its score is not used
            terms = self._terms(tokens, positions, np.maximum(message[:, place], 0))
            for score, levels, text_counts in zip(scores, level_arrays, counts, strict=True):
                sums = [np.bincount(document, levels * key_terms, len(message))[documents] for key_terms in terms]
                log10_p = self._tail(np.stack(sums, axis=1).astype(np.float64), text_counts[documents])
                score[documents, place] = np.maximum(-LN10 * log10_p, 0.0)
        return scores


class ByLevelsProof:
    """The slow path of a mark by levels.

    Args:
        path: the slow path of the mark without levels, which returns the terms of positions.
        levels_of: returns the level of each token of a batch.
        form: the mark's format.

    Raises:
        TypeError: the slow path does not return the terms of positions.
    """

    def __init__(self, path: ProofPath, levels_of: LevelsOf, form: Format) -> None:
        if not isinstance(path, ProvesParts | ProvesTermsOfKeys):
            raise TypeError(f"{form.label()}: its slow path does not say what each position adds")
        self._path, self._levels_of = path, levels_of
        law, basis = form.law(), form.basis()
        self._gamma = law.gamma if isinstance(law, Binomial) else None
        self._bits = None if basis.proven else basis.bits

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See ProofPath: −ln p of each message's sum."""
        if isinstance(self._path, ProvesTermsOfKeys):
            places, terms = self._path.terms_of_keys(tokens, messages, dedup, common_places)
        else:
            places, terms_by_message, _, _ = self._path.parts(tokens, messages, dedup, common_places)
            terms = terms_by_message[:, None]
        levels = self._levels(tokens)[places]
        return len(places), [self._surprise(levels, message_terms) for message_terms in terms]

    def user_evidence(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: Dedup, common_places: Collection[int] = ()
    ) -> tuple[int, list[float], int] | None:
        """See ProvesUserEvidence."""
        if not isinstance(self._path, ProvesParts):
            return None
        places, terms, is_user_step, users = self._path.parts(tokens, messages, dedup, common_places)
        if is_user_step is None:
            return None
        levels = self._levels(tokens)[places][is_user_step]
        return (
            len(levels),
            [self._surprise(levels, message_terms[None, is_user_step]) for message_terms in terms],
            users,
        )

    def log10_p(self, score: float, scored: int) -> float:
        """See ProofPath."""
        from scanner.watermark.proof import floored

        log10_p = -score / math.log(10.0) if scored else 0.0
        return log10_p if self._bits is None else floored(log10_p, self._bits)

    def rounding(self, scored: int) -> float:
        """See BoundsRounding: the amount that the law adds to ln p."""
        weights = [key_weights for key_weights, _ in self._key_weights]
        least = min(weight for key_weights in weights for weight in key_weights if weight)
        return most_added(scored, len(weights[0]), least)

    @property
    def _key_weights(self) -> KeyWeights:
        return self._path.weights if isinstance(self._path, ProvesTermsOfKeys) else ONE_KEY

    def _levels(self, tokens: NDArray[np.uint32]) -> NDArray[np.int64]:
        return self._levels_of(Tokens(tokens, np.array([0, len(tokens)], np.int64))).astype(np.int64)

    def _surprise(self, levels: NDArray[np.int64], terms: NDArray[np.float64]) -> float:
        """Compute the largest −ln p by the weights of K keys, from the terms float64[K, P]."""
        from scanner.watermark.proof import ln_tail

        sums = [math.fsum((levels * key_terms).tolist()) for key_terms in terms]
        counts = np.bincount(levels, minlength=LEVELS + 1).tolist()
        surprises = [0.0]
        for weights, share in self._key_weights:
            total = math.fsum(weight * key_sum for weight, key_sum in zip(weights, sums, strict=True))
            values = [weight * level for weight in weights for level in range(LEVELS + 1)]
            surprises.append(math.log(share) - ln_tail(total, counts * len(weights), self._gamma, values))
        return max(surprises)
