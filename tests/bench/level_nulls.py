"""How often sums by levels reach each rate on text that nobody marked: `python -m tests.bench.level_nulls CORPUS …`.

Each text meets a key of its own of version 2, and all of its messages, each of which reads draws of its own: pairs of a
text and a fresh message. Levels come from how often tokens stand in the corpus. Intervals are of 99 %, texts clusters.
"""

import argparse
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]
from tokenizers import Tokenizer

from scanner.watermark import batch_tokens
from scanner.watermark.formats import make_format
from scanner.watermark.level_laws import LEVELS, log10_greenlist_levels, log10_gumbel_levels
from scanner.watermark.native import green_runs, gumbel_runs
from scanner.watermark.native.secret import planes_of
from scanner.watermark.native.version2_marks import Version2Mark

RATES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
GAMMA = Fraction(1, 4)
LENGTH = 204
VALUES = np.arange(LEVELS + 1)


def texts_of(corpus: Path, tokenizer: Tokenizer, number: int) -> list[NDArray[np.uint32]]:
    """The first tokens of texts that are long enough."""
    found: list[NDArray[np.uint32]] = []
    for batch in pq.ParquetFile(corpus).iter_batches(500, columns=["text"]):
        for text in batch.column("text").to_pylist():
            ids = tokenizer.encode(text[:4000], add_special_tokens=False).ids if len(text) > 1500 else []
            if len(ids) >= LENGTH:
                found.append(np.array(ids[:LENGTH], np.uint32))
            if len(found) == number:
                return found
    return found


def log10_p(method: str, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """log10 p of sums over one text's tokens."""
    same = np.repeat(counts[None], len(sums), axis=0)
    if method == "gumbel-v2":
        return log10_gumbel_levels(sums, same, VALUES)
    return log10_greenlist_levels(sums, same, VALUES, GAMMA)


def critical(method: str, counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least sum that reaches each rate, and its p."""
    low, high = np.zeros(len(RATES)), np.full(len(RATES), 23.0 * float(np.dot(counts, VALUES)) + 1.0)
    for _ in range(45):
        middle = (low + high) / 2.0
        reached = log10_p(method, np.ceil(middle) if method == "greenlist-v2" else middle, counts) <= np.log10(RATES)
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    least = np.ceil(high) if method == "greenlist-v2" else high
    return least, 10.0 ** log10_p(method, least, counts)


def sums_of(
    mark: Version2Mark, tokens: NDArray[np.uint32], levels: NDArray[np.uint8], messages: int
) -> NDArray[np.float64]:
    """Σ level · term of one text under each message."""
    batch = batch_tokens([tokens])
    positions = mark.rule.positions(batch, "ngram")
    ids, nonces, _ = mark.steps(batch, positions)
    of_steps, key = levels[positions.index], mark.sub_keys.chacha
    if mark.label.startswith("gumbel"):
        return gumbel_runs.level_sums(key, ids, nonces, of_steps, np.arange(messages))
    rule, total = (GAMMA.numerator, GAMMA.denominator.bit_length() - 1, planes_of(GAMMA)), np.zeros(messages)
    for level in range(1, LEVELS + 1):
        of = of_steps == level
        total += level * green_runs.counts_of_run(key, ids[of], nonces[of], 0, messages, rule)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.level_nulls", description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=10_000)
    options = parser.parse_args()
    texts = texts_of(options.corpus, Tokenizer.from_file(str(options.tokenizer)), options.texts)
    seen = np.bincount(np.concatenate(texts))
    share = seen / seen.sum()
    for method, parameters in (("gumbel-v2", {"window": 4}), ("greenlist-v2", {"window": 4, "gamma": str(GAMMA)})):
        form, hits, expected = make_format(method, parameters), [], []
        for number, tokens in enumerate(texts):
            mark = form.open(b"tests.bench.level_nulls %d" % number)
            assert isinstance(mark, Version2Mark)
            levels = np.rint(LEVELS * (1.0 - np.minimum(np.sqrt(20.0 * share[tokens]), 1.0))).astype(np.uint8)
            scored = levels[mark.rule.positions(batch_tokens([tokens]), "ngram").index]
            least, p = critical(method, np.bincount(scored, minlength=LEVELS + 1))
            sums = sums_of(mark, tokens, levels, options.messages)
            hits.append((sums[:, None] >= least).sum(axis=0))
            expected.append(p * options.messages)
        of_texts, stated = np.array(hits, np.float64), np.array(expected)
        for j, rate in enumerate(RATES):
            found, by_law = of_texts[:, j].sum(), stated[:, j].sum()
            low, high = (limit / by_law for limit in limits_of(of_texts[:, j]))
            pairs = f"{method} {len(texts) * options.messages:,} pairs"
            print(
                f"{pairs}, rate {rate:g}: {found:.0f} hits, {by_law:.1f} by the law: {low:.3f} to {high:.3f}",
                flush=True,
            )


def limits_of(hits: NDArray[np.float64]) -> tuple[float, float]:
    """Limits (99 %) of the hits of all texts together, each a cluster: Poisson's, of as many as are worth as much."""
    total = float(hits.sum())
    effect = max(float(hits.var(ddof=1) / hits.mean()), 1.0) if total else 1.0
    low, high = special.gammaincinv([total / effect or 1e-9, total / effect + 1.0], [0.005, 0.995])
    return (float(low) if total else 0.0) * effect, float(high) * effect


if __name__ == "__main__":
    main()
