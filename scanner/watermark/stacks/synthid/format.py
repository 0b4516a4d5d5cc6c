"""Define SynthID-Text, in two versions.

- `synthid-table`: of transformers 5.23 and 5.24, and of the package 0.2.1.
- `synthid-mixed`: of git in June 2025.

Every n-gram is hashed with each of m keys to m bits, and the mark raises the share of ones. The score is a sum over
layers, weighted or plain. Layers that draw alike count as one layer with the sum of their weights.

In transformers a bit is an entry of a table of 2^16 fair coins. The n-gram's hash and the key give the place mod 2^16.
The table is drawn once and for all and is not quite fair. Treating its bits as fair makes p-values a hundred times too
small under some tables. But over keys drawn uniformly, a layer's sum has an exact law. It is the same for all layers,
and one transform of the text's hashes computes it. The law of the git version's bits is as wide as the text requires.
Our score is −ln p by that law (scanner.watermark.stacks.synthid.bits).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import numpy as np
from numpy import uint64
from numpy.typing import NDArray
from pydantic import Field, field_validator

from scanner.watermark.format import Basis, Case, KnownAnswers, OtherKey, Pairs, ProofPath, Watermark
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.laws import Floored, Law, Surprise
from scanner.watermark.positions import WIDEST_WINDOW, Dedup, Positions, Tokens, batch_tokens, scored_positions
from scanner.watermark.stacks.mersenne_twister import bits
from scanner.watermark.stacks.shared import CPU, DrawnFormat, StackFormat, StackMark, check_message
from scanner.watermark.stacks.synthid.bits import Bits, MixedBits, TableBits, hashes

PUBLISHED_KEYS = (
    654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468,
    990, 966, 226, 324, 585, 118, 504, 421, 521, 129, 669, 732, 225, 90, 960,
)  # fmt: skip
"""Keys of the examples of both packages. Anybody can make their mark."""

STACK_TABLE_PLACES = 2**16
"""Number of places in the stack's table. Drawn keys go up to 2^63, so not all of them are below it."""


@dataclass(frozen=True)
class EachContextOnce:
    """Scores the first position of each context.

    Repeats of a context are unmarked, unless the stack has forgotten it.
    """

    width: int

    @property
    def context(self) -> int:
        """Return the number of tokens of a context."""
        return self.width

    def positions(self, tokens: Tokens, dedup: Dedup) -> Positions:
        """See PositionRule."""
        return scored_positions(tokens, self.width, "none" if dedup == "none" else "context")

    def ngram(self, tokens: Tokens, place: int) -> tuple[int, ...]:
        """See PositionRule."""
        return tuple(tokens.ids[place - self.width : place + 1].tolist())


class SynthId(StackMark):
    """A list of keys, one for each layer."""

    def __init__(self, form: "_SynthIdFormat", secret: bytes, start: int, bits: Bits) -> None:
        super().__init__(form, form.rule(), secret)
        self._keys = HiddenValue(keys_of(secret, form.depth))
        self._start, self._length, self._bits = HiddenValue(uint64(start)), form.ngram_len, bits
        # A key that is twice in the list draws the same bits twice. Under a law of independent layers its sum would
        # vary too little, so it becomes one layer here. For example, keys 5, 8, 5 of weights 3, 2, 1 are layers 5 and 8
        # of weights 4 and 2.
        weights: dict[int, int] = {}
        for key, weight in zip(self._drawn_by().tolist(), form.weights().tolist(), strict=True):
            weights[key] = weights.get(key, 0) + weight
        self._layers = HiddenValue(np.array([*weights], np.uint64))
        self._weights = np.array([*weights.values()], np.int64)

    def _drawn_by(self) -> NDArray[np.uint64]:
        """Return the numbers that decide the bits of each layer, equal for layers that draw alike: uint64[m]."""
        return self._keys.value & uint64(self._bits.key_mask)

    def _open_decoy(self, secret: bytes) -> Watermark:
        """Open a decoy. It repeats a key where the key itself does."""
        _, first, inverse = np.unique(self._drawn_by(), return_index=True, return_inverse=True)
        return super()._open_decoy(np.frombuffer(secret, ">u8")[first[inverse]].tobytes())

    def states(self, tokens: Tokens, positions: Positions) -> NDArray[np.uint64]:
        """Return the hashes of the n-grams that end at scored positions: uint64[P]."""
        return hashes(tokens.ids, positions.index, self._length, self._start.value)

    def ones(self, tokens: Tokens, positions: Positions) -> NDArray[np.int64]:
        """Count ones of each document and layer: int64[D, m]."""
        return self._bits.ones(self.states(tokens, positions), positions.offsets, self._keys.value)

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """See Watermark: −ln p of the weighted sum. The mark has only message 0."""
        check_message(messages)
        states = self.states(tokens, positions)
        sums = self._bits.ones(states, positions.offsets, self._layers.value) @ self._weights
        return self._bits.surprise(sums, self._weights, states, positions.offsets)


class _SynthIdFormat(StackFormat):
    secret_bytes = range(8, 8 * 64 + 1)
    if_guessed = "To read its marks anyway, state that anybody may know it: --set published=true"
    depth: int = Field(default=30, ge=1, le=64)
    ngram_len: int = Field(default=5, ge=2, le=WIDEST_WINDOW + 1)
    score: Literal["weighted", "mean"] = "weighted"
    published: bool = False  # public keys, or small ones that can be guessed: no law over drawn keys holds

    def weights(self) -> NDArray[np.int64]:
        """Return the weights of the layers, whole numbers in the ratios of the stack's weights: int64[m]."""
        if self.score == "mean" or self.depth == 1:
            return np.ones(self.depth, np.int64)
        layers = 10 * (self.depth - 1) - 9 * np.arange(self.depth, dtype=np.int64)
        return np.asarray(layers // np.gcd.reduce(layers), np.int64)

    def label(self) -> str:
        parameters = f"ngram_len={self.ngram_len};depth={self.depth};score={self.score}"
        return f"{self.name};{parameters}" + ";published" * self.published

    def rule(self) -> EachContextOnce:
        return EachContextOnce(self.ngram_len - 1)

    def can_be_framed(self) -> bool:
        """Return True: each layer of 16 bits can be searched on its own in marked text."""
        return True

    def decoy_key(self, entropy: bytes) -> bytes:
        keys = np.frombuffer(hashlib.shake_256(entropy).digest(8 * self.depth), ">u8") >> np.uint64(1)
        return keys.astype(">u8").tobytes()

    def places(self) -> int:
        return STACK_TABLE_PLACES

    def other_keys(self, secret: bytes) -> list[OtherKey]:
        """See HasOtherKeys: the layers' keys reversed, and runs of layers."""
        keys = [secret[i : i + 8] for i in range(0, len(secret), 8)]
        if self.depth == 1:
            return []
        reversed_keys = HiddenValue(b"".join(reversed(keys)))
        return [OtherKey("has the layers' keys in reverse order", self, reversed_keys), *self._runs(keys)]

    def _runs(self, keys: list[bytes]) -> list[OtherKey]:
        """Return the first half of the layers.

        It shares no draw with the whole key, because a hash begins with all keys.
        """
        return [self._run(keys, 0, self.depth // 2)._replace(layers=None)]

    def _run(self, keys: list[bytes], first: int, end: int) -> OtherKey:
        words = f"marks with layers {first + 1} to {end} of {self.depth} alone"
        form = self.model_copy(update={"depth": end - first})
        return OtherKey(words, form, HiddenValue(b"".join(keys[first:end])), None, (first, end))

    def _checked(self, secret: bytes) -> list[int]:
        keys = [int(key) for key in keys_of(secret, self.depth)]
        if not self.published and (why := not_drawn(keys, self.places())):
            raise ValueError(f"{why}, so anybody may make their mark; set published = true")
        return keys


def not_drawn(keys: Sequence[int], places: int = STACK_TABLE_PLACES) -> str | None:
    """Return the reason why no law over drawn keys holds for a list.

    None if it may have been drawn from all possible keys.

    Keys below the number of places, such as keys of three digits, leave out most places, and each layer can be tried on
    its own.

    Args:
        keys: keys of the list.
        places: number of the table's places that keys name.
    """
    if tuple(keys) == PUBLISHED_KEYS[: len(keys)]:
        return "these keys are the published ones"
    if max(keys) < places:
        return f"these keys are all below {places:,}"
    return None


class SynthIdTableFormat(_SynthIdFormat, DrawnFormat):
    """SynthID with the bits of transformers and package 0.2.1, which come from a table."""

    name = "synthid-table"
    title = "SynthID-Text, transformers and package 0.2.1"
    generator = CPU
    sampling_table_size: int = 2**16
    sampling_table_seed: int = Field(default=0, ge=0, lt=2**32)

    @field_validator("sampling_table_size")
    @classmethod
    def _power_of_two(cls, size: int) -> int:
        if size.bit_count() != 1 or not 2**8 <= size <= 2**20:
            raise ValueError("must be a power of two, 256 to 1,048,576")
        return size

    def places(self) -> int:
        """Return from how many numbers keys must be drawn for the law to hold.

        It is the number of the table's places, or of the stack's own table if that has more.
        """
        return max(self.sampling_table_size, STACK_TABLE_PLACES)

    def label(self) -> str:
        """See Format."""
        return f"{super().label()};table={self.sampling_table_size};table_seed={self.sampling_table_seed}"

    def law(self) -> Law:
        """Return the law that is exact over keys that are uniform mod the table's size."""
        return Floored(Surprise(self.depth), self._bits())

    def basis(self) -> Basis:
        """Return the basis: for each layer, as many bits as name a place in the table. Assumed for a published list."""
        return Basis(self._bits(), assumed=self.published)

    def seconds(self, messages: int) -> float:
        """Return five times the measured time with its exact law, for texts that need one."""
        return 5e-6

    def open(self, secret: bytes) -> SynthId:
        """Open it with 8 bytes a key, big-endian."""
        self._checked(secret)
        return SynthId(self, secret, 1, TableBits(bits(self.sampling_table_seed, self.sampling_table_size)))

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.stacks.synthid.proof import SynthIdProof

        table = self.sampling_table_seed, self.sampling_table_size
        return SynthIdProof(secret, self.depth, self.ngram_len, self.score == "weighted", table, self._bits())

    def _runs(self, keys: list[bytes]) -> list[OtherKey]:
        """Return three runs that share draws with the whole key: the first, and those before and after the middle."""
        half, length = self.depth // 2, self.depth // 4
        return [self._run(keys, first, first + length) for first in (0, half - length, half)] if length else []

    def _bits(self) -> int:
        # below 128 for any number of layers, because each can be searched on its own in marked text
        return min(self.depth * (self.sampling_table_size.bit_length() - 1), 127)


class SynthIdMixedFormat(_SynthIdFormat):
    """SynthID with the bits of Google's git version of June 2025.

    It mixes them from a start that depends on all keys.
    """

    name = "synthid-mixed"
    title = "SynthID-Text, git version of June 2025"

    def law(self) -> Law:
        """Return the law of bits that depend on each other as the bits of the text itself do (stacks.synthid.bits)."""
        return Floored(Surprise(self.depth), 64)

    def basis(self) -> Basis:
        """Return the basis of a hash that is assumed to behave as random."""
        return Basis(64, assumed=True)

    def seconds(self, messages: int) -> float:
        """Return five times the measured time with its exact law, for texts that need one."""
        return 1e-5

    def open(self, secret: bytes) -> SynthId:
        """Open it with 8 bytes a key, big-endian."""
        return SynthId(self, secret, start_of(self._checked(secret)), MixedBits())

    def proof(self, secret: bytes) -> ProofPath:
        """See Proves."""
        from scanner.watermark.stacks.synthid.proof import SynthIdProof

        return SynthIdProof(secret, self.depth, self.ngram_len, self.score == "weighted", None, 64)


def start_of(keys: list[int]) -> int:
    """Return the start of hashes of the git version.

    It is SHA-256 of the keys as little-endian 64-bit numbers, mod 2^63−1.
    """
    key_bytes = np.array(keys, np.uint64).astype("<u8").tobytes()
    return int.from_bytes(hashlib.sha256(key_bytes).digest(), "big") % (2**63 - 1)


def keys_of(secret: bytes, depth: int) -> NDArray[np.uint64]:
    """Return keys of 8 bytes each, big-endian: uint64[m].

    Raises:
        ValueError: the secret has another length, or a key is beyond 2^63.
    """
    if len(secret) != 8 * depth:
        raise ValueError(f"{depth} keys of SynthID have {8 * depth} bytes; this secret has {len(secret)}")
    keys = np.frombuffer(secret, ">u8").astype(np.uint64)
    if np.any(keys >= np.uint64(2**63)):
        raise ValueError("a key of SynthID is below 2^63")
    return keys


def _detection(case: Case) -> Pairs:
    """Yield bits, masks and the stack's own scores."""
    keys, length, table = case["keys"], case["ngram_len"], case["variant"] == "hf_table"
    shape = {"depth": len(keys), "ngram_len": length, "published": True}
    form: SynthIdTableFormat | SynthIdMixedFormat = SynthIdMixedFormat(**shape)
    if table:
        table_fields = {name: case[name] for name in ("sampling_table_size", "sampling_table_seed")}
        form = SynthIdTableFormat(**shape, **table_fields)
    mark, tokens = form.open(b"".join(key.to_bytes(8, "big") for key in keys)), batch_tokens([case["tokens"]])
    positions = scored_positions(tokens, length - 1, "none")
    positions = Positions(positions.index, np.arange(len(positions.index) + 1))
    ones, out = mark.ones(tokens, positions), case["out"]
    rows = ones[: len(out["g_rows"])].tolist()
    yield "g_rows", out["g_rows"], ["".join(map(str, row)) for row in rows]
    start = 1 if table else start_of(keys)
    contexts = hashes(tokens.ids, positions.index - 1, length - 1, uint64(start)).tolist()
    mask = [context not in contexts[max(0, i - case["context_history_size"]) : i] for i, context in enumerate(contexts)]
    yield "repetition_mask", out["repetition_mask"], "".join("01"[new] for new in mask)
    if case["eos_token_id"] is not None:
        has_ended = np.cumsum(np.asarray(case["tokens"]) == case["eos_token_id"])[length - 1 :] > 0
        yield "eos_mask", out["eos_mask"], "".join("10"[int(end)] for end in has_ended)
        mask = [new and not end for new, end in zip(mask, has_ended, strict=True)]
    yield "n_unmasked", out["n_unmasked"], sum(mask)
    counts, weights = ones[np.array(mask)].sum(axis=0), form.weights()
    yield "mean_score", out["mean_score"], float(counts.sum() / (sum(mask) * len(keys)))
    yield "weighted_mean_score", out["weighted_mean_score"], float(counts @ weights / (sum(mask) * weights.sum()))
    if not table:
        yield "hash_iv", int(out["hash_iv"]), start


SynthIdTableFormat.answers = KnownAnswers(files(__package__) / "synthid_table.json", {"synthid_table": _detection})
SynthIdMixedFormat.answers = KnownAnswers(files(__package__) / "synthid_mixed.json", {"synthid_mixed": _detection})
