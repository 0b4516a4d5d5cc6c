"""Score, search and mark steps of version 3 of our own marks, in which each step has its own key.

Texts become steps (scanner.watermark.native.steps). Nothing after that asks which master key a step came from.

A key either has groups or has none. With B groups of B users, message m = group · B + user. Some steps read only the
group ("group steps"), the others read group and user ("user steps"). A search with groups has three steps
(SPEC_3 §4):

1. Compute a rough score of every group. For a green list it is the count itself. For a Gumbel mark each step adds the
   number of leading ones among the first eight binary digits of its draw: 11101001 adds 3.
2. Compute exact scores of the eight best groups (GROUPS_DRAWN_IN_FULL).
3. In each group that is rare enough, take the user of largest rough score.

Without groups all messages are scored exactly.
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
"""n of a key that does not set it: 2^n seeds (SPEC_3)."""

GROUPS_DRAWN_IN_FULL = 8
"""Number of best groups by rough score whose exact scores are computed (SPEC_3 §4)."""

GROUPS_BY_CHANCE = 0.1
"""Threshold for searching the users of a window's best group.

They are searched if chance gives any group a score as high with at most this probability.
"""

MOST_WINDOWS = 2
"""Largest number of windows of a document in which the users of one group are searched: those where it is best."""

_FIRST_CANDIDATES = 4
"""Candidates that a search without groups looks for first. Where all of them pass, it looks for more."""

_ROOM = 1e-9
"""Slack in log10 p, so that rounding decides nothing (SPEC_3 §4)."""


class BestRough(Protocol):
    """A function that finds the numbers of largest rough score, like `rough_runs.best_rough`."""

    def __call__(
        self,
        steps: Steps,
        documents: NDArray[np.int64],
        first: NDArray[np.int64],
        length: int,
        most: int,
        rule: tuple[int, int, int],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the best numbers of R runs and their rough scores, best first: int64[R, most] both.

        Numbers count from 0 at the start of a run. Ties go to the smaller number.

        Args:
            steps: of D documents.
            documents: int64[R], the document whose steps each run is scored on.
            first: int64[R], first number of each run, a multiple of MOST_NUMBERS.
            length: count of numbers in a run.
            most: count of numbers to return. −1 and 0 where there are fewer.
            rule: n, b and planes of a green list, or EIGHT_DIGITS.
        """


ExactScores = Callable[[Steps, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""A function of steps, begins, ends and numbers that returns the same as `exact_scores`."""


class _Asked(NamedTuple):
    """Numbers of ranges of group steps whose exact scores may matter.

    ranges: R ranges.
    numbers: int64[R, most]. −1: none.
    floors: float64[R]. A number that scores less does not matter.
    is_best_kept: whether the best number of each range matters even below its floor.
    """

    ranges: Ranges
    numbers: NDArray[np.int64]
    floors: NDArray[np.float64]
    is_best_kept: bool


class _Counted(NamedTuple):
    """Ranges of steps, split into ranges of group steps and ranges of user steps, as `steps_by_kind` lays them out."""

    shared: Ranges
    users: Ranges


def _counted(ranges: Ranges, before: NDArray[np.int64]) -> _Counted:
    """Split ranges by kind of step.

    before: int64[P+1], the number of group steps before each step, and last their total.
    """
    shared = Ranges(ranges.first, before[ranges.begin], before[ranges.end])
    first_user = len(before) - 1
    users = (first_user + places - of_shared for places, of_shared in zip(ranges[1:], shared[1:], strict=True))
    return _Counted(shared, Ranges(ranges.first, *users))


class Version3Mark(NativeMark):
    """A native watermark of version 3 under one master key.

    Arguments and errors are those of NativeMark, and:

    seeds: n, of 2^n seeds.
    beacon: R, 32 bytes.
    """

    version = 3
    seeds: int
    _keys: SeedKeys  # one key, or one for each of the joined marks
    _run_rule: tuple[int, int, int]
    _begins = np.zeros(1, np.int64)
    """Places in the batch at which the tokens of each key's documents begin, int64[K]."""
    _elsewhere: BestRough | None = None
    _exact_scores: ExactScores = staticmethod(exact_scores)
    _where = ""

    def _take(self, seeds: int, beacon: bytes) -> None:
        """Set the attributes of version 3. The label is made from them, so this runs first.

        Raises:
            ValueError: a number of seeds or a beacon that is not allowed.
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
        """Return the keys that draw the keys of steps, for kernels elsewhere (scanner.gpu). They are secret."""
        return self._keys

    def __repr__(self) -> str:
        return super().__repr__() + self._where

    def searched_by(self, best_rough: BestRough, where: str, exact: ExactScores = exact_scores) -> Self:
        """Return a copy that searches runs with another function than `rough_runs.best_rough`.

        where: the device, for the repr.
        exact: replacement of `exact_scores`, for Gumbel scores of few numbers.
        """
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _elsewhere=best_rough, _exact_scores=exact, _where=f" {where}")
        return copy

    def leave_out(self, buckets: NDArray[np.int64]) -> Self:
        """Implement LeavesOut."""
        if not len(buckets):
            return self
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), rule=UnshownWindows(self.window, self.seeds, buckets.tobytes()))
        return copy

    def while_holds(self, check: Callable[[], None]) -> Self:
        """Return a copy that refuses to mark as soon as `check` raises."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), check_lease=check)
        return copy

    def check_lease(self) -> None:
        """Raise an error if marking is no longer allowed. By default it always is. See `while_holds`."""

    @property
    def leaves_out_any(self) -> bool:
        """Return whether any seeds were shown."""
        return isinstance(self.rule, UnshownWindows)

    def are_shown(self, nonces: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which steps must stay unmarked because their seeds were shown: bool[R].

        nonces: uint64[R, 2], of `window_nonces`.
        """
        if not isinstance(self.rule, UnshownWindows):
            return np.zeros(len(nonces), np.bool_)
        return self.rule.is_shown[buckets_of(nonces[:, 0], self.seeds)]

    def join_marks(self, marks: Sequence[Watermark], begins: NDArray[np.int64]) -> Self | None:
        """Implement JoinsKeys.

        A mark that is searched elsewhere (on a GPU) is not joined, but searched one key at a time. The result scores
        but cannot mark.
        """
        alike = [mark for mark in marks if isinstance(mark, type(self)) and mark.label == self.label]
        if self._where or len(alike) < len(marks):
            return None
        words, beacons = (np.concatenate([mark._keys[i] for mark in alike]) for i in range(2))
        joint_mark = object.__new__(type(self))
        vars(joint_mark).update(vars(self), _keys=SeedKeys(words, beacons, self.seeds), _begins=begins)
        return joint_mark

    def _whose(self, positions: Positions) -> NDArray[np.int64]:
        """Return the index of the key of each document, int64[D]. It is arbitrary for a document without positions."""
        if not len(positions.index) or len(self._begins) == 1:
            return np.zeros(len(positions.offsets) - 1, np.int64)
        first = np.minimum(positions.offsets[:-1], len(positions.index) - 1)
        return np.searchsorted(self._begins, positions.index[first], side="right") - 1

    def steps(self, tokens: Tokens, positions: Positions) -> Steps:
        """Return the steps of the scored positions with their keys."""
        hashes = hash_positions(self._window_key, tokens.ids, positions.index, self.window)
        keys = step_keys(self._keys, self._whose(positions), positions.offsets, hashes)
        return Steps(tokens.ids[positions.index], hashes.nonces, keys, positions.offsets)

    def _steps_by_kind(self, tokens: Tokens, positions: Positions) -> tuple[Steps, NDArray[np.int64]]:
        """Return group steps and user steps, and the number of group steps before each, as `steps_by_kind` does."""
        hashes = hash_positions(self._window_key, tokens.ids, positions.index, self.window)
        ids = tokens.ids[positions.index]
        return steps_by_kind(self._keys, self._whose(positions), positions.offsets, hashes, ids)

    def buckets(self, tokens: Tokens, positions: Positions) -> NDArray[np.int64]:
        """Return the bucket of each scored position: int64[P]. Buckets are public (SPEC_3 §1)."""
        hashes = hash_positions(self._window_key, tokens.ids, positions.index, self.window)
        return buckets_of(hashes.nonces, self.seeds)

    def window_nonces(self, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """Return both nonces of steps to mark, N and N': uint64[R, 2] for windows of uint32[R, h]."""
        return np.stack(hash_windows(self._window_key, windows), axis=1)

    def _to_mark(
        self, nonces: NDArray[np.uint64], messages: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.int64]]:
        """Return N, the keys and the numbers of steps to mark with messages: uint64[R], uint32[8, R], int64[R]."""
        first, second = np.ascontiguousarray(nonces.T)
        whole = np.array([0, len(first)], np.int64)
        keys = step_keys(self._keys, np.zeros(1, np.int64), whole, Hashes(first, second))
        self.check_messages(messages)
        return first, keys, self._numbers(is_group_step(keys), messages)

    def _numbers(self, is_shared: NDArray[np.bool_], messages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number that each step draws with for its message (SPEC_3 §3): int64[R] for bool[R] and int64[R].

        With 100 groups, message 205 is group 2 and user 5: it draws with 2 in group steps and with
        2 · MOST_NUMBERS + 5 in user steps.
        """
        if self.groups is None:
            return messages
        group, user = np.divmod(messages, self.groups)
        return np.where(is_shared, group, group * MOST_NUMBERS + user)

    def group_steps(self, tokens: Tokens, positions: Positions) -> NDArray[np.bool_]:
        """Return which scored positions are group steps: bool[P]. None are if the key has no groups."""
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
        if len(terms):  # the caller gave an array for the terms, which is filled in place
            terms[:] = added
        sums = np.zeros((2, len(steps.scored)), added.dtype)
        add_in_two(added, is_shared, steps.offsets, sums)
        return sums

    @abstractmethod
    def _added(self, steps: Steps, numbers: NDArray[np.int64]) -> NDArray[np.generic]:
        """Return the term that each step adds, by the number that it draws with: int64[P] or float64[P]."""

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """Return the candidates among the messages 0 … count−1. With B groups, count is B².

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
        """Search only the first groups and as many users of each. Experiments count with it.

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
        """Implement SearchesWindows."""
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
        """Return the windows in which the best group's users are searched, in order, and its score there: [Q] both.

        Args:
            steps: of all documents.
            group: int64[W, 1], the best group of each window. −1: it does not matter.
            rough: int64[W], its rough score. −1: the window has no group step.
            windows: W ranges of group steps.
            floors: float64[W], the least score that a group needs.
        """
        log10_p = np.log10(GROUPS_BY_CHANCE) - np.log10(self.groups or 1)
        score = self._exact(steps, windows, group, np.maximum(rough, 0)[:, None])
        rare = np.flatnonzero(np.greater_equal(score[:, 0], floors))
        rare = rare[self._rare(score[rare, 0], windows.length[rare], log10_p)]
        # rank the windows of one group in one document by p: only the MOST_WINDOWS best of them are searched
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
        """Return the windows in which a message stands out, and that message: int64[Q] both."""
        message, score = self._best_in_windows(steps, windows, count)
        standing_out = self._rare(score, windows.length, np.log10(share) - np.log10(count))
        return standing_out, message[standing_out]

    @abstractmethod
    def _best_in_windows(
        self, steps: Steps, windows: Ranges, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the best of the numbers 0 … count−1 of each window, or nearly the best, and its score: [W] both."""

    def _floors(self, scored: NDArray[np.int64], log10_p: float) -> NDArray[np.float64]:
        """Return, for each number of steps, a score below which p is above 10^log10_p: float64, in the same shape.

        The score is a floor: comparing with it is cheaper than computing p, and misses no score that passes.
        """
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
        """Return the best two messages of each document, and all others with a p of 1/count or less."""
        message, score = self._candidates(steps, count, min(_FIRST_CANDIDATES, count))
        width = max(2, int((message >= 0).sum(axis=1).max(initial=0)))
        return Candidates(message[:, :width], score[:, :width], independent=True)

    def _candidates(self, steps: Steps, count: int, limit: int) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the candidates of each document: up to `limit`, and more for a document that has as many."""
        message, score = self._best_of_all(steps, count, limit)
        kept = self._kept(score, steps.scored, count)
        is_kept = np.arange(limit) < kept[:, None]
        message, score = np.where(is_kept, message, -1), np.where(is_kept, score, 0)
        # these rows may have further candidates: search them again, with a larger limit
        full_rows = np.flatnonzero(kept == limit)
        if limit < count and len(full_rows):
            more = self._candidates(steps.of_documents(full_rows), count, min(8 * limit, count))
            padding = ((0, 0), (0, more[0].shape[1] - limit))
            message, score = np.pad(message, padding, constant_values=-1), np.pad(score, padding)
            message[full_rows], score[full_rows] = more
        return message, score

    def _kept(self, score: NDArray[np.generic], scored: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Return how many of each document's best messages are candidates, int64[D]: two, and all that are rare."""
        # the law is computed place by place, because few documents have a third candidate
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
        """Return the best user of each group that passes (SPEC_3 §4). The best group always does.

        Args:
            steps: of all documents.
            best: the groups that may pass, and their scores: [R, most] both.
            parts: R ranges.
            groups: number of users to search in each group.
        """
        scored = parts.shared.length
        group, score_group = best_first(*best)
        documents = np.arange(len(scored))
        is_looked_into = np.zeros(group.shape, np.bool_)
        is_looked_into[:, 0] = True
        rows = documents
        for place in range(1, group.shape[1]):  # place by place: scores fall, and few documents have a second group
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
        """Return the best numbers of R runs and their exact scores, best first: [R, most] both.

        Numbers count from 0 at the start of a run. With groups the numbers are those of largest rough score. Ties go to
        the smaller number. −1 and 0 where there are fewer.

        Args:
            steps: of D documents. A step that occurs v times adds v times as much.
            documents: int64[R], the document whose steps each run is scored on.
            first: int64[R], first number of each run, a multiple of MOST_NUMBERS. Without groups 0.
            length: count of numbers in a run.
            most: count of numbers to return.
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
        """Return the numbers of largest rough score of R ranges. Other arguments and results are those of BestRough.

        floors: float64[R]. All numbers of a range but its best must reach its floor. The search may use this to skip
            numbers, or ignore it. None: no floor.
        """
        if self._elsewhere is None:
            request = steps, ranges.begin, ranges.end, first, length, most, self._run_rule, floors
            return rough_runs.best_in_ranges(*request)
        return self._elsewhere(steps.of_ranges(ranges), np.arange(len(first)), first, length, most, self._run_rule)

    def _best_users(
        self, steps: Steps, ranges: Ranges, first: NDArray[np.int64], users: int
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the user of largest rough score of each of R ranges, counted from 0, and its exact score: [R] both.

        first: int64[R], number of the group's first user.
        """
        user, rough = self._rough(steps, ranges, first, users, 1)
        score = self._exact(steps, ranges, first[:, None] + user, rough)
        return user[:, 0], score[:, 0]

    @abstractmethod
    def _exact(
        self, steps: Steps, ranges: Ranges, numbers: NDArray[np.int64], rough: NDArray[np.int64]
    ) -> NDArray[np.generic]:
        """Return the exact scores of numbers: [R, most].

        Args:
            steps: of all documents.
            ranges: R ranges.
            numbers: int64[R, most]. −1: none.
            rough: int64[R, most], their rough scores.
        """

    @abstractmethod
    def _that_matter(self, steps: Steps, *asked: _Asked) -> list[NDArray[np.int64]]:
        """Return the numbers of each request, with −1 in place of numbers that do not matter.

        It may keep some of those.
        """

    @abstractmethod
    def _rough_floors(self, floors: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return rough scores below which no exact score reaches its floor, float64[R].

        None: rough scores do not tell.
        """

    @abstractmethod
    def _best_of_all(self, steps: Steps, count: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the best of the numbers 0 … count−1 of each document, and their scores, best first: [D, most] both."""


@functools.lru_cache(maxsize=128)
def _known_floors(law: Law, log10_p: float) -> dict[int, float]:
    """Return a cache of floors by number of steps, shared by all keys of a law. Computing a floor takes a search."""
    # each pair of arguments gets one dictionary, which the caller fills
    del law, log10_p
    return {}


def _wholes(offsets: NDArray[np.int64]) -> Ranges:
    """Return each of D documents as one range. offsets: int64[D+1]."""
    return Ranges(np.arange(len(offsets)), offsets[:-1], offsets[1:])


def _most_groups(groups: int) -> int:
    """Return how many of so many groups are scored exactly, at least two. If there is one group, the second is −1."""
    return max(2, min(GROUPS_DRAWN_IN_FULL, groups))


def best_first(numbers: NDArray[np.int64], *scores: NDArray[np.generic]) -> list[NDArray[Any]]:
    """Sort the numbers of each row, and their scores, by the first array of scores: [R, most] each.

    Ties go to the smaller number. −1, which means no number, comes last.
    """
    order = np.lexsort((numbers, np.where(numbers >= 0, -scores[0].astype(np.float64), np.inf)), axis=1)
    return [np.take_along_axis(values, order, axis=1) for values in (numbers, *scores)]


def _by_chance(count: int) -> float:
    """Return log10 of the p that the best of so many numbers has by chance, plus a little slack."""
    return float(_ROOM - np.log10(count))


class Version3GreenList(Version3Mark, GreenListMark):
    """The green list of version 3. Arguments and errors are those of GreenListMark and Version3Mark."""

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
        """Return which of the tokens 0 … V−1 are green in each step for its message: bool[R, V].

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
        return rough  # the rough score of a green list is the exact count

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
    """The Gumbel mark of version 3. Arguments and errors are those of GumbelMark and Version3Mark."""

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
        """Return the token to write at a step: the one of least −ln(r)/p. −1 when every weight is 0 (SPEC_3 §1).

        Args:
            nonces: uint64[2], of `window_nonces`.
            message: m.
            weights: float64[V], the probabilities up to a factor.
        """
        first, keys, number = self._to_mark(nonces[None], np.array([message], np.int64))
        return step_draws.choose_token(first[0], keys[:, 0].copy(), int(number[0]), self.groups is not None, weights)

    def draws_of(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.uint32]:
        """Return the draw of each scored token under its document's message: uint32[P].

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
            # a number cannot be the best of its range if even its upper bound is below another number's lower bound
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
    """The unweighted score Σ ln r over the same draws. It has one message only, and is not searched."""

    law: Law = NegativeGamma()
    _unweighted: ClassVar[bool] = True
