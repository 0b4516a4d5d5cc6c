"""Define version 1 of our marks under one key: sub-keys of its label, and scores of one message (SPEC §1 to §3).

All messages read one shifted vector: message m reads entry x + m for token x.
"""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.format import Candidates
from scanner.watermark.native import secret, streams
from scanner.watermark.native.keyed import NO_TERMS, BestMessages, NativeMark, add_in_two
from scanner.watermark.positions import Positions, Tokens


class Version1Mark(NativeMark):
    """A native watermark of version 1. Arguments and errors are those of NativeMark, without groups."""

    version = 1

    def _derive_keys(self, secret_bytes: bytes) -> None:
        self._keys = secret.derive(secret_bytes, self.label)

    @property
    def sub_keys(self) -> secret.SubKeys:
        """Return the keys that draw the label's streams, for kernels elsewhere (scanner.gpu).

        They are as secret as the master key.
        """
        return self._keys

    def window_nonces(self, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """Return the nonces of steps to be marked: uint64[R] for windows of uint32[R, h] (SPEC §1)."""
        return streams.nonces_of_windows(self._keys, windows)

    def group_steps(self, tokens: Tokens, positions: Positions) -> NDArray[np.bool_]:
        """Return which scored positions are group steps: none, bool[P]."""
        del tokens
        return np.zeros(len(positions.index), np.bool_)

    def _nonces(self, tokens: Tokens, positions: Positions) -> NDArray[np.uint64]:
        return streams.window_nonces(self._keys, tokens.ids, positions.index, self.window)

    def _entries(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the entry that each position reads under its document's message: int64[P]."""
        return tokens.ids[positions.index] + self._message_of_positions(messages, positions)

    def _score(
        self, tokens: Tokens, positions: Positions, numbers: NDArray[np.int64], terms: NDArray[np.float64] = NO_TERMS
    ) -> NDArray[np.generic]:
        added = self._added(self._nonces(tokens, positions), self._entries(tokens, positions, numbers[0]))
        if len(terms):
            terms[:] = added
        sums: NDArray[np.generic] = np.zeros((2, len(positions.scored)), added.dtype)
        add_in_two(added, self.group_steps(tokens, positions), positions.offsets, sums)
        return sums

    @abstractmethod
    def _added(self, nonces: NDArray[np.uint64], entries: NDArray[np.int64]) -> NDArray[np.generic]:
        """Return the terms of entries of the nonces' vectors for a score: int64[P] or float64[P]."""

    def best_two(self, tokens: Tokens, positions: Positions, count: int) -> BestMessages:
        """Return best and second best of the messages 0 … count−1."""
        self._check_count(count)
        if count == 1:
            return BestMessages.of_one(self.score(tokens, positions, 0))
        return self._best_two(streams.steps_of(tokens, positions, self._nonces(tokens, positions)), count)

    @abstractmethod
    def _best_two(self, steps: streams.ScoredSteps, count: int) -> BestMessages:
        """Return the result of `best_two`, for two messages or more."""

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """Return the best two messages, as every format has them."""
        return self.best_two(tokens, positions, count).candidates()
