"""How small an excess the audit sees: tables of `make audit-power` against nights drawn and judged text by text."""

import numpy as np
import pytest
from scipy import stats

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS, ClusterSums, cluster_sums
from scanner.audit.statistics.judgement import counts, judge
from schemas.words import AuditVerdict
from tests.bench.audit_power import DOCUMENTS, Row, decoys_of_all, decoys_of_one, least_law, reserved, smallest
from tests.bench.audit_power import USERS as MESSAGES
from tests.bench.paired_nights import GROUP_STEPS, SCORED, simulate

TEXTS, OF_TEXT, LEVELS, ERROR = 100, 500, THRESHOLDS[:5], 1e-3
CELL = 3
"""Place of the level 1e-4, where five hits are expected."""


def seen_text_by_text(law: np.ndarray, random: np.random.Generator) -> bool:
    """Whether a night raises the alarm: each p-value is drawn, each text is a cluster, and all levels are judged."""
    p = random.random((TEXTS, OF_TEXT))
    hits = np.stack([(p <= level).sum(axis=1) for level in law], axis=1)
    sums = cluster_sums(hits, np.full(TEXTS, OF_TEXT), np.broadcast_to(LEVELS, (TEXTS, len(LEVELS))))
    return any(said.verdict == AuditVerdict.TOO_SMALL for said in judge(counts(sums), ERROR))


@pytest.mark.seconds
def test_a_cell_is_what_brute_force_finds():
    """The table's excess is seen in nine of ten of 300 nights, give or take four standard errors (0.07).

    Drawn clusters have design effects above 1 by chance, which the table leaves out: hence 0.03 more below.
    """
    row = Row("", LEVELS, TEXTS * OF_TEXT, TEXTS, np.array(LEVELS), ERROR / len(LEVELS))
    excess = smallest(row, CELL, 20_000, 1)
    random = np.random.default_rng(6)
    share = [
        np.mean([seen_text_by_text(least_law(row.chance, CELL, r), random) for _ in range(300)])
        for r in (excess, excess / 1.6, 1.0)
    ]
    assert 0.9 - 0.1 < share[0] < 0.9 + 0.07
    assert share[1] < 0.5
    assert share[2] < 0.02


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_a_law_that_is_right_at_1e_6_and_a_thousand_times_too_small_at_1e_12_is_caught(documents):
    """Decoys of all messages see it in 99.9 % of 4,000 nights; the other rows see it in 1 % at most."""
    alpha = np.array(DEEP_THRESHOLDS)
    excess = 10 ** (np.maximum(0.0, -np.log10(alpha) - 6) / 2)
    assert excess[[5, -1]].tolist() == [1.0, 1000.0]
    of_one, of_all = decoys_of_one(documents), decoys_of_all(documents, MESSAGES)
    assert (of_all.levels, of_all.tests) == (DEEP_THRESHOLDS, documents // 100 * MESSAGES)
    critical = of_all.critical()
    assert of_all.seen(alpha * excess, 4000, 1, critical) >= 3996
    assert of_all.seen(alpha, 4000, 2, critical) <= 8  # 2 expected at most
    for row in (of_one, reserved(documents, MESSAGES)):
        few = len(row.levels)
        assert row.seen(row.chance * excess[:few], 4000, 3, row.critical()) <= 40


@pytest.mark.costly
def test_nights_of_pairs_are_judged_as_a_scan_judges_them():
    """As many of 400 nights as by `judge`, level by level, with a risk so large that some alarm."""
    nights, risk = simulate(400, 20, 3), 0.02
    hits, squares = nights.at(nights.chance)
    each, ones = nights.pairs * nights.chance, np.ones(len(DEEP_THRESHOLDS))
    found = 0
    for of_night, squared in zip(hits, squares, strict=True):
        expected = nights.documents * each
        sums = ClusterSums(
            nights.tests * ones, of_night, expected, squared, of_night * each, expected * each, nights.documents * ones
        )
        found += any(judge([count], risk)[0].verdict == AuditVerdict.TOO_SMALL for count in counts(sums))
    assert 5 < found < 80
    assert nights.seen(nights.chance, risk) == found


def test_pairs_spread_between_documents_as_plain_draws_do():
    """16,000 documents of 20 groups and 400 users each, against 4,000 drawn score by score."""
    nights, random = simulate(400, 20, 4), np.random.default_rng(1)
    level = int(np.searchsorted(-nights.law, -1e-2))
    least = stats.gamma.isf(nights.law[level], SCORED)
    drawn = np.array(
        [
            (random.gamma(GROUP_STEPS, size=(20, 1)) + random.gamma(SCORED - GROUP_STEPS, size=400) >= least).sum()
            for _ in range(4000)
        ]
    )
    mean = nights.law[level] * nights.pairs
    assert nights.hits[:, level].mean() / nights.documents == pytest.approx(mean, rel=0.05)
    assert drawn.mean() == pytest.approx(mean, rel=0.1)
    squares = nights.squares[:, level].mean() / nights.documents
    assert squares == pytest.approx(float((drawn.astype(float) ** 2).mean()), rel=0.25)
