"""Define the green lists of SBW (stateless Bernoulli watermark): packages `sbw` and `vllm-sbw` 1.0.0, a plugin of vLLM.

A seed of the window and of the hash key is the key of Philox4x32-10, and the token's number is the place in its stream.
A token is green if the low 31 bits of its word are below γ·(2^31−1). So each token has a draw of its own, whatever the
vocabulary. Schemes that begin with `gpu-` are read, because the plugin marks with them. The others shuffle the
vocabulary with torch's generator. A position counts once for each seed and token, as in the green lists of
transformers.
"""

import re
from fractions import Fraction
from importlib.resources import files
from typing import Any, Literal, Self

import numpy as np
from numpy import int32, int64, uint32, uint64
from numpy.typing import NDArray
from pydantic import Field, model_validator

from scanner.watermark.format import Basis, Case, KnownAnswers, Pairs, ProofPath
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.laws import Binomial, Floored, Law
from scanner.watermark.positions import WIDEST_WINDOW, Positions, Tokens, batch_tokens, offsets_of
from scanner.watermark.stacks.philox import stream_word
from scanner.watermark.stacks.shared import (
    BySeed,
    StackFormat,
    StackMark,
    check_message,
    hashing_key,
    key_fingerprint,
)

KEY_BITS = 32
"""No p-value is below 2^-KEY_BITS: a key is a number that its owner chose, and minhash takes its low 32 bits."""

OF_NOTHING = 638_944_058
"""Seed that minhash makes of token 0 under every key, 32 bits."""

_GRID = 2**31 - 1
_SCHEME = re.compile(
    r"gpu-(?:(?P<selfhash>(?:fused-)?selfhash(?:-[0-9]+|-fullvocab(?:-cudagraphs)?)?)|(?P<minhash>minhash)"
    r"|(?P<one>simple_1)|(?P<four>fused-simple_4(?:-[0-9]+|-fullvocab)?))"
)


@inlined
def _hashed(number: int64) -> int64:
    """Return the library's hash of a number's low 32 bits, signed. Shifts to the right copy the sign (B. Jenkins)."""
    i = int32(number + int64(1))
    i = int32(i - int32(i << int32(6)))
    i = int32(i ^ (i >> int32(17)))
    i = int32(i - int32(i << int32(9)))
    i = int32(i ^ int32(i << int32(4)))
    i = int32(i - int32(i << int32(3)))
    i = int32(i ^ int32(i << int32(10)))
    i = int32(i ^ (i >> int32(15)))
    return int64(i)


@kernel
def self_streams(ids: NDArray[np.uint32], key: int64, width: int) -> NDArray[np.uint64]:
    """Return the least key·h(x)·h(last) of the `width` tokens that end at each place: uint64[N].

    Products are signed 64-bit numbers. Where a window begins before the batch, the result is 0.
    """
    out = np.zeros(len(ids), np.uint64)
    for i in range(width - 1, len(ids)):
        last, least = _hashed(int64(ids[i])), int64(9223372036854775807)
        for k in range(i - width + 1, i + 1):
            least = min(least, key * _hashed(int64(ids[k])) * last)
        out[i] = uint64(least)
    return out


@kernel
def min_streams(ids: NDArray[np.uint32], key: int64, width: int) -> NDArray[np.uint64]:
    """Return the least h(key·x) of the `width` tokens before each place: uint64[N]."""
    out = np.zeros(len(ids), np.uint64)
    for i in range(width, len(ids)):
        least = int64(9223372036854775807)
        for k in range(i - width, i):
            least = min(least, _hashed(key * int64(ids[k])))
        out[i] = uint64(least)
    return out


@kernel
def sum_streams(ids: NDArray[np.uint32], key: int64, width: int) -> NDArray[np.uint64]:
    """Return key · the sum of the `width` tokens before each place: uint64[N]."""
    out = np.zeros(len(ids), np.uint64)
    for i in range(width, len(ids)):
        total = int64(0)
        for k in range(i - width, i):
            total += int64(ids[k])
        out[i] = uint64(key * total)
    return out


@kernel
def _green(
    streams: NDArray[np.uint64], ids: NDArray[np.uint32], index: NDArray[np.int64], below: int
) -> NDArray[np.bool_]:
    out = np.empty(len(index), np.bool_)
    for n in range(len(index)):
        out[n] = (stream_word(streams[index[n]], ids[index[n]]) & uint32(0x7FFFFFFF)) < uint32(below)
    return out


_STREAMS = {"selfhash": self_streams, "minhash": min_streams, "additive": sum_streams}


def _detection(case: Case) -> Pairs:
    """Yield the values that the library's detector reports for every position.

    Its p-value is a normal tail and not compared.
    """
    form = SbwFormat(seeding=case["seeding"], context_width=case["context_width"], gamma=case["gamma"])
    mark, tokens = form.open(int(case["hash_key"]).to_bytes(8, "big")), batch_tokens([case["tokens"]])
    index = np.arange(form.before, len(tokens.ids))
    positions = Positions(index, np.array([0, len(index)]))
    yield "num_tokens_scored", case["num_tokens_scored"], len(index)
    yield "num_green_tokens", case["num_green_tokens"], int(mark.score(tokens, positions, 0)[0])
    yield "green_token_mask", case["green_token_mask"], mark.green(tokens, positions).astype(int).tolist()
    low = mark.streams(tokens)[index].view(np.int64)
    yield "seeds", case["seeds"], list(map(str, low.tolist()))


class SbwFormat(StackFormat):
    """SBW's green lists. In selfhash the window of `context_width` tokens ends with the scored one."""

    name = "sbw"
    title = "SBW, green list by Philox"
    secret_bytes = range(8, 9)
    answers = KnownAnswers(files(__package__) / "sbw.json", {"sbw": _detection})
    seeding: Literal["selfhash", "minhash", "additive"] = "selfhash"
    context_width: int = Field(default=4, ge=1, le=WIDEST_WINDOW)
    gamma: float = Field(default=0.5, gt=0, lt=1)

    @model_validator(mode="after")
    def _some_are_green(self) -> Self:
        if not 0 < self.below < _GRID:
            raise ValueError(f"gamma {self.gamma!r} makes all tokens green, or none")
        return self

    @property
    def below(self) -> int:
        """Return how many numbers of 31 bits are green. The plugin takes γ as a float32."""
        return int(float(np.float32(self.gamma)) * _GRID)

    @property
    def before(self) -> int:
        """Return how many tokens before a scored one its seed depends on."""
        return self.context_width - (self.seeding == "selfhash")

    def label(self) -> str:
        """See Format."""
        return f"{self.name};seeding={self.seeding};context_width={self.context_width};gamma={self.gamma!r}"

    def law(self) -> Law:
        """Return the law of independent draws."""
        return Floored(Binomial(Fraction(self.below, 2**31)), KEY_BITS)

    def basis(self) -> Basis:
        """Return the basis: a number that its owner chose. The package's own number is public."""
        return Basis(KEY_BITS, assumed=True)

    def decoy_key(self, entropy: bytes) -> bytes:
        """Return an odd number below 2^63, as 8 bytes."""
        return (int.from_bytes(entropy[:8], "big") >> 1 | 1).to_bytes(8, "big")

    def seconds(self, messages: int) -> float:
        """Return five times the measured time with its p-value."""
        return 2e-7

    def rule(self) -> BySeed:
        """Return the rule under hash key 1. Each opened key has its own."""
        return self.rule_of((1).to_bytes(8, "big"))

    def rule_of(self, secret: bytes) -> BySeed:
        """Return the rule of the positions that a key scores."""
        key, streams = int64(hashing_key(secret)), _STREAMS[self.seeding]
        seeds = HiddenValue(lambda tokens: streams(tokens.ids, key, self.context_width).astype(np.uint32))
        keyless = OF_NOTHING if self.seeding == "minhash" else 0
        keyless_seeds = range(keyless, keyless + 1)
        return BySeed(self.before, self.before, key_fingerprint(self.name, secret), seeds, keyless_seeds)

    def open(self, secret: bytes) -> "Sbw":
        """Open it with the hash key's 8 bytes, big-endian."""
        return Sbw(self, secret)

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.stacks.sbw.proof import SbwProof  # late: only flags need mpmath

        return SbwProof(secret, self.seeding, self.context_width, self.below)


class Sbw(StackMark):
    """A key of SBW."""

    def __init__(self, form: SbwFormat, secret: bytes) -> None:
        super().__init__(form, form.rule_of(secret), secret)
        self._key, self._streams = HiddenValue(int64(hashing_key(secret))), _STREAMS[form.seeding]
        self._width, self._below = form.context_width, form.below

    def streams(self, tokens: Tokens) -> NDArray[np.uint64]:
        """Return Philox's key at each place in a batch: uint64[N]."""
        return self._streams(tokens.ids, self._key.value, self._width)

    def green(self, tokens: Tokens, positions: Positions) -> NDArray[np.bool_]:
        """Return whether the scored tokens are green: bool[P]."""
        return _green(self.streams(tokens), tokens.ids, positions.index, self._below)

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """See Watermark. The mark has only message 0."""
        check_message(messages)
        return np.diff(offsets_of(self.green(tokens, positions))[positions.offsets])


def read_scheme(name: object) -> dict[str, Any]:
    """Return the parameters of the format that a `seeding_scheme` of the package names.

    The number of candidates that a scheme looks at decides which tokens are marked, but no draw.

    Raises:
        ValueError: the scheme is not one that is read.
    """
    match = _SCHEME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(
            "allowed are gpu-selfhash, gpu-fused-selfhash, gpu-minhash, gpu-simple_1 and gpu-fused-simple_4; schemes "
            "without gpu- shuffle the vocabulary with torch's generator and are not supported"
        )
    seeding = "additive" if match["one"] or match["four"] else "selfhash" if match["selfhash"] else "minhash"
    return {"seeding": seeding, "context_width": 1 if match["one"] else 4}
