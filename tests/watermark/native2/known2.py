"""Both paths of version 2 under one roof, and text that is marked for somebody: shared by the tests of this folder."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from scanner.watermark.native.version2_marks import Version2GreenList, Version2Gumbel, Version2LogGumbel, Version2Mark
from tests import reference2
from tests.watermark.pairs import SECRET, batch_tokens


class Pair(NamedTuple):
    """One watermark twice: the fast path and the reference."""

    fast: Version2Mark
    plain: reference2.Method


def pair(method: str, window: int, groups: int | None = None, gamma: Fraction = Fraction(1, 4)) -> Pair:
    if method == "greenlist":
        fast = Version2GreenList(SECRET, window, gamma, groups)
        return Pair(fast, reference2.Method(method, SECRET, window, gamma, groups))
    kind = {"gumbel": Version2Gumbel, "gumbel-log": Version2LogGumbel}[method]
    return Pair(kind(SECRET, window, groups), reference2.Method(method, SECRET, window, groups=groups))


def marked(mark: Version2Mark, message: int, length: int, choices: int, seed: int = 0) -> list[int]:
    """A text of which each token is the best of `choices` random ones for a message; more choices, a stronger mark."""
    generator = np.random.default_rng(seed)
    text = generator.integers(0, 50_000, mark.window).tolist()
    for _ in range(length):
        drawn = generator.integers(0, 50_000, choices).tolist()
        tokens = batch_tokens([[*text[len(text) - mark.window :], token] for token in drawn])
        positions = mark.rule.positions(tokens, "none")
        text.append(drawn[int(mark.score(tokens, positions, message).argmax())])
    return text
