"""Version 3 of our marks: scores and marking of steps that each have a key of their own, and the search of messages.

A text becomes steps (scanner.watermark.native.steps), and nothing after that asks which master key they came from. A
search with groups begins from rough scores of all groups (SPEC_3 §4): of a green list the counts themselves, of Gumbel
marks the leading ones of eight digits. Eight groups are scored in full, and in those that are looked into the user of
largest rough score. Without groups all messages are scored in full.
"""

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.format import Candidates, UserEvidence, Watermark
from scanner.watermark.laws import Law, NegativeGamma, least_score
from scanner.watermark.native import rough_runs, secret, step_draws
from scanner.watermark.native.exact_scores import bounds_of_scores, exact_scores
from scanner.watermark.native.keyed import NO_TERMS, GreenListMark, GumbelMark, NativeMark, add_in_two, terms_of
from scanner.watermark.native.rough_windows import best_of_ranges
from scanner.watermark.native.steps import (
    Hashes,
    SeedKeys,
    Steps,
    buckets_of,
    hash_positions,
    hash_windows,
    is_group_step,
    step_keys,
    steps_by_kind,
)
from scanner.watermark.native.unshown import UnshownWindows
from scanner.watermark.positions import Positions, Ranges, Tokens
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


ExactScores = Callable[[Steps, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""A function of steps, begins, ends and numbers that returns what `exact_scores` does."""


class _Asked(NamedTuple):
    """Numbers of ranges of group steps whose scores may matter.

    ranges: R ranges.
    numbers: int64[R, most]; −1: none.
    floors: float64[R]; what scores less does not matter.
    is_best_kept: whether the best of each range matters all the same.
    """

    ranges: Ranges
    numbers: NDArray[np.int64]
    floors: NDArray[np.float64]
    is_best_kept: bool


class _Counted(NamedTuple):
    """Ranges of steps as ranges of group steps and of user steps, as `steps_by_kind` has them."""

    shared: Ranges
    users: Ranges


def _counted(ranges: Ranges, before: NDArray[np.int64]) -> _Counted:
    """Return ranges by kind of step; before: group steps before each step, and in all, int64[P+1]."""
    shared = Ranges(ranges.first, before[ranges.begin], before[ranges.end])
    first_user = len(before) - 1
    users = (first_user + places - of_shared for places, of_shared in zip(ranges[1:], shared[1:], strict=True))
    return _Counted(shared, Ranges(ranges.first, *users))


class Version3Mark(NativeMark):
    """A native watermark of version 3 under one master key; arguments and errors as of NativeMark, and:

    seeds: n, of 2^n seeds.
    beacon: R, 32 bytes.
    """

    version = 3
    seeds: int
    _keys: SeedKeys  # of one key; of more where joined
    _run_rule: tuple[int, int, int]
    _begins = np.zeros(1, np.int64)
    """Beginnings of the tokens of the documents of each key, int64[K]."""
    _elsewhere: BestRough | None = None
    _exact_scores: ExactScores = staticmethod(exact_scores)
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

    @property
    def seed_keys(self) -> SeedKeys:
        """What the keys of steps are drawn with, as secret as the master key; for kernels elsewhere (scanner.gpu)."""
        return self._keys

    def __repr__(self) -> str:
        return super().__repr__() + self._where

    def searched_by(self, best_rough: BestRough, where: str, exact: ExactScores = exact_scores) -> Self:
        """Return the same watermark with runs searched by another function than `rough_runs.best_rough`.

        where: the device, for its repr.
        exact: another function than `exact_scores`, for Gumbel scores of few numbers.
        """
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _elsewhere=best_rough, _exact_scores=exact, _where=f" {where}")
        return copy

    def leave_out(self, buckets: NDArray[np.int64]) -> Self:
        """See LeavesOut."""
        if not len(buckets):
            return self
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), rule=UnshownWindows(self.window, self.seeds, buckets.tobytes()))
        return copy

    def while_holds(self, check: Callable[[], None]) -> Self:
        """Return the same, with which nothing is marked once `check` raises."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), check_lease=check)
        return copy

    def check_lease(self) -> None:
        """Raise an error where nothing may be marked any more; by itself, it may."""

    @property
    def leaves_out_any(self) -> bool:
        """Whether any seeds were shown."""
        return isinstance(self.rule, UnshownWindows)

    def are_shown(self, nonces: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Say which steps are not marked, since their seeds were shown: bool[R] for uint64[R, 2] of `window_nonces`."""
        if not isinstance(self.rule, UnshownWindows):
            return np.zeros(len(nonces), np.bool_)
        return self.rule.is_shown[buckets_of(nonces[:, 0], self.seeds)]

    def join_marks(self, marks: Sequence[Watermark], begins: NDArray[np.int64]) -> Self | None:
        """See JoinsKeys. What is searched elsewhere is searched one key at a time. The result draws no tokens."""
        alike = [mark for mark in marks if isinstance(mark, type(self)) and mark.label == self.label]
        if self._where or len(alike) < len(marks):
            return None
        words, beacons = (np.concatenate([mark._keys[i] for mark in alike]) for i in range(2))
        joint_mark = object.__new__(type(self))
        vars(joint_mark).update(vars(self), _keys=SeedKeys(words, beacons, self.seeds), _begins=begins)
        return joint_mark

    def _whose(self, positions: Positions) -> NDArray[np.int64]:
        """Return which of the keys each document is read with, int64[D]; any, where it has no positions."""
        if not len(positions.index) or len(self._begins) == 1:
            return np.zeros(len(positions.offsets) - 1, np.int64)
        first = np.minimum(positions.offsets[:-1], len(positions.index) - 1)
        return np.searchsorted(self._begins, positions.index[first], side="right") - 1

    def steps(self, tokens: Tokens, positions: Positions) -> Steps:
        """Return the steps of the scored positions, each with its key."""
        hashes = hash_positions(self._window_key, tokens.ids, positions.index, self.window)
        keys = step_keys(self._keys, self._whose(positions), positions.offsets, hashes)
        return Steps(tokens.ids[positions.index], hashes.nonces, keys, positions.offsets)

    def _steps_by_kind(self, tokens: Tokens, positions: Positions) -> tuple[Steps, NDArray[np.int64]]:
        """Return group steps and user steps, and how many group steps stand before each, as `steps_by_kind` does."""
        hashes = hash_positions(self._window_key, tokens.ids, positions.index, self.window)
        ids = tokens.ids[positions.index]
        return steps_by_kind(self._keys, self._whose(positions), positions.offsets, hashes, ids)

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
        self.check_messages(messages)
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
        add_in_two(added, is_shared, steps.offsets, sums)
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
        if self.groups is None:
            return self._among_all(self.steps(tokens, positions), count)
        return self.search_groups(tokens, positions, self.groups)

    def search_groups(self, tokens: Tokens, positions: Positions, groups: int) -> Candidates:
        """Search only the first groups, and as many users of each, as `search` does: what experiments count.

        Raises:
            ValueError: more groups than the key has.
        """
        if self.groups is None or groups > self.groups:
            raise ValueError(f"{groups} groups cannot be searched; this key has {self.groups or 'none'}")
        steps, before = self._steps_by_kind(tokens, positions)
        texts = _counted(_wholes(positions.offsets), before)
        floors = self._floors(texts.shared.length, _by_chance(groups))
        request = texts.shared, np.zeros(len(floors), np.int64), groups, _most_groups(groups)
        group, rough = self._rough(steps, *request, self._rough_floors(floors))
        (group,) = self._that_matter(steps, _Asked(texts.shared, group, floors, True))
        score = self._exact(steps, texts.shared, group, rough)
        return self._in_best_groups(steps, (group, score), texts, groups)

    def search_parts(
        self, tokens: Tokens, positions: Positions, parts: Ranges, windows: Ranges, count: int, share: float
    ) -> tuple[Candidates, NDArray[np.int64], NDArray[np.int64]]:
        """See SearchesWindows."""
        self._check_count(count)
        if self.groups is None:
            steps = self.steps(tokens, positions)
            window, message = self._windows_among_all(steps, windows, count, share)
            return self._among_all(steps.of_ranges(parts), count), window, message
        steps, before = self._steps_by_kind(tokens, positions)
        part_steps, window_steps = (_counted(ranges, before) for ranges in (parts, windows))
        floors = self._floors(part_steps.shared.length, _by_chance(self.groups))
        request = steps, window_steps.shared, part_steps.shared, self.groups, _most_groups(self.groups)
        number, rough, groups, of_groups = best_of_ranges(*request, self._run_rule, self._rough_floors(floors))
        window_floors = self._floors(window_steps.shared.length, np.log10(GROUPS_BY_CHANCE) - np.log10(self.groups))
        groups, group = self._that_matter(
            steps,
            _Asked(part_steps.shared, groups, floors, True),
            _Asked(window_steps.shared, number[:, None], window_floors, False),
        )
        best_groups = groups, self._exact(steps, part_steps.shared, groups, of_groups)
        candidates = self._in_best_groups(steps, best_groups, part_steps, self.groups)
        window, group_score = self._promising(steps, group, rough, window_steps.shared, window_floors)
        first = number[window] * MOST_NUMBERS
        user, user_score = self._best_users(steps, window_steps.users.of(window), first, self.groups)
        total = np.add(group_score, user_score)
        standing_out = self._rare(total, windows.length[window], np.log10(share) - np.log10(count))
        message = number[window] * self.groups + user
        return candidates, window[standing_out], message[standing_out]

    def _promising(
        self,
        steps: Steps,
        group: NDArray[np.int64],
        rough: NDArray[np.int64],
        windows: Ranges,
        floors: NDArray[np.float64],
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the windows whose best group's users are searched, in order, and the group's score: [Q] both.

        Args:
            steps: of all documents.
            group: int64[W, 1], the best group of each window; −1: it does not matter.
            rough: int64[W], its rough score; −1: the window has no group step.
            windows: W ranges of group steps.
            floors: float64[W], the score that a group needs.
        """
        log10_p = np.log10(GROUPS_BY_CHANCE) - np.log10(self.groups or 1)
        score = self._exact(steps, windows, group, np.maximum(rough, 0)[:, None])
        rare = np.flatnonzero(np.greater_equal(score[:, 0], floors))
        rare = rare[self._rare(score[rare, 0], windows.length[rare], log10_p)]
        document_group = windows.whose[rare] * MOST_NUMBERS + group[rare, 0]
        order = np.lexsort((self.law.log10_p(score[rare, 0], windows.length[rare]), document_group))
        rank = np.arange(len(order)) - np.searchsorted(document_group[order], document_group[order])
        chosen = rare[np.sort(order[rank < MOST_WINDOWS])]
        return chosen, score[chosen, 0]

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

    def _floors(self, scored: NDArray[np.int64], log10_p: float) -> NDArray[np.float64]:
        """Return a score for so many steps below which p is above 10^log10_p: float64 for int64 of the same shape."""
        if log10_p >= 0:
            return np.zeros(len(scored))
        known = _known_floors(self.law, log10_p)
        distinct = np.flatnonzero(np.bincount(scored, minlength=1))
        missing = [number for number in distinct.tolist() if number not in known]
        if missing:
            floors = least_score(self.law, np.array(missing, np.int64), log10_p)
            known.update(zip(missing, floors.tolist(), strict=True))
        floors = np.zeros(int(distinct.max(initial=0)) + 1)
        floors[distinct] = [known[number] for number in distinct.tolist()]
        return floors[scored]

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

    def _in_best_groups(
        self,
        steps: Steps,
        best: tuple[NDArray[np.int64], NDArray[np.generic]],
        parts: _Counted,
        groups: int,
    ) -> Candidates:
        """Return the best user of each group that is looked into (SPEC_3 §4).

        Args:
            steps: of all documents.
            best: the groups that may be looked into, and their scores: [R, most] both.
            parts: R ranges.
            groups: how many users of each group are searched.
        """
        scored = parts.shared.length
        group, score_group = best_first(*best)
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
        user, user_score = self._best_users(steps, parts.users.of(rows), group[is_looked_into] * MOST_NUMBERS, groups)
        message, score_of_user = np.full(group.shape, -1), np.zeros_like(score_group)
        message[is_looked_into] = group[is_looked_into] * (self.groups or 0) + user
        score_of_user[is_looked_into] = user_score
        total = np.where(is_looked_into, score_group + score_of_user, 0)
        message, total, score_of_user = best_first(message, total, score_of_user)
        return Candidates(message, total, UserEvidence(score_of_user, parts.users.length, groups), independent=True)

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
        runs = _wholes(steps.offsets).of(documents)
        numbers, rough = self._rough(steps, runs, first, length, most)
        scores = self._exact(steps, runs, np.where(numbers < 0, -1, first[:, None] + numbers), rough)
        numbers, scores = best_first(numbers, scores)
        return numbers, scores

    def _rough(
        self,
        steps: Steps,
        ranges: Ranges,
        first: NDArray[np.int64],
        length: int,
        most: int,
        floors: NDArray[np.float64] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of largest rough score of R ranges; other arguments and results as of BestRough.

        floors: float64[R], a score that all but the best need, or may need; None: any will do.
        """
        if self._elsewhere is None:
            request = steps, ranges.begin, ranges.end, first, length, most, self._run_rule, floors
            return rough_runs.best_in_ranges(*request)
        return self._elsewhere(steps.of_ranges(ranges), np.arange(len(first)), first, length, most, self._run_rule)

    def _best_users(
        self, steps: Steps, ranges: Ranges, first: NDArray[np.int64], users: int
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the user of largest rough score of each of R ranges, from 0 on, and its exact score: [R] both.

        first: int64[R], the number of the group's first user.
        """
        user, rough = self._rough(steps, ranges, first, users, 1)
        score = self._exact(steps, ranges, first[:, None] + user, rough)
        return user[:, 0], score[:, 0]

    @abstractmethod
    def _exact(
        self, steps: Steps, ranges: Ranges, numbers: NDArray[np.int64], rough: NDArray[np.int64]
    ) -> NDArray[np.generic]:
        """Return the scores of numbers: [R, most].

        Args:
            steps: of all documents.
            ranges: R ranges.
            numbers: int64[R, most]; −1: none.
            rough: int64[R, most], their rough scores.
        """

    @abstractmethod
    def _that_matter(self, steps: Steps, *asked: _Asked) -> list[NDArray[np.int64]]:
        """Return the numbers of each that is asked, −1 in place of those that do not matter, or of some of them."""

    @abstractmethod
    def _rough_floors(self, floors: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return rough scores below which no score reaches the floors, float64[R]; None: rough scores do not say."""

    @abstractmethod
    def _best_of_all(self, steps: Steps, count: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the best of the numbers 0 … count−1 of each document and their scores, best first: [D, most] both."""


@functools.lru_cache(maxsize=128)
def _known_floors(law: Law, log10_p: float) -> dict[int, float]:
    """Return floors by number of steps, which are kept for all keys of a law: a search for them takes longer."""
    del law, log10_p
    return {}


def _wholes(offsets: NDArray[np.int64]) -> Ranges:
    """Return each of D documents as one range; offsets: int64[D+1]."""
    return Ranges(np.arange(len(offsets)), offsets[:-1], offsets[1:])


def _most_groups(groups: int) -> int:
    """Return how many groups of so many are scored in full; two, where there is one: the other is none."""
    return max(2, min(GROUPS_DRAWN_IN_FULL, groups))


def best_first(numbers: NDArray[np.int64], *scores: NDArray[np.generic]) -> list[NDArray[Any]]:
    """Return the numbers of each row, and their scores, by the first of these: [R, most] each.

    Ties go to the smaller number; −1, none, comes last.
    """
    order = np.lexsort((numbers, np.where(numbers >= 0, -scores[0].astype(np.float64), np.inf)), axis=1)
    return [np.take_along_axis(values, order, axis=1) for values in (numbers, *scores)]


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
        self, steps: Steps, ranges: Ranges, numbers: NDArray[np.int64], rough: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        return rough

    def _that_matter(self, steps: Steps, *asked: _Asked) -> list[NDArray[np.int64]]:
        return [each.numbers for each in asked]

    def _rough_floors(self, floors: NDArray[np.float64]) -> NDArray[np.float64]:
        return floors

    def _best_of_all(self, steps: Steps, count: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        texts = _wholes(steps.offsets)
        return self._rough(steps, texts, np.zeros_like(texts.begin), count, most)

    def _best_in_windows(
        self, steps: Steps, windows: Ranges, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        no_parts = Ranges(np.zeros_like(windows.first), windows.begin[:0], windows.end[:0])
        number, score, *_ = best_of_ranges(steps, windows, no_parts, count, 1, self._rule)
        return number, score


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
        return terms_of(draws, self._unweighted)

    def _exact(
        self, steps: Steps, ranges: Ranges, numbers: NDArray[np.int64], rough: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        return self._exact_scores(steps, ranges.begin, ranges.end, numbers)

    def _that_matter(self, steps: Steps, *asked: _Asked) -> list[NDArray[np.int64]]:
        bounds = bounds_of_scores(steps, *((each.ranges, each.numbers) for each in asked))
        found = []
        for (_, numbers, floors, is_best_kept), (low, high) in zip(asked, bounds, strict=True):
            least = np.minimum(floors, low.max(axis=1)) if is_best_kept else floors
            found.append(np.where(high >= least[:, None], numbers, -1))
        return found

    def _rough_floors(self, floors: NDArray[np.float64]) -> None:
        return None

    def _best_of_all(self, steps: Steps, count: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return step_draws.best_of_all(steps, count, most)

    def _best_in_windows(
        self, steps: Steps, windows: Ranges, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        numbers, of_windows = step_draws.best_in_windows(steps, windows, count), steps.of_ranges(windows)
        added = self._added(of_windows, np.repeat(numbers, windows.length))
        sums = np.zeros((2, len(numbers)))
        add_in_two(added, np.zeros(len(added), np.bool_), of_windows.offsets, sums)
        return numbers, sums[1]


class Version3LogGumbel(Version3Gumbel):
    """The unweighted score Σ ln r over the same streams. One message only: it is not searched."""

    law: Law = NegativeGamma()
    _unweighted: ClassVar[bool] = True
