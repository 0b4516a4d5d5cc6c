"""Version 2 of our marks: which number a message reads at each step, marking, and the search of all messages.

To mark a step, every candidate token reads its own run, one block a token (SPEC_2 §1).
"""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from scanner.watermark.format import Candidates, UserEvidence, Watermark
from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Law, NegativeGamma, least_score
from scanner.watermark.native import green_runs, gumbel_runs
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.gumbel import cheapest
from scanner.watermark.native.gumbel_runs import BITS, PER_LN2
from scanner.watermark.native.keyed import GreenListMark, GumbelMark, NativeMark, below
from scanner.watermark.native.secret import SubKeys
from scanner.watermark.native.streams import (
    RunRequest,
    ScoredSteps,
    begin_run,
    group_steps_before,
    in_two,
    is_group_step,
    log2,
    steps_of,
)
from scanner.watermark.native.windows import (
    LONGEST_TOGETHER,
    MOST_SUMS,
    BestNumbers,
    PartRequest,
    best_green,
    best_gumbel,
)
from scanner.watermark.positions import Positions, Ranges, Tokens
from schemas.registry import MOST_NUMBERS

MOST_GROUPS_SEARCHED = 8
"""Most groups of a document whose users are searched (SPEC_2 §3)."""

_FIRST_CANDIDATES = 16
"""Candidates that a document without groups is first searched for; where as many pass, all are searched for."""

_ROOM = 1e-9
"""Slack in log10 p, so that rounding decides nothing (SPEC_2 §3)."""

GROUPS_BY_CHANCE = 0.1
"""Largest chance, over all groups, of a score as high as a window's best group, at which that group's users are
searched.
"""

MOST_WINDOWS = 2
"""Windows of a document in which the users of a group are searched, those where it is best."""

_REMEMBERED = 1 << 16
"""Most lengths whose floors are kept in memory."""

_AT_ONCE = 512
"""Lengths of short texts, whose floors are found together: a search for one takes as long as for many."""


BestOfRuns = Callable[[ScoredSteps, RunRequest], tuple[NDArray[np.int64], NDArray[np.generic]]]
"""Function that finds the best numbers of runs and their scores: [R, most], −1 and 0 where there are fewer."""


class Version2Mark(NativeMark):
    """A native watermark of version 2 under one master key; arguments and errors as of NativeMark."""

    version = 2
    _elsewhere: tuple[BestOfRuns, str] | None = None

    def __repr__(self) -> str:
        return super().__repr__() + (f" {self._elsewhere[1]}" if self._elsewhere else "")

    def searched_by(self, best_of_runs: BestOfRuns, where: str) -> Self:
        """Return the same watermark with its runs searched by another function than `best_of_runs`, such as a device's.

        where: the device, for its repr.
        """
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _elsewhere=(best_of_runs, where))
        return copy

    def join_marks(self, marks: Sequence[Watermark], begins: NDArray[np.int64]) -> Self | None:
        """See JoinsKeys. What is searched elsewhere is searched one key at a time. The result draws no tokens."""
        matching_marks = [mark for mark in marks if isinstance(mark, type(self)) and mark.label == self.label]
        if self._elsewhere or len(matching_marks) < len(marks):
            return None
        joint_mark = object.__new__(type(self))
        rows = SubKeys(*(np.stack(keys) for keys in zip(*(mark.sub_keys for mark in matching_marks), strict=True)))
        vars(joint_mark).update(vars(self), _rows=rows, _begins=begins)
        del joint_mark._keys
        return joint_mark

    @abstractmethod
    def best_of_windows(self, steps: ScoredSteps, windows: Ranges, parts: PartRequest, count: int) -> BestNumbers:
        """Return the best of the numbers 0 … count−1 in windows, and in parts of documents that have windows."""

    def search_parts(
        self, tokens: Tokens, positions: Positions, parts: Ranges, windows: Ranges, count: int, share: float
    ) -> tuple[Candidates, NDArray[np.int64], NDArray[np.int64]]:
        """See SearchesWindows."""
        self._check_count(count)
        nonces, document_keys = self._nonces(tokens, positions), self._whose(positions)
        if self.groups is None:
            steps = steps_of(tokens, positions, nonces, document_keys)
            best = self.best_of_windows(steps, windows, PartRequest.none(len(document_keys)), count)
            window = self._reaching(best.bound, windows.length, np.log10(share) - np.log10(count))
            return self._among_all(steps.of_ranges(parts), count), window, best.number[window]
        groups = self._check_groups(count)
        shared, users = in_two(tokens, positions, nonces, document_keys)
        group_step_counts = group_steps_before(nonces)
        part_group_steps, window_group_steps = (
            Ranges(ranges.first, group_step_counts[ranges.begin], group_step_counts[ranges.end])
            for ranges in (parts, windows)
        )
        best = self._best_groups(shared, part_group_steps, window_group_steps, groups)
        users_of_parts = users.of_ranges(_other_steps(parts, part_group_steps))
        candidates = self._in_groups(
            part_group_steps.length, (best.of_parts, best.scores), users_of_parts, groups, groups
        )
        window = self._windows_of_groups(best, window_group_steps, groups)
        is_chosen = np.zeros(len(windows.begin), np.bool_)
        is_chosen[window] = True
        steps = users.of_ranges(_other_steps(windows.where(is_chosen), window_group_steps.where(is_chosen)))
        # draws are rounded to floats, by which a bound may be too small: by 2^-24 in log2 of each (gumbel_runs)
        factor, log10_p = 1.0 if self.law.discrete else 1.0 + 2.0**-20, np.log10(share) - np.log10(count) + _ROOM
        floors = self._floors_of(windows.length[window], log10_p) * ((1.0 - _ROOM) / factor) - best.bound[window]
        request = RunRequest(np.arange(len(window)), best.number[window] * MOST_NUMBERS, groups, 0, 1, floors)
        user, score = self._best(steps, request)
        bounds = np.where(user[:, 0] >= 0, (best.bound[window] + score[:, 0].astype(np.float64)) * factor, -np.inf)
        survivors = self._reaching(bounds, windows.length[window], log10_p)
        return candidates, window[survivors], best.number[window[survivors]] * groups + user[survivors, 0]

    def _windows_of_groups(self, best: BestNumbers, windows: Ranges, groups: int) -> NDArray[np.int64]:
        """Return the windows in which the users of the best group are searched, by their group steps: int64[Q]."""
        candidates = self._reaching(best.bound, windows.length, np.log10(GROUPS_BY_CHANCE) - np.log10(groups))
        document_groups = windows.whose[candidates] * groups + best.number[candidates]
        order = np.lexsort((self.law.log10_p(best.bound[candidates], windows.length[candidates]), document_groups))
        rank = np.arange(len(order)) - np.searchsorted(document_groups[order], document_groups[order])
        return candidates[np.sort(order[rank < MOST_WINDOWS])]

    def _reaching(self, score: NDArray[np.float64], scored: NDArray[np.int64], log10_p: float) -> NDArray[np.int64]:
        """Return the places of the scores whose p is 10^log10_p or less, int64[Q] of int64[D] positions."""
        high = np.flatnonzero(score >= self._floors_of(scored, log10_p))
        return high[self.law.log10_p(score[high], scored[high]) <= log10_p]

    def _best_groups(self, shared: ScoredSteps, parts: Ranges, windows: Ranges, groups: int) -> BestNumbers:
        """Return the best groups of parts and windows, of group steps, each of which is drawn once for most of them."""
        floors = self._floors_of(parts.length, _by_chance(groups))
        is_together = (np.diff(windows.first) > 0)[parts.whose] & (parts.length <= LONGEST_TOGETHER)
        is_together &= (self._elsewhere is None) & self._are_together(parts, groups)
        request = PartRequest(*parts.where(is_together), MOST_GROUPS_SEARCHED, floors[is_together])
        best = self.best_of_windows(shared, windows, request, groups)
        if is_together.all():
            return best
        rest_parts = np.arange(len(floors))[~is_together]
        runs = RunRequest(
            np.arange(len(rest_parts)), np.zeros_like(rest_parts), groups, 1, MOST_GROUPS_SEARCHED, floors[rest_parts]
        )
        run_bests = self._best(shared.of_ranges(parts.where(~is_together)), runs)
        order = np.argsort(np.append(np.flatnonzero(is_together), rest_parts))
        part_groups, scores = (np.concatenate(pair)[order] for pair in zip(best[2:], run_bests, strict=True))
        return best._replace(of_parts=part_groups, scores=scores)

    def _are_together(self, parts: Ranges, groups: int) -> NDArray[np.bool_]:
        """Say which parts' best groups may be found with those of windows, as far as memory goes: bool[R]."""
        del groups
        return np.ones(len(parts.begin), np.bool_)

    @abstractmethod
    def best_of_runs(self, steps: ScoredSteps, request: RunRequest) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return the best numbers of runs and their scores: [R, most], −1 and 0 where there are fewer."""

    def _best(self, steps: ScoredSteps, request: RunRequest) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        return self._elsewhere[0](steps, request) if self._elsewhere else self.best_of_runs(steps, request)

    def steps(self, tokens: Tokens, positions: Positions) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the scored positions' tokens and nonces, and each document's part of them, as ScoredSteps has them."""
        return steps_of(tokens, positions, self._nonces(tokens, positions))[:3]

    def numbers(self, nonces: NDArray[np.uint64], messages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number that each step's message reads there (SPEC_2 §2): int64[R].

        Args:
            nonces: uint64[R], of the steps.
            messages: int64[R], of the steps.

        Raises:
            ValueError: a message that the key does not have.
        """
        self.check_messages(messages)
        if self.groups is None:
            return messages
        group, user = np.divmod(messages, self.groups)
        return np.where(is_group_step(nonces), group, group * MOST_NUMBERS + user)

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """Return the candidates among the messages 0 … count−1; with groups, count is B².

        Raises:
            ValueError: another count.
        """
        self._check_count(count)
        if self.groups is None and count == 1:
            return self.single_message(self.score(tokens, positions, 0))
        if self.groups is None:
            steps = steps_of(tokens, positions, self._nonces(tokens, positions), self._whose(positions))
            return self._among_all(steps, count)
        return self.search_groups(tokens, positions, self._check_groups(count))

    def _check_groups(self, count: int) -> int:
        """Return B, of B² messages.

        Raises:
            ValueError: the key does not have so many.
        """
        groups = self.groups or 0
        if count != groups**2:
            raise ValueError(f"{count} messages cannot be searched; this key has {groups**2}")
        return groups

    def search_groups(self, tokens: Tokens, positions: Positions, groups: int) -> Candidates:
        """Search only the first groups, and as many users of each, as `search` does: what experiments count.

        Raises:
            ValueError: more groups than the key has.
        """
        if self.groups is None or groups > self.groups:
            raise ValueError(f"{groups} groups cannot be searched; this key has {self.groups or 'none'}")
        shared, user_steps = in_two(tokens, positions, self._nonces(tokens, positions), self._whose(positions))
        documents, floors = np.arange(len(shared.scored)), self._floors_of(shared.scored, _by_chance(groups))
        request = RunRequest(documents, np.zeros_like(documents), groups, 1, MOST_GROUPS_SEARCHED, floors)
        return self._in_groups(shared.scored, self._best(shared, request), user_steps, groups, self.groups)

    def _among_all(self, steps: ScoredSteps, count: int) -> Candidates:
        """Return the best two messages of each document, and all others whose p is 1/count or less."""
        documents = np.arange(len(steps.scored))
        message, score = self._candidates(
            steps, documents, self._floors_of(steps.scored, _by_chance(count)), count, _FIRST_CANDIDATES
        )
        return Candidates(message, score, independent=True)

    def _candidates(
        self, steps: ScoredSteps, documents: NDArray[np.int64], floors: NDArray[np.float64], count: int, limit: int
    ) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return candidates of some documents, `limit` of each at first, and more where a document has as many."""
        message, score = self._best(steps, RunRequest(documents, np.zeros_like(documents), count, 2, limit, floors))
        full_rows = np.flatnonzero(message[:, -1] >= 0)
        if limit < count and len(full_rows):
            extension = self._candidates(steps, documents[full_rows], floors[full_rows], count, 8 * limit)
            padding = ((0, 0), (0, extension[0].shape[1] - limit))
            message, score = np.pad(message, padding, constant_values=-1), np.pad(score, padding)
            message[full_rows], score[full_rows] = extension
        width = max(2, int((message >= 0).sum(axis=1).max(initial=0)))
        return message[:, :width], score[:, :width]

    def _in_groups(
        self,
        shared: NDArray[np.int64],
        best: tuple[NDArray[np.int64], NDArray[np.generic]],
        user_steps: ScoredSteps,
        groups: int,
        users: int,
    ) -> Candidates:
        """Return the best user of each group that is looked into (SPEC_2 §3).

        Args:
            shared: group steps, int64[D].
            best: groups and their scores, as of BestOfRuns.
            user_steps: of D documents.
            groups: how many groups, and users of each, are searched.
            users: B, by which messages are numbered.
        """
        group, score_group = best
        log10_p = self.law.log10_p(score_group, shared[:, None])
        is_looked_into = (group >= 0) & (log10_p <= _by_chance(groups))
        is_looked_into[:, 0] = True
        width = max(2, int(is_looked_into.sum(axis=1).max(initial=0)))
        is_looked_into, group, score_group = is_looked_into[:, :width], group[:, :width], score_group[:, :width]
        rows = np.nonzero(is_looked_into)[0].copy()  # kernels are compiled anew for a column of an array
        none = np.full(len(rows), np.inf)
        user, score_user = self._best(
            user_steps, RunRequest(rows, group[is_looked_into] * MOST_NUMBERS, groups, 1, 1, none)
        )
        message, score_of_user = np.full(group.shape, -1), np.zeros_like(score_group)
        message[is_looked_into] = group[is_looked_into] * users + user[:, 0]
        score_of_user[is_looked_into] = score_user[:, 0]
        total = np.where(is_looked_into, score_group + score_of_user, 0)
        best_first = np.lexsort((message, np.where(is_looked_into, -total, np.inf)), axis=1)
        index = np.arange(len(shared))[:, None], best_first
        message, total, score_of_user = message[index], total[index], score_of_user[index]
        return Candidates(message, total, UserEvidence(score_of_user, user_steps.scored, groups), independent=True)

    def _floors_of(self, scored: NDArray[np.int64], log10_p: float) -> NDArray[np.float64]:
        """Return the least score whose p is 10^log10_p or less, for each document: float64[D]."""
        cache = _known_floors(self.law, log10_p)
        if len(cache) > _REMEMBERED:
            cache.clear()
        distinct = np.flatnonzero(np.bincount(scored, minlength=1))
        missing = [t for t in distinct.tolist() if t not in cache]
        if missing and missing[0] < _AT_ONCE:
            missing = sorted({*missing, *range(_AT_ONCE)} - cache.keys())
        if missing:
            least_scores = least_score(self.law, np.array(missing, np.int64), log10_p)
            cache.update(zip(missing, least_scores.tolist(), strict=True))
        floors = np.empty(distinct[-1] + 1 if len(distinct) else 0)
        floors[distinct] = [cache[t] for t in distinct.tolist()]
        return floors[scored]


def _by_chance(count: int) -> float:
    """Return log10 of the p that one of so many numbers has by chance, and a little more."""
    return float(_ROOM - np.log10(count))


def _other_steps(ranges: Ranges, group_ranges: Ranges) -> Ranges:
    """Return ranges of positions as ranges of user steps; group_ranges: of group steps."""
    return Ranges(ranges.first, ranges.begin - group_ranges.begin, ranges.end - group_ranges.end)


@functools.lru_cache(maxsize=128)
def _known_floors(law: Law, log10_p: float) -> dict[int, float]:
    """Return floors by number of scored positions, kept for all keys of a law, since a decoy's key scores one text."""
    del law, log10_p
    return {}


@kernel
def green_tokens(
    key: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    numbers: NDArray[np.int64],
    rule: tuple[int, int, int],
    tokens: int,
) -> NDArray[np.bool_]:
    """Say which of the tokens 0 … V−1 are green in each step, for the number that is read there: bool[R, V].

    Args:
        key: uint32[8].
        nonces: uint64[R], of the steps.
        numbers: int64[R], of the steps.
        rule: n, b and planes of γ = n / 2^b.
        tokens: V.
    """
    n, bits, planes = rule
    height = 16 // planes
    out = np.empty((len(nonces), tokens), np.bool_)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    ids, step_nonces, row = (np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint32))
    for r in range(len(nonces)):
        number = numbers[r]
        step_nonces[:] = nonces[r]
        for first in range(0, tokens, CHUNK):
            lanes = min(CHUNK, tokens - first)
            for i in range(lanes):
                ids[i] = first + i
            begin_run(ids[:lanes], step_nonces, number, 5 + log2(height), inputs)
            chacha8_lanes(key, inputs, lanes, block)
            below(n, bits, height * CHUNK, block[((number >> 5) & (height - 1)) * CHUNK :], row[:lanes])
            for i in range(lanes):
                out[r, first + i] = (row[i] >> np.uint32(number & 31)) & np.uint32(1) != 0
    return out


@kernel
def choose_token(key: NDArray[np.uint32], nonce: uint64, number: int, weights: NDArray[np.float64]) -> int:
    """Return the token of one step: the least −ln(r)/p_v among those with p_v > 0, ties to the smallest id.

    Args:
        key: uint32[8].
        nonce: of the step's window.
        number: the one that is read there.
        weights: float64[V], p up to a factor.

    Returns:
        The token, or −1 where there is none.
    """
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    ids, chances, step_nonces = (np.empty(CHUNK, np.uint32), np.empty(CHUNK), np.full(CHUNK, nonce))
    draws = block[(number & 15) * CHUNK :]
    best_token, cost, lanes = -1, math.inf, 0
    for token in range(len(weights)):
        if weights[token] > 0.0:
            ids[lanes], chances[lanes] = token, weights[token]
            lanes += 1
        if lanes == CHUNK or (lanes and token == len(weights) - 1):
            begin_run(ids[:lanes], step_nonces, number, BITS, inputs)
            chacha8_lanes(key, inputs, lanes, block)
            place, cost = cheapest(draws[:lanes], chances[:lanes], 0, -1, cost)
            if place >= 0:
                best_token = int(ids[place])
            lanes = 0
    return best_token


class Version2GreenList(GreenListMark, Version2Mark):
    """The green list of version 2; arguments and errors as of GreenListMark."""

    method = "greenlist-v2"

    def green(self, nonces: NDArray[np.uint64], messages: NDArray[np.int64], tokens: int) -> NDArray[np.bool_]:
        """Say which of the tokens 0 … V−1 are green in each step for its message: bool[R, V] (SPEC_2 §1)."""
        numbers = self.numbers(nonces, messages)
        return green_tokens(self._keys.chacha, nonces, numbers, self._rule, tokens)

    def best_of_runs(self, steps: ScoredSteps, request: RunRequest) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the best numbers of runs and their counts: int64[R, most] both."""
        return green_runs.best_of_runs(self._rows.chacha, steps, request, self._rule)

    def best_of_windows(self, steps: ScoredSteps, windows: Ranges, parts: PartRequest, count: int) -> BestNumbers:
        """Return the best numbers; counts are no bounds, but exact."""
        number, counted, part_numbers, scores = best_green(self._rows.chacha, steps, windows, parts, count, self._rule)
        return BestNumbers(number, counted.astype(np.float64), part_numbers, scores)


class Version2Gumbel(GumbelMark, Version2Mark):
    """The Gumbel mark of version 2; arguments and errors as of GumbelMark."""

    method = "gumbel-v2"

    def choose(self, nonce: np.uint64, message: int, weights: NDArray[np.float64]) -> int:
        """Return the token to write at a step: the least −ln(r)/p, −1 when every weight is 0 (SPEC §2, SPEC_2 §1).

        Args:
            nonce: of the step's window.
            message: m.
            weights: float64[V], the probabilities up to a factor.
        """
        number = int(self.numbers(np.array([nonce], np.uint64), np.array([message], np.int64))[0])
        return choose_token(self._keys.chacha, nonce, number, weights)

    def draws_of(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.uint32]:
        """Return the draw that each scored token meets under its document's message: uint32[P].

        Raises:
            ValueError: a message that the key does not have.
        """
        position_messages, nonces = self._message_of_positions(messages, positions), self._nonces(tokens, positions)
        ids = tokens.ids[positions.index].astype(np.int64)
        return gumbel_runs.draws_at(self._keys.chacha, ids, nonces, self.numbers(nonces, position_messages))

    def best_of_runs(self, steps: ScoredSteps, request: RunRequest) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the best numbers of runs, int64[R, most], and their scores, float64[R, most]."""
        return gumbel_runs.best_of_runs(self._rows.chacha, steps, request)

    def best_of_windows(self, steps: ScoredSteps, windows: Ranges, parts: PartRequest, count: int) -> BestNumbers:
        """Return the best numbers; in windows they are found by the leading bits of draws, which bound scores."""
        number, units, part_numbers, scores = best_gumbel(self._rows.chacha, steps, windows, parts, count)
        return BestNumbers(number, units / PER_LN2, part_numbers, scores)

    def _are_together(self, parts: Ranges, groups: int) -> NDArray[np.bool_]:
        """Keep no more than MOST_SUMS bounds of a document's parts at a time."""
        return np.asarray(np.diff(parts.first)[parts.whose] * groups <= MOST_SUMS)


class Version2LogGumbel(Version2Gumbel):
    """The unweighted score Σ ln r over the same streams. One message only: it is not searched."""

    law: Law = NegativeGamma()
    _unweighted: ClassVar[bool] = True
