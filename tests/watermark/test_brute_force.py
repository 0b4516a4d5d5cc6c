"""The numpy brute force against the plain reference, before anything is compared with it."""

from fractions import Fraction

import numpy as np
import pytest

from tests import reference
from tests.watermark import brute_force

METHODS = [
    reference.Method("greenlist", b"brute force " * 2, 2, Fraction(1, 2)),
    reference.Method("greenlist", b"brute force " * 2, 0, Fraction(3, 8)),
    reference.Method("greenlist", b"brute force " * 2, 1, Fraction(77, 256)),
    reference.Method("gumbel", b"brute force " * 2, 2),
    reference.Method("gumbel-log", b"brute force " * 2, 1),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.method}-{method.gamma}")
@pytest.mark.parametrize("tokens", [[], [5], [5, 6, 7, 2**32 - 1, 49151, 6, 7, 2**32 - 1], [255, 256, 4095, 4096]])
def test_the_scores_are_those_of_the_reference(method, tokens):
    wanted = method.scores(tokens, range(300))
    got = brute_force.scores(method, tokens, 300)
    np.testing.assert_allclose(got, wanted, rtol=1e-14, atol=0)
    assert brute_force.best_two(got) == [message for message, _ in method.best_two(tokens, 300)]


def test_one_message_has_no_second():
    assert brute_force.best_two(np.array([3.0])) == [0, -1]
    assert brute_force.best_two(np.array([3, 4, 4])) == [1, 2]
