"""Make steps of version 3: from tokens and positions to the key of a step's draws (SPEC_3 §1).

A window is hashed twice, under public keys, to the nonces N and N'. The first bits of N choose one of 2^n buckets, and
the master key gives the bucket a seed. The key of the step is seed ⊕ R, with N' in its first two words. So a step needs
nothing of the master key that it came from, and steps of texts under different master keys can be side by side.
"""

from typing import NamedTuple

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.streams import nonces_of_columns, nonces_of_positions
from scanner.watermark.positions import Ranges, consecutive_positions, offsets_of

LAST_OF_GROUP_STEPS = 2**32 // 3
"""Largest word 7 of a group step's key. Three times this number is still below 2^32."""


class Hashes(NamedTuple):
    """Hashes that tell windows apart and give steps their buckets and keys. They are public and contain no secret.

    nonces: N, uint64[P].
    seconds: N', uint64[P].
    """

    nonces: NDArray[np.uint64]
    seconds: NDArray[np.uint64]


class SeedKeys(NamedTuple):
    """The keys that draw the step keys of K keys of one label.

    They are as secret as master keys, and no repr shows them.

    words: seed keys, uint32[K, 8].
    beacons: R of each, as words, uint32[K, 8].
    seeds: n, of 2^n seeds.
    """

    words: NDArray[np.uint32]
    beacons: NDArray[np.uint32]
    seeds: int

    def __repr__(self) -> str:
        return f"SeedKeys({len(self.words)} keys of 2^{self.seeds} seeds)"


class Steps(NamedTuple):
    """Scored positions of D documents, document by document and in order.

    Their keys are secret, and no repr shows them.

    ids: tokens, uint32[P].
    nonces: N, uint64[P].
    keys: key of each step, its words as rows, uint32[8, P].
    offsets: int64[D+1].
    """

    ids: NDArray[np.uint32]
    nonces: NDArray[np.uint64]
    keys: NDArray[np.uint32]
    offsets: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"Steps({len(self.ids)} steps of {len(self.offsets) - 1} documents)"

    @property
    def scored(self) -> NDArray[np.int64]:
        """Return the number of steps of each document: int64[D]."""
        return self.offsets[1:] - self.offsets[:-1]

    def where(self, mask: NDArray[np.bool_]) -> "Steps":
        """Return the steps where a mask, bool[P], is true, still by document."""
        return self._taken(np.flatnonzero(mask), offsets_of(mask)[self.offsets])

    def of_documents(self, documents: NDArray[np.int64]) -> "Steps":
        """Return the steps of some documents, int64[d]."""
        places = consecutive_positions(self.offsets[documents], self.scored[documents])
        return self._taken(places.index, places.offsets)

    def of_ranges(self, ranges: Ranges) -> "Steps":
        """Return the steps of ranges, as of documents of their own."""
        places = consecutive_positions(ranges.begin, ranges.length)
        return self._taken(places.index, places.offsets)

    def repeated(self, times: NDArray[np.integer]) -> "Steps":
        """Return each step so many times, int[P], one after the other."""
        ends = np.append(0, np.cumsum(times, dtype=np.int64))
        return self._taken(np.repeat(np.arange(len(self.ids)), times), ends[self.offsets])

    def _taken(self, index: NDArray[np.int64], offsets: NDArray[np.int64]) -> "Steps":
        return Steps(self.ids[index], self.nonces[index], np.take(self.keys, index, axis=1), offsets)


def hash_positions(key: NDArray[np.uint64], ids: NDArray[np.uint32], index: NDArray[np.int64], window: int) -> Hashes:
    """Return N and N' of scored positions (SPEC_3 §1).

    Args:
        key: uint64[4], of `secret.window_key`.
        ids: uint32[N], flat tokens.
        index: int64[P], places in ids. Each has `window` tokens of its document before it.
        window: h.
    """
    return Hashes(*(nonces_of_positions(half, ids, index, window) for half in (key[:2], key[2:])))


def hash_windows(key: NDArray[np.uint64], windows: NDArray[np.uint32]) -> Hashes:
    """Return N and N' of separate windows, uint32[R, h]: uint64[R] both."""
    columns = np.ascontiguousarray(windows.T, np.uint32)
    return Hashes(*(nonces_of_columns(half, columns) for half in (key[:2], key[2:])))


def buckets_of(nonces: NDArray[np.uint64], seeds: int) -> NDArray[np.int64]:
    """Return the bucket of each nonce N among 2^seeds: its first bits, int64[P]."""
    return (nonces >> np.uint64(64 - seeds)).astype(np.int64)


def step_keys(
    seed_keys: SeedKeys, whose: NDArray[np.int64], offsets: NDArray[np.int64], hashes: Hashes
) -> NDArray[np.uint32]:
    """Return the keys of the steps of D documents, words as rows: uint32[8, P] (SPEC_3 §1).

    Args:
        seed_keys: of K keys.
        whose: int64[D], the key with which each document is read.
        offsets: int64[D+1], of the documents in `hashes`.
        hashes: of the steps.
    """
    keys, before = np.empty((8, len(hashes.nonces)), np.uint32), np.zeros(len(hashes.nonces) + 1, np.int64)
    room = np.empty(len(hashes.nonces), np.uint32), np.empty(len(hashes.nonces), np.uint64), keys
    _draw_steps(seed_keys, whose, offsets, hashes, room[0], False, *room, before)
    return keys


def steps_by_kind(
    seed_keys: SeedKeys, whose: NDArray[np.int64], offsets: NDArray[np.int64], hashes: Hashes, ids: NDArray[np.uint32]
) -> tuple[Steps, NDArray[np.int64]]:
    """Return steps of a label with groups by kind, and the number of group steps before each.

    Args:
        seed_keys: of K keys.
        whose: int64[D], the key with which each document is read.
        offsets: int64[D+1], of the documents in `hashes`.
        hashes: of P steps.
        ids: uint32[P], their tokens.

    Returns:
        An array for 2·P steps. It has the group steps of all documents from 0 on, with offsets of their own, and the
        user steps from P on, both in order. The rest has no meaning.
        The number of group steps before each step, and last their total: int64[P+1].
    """
    room = 2 * len(ids)  # memory that is never written costs nothing
    steps = np.empty(room, np.uint32), np.empty(room, np.uint64), np.empty((8, room), np.uint32)
    before = np.zeros(len(ids) + 1, np.int64)
    _draw_steps(seed_keys, whose, offsets, hashes, ids, True, *steps, before)
    return Steps(*steps, before[offsets]), before


@kernel
def _end_of_key(whose: NDArray[np.int64], d: int) -> int:
    """Return the first document after `d` that has another key. whose: int64[D]."""
    end = d + 1
    while end < len(whose) and whose[end] == whose[d]:
        end += 1
    return end


@kernel
def _draw_steps(
    seed_keys: SeedKeys,
    whose: NDArray[np.int64],
    offsets: NDArray[np.int64],
    hashes: Hashes,
    ids: NDArray[np.uint32],
    are_apart: bool,
    out_ids: NDArray[np.uint32],
    out_nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    before: NDArray[np.int64],
) -> None:
    """Write steps in order, or group steps from 0 and user steps from P on, and count group steps into `before`."""
    words, beacons, seeds = seed_keys
    nonces, seconds = hashes
    # counter 0, and a bucket fits the lower word of the block's nonce
    inputs, block = np.zeros(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    places, shared, d = np.empty(CHUNK, np.int64), np.int64(0), 0
    while d < len(whose):
        end = _end_of_key(whose, d)
        seed_key, beacon = words[whose[d]], beacons[whose[d]]
        for begin in range(offsets[d], offsets[end], CHUNK):
            lanes = min(CHUNK, offsets[end] - begin)
            first = uint64(begin)
            for i in range(uint64(lanes)):
                inputs[uint64(2 * CHUNK) + i] = uint32(nonces[first + i] >> uint64(64 - seeds))
            chacha8_lanes(seed_key, inputs, lanes, block)
            for w in range(uint64(8)):
                r = beacon[w]
                for i in range(uint64(lanes)):
                    block[w * uint64(CHUNK) + i] ^= r
            for i in range(uint64(lanes)):
                block[i] ^= uint32(seconds[first + i])
                block[uint64(CHUNK) + i] ^= uint32(seconds[first + i] >> uint64(32))
            for i in range(uint64(lanes)):
                here, is_shared = np.int64(first + i), block[uint64(7 * CHUNK) + i] <= uint32(LAST_OF_GROUP_STEPS)
                apart = shared if is_shared else np.int64(len(ids)) + here - shared
                places[i] = apart if are_apart else here
                shared += np.int64(is_shared)
                before[first + i + uint64(1)] = shared
            for w in range(uint64(8)):  # row by row, so that few places of memory are written at a time
                for i in range(uint64(lanes)):
                    keys[w, uint64(places[i])] = block[w * uint64(CHUNK) + i]
            if are_apart:
                for i in range(uint64(lanes)):
                    out_ids[uint64(places[i])] = ids[first + i]
                for i in range(uint64(lanes)):
                    out_nonces[uint64(places[i])] = nonces[first + i]
        d = end


def is_group_step(keys: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return which steps of a label with groups are shared by a group, about a third of them: bool[P] (SPEC_3 §1).

    keys: uint32[8, P].
    """
    return np.asarray(keys[7] <= LAST_OF_GROUP_STEPS)


def in_two(steps: Steps) -> tuple[Steps, Steps]:
    """Return the group steps and the user steps of documents under a label with groups."""
    is_shared = is_group_step(steps.keys)
    return steps.where(is_shared), steps.where(~is_shared)
