"""What the native formats share: sub-keys of one label, the window before each position, and the messages asked for."""

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.format import Basis, Candidates
from scanner.watermark.laws import Law
from scanner.watermark.native import secret, streams
from scanner.watermark.positions import Positions, Tokens, WholeWindows


class BestMessages(NamedTuple):
    """Best and second best message of each document: largest score, ties to the smallest message.

    message, second_message: int64[D] (second_message is -1 when there is one message only);
    score, second_score: int64[D] or float64[D] (second_score is 0 when there is no second message).
    """

    message: NDArray[np.int64]
    score: NDArray[np.generic]
    second_message: NDArray[np.int64]
    second_score: NDArray[np.generic]

    @classmethod
    def of_one(cls, score: NDArray[np.generic]) -> "BestMessages":
        """The best message of a key that has one message: there is no second."""
        message = np.zeros(len(score), np.int64)
        return cls(message, score, message - 1, np.zeros_like(score))

    def candidates(self) -> Candidates:
        """Best and second best as every format has them: [D, 2].

        The cyclic shift makes neighbouring messages share draws (SPEC §2).
        """
        return Candidates(
            np.stack([self.message, self.second_message], axis=1), np.stack([self.score, self.second_score], axis=1)
        )


class NativeMark:
    """A native watermark of whatever version: sub-keys of one label, shown in no repr and never pickled.

    Raises:
        ValueError: a secret or window out of range.
    """

    basis = Basis(128)
    law: Law

    def __init__(self, secret_bytes: bytes, label: str, window: int, version: int) -> None:
        secret.check_window(window)
        self.window = window
        self.rule = WholeWindows(window)
        self.label = label
        self.commitment = secret.commitment(secret_bytes, label, version)
        self._keys = secret.derive(secret_bytes, label, version)

    @property
    def sub_keys(self) -> secret.SubKeys:
        """What the label's streams are drawn with, as secret as the master key; for kernels elsewhere (scanner.gpu)."""
        return self._keys

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label}, commitment {self.commitment.hex()[:16]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} holds sub-keys and is never pickled; open the key again where it is needed"
        )

    def window_nonces(self, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """Nonces of steps to be marked: uint64[R] for windows of uint32[R, h] (SPEC §1)."""
        return streams.nonces_of_windows(self._keys, windows)

    def _nonces(self, tokens: Tokens, positions: Positions) -> NDArray[np.uint64]:
        return streams.window_nonces(self._keys, tokens.ids, positions.index, self.window)

    @staticmethod
    def _each(messages: NDArray[np.int64] | int, positions: Positions) -> NDArray[np.int64]:
        """The message of each document: int64[D], or int64[1] where all share one.

        Raises:
            ValueError: a message below 0.
        """
        wanted = np.empty(len(positions.offsets) - 1 if np.ndim(messages) else 1, np.int64)
        wanted[:] = messages
        if (wanted < 0).any():
            raise ValueError(f"message {wanted.min()} is out of range; messages count from 0")
        return wanted

    @staticmethod
    def _check_count(count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} messages cannot be searched; at least 1 is needed")


class Version1Mark(NativeMark, ABC):
    """A native watermark of version 1.

    Raises:
        ValueError: a secret or window out of range.
    """

    def __init__(self, secret_bytes: bytes, method: str, window: int, gamma: Fraction | None = None) -> None:
        super().__init__(secret_bytes, secret.label(method, window, gamma), window, 1)

    @abstractmethod
    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.generic]:
        """Score of one message a document: int64[D] or float64[D]."""

    @abstractmethod
    def _score(
        self, tokens: Tokens, positions: Positions, wanted: NDArray[np.int64], terms: NDArray[np.float64]
    ) -> NDArray[np.generic]:
        """As `score`, of the messages that `_each` gives; terms: float64[P], written unless it is empty."""

    def terms(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """See ScoresParts."""
        added = np.empty(len(positions.index))
        self._score(tokens, positions, self._each(messages, positions), added)
        return added

    def single_message(self, score: NDArray[np.generic]) -> Candidates:
        """See ScoresParts."""
        return BestMessages.of_one(score).candidates()

    def user_evidence(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64]) -> None:
        """See ScoresParts: names need nothing besides."""

    @abstractmethod
    def best_two(self, tokens: Tokens, positions: Positions, count: int) -> BestMessages:
        """Best and second best of the messages 0 … count−1."""

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """The best two messages, as every format has them."""
        return self.best_two(tokens, positions, count).candidates()
