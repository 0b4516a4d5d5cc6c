"""What sound whole decisions reach of their thresholds: `python -m tests.bench.decisions`, over the expected use.

Texts of random words, 20 to 2,000 of them, are decided by the detector under decoys, each group of texts under its own,
in configurations that isolate a look or turn on all. A column is a threshold: hits over those that the audit expects,
with limits (95 %).

`--power EXPECTED USED` prints how many times as many false flags as a sound scan has are seen with a probability of
0.9, where the audit expects a share of each threshold and a sound scan uses another.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import special

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS, ClusterSums
from scanner.audit.statistics.judgement import Count, few_clusters, poisson_limits
from scanner.controls.controls import FAMILIES
from scanner.controls.decoys.whole_texts import TEXTS_A_DRAW, WholeTextDecoys
from scanner.detection.open_plan import open_detector
from scanner.input.shards import MAX_ROWS
from scanner.scan_plan import make_plan
from schemas.config import ScanAuditConfig
from tests.bench.audit_power import POWER
from tests.bench.configured import FOR_USERS, ONE_MESSAGE, VERSION_3, make_scan

DEMO = Path(__file__).parents[2] / "jobs" / "demo"
SHOWN = 4

WHOLE = "[spans]"
PARTS = "[spans]\nwindows = true\nsegments = true\n[weights]\ndocument = 1e-4\nspan = 0.9999"
ALL = "[variants]\nnormalised = true\n[spans]\nwindows = true\nsegments = true"
GREEN, GUMBEL = VERSION_3.values()
CASES: dict[str, tuple[int, dict[str, Any], str]] = {
    "one message, whole": (1, GUMBEL | ONE_MESSAGE, WHOLE),
    "1,000 messages, whole": (1, GUMBEL | {"messages": 1000}, WHOLE),
    "groups, whole, gumbel": (1, GUMBEL | FOR_USERS, WHOLE),
    "groups, whole, green": (1, GREEN | FOR_USERS, WHOLE),
    "one message, parts, gumbel": (1, GUMBEL | ONE_MESSAGE, PARTS),
    "one message, parts, green": (1, GREEN | ONE_MESSAGE, PARTS),
    "1,000 messages, parts, gumbel": (1, GUMBEL | {"messages": 1000}, PARTS),
    "groups, parts, gumbel": (1, GUMBEL | FOR_USERS, PARTS),
    "groups, parts, green": (1, GREEN | FOR_USERS, PARTS),
    "groups, all looks, two keys": (2, GREEN | FOR_USERS, ALL),
    "1,000 messages, all looks, three keys": (3, GUMBEL | {"messages": 1000}, ALL),
}


def texts(words: np.ndarray, number: int, lengths: tuple[int, int], random: np.random.Generator) -> list[str]:
    """Texts of random words: sentences and paragraphs, every second with doubled spaces."""
    made = []
    for i in range(number):
        length = int(np.exp(random.uniform(*np.log(lengths))))
        ends = random.choice(["", "", "", "", "", "", "", ".", ".", ".\n\n"], length)
        drawn = random.choice(words, length)
        made.append(("  " if i % 2 else " ").join(map("".join, zip(drawn, ends, strict=True))))
    return made


def smallest_excess(count: Count, effect: float, risk: float) -> float:
    """Return the ratio of true to expected rate that is seen with POWER at this expectation; ∞ if none is.

    By the Poisson law at the effective counts; the level is Bonferroni's, which Holm's procedure only improves.
    """
    if count.expected <= 0 or not np.isfinite(effect):
        return np.inf
    mean = count.expected / effect
    most = float(np.ceil(special.pdtrik(1 - risk, mean)))  # more hits than this are called too small
    return poisson_limits(most, 1 - POWER).high * effect / count.expected


def main() -> None:
    """Print a line for each configuration."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.decisions", description=__doc__)
    parser.add_argument("--cases", default="", help="those whose names hold this")
    parser.add_argument("--seconds", type=float, default=60, help="of CPU, for each configuration")
    parser.add_argument("--power", type=float, nargs=2, metavar=("EXPECTED", "USED"), help="of each threshold")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--words", type=int, nargs=2, default=(20, 2000), help="fewest and most in a text")
    options = parser.parse_args()
    if options.power:
        _power(*options.power)
        return
    sample = (
        pq.read_table(next(iter(sorted(DEMO.glob("sample-*.parquet")))), columns=["text"])["text"]
        .cast(pa.binary())
        .to_pylist()
    )
    words = np.array(sorted({word for text in sample for word in (text or b"").decode(errors="ignore").split()}))
    for name, case in CASES.items():
        if options.cases in name:
            print(f"{name}: {_line(words, case, options)}", flush=True)


def _line(words: np.ndarray, case: tuple[int, dict[str, Any], str], options: argparse.Namespace) -> str:
    (keys, form, more), seconds, seed = case, options.seconds, options.seed
    with tempfile.TemporaryDirectory() as folder:
        at, random = Path(folder), np.random.default_rng(seed)
        pq.write_table(pa.table({"text": ["some text"]}), at / "in.parquet")
        config = make_scan(at, DEMO / "tokenizer.json", keys, 1, [at / "in.parquet"], (1.0, 0.0, 1.0), **form)
        config.write_text(config.read_text() + more + "\n")
        plan = make_plan(config)
        detector, whole_texts = open_detector(plan), WholeTextDecoys(bytes(32), plan)
        detector.compile()
        began, number, totals = time.process_time(), 0, dict[str, ClusterSums]()
        while time.process_time() - began < seconds:
            of_group = {
                b"%d" % (number + i): text for i, text in enumerate(texts(words, TEXTS_A_DRAW, options.words, random))
            }
            marks = whole_texts.marks(whole_texts.seed(str(seed).encode(), of_group))
            for kind, sums in whole_texts.count_hits(detector, marks, of_group).items():
                totals[kind] = totals[kind].plus(sums) if kind in totals else sums
            number += TEXTS_A_DRAW
        spent = (time.process_time() - began) / number
    lines = [f"{number:,} texts, {spent * 1e3:.2f} ms each"]
    for kind, total in totals.items():
        cells = []
        for k in range(SHOWN):
            hits, expected = float(total.hits[k]), float(total.expected[k])
            low, high = poisson_limits(hits, 0.025)
            cells.append(f"1e-{k + 1}: {hits / expected:.2f} ({low / expected:.2f}-{high / expected:.2f})")
        each = total.expected[0] / total.tests[0]
        lines.append(f"  {kind}, {each:.4f} expected of a text at 0.1; of the expected " + "; ".join(cells))
    return "\n".join(lines)


def _power(expected: float, used: float) -> None:
    """Print the least factors that are seen, by documents and threshold."""
    # decisions, the best of all messages, all messages
    audit, rows = ScanAuditConfig(), 2 * len(THRESHOLDS) + len(DEEP_THRESHOLDS)
    for documents in (10**5, 10**6, 10**7):
        tests = documents * audit.decisions_share
        groups = documents / MAX_ROWS * np.ceil(MAX_ROWS * audit.decisions_share / TEXTS_A_DRAW)
        risk, cells = audit.family_error / FAMILIES / rows, []
        for k in range(SHOWN):
            count = Count(tests, 0, expected * 10.0 ** -(k + 1) * tests, groups, 1.0)
            excess = smallest_excess(count, few_clusters(groups, risk), risk)
            cells.append(f"1e-{k + 1}: {excess * expected / used:.2f}")
        print(f"{documents:,} documents, {tests:,.0f} decided; " + "; ".join(cells))


if __name__ == "__main__":
    main()
