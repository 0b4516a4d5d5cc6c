"""The slow, plain reference of version 3 of the native watermark: what the fast path of version 3 must agree with.

Written from the specification alone, one function a sentence of it, in Python integers, with ciphers of its own. It
takes laws and corrections from the reference of version 1, imports nothing of ours, and shares no code with the fast
path.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from tests import reference

GROUPS_DRAWN_IN_FULL = 8
ROUGH_BLOCKS = 2**63
"""What the counters of the eight planes have added."""

Key = tuple[int, ...]
"""Eight words of 32 bits."""


# --- ciphers ----------------------------------------------------------------------------------------------------------


def turned(value: int, left: int, bits: int) -> int:
    """A word of so many bits, rotated to the left."""
    return (value << left | value >> (bits - left)) % 2**bits


def siphash24(key: bytes, data: bytes) -> int:
    """SipHash-2-4 of Aumasson and Bernstein (2012) under 16 bytes: 64 bits."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:16], "little")
    v0, v1 = k0 ^ int.from_bytes(b"somepseu", "big"), k1 ^ int.from_bytes(b"dorandom", "big")
    v2, v3 = k0 ^ int.from_bytes(b"lygenera", "big"), k1 ^ int.from_bytes(b"tedbytes", "big")
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    rounds = [(int.from_bytes(padded[i : i + 8], "little"), 2) for i in range(0, len(padded), 8)]
    for word, count in [*rounds, (None, 4)]:
        if word is None:
            v2 ^= 0xFF
        else:
            v3 ^= word
        for _ in range(count):
            v0 = (v0 + v1) % 2**64
            v1 = turned(v1, 13, 64) ^ v0
            v0 = turned(v0, 32, 64)
            v2 = (v2 + v3) % 2**64
            v3 = turned(v3, 16, 64) ^ v2
            v0 = (v0 + v3) % 2**64
            v3 = turned(v3, 21, 64) ^ v0
            v2 = (v2 + v1) % 2**64
            v1 = turned(v1, 17, 64) ^ v2
            v2 = turned(v2, 32, 64)
        if word is not None:
            v0 ^= word
    return v0 ^ v1 ^ v2 ^ v3


@lru_cache(maxsize=1 << 16)
def chacha8(key: Key, counter: int, nonce: int) -> tuple[int, ...]:
    """One block of ChaCha with 8 rounds, 64-bit counter and 64-bit nonce: 16 words."""
    constants = tuple(int.from_bytes(part, "little") for part in (b"expa", b"nd 3", b"2-by", b"te k"))
    start = (*constants, *key, counter % 2**32, counter >> 32, nonce % 2**32, nonce >> 32)
    x = list(start)
    for round_number in range(8):
        for column in range(4):
            shift = round_number % 2  # odd rounds go along the diagonals
            a, b, c, d = (4 * row + (column + shift * row) % 4 for row in range(4))
            for add_to, add, turn, left in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[add_to] = (x[add_to] + x[add]) % 2**32
                x[turn] = turned(x[turn] ^ x[add_to], left, 32)
    return tuple((word + first) % 2**32 for word, first in zip(x, start, strict=True))


def words_of(data: bytes) -> Key:
    """Bytes as words of 32 bits, little-endian."""
    return tuple(int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4))


def bytes_of(words: Iterable[int]) -> bytes:
    """Words of 32 bits as bytes."""
    return b"".join(word.to_bytes(4, "little") for word in words)


# --- section 1: from the master key to one step -----------------------------------------------------------------------


def label(method: str, window: int, gamma: Fraction | None = None, groups: int | None = None, seeds: int = 24) -> str:
    parts = [f"{method}-v3", f"h={window}"]
    if gamma is not None:
        parts.append(f"gamma={gamma.numerator}/{gamma.denominator}")
    if groups is not None:
        parts.append(f"groups={groups}")
    return ";".join([*parts, f"seeds={seeds}"])


def seed_key(secret: bytes, label: str) -> Key:
    return words_of(hashlib.blake2b(label.encode(), key=secret, digest_size=32, person=b"watermark-v3").digest())


def commitment(secret: bytes, label: str) -> bytes:
    return hashlib.blake2b(label.encode(), key=secret, digest_size=32, person=b"commitment-v3").digest()


def window_key(window: int, seeds: int) -> bytes:
    """The public key of the windows' hashes."""
    return hashlib.blake2b(f"h={window};seeds={seeds}".encode(), digest_size=32, person=b"windows-v3").digest()


def window_nonces(window: Sequence[int], seeds: int) -> tuple[int, int]:
    """N and N' of the tokens before a step."""
    key, data = window_key(len(window), seeds), bytes_of(window)
    return siphash24(key[:16], data), siphash24(key[16:], data)


def bucket_of(nonce: int, seeds: int) -> int:
    return nonce >> (64 - seeds)


def seed_of(seed_key: Key, bucket: int) -> bytes:
    return bytes_of(chacha8(seed_key, 0, bucket)[:8])


def step_key(seed: bytes, beacon: bytes, second: int) -> Key:
    """The key of a step: its bucket's seed ⊕ R, and then N' into the first two words."""
    words = [a ^ b for a, b in zip(words_of(seed), words_of(beacon), strict=True)]
    words[0] ^= second % 2**32
    words[1] ^= second >> 32
    return tuple(words)


def is_group_step(key: Key) -> bool:
    return (key[7] * 3) >> 32 == 0


def entry(token: int, number: int) -> int:
    return token * 2**32 + number


def stream_word(key: Key, nonce: int, planes: int, plane: int, i: int, first_block: int = 0) -> int:
    """Word `i` of plane `plane` of a stream whose blocks carry `planes` planes side by side."""
    per_block = 16 // planes
    return chacha8(key, first_block + i // per_block, nonce)[plane * per_block + i % per_block]


def digits_at(key: Key, nonce: int, planes: int, digits: int, j: int, first_block: int = 0) -> int:
    """The binary digits that stand at entry j of the planes, plane 0 first, as an integer."""
    value = 0
    for plane in range(digits):
        value = 2 * value + (stream_word(key, nonce, planes, plane, j // 32, first_block) >> (j % 32) & 1)
    return value


def is_green(key: Key, nonce: int, j: int, gamma: Fraction) -> bool:
    digits = gamma.denominator.bit_length() - 1
    planes = min(power for power in (1, 2, 4, 8) if power >= digits)
    return digits_at(key, nonce, planes, digits, j) < gamma.numerator


def eight_digits(key: Key, nonce: int, j: int) -> int:
    """c: the first eight binary digits of a draw under a label with groups."""
    return digits_at(key, nonce, 8, 8, j, ROUGH_BLOCKS)


def draw(key: Key, nonce: int, j: int, in_groups: bool) -> int:
    word = stream_word(key, nonce, 1, 0, j)
    return eight_digits(key, nonce, j) * 2**24 + (word >> 8) if in_groups else word


def leading_ones(draw: int) -> int:
    """The ones that the eight digits of a draw begin with."""
    return 8 - (255 - (draw >> 24)).bit_length()


# --- sections 3 and 4: messages and scans -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One scored position."""

    place: int
    token: int
    nonce: int
    second: int
    bucket: int
    key: Key
    of_group: bool


@dataclass(frozen=True)
class Candidate:
    """A message of one document, its score, and what its group steps add to it."""

    message: int
    score: int | float
    score_group: int | float
    log10_p: float
    log10_p_all: float
    log10_p_user: float


class Method:
    """One of `greenlist`, `gumbel`, `gumbel-log`, with or without groups, under one secret.

    beacon: R.
    shown: buckets that claims have shown.
    """

    def __init__(
        self,
        method: str,
        secret: bytes,
        window: int,
        gamma: Fraction | None = None,
        groups: int | None = None,
        seeds: int = 24,
        beacon: bytes = bytes(32),
        shown: Collection[int] = (),
    ) -> None:
        self.method, self.window, self.gamma, self.groups = method, window, gamma, groups
        self.seeds, self.beacon, self.shown = seeds, beacon, set(shown)
        self.label = label("greenlist" if method == "greenlist" else "gumbel", window, gamma, groups, seeds)
        self.seed_key, self.commitment = seed_key(secret, self.label), commitment(secret, self.label)

    def step(self, window: Sequence[int], token: int, place: int = 0) -> Step:
        """The step that writes a token after the tokens of a window."""
        nonce, second = window_nonces(window, self.seeds)
        bucket = bucket_of(nonce, self.seeds)
        key = step_key(seed_of(self.seed_key, bucket), self.beacon, second)
        return Step(place, token, nonce, second, bucket, key, self.groups is not None and is_group_step(key))

    def steps(self, tokens: Sequence[int], dedup: str = "ngram") -> list[Step]:
        """The scored positions, in order."""
        tokens, scored, seen = [int(token) for token in tokens], [], set()
        for place in range(self.window, len(tokens)):
            step = self.step(tokens[place - self.window : place], tokens[place], place)
            context = step.nonce, step.second
            unit = {"ngram": (*context, step.token), "context": context, "none": place}[dedup]
            if step.bucket not in self.shown and unit not in seen:
                seen.add(unit)
                scored.append(step)
        return scored

    def number(self, message: int, of_group: bool) -> int:
        """The number that a message reads in a step."""
        if self.groups is None:
            return message
        group, user = divmod(message, self.groups)
        return group if of_group else group * 2**16 + user

    def draw(self, step: Step, number: int) -> int:
        return draw(step.key, step.nonce, entry(step.token, number), self.groups is not None)

    def term(self, step: Step, number: int) -> int | float:
        """What one scored position adds to the score of every message that reads `number` there."""
        if self.method == "greenlist":
            return int(is_green(step.key, step.nonce, entry(step.token, number), self.gamma))
        w = self.draw(step, number)
        if self.method == "gumbel":
            return -math.log1p(-w / 2**32)
        return math.log(w / 2**32) if w else -math.inf

    def rough_term(self, step: Step, number: int) -> int:
        """What one scored position adds to the rough score, which a search with groups begins from."""
        if self.method == "greenlist":
            return int(self.term(step, number))
        return leading_ones(eight_digits(step.key, step.nonce, entry(step.token, number)) << 24)

    def sum_of(self, steps: Iterable[Step], number: int) -> int | float:
        total = 0 if self.method == "greenlist" else 0.0
        for step in steps:
            total += self.term(step, number)
        return total

    def rough_sum_of(self, steps: Iterable[Step], number: int) -> int:
        return sum(self.rough_term(step, number) for step in steps)

    def scores(self, tokens: Sequence[int], message: int, dedup: str = "ngram") -> tuple[int | float, int | float]:
        """S and S_G of one message."""
        steps = self.steps(tokens, dedup)
        of_group = self.sum_of([s for s in steps if s.of_group], self.number(message, True))
        return of_group + self.sum_of([s for s in steps if not s.of_group], self.number(message, False)), of_group

    def log10_p(self, score: float, scored: int) -> float:
        if scored == 0:
            return 0.0
        if self.method == "greenlist":
            return float(reference.log10_greenlist(int(score), scored, self.gamma))
        return float((reference.log10_gumbel if self.method == "gumbel" else reference.log10_gumbel_log)(score, scored))

    def best_rough(self, steps: Sequence[Step], first: int, length: int, most: int) -> list[tuple[int, int]]:
        """Numbers of largest rough score and their scores, best first, ties to the smaller; as many as there are."""
        sums = {number: self.rough_sum_of(steps, number) for number in range(first, first + length)}
        return sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:most]

    def search_all(self, tokens: Sequence[int], count: int, dedup: str = "ngram") -> list[tuple[int, int | float]]:
        """All messages of a key without groups and their scores, best first, ties to the smaller."""
        steps = self.steps(tokens, dedup)
        sums = {message: self.sum_of(steps, message) for message in range(count)}
        return sorted(sums.items(), key=lambda item: (-item[1], item[0]))

    def search(self, tokens: Sequence[int], dedup: str = "ngram") -> list[Candidate]:
        """The candidates of a document under a key with groups, best first."""
        steps = self.steps(tokens, dedup)
        of_group, of_user = [s for s in steps if s.of_group], [s for s in steps if not s.of_group]
        drawn = [group for group, _ in self.best_rough(of_group, 0, self.groups, GROUPS_DRAWN_IN_FULL)]
        sums = {group: self.sum_of(of_group, group) for group in drawn}
        bound = -float(reference.mpmath.log10(self.groups)) + 1e-9
        found = []
        for place, group in enumerate(sorted(sums, key=lambda group: (-sums[group], group))):
            if place > 0 and self.log10_p(sums[group], len(of_group)) > bound:
                break
            ((number, _),) = self.best_rough(of_user, group * 2**16, self.groups, 1)
            own = self.sum_of(of_user, number)
            total, p_user = sums[group] + own, self.log10_p(own, len(of_user))
            p = self.log10_p(total, len(steps))
            found.append(
                Candidate(
                    group * self.groups + number % 2**16,
                    total,
                    sums[group],
                    p,
                    float(reference.log10_any_of(p, self.groups**2)),
                    float(reference.log10_any_of(p_user, self.groups)),
                )
            )
        return sorted(found, key=lambda one: (-one.score, one.message))
