"""How often unmarked texts reach p-values of `synthid-mixed`, computed from each text's own law.

`python -m tests.bench.mixed_law --corpus human.parquet` draws NUMBERS keys for a layer of each text. Layers are
independent given the text, so the law of their sum is the folded law of one layer. How often p reaches a level follows
from it, also for p that are too small to be counted. A rate of one text is right to 5 % at 1e-6, where a law's variance
is known to 0.4 %; means over texts, whose errors are independent, are as exact as their intervals say. Beside the law
of the scan stands that of fair bits. `fresh_keys` counts p-values instead, and assumes nothing about layers.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from scanner.watermark import Tokens
from scanner.watermark.formats import make_format
from scanner.watermark.stacks.synthid.bits import MANY, hashes, mixed_ones, variance_limit, wide_law
from tests.bench.fresh_keys import p_of_sums, piece, show, tails
from tests.bench.null_counts import DEMO, pieces_of

LEVELS = 10.0 ** -np.arange(2, 9)
NUMBERS = 2**17


def rates(states: NDArray[np.uint64], weights: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.float64]:
    """How often p is at most each of LEVELS, over the level: float64[2, J], by the scan's law and that of fair bits."""
    numbers = random.integers(0, 2**64, NUMBERS, np.uint64)
    ones = mixed_ones(states, np.array([0, len(states)]), numbers)[0]
    own = tails(np.bincount(ones, minlength=len(states) + 1) / NUMBERS, weights)
    sums, p = p_of_sums(states, weights)
    fair = tails(wide_law(len(states), 1.0), weights)[sums]
    beyond = np.append(own[sums], 0.0)  # where no sum has such a p, nothing reaches it
    laws = (np.append(law, 0.0) for law in (p, fair))
    return np.array([[beyond[np.argmax(law <= level)] / level for level in LEVELS] for law in laws])


def rows_of(what: str, found: NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    """Rows of the table from float64[D, J]: the mean over texts with its 95 % interval, the median and the largest."""
    half = stats.t.ppf(0.975, len(found) - 1) * stats.sem(found)
    for j, level in enumerate(LEVELS):
        mean = found[:, j].mean()
        yield {
            "law": what,
            "texts": len(found),
            "level": f"{level:.0e}",
            "reached / stated": f"{mean:.3f}",
            "95 % interval": f"{mean - half[j]:.3f} to {mean + half[j]:.3f}",
            "median, largest of a text": f"{np.median(found[:, j]):.2f}, {found[:, j].max():.2f}",
        }


def measured(tokens: Tokens, length: int) -> tuple[list[NDArray[np.uint64]], NDArray[np.float64]]:
    """Hashes of each text's n-grams of this length, and the upper limit of the variance of a layer's sum."""
    rule = make_format("synthid-mixed", {}).rule()
    texts = [piece(tokens, number) for number in range(len(tokens.offsets) - 1)]
    states = [hashes(one.ids, rule.positions(one, "ngram").index, length, np.uint64(0)) for one in texts]
    return states, np.array([variance_limit(own, MANY) for own in states])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mixed_law", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file with a column text, of people")
    parser.add_argument("--tokenizer", type=Path, default=DEMO / "tokenizer.json")
    parser.add_argument("--pieces", type=int, default=300)
    parser.add_argument("--widest", type=int, help="only so many of them, those whose bits depend most on each other")
    parser.add_argument("--length", type=int, default=64, help="tokens of a piece")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    form: Any = make_format("synthid-mixed", {})
    states, limits = measured(pieces_of(options), form.ngram_len)
    quantiles = ", ".join(f"{one:.3f}" for one in np.quantile(limits, [0.0, 0.5, 0.99, 1.0]))
    print(f"limits of the variance of {len(limits)} texts: least, median, 99 %, largest: {quantiles}")
    some = np.argsort(-limits)[: options.widest]  # all texts unless --widest is given
    each = [rates(states[d], form.weights(), np.random.default_rng([22, int(d)])) for d in some]
    for what, found in zip(("as wide as the text", "fair bits"), np.moveaxis(np.array(each), 1, 0), strict=True):
        show(list(rows_of(what, found)))


if __name__ == "__main__":
    main()
