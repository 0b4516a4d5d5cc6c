"""vLLM's dual key under speculative decoding: `python -m tests.bench.dual_keys`, power by the share of key B.

Without drafts key B marks the share alpha of the tokens. With drafts vLLM ignores alpha: drafts that are accepted carry
key A, all other tokens key B. Each text is scored by the weight alpha alone and by the weights that the format has.
Tokens are simulated: of a marked token with probability p, 1 − r is 1 − U^p; p is uniform, or 1 for a share of them.
Unmarked texts are drawn in the same way, without a mark.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.judgement import binomial_limits
from scanner.watermark.laws import SeveralWeights
from scanner.watermark.stacks.vllm.format import weights_of

ALPHA = 0.1
OF_KEY_B = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
CASES = ((60, 1.0, -4.0), (60, 0.85, -4.0), (120, 0.8, -6.0))
LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)
LARGEST = 1.0 - 2.0**-25
A_BATCH = 10_000


def sums(
    texts: int, length: int, free: float, of_key_b: float, random: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of both keys over texts whose tokens carry one of them: float64[D] each."""
    p = np.where(random.random((texts, length)) < free, random.random((texts, length)), 1.0)
    marked = -np.log1p(-np.minimum(random.random((texts, length)) ** p, LARGEST))
    other, second = random.exponential(size=(texts, length)), random.random((texts, length)) < of_key_b
    return np.where(second, other, marked).sum(axis=1), np.where(second, marked, other).sum(axis=1)


def main() -> None:
    """Print power by share of key B, then how often unmarked texts reach each level."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dual_keys", description=__doc__)
    parser.add_argument("--texts", type=int, default=10_000, help="of each cell")
    parser.add_argument("--unmarked", type=float, default=1e6, help="texts without a mark")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    laws = {"alpha": SeveralWeights(((ALPHA, 1.0),)), "both weights": SeveralWeights(weights_of(ALPHA))}
    for length, free, level in CASES:
        print(f"{length} tokens, {free:.0%} free, at 1e{level:.0f}; {options.texts:,} texts a cell")
        print("share of key B      " + "".join(f"{share:7.1f}" for share in OF_KEY_B))
        drawn = [sums(options.texts, length, free, share, random) for share in OF_KEY_B]
        for name, law in laws.items():
            found = [(law.log10_p(law.score(a, b, length), length) <= level).mean() for a, b in drawn]
            print(f"{name:20s}" + "".join(f"{share:7.3f}" for share in found), flush=True)
    hits, number, law = np.zeros(len(LEVELS)), int(options.unmarked), laws["both weights"]
    for begin in range(0, number, A_BATCH):
        a, b = random.gamma(60.0, size=(2, min(A_BATCH, number - begin)))
        p = law.log10_p(law.score(a, b, 60), 60)
        hits += [(p <= np.log10(level)).sum() for level in LEVELS]
    for level, count in zip(LEVELS, hits.astype(int).tolist(), strict=True):
        low, high = (limit / level for limit in binomial_limits(count, number, 0.005))
        print(f"{number:,} unmarked texts at {level:g}: {count / number / level:.3f} of it ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
