"""How often unmarked text reaches small p-values under drawn keys of each format: `python -m tests.bench.null_counts`.

Texts of a corpus are cut into pieces of equal length and scored under keys that marked nothing. All pieces meet the
same draws of a key, so keys are the independent units: the interval of a rate is that of its mean over keys. 10^8
p-values a format (--keys 1000 --pieces 100000) take about ten minutes of a core each.
"""

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import optimize, stats

from scanner.text import load_tokenizer, sha256_file
from scanner.watermark import Tokens
from scanner.watermark.formats import FORMATS, make_format
from scanner.watermark.laws import Law

DEMO = Path(__file__).parents[2] / "jobs" / "demo"
THRESHOLDS = 10.0 ** -np.arange(1, 7)


def pieces_of(options: argparse.Namespace) -> Tokens:
    """The first tokens of a corpus in pieces of equal length, at most as many as asked for."""
    tokenizer = load_tokenizer(options.tokenizer, sha256_file(options.tokenizer))
    wanted, found = options.pieces * options.length, []
    column = pl.scan_parquet(options.corpus).select(pl.col("text").cast(pl.String, strict=False)).collect()["text"]
    for texts in column.drop_nulls().sample(fraction=1.0, shuffle=True, seed=options.seed).to_frame().iter_slices(2000):
        tokens = tokenizer.encode(texts["text"].to_list())
        for begin, end in zip(tokens.offsets, tokens.offsets[1:], strict=False):
            whole = (end - begin) // options.length * options.length
            found.append(tokens.ids[begin : begin + whole])
            wanted -= whole
        if wanted <= 0:
            break
    ids = np.concatenate(found)[: options.pieces * options.length]
    return Tokens(ids, np.arange(0, len(ids) + 1, options.length))


def critical(law: Law, scored: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scores whose p is each threshold, float64[T + 1, J] by scored tokens; ∞ for numbers that do not occur."""
    found = np.full((int(scored.max()) + 1, len(THRESHOLDS)), np.inf)
    for count in np.unique(scored[scored > 0]):
        for j, p in enumerate(THRESHOLDS):
            apart = lambda score, n=count, p=p: float(law.log10_p(score, n)) - np.log10(p)  # noqa: E731
            found[count, j] = optimize.brentq(apart, 0.0, 40.0 + 4.0 * count, xtol=1e-12)
    return found


def counted(name: str, tokens: Tokens, keys: int) -> Iterator[dict[str, Any]]:
    """Rows of the table: observed and expected rates at each threshold."""
    form: Any = make_format(name, {})
    first = form.open(form.draw_key(bytes(32)))
    positions = first.rule.positions(tokens, "ngram")
    limits = critical(form.law(), positions.scored)[positions.scored]
    rates = np.empty((keys, len(THRESHOLDS)))
    for number in range(keys):
        mark = form.open(form.draw_key(hashlib.sha256(f"{name} {number}".encode()).digest()))
        rates[number] = (mark.score(tokens, positions, 0)[:, None] >= limits).mean(axis=0)
    mean = rates.mean(axis=0)
    half = stats.t.ppf(0.975, keys - 1) * rates.std(axis=0, ddof=1) / np.sqrt(keys)
    for j, p in enumerate(THRESHOLDS):
        yield {
            "format": name,
            "p-values": f"{rates.shape[0] * len(limits):.0e}",
            "p": f"{p:.0e}",
            "observed": round(mean[j] * keys * len(limits)),
            "expected": f"{p * keys * len(limits):,.0f}",
            "observed / expected": f"{mean[j] / p:.4f}",
            "95 % interval over keys": f"{(mean[j] - half[j]) / p:.4f} to {(mean[j] + half[j]) / p:.4f}",
        }


def main() -> None:
    stacks = [name for name in FORMATS if is_continuous(name)]
    parser = argparse.ArgumentParser(prog="python -m tests.bench.null_counts", description=__doc__)
    parser.add_argument("--formats", nargs="+", choices=stacks, default=stacks)
    parser.add_argument("--corpus", type=Path, default=DEMO / "sample-1.parquet")
    parser.add_argument("--tokenizer", type=Path, default=DEMO / "tokenizer.json")
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--pieces", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tokens = pieces_of(options)
    rows = [row for name in options.formats for row in counted(name, tokens, options.keys)]
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=160, tbl_hide_dataframe_shape=True, fmt_str_lengths=40):
        print(pl.DataFrame(rows))


def is_continuous(name: str) -> bool:
    """Whether a format needs no parameters and has a continuous law, so that every threshold is the p of some score."""
    try:
        form = make_format(name, {})
    except ValueError:
        return False
    law = form.law()
    return law is not None and not law.discrete


if __name__ == "__main__":
    main()
