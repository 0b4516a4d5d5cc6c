"""Our marks of all versions under one key: sub-keys of its label, group steps, the score of one message a document.

Without groups message m reads number m everywhere. With B groups of B users, message g·B + v reads number g in group
steps, which its group shares, and g·2^16 + v in user steps, which nobody shares (SPEC_2 §2).

The score of one message is computed in one pass over the scored positions, CHUNK at a time: nonces,
entries, blocks, scores. Everything but the text stays in the first-level cache.
"""

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.format import Basis, Candidates, UserEvidence
from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Binomial, Gamma, Law
from scanner.watermark.native import secret, streams
from scanner.watermark.native.ciphers import CHUNK
from scanner.watermark.native.streams import (
    blocks_of_messages,
    blocks_of_words,
    end_of_key,
    is_group_step,
    numbers_of_positions,
    row_of_word,
    steps_of_positions,
)
from scanner.watermark.positions import Positions, Tokens, WholeWindows, positions_where
from schemas.registry import MAX_GAMMA_BITS, MAX_WINDOW, MOST_NUMBERS

NO_TERMS = np.empty(0)
"""An empty array in the place of what each position adds, where nobody needs it."""


@kernel
def below(n: int, bits: int, apart: int, block: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    """Write one bit an entry: whether the integer whose binary digits stand in planes, `apart` words apart, is < n.

    It fills as many words as `out` has. From the last digit up: less = not p, or less where p equals n's digit. n is
    odd, so its last digit is 1.
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
def count_green(
    chacha: NDArray[np.uint32],
    sip: NDArray[np.uint64],
    whose: NDArray[np.int64],
    ids: NDArray[np.uint32],
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    numbers: NDArray[np.int64],
    window: int,
    rule: tuple[int, int, int],
    version: int,
    terms: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Count green group steps and green user steps of each document under its message, one block a position.

    Args:
        chacha: uint32[K, 8], of K keys.
        sip: uint64[K, 2], of the same.
        whose: int64[D], which of them each document is read with.
        ids: uint32[N], flat tokens.
        index: int64[P], scored positions.
        offsets: int64[D+1], of the documents in index.
        numbers: as of `numbers_of_positions`; where it has one row, all are user steps.
        window: h.
        rule: n, b and planes of γ = n / 2^b.
        version: 1 or 2.
        terms: float64[P], written: 1 where a position is green, else 0; NO_TERMS: none is written.

    Returns:
        int64[2, D].
    """
    n, bits, planes = rule
    height = 16 // planes
    counts = np.zeros((2, len(offsets) - 1), np.int64)
    hashed, scratch, nonces = (np.zeros(2, np.int64), np.empty(6 * CHUNK, np.uint64), np.empty(CHUNK, np.uint64))
    tokens, entries, places = (np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64))
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    greens, green = np.empty(16 * CHUNK, np.uint32), np.empty(CHUNK, np.uint8)
    is_user_step = np.empty(CHUNK, np.uint8)
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
        numbers_of_positions(offsets, numbers, nonces, p, end, d, entries, is_user_step)
        blocks_of_messages(chacha[whose[d]], version, nonces, tokens[:lanes], entries, 5, height, inputs, block, places)
        below(n, bits, height * CHUNK, block, greens[: height * CHUNK])
        for i in range(lanes):
            green[i] = uint32(greens[uint64(places[i])] >> uint32(entries[i] & 31)) & uint32(1)
        if len(terms):
            for i in range(lanes):
                terms[p + i] = green[i]
        while p < end:
            stop = min(offsets[d + 1], end)
            group_count, user_count = np.int64(0), np.int64(0)
            for i in range(uint64(lanes - (end - p)), uint64(lanes - (end - stop))):
                group_count += green[i] > is_user_step[i]
                user_count += green[i] & is_user_step[i]
            counts[0, d] += group_count
            counts[1, d] += user_count
            p = max(p, stop)
            d += p < end
    return counts


@kernel
def term(draw: uint32) -> float:
    """Return −ln(1−r), r = w/2^32. 2^32 − w is exact in double precision, so the logarithm is good to its last bit."""
    return -math.log((4294967296.0 - float(draw)) * 2.0**-32)


@kernel
def log_term(draw: uint32) -> float:
    """Return ln r, r = w/2^32."""
    return math.log(float(draw) * 2.0**-32) if draw else -math.inf


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
def score_under(
    chacha: NDArray[np.uint32],
    sip: NDArray[np.uint64],
    whose: NDArray[np.int64],
    ids: NDArray[np.uint32],
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    numbers: NDArray[np.int64],
    window: int,
    unweighted: bool,
    version: int,
    terms: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Compute Σ −ln(1−r), or Σ ln r, of the group steps and of the user steps of each document under its message.

    The result is float64[2, D], summed in the order of positions. The other arguments are as of `count_green`.

    unweighted: whether it is Σ ln r.
    terms: float64[P], written: what each position adds; NO_TERMS: none is written.
    """
    sums = np.zeros((2, len(offsets) - 1))
    hashed, scratch, nonces = (np.zeros(2, np.int64), np.empty(6 * CHUNK, np.uint64), np.empty(CHUNK, np.uint64))
    tokens, entries, places = (np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64))
    added, is_user_step = np.empty(CHUNK), np.empty(CHUNK, np.uint8)
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
        numbers_of_positions(offsets, numbers, nonces, p, end, d, entries, is_user_step)
        blocks_of_messages(chacha[whose[d]], version, nonces, tokens[:lanes], entries, 0, 16, inputs, block, places)
        for i in range(lanes):
            draw = block[uint64(places[i])]
            added[i] = log_term(draw) if unweighted else term(draw)
        if len(terms):
            terms[p:end] = added[:lanes]
        while p < end:
            stop = min(offsets[d + 1], end)
            group_sum, user_sum = sums[0, d], sums[1, d]
            for i in range(uint64(lanes - (end - p)), uint64(lanes - (end - stop))):
                if is_user_step[i]:
                    user_sum += added[i]
                else:
                    group_sum += added[i]
            sums[0, d], sums[1, d] = group_sum, user_sum
            p = max(p, stop)
            d += p < end
    return sums


class BestMessages(NamedTuple):
    """Best and second best message of each document: largest score, ties to the smallest message.

    message: int64[D].
    score: int64[D] or float64[D].
    second_message: int64[D], -1 when there is one message only.
    second_score: int64[D] or float64[D], 0 when there is no second message.
    """

    message: NDArray[np.int64]
    score: NDArray[np.generic]
    second_message: NDArray[np.int64]
    second_score: NDArray[np.generic]

    @classmethod
    def of_one(cls, score: NDArray[np.generic]) -> "BestMessages":
        """Return the best message of a key that has one message: there is no second."""
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
    """A native watermark under one master key: sub-keys of one label, shown in no repr and never pickled.

    Args:
        secret_bytes: 16 to 64 bytes.
        window: h, 0 to 16, with groups 1 to 16.
        gamma: of a green list.
        groups: B, of version 2 or later.

    Raises:
        ValueError: a secret, window or number of groups out of range.
    """

    basis = Basis(128)
    method: ClassVar[str]
    version: ClassVar[int]
    seeds: int | None = None
    """n of version 3, whose keys draw 2^n seeds."""
    law: Law
    _begins = np.zeros(1, np.int64)
    """Beginnings of the tokens of the documents of each key, int64[K]."""

    def __init__(
        self, secret_bytes: bytes, window: int, gamma: Fraction | None = None, groups: int | None = None
    ) -> None:
        if not 0 <= window <= MAX_WINDOW:
            raise ValueError(f"window {window} is out of range; allowed: 0 to {MAX_WINDOW}")
        if groups is not None and not (self.version >= 2 and window and 2 <= groups <= MOST_NUMBERS):
            raise ValueError(f"{groups} groups, window {window}: 2 to {MOST_NUMBERS} groups, window 1 or more")
        self.window, self.groups = window, groups
        self.rule = WholeWindows(window)
        self.label = secret.label(self.method, window, gamma, groups, self.seeds)
        self.commitment = secret.commitment(secret_bytes, self.label, self.version)
        self._derive_keys(secret_bytes)

    def _derive_keys(self, secret_bytes: bytes) -> None:
        """Keep what the label's streams are drawn with."""
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
        """Return the nonces of steps to be marked: uint64[R] for windows of uint32[R, h] (SPEC §1)."""
        return streams.nonces_of_windows(self._keys, windows)

    def _nonces(self, tokens: Tokens, positions: Positions) -> NDArray[np.uint64]:
        layout = tokens.ids, positions.index, positions.offsets
        return streams.nonces_of_documents(self._rows.sip, self._whose(positions), *layout, self.window)

    def _whose(self, positions: Positions) -> NDArray[np.int64]:
        """Return which of the keys each document is read with, int64[D]; any, where it has no positions."""
        if not len(positions.index) or len(self._begins) == 1:
            return np.zeros(len(positions.offsets) - 1, np.int64)
        first = np.minimum(positions.offsets[:-1], len(positions.index) - 1)
        return np.searchsorted(self._begins, positions.index[first], side="right") - 1

    @abstractmethod
    def _score(
        self, tokens: Tokens, positions: Positions, numbers: NDArray[np.int64], terms: NDArray[np.float64] = NO_TERMS
    ) -> NDArray[np.generic]:
        """Return S_G and S_U: int64[2, D] or float64[2, D].

        Args:
            tokens: of D documents.
            positions: their scored positions.
            numbers: as of `numbers_of_positions`.
            terms: float64[P], written.
        """

    @abstractmethod
    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """See Searches."""

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.generic]:
        """Return the score of one message a document, or of one for all, S_G + S_U: int64[D] or float64[D] (SPEC §3).

        Raises:
            ValueError: a message that the key does not have.
        """
        group_score, user_score = self.parts(tokens, positions, messages)
        return group_score + user_score  # type: ignore[operator]

    def parts(
        self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return S_G and S_U of one message a document; S_G is 0 without groups."""
        group_score, user_score = self._score(tokens, positions, self._numbers_read(messages, positions))
        return group_score, user_score

    def terms(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """See ScoresParts."""
        added = np.empty(len(positions.index))
        self._score(tokens, positions, self._numbers_read(messages, positions), added)
        return added

    def single_message(self, score: NDArray[np.generic]) -> Candidates:
        """See ScoresParts."""
        return BestMessages.of_one(score).candidates()._replace(independent=self.version >= 2)

    def user_evidence(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64]) -> UserEvidence | None:
        """See ScoresParts: the score of the user steps, among the users of a group; None without groups."""
        if self.groups is None:
            return None
        _, user_score = self.parts(tokens, positions, messages)
        scored = positions_where(positions, ~self.group_steps(tokens, positions)).scored
        return UserEvidence(user_score[:, None], scored, self.groups)

    def group_steps(self, tokens: Tokens, positions: Positions) -> NDArray[np.bool_]:
        """Say which scored positions are group steps: bool[P]; none without groups."""
        if self.groups is None:
            return np.zeros(len(positions.index), np.bool_)
        return is_group_step(self._nonces(tokens, positions))

    def _each(self, messages: NDArray[np.int64] | int, positions: Positions) -> NDArray[np.int64]:
        """Return the message of each document: int64[D], or int64[1] where all share one.

        Raises:
            ValueError: a message that the key does not have.
        """
        document_messages = np.empty(len(positions.offsets) - 1 if np.ndim(messages) else 1, np.int64)
        document_messages[:] = messages
        self.check_messages(document_messages)
        return document_messages

    def _message_of_positions(self, messages: NDArray[np.int64] | int, positions: Positions) -> NDArray[np.int64]:
        """Return the messages of `_each`, of each scored position: int64[P]."""
        return np.repeat(np.broadcast_to(self._each(messages, positions), positions.scored.shape), positions.scored)

    def _numbers_read(self, messages: NDArray[np.int64] | int, positions: Positions) -> NDArray[np.int64]:
        """Return what the messages of `_each` read in group steps and in user steps, as of `numbers_of_positions`."""
        document_messages = self._each(messages, positions)
        if self.groups is None:
            return document_messages[None]
        group, user = np.divmod(document_messages, self.groups)
        return np.stack([group, group * MOST_NUMBERS + user])

    def check_messages(self, messages: NDArray[np.int64]) -> None:
        """Raise ValueError for a message that the key does not have; messages: int64[M]."""
        if (messages < 0).any():
            raise ValueError(f"message {messages.min()} is out of range; messages count from 0")
        limit = 2**32 if self.groups is None else self.groups**2
        if self.version >= 2 and (messages >= limit).any():
            raise ValueError(f"message {messages.max()} is out of range; this key has messages below {limit}")

    @staticmethod
    def _check_count(count: int) -> None:
        if count < 1:
            raise ValueError(f"{count} messages cannot be searched; at least 1 is needed")


class Version1Mark(NativeMark):
    """A native watermark of version 1: all messages read one shifted vector; arguments and errors as of NativeMark."""

    version = 1

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


_DENOMINATORS = [1 << bits for bits in range(1, MAX_GAMMA_BITS + 1)]


class GreenListMark(NativeMark):
    """The green list of Kirchenbauer et al. under one master key, of any version.

    Args:
        secret_bytes: the master key, 16 to 64 bytes.
        window: h.
        gamma: share of green tokens, n / 2^b in lowest terms, b ≤ 8.
        groups: B, of version 2 or later; None: no groups.

    Raises:
        ValueError: a secret, window, γ or number of groups out of range.
    """

    def __init__(self, secret_bytes: bytes, window: int, gamma: Fraction, groups: int | None = None) -> None:
        if not (isinstance(gamma, Fraction) and gamma.denominator in _DENOMINATORS and 0 < gamma < 1):
            raise ValueError(f"gamma {gamma!r} is not a Fraction n/2^b between 0 and 1, with b <= {MAX_GAMMA_BITS}")
        super().__init__(secret_bytes, window, gamma, groups)
        self.gamma, self.law = gamma, Binomial(gamma)
        self._rule = secret.rule_of(gamma)

    def _score(
        self, tokens: Tokens, positions: Positions, numbers: NDArray[np.int64], terms: NDArray[np.float64] = NO_TERMS
    ) -> NDArray[np.int64]:
        keys, layout = (self._rows.chacha, self._rows.sip, self._whose(positions)), (positions.index, positions.offsets)
        return count_green(*keys, tokens.ids, *layout, numbers, self.window, self._rule, self.version, terms)


class GumbelMark(NativeMark):
    """The Gumbel mark of Aaronson et al. under one master key, of any version.

    Args:
        secret_bytes: the master key, 16 to 64 bytes.
        window: h.
        groups: B, of version 2 or later; None: no groups.

    Raises:
        ValueError: a secret, window or number of groups out of range.
    """

    law: Law = Gamma()
    _unweighted: ClassVar[bool] = False

    def __init__(self, secret_bytes: bytes, window: int, groups: int | None = None) -> None:
        super().__init__(secret_bytes, window, None, groups)

    def _score(
        self, tokens: Tokens, positions: Positions, numbers: NDArray[np.int64], terms: NDArray[np.float64] = NO_TERMS
    ) -> NDArray[np.float64]:
        """Return Σ −ln(1−r), or Σ ln r, of each document's group steps and user steps: float64[2, D]."""
        keys, layout = (self._rows.chacha, self._rows.sip, self._whose(positions)), (positions.index, positions.offsets)
        return score_under(*keys, tokens.ids, *layout, numbers, self.window, self._unweighted, self.version, terms)
