"""The slow, plain reference of the native watermark: what scanner.watermark must agree with.

Written from scanner/watermark/SPEC.md alone, one function a sentence of it, in Python integers, hashlib, math and
mpmath. It shares no code with the fast path and imports nothing of ours, so an error would have to be made twice.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count

import mpmath

# --- SPEC §1: from the master key to one step's secret vector ---------------------------------------------------------

MASK32, MASK64 = 2**32 - 1, 2**64 - 1


@dataclass(frozen=True)
class SubKeys:
    """ChaCha key (8 words of 32 bits) and SipHash key (16 bytes) of one label."""

    chacha: tuple[int, ...]
    sip: bytes


def label(method: str, window: int, gamma: Fraction | None = None) -> str:
    if method == "greenlist":
        return f"greenlist;h={window};gamma={gamma.numerator}/{gamma.denominator}"
    return f"gumbel;h={window}"


def blake2b(secret: bytes, size: int, person: str, data: str) -> bytes:
    return hashlib.blake2b(data.encode("ascii"), key=secret, digest_size=size, person=person.encode("ascii")).digest()


def sub_keys(secret: bytes, label: str) -> SubKeys:
    digest = blake2b(secret, 48, "watermark-v1", label)
    return SubKeys(tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)), digest[32:])


def commitment(secret: bytes, label: str) -> bytes:
    return blake2b(secret, 32, "commitment-v1", label)


def rotate(value: int, by: int, bits: int) -> int:
    return ((value << by) | (value >> (bits - by))) & (2**bits - 1)


def sip_round(v: list[int]) -> None:
    v[0] = (v[0] + v[1]) & MASK64
    v[2] = (v[2] + v[3]) & MASK64
    v[1] = rotate(v[1], 13, 64) ^ v[0]
    v[3] = rotate(v[3], 16, 64) ^ v[2]
    v[0] = rotate(v[0], 32, 64)
    v[2] = (v[2] + v[1]) & MASK64
    v[0] = (v[0] + v[3]) & MASK64
    v[1] = rotate(v[1], 17, 64) ^ v[2]
    v[3] = rotate(v[3], 21, 64) ^ v[0]
    v[2] = rotate(v[2], 32, 64)


def siphash24(key: bytes, data: bytes) -> int:
    """SipHash-2-4 (Aumasson and Bernstein 2012): 64 bits of `data` under a key of 16 bytes."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    whole = len(data) - len(data) % 8
    last = data[whole:] + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for i in range(0, whole + 8, 8):
        word = int.from_bytes((data[:whole] + last)[i : i + 8], "little")
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(4):
        sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def mix(s: list[int], a: int, b: int, d: int, by: int) -> None:
    s[a] = (s[a] + s[b]) & MASK32
    s[d] = rotate(s[d] ^ s[a], by, 32)


def quarter_round(s: list[int], a: int, b: int, c: int, d: int) -> None:
    mix(s, a, b, d, 16)
    mix(s, c, d, b, 12)
    mix(s, a, b, d, 8)
    mix(s, c, d, b, 7)


COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


@lru_cache(maxsize=200_000)
def chacha8_block(key: tuple[int, ...], counter: int, nonce: int) -> tuple[int, ...]:
    """One block (16 words) of ChaCha with 8 rounds, in Bernstein's layout: 64-bit counter and 64-bit nonce."""
    start = [int.from_bytes(b"expand 32-byte k"[i : i + 4], "little") for i in range(0, 16, 4)]
    start += [*key, counter & MASK32, counter >> 32, nonce & MASK32, nonce >> 32]
    state = list(start)
    for _ in range(4):
        for places in COLUMNS + DIAGONALS:
            quarter_round(state, *places)
    return tuple((a + b) & MASK32 for a, b in zip(start, state, strict=True))


def window_nonce(keys: SubKeys, window: Sequence[int]) -> int:
    return siphash24(keys.sip, b"".join(token.to_bytes(4, "little") for token in window))


def stream_word(keys: SubKeys, nonce: int, planes: int, plane: int, i: int) -> int:
    """Word `i` of plane `plane` of a block that carries `planes` planes side by side."""
    per_block = 16 // planes
    group, r = divmod(i, 16 * per_block)
    return chacha8_block(keys.chacha, 16 * group + r % 16, nonce)[plane * per_block + r // 16]


def binary_digits(gamma: Fraction) -> int:
    """b of γ = n / 2^b."""
    return gamma.denominator.bit_length() - 1


def is_green(keys: SubKeys, nonce: int, entry: int, gamma: Fraction) -> bool:
    digits = binary_digits(gamma)
    planes = next(power for power in (1, 2, 4, 8) if power >= digits)
    number = 0
    for plane in range(digits):  # most significant first
        number = 2 * number + (stream_word(keys, nonce, planes, plane, entry // 32) >> (entry % 32) & 1)
    return number < gamma.numerator


def draw(keys: SubKeys, nonce: int, entry: int) -> int:
    return stream_word(keys, nonce, 1, 0, entry)


# --- SPEC §2: what marking computes from a draw -----------------------------------------------------------------------


def minus_ln_r(w: int) -> mpmath.mpf:
    """−ln((w + 1/2) / 2^32), exact to 50 digits; the caller rounds."""
    with mpmath.workdps(50):
        return -mpmath.log((w + mpmath.mpf(1) / 2) / 2**32)


# --- SPEC §3: testing a text ------------------------------------------------------------------------------------------


def scored_positions(tokens: Sequence[int], window: int, dedup: str) -> list[int]:
    seen: set[tuple[int, ...]] = set()
    positions = []
    for t in range(window, len(tokens)):
        context = tuple(tokens[t - window : t])
        unit = {"ngram": (*context, tokens[t]), "context": context, "none": (t,)}[dedup]
        if unit not in seen:
            seen.add(unit)
            positions.append(t)
    return positions


def gumbel_term(w: int) -> float:
    return -math.log1p(-w / 2**32)


def log_gumbel_term(w: int) -> float:
    return math.log(w / 2**32) if w else -math.inf


class Method:
    """One of `greenlist`, `gumbel`, `gumbel-log` under one secret; the last reads gumbel's streams."""

    def __init__(self, method: str, secret: bytes, window: int, gamma: Fraction | None = None) -> None:
        self.method, self.window, self.gamma = method, window, gamma
        self.label = label("greenlist" if method == "greenlist" else "gumbel", window, gamma)
        self.keys, self.commitment = sub_keys(secret, self.label), commitment(secret, self.label)

    def term(self, nonce: int, entry: int) -> int | float:
        """Part of S that one scored position gives when its token meets `entry`."""
        if self.method == "greenlist":
            return int(is_green(self.keys, nonce, entry, self.gamma))
        return (gumbel_term if self.method == "gumbel" else log_gumbel_term)(draw(self.keys, nonce, entry))

    def scores(self, tokens: Sequence[int], messages: Sequence[int], dedup: str = "ngram") -> list[int | float]:
        """S of every message: the sum over scored positions, in their order."""
        tokens = [int(token) for token in tokens]
        steps = [
            (window_nonce(self.keys, tokens[t - self.window : t]), tokens[t])
            for t in scored_positions(tokens, self.window, dedup)
        ]
        totals = [0 if self.method == "greenlist" else 0.0] * len(messages)
        for nonce, token in steps:
            for place, m in enumerate(messages):
                totals[place] += self.term(nonce, token + m)
        return totals

    def score(self, tokens: Sequence[int], message: int, dedup: str = "ngram") -> int | float:
        return self.scores(tokens, [message], dedup)[0]

    def best_two(self, tokens: Sequence[int], messages: int, dedup: str = "ngram") -> list[tuple[int, int | float]]:
        """The two (message, score) of largest score, ties to the smallest message; one pair for a single message."""
        scores = self.scores(tokens, range(messages), dedup)
        return sorted(enumerate(scores), key=lambda pair: (-pair[1], pair[0]))[:2]

    def log10_p(self, score: float, scored: int) -> mpmath.mpf:
        if self.method == "greenlist":
            return log10_greenlist(int(score), scored, self.gamma)
        return (log10_gumbel if self.method == "gumbel" else log10_gumbel_log)(score, scored)


# --- p-values: exact sums of positive terms, of the smaller tail, so that p near 1 keeps its digits -------------------

DIGITS = 50


def sum_while_it_matters(first: mpmath.mpf, ratios) -> mpmath.mpf:
    """first·(1 + r1 + r1·r2 + …) for terms that fall in the end."""
    total = term = first
    for ratio in ratios:
        term *= ratio
        total += term
        if ratio < 1 and term < total * mpmath.mpf(10) ** -(DIGITS + 10):
            break
    return total


def log10_of_rest(other: mpmath.mpf) -> mpmath.mpf:
    return mpmath.log1p(-other) / mpmath.log(10)


def log10_greenlist(score: int, scored: int, gamma: Fraction) -> mpmath.mpf:
    """I_γ(S, T−S+1) = P(Binomial(T, γ) ≥ S)."""
    if score == 0:
        return mpmath.mpf(0)
    with mpmath.workdps(DIGITS + 20):
        g = mpmath.mpf(gamma.numerator) / gamma.denominator
        odds = g / (1 - g)

        def chance(k: int) -> mpmath.mpf:
            return mpmath.binomial(scored, k) * g**k * (1 - g) ** (scored - k)

        if score > scored * gamma:
            up = (odds * (scored - k) / (k + 1) for k in range(score, scored))
            return mpmath.log10(sum_while_it_matters(chance(score), up))
        down = (k / (odds * (scored - k + 1)) for k in range(score - 1, 0, -1))
        return log10_of_rest(sum_while_it_matters(chance(score - 1), down))


def log10_gamma_tail(x: mpmath.mpf, shape: int, upper: bool) -> mpmath.mpf:
    """Γ(T, x)/Γ(T) or γ(T, x)/Γ(T) for an integer T: P(Poisson(x) < T) or P(Poisson(x) ≥ T)."""

    def chance(k: int) -> mpmath.mpf:
        return mpmath.exp(k * mpmath.log(x) - x - mpmath.loggamma(k + 1))

    if shape <= x:  # P(fewer than T) is the smaller tail: its terms fall from T − 1 down
        fewer = sum_while_it_matters(chance(shape - 1), (k / x for k in range(shape - 1, 0, -1)))
        return mpmath.log10(fewer) if upper else log10_of_rest(fewer)
    more = sum_while_it_matters(chance(shape), (x / k for k in count(shape + 1)))
    return log10_of_rest(more) if upper else mpmath.log10(more)


def log10_gumbel(score: float, scored: int) -> mpmath.mpf:
    if scored == 0 or score == 0:
        return mpmath.mpf(0)
    with mpmath.workdps(DIGITS + 20):
        return log10_gamma_tail(mpmath.mpf(score), scored, upper=True)


def log10_gumbel_log(score: float, scored: int) -> mpmath.mpf:
    if scored == 0 or score == -math.inf:
        return mpmath.mpf(0)
    with mpmath.workdps(DIGITS + 20):
        return log10_gamma_tail(-mpmath.mpf(score), scored, upper=False)


def log10_any_of(log10_p: float, tests: int) -> mpmath.mpf:
    """log10(1 − (1 − p)^tests)."""
    if log10_p == 0:
        return mpmath.mpf(0)
    with mpmath.workdps(DIGITS + 20):
        ln_p = mpmath.mpf(log10_p) * mpmath.log(10)
        ln_not_p = mpmath.log1p(-mpmath.exp(ln_p)) if ln_p < -1 else mpmath.log(-mpmath.expm1(ln_p))
        ln_none = tests * ln_not_p
        ln_any = mpmath.log(-mpmath.expm1(ln_none)) if ln_none > -1 else mpmath.log1p(-mpmath.exp(ln_none))
        return ln_any / mpmath.log(10)


def z_test(method: str, score: float, scored: int, gamma: Fraction | None = None) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Z = (S − Tμ)/(σ√T) and p = 1 − Φ(Z): kept to show where it fails."""
    with mpmath.workdps(DIGITS):
        if method == "greenlist":
            g = mpmath.mpf(gamma.numerator) / gamma.denominator
            mean, variance = g, g * (1 - g)
        else:
            mean, variance = mpmath.mpf(1 if method == "gumbel" else -1), mpmath.mpf(1)
        z = (mpmath.mpf(score) - scored * mean) / mpmath.sqrt(variance * scored)
        return z, mpmath.erfc(z / mpmath.sqrt(2)) / 2
