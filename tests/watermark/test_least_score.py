"""The least score with a given p-value, against a search of all whole numbers, or against its neighbours."""

import numpy as np
import pytest

from scanner.watermark.laws import least_score
from tests.watermark.pairs import law_of
from tests.watermark.strategies import GAMMAS

SCORED = np.array([0, 1, 2, 7, 40, 300])


@pytest.mark.parametrize("log10_p", [-1e-3, -0.5, -3.0, -9.0, -200.0])
def test_of_whole_numbers(log10_p):
    for gamma in GAMMAS[::17]:
        found = least_score(law_of(gamma), SCORED, log10_p)
        for scored, least in zip(SCORED.tolist(), found.tolist(), strict=True):
            all_of_them = np.arange(scored + 1)
            enough = np.flatnonzero(law_of(gamma).log10_p(all_of_them, scored) <= log10_p)
            assert least == (enough[0] if len(enough) else scored + 1)


@pytest.mark.parametrize("log10_p", [-1e-3, -0.5, -3.0, -9.0, -20.0])
def test_of_others(log10_p):
    law, scored = law_of(None), SCORED[3:]
    found = least_score(law, scored, log10_p)
    assert (law.log10_p(found, scored) > log10_p).all()
    assert (law.log10_p(found + 1e-7 * scored, scored) <= log10_p).all()
    assert (least_score(law, SCORED[:1], log10_p) > law.largest(SCORED[:1])).all()
