"""Proofs of other stacks' marks in plain Python and numpy, one lane a scored position.

Marks that torch's CPU generator draws are proved by numpy's own Mersenne Twister: numpy seeds it as torch does when it
is seeded by one number of 32 bits, as old versions did. SynthID's are proved by plain Python, vLLM's by Philox4x32-10,
and SGLang's by MurmurHash3 (x86, 32 bits).
"""

import hashlib
import hmac
import math
from collections.abc import Collection, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve  # type: ignore[import-untyped]
from scipy.special import logsumexp  # type: ignore[import-untyped]
from scipy.stats import norm  # type: ignore[import-untyped]

from scanner.watermark.proof import counted_positions, floored, log10_binomial, log10_gamma, log10_two_gammas
from scanner.watermark.stacks.shared import HiddenValue

# stands in scanner.watermark.by_levels too: a proof takes nothing from what scores
KeyWeights = tuple[tuple[tuple[float, ...], float], ...]
"""Weights of a mark's keys by which its sums are added up, and the share of the error of each choice."""

ONE_SUM: KeyWeights = (((1.0,), 1.0),)
"""Weights of a mark that has one sum."""

_64 = 2**64
_MOD = 2**64 - 1
_TABLE_ENTRIES = 1_000_003
_LCG = 6_364_136_223_846_793_005


def words(seed: int, count: int) -> list[int]:
    """The first words of the generator."""
    drawn: list[int] = np.random.RandomState(seed % 2**32).randint(0, 2**32, count, np.uint32).tolist()
    return drawn


def shuffled(seed: int, size: int, steps: int) -> list[int]:
    """The first values of a permutation of size values, after so many swaps."""
    values = list(range(size))
    for i, word in enumerate(words(seed, steps)):
        j = i + word % (size - i)
        values[i], values[j] = values[j], values[i]
    return values[:steps]


def signed(number: int) -> int:
    """The number as signed 64 bits."""
    return (number + 2**63) % _64 - 2**63


class KgwProof:
    """The proof of a hashing key's mark. Its repr shows nothing of the key."""

    def __init__(self, secret: bytes, seeding: str, width: int, size: int, green: int) -> None:
        self._key, self._left, self._width = HiddenValue(int.from_bytes(secret, "big")), seeding == "lefthash", width
        self._size, self._green = size, green
        self._table = HiddenValue([] if self._left else shuffled(self._key.value, _TABLE_ENTRIES, _TABLE_ENTRIES))

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath; the mark has one message."""
        ids, before = tokens.tolist(), self._width if self._left else self._width - 1
        places = range(before, len(ids))
        seeds = [self._seed(ids[t - before : t + 1]) % 2**32 for t in places]
        keyless = {t for t, seed in zip(places, seeds, strict=True) if self._left and seed == 0}
        kept = counted_positions(places, seeds, ids[before:], dedup, keyless.union(common_places))
        lists = {seed: set(shuffled(seed, self._size, self._green)) for seed in {seeds[i] for i in kept}}
        return len(kept), [float(sum(ids[places[i]] in lists[seeds[i]] for i in kept))] * len(messages)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return floored(log10_binomial(int(score), scored, Fraction(self._green, self._size)), 32)

    def _seed(self, window: list[int]) -> int:
        if self._left:
            return self._key.value * window[-2] % _MOD
        entries = [self._table.value[token % _TABLE_ENTRIES] + 1 for token in window]
        return min(signed(self._key.value * entry * entries[-1]) for entry in entries) % _MOD


class ThreeBricksProof:
    """The proof of the mark of a seed and a salt; without green tokens it is the Gumbel mark.

    Its repr shows nothing of them.
    """

    def __init__(self, secret: bytes, window: int, seeding: str, table_seed: int, size: int, green: int) -> None:
        self._key = HiddenValue((int.from_bytes(secret[:8], "big"), int.from_bytes(secret[8:], "big")))
        self._window, self._seeding, self._size, self._green = window, seeding, size, green
        self._table = [] if seeding == "hash" else shuffled(table_seed, _TABLE_ENTRIES, _TABLE_ENTRIES)

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath."""
        ids, h = tokens.tolist(), self._window
        places = range(h + 1, len(ids))
        seeds = [self._seed(ids[t - h : t]) % 2**32 for t in places]
        no_draws = {t for t, seed in zip(places, seeds, strict=True) if ids[t] >= self._size or not self._keyed(seed)}
        kept = counted_positions(places, seeds, ids[h + 1 :], dedup, no_draws.union(common_places))
        sums = np.zeros((len(messages), len(kept)))
        for n, i in enumerate(kept):
            met = [(ids[places[i]] + message) % self._size for message in messages]
            if self._green:
                green = set(shuffled(seeds[i], self._size, self._green))
                sums[:, n] = [token in green for token in met]
            else:
                drawn = words(seeds[i], self._size)
                sums[:, n] = [-math.log1p(-(drawn[token] % 2**24) / 2**24) for token in met]
        return len(kept), [math.fsum(row) for row in sums]

    def _keyed(self, seed: int) -> bool:
        """Whether a window's seed changes with the key."""
        return (
            seed != self._table[0] if self._table else seed >= self._size or self._seed([0] * self._window) % _MOD > 0
        )

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        if self._green:
            return floored(log10_binomial(int(score), scored, Fraction(self._green, self._size)), 32)
        return floored(log10_gamma(score, scored), 32)

    def _seed(self, window: list[int]) -> int:
        seed, salt = self._key.value
        if self._seeding == "hash":
            for token in window:
                seed = (seed * salt + token) % _MOD
            return seed
        if self._seeding == "min":
            return min(self._table[signed(salt * token) % _TABLE_ENTRIES] for token in window)
        return self._table[signed(salt * (sum(window) if self._seeding == "additive" else window[0])) % _TABLE_ENTRIES]


def log_urn(scored: int, variance: float) -> NDArray[np.float64]:
    """ln of the chance of each number of heads that an urn of two kinds of coins gives, which grows with every draw.

    It grows so fast that the number of heads varies as stated, over that of an urn that does not grow.
    """
    correlation = min((variance - 1.0) / max(scored - 1, 1), 1.0 - 1e-9)
    growth = correlation / (1.0 - correlation)
    k = np.arange(scored)
    more = np.log((scored - k) / (k + 1.0)) + np.log((0.5 + k * growth) / (0.5 + (scored - k - 1.0) * growth))
    log_law = np.concatenate([[0.0], np.cumsum(more)])
    return np.asarray(log_law - logsumexp(log_law), np.float64)


class SynthIdProof:
    """The proof of the mark of a list of keys, 8 bytes each. Its repr shows nothing of them.

    table: seed and size of the table; None: of the git version's rounds. bits: no p-value is below 2^-bits.
    """

    def __init__(
        self, secret: bytes, depth: int, length: int, weighted: bool, table: tuple[int, int] | None, bits: int
    ) -> None:
        keys = [int.from_bytes(secret[8 * i : 8 * i + 8], "big") for i in range(depth)]
        packed = b"".join(key.to_bytes(8, "little") for key in keys)
        start = 1 if table else int.from_bytes(hashlib.sha256(packed).digest(), "big") % (2**63 - 1)
        self._length, self._bits = length, bits
        self._table = np.array(words(*table)) % 2 if table else None
        steps = [Fraction(10) - Fraction(9 * i, depth - 1) for i in range(depth)] if weighted and depth > 1 else []
        scale = math.lcm(*(step.denominator for step in steps)) if steps else 1
        whole = [int(step * scale) for step in steps] or [1] * depth
        # a key that is there twice, or twice by what it reads of the table, is one layer
        modulus, gcd = table[1] if table else _64, math.gcd(*whole)
        at = [key % modulus for key in keys]
        distinct = sorted(set(at), key=at.index)
        self._key = HiddenValue((distinct, start))
        self._weights = [sum(w // gcd for w, own in zip(whole, at, strict=True) if own == key) for key in distinct]

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath; the mark has one message, and its score is −ln p."""
        ids, before = tokens.tolist(), self._length - 1
        places = range(before, len(ids))
        contexts = [tuple(ids[t - before : t]) for t in places]
        unit = "none" if dedup == "none" else "context"
        kept = counted_positions(places, contexts, [ids[t] for t in places], unit, common_places)
        if not kept:
            return 0, [0.0] * len(messages)
        keys, start = self._key.value
        states = [self._hash(start, [*contexts[i], ids[places[i]]]) for i in kept]
        ones = [sum(self._bit(state, key) for state in states) for key in keys]
        score = sum(weight * count for weight, count in zip(self._weights, ones, strict=True))
        return len(kept), [self._surprise(score, states)] * len(messages)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return floored(-score / math.log(10.0), self._bits) if scored else 0.0

    def _hash(self, state: int, values: list[int]) -> int:
        for value in values:
            state = ((state + value) * _LCG + 1) % _64
        return state

    def _bit(self, state: int, key: int) -> int:
        state = self._hash(state, [key])
        if self._table is not None:
            return int(self._table[state % len(self._table)])
        for _ in range(12):
            state = signed(self._hash(state, [1])) >> 5
        return (state >> 30) % 2

    def _surprise(self, score: int, states: list[int]) -> float:
        """−ln p by the law of a score: a normal one, or the layers' laws folded, as the variance decides."""
        if self._table is not None:
            normal = self._normal(score, len(states), 1.0 + 5.0 / math.sqrt(len(self._table)))
            return normal if normal < 3.0 * math.log(10.0) else self._folded(score, self._log_law(self._table, states))
        narrowest = self._normal(score, len(states), 1.0)
        if narrowest < 2.0 * math.log(10.0):
            return min(self._normal(score, len(states), wider) for wider in (3.0, 1.0 / 3.0))
        if narrowest < 3.0 * math.log(10.0):
            return self._normal(score, len(states), self._most_variance(states, 512))
        return self._folded(score, log_urn(len(states), self._most_variance(states, 16_384)))

    def _normal(self, score: int, scored: int, wider: float) -> float:
        """−ln p by a normal law whose variance is that of independent bits times `wider`."""
        share = 0.5 if self._table is None else max(0.5, float(self._table.mean()))
        mean, squares = share * sum(self._weights), sum(weight**2 for weight in self._weights)
        spread = math.sqrt(wider * share * (1.0 - share) * squares * scored)
        return -float(norm.logsf((score - 1 - mean * scored) / spread))

    def _most_variance(self, states: list[int], points: int) -> float:
        """The upper 99 % limit of a layer's variance over that of independent bits, under numbers in place of keys."""
        fixed = np.frombuffer(hashlib.shake_256(b"brickscan synthid-mixed points").digest(8 * 16_384), "<i8")
        fixed = fixed[: max(512, min(points, 2**27 // len(states)))]
        more = np.zeros(len(fixed), np.int64)
        for state in states:
            x = (fixed + signed(state - states[0])) * _LCG + 1
            for _ in range(12):
                x = ((x + 1) * _LCG + 1) >> 5
            more += np.where(x & 2**30, 1, -1)
        squares = [excess * excess / len(states) for excess in more.tolist()]
        mean = math.fsum(squares) / len(squares)
        deviation = math.fsum((square - mean) ** 2 for square in squares) / (len(squares) - 1)
        return max(1.0, mean + float(norm.ppf(0.99)) * math.sqrt(deviation / len(squares)))

    def _folded(self, score: int, log_law: NDArray[np.float64]) -> float:
        """−ln p: laws of the layers, tilted until their sum's mean is near the score, folded one after the other."""
        values = np.arange(len(log_law))
        tilt = self._tilt(score, values, log_law)
        sums, begin, log_scale = np.ones(1), 0, 0.0
        for weight in self._weights:
            power = log_law + tilt * weight * values
            total = logsumexp(power)
            log_scale += total
            law = np.zeros(weight * (len(log_law) - 1) + 1)
            law[:: max(weight, 1)] = np.exp(power - total)
            sums = np.clip(fftconvolve(sums, law), 0.0, None)
            kept = np.flatnonzero(sums > 1e-19 * sums.max())
            begin, sums = begin + int(kept[0]), sums[kept[0] : kept[-1] + 1]
        over = np.arange(len(sums)) + begin - score
        enough = over >= 0
        return float(tilt * score - log_scale - math.log((sums[enough] * np.exp(-tilt * over[enough])).sum()))

    def _log_law(self, table: NDArray[np.int64], states: list[int]) -> NDArray[np.float64]:
        """ln of the chance of each number of ones of a layer by the table, −∞ where there is none."""
        size = len(table)
        sums = np.zeros(size, np.int64)
        twice = np.concatenate([table, table])
        for state in states:
            at = self._hash(state, [0]) % size
            sums += twice[at : at + size]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.bincount(sums, minlength=len(states) + 1) / size), np.float64)

    def _tilt(self, score: int, values: NDArray[np.int64], log_law: NDArray[np.float64]) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2.0
            mean = 0.0
            for weight in self._weights:
                power = log_law + middle * weight * values
                mean += weight * float((np.exp(power - logsumexp(power)) * values).sum())
            low, high = (middle, high) if mean < score else (low, middle)
        return low


Lanes = NDArray[np.uint64]
_32 = np.uint64(32)
_MASK = np.uint64(2**32 - 1)


def philox(counter: Sequence[Lanes], low: Lanes, high: Lanes) -> list[Lanes]:
    """Philox4x32-10 (Salmon et al. 2011): four philox_words of 32 bits, held in 64."""
    c = list(counter)
    for number in range(10):
        k0, k1 = (low + np.uint64(number * 0x9E3779B9)) & _MASK, (high + np.uint64(number * 0xBB67AE85)) & _MASK
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> _32) ^ c[1] ^ k0, q & _MASK, (p >> _32) ^ c[3] ^ k1, p & _MASK]
    return c


def philox_words(key: int, contexts: Lanes, tokens: Lanes) -> Lanes:
    """The word of each context and token: uint64[P] for uint64[P, width], missing tokens 2^32−1, and uint64[P]."""
    lanes, width = contexts.shape
    low, high = (np.full(lanes, half, np.uint64) for half in (key % 2**32, key >> 32))
    first = [int.from_bytes(b"WMCX", "big"), width, 0, 0]
    state = [np.full(lanes, word, np.uint64) for word in first]
    for start in range(0, width, 4):
        block = [
            contexts[:, start + i] if start + i < width else np.full(lanes, 2**32 - 1 - i, np.uint64) for i in range(4)
        ]
        state = philox([s ^ b for s, b in zip(state, block, strict=True)], low ^ np.uint64(start), high)
    mark = np.uint64(int.from_bytes(b"WMTK", "big"))
    out = philox([tokens >> np.uint64(2), *state[:3]], low ^ state[3], high ^ mark)
    return np.stack(out)[(tokens & np.uint64(3)).astype(np.int64), np.arange(lanes)]


class VllmProof:
    """The proof of one key's mark, or of the two keys' that vLLM derives from a master key.

    Its repr shows nothing of them.
    master: 8 bytes, big-endian; width: of the context; weight: of the second of two derived keys, beside the weight
    1/2, None: one key; opening: whether positions count whose context lacks tokens; bits: no p-value is below 2^-bits.
    """

    def __init__(self, master: bytes, width: int, weight: float | None, *, opening: bool, bits: int) -> None:
        parts = [master]
        if weight is not None:
            parts = [hashlib.sha256(name + master).digest()[:8] for name in (b"key_a", b"key_b")]
        self._keys = HiddenValue([int.from_bytes(part, "big") for part in parts])
        self._width, self._opening, self._bits = width, opening, bits
        self._weight = weight

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath; the mark has one message."""
        places, terms = self._terms(tokens, dedup, common_places)
        sums = [math.fsum(of_key) for of_key in terms.tolist()]
        score = sums[0] if self._weight is None else self._best(sums[0], sums[1], len(places))
        return len(places), [score] * len(messages)

    @property
    def weights(self) -> KeyWeights:
        """See scanner.watermark.by_levels.ProvesTermsOfKeys: of two keys the weight and 1/2, over 0.8 and 0.2."""
        if self._weight is None:
            return ONE_SUM
        each = [(0.5, 1.0)] if self._weight == 0.5 else [(self._weight, 0.8), (0.5, 0.2)]
        return tuple(((1.0 - of_second, of_second), share) for of_second, share in each)

    def terms_of_keys(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """See scanner.watermark.by_levels.ProvesTermsOfKeys; the mark has one message."""
        places, terms = self._terms(tokens, dedup, common_places)
        return places, np.stack([terms] * len(messages))

    def _terms(
        self, tokens: NDArray[np.uint32], dedup: str, common_places: Collection[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The P scored positions, and what each adds to the sum of each of K keys: float64[K, P]."""
        ids, width = tokens.tolist(), self._width
        padded = [-1] * width + ids
        places = range(0 if self._opening else width, len(ids))
        contexts = [tuple(padded[t : t + width]) for t in places]
        kept = counted_positions(places, contexts, [ids[t] for t in places], dedup, common_places)
        rows = np.array([contexts[i] for i in kept], np.int64).reshape(len(kept), width).astype(np.uint64) & _MASK
        met = np.array([ids[places[i]] for i in kept], np.uint64)
        cells = [(philox_words(key, rows, met) >> np.uint64(8)).tolist() for key in self._keys.value]
        terms = [[-math.log1p(-cell / 2**24) for cell in of_key] for of_key in cells]
        return np.array([places[i] for i in kept], np.int64), np.array(terms)

    def _best(self, first: float, second: float, scored: int) -> float:
        """−ln of the smallest p by the weights of two keys, each over its share."""
        log10_p = [
            log10_two_gammas(of_first * first + of_second * second, scored, of_second) - math.log10(share)
            for (of_first, of_second), share in self.weights
        ]
        return max(-min(log10_p) * math.log(10.0), 0.0)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        if self._weight is None:
            return floored(log10_two_gammas(score, scored, 0.0), self._bits)
        return floored(-score / math.log(10.0) if scored else 0.0, self._bits)


Words = NDArray[np.uint32]


def _times(x: Words, factor: int) -> Words:
    return x * np.uint32(factor)


def _rotated(x: Words, by: int) -> Words:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def murmur3(columns: Sequence[Words]) -> Words:
    """MurmurHash3_x86_32, seed 0, of each lane's words: uint32[P]."""
    h = np.zeros(len(columns[0]), np.uint32)
    for column in columns:
        h = _times(_rotated(h ^ _times(_rotated(_times(column, 0xCC9E2D51), 15), 0x1B873593), 13), 5)
        h = h + np.uint32(0xE6546B64)
    h = h ^ np.uint32(4 * len(columns))
    h = _times(h ^ (h >> np.uint32(16)), 0x85EBCA6B)
    h = _times(h ^ (h >> np.uint32(13)), 0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


class SglangProof:
    """The proof of one key's mark, or of two keys' where a coin names one at each context.

    Its repr shows nothing of them.
    secret: 8 bytes of each key, big-endian; share: of the contexts that the first of two keys marks; bits: no p-value
    is below 2^-bits.
    """

    def __init__(self, secret: bytes, width: int, share: float, bits: int) -> None:
        self._keys = HiddenValue([int.from_bytes(secret[i : i + 8], "big") for i in range(0, len(secret), 8)])
        self._width, self._share, self._bits = width, share, bits

    def scores(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath."""
        places, terms = self.terms_of_keys(tokens, messages, dedup, common_places)
        return len(places), [math.fsum(of_one) for of_one in terms[:, 0].tolist()]

    @property
    def weights(self) -> KeyWeights:
        """See scanner.watermark.by_levels.ProvesTermsOfKeys: one sum, of the key that a coin names."""
        return ONE_SUM

    def terms_of_keys(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """See scanner.watermark.by_levels.ProvesTermsOfKeys."""
        width = self._width
        met = tokens[width:]
        if not len(met):
            return np.empty(0, np.int64), np.empty((len(messages), 1, 0))
        hashes = murmur3([tokens[i : len(tokens) - width + i] for i in range(width)])
        places = range(width, len(tokens))
        kept = np.array(counted_positions(places, hashes.tolist(), met.tolist(), dedup, common_places), np.int64)
        terms = [self._terms(self._of(message), hashes[kept], met[kept]) for message in messages]
        return kept + width, np.array(terms).reshape(len(messages), 1, len(kept))

    def _of(self, message: int) -> list[int]:
        return self._keys.value

    def _terms(self, keys: list[int], contexts: Words, met: Words) -> list[float]:
        """What each position adds under the keys of a message."""
        halves = [np.full(len(met), half, np.uint32) for key in keys for half in (key % 2**32, key >> 32)]
        draws = [murmur3([*halves[i : i + 2], contexts, met]) for i in range(0, len(halves), 2)]
        chosen = draws[0]
        if len(keys) == 2:
            chosen = np.where(murmur3([*halves, contexts]) < int(self._share * 2**32), *draws)
        return [-math.log1p(-draw / 2**32) for draw in chosen.tolist()]

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return floored(log10_gamma(score, scored), self._bits)


class SglangUsersProof(SglangProof):
    """The proof of marks with a key for each message, derived from a master key."""

    def __init__(self, secret: bytes, width: int, bits: int) -> None:
        super().__init__(b"", width, 1.0, bits)
        self._master = HiddenValue(secret)

    def _of(self, message: int) -> list[int]:
        of = b"brickscan sglang user key v1" + message.to_bytes(8, "big")
        return [int.from_bytes(hmac.digest(self._master.value, of, "sha256")[:8], "big")]
