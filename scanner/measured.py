"""How strongly texts are marked, measured on the texts themselves, and the power that texts like them have."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.errors import Refused
from scanner.power import Aim
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.laws import Law
from scanner.watermark.positions import Dedup

_HALVINGS = 60
LEAST_SCORED = 16
"""Fewest scored tokens of a text whose strength is taken into account."""


class Strengths(NamedTuple):
    """How strongly D texts are marked: scored int64[D], score float64[D], and the score of each token.

    of_tokens: D times float64[T].
    """

    scored: NDArray[np.int64]
    score: NDArray[np.float64]
    of_tokens: tuple[NDArray[np.float64], ...]


def measure(mark: Watermark, tokens: Tokens, messages: NDArray[np.int64], dedup: Dedup = "ngram") -> Strengths:
    """Score texts under the messages that they were marked for, as a whole and token by token.

    Args:
        mark: the mark of the texts.
        tokens: of D texts.
        messages: int64[D].
        dedup: which repeats are left out.
    """
    positions = mark.rule.positions(tokens, dedup)
    scored = positions.scored
    each = Positions(positions.index, np.arange(len(positions.index) + 1, dtype=np.int64))
    of_tokens = np.asarray(mark.score(tokens, each, np.repeat(messages, scored)), np.float64)
    score = np.asarray(mark.score(tokens, positions, messages), np.float64)
    return Strengths(scored, score, tuple(np.split(of_tokens, positions.offsets[1:-1])))


@dataclass(frozen=True)
class Measured:
    """Text like the measured texts: a text is as strong as one of them, and its tokens score as that text's do.

    Tokens are taken to be independent given the text, and their sum for normal. A text's own strength is known from its
    tokens alone, which spreads the strengths: above one half, powers are rather too small than too large.
    """

    law: Law
    of_tokens: tuple[NDArray[np.float64], ...]
    assumes: str
    exact: bool = False
    sawtooth: bool = False

    @classmethod
    def of(cls, law: Law | None, strengths: Strengths) -> "Measured":
        """Measured from texts that have at least LEAST_SCORED scored tokens.

        Raises:
            Refused: there are none, or scores have no law.
        """
        long = tuple(tokens for tokens in strengths.of_tokens if len(tokens) >= LEAST_SCORED)
        if law is None or not long:
            why = "scores of this key have no law" if law is None else f"no text has {LEAST_SCORED} scored tokens"
            raise Refused(f"strength cannot be measured: {why}; give texts that `brickscan mark` wrote")
        tokens = int(np.median([len(of_text) for of_text in long]))
        mean = float(np.mean([of_text.mean() for of_text in long]))
        assumes = (
            f"texts are marked as strongly as the {len(long):,} measured ones (median {tokens:,} scored tokens; a "
            f"token scores {mean:.3f} on average, unmarked {law.mean:.3f})"
        )
        return cls(law, long, assumes)

    def power(self, scored: NDArray[np.int64], aim: Aim) -> NDArray[np.float64]:
        """Mean over the measured texts of P(T of a text's tokens pass), float64 of the shape of `scored`."""
        least = thresholds(self.law, scored, aim) - (0.5 if self.law.discrete else 0.0)
        mean = np.array([of_text.mean() for of_text in self.of_tokens])[:, None]
        spread = np.array([of_text.std() for of_text in self.of_tokens])[:, None]
        above = (scored * mean - least) / np.maximum(np.sqrt(scored) * spread, 1e-9)
        return np.asarray(special.ndtr(above).mean(axis=0), np.float64)

    def passed(self, scored: int, aim: Aim, texts: int, generator: np.random.Generator) -> int:
        """How many texts pass whose tokens are drawn from one of the measured texts each."""
        chosen = generator.integers(len(self.of_tokens), size=texts)
        sums = np.array([generator.choice(self.of_tokens[i], scored).sum() for i in chosen])
        return int(aim.passes(self.law.log10_p(sums, scored)).sum())


def probability_of(of_token: float) -> float:
    """The probability that all tokens would have if a token scored so much on average under Gumbel, at most 1.

    The mean of −ln(1 − U^p) is ψ(1 + 1/p) + γ, γ being Euler's constant.
    """
    if of_token <= 1.0:
        return 1.0
    low, high = 1e-12, 1.0
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if special.digamma(1 + 1 / middle) + np.euler_gamma > of_token else (low, middle)
    return high


def thresholds(law: Law, scored: NDArray[np.int64], aim: Aim) -> NDArray[np.float64]:
    """The least score of T tokens that passes, by halving; more than the largest score if none does: float64."""
    low, high = np.zeros(len(scored), np.float64), np.asarray(law.largest(scored), np.float64) + 1.0
    if law.discrete:
        low -= 1.0
    for _ in range(_HALVINGS):
        middle = np.floor(0.5 * (low + high)) if law.discrete else 0.5 * (low + high)
        # beyond the largest score p is not defined
        enough = (middle >= 0) & aim.passes(law.log10_p(np.clip(middle, 0, law.largest(scored)), scored))
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high
