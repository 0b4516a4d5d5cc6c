"""Streams of the native watermark: from sub-keys to blocks of a step's secret vector (SPEC §1), and runs in them.

Most positions of a text are scored, so windows are hashed for CHUNK tokens in a row: they stand in order
then, and no lane has to collect its own. Blocks are computed for CHUNK positions at a time, so that nothing
leaves the cache.

In version 2 (SPEC_2 §1), whose nonces are those of version 1, each token has a run of numbers of its own and every run
begins with a block. So nothing has to be shifted: lane i of a vector is step i, and what a block adds for a number is
summed over the lanes.

Kernels take key, uint32[8], or sip, uint64[2]; ids, uint32[N], flat tokens; window, h; places, int64[L], positions in
ids, L ≤ CHUNK; nonces, uint64[L], and tokens x, int64[L], one a lane; bits, log2 of the numbers that a
block holds; height, words of a plane in a block, P of SPEC §1, a power of two; inputs, uint32[4 · CHUNK],
and scratch, uint64[6 · CHUNK], for their own use; out, of which they write the first L or, of blocks,
uint32[16 · CHUNK].
"""

from typing import Any, NamedTuple

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_lanes, siphash_lanes
from scanner.watermark.native.secret import SubKeys
from scanner.watermark.positions import Positions, Ranges, Tokens, runs_of


def window_nonces(
    sub_keys: SubKeys, ids: NDArray[np.uint32], index: NDArray[np.int64], window: int
) -> NDArray[np.uint64]:
    """Return the nonce of each position, SipHash-2-4 of the `window` tokens before it (SPEC §1): uint64[P].

    Args:
        sub_keys: of the label.
        ids: uint32[N], flat tokens.
        index: int64[P], ascending. Each has `window` tokens of its document before it.
        window: 0 to 16.
    """
    return nonces_of_positions(sub_keys.sip, ids, index, window)


def nonces_of_windows(sub_keys: SubKeys, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the nonces of windows that stand alone: uint64[R] for uint32[R, h] (SPEC §1)."""
    return nonces_of_columns(sub_keys.sip, np.ascontiguousarray(windows.T, np.uint32))


@kernel
def nonces_of_columns(key: NDArray[np.uint64], columns: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the SipHash-2-4 of each column of tokens under a key, uint64[2]: uint64[R] for uint32[h, R]."""
    count, lanes = columns.shape
    nonces = np.empty(lanes, np.uint64)
    scratch = np.empty(5 * CHUNK, np.uint64)
    tokens = columns.ravel()
    for begin in range(0, lanes, CHUNK):
        siphash_lanes(key, tokens[begin:], lanes, count, scratch, nonces[begin : begin + CHUNK])
    return nonces


def stream_word(sub_keys: SubKeys, nonce: int, planes: int, plane: int, i: int, version: int = 1) -> int:
    """Return word i of one plane of a stream, computed alone (SPEC §1, SPEC_2 §1)."""
    height = 16 // planes
    if version == 2:
        counter, r = divmod(i, height)
        return int(chacha8_block(sub_keys.chacha, counter, nonce)[plane * height + r])
    group, r = divmod(i, LANES * height)
    counter = LANES * group + r % LANES
    block = chacha8_block(sub_keys.chacha, counter, nonce)
    return int(block[plane * height + r // LANES])


def chacha8_block(key: NDArray[np.uint32], counter: int, nonce: int) -> NDArray[np.uint32]:
    """Return one ChaCha8 block: uint32[16] for a key of uint32[8], a 64-bit counter and a 64-bit nonce."""
    out, inputs = np.empty(16 * CHUNK, np.uint32), np.zeros(4 * CHUNK, np.uint32)
    inputs[::CHUNK] = np.array([counter, nonce], np.uint64).view(np.uint32)
    chacha8_lanes(key, inputs, 1, out)
    return out[::CHUNK].copy()


@kernel
def end_of_chunk(index: NDArray[np.int64], p: int) -> int:
    """Return one past the last scored position of the chunk that begins at position p: p < end ≤ p + CHUNK."""
    stop, limit = index[p] + CHUNK, min(p + CHUNK, len(index))
    end = p + 1
    while end < limit and index[end - 1] < index[end] < stop:
        end += 1
    return end


@kernel
def nonces_of_chunk(
    key: NDArray[np.uint64],
    ids: NDArray[np.uint32],
    places: NDArray[np.int64],
    window: int,
    scratch: NDArray[np.uint64],
    out: NDArray[np.uint64],
) -> None:
    """Write the window nonces of one chunk (SPEC §1)."""
    run = scratch[5 * CHUNK : 5 * CHUNK + places[-1] + 1 - places[0]]
    siphash_lanes(key, ids[places[0] - window :], 1, window, scratch, run)
    for i in range(len(places)):
        out[i] = run[places[i] - places[0]]


@kernel
def end_of_key(whose: NDArray[np.int64], d: int) -> int:
    """Return the first document after `d` that has another key than it; whose: int64[D]."""
    end = d + 1
    while end < len(whose) and whose[end] == whose[d]:
        end += 1
    return end


@kernel
def nonces_of_documents(
    keys: NDArray[np.uint64],
    whose: NDArray[np.int64],
    ids: NDArray[np.uint32],
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    window: int,
) -> NDArray[np.uint64]:
    """Return the window nonces of D documents, each under a key of its own: uint64[P].

    Args:
        keys: uint64[K, 2].
        whose: int64[D], the key of each document.
        ids: uint32[N], flat tokens.
        index: int64[P], places in ids.
        offsets: int64[D+1], of the documents in index.
        window: h.
    """
    nonces, d = np.empty(len(index), np.uint64), 0
    while d < len(whose):
        end = end_of_key(whose, d)
        first, last = offsets[d], offsets[end]
        nonces[first:last] = nonces_of_positions(keys[whose[d]], ids, index[first:last], window)
        d = end
    return nonces


@kernel
def nonces_of_positions(
    key: NDArray[np.uint64], ids: NDArray[np.uint32], index: NDArray[np.int64], window: int
) -> NDArray[np.uint64]:
    """Return the window nonces of scored positions: uint64[P] for int64[P] (SPEC §1)."""
    nonces = np.empty(len(index) + CHUNK, np.uint64)
    scratch = np.empty(6 * CHUNK, np.uint64)
    p = 0
    while p < len(index):
        end = end_of_chunk(index, p)
        nonces_of_chunk(key, ids, index[p:end], window, scratch, nonces[p:])
        p = end
    return nonces[: len(index)]


@kernel
def steps_of_positions(
    sip: NDArray[np.uint64],
    ids: NDArray[np.uint32],
    places: NDArray[np.int64],
    window: int,
    hashed: NDArray[np.int64],
    scratch: NDArray[np.uint64],
    nonces: NDArray[np.uint64],
    entries: NDArray[np.int64],
) -> None:
    """Write nonces and tokens of the next scored positions, fastest where they come in order from call to call.

    Args:
        sip: uint64[2].
        ids: uint32[N], flat tokens.
        places: int64[L], L ≤ CHUNK, places in ids.
        window: h.
        hashed: int64[2], from and to where the windows in scratch were hashed; zeros at first.
        scratch: uint64[6 · CHUNK].
        nonces: uint64[CHUNK], of which the first L are written.
        entries: int64[CHUNK], of which the first L are written.
    """
    run = scratch[5 * CHUNK :]
    begin, stop = hashed[0], hashed[1]
    for i in range(len(places)):
        place = places[i]
        if place >= stop or place < begin:
            begin, stop = place, min(place + CHUNK, len(ids))
            siphash_lanes(sip, ids[place - window :], 1, window, scratch, run[: stop - place])
        nonces[i] = run[uint64(place - begin)]  # unsigned: no look at whether it counts from the end
        entries[i] = np.int64(ids[uint64(place)])
    hashed[0], hashed[1] = begin, stop


def is_group_step(nonces: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Say which windows make a step that a group shares: a third of them, bool of the same shape (SPEC_2 §2)."""
    shared: NDArray[np.bool_] = (nonces >> np.uint64(32)) * np.uint64(3) >> np.uint64(32) == 0
    return shared


_is_shared_by_group = inlined(is_group_step)  # of one nonce


@kernel
def group_steps_before(nonces: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Count the group steps before each of P positions, and before their end: int64[P+1]."""
    counts = np.zeros(len(nonces) + 1, np.int64)
    for i in range(len(nonces)):
        counts[i + 1] = counts[i] + np.int64(_is_shared_by_group(nonces[i]))
    return counts


@kernel
def numbers_of_positions(
    offsets: NDArray[np.int64],
    numbers: NDArray[np.int64],
    nonces: NDArray[np.uint64],
    p: int,
    end: int,
    document: int,
    out: NDArray[np.int64],
    alone: NDArray[np.uint8],
) -> None:
    """Write the number that is read at positions p … end−1, and whether it is a message's own or its group's.

    Args:
        offsets: int64[D+1].
        numbers: int64[2, D], which a document's message reads in group steps and in user steps; int64[1, D]:
            everywhere; int64[…, 1]: in all documents.
        nonces: uint64[L], of these positions.
        p: a position of `document`.
        end: one past the last position.
        document: where to begin.
        out: int64[L], written.
        alone: uint8[L], written: 1 where the number is the message's own, 0 where it is its group's.
    """
    start, d, last = p, document, len(numbers) - 1
    while start < end:
        stop, column = max(min(offsets[d + 1], end), start), min(d, numbers.shape[1] - 1)
        group_number, user_number = numbers[0, column], numbers[last, column]
        for i in range(uint64(start - p), uint64(stop - p)):
            shared = last and _is_shared_by_group(nonces[i])
            out[i], alone[i] = group_number if shared else user_number, not shared
        start = stop
        d += 1


@kernel
def blocks_of_words(
    key: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    words: NDArray[np.int64],
    height: int,
    inputs: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> None:
    """Write the block that holds word i of a stream (SPEC §1), a lane for each nonce and word.

    Word i of plane q then stands at CHUNK · (q · height + row_of_word(i, height)) + lane of out. words: int64[L].
    """
    shift = 4
    while LANES * height >> shift > 1:
        shift += 1
    for i in range(len(words)):
        counter = ((words[i] >> shift) << 4) | (words[i] & 15)
        inputs[i], inputs[CHUNK + i] = uint32(counter), uint32(counter >> 32)
        inputs[2 * CHUNK + i], inputs[3 * CHUNK + i] = (uint32(nonces[i]), uint32(nonces[i] >> uint64(32)))
    chacha8_lanes(key, inputs, len(words), out)


@kernel
def blocks_of_runs(
    key: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    tokens: NDArray[np.int64],
    numbers: NDArray[np.int64],
    bits: int,
    inputs: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> None:
    """Write the block that holds entry x·2^32 + d of a stream of version 2 (SPEC_2 §1), a lane for each x and d.

    x is a token, and d its number. Word i of plane q then stands at CHUNK · (q · height + i mod height) + lane of out.
    numbers: int64[L], d.
    """
    low, high = uint32(32 - bits), uint32(bits)
    for i in range(len(tokens)):
        token, nonce = uint32(tokens[i]), nonces[i]
        inputs[i], inputs[CHUNK + i] = (
            uint32(token << low) | uint32(uint32(numbers[i]) >> high),
            uint32(token >> high),
        )
        inputs[2 * CHUNK + i], inputs[3 * CHUNK + i] = (uint32(nonce), uint32(nonce >> uint64(32)))
    chacha8_lanes(key, inputs, len(tokens), out)


@kernel
def row_of_word(word: int, height: int) -> uint64:
    """Return which word of its plane in a block word i of a stream is.

    The result is unsigned, so that an index needs no look at its sign.
    """
    return uint64((word >> 4) & (height - 1))


@kernel
def blocks_of_messages(
    key: NDArray[np.uint32],
    version: int,
    nonces: NDArray[np.uint64],
    tokens: NDArray[np.int64],
    entries: NDArray[np.int64],
    each: int,
    height: int,
    inputs: NDArray[np.uint32],
    out: NDArray[np.uint32],
    places: NDArray[np.int64],
) -> None:
    """Write the block that holds what token x reads under message m, a lane for each: where the two versions differ.

    entries: int64[L], m. It becomes the number whose last `each` bits say which entry of its word is read.
    places: int64[L], written: where in out the word of plane 0 stands.
    """
    if version == 1:
        for i in range(len(tokens)):
            entries[i] += tokens[i]
            places[i] = entries[i] >> each
        blocks_of_words(key, nonces, places, height, inputs, out)
        for i in range(len(tokens)):
            places[i] = np.int64(row_of_word(places[i], height)) * CHUNK + i
        return
    blocks_of_runs(key, nonces, tokens, entries, each + log2(height), inputs, out)
    for i in range(len(tokens)):
        places[i] = ((entries[i] >> each) & (height - 1)) * CHUNK + i


@kernel
def log2(power: int) -> int:
    """Return log2 of a power of two."""
    bits = 0
    while power >> bits > 1:
        bits += 1
    return bits


class ScoredSteps(NamedTuple):
    """Scored positions of D documents, document by document and in order.

    ids: tokens, uint32[P].
    nonces: of their windows, uint64[P].
    offsets: int64[D+1].
    whose: int64[D], which of the mark's keys each document is read with.
    """

    ids: NDArray[np.uint32]
    nonces: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    whose: NDArray[np.int64]

    @property
    def scored(self) -> NDArray[np.int64]:
        """int64[D]: how many each document has."""
        return self.offsets[1:] - self.offsets[:-1]

    def of_ranges(self, ranges: Ranges) -> "ScoredSteps":
        """Return the steps of ranges, as of documents of their own."""
        ids, offsets = runs_of(self.ids, ranges.begin, ranges.length)
        nonces, _ = runs_of(self.nonces, ranges.begin, ranges.length)
        return ScoredSteps(ids, nonces, offsets, self.whose[ranges.whose])


class RunRequest(NamedTuple):
    """Which runs of numbers are searched, R of them, and how many numbers of each are wanted.

    documents: int64[R], over whose steps.
    first: int64[R], the run's first number, the first of a block.
    length: how many numbers each run has.
    least: how many are returned whatever they score.
    most: how many are returned if they score as much as `floors`.
    floors: float64[R].
    """

    documents: NDArray[np.int64]
    first: NDArray[np.int64]
    length: int
    least: int
    most: int
    floors: NDArray[np.float64]


def steps_of(
    tokens: Tokens, positions: Positions, nonces: NDArray[np.uint64], whose: NDArray[np.int64] | None = None
) -> ScoredSteps:
    """Return all scored positions, with the nonces of their windows; whose: as of ScoredSteps, None: one key."""
    return ScoredSteps(tokens.ids[positions.index], nonces, positions.offsets, _each_key(positions, whose))


def _each_key(positions: Positions, document_keys: NDArray[np.int64] | None) -> NDArray[np.int64]:
    return np.zeros(len(positions.offsets) - 1, np.int64) if document_keys is None else document_keys


def in_two(
    tokens: Tokens, positions: Positions, nonces: NDArray[np.uint64], whose: NDArray[np.int64] | None = None
) -> tuple[ScoredSteps, ScoredSteps]:
    """Return the scored positions that are group steps, and those that are user steps, as `steps_of` does."""
    group_steps, user_steps = _in_two(tokens.ids, positions.index, positions.offsets, nonces)
    keys = _each_key(positions, whose)
    return ScoredSteps(*group_steps, keys), ScoredSteps(*user_steps, keys)


@kernel
def _in_two(
    ids: NDArray[np.uint32], index: NDArray[np.int64], offsets: NDArray[np.int64], nonces: NDArray[np.uint64]
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Return group steps and user steps, in one pass. Masks by `is_group_step` would take longer than the scores."""
    count = np.int64(0)
    for i in range(len(nonces)):
        count += np.int64(_is_shared_by_group(nonces[i]))
    size = count, len(index) - count
    group_ids, group_nonces, group_offsets = np.empty(size[0], np.uint32), np.empty(size[0], np.uint64), offsets.copy()
    user_ids, user_nonces, user_offsets = np.empty(size[1], np.uint32), np.empty(size[1], np.uint64), offsets.copy()
    g, u = np.int64(0), np.int64(0)
    for d in range(len(offsets) - 1):
        for i in range(offsets[d], offsets[d + 1]):
            if _is_shared_by_group(nonces[i]):
                group_ids[g], group_nonces[g] = ids[index[i]], nonces[i]
                g += 1
            else:
                user_ids[u], user_nonces[u] = ids[index[i]], nonces[i]
                u += 1
        group_offsets[d + 1], user_offsets[d + 1] = g, u
    return (group_ids, group_nonces, group_offsets), (user_ids, user_nonces, user_offsets)


@kernel
def begin_run(
    ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, bits: int, inputs: NDArray[np.uint32]
) -> None:
    """Write counters and nonces of the blocks that hold number `first` of each step's run, for `chacha8_lanes`.

    Args:
        ids: uint32[L], L ≤ CHUNK.
        nonces: uint64[L] or more.
        first: the first number of a block.
        bits: log2 of the numbers that a block holds.
        inputs: uint32[4 · CHUNK], written.
    """
    low, high, block = uint32(32 - bits), uint32(bits), uint32(first >> bits)
    for i in range(len(ids)):
        inputs[i], inputs[CHUNK + i] = uint32(ids[i] << low) | block, uint32(ids[i] >> high)
        inputs[2 * CHUNK + i], inputs[3 * CHUNK + i] = (uint32(nonces[i]), uint32(nonces[i] >> uint64(32)))


@kernel
def next_block(inputs: NDArray[np.uint32]) -> None:
    """Go on to the next block in each lane. A run ends before the lower word of its counter overflows."""
    for i in range(CHUNK):
        inputs[i] += uint32(1)
