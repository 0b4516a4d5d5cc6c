"""Version 1 of our marks under one key: sub-keys of its label, and the score of one message a document (SPEC §1 to §3).

All messages read one shifted vector: message m reads entry x + m for token x. The score of one message is computed in
one pass over the scored positions, CHUNK at a time: nonces, entries, blocks, scores. Everything but the text stays in
the first-level cache.
"""

from abc import abstractmethod

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.format import Candidates
from scanner.watermark.kernel import kernel
from scanner.watermark.native import secret, streams
from scanner.watermark.native.ciphers import CHUNK
from scanner.watermark.native.keyed import (
    BestMessages,
    NativeMark,
    below,
    log_term,
    term,
)
from scanner.watermark.native.streams import blocks_of_words, end_of_key, row_of_word, steps_of_positions
from scanner.watermark.positions import Positions, Tokens


@kernel
def count_green(
    chacha: NDArray[np.uint32],
    sip: NDArray[np.uint64],
    whose: NDArray[np.int64],
    ids: NDArray[np.uint32],
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    messages: NDArray[np.int64],
    window: int,
    rule: tuple[int, int, int],
    terms: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Count the green tokens of each document under its message, one block a position: int64[D].

    Args:
        chacha: uint32[K, 8], of K keys.
        sip: uint64[K, 2], of the same.
        whose: int64[D], which of them each document is read with.
        ids: uint32[N], flat tokens.
        index: int64[P], scored positions.
        offsets: int64[D+1], of the documents in index.
        messages: int64[D].
        window: h.
        rule: n, b and planes of γ = n / 2^b.
        terms: float64[P], written: 1 where a position is green, else 0; NO_TERMS: none is written.
    """
    n, bits, planes = rule
    height = 16 // planes
    counts = np.zeros(len(offsets) - 1, np.int64)
    hashed, scratch, nonces = (np.zeros(2, np.int64), np.empty(6 * CHUNK, np.uint64), np.empty(CHUNK, np.uint64))
    tokens, entries, words = (np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64))
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    greens, green = np.empty(16 * CHUNK, np.uint32), np.empty(CHUNK, np.uint8)
    p, d, key_end = 0, 0, 0
    while p < len(index):
        while offsets[d + 1] <= p:
            d += 1
        if d >= key_end:  # documents before it have the key of this one
            key_end = end_of_key(whose, d)
            hashed[:] = 0
        end = min(p + CHUNK, offsets[key_end])
        lanes = end - p
        steps_of_positions(sip[whose[d]], ids, index[p:end], window, hashed, scratch, nonces, tokens)
        entries_of_positions(offsets, messages, tokens, p, end, d, entries)
        for i in range(lanes):
            words[i] = entries[i] >> 5
        blocks_of_words(chacha[whose[d]], nonces, words[:lanes], height, inputs, block)
        below(n, bits, height * CHUNK, block, greens[: height * CHUNK])
        for i in range(lanes):
            word = greens[row_of_word(words[i], height) * uint64(CHUNK) + uint64(i)]
            green[i] = uint32(word >> uint32(entries[i] & 31)) & uint32(1)
        if len(terms):
            for i in range(lanes):
                terms[p + i] = green[i]
        while p < end:
            stop = min(offsets[d + 1], end)
            count = np.int64(0)
            for i in range(uint64(lanes - (end - p)), uint64(lanes - (end - stop))):
                count += green[i]
            counts[d] += count
            p = max(p, stop)
            d += p < end
    return counts


@kernel
def entries_of_positions(
    offsets: NDArray[np.int64],
    messages: NDArray[np.int64],
    tokens: NDArray[np.int64],
    p: int,
    end: int,
    document: int,
    out: NDArray[np.int64],
) -> None:
    """Write the entry x + m that positions p … end−1 read, each under its document's message.

    Args:
        offsets: int64[D+1].
        messages: int64[D].
        tokens: int64[L], of these positions.
        p: a position of `document`.
        end: one past the last position.
        document: where to begin.
        out: int64[L], written.
    """
    start, d = p, document
    while start < end:
        stop = max(min(offsets[d + 1], end), start)
        for i in range(uint64(start - p), uint64(stop - p)):
            out[i] = tokens[i] + messages[d]
        start = stop
        d += 1


@kernel
def draws_of_chunk(
    key: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    entries: NDArray[np.int64],
    inputs: NDArray[np.uint32],
    block: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> None:
    """Write the draw of entry j of each nonce's vector, one block each."""
    blocks_of_words(key, nonces, entries, 16, inputs, block)
    for i in range(len(entries)):
        out[i] = block[row_of_word(entries[i], 16) * uint64(CHUNK) + uint64(i)]


@kernel
def score_draws(
    chacha: NDArray[np.uint32],
    sip: NDArray[np.uint64],
    whose: NDArray[np.int64],
    ids: NDArray[np.uint32],
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    messages: NDArray[np.int64],
    window: int,
    unweighted: bool,
    terms: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Compute Σ −ln(1−r), or Σ ln r, of each document under its message, in the order of positions: float64[D].

    The other arguments are as of `count_green`.

    unweighted: whether it is Σ ln r.
    terms: float64[P], written: what each position adds; NO_TERMS: none is written.
    """
    sums = np.zeros(len(offsets) - 1)
    hashed, scratch, nonces = (np.zeros(2, np.int64), np.empty(6 * CHUNK, np.uint64), np.empty(CHUNK, np.uint64))
    tokens, entries = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    draws, added = np.empty(CHUNK, np.uint32), np.empty(CHUNK)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    p, d, key_end = 0, 0, 0
    while p < len(index):
        while offsets[d + 1] <= p:
            d += 1
        if d >= key_end:  # documents before it have the key of this one
            key_end = end_of_key(whose, d)
            hashed[:] = 0
        end = min(p + CHUNK, offsets[key_end])
        lanes = end - p
        steps_of_positions(sip[whose[d]], ids, index[p:end], window, hashed, scratch, nonces, tokens)
        entries_of_positions(offsets, messages, tokens, p, end, d, entries)
        draws_of_chunk(chacha[whose[d]], nonces, entries[:lanes], inputs, block, draws)
        for i in range(lanes):
            added[i] = log_term(draws[i]) if unweighted else term(draws[i])
        if len(terms):
            terms[p:end] = added[:lanes]
        while p < end:
            stop = min(offsets[d + 1], end)
            total = sums[d]
            for i in range(uint64(lanes - (end - p)), uint64(lanes - (end - stop))):
                total += added[i]
            sums[d] = total
            p = max(p, stop)
            d += p < end
    return sums


_Layout = tuple[
    NDArray[np.uint32],
    NDArray[np.uint64],
    NDArray[np.int64],
    NDArray[np.uint32],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    int,
]


class Version1Mark(NativeMark):
    """A native watermark of version 1; arguments and errors as of NativeMark, without groups."""

    version = 1

    def _derive_keys(self, secret_bytes: bytes) -> None:
        self._keys = secret.derive(secret_bytes, self.label)
        self._rows = secret.SubKeys(self._keys.chacha[None], self._keys.sip[None])  # of one key; of more where joined

    @property
    def sub_keys(self) -> secret.SubKeys:
        """What the label's streams are drawn with, as secret as the master key; for kernels elsewhere (scanner.gpu)."""
        return self._keys

    def window_nonces(self, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """Return the nonces of steps to be marked: uint64[R] for windows of uint32[R, h] (SPEC §1)."""
        return streams.nonces_of_windows(self._keys, windows)

    def group_steps(self, tokens: Tokens, positions: Positions) -> NDArray[np.bool_]:
        """Say which scored positions are group steps: none, bool[P]."""
        del tokens
        return np.zeros(len(positions.index), np.bool_)

    def _nonces(self, tokens: Tokens, positions: Positions) -> NDArray[np.uint64]:
        layout = tokens.ids, positions.index, positions.offsets
        return streams.nonces_of_documents(self._rows.sip, self._whose(positions), *layout, self.window)

    def _layout(self, tokens: Tokens, positions: Positions, numbers: NDArray[np.int64]) -> _Layout:
        """Return what scores are computed from, as the kernels take it: keys, whose they are, positions, messages."""
        messages = np.ascontiguousarray(np.broadcast_to(numbers[0], len(positions.offsets) - 1))
        text = tokens.ids, positions.index, positions.offsets, messages, self.window
        return self._rows.chacha, self._rows.sip, self._whose(positions), *text

    def best_two(self, tokens: Tokens, positions: Positions, count: int) -> BestMessages:
        """Return best and second best of the messages 0 … count−1."""
        self._check_count(count)
        if count == 1:
            return BestMessages.of_one(self.score(tokens, positions, 0))
        return self._best_two(streams.steps_of(tokens, positions, self._nonces(tokens, positions)), count)

    @abstractmethod
    def _best_two(self, steps: streams.ScoredSteps, count: int) -> BestMessages:
        """Return what `best_two` does, for two messages or more."""

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """Return the best two messages, as every format has them."""
        return self.best_two(tokens, positions, count).candidates()
