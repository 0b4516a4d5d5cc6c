"""Define SGLang's text watermark with one key, two keys or a key for each request, as SGLang 0.5.22 and 0.5.23 make it.

Every draw is a MurmurHash3 (x86, 32 bits, seed 0; A. Appleby) of the key's two words, of the context's hash X and of
the token. The hash processes word after word, so the two words of a key lead to one state of 32 bits. Keys with the
same state are the same key, whatever their 64 bits, and trying all 2^32 states finds it.
"""

import math
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray
from pydantic import Field

from scanner.watermark.format import Basis, Case, KnownAnswers, OtherKey, Pairs, ProofPath
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.laws import Floored, Gamma, Law
from scanner.watermark.native.gumbel import sum_scores
from scanner.watermark.native.keyed import terms_of
from scanner.watermark.positions import (
    WIDEST_WINDOW,
    Dedup,
    Positions,
    Tokens,
    batch_tokens,
    scored_positions,
    with_opening,
)
from scanner.watermark.stacks.shared import DrawnFormat, StackMark, check_message, seeded_positions

KEY_BITS = 32
"""Number of a key's 64 bits that count."""


def parse_key(text: str) -> int:
    """Read a key as SGLang writes it: 1 to 16 hexadecimal digits, 0x allowed.

    Raises:
        ValueError: any other text. The message does not repeat it.
    """
    digits = text.removeprefix("0x").removeprefix("0X")
    if not (1 <= len(digits) <= 16 and all(digit in "0123456789abcdefABCDEF" for digit in digits)):
        raise ValueError("is not 1 to 16 hexadecimal digits, with or without 0x")
    return int(digits, 16)


@inlined
def mix_word(word: uint32) -> uint32:
    """Return a word mixed as the hash mixes it."""
    k = uint32(word * uint32(0xCC9E2D51))
    return uint32(uint32(uint32(k << uint32(15)) | uint32(k >> uint32(17))) * uint32(0x1B873593))


@inlined
def taken_in(state: uint32, mixed: uint32) -> uint32:
    """Return the state after a mixed word."""
    h = uint32(state ^ mixed)
    return uint32(uint32(uint32(h << uint32(13)) | uint32(h >> uint32(19))) * uint32(5) + uint32(0xE6546B64))


@inlined
def finished(state: uint32, words: uint32) -> uint32:
    """Return the hash of a state after so many words."""
    h = uint32(state ^ uint32(words << uint32(2)))
    h = uint32(uint32(h ^ uint32(h >> uint32(16))) * uint32(0x85EBCA6B))
    h = uint32(uint32(h ^ uint32(h >> uint32(13))) * uint32(0xC2B2AE35))
    return uint32(h ^ uint32(h >> uint32(16)))


@kernel
def state_of(keys: NDArray[np.uint64]) -> uint32:
    """Return the state after the words of keys, low word before high: uint64[n]."""
    state = uint32(0)
    for key in keys:
        state = taken_in(state, mix_word(uint32(key)))
        state = taken_in(state, mix_word(uint32(key >> uint64(32))))
    return state


@kernel
def context_hash(ids: NDArray[np.uint32], place: int, length: int) -> uint32:
    """Return X of the `length` tokens before a place."""
    state = uint32(0)
    for i in range(uint64(place - length), uint64(place)):
        state = taken_in(state, mix_word(ids[i]))
    return finished(state, uint32(length))


@kernel
def seeds_of(
    ids: NDArray[np.uint32], offsets: NDArray[np.int64], index: NDArray[np.int64], width: int
) -> NDArray[np.uint32]:
    """Return X of each scored position: uint32[P].

    Args:
        ids: uint32[N].
        offsets: int64[D+1], of documents.
        index: int64[P].
        width: of the context.
    """
    out = np.empty(len(index), np.uint32)
    begin, end = 0, 0  # of the document
    for p in range(len(index)):
        if not begin <= index[p] < end:
            d = np.searchsorted(offsets, index[p], side="right")
            begin, end = offsets[d - 1], offsets[d]
        out[p] = context_hash(ids, index[p], min(width, index[p] - begin))
    return out


@kernel
def draws_of(state: uint32, seeds: NDArray[np.uint32], tokens: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the draw of each X and token under a key's state: uint32[P]."""
    out = np.empty(len(seeds), np.uint32)
    for i in range(len(out)):
        out[i] = finished(taken_in(taken_in(state, mix_word(seeds[i])), mix_word(tokens[i])), uint32(4))
    return out


@kernel
def coins_of(state: uint32, seeds: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the coin of each X under the state of two keys. It selects one of them: uint32[P]."""
    out = np.empty(len(seeds), np.uint32)
    for i in range(len(out)):
        out[i] = finished(taken_in(state, mix_word(seeds[i])), uint32(5))
    return out


def centre(draws: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return the uniform that SGLang makes of a draw, the middle of its cell: float64[P], exact."""
    return (draws.astype(np.float64) + 0.5) * 2.0**-32


def stack_terms(draws: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return the terms −ln(1−u) of SGLang's own detector: float64[P]. They are not for verdicts."""
    terms: NDArray[np.float64] = -np.log1p(-centre(draws))
    return terms


@dataclass(frozen=True)
class AnswerPositions:
    """One position for each X and token, or, with dedup `context`, the first for each X.

    Contexts are told apart by X, as in the sampler and in draws. Two contexts with the same X can be found without the
    key, and they count once. SGLang's detector compares the contexts themselves, and agrees except for such pairs. A
    context may extend into the prompt, which a scan does not have, so the first `width` tokens are never scored.
    """

    width: int

    @property
    def context(self) -> int:
        """Return the width."""
        return self.width

    def positions(self, tokens: Tokens, dedup: Dedup) -> Positions:
        """See PositionRule."""
        everywhere = np.arange(len(tokens.ids), dtype=np.int64)
        seeds = seeds_of(tokens.ids, tokens.offsets, everywhere, self.width)
        return seeded_positions(tokens, seeds, self.width, dedup)

    def ngram(self, tokens: Tokens, place: int) -> tuple[int, ...]:
        """See PositionRule."""
        return tuple(tokens.ids[place - self.width : place + 1].tolist())


class Sglang(StackMark):
    """One key, or two keys and a coin that selects one of them at each context. Both keys decide the coin."""

    def __init__(self, form: "SglangFormat", secret: bytes, keys: tuple[int, ...], share: float) -> None:
        super().__init__(form, form.rule(), secret)
        self._keys, self.width, self._first_below = HiddenValue(keys), form.context_window, int(share * 2.0**32)

    def draws(self, tokens: Tokens, positions: Positions) -> NDArray[np.uint32]:
        """Return the draws of the scored tokens under the key that marked them, if one did: uint32[P]."""
        keys = np.array(self._keys.value, np.uint64)
        seeds = seeds_of(tokens.ids, tokens.offsets, positions.index, self.width)
        ids = tokens.ids[positions.index]
        draws = [draws_of(state_of(keys[i : i + 1]), seeds, ids) for i in range(len(keys))]
        if len(draws) == 1:
            return draws[0]
        return np.where(coins_of(state_of(keys), seeds) < self._first_below, *draws)

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """See Watermark. The mark has only message 0."""
        check_message(messages)
        return sum_scores(self.draws(tokens, positions), positions.offsets)

    def terms_of_keys(
        self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int
    ) -> NDArray[np.float64]:
        """See TermsOfKeys. There is one sum, even for two keys, because a coin selects one at each context."""
        check_message(messages)
        return terms_of(self.draws(tokens, positions), unweighted=False)[None]

    def stack_terms(self, tokens: Tokens, positions: Positions) -> NDArray[np.float64]:
        """Return the terms that SGLang's own detector adds up ("combined"): float64[P]."""
        return stack_terms(self.draws(tokens, positions))


class SglangFormat(DrawnFormat):
    """The common part of all SGLang formats."""

    context_window: int = Field(default=4, ge=1, le=WIDEST_WINDOW)

    def label(self) -> str:
        """See Format."""
        return f"{self.name};context_window={self.context_window}"

    def rule(self) -> AnswerPositions:
        """Return the rule of scored positions."""
        return AnswerPositions(self.context_window)

    def law(self) -> Law:
        """Return the law of 32-bit draws at the lower end of their cells."""
        return Floored(Gamma(), KEY_BITS)

    def basis(self) -> Basis:
        """Return the basis: one state of 32 bits, which decides all draws."""
        return Basis(KEY_BITS)

    def lacks_for_levels(self, messages: int) -> str:
        """See CountsByLevels."""
        return ""

    def seconds(self, messages: int) -> float:
        """Return five times the measured time."""
        return 2e-7 + messages * 5e-9


def _hashes(case: Case) -> Pairs:
    """Yield token hashes of a separate context."""
    seeds = np.full(len(case["token_ids"]), _seed(case), np.uint32)
    state = state_of(np.array([parse_key(case["key"])], np.uint64))
    yield "context_hash", case["context_hash"], _seed(case)
    yield "token_hashes", case["token_hashes"], draws_of(state, seeds, np.array(case["token_ids"], np.uint32)).tolist()


def _coins(case: Case) -> Pairs:
    state = state_of(np.array([parse_key(case[name]) for name in ("key", "key_b")], np.uint64))
    yield "context_hash", case["context_hash"], _seed(case)
    yield "coin", case["coin"], int(coins_of(state, np.array([_seed(case)], np.uint32))[0])


def _seed(case: Case) -> int:
    context = np.array(case["context"], np.uint32)
    return int(context_hash(context, len(context), len(context)))


def _detection(case: Case) -> Pairs:
    """Yield the values that SGLang's detector reports for a completion if it is also given the end of the prompt."""
    width, keys = case["context_window"], [case[name] for name in ("key", "key_b") if name in case]
    form: SglangOneKeyFormat | SglangTwoKeysFormat = SglangOneKeyFormat(context_window=width)
    if len(keys) == 2:
        form = SglangTwoKeysFormat(context_window=width, mixing_probability=case["mixing_probability"])
    mark = form.open(b"".join(parse_key(key).to_bytes(8, "big") for key in keys))
    prompt = case["prompt_token_ids"][-width:]
    tokens = batch_tokens([prompt + case["token_ids"]])
    positions = scored_positions(tokens, width, "context")
    if prompt:
        positions = with_opening(tokens, positions, width, len(prompt))
    index = positions.index[: case["max_contexts"]]
    terms = mark.stack_terms(tokens, Positions(index, np.array([0, len(index)])))
    yield "num_contexts", case["num_contexts"], len(index)
    if "scored_positions" in case:
        yield "scored_positions", case["scored_positions"], (index - len(prompt)).tolist()
    for i, term in enumerate(case.get("token_scores", ())):
        yield f"token_scores[{i}]", term, float(terms[i])
    score = math.fsum(terms)
    yield "score", case["score"], score
    yield "log_p_value", case["log_p_value"], float(Gamma().log10_p(score, len(index))) * math.log(10.0)


class SglangOneKeyFormat(SglangFormat):
    """SGLang with one key."""

    name = "sglang-one-key"
    title = "SGLang, one key"
    answers = KnownAnswers(
        files(__package__) / "sglang_one_key.json", {"sglang_hashes": _hashes, "sglang_one_key": _detection}
    )
    secret_bytes = range(8, 9)

    def open(self, secret: bytes) -> Sglang:
        """Open it with the key's 8 bytes, big-endian: its 16 hexadecimal digits."""
        return Sglang(self, secret, keys_of(secret, 1), 1.0)

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.stacks.sglang.proof import SglangProof  # late: only flags need mpmath

        return SglangProof(secret, self.context_window, 1.0, KEY_BITS)


class SglangTwoKeysFormat(SglangFormat):
    """SGLang with keys A and B. A coin selects one at each context, and a person who has both keys knows which."""

    name = "sglang-two-keys"
    title = "SGLang, two keys"
    answers = KnownAnswers(
        files(__package__) / "sglang_two_keys.json", {"sglang_coins": _coins, "sglang_two_keys": _detection}
    )
    secret_bytes = range(16, 17)
    mixing_probability: float = Field(default=0.5, gt=0, lt=1)

    def label(self) -> str:
        """See Format."""
        return f"{super().label()};mixing_probability={self.mixing_probability!r}"

    def open(self, secret: bytes) -> Sglang:
        """Open it with the 8 bytes of A and the 8 of B, big-endian."""
        return Sglang(self, secret, keys_of(secret, 2), self.mixing_probability)

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.stacks.sglang.proof import SglangProof

        return SglangProof(secret, self.context_window, self.mixing_probability, KEY_BITS)

    def other_keys(self, secret: bytes) -> list[OtherKey]:
        """See HasOtherKeys: each of the two keys on its own, and both exchanged."""
        one_key, shares = SglangOneKeyFormat(context_window=self.context_window), (self.mixing_probability,)
        parts = zip("AB", (secret[:8], secret[8:]), (*shares, 1.0 - shares[0]), strict=True)
        return [
            *(
                OtherKey(f"marks with key {name} of the two alone", one_key, HiddenValue(key), share)
                for name, key, share in parts
            ),
            OtherKey("has keys A and B exchanged", self, HiddenValue(secret[8:] + secret[:8])),
        ]


def keys_of(secret: bytes, count: int) -> tuple[int, ...]:
    """Return keys of 8 bytes each, big-endian.

    Raises:
        ValueError: the secret has another length.
    """
    if len(secret) != 8 * count:
        raise ValueError(f"{count} keys of SGLang have {8 * count} bytes; this secret has {len(secret)}")
    return tuple(int.from_bytes(secret[i : i + 8], "big") for i in range(0, len(secret), 8))
