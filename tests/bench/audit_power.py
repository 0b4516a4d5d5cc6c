"""How small an excess the audit of a scan sees: `python -m tests.bench.audit_power`, tables for two sizes of a night.

An excess of r at a level says that p-values are at or below it r times as often as stated. Nights are drawn from the
least such law, which is right at all levels that the excess does not force up. Their hits are judged as a scan judges
them. Printed is the smallest r that raises the alarm in nine nights of ten, with the share of fresh nights that saw it.
Decoys of keys with groups come from tests.bench.paired_nights, document by document; a large night is put together
from small ones. Besides: how many nights without a fault alarm, and how many see a fault of p-values times a factor in
a part of the traffic.

Assumed: one key, whose law attains every level (Gumbel's); but for pairs of groups and users independent tests, so that
design effects are 1; other rows of the family are quiet. tests/audit/test_power.py holds a cell against nights that are
drawn and judged text by text.
"""

import argparse
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS
from scanner.audit.statistics.judgement import KEY_BOUND, Count, binomial_limits, judge
from scanner.controls.controls import FAMILIES
from scanner.controls.decoys.draws import FEWEST_DOCUMENTS, share_of
from scanner.controls.decoys.text_observer import PARTS
from scanner.controls.reserved.expectation import single_p
from scanner.watermark.native.format import GumbelFormat3, groups_for
from schemas.config import ScanAuditConfig
from schemas.registry import reserved_count
from schemas.words import AuditVerdict
from tests.bench.paired_nights import CELL, SCORED, Nights, simulate

POWER = 0.9
"""Probability with which a smallest excess is seen."""
DOCUMENTS = (200_000, 50_000_000)
USERS = 100_000
PART, STRATA_OF_A_PART = 0.02, 4
"""Share of the traffic in a part that has a fault; strata of each kind that a night has, whose rows share the error."""
FACTORS = (0.9, 0.8, 0.7, 0.5)
_HALVINGS = 17  # steps of bisection: r is exact to a five-thousandth over twelve decades
_AUDIT = ScanAuditConfig()
_OF_FAMILY = _AUDIT.family_error / FAMILIES
RISK = _OF_FAMILY / (len(THRESHOLDS) + len(DEEP_THRESHOLDS))
"""One level's part of the error of decoys of a key with many messages: the best of all, all."""


class Row(NamedTuple):
    """Independent tests of one kind in one night.

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

    def nights(self, law: NDArray[np.float64], nights: int, seed: int) -> NDArray[np.int64]:
        """Hits at each level of nights of independent tests: int64[nights, J]."""
        between = -np.diff(np.concatenate([[1.0], law, [0.0]]))
        drawn = np.random.default_rng(seed).multinomial(self.tests, between / between.sum(), nights)
        return np.cumsum(drawn[:, :0:-1], axis=1)[:, ::-1]

    def seen(self, law: NDArray[np.float64], nights: int, seed: int, critical: NDArray[np.int64]) -> int:
        """Number of nights in which any level is called too small."""
        return int((self.nights(law, nights, seed) >= critical).any(axis=1).sum())


def least_law(chance: NDArray[np.float64], level: int, excess: float) -> NDArray[np.float64]:
    """The least law with P(p ≤ α) `excess` times as large as stated at a level: float64[J]."""
    forced = np.where(np.arange(len(chance)) <= level, excess * chance[level], 0.0)
    return np.minimum(np.maximum(chance, forced), 1.0)


def smallest(row: Row | Nights, level: int, nights: int, seed: int) -> float:
    """The smallest excess that so many nights see with probability POWER."""
    critical = row.critical() if isinstance(row, Row) else None
    low, high = 0.0, -np.log(row.chance[level])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        law = least_law(row.chance, level, np.exp(middle))
        seen = row.seen(law, RISK) if critical is None else row.seen(law, nights, seed, critical)
        low, high = (low, middle) if seen >= POWER * nights else (middle, high)
    return float(np.exp(high))


def decoys_of_one(documents: int, risk: float = RISK) -> Row:
    """Decoys of a key of one message: each document is a test."""
    tests = round(documents * share_of(_AUDIT.share, FEWEST_DOCUMENTS, documents))
    return Row("decoys of one message", THRESHOLDS, tests, tests, np.array(THRESHOLDS), risk)


def decoys_of_all(documents: int, messages: int) -> Row:
    """Decoys of all messages of a key without groups, each a test; a document is a cluster."""
    clusters = round(documents * _AUDIT.all_messages_share)
    return Row(
        "all messages, no groups", DEEP_THRESHOLDS, clusters * messages, clusters, np.array(DEEP_THRESHOLDS), RISK
    )


def reserved(documents: int, messages: int, groups: int | None = None) -> Row:
    """Reserved messages of a key, each a test in each text; a message is a cluster."""
    count, chance = reserved_count(messages), single_p(THRESHOLDS, messages, 1)
    if groups:
        chance = GumbelFormat3(window=4, groups=groups).found_chance(np.array([SCORED]), chance)[0]
    title = f"reserved messages, {'groups' if groups else 'no groups'}"
    return Row(title, THRESHOLDS, documents * count, count, chance, _OF_FAMILY / len(THRESHOLDS), KEY_BOUND)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit_power", description=__doc__)
    parser.add_argument("--documents", nargs="+", type=float, default=DOCUMENTS)
    parser.add_argument("--users", type=float, default=USERS)
    parser.add_argument("--nights", type=float, default=1e3, help="drawn for each excess that is tried")
    parser.add_argument("--paired-nights", type=int, default=300, help="small nights of keys with groups, simulated")
    options = parser.parse_args()
    nights, groups = int(options.nights), groups_for(options.users)
    small = options.paired_nights * round(DOCUMENTS[0] * _AUDIT.all_messages_share) // CELL
    first, fresh = (simulate(small, groups, seed) for seed in (1, 2))
    _print_quiet(round(CELL / _AUDIT.all_messages_share), fresh)
    for documents in map(int, options.documents):
        cells = round(documents * _AUDIT.all_messages_share) // CELL
        for row in (
            decoys_of_one(documents),
            decoys_of_all(documents, int(options.users)),
            reserved(documents, int(options.users)),
            reserved(documents, groups**2, groups),
        ):
            print(f"\n{documents:,} documents, {row.title}: {row.tests:,} tests, {nights:,} nights")
            for j, level in enumerate(row.levels):
                excess, critical = smallest(row, j, nights, 2 * j), row.critical()
                seen = row.seen(least_law(row.chance, j, excess), nights, 2 * j + 1, critical)
                _print(f"{level:.0e}", excess, seen, nights)
        known, unknown = (pool.together(cells, options.paired_nights) for pool in (first, fresh))
        count = len(known.hits)
        print(f"\n{documents:,} documents, all messages, {groups} groups: {known.tests:.3g} tests, {count:,} nights")
        for j, level in enumerate(DEEP_THRESHOLDS):
            excess = smallest(known, j, count, 0)
            _print(f"{level:.0e}", excess, unknown.seen(least_law(unknown.chance, j, excess), RISK), len(unknown.hits))
        _print_quiet(documents, unknown)
        _print_parts(documents, fresh.together(max(1, round(PART * cells)), options.paired_nights))


def _print(what: str, excess: float, seen: int, nights: int) -> None:
    low, high = binomial_limits(seen, nights, 0.025)
    print(f"{what:>10}{excess:>11,.4g}  {seen / nights:.3f} ({low:.3f} to {high:.3f})", flush=True)


def _print_quiet(documents: int, nights: Nights) -> None:
    """How many nights without a fault alarm, where the risks of the levels add up to an error."""
    for error in (RISK * len(DEEP_THRESHOLDS), 0.01, 0.05):
        seen = nights.seen(nights.chance, error / len(DEEP_THRESHOLDS))
        print(f"{documents:,} documents, no fault, error {error:.1e}: {seen} of {len(nights.hits):,} nights alarm")


def _print_parts(documents: int, of_pairs: Nights) -> None:
    """How many nights see p-values times a factor in a part of the traffic, under a key of one message and of many."""
    rows = len(PARTS) * STRATA_OF_A_PART * len(DEEP_THRESHOLDS)
    of_one = decoys_of_one(documents)
    tests = round(PART * of_one.tests)
    of_one = of_one._replace(tests=tests, clusters=tests, risk=_OF_FAMILY / rows)
    for factor in FACTORS:
        one = of_one.seen(of_one.chance / factor, len(of_pairs.hits), 5, of_one.critical()) / len(of_pairs.hits)
        every = of_pairs.seen(of_pairs.chance / factor, _OF_FAMILY / rows) / len(of_pairs.hits)
        print(
            f"{documents:,} documents, p × {factor} in {PART:.0%} of them: seen in {one:.3f} of {len(of_pairs.hits):,} "
            f"nights by one message, {every:.3f} by all"
        )


if __name__ == "__main__":
    main()
