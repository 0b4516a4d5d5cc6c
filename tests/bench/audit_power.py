"""How small an excess the audit of a scan sees: `python -m tests.bench.audit_power`, tables for two sizes of a night.

An excess of r at a level says that p-values are at or below it r times as often as stated. Nights are drawn from the
least such law, which is right at all levels that the excess does not force up. Their hits are judged as a scan judges
them. Printed is the smallest r that raises the alarm in nine nights of ten, with the share of fresh nights that saw it.
Beside it stand the same figures of earlier scans, which judged down to 1e-8 and drew a fixed share of the documents,
however few.

Assumed: one key, whose law attains every level (Gumbel's); independent tests, so that design effects are 1; other rows
of the family are quiet. tests/audit/test_power.py holds a cell against nights that are drawn and judged text by text.
"""

import argparse
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.in_every_scan.decoy_keys import share_of
from scanner.audit.in_every_scan.traffic import own_p
from scanner.audit.statistics.expectation import DEEP, THRESHOLDS
from scanner.audit.statistics.intervals import binomial_limits
from scanner.audit.statistics.judgement import KEY_BOUND, POWER, Count, judge
from schemas.config import ScanAuditConfig
from schemas.registry import reserved_count
from schemas.words import AuditVerdict

DOCUMENTS = (200_000, 50_000_000)
MESSAGES = 100_000
_HALVINGS = 17  # steps of bisection: r is exact to a five-thousandth over twelve decades
_AUDIT = ScanAuditConfig()


class Row(NamedTuple):
    """Tests of one kind in one night.

    levels: α[J], from large to small; chance: a test's probability of a hit, float64[J]; risk: one level's part of the
    family error, which is its chance to be called too small where the law holds; bound: as of `judge`.
    """

    title: str
    levels: tuple[float, ...]
    tests: int
    clusters: int
    chance: NDArray[np.float64]
    risk: float
    bound: float = 1.0

    def critical(self) -> NDArray[np.int64]:
        """The fewest hits that `judge` calls too small, int64[J]; more than there are tests where no number is."""
        return np.array([self._fewest(float(chance)) for chance in self.chance], np.int64)

    def _fewest(self, chance: float) -> int:
        few, many = 0, self.tests + 1
        while many - few > 1:
            hits = (few + many) // 2
            count = Count(self.tests, hits, self.tests * chance, self.clusters, design_effect=1.0)
            too_small = judge([count], self.risk, self.bound)[0].verdict == AuditVerdict.TOO_SMALL
            few, many = (few, hits) if too_small else (hits, many)
        return many

    def law(self, level: int, excess: float) -> NDArray[np.float64]:
        """The least law with P(p ≤ α) `excess` times as large as stated at a level: float64[J]."""
        forced = np.where(np.arange(len(self.chance)) <= level, excess * self.chance[level], 0.0)
        return np.minimum(np.maximum(self.chance, forced), 1.0)

    def nights(self, law: NDArray[np.float64], nights: int, seed: int) -> NDArray[np.int64]:
        """Hits at each level of nights of independent tests: int64[nights, J]."""
        between = -np.diff(np.concatenate([[1.0], law, [0.0]]))
        drawn = np.random.default_rng(seed).multinomial(self.tests, between / between.sum(), nights)
        return np.cumsum(drawn[:, :0:-1], axis=1)[:, ::-1]

    def seen(self, law: NDArray[np.float64], nights: int, seed: int, critical: NDArray[np.int64]) -> int:
        """Number of nights in which any level is called too small."""
        return int((self.nights(law, nights, seed) >= critical).any(axis=1).sum())

    def smallest(self, level: int, nights: int, seed: int, critical: NDArray[np.int64]) -> float:
        """The smallest excess that so many nights see with probability POWER."""
        low, high = 0.0, -np.log(self.chance[level])
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            found = self.seen(self.law(level, np.exp(middle)), nights, seed, critical) >= POWER * nights
            low, high = (low, middle) if found else (middle, high)
        return float(np.exp(high))


def decoys_of_one(documents: int, share: float, risk: float, levels: tuple[float, ...] = THRESHOLDS) -> Row:
    """Decoys of one message: each document is a test."""
    tests = round(documents * share)
    return Row("decoys of one message", levels, tests, tests, np.array(levels), risk)


def decoys_of_all(documents: int, messages: int, risk: float, levels: tuple[float, ...]) -> Row:
    """Decoys of all messages, each a test; a document is a cluster."""
    clusters = round(documents * _AUDIT.all_messages_share)
    return Row("decoys of all messages", levels, clusters * messages, clusters, np.array(levels), risk)


def reserved(documents: int, messages: int, risk: float) -> Row:
    """Reserved messages of a key, each a test in each text; a message is a cluster."""
    count = reserved_count(messages)
    chance = own_p(THRESHOLDS, messages, 1)
    return Row("reserved messages", THRESHOLDS, documents * count, count, chance, risk, KEY_BOUND)


def night(documents: int, messages: int, *, now: bool) -> list[Row]:
    """Rows that a scan judges now, or judged before it had deep levels and a least number of documents."""
    deep, half = DEEP if now else THRESHOLDS, _AUDIT.family_error / 2
    of_decoys = half / (2 * len(THRESHOLDS) + len(deep))  # one message, the best of all, all
    share = share_of(_AUDIT.share, documents) if now else _AUDIT.share
    return [
        decoys_of_one(documents, share, of_decoys),
        decoys_of_all(documents, messages, of_decoys, deep),
        reserved(documents, messages, half / len(THRESHOLDS)),
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit_power", description=__doc__)
    parser.add_argument("--documents", nargs="+", type=float, default=DOCUMENTS)
    parser.add_argument("--messages", type=float, default=MESSAGES)
    parser.add_argument("--nights", type=float, default=1e4, help="drawn for each excess that is tried")
    options = parser.parse_args()
    for documents in map(int, options.documents):
        for after, before in zip(
            *(night(documents, int(options.messages), now=now) for now in (True, False)), strict=True
        ):
            print(f"\n{documents:,} documents, {after.title}: {after.tests:,} tests, before {before.tests:,}")
            print(f"{'p at most':>10}{'excess':>11}  {'of fresh nights seen (95 %)':<30}{'before':>11}")
            told = [_table(row, int(options.nights)) for row in (before, after)]
            for level, cells in told[1].items():
                was = told[0].get(level, ("-", ""))[0]
                print(f"{level:>10.0e}{cells[0]:>11}  {cells[1]:<30}{was:>11}", flush=True)


def _table(row: Row, nights: int) -> dict[float, tuple[str, str]]:
    """The table by level: the smallest excess, and the share of fresh nights that see it."""
    critical, told = row.critical(), {}
    for j, level in enumerate(row.levels):
        excess = row.smallest(j, nights, 2 * j, critical)
        seen = row.seen(row.law(j, excess), nights, 2 * j + 1, critical)
        low, high = binomial_limits(seen, nights, 0.025)
        told[level] = (f"{excess:,.4g}", f"{seen / nights:.3f} ({low:.3f} to {high:.3f})")
    return told


if __name__ == "__main__":
    main()
