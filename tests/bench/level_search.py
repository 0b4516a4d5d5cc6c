"""What a search by levels costs beside the search without: `python -m tests.bench.level_search`.

Texts of random tokens meet one key of 10⁹ users, in turns with levels and without, so that both meet the same machine.
Tokens have the levels in the shares that n-grams of other texts give to human text. Ratios of CPU time of each pair.
"""

import argparse
import time

import numpy as np

from scanner.watermark import Tokens, batch_tokens
from scanner.watermark.by_levels import ByLevels
from scanner.watermark.format import Searches
from scanner.watermark.formats import make_format
from scanner.watermark.level_laws import LEVELS
from scanner.watermark.positions import Positions

BEACON = "5a" * 32
FORMS = {
    "gumbel-v3": {"window": 4, "beacon": BEACON},
    "greenlist-v3": {"window": 4, "gamma": "1/4", "beacon": BEACON},
}
SHARES = (0.13, 0.08, 0.08, 0.07, 0.07, 0.07, 0.09, 0.12, 0.29)
GROUPS = 31_623
TOKENS = 2**15


def milliseconds(mark: Searches, tokens: Tokens, positions: Positions) -> float:
    """CPU time of a search, a text."""
    began = time.process_time()
    mark.search(tokens, positions, GROUPS**2)
    return (time.process_time() - began) / len(positions.scored) * 1e3


def main() -> None:
    """Print the ratio of each format and length: the median and the range of all pairs."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.level_search", description=__doc__)
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    level_of = random.choice(LEVELS + 1, TOKENS, p=SHARES).astype(np.uint8)
    for name, parameters in FORMS.items():
        plain = make_format(name, parameters | {"groups": GROUPS}).open(b"tests.bench.level_search")
        weighed = ByLevels(plain, lambda tokens: level_of[tokens.ids])
        assert isinstance(plain, Searches)
        for length in (60, 200, 1000, 5000):
            tokens = batch_tokens([random.integers(0, TOKENS, length) for _ in range(options.texts)])
            positions = plain.rule.positions(tokens, "ngram")
            each = [
                (milliseconds(plain, tokens, positions), milliseconds(weighed, tokens, positions))
                for _ in range(1 + options.pairs)
            ]
            times = np.array(each[1:])  # the first compiles
            ratios, (without, with_levels) = times[:, 1] / times[:, 0], np.median(times, axis=0)
            print(
                f"{name} {length} tokens: {without:.2f} and {with_levels:.2f} ms a text, {np.median(ratios):.2f} times "
                f"({ratios.min():.2f} to {ratios.max():.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
