"""Rule 2 of naming where `make names` has too few texts: `python -m tests.bench.misnamed --texts 1e6`.

A user who shares a group with the user of a marked text is null on the user steps (SPEC_2 §3). So no text need be
marked: in random text, the best user of a group that was drawn before is such a stranger, and passes rule 2 as rarely
as the law says. Ciphers, search and law are those of a scan; a new key comes every few thousand texts.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from scanner.audit.calibration.admission import fresh_entropy
from scanner.audit.statistics.judgement import binomial_limits, chances
from scanner.watermark import Tokens
from scanner.watermark.formats import make_format
from scanner.watermark.native.streams import RunRequest, in_two, window_nonces
from scanner.watermark.native.version2_marks import Version2Mark
from scanner.watermark.rule import corrected, passes
from schemas.registry import MOST_NUMBERS

RATES = (1e-2, 1e-3, 1e-4)
A_KEY = 5_000
GROUPS = 1026
TOKENS = 260
VOCABULARY = 49_152


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.misnamed", description=__doc__)
    parser.add_argument("--texts", type=float, default=1e6, help="of each format")
    parser.add_argument("--formats", nargs="+", default=["greenlist-v2", "gumbel-v2"])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in options.formats:
        keys = int(options.texts) // A_KEY
        hits, expected = map(sum, zip(*batches(name, keys, options.seed.to_bytes(8, "big")), strict=True))
        for j, rate in enumerate(RATES):
            low, high = (limit * keys * A_KEY / expected[j] for limit in binomial_limits(hits[j], keys * A_KEY, 0.025))
            print(
                f"{name}, {GROUPS} groups, {keys * A_KEY:,} texts of {TOKENS} tokens, {keys} keys, at {rate:g}: "
                f"{hits[j]} named of {expected[j]:.1f} expected, ratio {hits[j] / expected[j]:.2f} "
                f"({low:.2f} to {high:.2f})",
                flush=True,
            )


def batches(name: str, keys: int, seed: bytes) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Strangers that pass in A_KEY texts under each key, and how many the law expects, at each rate: [J] both."""
    form = make_format(name, {"window": 4, "groups": GROUPS} | ({"gamma": "1/4"} if name == "greenlist-v2" else {}))
    for number, entropy in enumerate(fresh_entropy(seed, form.label(), np.arange(keys))):
        mark = form.open(form.draw_key(entropy))
        assert isinstance(mark, Version2Mark)
        random = np.random.default_rng([*seed, number])
        ids = random.integers(0, VOCABULARY, A_KEY * TOKENS, np.uint32)
        tokens = Tokens(ids, np.arange(0, A_KEY * TOKENS + 1, TOKENS, dtype=np.int64))
        positions = mark.rule.positions(tokens, "ngram")
        nonces = window_nonces(mark.sub_keys, tokens.ids, positions.index, mark.window)
        _, own = in_two(tokens, positions, nonces)
        groups = random.integers(0, GROUPS, A_KEY)
        none = np.full(A_KEY, np.inf)
        _, score = mark.best_of_runs(own, RunRequest(np.arange(A_KEY), groups * MOST_NUMBERS, GROUPS, 1, 1, none))
        log10_p = corrected(mark.law.log10_p(score[:, 0], own.scored), GROUPS)
        hits = np.array([passes(log10_p, rate).sum() for rate in RATES], np.int64)
        distinct, count = np.unique(own.scored, return_counts=True)
        yield hits, count @ chances(mark.law, distinct, RATES, GROUPS)


if __name__ == "__main__":
    main()
