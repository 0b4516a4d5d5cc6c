"""Version 3 of our marks: scores and marking of steps that each have a key of their own, and the search of messages.

A text becomes steps (scanner.watermark.native.steps), and nothing after that asks which master key they came from. A
search with groups begins from rough scores of all groups (SPEC_3 §4): of a green list the counts themselves, of Gumbel
marks the leading ones of eight digits. Eight groups are scored in full, and in those that are looked into the user of
largest rough score. Without groups all messages are scored in full.
"""

from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.format import Candidates, UserEvidence, Watermark
from scanner.watermark.laws import Law, NegativeGamma
from scanner.watermark.native import rough_runs, secret, step_draws
from scanner.watermark.native.keyed import NO_TERMS, GreenListMark, GumbelMark, NativeMark
from scanner.watermark.native.rough_windows import best_of_ranges
from scanner.watermark.native.steps import (
    Hashes,
    SeedKeys,
    Steps,
    buckets_of,
    hash_positions,
    hash_windows,
    in_two,
    is_group_step,
    step_keys,
)
from scanner.watermark.positions import Positions, Ranges, Tokens, offsets_of
from schemas.key_record import FEWEST_SEEDS, MOST_SEEDS
from schemas.registry import MOST_NUMBERS

DEFAULT_SEEDS = 24
"""n of a key that names none: 2^n seeds (SPEC_3)."""

GROUPS_DRAWN_IN_FULL = 8
"""Groups of largest rough score whose exact scores are computed (SPEC_3 §4)."""

GROUPS_BY_CHANCE = 0.1
"""Largest chance, over all groups, of a score as high as a window's best group, at which that group's users are
searched.
"""

MOST_WINDOWS = 2
"""Windows of a document in which the users of a group are searched, those where it is best."""

_FIRST_CANDIDATES = 4
"""Candidates that a document without groups is first searched for; where as many pass, more are searched for."""

_ROOM = 1e-9
"""Slack in log10 p, so that rounding decides nothing (SPEC_3 §4)."""


class BestRough(Protocol):
    """A function that finds the numbers of largest rough score, as `rough_runs.best_rough` does."""

    def __call__(
        self,
        steps: Steps,
        documents: NDArray[np.int64],
        first: NDArray[np.int64],
        length: int,
        most: int,
        rule: tuple[int, int, int],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return numbers, from 0 on, and rough scores of R runs, best first, ties to the smaller: int64[R, most] both.

        Args:
            steps: of D documents.
            documents: int64[R], over whose steps.
            first: int64[R], each run's first number, a multiple of MOST_NUMBERS.
            length: numbers of a run.
            most: how many are returned; −1 and 0 where there are fewer.
            rule: n, b and planes of a green list, or EIGHT_DIGITS.
        """


class Version3Mark(NativeMark):
    """A native watermark of version 3 under one master key; arguments and errors as of NativeMark, and:

    seeds: n, of 2^n seeds.
    beacon: R, 32 bytes.
    """

    version = 3
    seeds: int
    _keys: SeedKeys  # type: ignore[assignment] # of one key; of more where joined
    _run_rule: tuple[int, int, int]
    _best_rough: BestRough = staticmethod(rough_runs.best_rough)
    _where = ""

    def _take(self, seeds: int, beacon: bytes) -> None:
        """Keep what version 3 has besides, before the label is made.

        Raises:
            ValueError: a number of seeds, or a beacon, that cannot be.
        """
        if not FEWEST_SEEDS <= seeds <= MOST_SEEDS:
            raise ValueError(f"2^{seeds} seeds; allowed: 2^{FEWEST_SEEDS} to 2^{MOST_SEEDS}")
        if len(beacon) != 32:
            raise ValueError(f"a beacon R has 32 bytes; this one has {len(beacon)}")
        self.seeds, self.beacon = seeds, beacon

    def _derive_keys(self, secret_bytes: bytes) -> None:
        seed_key = secret.derive_seed_key(secret_bytes, self.label)
        self._keys = SeedKeys(
            seed_key.words[None], np.frombuffer(self.beacon, "<u4").astype(np.uint32)[None], self.seeds
        )
        self._window_key = secret.window_key(self.window, self.seeds)

    def __repr__(self) -> str:
        return super().__repr__() + self._where

    def searched_by(self, best_rough: BestRough, where: str) -> Self:
        """Return the same watermark with runs searched by another function than `rough_runs.best_rough`.

        where: the device, for its repr.
        """
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _best_rough=best_rough, _where=f" {where}")
        return copy

    def join_marks(self, marks: Sequence[Watermark], begins: NDArray[np.int64]) -> Self | None:
        """See JoinsKeys. What is searched elsewhere is searched one key at a time. The result draws no tokens."""
        alike = [mark for mark in marks if isinstance(mark, type(self)) and mark.label == self.label]
        if self._where or len(alike) < len(marks):
            return None
        words, beacons = (np.concatenate([mark._keys[i] for mark in alike]) for i in range(2))
        joint_mark = object.__new__(type(self))
        vars(joint_mark).update(vars(self), _keys=SeedKeys(words, beacons, self.seeds), _begins=begins)
        return joint_mark

    def steps(self, tokens: Tokens, positions: Positions) -> Steps:
        """Return the steps of the scored positions, each with its key."""
        hashes = hash_positions(self._window_key, tokens.ids, positions.index, self.window)
        keys = step_keys(self._keys, self._whose(positions), positions.offsets, hashes)
        return Steps(tokens.ids[positions.index], hashes.nonces, keys, positions.offsets)

    def buckets(self, tokens: Tokens, positions: Positions) -> NDArray[np.int64]:
        """Return the bucket of each scored position: int64[P]. Buckets are public (SPEC_3 §1)."""
        hashes = hash_positions(self._window_key, tokens.ids, positions.index, self.window)
        return buckets_of(hashes.nonces, self.seeds)

    def window_nonces(self, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """Return both nonces of steps to be marked, N and N': uint64[R, 2] for windows of uint32[R, h]."""
        return np.stack(hash_windows(self._window_key, windows), axis=1)

    def _to_mark(
        self, nonces: NDArray[np.uint64], messages: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.int64]]:
        """Return N, the keys and the numbers of steps to be marked for messages: uint64[R], uint32[8, R], int64[R]."""
        first, second = np.ascontiguousarray(nonces.T)
        whole = np.array([0, len(first)], np.int64)
        keys = step_keys(self._keys, np.zeros(1, np.int64), whole, Hashes(first, second))
        self._check_messages(messages)
        return first, keys, self._numbers(is_group_step(keys), messages)

    def _numbers(self, is_shared: NDArray[np.bool_], messages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number that each step's message reads there (SPEC_3 §3): int64[R] for bool[R] and int64[R]."""
        if self.groups is None:
            return messages
        group, user = np.divmod(messages, self.groups)
        return np.where(is_shared, group, group * MOST_NUMBERS + user)

    def group_steps(self, tokens: Tokens, positions: Positions) -> NDArray[np.bool_]:
        """Say which scored positions are group steps: bool[P]; none without groups."""
        return self._are_shared(self.steps(tokens, positions))

    def _are_shared(self, steps: Steps) -> NDArray[np.bool_]:
        return np.zeros(len(steps.ids), np.bool_) if self.groups is None else is_group_step(steps.keys)

    def _score(
        self, tokens: Tokens, positions: Positions, numbers: NDArray[np.int64], terms: NDArray[np.float64] = NO_TERMS
    ) -> NDArray[Any]:
        steps = self.steps(tokens, positions)
        is_shared = self._are_shared(steps)
        numbers = np.repeat(np.broadcast_to(numbers, (len(numbers), len(steps.scored))), steps.scored, axis=1)
        added = self._added(steps, np.where(is_shared, numbers[0], numbers[-1]))
        if len(terms):
            terms[:] = added
        sums = np.zeros((2, len(steps.scored)), added.dtype)
        step_draws.add_in_two(added, is_shared, steps.offsets, sums)
        return sums

    @abstractmethod
    def _added(self, steps: Steps, numbers: NDArray[np.int64]) -> NDArray[np.generic]:
        """Return what each step adds to the score under the number that is read there: int64[P] or float64[P]."""

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """Return the candidates among the messages 0 … count−1; with groups, count is B².

        Raises:
            ValueError: another count.
        """
        self._check_count(count)
        if self.groups is not None and count != self.groups**2:
            raise ValueError(f"{count} messages cannot be searched; this key has {self.groups**2}")
        if count == 1:
            return self.single_message(self.score(tokens, positions, 0))
        return self._searched(self.steps(tokens, positions), self.groups or count)

    def search_groups(self, tokens: Tokens, positions: Positions, groups: int) -> Candidates:
        """Search only the first groups, and as many users of each, as `search` does: what experiments count.

        Raises:
            ValueError: more groups than the key has.
        """
        if self.groups is None or groups > self.groups:
            raise ValueError(f"{groups} groups cannot be searched; this key has {self.groups or 'none'}")
        return self._searched(self.steps(tokens, positions), groups)

    def search_parts(
        self, tokens: Tokens, positions: Positions, parts: Ranges, windows: Ranges, count: int, share: float
    ) -> tuple[Candidates, NDArray[np.int64], NDArray[np.int64]]:
        """See SearchesWindows."""
        self._check_count(count)
        steps = self.steps(tokens, positions)
        if self.groups is None:
            window, message = self._windows_among_all(steps, windows, count, share)
            return self._among_all(steps.of_ranges(parts), count), window, message
        is_shared = is_group_step(steps.keys)
        shared, users, before = steps.where(is_shared), steps.where(~is_shared), offsets_of(is_shared)
        part_steps, window_steps = (_counted(ranges, before) for ranges in (parts, windows))
        request = shared, window_steps.shared, part_steps.shared, self.groups, _most_groups(self.groups)
        number, rough, group, part_rough = best_of_ranges(*request, self._run_rule)
        best = group, self._exact_in_ranges(shared, part_steps.shared, group, part_rough)
        users_of_parts = users.of_ranges(part_steps.users)
        candidates = self._in_best_groups(best, part_steps.shared.length, users_of_parts, self.groups)
        rough = np.maximum(rough, 0)  # of a window without group steps
        group_score = self._exact_in_ranges(shared, window_steps.shared, number[:, None], rough[:, None])[:, 0]
        window = self._promising(number, group_score, window_steps.shared)
        is_chosen = np.zeros(len(number), np.bool_)
        is_chosen[window] = True
        rows, first = np.arange(len(window)), number[window] * MOST_NUMBERS
        of_windows = users.of_ranges(window_steps.users.where(is_chosen))
        user, user_score = self._best_scores(of_windows, rows, first, self.groups, 1)
        total = np.add(group_score[window], user_score[:, 0])
        standing_out = self._rare(total, windows.length[window], np.log10(share) - np.log10(count))
        message = number[window] * self.groups + user[:, 0]
        return candidates, window[standing_out], message[standing_out]

    def _promising(self, group: NDArray[np.int64], score: NDArray[np.generic], windows: Ranges) -> NDArray[np.int64]:
        """Return the windows, of group steps, whose best group's users are searched: int64[Q], in order."""
        rare = self._rare(score, windows.length, np.log10(GROUPS_BY_CHANCE) - np.log10(self.groups or 1))
        document_group = windows.whose[rare] * MOST_NUMBERS + group[rare]
        order = np.lexsort((self.law.log10_p(score[rare], windows.length[rare]), document_group))
        rank = np.arange(len(order)) - np.searchsorted(document_group[order], document_group[order])
        return rare[np.sort(order[rank < MOST_WINDOWS])]

    def _rare(self, score: NDArray[np.generic], scored: NDArray[np.int64], log10_p: float) -> NDArray[np.int64]:
        """Return the places of the scores whose p is 10^log10_p or less: int64[Q]."""
        return np.flatnonzero(self.law.log10_p(score, scored) <= log10_p + _ROOM)

    def _windows_among_all(
        self, steps: Steps, windows: Ranges, count: int, share: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return windows and their best message where it stands out: int64[Q] both."""
        message, score = self._best_in_windows(steps, windows, count)
        standing_out = self._rare(score, windows.length, np.log10(share) - np.log10(count))
        return standing_out, message[standing_out]

    @abstractmethod
    def _best_in_windows(
        self, steps: Steps, windows: Ranges, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the best of the numbers 0 … count−1 of each window, or nearly so, and its score: [W] both."""

    def _exact_in_ranges(
        self, steps: Steps, ranges: Ranges, numbers: NDArray[np.int64], rough: NDArray[np.int64]
    ) -> NDArray[np.generic]:
        """Return what `_exact` does, of numbers of ranges: [R, most]."""
        return self._exact(steps.of_ranges(ranges), np.arange(len(numbers)), numbers, rough)

    def _searched(self, steps: Steps, limit: int) -> Candidates:
        """Search D documents; limit: how many groups, and users of each, or without groups how many messages."""
        return self._among_all(steps, limit) if self.groups is None else self._in_groups(steps, limit)

    def _among_all(self, steps: Steps, count: int) -> Candidates:
        """Return the best two messages of each document, and all others whose p is 1/count or less."""
        message, score = self._candidates(steps, count, min(_FIRST_CANDIDATES, count))
        width = max(2, int((message >= 0).sum(axis=1).max(initial=0)))
        return Candidates(message[:, :width], score[:, :width], independent=True)

    def _candidates(self, steps: Steps, count: int, limit: int) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the candidates of each document, `limit` at first, and more where a document has as many."""
        message, score = self._best_of_all(steps, count, limit)
        kept = self._kept(score, steps.scored, count)
        is_kept = np.arange(limit) < kept[:, None]
        message, score = np.where(is_kept, message, -1), np.where(is_kept, score, 0)
        full_rows = np.flatnonzero(kept == limit)
        if limit < count and len(full_rows):
            more = self._candidates(steps.of_documents(full_rows), count, min(8 * limit, count))
            padding = ((0, 0), (0, more[0].shape[1] - limit))
            message, score = np.pad(message, padding, constant_values=-1), np.pad(score, padding)
            message[full_rows], score[full_rows] = more
        return message, score

    def _kept(self, score: NDArray[np.generic], scored: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Return how many of each document's best messages are candidates: two, and those that are rare: int64[D]."""
        # few documents have a third, so the law is computed column by column
        kept, rows = np.full(len(score), 2), np.arange(len(score))
        for place in range(2, score.shape[1]):
            rows = rows[self.law.log10_p(score[rows, place], scored[rows]) <= _by_chance(count)]
            kept[rows] += 1
        return kept

    def _in_groups(self, steps: Steps, groups: int) -> Candidates:
        """Return the best user of each group that is looked into (SPEC_3 §4).

        Args:
            steps: of D documents.
            groups: how many groups, and users of each, are searched.
        """
        shared, users = in_two(steps)
        documents = np.arange(len(steps.scored))
        request = documents, np.zeros_like(documents), groups, _most_groups(groups)
        return self._in_best_groups(self._best_scores(shared, *request), shared.scored, users, groups)

    def _in_best_groups(
        self,
        best: tuple[NDArray[np.int64], NDArray[np.generic]],
        scored: NDArray[np.int64],
        users: Steps,
        groups: int,
    ) -> Candidates:
        """Return the best user of each group that is looked into (SPEC_3 §4).

        Args:
            best: the groups that are scored in full, and their scores: [D, most] both.
            scored: group steps, int64[D].
            users: user steps of D documents.
            groups: how many users of each group are searched.
        """
        group, score_group = _best_first(*best)
        documents = np.arange(len(scored))
        is_looked_into = np.zeros(group.shape, np.bool_)
        is_looked_into[:, 0] = True
        rows = documents
        for place in range(1, group.shape[1]):  # scores fall, and few documents have a second group
            rows = rows[group[rows, place] >= 0]
            rows = rows[self.law.log10_p(score_group[rows, place], scored[rows]) <= _by_chance(groups)]
            is_looked_into[rows, place] = True
        width = max(2, int(is_looked_into.sum(axis=1).max(initial=0)))
        is_looked_into, group, score_group = is_looked_into[:, :width], group[:, :width], score_group[:, :width]
        rows = np.repeat(documents, is_looked_into.sum(axis=1))
        user, user_score = self._best_scores(users, rows, group[is_looked_into] * MOST_NUMBERS, groups, 1)
        message, score_of_user = np.full(group.shape, -1), np.zeros_like(score_group)
        message[is_looked_into] = group[is_looked_into] * (self.groups or 0) + user[:, 0]
        score_of_user[is_looked_into] = user_score[:, 0]
        total = np.where(is_looked_into, score_group + score_of_user, 0)
        order = np.lexsort((message, np.where(is_looked_into, -total, np.inf)), axis=1)
        message, total, score_of_user = (
            np.take_along_axis(values, order, axis=1) for values in (message, total, score_of_user)
        )
        return Candidates(message, total, UserEvidence(score_of_user, users.scored, groups), independent=True)

    def best_numbers(
        self, steps: Steps, documents: NDArray[np.int64], first: NDArray[np.int64], length: int, most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the best numbers of R runs, from 0 on, and their exact scores, best first: [R, most] both.

        With groups they are those of largest rough score. Ties go to the smaller; −1 and 0 where there are fewer.

        Args:
            steps: of D documents. A step that stands there v times adds v times as much.
            documents: int64[R], over whose steps.
            first: int64[R], each run's first number, a multiple of MOST_NUMBERS; without groups 0.
            length: numbers of a run.
            most: how many are returned.
        """
        if self.groups is None:
            return self._best_of_all(steps.of_documents(documents), length, most)
        return _best_first(*self._best_scores(steps, documents, first, length, most))

    def _best_scores(
        self, steps: Steps, documents: NDArray[np.int64], first: NDArray[np.int64], length: int, most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the numbers of largest rough score, and their exact scores, [R, most]; arguments as of BestRough."""
        numbers, rough = self._best_rough(steps, documents, first, length, most, self._run_rule)
        return numbers, self._exact(steps, documents, np.where(numbers < 0, -1, first[:, None] + numbers), rough)

    @abstractmethod
    def _exact(
        self, steps: Steps, documents: NDArray[np.int64], numbers: NDArray[np.int64], rough: NDArray[np.int64]
    ) -> NDArray[np.generic]:
        """Return the scores of numbers whose rough scores are known, [R, most]; −1: none, with a score of 0."""

    @abstractmethod
    def _best_of_all(self, steps: Steps, count: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the best of the numbers 0 … count−1 of each document and their scores, best first: [D, most] both."""


class _Counted(NamedTuple):
    """Ranges of steps as ranges of group steps and of user steps."""

    shared: Ranges
    users: Ranges


def _counted(ranges: Ranges, before: NDArray[np.int64]) -> _Counted:
    """Return ranges by kind of step; before: group steps before each step, and in all, int64[P+1]."""
    shared = Ranges(ranges.first, before[ranges.begin], before[ranges.end])
    return _Counted(shared, Ranges(ranges.first, ranges.begin - shared.begin, ranges.end - shared.end))


def _most_groups(groups: int) -> int:
    """Return how many groups of so many are scored in full; two, where there is one: the other is none."""
    return max(2, min(GROUPS_DRAWN_IN_FULL, groups))


def _best_first(
    numbers: NDArray[np.int64], scores: NDArray[np.generic]
) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
    """Return the numbers of each row by score, ties to the smaller, those that are none last, and their scores."""
    order = np.lexsort((numbers, np.where(numbers >= 0, -scores.astype(np.float64), np.inf)), axis=1)
    return np.take_along_axis(numbers, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _by_chance(count: int) -> float:
    """Return log10 of the p that one of so many numbers has by chance, and a little more."""
    return float(_ROOM - np.log10(count))


class Version3GreenList(Version3Mark, GreenListMark):
    """The green list of version 3; arguments and errors as of GreenListMark and Version3Mark."""

    method = "greenlist-v3"

    def __init__(
        self,
        secret_bytes: bytes,
        window: int,
        gamma: Fraction,
        groups: int | None = None,
        seeds: int = DEFAULT_SEEDS,
        beacon: bytes = bytes(32),
    ) -> None:
        self._take(seeds, beacon)
        super().__init__(secret_bytes, window, gamma, groups)
        self._run_rule = self._rule

    def green(self, nonces: NDArray[np.uint64], messages: NDArray[np.int64], tokens: int) -> NDArray[np.bool_]:
        """Say which of the tokens 0 … V−1 are green in each step for its message: bool[R, V].

        Args:
            nonces: uint64[R, 2], of `window_nonces`.
            messages: int64[R].
            tokens: V.
        """
        return step_draws.green_tokens(*self._to_mark(nonces, messages), self._rule, tokens)

    def _added(self, steps: Steps, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return step_draws.greens_of(steps, numbers, self._rule)

    def _exact(
        self, steps: Steps, documents: NDArray[np.int64], numbers: NDArray[np.int64], rough: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        return rough

    def _best_of_all(self, steps: Steps, count: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        documents = np.arange(len(steps.scored))
        return self._best_rough(steps, documents, np.zeros_like(documents), count, most, self._rule)

    def _best_in_windows(
        self, steps: Steps, windows: Ranges, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        no_parts = Ranges(np.zeros_like(windows.first), windows.begin[:0], windows.end[:0])
        number, score, *_ = best_of_ranges(steps, windows, no_parts, count, 1, self._rule)
        return number, score

    def _exact_in_ranges(
        self, steps: Steps, ranges: Ranges, numbers: NDArray[np.int64], rough: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        return rough


class Version3Gumbel(Version3Mark, GumbelMark):
    """The Gumbel mark of version 3; arguments and errors as of GumbelMark and Version3Mark."""

    method = "gumbel-v3"
    _run_rule = rough_runs.EIGHT_DIGITS

    def __init__(
        self,
        secret_bytes: bytes,
        window: int,
        groups: int | None = None,
        seeds: int = DEFAULT_SEEDS,
        beacon: bytes = bytes(32),
    ) -> None:
        self._take(seeds, beacon)
        super().__init__(secret_bytes, window, groups)

    def choose(self, nonces: NDArray[np.uint64], message: int, weights: NDArray[np.float64]) -> int:
        """Return the token to write at a step: the least −ln(r)/p, −1 when every weight is 0 (SPEC_3 §1).

        Args:
            nonces: uint64[2], of `window_nonces`.
            message: m.
            weights: float64[V], the probabilities up to a factor.
        """
        first, keys, number = self._to_mark(nonces[None], np.array([message], np.int64))
        return step_draws.choose_token(first[0], keys[:, 0].copy(), int(number[0]), self.groups is not None, weights)

    def draws_of(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.uint32]:
        """Return the draw that each scored token meets under its document's message: uint32[P].

        Raises:
            ValueError: a message that the key does not have.
        """
        steps = self.steps(tokens, positions)
        numbers = self._numbers(self._are_shared(steps), self._message_of_positions(messages, positions))
        return step_draws.draws_of(steps, numbers, self.groups is not None)

    def _added(self, steps: Steps, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        draws = step_draws.draws_of(steps, numbers, self.groups is not None)
        return step_draws.terms_of(draws, self._unweighted)

    def _exact(
        self, steps: Steps, documents: NDArray[np.int64], numbers: NDArray[np.int64], rough: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        return rough_runs.exact_scores(steps, documents, numbers)

    def _best_of_all(self, steps: Steps, count: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return step_draws.best_of_all(steps, count, most)

    def _best_in_windows(
        self, steps: Steps, windows: Ranges, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        numbers, of_windows = step_draws.best_in_windows(steps, windows, count), steps.of_ranges(windows)
        added = self._added(of_windows, np.repeat(numbers, windows.length))
        sums = np.zeros((2, len(numbers)))
        step_draws.add_in_two(added, np.zeros(len(added), np.bool_), of_windows.offsets, sums)
        return numbers, sums[1]


class Version3LogGumbel(Version3Gumbel):
    """The unweighted score Σ ln r over the same streams. One message only: it is not searched."""

    law: Law = NegativeGamma()
    _unweighted: ClassVar[bool] = True
