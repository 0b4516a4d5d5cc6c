"""`python -m tests.bench`: print the table of comparisons, and write it as JSON.

Rows: 1 primitives, 2 one message, 3 all messages, 4 p-values, 5 tokenising and own normal forms, 6 the whole scan,
7 peers, 8 marking (needs `make model`), 9 one message of every format, 10 version 3 beside version 1,
11 parts and windows of texts beside texts alone.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tests.bench import as_init, kernels, marking, measure, peers, recording, scan, tokenising  # noqa: E402 - threads are counted at import


def whole_scans(options: argparse.Namespace) -> Iterator[measure.Comparison]:
    """Row 6."""
    yield from scan.whole(options)
    yield from as_init.of_init(options)


DEMO = Path(__file__).parents[2] / "jobs" / "demo"
ROWS = {
    1: kernels.primitives,
    2: kernels.one_message,
    3: kernels.all_messages,
    4: kernels.p_values,
    5: tokenising.backends,
    6: whole_scans,
    7: peers.beside_ours,
    8: marking.beside_unmarked,
    9: kernels.every_format,
    10: kernels.many_users,
    11: kernels.parts_for_users,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", choices=sorted(ROWS), default=sorted(ROWS))
    parser.add_argument("--json", type=Path, help="write them to this file")
    parser.add_argument(
        "--corpus", type=Path, default=DEMO / "sample-1.parquet", help="Parquet file with a column text"
    )
    parser.add_argument("--tokenizers", type=Path, default=DEMO, help="folder of tokenizer files, *.json")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--megabytes", type=float, default=4.0, help="text to tokenise and scan")
    parser.add_argument("--ray", action="store_true", help="row 6 through Ray as well")
    recording.add_option(parser)
    options = parser.parse_args()
    found = measure.circumstances()
    print(f"{found['machine']['cpu']}, {found['machine']['cores']} cores, load {found['machine']['load'][0]:.1f}")
    print(", ".join(f"{name} {number}" for name, number in found["versions"].items()))
    print(", ".join(f"{name}={value}" for name, value in found["threads"].items()))
    print(HEADER)
    comparisons = []
    for row in options.rows:
        for one in ROWS[row](options):
            comparisons.append(one)
            print(line(one), flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({**found, "figures": [one._asdict() for one in comparisons]}, indent=1) + "\n"
        )
    recording.record(
        options,
        parser.prog,
        group="Speed",
        title="Each part beside its baseline",
        sample=f"medians of {options.repeats} repeats; spread: most less least of the rate, over its median",
        columns=("row", "what", "per CPU second", "unit", "ratio", "of", "spread"),
        rows=[
            (one.row, one.what, one.rate, one.unit, one.ratio, one.baseline, f"{one.spread:.0%}") for one in comparisons
        ],
        mark="by row",
    )


HEADER = f"{'row':3} {'what':64} {'per CPU second':>24} {'ratio':>9}  {'of':44} spread"


def line(one: measure.Comparison) -> str:
    value = f"{one.rate:.3g} {one.unit}"
    against = f"{one.baseline} ({one.baseline_rate:.3g})"
    note = f"  {one.note}" if one.note else ""
    return f"{one.row:3} {one.what:64} {value:>24} {one.ratio:9.3g}  {against:44} {one.spread:5.0%}{note}"


if __name__ == "__main__":
    sys.exit(main())
