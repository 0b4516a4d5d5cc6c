"""Define the part that marks of both versions share: a key, its label, group steps, the score of a document's message.

Without groups, message m reads number m everywhere. With B groups of B users, message g·B + v reads number g in group
steps, which its whole group shares, and number g·2^16 + v in user steps, which no other message shares (SPEC_3 §3).
For example, with B = 100, message 205 is user 5 of group 2. It reads number 2 in group steps and 131,077 in user steps.
"""

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy import uint32
from numpy.typing import NDArray

from scanner.watermark.format import Basis, Candidates, UserEvidence
from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Binomial, Gamma, Law
from scanner.watermark.native import secret
from scanner.watermark.positions import Positions, Tokens, WholeWindows, positions_where
from schemas.registry import MAX_GAMMA_BITS, MAX_WINDOW, MOST_NUMBERS

NO_TERMS = np.empty(0)
"""An empty array in place of the terms of positions, for callers that do not need them."""


@kernel
def below(n: int, bits: int, apart: int, block: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    """Write one bit for each entry: whether the integer whose binary digits are in planes, `apart` words apart, is < n.

    It fills as many words as `out` has. It goes from the last digit up: less = not p, or less where p equals n's digit.
    n is odd, so its last digit is 1.
    """
    for q in range(bits - 1, -1, -1):
        plane = block[q * apart : q * apart + len(out)]
        if q == bits - 1:
            for i in range(len(out)):
                out[i] = ~plane[i]
        elif (n >> (bits - 1 - q)) & 1:
            for i in range(len(out)):
                out[i] = ~plane[i] | out[i]
        else:
            for i in range(len(out)):
                out[i] = ~plane[i] & out[i]


@kernel
def term(draw: uint32) -> float:
    """Return −ln(1−r) for r = w/2^32.

    2^32 − w is exact in double precision, so the logarithm is good to its last bit.
    """
    return -math.log((4294967296.0 - float(draw)) * 2.0**-32)


@kernel
def log_term(draw: uint32) -> float:
    """Return ln r for r = w/2^32."""
    return math.log(float(draw) * 2.0**-32) if draw else -math.inf


@kernel
def terms_of(draws: NDArray[np.uint32], unweighted: bool) -> NDArray[np.float64]:
    """Return −ln(1−r) of each draw, or ln r: float64[P].

    unweighted: whether to return ln r.
    """
    out = np.empty(len(draws))
    for p in range(len(draws)):
        out[p] = log_term(draws[p]) if unweighted else term(draws[p])
    return out


@kernel
def add_in_two(
    terms: NDArray[np.generic],
    is_shared: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    sums: NDArray[np.generic],
) -> None:
    """Add up the terms of group steps and of user steps in each document, in order of position.

    Args:
        terms: [P], int64 or float64.
        is_shared: bool[P], whether a step is a group step.
        offsets: int64[D+1].
        sums: [2, D] of the same type, zeros, written.
    """
    for d in range(len(offsets) - 1):
        group_sum, user_sum = sums[0, d], sums[1, d]
        for p in range(offsets[d], offsets[d + 1]):
            if is_shared[p]:
                group_sum += terms[p]
            else:
                user_sum += terms[p]
        sums[0, d], sums[1, d] = group_sum, user_sum


class BestMessages(NamedTuple):
    """Best and second-best message of each document: largest score, ties to the smallest message.

    message: int64[D].
    score: int64[D] or float64[D].
    second_message: int64[D]. −1 if there is only one message.
    second_score: int64[D] or float64[D]. 0 if there is no second message.
    """

    message: NDArray[np.int64]
    score: NDArray[np.generic]
    second_message: NDArray[np.int64]
    second_score: NDArray[np.generic]

    @classmethod
    def of_one(cls, score: NDArray[np.generic]) -> "BestMessages":
        """Return the best message of a key that has only one message."""
        message = np.zeros(len(score), np.int64)
        return cls(message, score, message - 1, np.zeros_like(score))

    def candidates(self) -> Candidates:
        """Return best and second best as every format has them: [D, 2].

        The cyclic shift makes neighbouring messages share draws (SPEC §2).
        """
        return Candidates(
            np.stack([self.message, self.second_message], axis=1), np.stack([self.score, self.second_score], axis=1)
        )


class NativeMark(ABC):
    """A native watermark under one master key: the sub-keys of one label.

    No repr shows them, and they are never pickled.

    Args:
        secret_bytes: 16 to 64 bytes.
        window: h, 0 to 16, with groups 1 to 16.
        gamma: γ of a green list.
        groups: B, of version 3.

    Raises:
        ValueError: a secret, window or number of groups is out of range.
    """

    basis = Basis(128)
    method: ClassVar[str]
    version: ClassVar[int]
    seeds: int | None = None
    """n of version 3: its keys draw 2^n seeds."""
    law: Law

    def __init__(
        self, secret_bytes: bytes, window: int, gamma: Fraction | None = None, groups: int | None = None
    ) -> None:
        if not 0 <= window <= MAX_WINDOW:
            raise ValueError(f"window {window} is out of range; allowed: 0 to {MAX_WINDOW}")
        if groups is not None and not (self.version == 3 and window and 2 <= groups <= MOST_NUMBERS):
            raise ValueError(f"{groups} groups, window {window}: 2 to {MOST_NUMBERS} groups, window 1 or more")
        self.window, self.groups = window, groups
        self.rule = WholeWindows(window)
        self.label = secret.label(self.method, window, gamma, groups, self.seeds)
        self.commitment = secret.commitment(secret_bytes, self.label, self.version)
        self._derive_keys(secret_bytes)

    @abstractmethod
    def _derive_keys(self, secret_bytes: bytes) -> None:
        """Keep the keys that draw the label's streams."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label}, commitment {self.commitment.hex()[:16]}…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} holds sub-keys and is never pickled; open the key again where it is needed"
        )

    @abstractmethod
    def window_nonces(self, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """Return the nonces of steps to be marked, for windows of uint32[R, h]: uint64[R], or N and N', [R, 2]."""

    @abstractmethod
    def _score(
        self, tokens: Tokens, positions: Positions, numbers: NDArray[np.int64], terms: NDArray[np.float64] = NO_TERMS
    ) -> NDArray[np.generic]:
        """Return S_G and S_U: int64[2, D] or float64[2, D].

        Args:
            tokens: of D documents.
            positions: their scored positions.
            numbers: int64[2, D], the numbers that a document's message reads in group steps and in user steps. int64[1,
                D]: the same number in both. int64[…, 1]: the same in all documents.
            terms: float64[P], written.
        """

    @abstractmethod
    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """See Searches."""

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.generic]:
        """Return S_G + S_U, the score of one message for each document or of one for all (SPEC §3).

        int64[D] or float64[D].

        Raises:
            ValueError: the key does not have a message.
        """
        group_score, user_score = self.parts(tokens, positions, messages)
        return group_score + user_score  # type: ignore[operator]

    def parts(
        self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return S_G and S_U of one message for each document. S_G is 0 without groups."""
        group_score, user_score = self._score(tokens, positions, self._numbers_read(messages, positions))
        return group_score, user_score

    def terms(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """See ScoresParts."""
        added = np.empty(len(positions.index))
        self._score(tokens, positions, self._numbers_read(messages, positions), added)
        return added

    def single_message(self, score: NDArray[np.generic]) -> Candidates:
        """See ScoresParts."""
        return BestMessages.of_one(score).candidates()._replace(independent=self.version == 3)

    def user_evidence(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64]) -> UserEvidence | None:
        """See ScoresParts: the score of the user steps, among the users of a group. None without groups."""
        if self.groups is None:
            return None
        _, user_score = self.parts(tokens, positions, messages)
        scored = positions_where(positions, ~self.group_steps(tokens, positions)).scored
        return UserEvidence(user_score[:, None], scored, self.groups)

    @abstractmethod
    def group_steps(self, tokens: Tokens, positions: Positions) -> NDArray[np.bool_]:
        """Return which scored positions are group steps: bool[P]. Without groups, none are."""

    def _each(self, messages: NDArray[np.int64] | int, positions: Positions) -> NDArray[np.int64]:
        """Return the message of each document: int64[D], or int64[1] if all share one.

        Raises:
            ValueError: the key does not have a message.
        """
        document_messages = np.empty(len(positions.offsets) - 1 if np.ndim(messages) else 1, np.int64)
        document_messages[:] = messages
        self.check_messages(document_messages)
        return document_messages

    def _message_of_positions(self, messages: NDArray[np.int64] | int, positions: Positions) -> NDArray[np.int64]:
        """Return the message of each scored position, from the messages of `_each`: int64[P]."""
        return np.repeat(np.broadcast_to(self._each(messages, positions), positions.scored.shape), positions.scored)

    def _numbers_read(self, messages: NDArray[np.int64] | int, positions: Positions) -> NDArray[np.int64]:
        """Return the numbers that the messages of `_each` read in group steps and in user steps, as in `_score`."""
        document_messages = self._each(messages, positions)
        if self.groups is None:
            return document_messages[None]
        group, user = np.divmod(document_messages, self.groups)
        return np.stack([group, group * MOST_NUMBERS + user])

    def check_messages(self, messages: NDArray[np.int64]) -> None:
        """Raise ValueError if the key does not have one of the messages, int64[M]."""
        if (messages < 0).any():
            raise ValueError(f"message {messages.min()} is out of range; messages count from 0")
        limit = 2**32 if self.groups is None else self.groups**2
        if self.version == 3 and (messages >= limit).any():
            raise ValueError(f"message {messages.max()} is out of range; this key has messages below {limit}")

    @staticmethod
    def _check_count(count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} messages cannot be searched; at least 1 is needed")


_DENOMINATORS = [1 << bits for bits in range(1, MAX_GAMMA_BITS + 1)]


class GreenListMark(NativeMark):
    """The green list of Kirchenbauer et al. under one master key, of any version.

    Args:
        secret_bytes: the master key, 16 to 64 bytes.
        window: h.
        gamma: share of green tokens, n / 2^b in lowest terms, b ≤ 8.
        groups: B, of version 3. None: no groups.

    Raises:
        ValueError: a secret, window, γ or number of groups is out of range.
    """

    def __init__(self, secret_bytes: bytes, window: int, gamma: Fraction, groups: int | None = None) -> None:
        if not (isinstance(gamma, Fraction) and gamma.denominator in _DENOMINATORS and 0 < gamma < 1):
            raise ValueError(f"gamma {gamma!r} is not a Fraction n/2^b between 0 and 1, with b <= {MAX_GAMMA_BITS}")
        super().__init__(secret_bytes, window, gamma, groups)
        self.gamma, self.law = gamma, Binomial(gamma)
        self._rule = secret.rule_of(gamma)


class GumbelMark(NativeMark):
    """The Gumbel mark of Aaronson et al. under one master key, of any version.

    Args:
        secret_bytes: the master key, 16 to 64 bytes.
        window: h.
        groups: B, of version 3. None: no groups.

    Raises:
        ValueError: a secret, window or number of groups is out of range.
    """

    law: Law = Gamma()
    _unweighted: ClassVar[bool] = False

    def __init__(self, secret_bytes: bytes, window: int, groups: int | None = None) -> None:
        super().__init__(secret_bytes, window, None, groups)
