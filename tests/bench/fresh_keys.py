"""How often unmarked text reaches small p-values of transformers', SynthID's and the research code's marks.

`python -m tests.bench.fresh_keys --corpus human.parquet` draws a new key for every p-value, or for the 10,000 payloads
of one piece of text, which have different draws. So p-values are independent if draws are random, and the intervals of
Clopper and Pearson are exact. The research code's payloads are scored all at once, as its search does. SynthID's sums
under many keys are looked up in the transform of a piece's hashes. transformers' green lists are shuffles, so that a
key scores PIECES_A_KEY pieces. These may share draws, so keys are the units there, and intervals are those of means
over keys.
"""

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats
from scipy.fft import next_fast_len

from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import Tokens, batch_tokens
from scanner.watermark.formats import FORMATS, make_format
from scanner.watermark.laws import Law, least_score, log10_normal
from scanner.watermark.stacks.huggingface.format import Kgw
from scanner.watermark.stacks.synthid.bits import (
    EXACT_BELOW,
    FEW,
    LARGEST_VARIANCE,
    LCG_FACTOR,
    MANY,
    MEASURED_BELOW,
    hashes,
    mixed_ones,
    variance_limit,
    wide_law,
)
from scanner.watermark.stacks.three_bricks.format import _all_greens, _all_sums
from tests.bench.null_counts import DEMO, pieces_of

LEVELS = 10.0 ** -np.arange(1, 8)
PAYLOADS = 10_000  # payloads of one piece; a format has as many as tokens
KEYS_A_PIECE = 1_000_000  # keys of SynthID's table for each piece, whose law takes a second
KEYS_A_MIXED_PIECE = 50_000  # keys of mixed bits for each piece, whose law takes a tenth of a second
WIDEST, AMONG = 20, 2000  # pieces whose mixed bits depend most on each other
AT_ONCE = 100_000
PIECES_A_KEY = 1000  # pieces under a key of green lists: most of its shuffles serve several pieces


class Tally(NamedTuple):
    """Counts of p-values at or below each of LEVELS.

    trials: p-values; hits: int64[J]; expected: float64[J], how many the law itself expects, which are fewer than the
    level says where scores are discrete; of_keys: hits of each key alone, int64[J] each; empty: p-values are
    independent.
    """

    trials: int
    hits: NDArray[np.int64]
    expected: NDArray[np.float64]
    of_keys: tuple[NDArray[np.int64], ...] = ()

    def plus(self, scores: NDArray[np.generic], least: NDArray[np.float64], chance: NDArray[np.float64]) -> "Tally":
        """The tally with one piece under several keys added; least: critical score of each level; chance: its p."""
        hits = (scores[:, None] >= least).sum(axis=0)
        return Tally(self.trials + len(scores), self.hits + hits, self.expected + len(scores) * chance)

    def of_one_key(self, other: "Tally") -> "Tally":
        """The tally with all p-values of one more key added."""
        expected = self.expected + other.expected
        return Tally(self.trials + other.trials, self.hits + other.hits, expected, (*self.of_keys, other.hits))


NONE = Tally(0, np.zeros(len(LEVELS), np.int64), np.zeros(len(LEVELS)))


class Limits:
    """The least score of each level over T positions, and the chance that the law gives it; remembered by T."""

    def __init__(self, law: Law) -> None:
        self._law, self._known = law, dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]()

    def of(self, scored: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if scored not in self._known:
            places = np.array([scored])
            least = np.concatenate([least_score(self._law, places, level) for level in np.log10(LEVELS)])
            chance = 10.0 ** self._law.log10_p(least, scored) if self._law.discrete else LEVELS
            self._known[scored] = least, np.where(least > self._law.largest(scored), 0.0, chance)
        return self._known[scored]


def entropy(*words: object) -> bytes:
    """32 bytes, the same in every run."""
    return hashlib.sha256(" ".join(map(str, words)).encode()).digest()


def piece(tokens: Tokens, number: int) -> Tokens:
    """One of the pieces, around and around."""
    number %= len(tokens.offsets) - 1
    own = tokens.ids[tokens.offsets[number] : tokens.offsets[number + 1]]
    return Tokens(own, np.array([0, len(own)]))


def pieces(tokens: Tokens, first: int, count: int) -> Tokens:
    """So many of the pieces, around and around."""
    return batch_tokens([piece(tokens, number).ids for number in range(first, first + count)])


def by_payload(name: str, parameters: dict[str, Any], tokens: Tokens, wanted: int) -> Tally:
    """The research code: a fresh seed and salt for every piece, and PAYLOADS payloads of it."""
    form: Any = make_format(name, parameters)
    limits, tally = Limits(form.law()), NONE
    for number in range(-(-wanted // PAYLOADS)):
        text, mark = piece(tokens, number), form.open(form.decoy_key(entropy(form.label(), number)))
        index = mark.rule.positions(text, "ngram").index
        tally = tally.plus(payload_scores(mark, text, index, PAYLOADS), *limits.of(len(index)))
    return tally


def payload_scores(mark: Any, text: Tokens, index: NDArray[np.int64], count: int) -> NDArray[np.generic]:
    """Scores of a piece at these places, int64[T], for the payloads 0 … count−1."""
    seeds, ids = mark.seeds(text)[index], text.ids[index]
    if mark._first:
        greens = np.zeros(count, np.int64)
        _all_greens(seeds, ids, greens, mark._size, mark._first)
        return greens
    sums = np.zeros(count)
    _all_sums(seeds, ids, sums, mark._size)
    return sums


def by_key(name: str, parameters: dict[str, Any], tokens: Tokens, wanted: int) -> Tally:
    """The research code without payloads: a fresh key for every piece."""
    form: Any = make_format(name, parameters)
    limits, tally = Limits(form.law()), NONE
    for number in range(wanted):
        text, mark = piece(tokens, number), form.open(form.decoy_key(entropy(form.label(), "key", number)))
        positions = mark.rule.positions(text, "ngram")
        tally = tally.plus(mark.score(text, positions, 0), *limits.of(int(positions.scored[0])))
    return tally


def green_lists(name: str, parameters: dict[str, Any], tokens: Tokens, wanted: int) -> Tally:
    """Green lists: a fresh key for every PIECES_A_KEY pieces."""
    form: Any = make_format(name, parameters)
    limits, tally = Limits(form.law()), NONE
    count = min(PIECES_A_KEY, len(tokens.offsets) - 1)  # a piece's p-values under one key are equal, and count once
    for number in range(-(-wanted // count)):
        text = pieces(tokens, number * count, count)
        mark, own = form.open(form.decoy_key(entropy(form.label(), "key", number))), NONE
        counts, scored = green_counts(mark, text) if isinstance(mark, Kgw) else scan_counts(mark, text)
        for many in np.unique(scored):
            own = own.plus(counts[scored == many], *limits.of(int(many)))
        tally = tally.of_one_key(own)
    return tally


def green_counts(mark: Any, text: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Green tokens and scored tokens of each piece, int64[D] each; each draw is looked up once."""
    positions = mark.rule.positions(text, "ngram")
    seeds = mark.seeds(text)[positions.index].astype(np.uint64)
    draws, which = np.unique(seeds << np.uint64(32) | text.ids[positions.index], return_inverse=True)
    mark._lists.kept = 2 * len(np.unique(seeds)) < len(draws)  # a list takes as long as two tokens that are followed
    green = mark._lists.green((draws >> np.uint64(32)).astype(np.uint32), draws.astype(np.uint32))[which]
    sums = np.concatenate([[0], np.cumsum(green)])
    return np.diff(sums[positions.offsets]), positions.scored


def scan_counts(mark: Any, text: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Green tokens and scored tokens of each piece, int64[D] each, as a scan counts them."""
    positions = mark.rule.positions(text, "ngram")
    return mark.score(text, positions, 0), positions.scored


def from_table(name: str, parameters: dict[str, Any], tokens: Tokens, wanted: int) -> Tally:
    """SynthID of transformers: KEYS_A_PIECE fresh lists of keys for every piece, whose own law is exact."""
    form: Any = make_format(name, parameters)
    mark, tally = form.open(form.decoy_key(entropy(name))), NONE
    random = np.random.default_rng(22)
    for number in range(-(-wanted // KEYS_A_PIECE)):
        text = piece(tokens, number)
        states = mark.states(text, mark.rule.positions(text, "ngram"))
        least = least_sums(mark, states, int(form.weights().sum()) * len(states))
        chance = np.exp(-surprises(mark, least, states))
        for _ in range(KEYS_A_PIECE // AT_ONCE):
            keys = random.integers(0, 2**63, (AT_ONCE, form.depth), np.uint64)
            tally = tally.plus(
                sums_under(keys, states, mark._bits.table, form.weights()), least.astype(np.float64), chance
            )
    return tally


def sums_under(
    keys: NDArray[np.uint64], states: NDArray[np.uint64], table: NDArray[np.uint8], weights: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The weighted sum of a piece under each of N lists of keys, uint64[N, m]: float64[N] of whole numbers.

    A layer's sum depends on A·k mod the table's size alone, and one correlation has it for every such number.
    """
    size = np.uint64(len(table) - 1)
    starts = np.bincount(((states * LCG_FACTOR + np.uint64(1)) & size).astype(np.int64), minlength=len(table))
    layer = np.rint(np.fft.irfft(np.conj(np.fft.rfft(starts)) * np.fft.rfft(table), len(table)))
    return np.asarray(layer[((keys * LCG_FACTOR) & size).astype(np.int64)] @ weights.astype(np.float64))


def surprises(mark: Any, sums: NDArray[np.int64], states: NDArray[np.uint64]) -> NDArray[np.float64]:
    """−ln p of several sums of one piece, as a scan computes it."""
    cut = np.array([0, len(states)])
    return np.concatenate([mark._bits.surprise(np.array([one]), mark._weights, states, cut) for one in sums])


def least_sums(mark: Any, states: NDArray[np.uint64], largest: int) -> NDArray[np.int64]:
    """The least sum whose p is at most each level: int64[J]; one more than the largest where none is.

    Found by the rule of false position, since an exact tail takes a tenth of a second.
    """
    return np.array([_least_sum(mark, states, largest, -float(np.log(level))) for level in LEVELS])


def _least_sum(mark: Any, states: NDArray[np.uint64], largest: int, wanted: float) -> int:
    def beyond(total: int) -> float:
        return float(surprises(mark, np.array([total]), states)[0]) - wanted

    low, high, below, above = largest // 2, largest, -wanted, beyond(largest)
    if above < 0.0:
        return largest + 1
    halve = False
    while high - low > 1:
        # a surprise grows with the square of the excess over the mean, so that its root is nearly linear
        roots = np.sqrt(np.array([below, above, 0.0]) + wanted)
        share = 0.5 if halve else (roots[2] - roots[0]) / (roots[1] - roots[0])
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        found = beyond(middle)
        if found >= 0.0:
            high, above = middle, found
        else:
            low, below = middle, found
        halve = not halve
    return high


@numba.njit
def _mixed_ones(
    ids: NDArray[np.uint32],
    index: NDArray[np.int64],
    length: int,
    starts: NDArray[np.uint64],
    keys: NDArray[np.uint64],
) -> NDArray[np.int64]:
    """Ones of one piece under each of N lists of keys, uint64[N, m], and where hashes begin: int64[N, m]."""
    out = np.empty(keys.shape, np.int64)
    for i in range(len(keys)):
        out[i] = mixed_ones(hashes(ids, index, length, starts[i]), np.array([0, len(index)]), keys[i])[0]
    return out


def starts_of(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Where hashes begin under each of N lists of keys, uint64[N, m]: uint64[N]."""
    packed, size = keys.astype("<u8").tobytes(), 8 * keys.shape[1]
    digests = (hashlib.sha256(packed[i : i + size]).digest() for i in range(0, len(packed), size))
    return np.fromiter((int.from_bytes(one, "big") % (2**63 - 1) for one in digests), np.uint64, len(keys))


def mixed(name: str, parameters: dict[str, Any], tokens: Tokens, wanted: int) -> Tally:
    """SynthID of June 2025: KEYS_A_MIXED_PIECE fresh lists of keys for every piece, whose law is its own."""
    form: Any = make_format(name, parameters)
    mark, tally, random = form.open(form.decoy_key(bytes(32))), NONE, np.random.default_rng(23)
    for number in range(-(-wanted // KEYS_A_MIXED_PIECE)):
        text = piece(tokens, number)
        index = mark.rule.positions(text, "ngram").index
        all_sums, p = p_of_sums(hashes(text.ids, index, form.ngram_len, np.uint64(0)), form.weights())
        first = np.array([np.flatnonzero(p <= level)[0] for level in LEVELS])
        keys = random.integers(0, 2**63, (KEYS_A_MIXED_PIECE, form.depth), np.uint64)
        sums = _mixed_ones(text.ids, index, form.ngram_len, starts_of(keys), keys) @ form.weights()
        tally = tally.plus(sums, all_sums[first].astype(np.float64), p[first])
    return tally


def widest(name: str, parameters: dict[str, Any], tokens: Tokens, wanted: int) -> Tally:
    """Mixed bits on the WIDEST of AMONG pieces, by the variance of a layer's sum under MANY points."""
    form: Any = make_format(name, parameters)
    mark, some = form.open(form.decoy_key(bytes(32))), pieces(tokens, 0, AMONG)
    positions = mark.rule.positions(some, "ngram")
    states, cuts = mark.states(some, positions), positions.offsets
    limits = [variance_limit(states[cuts[d] : cuts[d + 1]], MANY) for d in range(AMONG)]
    few = batch_tokens([piece(some, int(d)).ids for d in np.argsort(limits)[-WIDEST:]])
    return mixed(name, parameters, few, wanted)


def p_of_sums(states: NDArray[np.uint64], weights: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Sums of mixed bits from the mean to nine standard deviations above, int64[N], and p of each: float64[N].

    By the laws of a scan, but folded without a tilt: p is right to 1e-14 in all, not relatively.
    """
    scored, mean, limit = len(states), weights.sum() * len(states) // 2, variance_limit(states, MANY)
    most = min(mean + 9 * np.sqrt(limit * scored / 4 * (weights**2).sum()), weights.sum() * scored)
    sums = np.arange(mean, int(most) + 1)

    def normal(variance: float) -> NDArray[np.float64]:
        return log10_normal(sums, np.full(len(sums), scored), weights, 0.5, variance)

    narrow, folded = normal(1.0), tails(wide_law(scored, limit), weights)[sums]
    near = np.where(narrow <= MEASURED_BELOW, normal(variance_limit(states, FEW)), normal(LARGEST_VARIANCE))
    return sums, np.where(narrow <= EXACT_BELOW, folded, 10.0**near)


def tails(law: NDArray[np.float64], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(Σ v·C ≥ s) for every possible s; each C is an independent draw of a law on 0 … T."""
    most = int(weights.sum()) * (len(law) - 1)
    size = next_fast_len(most + 1)
    transform, frequency = np.fft.fft(law, size), np.arange(size // 2 + 1)
    product = np.ones(len(frequency), np.complex128)
    for weight in weights:
        product *= transform[weight * frequency % size]
    return np.asarray(np.cumsum(np.fft.irfft(product, size)[most::-1])[::-1])


Way = Callable[[str, dict[str, Any], Tokens, int], Tally]
ROWS: dict[str, tuple[str, dict[str, Any], Way, float]] = {
    "hf-lefthash": ("hf-lefthash", {}, green_lists, 1e-2),
    "hf-selfhash, h = 4": ("hf-selfhash", {"context_width": 4}, green_lists, 1e-2),
    "sbw, selfhash": ("sbw", {}, green_lists, 1e-1),
    "sbw, minhash": ("sbw", {"seeding": "minhash"}, green_lists, 1e-1),
    "sbw, additive, h = 1": ("sbw", {"seeding": "additive", "context_width": 1}, green_lists, 1e-1),
    "sbw, additive, h = 4": ("sbw", {"seeding": "additive"}, green_lists, 1e-1),
    "synthid-table": ("synthid-table", {}, from_table, 1.0),
    "synthid-mixed": ("synthid-mixed", {}, mixed, 1.0),
    "synthid-mixed, widest texts": ("synthid-mixed", {}, widest, 0.1),
    "three-bricks-openai": ("three-bricks-openai", {}, by_payload, 1.0),
    "three-bricks-openai, payload 0": ("three-bricks-openai", {}, by_key, 1e-2),
    "three-bricks-maryland": ("three-bricks-maryland", {}, by_payload, 1.0),
    "three-bricks-maryland, payload 0": ("three-bricks-maryland", {}, by_key, 1e-3),
}
"""Rows to count: format, parameters beside the vocabulary's size, the way to count, and the share of --p-values."""

FAMILY_ERROR = 0.01
"""Chance that any level of any row is said not to hold though all levels hold."""


def rows_of(what: str, tally: Tally) -> Iterator[dict[str, Any]]:
    """Rows of the table: observed beside stated, with the 95 % interval; spread: variance of a key's hits over mean."""
    for j in np.flatnonzero(tally.trials * LEVELS >= 1.0):
        hits, stated = int(tally.hits[j]), tally.trials * LEVELS[j]
        low, high = interval(tally, int(j))
        chance = stats.binom.sf(hits - 1, tally.trials, LEVELS[j])
        yield {
            "what": what,
            "p-values": f"{tally.trials:.0e}",
            "level": f"{LEVELS[j]:.0e}",
            "observed": hits,
            "by the law": f"{tally.expected[j]:,.1f}",
            "observed / stated": f"{hits / stated:.4f}",
            "95 % interval": f"{low / LEVELS[j]:.4f} to {high / LEVELS[j]:.4f}",
            "spread": f"{np.var(of_keys, ddof=1) / np.mean(of_keys):.2f}"
            if len(of_keys := [one[j] for one in tally.of_keys]) > 1 and hits
            else "",
            "holds": "yes" if chance > FAMILY_ERROR / len(ROWS) / len(LEVELS) else "NO",
        }


def interval(tally: Tally, level: int) -> tuple[float, float]:
    """The 95 % interval of the rate at one of LEVELS: exact, or of the mean over keys where keys are the units.

    With hits under fewer than ten keys no spread is known, and hits are taken as independent.
    """
    rates = np.array([one[level] for one in tally.of_keys]) * len(tally.of_keys) / tally.trials
    if np.count_nonzero(rates) < 10:
        return clopper_pearson(int(tally.hits[level]), tally.trials)
    half = stats.t.ppf(0.975, len(rates) - 1) * rates.std(ddof=1) / np.sqrt(len(rates))
    return float(rates.mean() - half), float(rates.mean() + half)


def clopper_pearson(hits: int, trials: int) -> tuple[float, float]:
    """The exact 95 % interval of a rate."""
    low = stats.beta.ppf(0.025, hits, trials - hits + 1) if hits else 0.0
    high = stats.beta.ppf(0.975, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fresh_keys", description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file with a column text, of people")
    parser.add_argument("--tokenizer", type=Path, default=DEMO / "tokenizer.json")
    parser.add_argument("--p-values", type=float, default=1e6, help="a format; a hundredth with a key a piece of text")
    parser.add_argument("--pieces", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=64, help="tokens of a piece")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tokens, size = pieces_of(options), load_tokenizer(options.tokenizer, sha256_file(options.tokenizer)).vocab_size
    for what in options.rows:
        name, parameters, way, share = ROWS[what]
        parameters = parameters | ({"vocab_size": size} if "vocab_size" in FORMATS[name].model_fields else {})
        began = time.process_time()
        tally = way(name, parameters, tokens, round(options.p_values * share))
        show(list(rows_of(what, tally)))
        print(f"{time.process_time() - began:.0f} s of a core", flush=True)


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=160, tbl_hide_dataframe_shape=True, fmt_str_lengths=40):
        print(pl.DataFrame(rows))


if __name__ == "__main__":
    main()
