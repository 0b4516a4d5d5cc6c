"""The unit of a claim: which window of a text is the strongest."""

import numpy as np

from scanner.claims.unit import _strongest
from scanner.watermark.laws import Gamma


def test_the_strongest_window_has_the_smallest_p():
    """A sum of few exponential terms is far above its mean more often than one of many by as many deviations."""
    excess = np.repeat([2.0, 0.0, 0.62], [24, 10, 200])
    begins, ends = np.array([0, 34, 0]), np.array([24, 234, 234])
    never_before = np.full(len(excess), -1)
    strongest = _strongest(Gamma(), excess, never_before, begins[:2], ends[:2])
    assert strongest.tolist() == [1, 0]  # 8.8 and 9.8 standard deviations
    assert Gamma().log10_p(72.0, 24) > Gamma().log10_p(324.0, 200)
