"""Define the common part of other stacks' formats: opened keys that show no key, and draws that a seed decides.

An opened key shows a label and nothing of the key, and has decoys. If a seed of 32 bits and the token decide a draw,
each pair of them counts once in a document.
"""

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, Self

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray
from pydantic import Field, model_validator

from scanner.watermark.format import Basis, Format, Watermark
from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Law
from scanner.watermark.positions import (
    TABLE_FACTOR,
    Dedup,
    PositionRule,
    Positions,
    Tokens,
    consecutive_positions,
    positions_where,
)


def hashing_key(secret: bytes) -> int:
    """Return the hashing key of 8 bytes, big-endian, of the green lists that hash with one.

    Raises:
        ValueError: the secret has another length, or the key gives different tokens the same seed.
    """
    if len(secret) != 8:
        raise ValueError(f"a hashing key has 8 bytes; this secret has {len(secret)}")
    key = int.from_bytes(secret, "big")
    if key >= 2**63 or key % 2**12 == 0:
        raise ValueError("a hashing key is at least 1, below 2^63, and not a multiple of 4,096")
    return key


class StackFormat(Format):
    """A format of another stack, which draws its keys."""

    if_guessed = "Anyone who guesses it can make the mark: have the stack mark with a randomly drawn key"

    def decoy_key(self, entropy: bytes) -> bytes:
        """Return the secret made of 32 uniform bytes: its first bytes, as many as a secret has."""
        return entropy[: self.secret_bytes.stop - 1]


class DrawnFormat(StackFormat):
    """A format whose p-values hold over the draw of its key, under position rules that no key changes."""

    def draw_key(self, entropy: bytes) -> bytes:
        """See DrawsKeys."""
        return self.decoy_key(entropy)


MOST_TOKENS = 2**22
"""Largest number of tokens in a vocabulary, sixteen times the largest known one.

Shuffling it takes 16 MiB and 10 ms.
"""


CPU = "CPU generator"


class VocabularyFormat(StackFormat):
    """A format whose draws cover a whole vocabulary: the width of the model's logits, padding included."""

    vocab_size: int = Field(ge=2, le=MOST_TOKENS, description="the width of the model's logits, in its config.json")

    generator = CPU

    def vocabulary(self) -> int | None:
        """See Format."""
        return self.vocab_size

    @property
    def green(self) -> int:
        """Return how many tokens of the vocabulary are green. 0 in a format without green lists."""
        return 0


class ShuffledGreenFormat(VocabularyFormat):
    """A format that shuffles a vocabulary and makes its first tokens green."""

    def share(self) -> float:
        """Return the share of green tokens, as in the stack's parameter."""
        raise NotImplementedError

    @property
    def green(self) -> int:
        """Return how many tokens of the vocabulary are green, rounded as the stacks do."""
        return int(self.vocab_size * self.share())

    @model_validator(mode="after")
    def _some_are_green(self) -> Self:
        if not 0 < self.green < self.vocab_size:
            raise ValueError(f"of {self.vocab_size:,} tokens {self.green:,} would be green: some must be, and not all")
        return self


class StackMark:
    """A format under one secret, without its score (scanner.watermark.format.Watermark).

    secret: as `form` takes it.
    """

    def __init__(self, form: StackFormat, rule: PositionRule, secret: bytes) -> None:
        self.label: str = form.label()
        self.law: Law | None = form.law()
        self.basis: Basis = form.basis()
        self.rule = rule
        self._form, self._secret = form, HiddenValue(secret)
        self._decoys: HiddenValue[dict[int, Watermark]] = HiddenValue({})

    def decoy(self, number: int) -> Watermark:
        """See RanksAmongDecoys. Decoys are derived from the secret, so every scan uses the same ones."""
        decoys = self._decoys.value
        if number not in decoys:
            decoys[number] = self._open_decoy(self._form.decoy_key(self._entropy(number)))
        return decoys[number]

    def _open_decoy(self, secret: bytes) -> Watermark:
        return self._form.open(secret)

    def _entropy(self, number: int) -> bytes:
        """Return 32 bytes that reveal nothing of the secret."""
        decoy_name, secret = f"{self.label} {number}".encode("ascii"), self._secret.value
        key = secret if len(secret) <= 64 else hashlib.blake2b(secret).digest()  # blake2b takes no longer key
        return hashlib.blake2b(decoy_name, key=key, digest_size=32, person=b"rank-decoys-v1").digest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} holds a key and is never pickled; open the key again where it is needed"
        )


def check_message(messages: NDArray[np.int64] | int) -> None:
    """Raise ValueError for a message other than 0. A mark without messages has no other."""
    if np.any(messages):
        raise ValueError(
            f"message {np.max(np.abs(messages))} is out of range; the mark carries no message, which counts as "
            "message 0"
        )


_FACTOR = uint64(int.from_bytes(os.urandom(8), "little") | 1)  # so that no text makes the search for repeats slow
_OF_PROCESS = os.urandom(32)


def seeded_positions(tokens: Tokens, seeds: NDArray[np.uint32], skip: int, dedup: Dedup) -> Positions:
    """Return one position for each seed and token, or, with dedup `context`, the first for each seed.

    Args:
        tokens: of a batch.
        seeds: uint32[N], seed of each token's position.
        skip: number of positions at the start of a document that are not scored.
        dedup: the repeats that are left out.
    """
    if dedup == "none":
        return consecutive_positions(tokens.offsets[:-1] + skip, np.maximum(np.diff(tokens.offsets) - skip, 0))
    longest = int(np.diff(tokens.offsets).max(initial=1))
    table = np.full(1 << (TABLE_FACTOR * longest - 1).bit_length(), -1, np.int64)
    return Positions(*_first_of_each(tokens.ids, tokens.offsets, seeds, skip, dedup == "ngram", _FACTOR, table))


Seeds = Callable[[Tokens], NDArray[np.uint32]]
"""A function from a batch to the seed of the draw at each place: uint32[N]."""


def key_fingerprint(name: str, secret: bytes) -> str:
    """Return a text that differs for different keys of a format.

    Outside this process, it cannot be used to test keys.
    """
    return hashlib.blake2b(name.encode("ascii") + b"\0" + secret, key=_OF_PROCESS, digest_size=16).hexdigest()


@dataclass(frozen=True)
class BySeed:
    """Positions that score each pair of seed and token once.

    The key decides which windows share a seed, so every key has a rule of its own.

    window: number of tokens before a scored one that its seed depends on.
    skipped: number of positions at a document's start that the stack leaves out.
    key: tells keys apart and reveals nothing else about them.
    seeds: function that returns the seed of each place in a batch, uint32[N].
    keyless: seeds that are the same under every key. Their positions are left out.
    size: tokens from this one on have no draw of their own, and are left out too.
    """

    window: int
    skipped: int
    key: str = field(repr=False)
    seeds: HiddenValue[Seeds] = field(compare=False, repr=False)
    keyless: range = range(0)
    size: int = 2**32

    @property
    def context(self) -> int:
        """Return the number of positions at the start that are not scored."""
        return self.skipped

    def positions(self, tokens: Tokens, dedup: Dedup) -> Positions:
        """See PositionRule."""
        seeds = self.seeds.value(tokens)
        positions = seeded_positions(tokens, seeds, self.skipped, dedup)
        position_seeds, first, end = seeds[positions.index], self.keyless.start, self.keyless.stop
        unscorable = ((position_seeds >= first) & (position_seeds < end)) | (tokens.ids[positions.index] >= self.size)
        return positions_where(positions, ~unscorable) if unscorable.any() else positions

    def ngram(self, tokens: Tokens, place: int) -> tuple[int, ...]:
        """See PositionRule."""
        return tuple(tokens.ids[place - self.window : place + 1].tolist())


@kernel
def _first_of_each(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    seeds: NDArray[np.uint32],
    skip: int,
    with_token: bool,
    factor: uint64,
    table: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first place of each seed, or of each seed and token, in each document: int64[P], int64[D+1].

    The table is open-addressed and holds places. Entries of an earlier document are recognised by their place.
    """
    occurrences, occurrence_offsets = np.empty(len(ids), np.int64), np.zeros(len(offsets), np.int64)
    count = 0
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        bits = 1
        while (1 << bits) < TABLE_FACTOR * (end - begin):
            bits += 1
        mask, shift = uint64((1 << bits) - 1), uint64(64 - bits)
        for place in range(begin + skip, end):
            seed, token = seeds[place], ids[place]
            slot = ((uint64(seed) | uint64(token if with_token else 0) << uint64(32)) * factor) >> shift
            while table[slot] >= begin:
                occupant = table[slot]
                if seeds[occupant] == seed and (not with_token or ids[occupant] == token):
                    break
                slot = (slot + uint64(1)) & mask
            if table[slot] < begin:
                table[slot] = place
                occurrences[count] = place
                count += 1
        occurrence_offsets[d + 1] = count
    return occurrences[:count], occurrence_offsets


@kernel
def term(word: uint32) -> float:
    """Return −ln(1−k/2^24) of the word's 24 bits k.

    k is the lower end of its cell, so the term is never more than that of an exact draw.
    """
    return -math.log((16777216.0 - float(uint32(word >> uint32(8)))) * 2.0**-24)
