"""What a scan costs as users, keys or the length of posts grow: `python -m tests.bench.cost_curves --record FILE`.

One of them varies, and the others stay at 100,000 users, one key and posts of 170 tokens. Everything else is as
`brickscan init` writes it. All points are scanned in turns, so that a machine that gets slower does not bend the curve.
`make pictures` draws docs/measurements/cost-curves.json.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.bench import recording
from tests.bench.checkouts import DEMO, HERE, Point, Version

PLAIN = Point("", 1, 1e5, 170, "init", "init")
AXES: dict[str, tuple[int, ...]] = {
    "users": (1, 10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9),
    "keys": (1, 2, 5, 10, 20, 50),
    "tokens": (20, 57, 170, 512, 2048),
}
"""Values of each field of a Point that varies."""

FORMATS = ("greenlist-v3", "gumbel-v3")


def points() -> Iterator[tuple[str, int, Point]]:
    """Each point with the field that varies, and its value."""
    for field, values in AXES.items():
        for value in values:
            for name in FORMATS:
                yield field, value, PLAIN._replace(format=name, **{field: value})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cost_curves", description=__doc__)
    parser.add_argument("--corpus", type=Path, default=DEMO / "sample-1.parquet")
    parser.add_argument("--tokenizer", type=Path, default=next(DEMO.glob("*.json")))
    parser.add_argument("--megabytes", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=3)
    recording.add_option(parser)
    options = parser.parse_args()
    measured = list(points())
    arguments = [
        *("--corpus", str(options.corpus.resolve()), "--tokenizer", str(options.tokenizer.resolve())),
        *("--megabytes", str(options.megabytes)),
    ]
    version = Version(HERE, [point for _, _, point in measured], arguments)
    print(f"load {os.getloadavg()[0]:.1f}")
    for place in range(len(measured)):  # compiles, and prepares the posts
        version.scan(place)
    rounds = [[version.scan(place) for place in range(len(measured))] for _ in range(options.repeats)]
    version.end()
    rows = []
    for place, (field, value, point) in enumerate(measured):
        costs = sorted(1e3 * each[place]["all"] / each[place]["megabytes"] for each in rounds)
        scores = median(1e3 * each[place]["scores"] / each[place]["megabytes"] for each in rounds)
        rows.append((field, f"{value:,}", point.format, median(costs), costs[0], costs[-1], scores))
        print("{} {}, {}: {:.0f} CPU ms a MB ({:.0f} to {:.0f}), {:.0f} of them scores".format(*rows[-1]), flush=True)
    recording.record(
        options,
        parser.prog,
        group="Speed",
        title="What a scan costs as users, keys or the length of posts grow",
        sample=(
            f"scans of {options.megabytes:g} MB as `brickscan init` writes them, under keys of 100,000 users, one key "
            f"and posts of 170 tokens where nothing else is said; medians of {options.repeats} rounds, with the least "
            "and most"
        ),
        columns=("what grows", "value", "format", "CPU ms a MB", "least", "most", "of them scores"),
        rows=rows,
    )


if __name__ == "__main__":
    main()
