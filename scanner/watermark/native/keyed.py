"""Our marks of both versions under one key: sub-keys of its label, group steps, the score of one message a document.

Without groups message m reads number m everywhere. With B groups of B users, message g·B + v reads number g in group
steps, which its group shares, and g·2^16 + v in user steps, which nobody shares (SPEC_2 §2).
"""

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.format import Basis, Candidates, UserEvidence
from scanner.watermark.laws import Binomial, Gamma, Law
from scanner.watermark.native import secret, streams
from scanner.watermark.native.one_message import NO_TERMS, count_green, score_under
from scanner.watermark.native.streams import chosen, is_group_step
from scanner.watermark.positions import Positions, Tokens, WholeWindows
from schemas.registry import MOST_NUMBERS


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


class NativeMark(ABC):
    """A native watermark under one master key: sub-keys of one label, shown in no repr and never pickled.

    Args:
        secret_bytes: the master key, 16 to 64 bytes.
        window: h, 0 to 16; with groups 1 to 16.
        gamma: of a green list.
        groups: B, of version 2; None: no groups.

    Raises:
        ValueError: a secret, window or number of groups out of range.
    """

    basis = Basis(128)
    method: ClassVar[str]
    version: ClassVar[int]
    law: Law
    _begins = np.zeros(1, np.int64)
    """Beginnings of the tokens of the documents of each key, int64[K]."""

    def __init__(
        self, secret_bytes: bytes, window: int, gamma: Fraction | None = None, groups: int | None = None
    ) -> None:
        secret.check_window(window)
        if groups is not None and not (self.version == 2 and window and 2 <= groups <= MOST_NUMBERS):
            raise ValueError(f"{groups} groups, window {window}: 2 to {MOST_NUMBERS} groups, window 1 or more")
        self.window, self.groups = window, groups
        self.rule = WholeWindows(window)
        self.label = secret.label(self.method, window, gamma, groups)
        self.commitment = secret.commitment(secret_bytes, self.label, self.version)
        self._keys = secret.derive(secret_bytes, self.label, self.version)
        self._rows = secret.SubKeys(self._keys.chacha[None], self._keys.sip[None])  # of one key; of more where joined

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
        where = tokens.ids, positions.index, positions.offsets
        return streams.nonces_of_documents(self._rows.sip, self._whose(positions), *where, self.window)

    def _whose(self, positions: Positions) -> NDArray[np.int64]:
        """Which of the keys each document is read with, int64[D]; any, where it has no positions."""
        if not len(positions.index) or len(self._begins) == 1:
            return np.zeros(len(positions.offsets) - 1, np.int64)
        first = np.minimum(positions.offsets[:-1], len(positions.index) - 1)
        return np.searchsorted(self._begins, positions.index[first], side="right") - 1

    @abstractmethod
    def _score(
        self,
        tokens: Tokens,
        positions: Positions,
        numbers: NDArray[np.int64],
        terms: NDArray[np.float64] = NO_TERMS,
    ) -> NDArray[np.generic]:
        """Score of one number a document, or of one for all, at the given positions: int64[D] or float64[D].

        terms: float64[P], written where it has a length: what each position adds.
        """

    @abstractmethod
    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """See Searches."""

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.generic]:
        """Score of one message a document, or of one for all, S_G + S_U: int64[D] or float64[D] (SPEC §3).

        Raises:
            ValueError: a message that the key does not have.
        """
        if self.groups is None:
            return self._score(tokens, positions, self._each(messages, positions))
        of_group, of_user = self.parts(tokens, positions, messages)
        return of_group + of_user  # type: ignore[operator]

    def parts(
        self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """S_G and S_U of one message a document; S_G is 0 without groups."""
        wanted = self._each(messages, positions)
        if self.groups is None:
            of_user = self._score(tokens, positions, wanted)
            return np.zeros_like(of_user), of_user
        group, user = np.divmod(wanted, self.groups)
        of_group = self.group_steps(tokens, positions)
        shared = self._score(tokens, chosen(positions, of_group), group)
        return shared, self._score(tokens, chosen(positions, ~of_group), group * MOST_NUMBERS + user)

    def terms(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """See ScoresParts."""
        wanted, added = self._each(messages, positions), np.empty(len(positions.index))
        if self.groups is None:
            self._score(tokens, positions, wanted, added)
            return added
        group, user = np.divmod(wanted, self.groups)
        of_group = self.group_steps(tokens, positions)
        for mask, numbers in ((of_group, group), (~of_group, group * MOST_NUMBERS + user)):
            of_these = np.empty(int(mask.sum()))
            self._score(tokens, chosen(positions, mask), numbers, of_these)
            added[mask] = of_these
        return added

    def single_message(self, score: NDArray[np.generic]) -> Candidates:
        """See ScoresParts."""
        return BestMessages.of_one(score).candidates()._replace(independent=self.version == 2)

    def user_evidence(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64]) -> UserEvidence | None:
        """See ScoresParts: the score of the user steps, among the users of a group; None without groups."""
        if self.groups is None:
            return None
        _, of_user = self.parts(tokens, positions, messages)
        scored = chosen(positions, ~self.group_steps(tokens, positions)).scored
        return UserEvidence(of_user[:, None], scored, self.groups)

    def group_steps(self, tokens: Tokens, positions: Positions) -> NDArray[np.bool_]:
        """Which scored positions are group steps: bool[P]; none without groups."""
        if self.groups is None:
            return np.zeros(len(positions.index), np.bool_)
        return is_group_step(self._nonces(tokens, positions))

    def _each(self, messages: NDArray[np.int64] | int, positions: Positions) -> NDArray[np.int64]:
        """The message of each document: int64[D], or int64[1] where all share one.

        Raises:
            ValueError: a message that the key does not have.
        """
        wanted = np.empty(len(positions.offsets) - 1 if np.ndim(messages) else 1, np.int64)
        wanted[:] = messages
        self._check_messages(wanted)
        return wanted

    def _check_messages(self, wanted: NDArray[np.int64]) -> None:
        if (wanted < 0).any():
            raise ValueError(f"message {wanted.min()} is out of range; messages count from 0")
        limit = 2**32 if self.groups is None else self.groups**2
        if self.version == 2 and (wanted >= limit).any():
            raise ValueError(f"message {wanted.max()} is out of range; this key has messages below {limit}")

    @staticmethod
    def _check_count(count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} messages cannot be searched; at least 1 is needed")


class Version1Mark(NativeMark):
    """A native watermark of version 1: all messages read one shifted vector; arguments and errors as of NativeMark."""

    version = 1

    def best_two(self, tokens: Tokens, positions: Positions, count: int) -> BestMessages:
        """Best and second best of the messages 0 … count−1."""
        self._check_count(count)
        if count == 1:
            return BestMessages.of_one(self.score(tokens, positions, 0))
        return self._best_two(streams.steps_of(tokens, positions, self._nonces(tokens, positions)), count)

    @abstractmethod
    def _best_two(self, steps: streams.ScoredSteps, count: int) -> BestMessages:
        """As `best_two`, for two messages or more."""

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """The best two messages, as every format has them."""
        return self.best_two(tokens, positions, count).candidates()


class GreenListMark(NativeMark):
    """The green list of Kirchenbauer et al. under one master key, of either version.

    Args:
        secret_bytes: the master key, 16 to 64 bytes.
        window: h.
        gamma: share of green tokens, n / 2^b in lowest terms, b ≤ 8.
        groups: B, of version 2; None: no groups.

    Raises:
        ValueError: a secret, window, γ or number of groups out of range.
    """

    def __init__(self, secret_bytes: bytes, window: int, gamma: Fraction, groups: int | None = None) -> None:
        secret.check_gamma(gamma)
        super().__init__(secret_bytes, window, gamma, groups)
        self.gamma, self.law = gamma, Binomial(gamma)
        self._rule = secret.rule_of(gamma)

    def _score(
        self,
        tokens: Tokens,
        positions: Positions,
        numbers: NDArray[np.int64],
        terms: NDArray[np.float64] = NO_TERMS,
    ) -> NDArray[np.int64]:
        """Number of green positions of each document: int64[D]."""
        keys, where = (self._rows.chacha, self._rows.sip, self._whose(positions)), (positions.index, positions.offsets)
        return count_green(*keys, tokens.ids, *where, numbers, self.window, self._rule, self.version, terms)


class GumbelMark(NativeMark):
    """The Gumbel mark of Aaronson et al. under one master key, of either version.

    Args:
        secret_bytes: the master key, 16 to 64 bytes.
        window: h.
        groups: B, of version 2; None: no groups.

    Raises:
        ValueError: a secret, window or number of groups out of range.
    """

    law: Law = Gamma()
    _unweighted: ClassVar[bool] = False

    def __init__(self, secret_bytes: bytes, window: int, groups: int | None = None) -> None:
        super().__init__(secret_bytes, window, None, groups)

    def _score(
        self,
        tokens: Tokens,
        positions: Positions,
        numbers: NDArray[np.int64],
        terms: NDArray[np.float64] = NO_TERMS,
    ) -> NDArray[np.float64]:
        """Σ −ln(1−r) of each document, or Σ ln r: float64[D]."""
        keys, where = (self._rows.chacha, self._rows.sip, self._whose(positions)), (positions.index, positions.offsets)
        return score_under(*keys, tokens.ids, *where, numbers, self.window, self._unweighted, self.version, terms)
