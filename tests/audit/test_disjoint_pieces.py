"""The paper's figure on few pieces: its counts against plain p-values, and its finding on real text."""

from fractions import Fraction

import numpy as np
import pytest

from scanner.audit.calibration.calibration_plan import PANELS, count_fragments, cut_fragments, repeated_ngrams
from scanner.audit.calibration.calibration_report import fragments_png, law_png
from scanner.audit.statistics.hits import THRESHOLDS
from scanner.watermark import GreenList, Gumbel, batch_tokens, log10_greenlist, log10_gumbel, log10_z, scored_positions
from scanner.watermark.positions import WholeWindows
from tests.watermark.pairs import format_for

QUARTER = Fraction(1, 4)
ALPHAS = (1.0, 0.1, 1e-2, 1e-3, 1e-4)
SECRETS = [bytes([i] * 32) for i in range(10)]


def test_pieces_are_disjoint_and_exact():
    tokens = batch_tokens([list(range(10)), list(range(100, 103)), list(range(200, 208))])
    cut = cut_fragments(tokens, np.array([2, 0, 1]), 4)
    assert cut.ids.reshape(-1, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [200, 201, 202, 203]]
    assert cut.offsets.tolist() == [0, 4, 8, 12]
    assert len(cut_fragments(tokens, np.zeros(3, np.int64), 4).ids) == 0


@pytest.fixture(scope="module")
def cut(human):
    return cut_fragments(human, np.diff(human.offsets) // 256, 256)


@pytest.mark.parametrize("gamma", [Fraction(1, 4), None], ids=str)
def test_hits_are_those_of_plain_p_values(gamma, cut):
    found = count_fragments(format_for(gamma, 2), SECRETS[:2], cut, ALPHAS)
    assert found.tests == len(cut.offsets) - 1
    for k, secret in enumerate(SECRETS[:2]):
        mark = Gumbel(secret, 2) if gamma is None else GreenList(secret, 2, gamma)
        for i, (test, dedup) in enumerate(PANELS):
            positions = scored_positions(cut, 2, dedup)
            score, scored = mark.score(cut, positions, 0), positions.scored
            if test == "z":
                p = log10_z(score, scored, *((1.0, 1.0) if gamma is None else (0.25, 0.1875)))
            else:
                p = log10_gumbel(score, scored) if gamma is None else log10_greenlist(score, scored, gamma)
            assert found.hits[k, i].tolist() == [int((10**p <= alpha).sum()) for alpha in ALPHAS]
    assert found.expected[0] == pytest.approx(found.tests * np.array(ALPHAS))
    assert (found.expected <= found.tests * np.array(ALPHAS) * (1 + 1e-9)).all()


@pytest.mark.parametrize("gamma", [Fraction(1, 4), None], ids=str)
def test_the_papers_finding_on_real_text(gamma, cut):
    """With repeats scored, small p-values are several times too many; without, the exact test is right."""
    found = count_fragments(format_for(gamma, 2), SECRETS, cut, ALPHAS)
    ratio = found.hits.sum(axis=0) / (len(SECRETS) * found.expected)
    z, exact, ngram = ratio[:, 3]
    assert z > 4
    assert exact > 4
    assert ngram < 2


def test_parts_add_up(cut):
    counts = np.diff(cut.offsets) // 256
    first, rest = counts.copy(), counts.copy()
    first[50:], rest[:50] = 0, 0
    a, b = (
        count_fragments(format_for(QUARTER, 1), SECRETS[:2], cut_fragments(cut, part, 256), ALPHAS)
        for part in (first, rest)
    )
    whole, both = count_fragments(format_for(QUARTER, 1), SECRETS[:2], cut, ALPHAS), a.plus(b)
    assert (both.hits == whole.hits).all()
    assert both.expected == pytest.approx(whole.expected)
    assert both.extreme.log10_p == whole.extreme.log10_p


def test_a_vanilla_text_whose_p_is_tiny_when_repeats_are_scored():
    """One line over and over: with repeats scored, p is tiny under some key; without, it is above 1e-3."""
    generator = np.random.default_rng(2)
    line = generator.integers(0, 30_000, 12).tolist()
    tokens = batch_tokens([(line * 30)[:256], generator.integers(0, 30_000, 256).tolist()])
    worst = count_fragments(format_for(QUARTER, 2), SECRETS, tokens, ALPHAS).extreme
    assert worst.log10_p < -10
    assert worst.log10_p_ngram > -3
    assert (worst.scored, worst.scored_ngram) == (254, 12)
    assert worst.ids.tolist() == tokens.ids[:256].tolist()
    times = repeated_ngrams(worst.ids, WholeWindows(2), 3)
    assert [count for count, _ in times] == [22, 22, 21]
    assert times[0][1] == tuple(line[:3])


@pytest.mark.costly
def test_they_are_drawn(cut):
    counts = {
        how: count_fragments(how, SECRETS, cut, ALPHAS)
        for how in (format_for(gamma, h) for gamma in (QUARTER, None) for h in (0, 4))
    }
    assert fragments_png(counts, ALPHAS).startswith(b"\x89PNG")
    row = {"kind": "law_total", "method": "gumbel", "tests": 1e9, "hits": 10, "expected": 9.5, "low": 5.0, "high": 19.0}
    assert law_png([row | {"threshold": threshold} for threshold in THRESHOLDS]).startswith(b"\x89PNG")
