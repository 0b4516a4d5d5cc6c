"""Derive SGLang's key of a request from one master key and its user, so that a text names its user.

Users are the messages of one format. A key has 64 bits, of which 32 count (format.py). With M users the smallest
corrected p-value is about M / 2^32, and a person who tries 2^32 states can forge any user's mark.
"""

import hmac
import math
from importlib.resources import files

import numpy as np
from numpy import uint32
from numpy.typing import NDArray

from scanner.watermark.format import Candidates, Case, KnownAnswers, Pairs, ProofPath
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.level_laws import LEVELS
from scanner.watermark.native.keyed import term
from scanner.watermark.positions import Positions, Tokens, batch_tokens
from scanner.watermark.stacks.sglang.format import (
    KEY_BITS,
    Sglang,
    SglangFormat,
    SglangOneKeyFormat,
    finished,
    mix_word,
    seeds_of,
    state_of,
    taken_in,
)
from scanner.watermark.stacks.shared import StackMark

_PURPOSE = b"brickscan sglang user key v1"
_TILE = 1024  # states at a time, whose products fit the first-level cache
_FACTORS = 30  # factors of up to 2^32, whose product double precision holds
_MISS = 1e-11  # many times the relative error of `scores_under`
_OF_LEVELS = 1.0 + LEVELS * (LEVELS + 1) / 2  # all levels together: the sum of each has an error of its own


def user_key(secret: bytes, message: int) -> int:
    """Return the key to send with the requests of a message's holder.

    It is the first 8 bytes of an HMAC-SHA-256, big-endian.

    Args:
        secret: the master key.
        message: from 0 on. It is hashed as 8 bytes, big-endian.
    """
    digest = hmac.digest(secret, _PURPOSE + message.to_bytes(8, "big"), "sha256")
    return int.from_bytes(digest[:8], "big")


@kernel
def states_of(keys: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the state of each of many keys: uint32[M]."""
    out = np.empty(len(keys), np.uint32)
    for i in range(len(keys)):
        out[i] = state_of(keys[i : i + 1])
    return out


@inlined
def _term_under(state: uint32, seed: uint32, token: uint32) -> float:
    return term(finished(taken_in(taken_in(state, mix_word(seed)), mix_word(token)), uint32(4)))


@kernel
def exact_score(
    state: uint32, seeds: NDArray[np.uint32], tokens: NDArray[np.uint32], levels: NDArray[np.uint8]
) -> float:
    """Compute Σ level · term of one document under one state, summed in order of position."""
    total = 0.0
    for p in range(len(seeds)):
        total += float(levels[p]) * _term_under(state, seeds[p], tokens[p])
    return total


@kernel
def exact_terms(
    states: NDArray[np.uint32], seeds: NDArray[np.uint32], tokens: NDArray[np.uint32], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the term of each position of each document under the document's own state: float64[P]."""
    out = np.empty(len(seeds))
    for d in range(len(states)):
        for p in range(offsets[d], offsets[d + 1]):
            out[p] = _term_under(states[d], seeds[p], tokens[p])
    return out


@kernel
def exact_scores(
    states: NDArray[np.uint32], seeds: NDArray[np.uint32], tokens: NDArray[np.uint32], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Compute the score of each document under a state of its own: float64[D]."""
    out, levels = np.empty(len(states)), np.ones(len(seeds), np.uint8)
    for d in range(len(out)):
        document_slice = slice(offsets[d], offsets[d + 1])
        out[d] = exact_score(states[d], seeds[document_slice], tokens[document_slice], levels[document_slice])
    return out


@kernel
def scores_under(
    states: NDArray[np.uint32], seeds: NDArray[np.uint32], tokens: NDArray[np.uint32], out: NDArray[np.float64]
) -> None:
    """Write the scores of one document under many states, float64[M] into `out`, to `_MISS`.

    Each is the logarithm of a product of 1−r. The exponent of the product is stored separately before it can underflow.
    """
    product, exponent = np.ones(_TILE), np.zeros(_TILE, np.int64)
    bits = product.view(np.int64)
    for begin in range(0, len(states), _TILE):
        tile = states[begin : begin + _TILE]
        product[:], exponent[:] = 1.0, 0
        for p in range(len(seeds)):
            seed, token = mix_word(seeds[p]), mix_word(tokens[p])
            for m in range(len(tile)):
                draw = finished(taken_in(taken_in(tile[m], seed), token), uint32(4))
                product[m] *= 4294967296.0 - float(draw)
            if p % _FACTORS == _FACTORS - 1:
                for m in range(len(tile)):
                    exponent[m] += (bits[m] >> 52) - 1023
                    bits[m] = (bits[m] & 0xFFFFFFFFFFFFF) | (1023 << 52)
        for m in range(len(tile)):
            out[begin + m] = (32.0 * len(seeds) - exponent[m]) * math.log(2.0) - math.log(product[m])


@kernel
def best_two(
    states: NDArray[np.uint32],
    seeds: NDArray[np.uint32],
    tokens: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    levels: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return best and second-best message of each document with their exact scores: int64[D, 2], float64[D, 2].

    Ties go to the smaller message. A missing second message is −1, of score 0. Every message whose approximate score
    could reach the second largest is scored exactly.

    levels: how often each position counts, uint8[P]. All ones in the score without levels.
    """
    documents = len(offsets) - 1
    message, score = np.full((documents, 2), -1), np.zeros((documents, 2))
    approximate, level_scores = np.empty(len(states)), np.empty(len(states))
    for d in range(documents):
        document_slice = slice(offsets[d], offsets[d + 1])
        if not levels[document_slice].any():  # all messages are equally good
            message[d, : len(states)] = np.arange(min(2, len(states)))
            continue
        approximate[:] = 0.0
        for level in range(1, LEVELS + 1):
            at_level = levels[document_slice] == level
            if at_level.any():
                scores_under(states, seeds[document_slice][at_level], tokens[document_slice][at_level], level_scores)
                approximate += level * level_scores
        first, second = -1.0, -1.0
        for m in range(len(approximate)):
            if approximate[m] > first:
                first, second = approximate[m], first
            elif approximate[m] > second:
                second = approximate[m]
        for m in range(len(approximate)):
            if approximate[m] < second - 2.0 * _MISS * (_OF_LEVELS + first):
                continue
            exact = exact_score(states[m], seeds[document_slice], tokens[document_slice], levels[document_slice])
            if message[d, 0] < 0 or exact > score[d, 0]:
                message[d, 1], score[d, 1] = message[d, 0], score[d, 0]
                message[d, 0], score[d, 0] = m, exact
            elif message[d, 1] < 0 or exact > score[d, 1]:
                message[d, 1], score[d, 1] = m, exact
    return message, score


class SglangUsers(StackMark):
    """A key for each message, derived from a master key."""

    def __init__(self, form: "SglangUserKeysFormat", secret: bytes) -> None:
        super().__init__(form, form.rule(), secret)
        self._how, self.width = form, form.context_window
        self._states = HiddenValue(np.empty(0, np.uint32))

    def states(self, count: int) -> NDArray[np.uint32]:
        """Return the states of the messages 0 … count−1: uint32[count]. Two messages may have the same state."""
        cached_states = self._states.value
        if count > len(cached_states):
            keys = [user_key(self._secret.value, message) for message in range(len(cached_states), count)]
            self._states = HiddenValue(np.concatenate([cached_states, states_of(np.array(keys, np.uint64))]))
        return self._states.value[:count]

    def of_user(self, message: int) -> Sglang:
        """Open the key of a message's holder, as the holder's requests carry it."""
        key = user_key(self._secret.value, message)
        return SglangOneKeyFormat(context_window=self.width).open(key.to_bytes(8, "big"))

    def decoy(self, number: int) -> "SglangUsers":
        """See RanksAmongDecoys."""
        return _Decoy(self._how, self._entropy(number))

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """See Watermark."""
        states = self._states_of(messages, positions)
        return exact_scores(states, *self._seeds_and_tokens(tokens, positions), positions.offsets)

    def terms_of_keys(
        self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int
    ) -> NDArray[np.float64]:
        """See TermsOfKeys. There is one sum, because a message has one key."""
        states = self._states_of(messages, positions)
        return exact_terms(states, *self._seeds_and_tokens(tokens, positions), positions.offsets)[None]

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """See Searches. Users are independent. If two have the same state, a user is named only if no other passes."""
        return self.search_by_levels(tokens, positions, np.ones(len(positions.index), np.uint8), count)

    def search_by_levels(
        self, tokens: Tokens, positions: Positions, levels: NDArray[np.uint8], count: int
    ) -> Candidates:
        """See SearchesByLevels."""
        states = self.states(count)
        message, score = best_two(states, *self._seeds_and_tokens(tokens, positions), positions.offsets, levels)
        return Candidates(message, score, independent=len(np.unique(states)) == count)

    def _states_of(self, messages: NDArray[np.int64] | int, positions: Positions) -> NDArray[np.uint32]:
        """Return the state of each document's message: uint32[D].

        Raises:
            ValueError: a message is below 0.
        """
        document_messages = np.broadcast_to(np.asarray(messages, np.int64), len(positions.offsets) - 1)
        if (document_messages < 0).any():
            raise ValueError(f"message {document_messages.min()} is out of range; messages count from 0")
        return self.states(int(document_messages.max(initial=-1)) + 1)[document_messages]

    def _seeds_and_tokens(self, tokens: Tokens, positions: Positions) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        seeds = seeds_of(tokens.ids, tokens.offsets, positions.index, self.width)
        return seeds, tokens.ids[positions.index]


class _Decoy(SglangUsers):
    """Users whose states are drawn at once.

    A uniform key has a uniform state, because its last word changes it one to one.
    """

    def states(self, count: int) -> NDArray[np.uint32]:
        """Return the states. They are drawn anew each time, because there are many decoys."""
        generator = np.random.Generator(np.random.Philox(int.from_bytes(self._secret.value, "big") % 2**128))
        return generator.integers(2**32, size=count, dtype=np.uint32)


def _user_keys(case: Case) -> Pairs:
    yield "key", case["key"], f"{user_key(bytes.fromhex(case['secret']), case['message']):016x}"


def _texts(case: Case) -> Pairs:
    """Yield the score of one user that verdicts use, for known answers only."""
    mark = SglangUserKeysFormat(context_window=case["context_window"]).open(bytes.fromhex(case["secret"]))
    tokens = batch_tokens([case["token_ids"]])
    positions = mark.rule.positions(tokens, "ngram")
    yield "scored", case["scored"], int(positions.scored[0])
    yield "score", case["score"], float(mark.score(tokens, positions, case["message"])[0])


class SglangUserKeysFormat(SglangFormat):
    """SGLang with a key for each request, derived from a master key for each user."""

    name = "sglang-user-keys"
    title = "SGLang, a key a request"
    answers = KnownAnswers(
        files(__package__) / "sglang_user_keys.json", {"sglang_user_keys": _user_keys, "sglang_user_texts": _texts}
    )

    def open(self, secret: bytes) -> SglangUsers:
        """Open it with the master key, from which the users' keys are derived."""
        return SglangUsers(self, secret)

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.stacks.sglang.proof import SglangUsersProof  # late: only flags need mpmath

        return SglangUsersProof(secret, self.context_window, KEY_BITS)

    def check_messages(self, count: int) -> None:
        """Refuse 0 messages, and more messages than the search is made for."""
        if not 1 <= count <= MAX_USERS:
            raise ValueError(f"{count} users are too many or too few; allowed: 1 to {MAX_USERS:,}")


MAX_USERS = 10**5
"""Largest number of users of a key: far more than 32 bits can tell apart at any false-positive rate in use."""
