"""Both paths of version 3 under one roof, and text that is marked for somebody: shared by the tests of this folder."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel, Version3LogGumbel
from tests import reference3
from tests.watermark.pairs import SECRET

BEACON = bytes(range(200, 232))
Mark = Version3GreenList | Version3Gumbel


class Pair(NamedTuple):
    """One watermark twice: the fast path and the reference."""

    fast: Mark
    plain: reference3.Method


def pair(
    method: str,
    window: int,
    groups: int | None = None,
    gamma: Fraction = Fraction(1, 4),
    seeds: int = 24,
    beacon: bytes = BEACON,
    secret: bytes = SECRET,
) -> Pair:
    if method == "greenlist":
        fast = Version3GreenList(secret, window, gamma, groups, seeds, beacon)
        return Pair(fast, reference3.Method(method, secret, window, gamma, groups, seeds, beacon))
    kind = {"gumbel": Version3Gumbel, "gumbel-log": Version3LogGumbel}[method]
    plain = reference3.Method(method, secret, window, None, groups, seeds, beacon)
    return Pair(kind(secret, window, groups, seeds, beacon), plain)


def marked(mark: Mark, message: int, length: int, choices: int, seed: int = 0) -> list[int]:
    """A text of which each token is the best of `choices` random ones for a message; more choices, a stronger mark."""
    generator = np.random.default_rng(seed)
    text = generator.integers(0, 5000, max(mark.window, 1)).tolist()
    for _ in range(length):
        drawn = np.unique(generator.integers(0, 5000, choices))
        window = np.array([text[len(text) - mark.window :]], np.uint32).reshape(1, mark.window)
        nonces = mark.window_nonces(window)
        if isinstance(mark, Version3GreenList):
            green = mark.green(nonces, np.array([message]), int(drawn.max()) + 1)[0, drawn]
            text.append(int(drawn[green.argmax()]))
        else:
            weights = np.zeros(int(drawn.max()) + 1)
            weights[drawn] = 1.0
            text.append(mark.choose(nonces[0], message, weights))
    return text
