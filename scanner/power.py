"""Compute the power of a mark: how many scored tokens it needs, and how strong it is in measured texts.

Power is the chance that the right message's corrected p-value passes. Tokens are assumed to be independent under the
assumptions of each model below, and repeats are left out before tokens are counted.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.errors import Refused
from scanner.watermark import Positions, Tokens, Watermark, log10_greenlist, log10_gumbel
from scanner.watermark.laws import Law
from scanner.watermark.positions import Dedup
from scanner.watermark.rule import corrected, passes
from schemas.registry import parse_gamma

MOST_SCORED = 1 << 20
"""Largest number of scored tokens that are searched."""

MAX_ENTROPY = 1 / math.e
"""Largest −p ln p that a token can have, in nats, reached at p = 1/e."""

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


class Aim(NamedTuple):
    """The aim of a detection.

    false_positive_rate: of a document, over M messages of a key and K (SPEC §3).
    messages: M.
    correction: K, the number of keys that share the rate equally, or 1 over the weight of the key and of the tested
        text.
    """

    false_positive_rate: float
    messages: int
    correction: float

    def passes(self, log10_p: _Floats) -> NDArray[np.bool_]:
        """Return whether one message's own log10 p passes after correction (SPEC §3)."""
        return passes(corrected(log10_p, self.messages, self.correction), self.false_positive_rate)


class MarkAssumption(Protocol):
    """An assumption about marked text."""

    @property
    def assumes(self) -> str:
        """Return the assumption in words."""

    @property
    def sawtooth(self) -> bool:
        """Return whether one more token may lower the power, for example where scores are whole numbers."""

    def power(self, scored: _Ints, aim: Aim) -> _Floats:
        """Compute the chance to pass, or a lower bound of it, for each number of scored tokens."""

    def passed(self, scored: int, aim: Aim, texts: int, generator: np.random.Generator) -> int:
        """Count how many of `texts` simulated texts pass."""


@dataclass(frozen=True)
class GreenShare:
    """Every scored token is green with chance `share`, independently: S is binomial.

    If the chances differ but their mean is `share`, the power is at least this where `bounds` says so. Hoeffding 1956,
    theorem 4: of all such sums the binomial has the least chance of any count up to its mean.
    """

    gamma: Fraction
    share: float
    assumes: str
    sawtooth: bool = True

    def power(self, scored: _Ints, aim: Aim) -> _Floats:
        """Compute P(Binomial(T, share) ≥ the least count that passes)."""
        least = self._least(scored, aim)
        tail = 10 ** log10_greenlist(np.minimum(least, scored), scored, Fraction(self.share))
        return np.where(least <= scored, tail, 0.0)

    def bounds(self, scored: int, aim: Aim) -> bool:
        """Return whether no chances of this mean have less power: the mean count is at least the passing count."""
        return bool(self._least(np.array([scored]), aim)[0] <= scored * self.share)

    def _least(self, scored: _Ints, aim: Aim) -> _Ints:
        return _least(scored + 1, lambda s: (s <= scored) & aim.passes(log10_greenlist(s, scored, self.gamma)))

    def passed(self, scored: int, aim: Aim, texts: int, generator: np.random.Generator) -> int:
        """Count the texts that pass, simulated token by token."""
        green = np.array([(generator.random(scored) < self.share).sum() for _ in range(texts)])
        return int(aim.passes(log10_greenlist(green, scored, self.gamma)).sum())


def share_on_flat_logits(gamma: Fraction, delta: float) -> float:
    """Compute γ e^δ/(1 − γ + γ e^δ): the share of green tokens on flat logits, the most that δ reaches on average."""
    green = float(gamma) * math.exp(delta)
    return green / (1 - float(gamma) + green)


@dataclass(frozen=True)
class GumbelProbability:
    """Every chosen token has probability p. S sums −ln(1 − U^p), whose characteristic function is known."""

    probability: float
    assumes: str
    sawtooth: bool = False

    def power(self, scored: _Ints, aim: Aim) -> _Floats:
        """Compute P(S ≥ the least score that passes), by inverting the characteristic function."""
        least = gumbel_thresholds(scored, aim)
        pairs = zip(scored.tolist(), least.tolist(), strict=True)
        return np.array([gumbel_tail(s, t, self.probability) for t, s in pairs])

    def passed(self, scored: int, aim: Aim, texts: int, generator: np.random.Generator) -> int:
        """Count the texts that pass, simulated token by token."""
        sums = np.array([-np.log1p(-(generator.random(scored) ** self.probability)).sum() for _ in range(texts)])
        return int(aim.passes(log10_gumbel(sums, scored)).sum())


@dataclass(frozen=True)
class GumbelEntropy:
    """The chosen tokens have a mean −p ln p of `entropy` nats: E S ≥ T + (π²/6 − 1) T·entropy, V S ≤ T π²/6 (paper).

    Cantelli's inequality turns these two into a lower bound of the power.
    """

    entropy: float
    assumes: str
    sawtooth: bool = False

    def power(self, scored: _Ints, aim: Aim) -> _Floats:
        """Bound the power from below by a²/(a² + V), a = E S − threshold, if a is positive."""
        mean = scored * (1 + (math.pi**2 / 6 - 1) * self.entropy)
        above = np.maximum(mean - gumbel_thresholds(scored, aim), 0.0)
        return above**2 / (above**2 + scored * math.pi**2 / 6)

    def passed(self, scored: int, aim: Aim, texts: int, generator: np.random.Generator) -> int:
        """Count the texts that pass when all tokens have one probability of this entropy: the worse of the two."""
        return min(
            GumbelProbability(p, "").passed(scored, aim, texts, generator) for p in probabilities_of(self.entropy)
        )


def probabilities_of(entropy: float) -> tuple[float, float]:
    """Return the p below and the p above 1/e with −p ln p = entropy."""
    low, high = (math.exp(float(special.lambertw(-entropy, branch).real)) for branch in (-1, 0))
    return low, high


def gumbel_thresholds(scored: _Ints, aim: Aim) -> _Floats:
    """Find the least score of T tokens that passes, to 1e-9 of it and not below: float64, by bisection."""
    low = np.zeros(len(scored), np.float64)
    high = np.full(len(scored), 4000.0 + 2.0 * scored.max(initial=0), np.float64)
    for _ in range(60):
        middle = 0.5 * (low + high)
        enough = aim.passes(log10_gumbel(middle, scored))
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def gumbel_tail(score: float, scored: int, probability: float) -> float:
    """Compute P(S ≥ score) for T tokens of one probability p, to about 1e-9.

    E exp(iuX) = Γ(1 − iu) Γ(1 + 1/p)/Γ(1 + 1/p − iu) for X = −ln(1 − U^p), inverted by the midpoint sum of Davies
    (1973). Its error is the chance that S is 2π/step away, here at least 60 standard deviations.
    """
    shape = 1 + 1 / probability
    deviation = math.sqrt(scored * float(special.polygamma(1, 1) - special.polygamma(1, shape)))
    mean = scored * float(special.digamma(shape) + np.euler_gamma)
    step = 2 * math.pi / (abs(score - mean) + 60 * deviation + 60)
    total, start, block = 0.0, 0, 4096
    while True:
        k = np.arange(start, start + block) + 0.5
        u = k * step
        log_cf = scored * (special.loggamma(1 - 1j * u) + special.loggamma(shape) - special.loggamma(shape - 1j * u))
        total += float((np.exp(log_cf.real) * np.sin(log_cf.imag - u * score) / k).sum())
        start += block
        if log_cf.real[-1] < -30 or start > 1 << 22:
            return min(max(0.5 + total / math.pi, 0.0), 1.0)


@dataclass(frozen=True)
class NamedToo:
    """Text of a key in groups (SPEC_3 §4) that is found, and whose user is named. The power is a lower bound.

    Each step is the user's own with chance 2/3, independently. A user is named who passes over all steps, and also over
    the user's own steps among the users of the group. The chance that one of the two fails is at most the sum of both
    chances.

    marked: the strength.
    groups: B.
    misnaming_rate: the rate for the user's own steps.
    """

    marked: MarkAssumption
    groups: int
    misnaming_rate: float

    @property
    def assumes(self) -> str:
        """Return the assumption in words."""
        return self.marked.assumes

    @property
    def sawtooth(self) -> bool:
        """Return whether one more token may lower the power of `marked`."""
        return self.marked.sawtooth

    def power(self, scored: _Ints, aim: Aim) -> _Floats:
        """Compute P(found) + P(passes by the user's own steps) − 1, at least 0."""
        return np.maximum(self.marked.power(scored, aim) + self._user_steps(scored, aim) - 1.0, 0.0)

    def _user_steps(self, scored: _Ints, aim: Aim) -> _Floats:
        """Compute the mean chance to pass by the user's own steps, over their number among T steps."""
        second = aim._replace(false_positive_rate=self.misnaming_rate, messages=self.groups)
        of_steps = np.concatenate([[0.0], self.marked.power(np.arange(1, int(scored.max(initial=0)) + 1), second)])
        return np.array([_mean_over_user_steps(int(steps), of_steps) for steps in scored])

    def passed(self, scored: int, aim: Aim, texts: int, generator: np.random.Generator) -> int:
        """Count the texts that are found, less those that fail by the user's own steps."""
        second = aim._replace(false_positive_rate=self.misnaming_rate, messages=self.groups)
        found = self.marked.passed(scored, aim, texts, generator)
        steps = generator.binomial(scored, SHARE_OF_USER_STEPS, texts)
        return max(found - sum(1 - self.marked.passed(int(of_text), second, 1, generator) for of_text in steps), 0)


SHARE_OF_USER_STEPS = 2 / 3
"""Share of the steps of a key in groups that no two users share."""


def _mean_over_user_steps(number: int, values: _Floats) -> float:
    """Compute E values[Binomial(number, SHARE_OF_USER_STEPS)], without counts ten standard deviations away."""
    chance = SHARE_OF_USER_STEPS
    middle, room = number * chance, 10 * math.sqrt(number * chance * (1 - chance)) + 1
    k = np.arange(max(0, math.floor(middle - room)), min(number, math.ceil(middle + room)) + 1)
    log_p = (
        special.gammaln(number + 1)
        - special.gammaln(k + 1)
        - special.gammaln(number - k + 1)
        + special.xlogy(k, chance)
        + special.xlogy(number - k, 1 - chance)
    )
    return float(np.exp(log_p) @ values[k])


def green_list(gamma: str, delta: float | None, green_share: float | None) -> GreenShare:
    """Return the assumption about a green list's text that `--delta` or `--green-share`, one of the two, states.

    Raises:
        Refused: a value is out of range.
    """
    try:
        fraction = parse_gamma(gamma)
    except ValueError as error:
        raise Refused(f"--gamma {gamma!r} {error}") from None
    if delta is not None:
        if not 0 < delta <= 50:
            raise Refused(f"--delta {delta} is not allowed; a number above 0 and at most 50 is needed")
        found = share_on_flat_logits(fraction, delta)
        return GreenShare(
            fraction,
            found,
            f"flat logits, where delta {delta:g} makes a share of {found:.4f} green. Real text has less entropy and"
            " needs more tokens: measure its share and give --green-share",
        )
    if green_share is None or not fraction < green_share < 1:
        raise Refused(f"--green-share {green_share} is not allowed; a number between gamma = {gamma} and 1 is needed")
    return GreenShare(
        fraction,
        green_share,
        f"each scored token is green with chance {green_share:g}; if chances vary around this mean, the power is at "
        "least the value in rows that say 'exact or more'",
    )


def gumbel(entropy: float | None, probability: float | None) -> "GumbelEntropy | GumbelProbability":
    """Return the assumption about a Gumbel text that `--entropy` or `--probability`, one of the two, states.

    Raises:
        Refused: a value is out of range.
    """
    if entropy is not None:
        if not 0 < entropy < MAX_ENTROPY:
            raise Refused(f"--entropy {entropy} is not allowed; -p ln p lies above 0 and below 1/e = 0.3678")
        return GumbelEntropy(
            entropy,
            f"written tokens have a mean -p ln p of {entropy:g} nats; the paper's bounds on mean and variance and"
            " Cantelli's inequality, so the true need is less. Simulated: all tokens of one such probability",
        )
    if probability is None or not 0 < probability < 1:
        raise Refused(f"--probability {probability} is not allowed; a number between 0 and 1 is needed")
    return GumbelProbability(probability, f"every written token had a probability of {probability:g}")


class StrengthOptions(NamedTuple):
    """The options that state a format's strength.

    one_of: options of which exactly one states the strength.
    also: further options that go with them.
    marked: makes the assumption from the options.
    """

    one_of: tuple[str, ...]
    also: tuple[str, ...]
    marked: Callable[..., MarkAssumption]


STRENGTHS: Mapping[str, StrengthOptions] = {
    "greenlist": StrengthOptions(("delta", "green_share"), ("gamma",), green_list),
    "gumbel": StrengthOptions(("entropy", "probability"), (), gumbel),
}
"""Formats whose power is known."""


def marked_text(name: str, options: Mapping[str, Any]) -> MarkAssumption:
    """Return the assumption about text marked by a format.

    Args:
        name: name of the format.
        options: all options by name, None where they were not given.

    Raises:
        Refused: the power of the format is not known, options do not belong to it or contradict each other, or a value
            is out of range.
    """
    if name not in STRENGTHS:
        raise Refused(f"--method {name!r}: power cannot be computed for this format; allowed: {', '.join(STRENGTHS)}")
    how = STRENGTHS[name]
    given = {option for stated in STRENGTHS.values() for option in stated.one_of if options[option] is not None}
    if len(given) != 1 or not given <= set(how.one_of):
        wanted = " or ".join("--" + option.replace("_", "-") for option in how.one_of)
        raise Refused(f"--method {name} needs exactly one of {wanted}, and no option of the other method")
    return how.marked(**{option: options[option] for option in (*how.one_of, *how.also)})


def tokens_needed(marked: MarkAssumption, aim: Aim, power: float) -> int:
    """Find the least number of scored tokens from which on the power is at or above the wanted one.

    Raises:
        Refused: the power is not reached within MOST_SCORED tokens.
    """
    reach = 16
    while marked.power(np.array([reach]), aim)[0] < power:
        reach *= 2
        if reach > MOST_SCORED:
            raise Refused(
                f"a power of {power:g} is not reached within {MOST_SCORED:,} scored tokens; ask for less or mark more "
                "strongly"
            )
    if marked.sawtooth:  # the power may fall again, so look at all numbers
        counts = np.arange(1, 2 * reach + 1)
        return int(counts[marked.power(counts, aim) < power].max(initial=0)) + 1
    low, high = reach // 2 if reach > 16 else 0, reach
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if marked.power(np.array([middle]), aim)[0] >= power else (middle, high)
    return high


def _least(above: _Ints, passes: Callable[[_Ints], NDArray[np.bool_]]) -> _Ints:
    """Find the least integer ≥ 0 that passes. Every larger one must pass too. `above` if no integer below it passes."""
    low, high = np.full(len(above), -1), above.copy()
    while (high - low > 1).any():
        middle = (low + high) // 2
        enough = passes(np.maximum(middle, 0)) & (middle >= 0)
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return high


_HALVINGS = 60
LEAST_SCORED = 16
"""Smallest number of scored tokens of a text whose strength is taken into account."""


class Strengths(NamedTuple):
    """The strength of the marks of D texts.

    scored: int64[D], number of scored tokens.
    score: float64[D].
    of_tokens: the score of each token, D times float64[T].
    """

    scored: NDArray[np.int64]
    score: NDArray[np.float64]
    of_tokens: tuple[NDArray[np.float64], ...]


def measure(mark: Watermark, tokens: Tokens, messages: NDArray[np.int64], dedup: Dedup = "ngram") -> Strengths:
    """Score texts under the messages that they were marked for, as a whole and token by token.

    Args:
        mark: the opened key.
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
class MeasuredTexts:
    """Text like the measured texts. Each text is as strong as one of them, and its tokens score as that text's do.

    Tokens are assumed to be independent given the text, and their sum to be normal. A text's own strength is known only
    from its tokens, which spreads the strengths. So powers above one half are rather too small than too large.
    """

    law: Law
    of_tokens: tuple[NDArray[np.float64], ...]
    assumes: str
    sawtooth: bool = False

    @classmethod
    def of(cls, law: Law | None, strengths: Strengths) -> "MeasuredTexts":
        """Measure the strength of texts that have at least LEAST_SCORED scored tokens.

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
        """Average P(T of a text's tokens pass) over the measured texts: float64 of the shape of `scored`."""
        least = thresholds(self.law, scored, aim) - (0.5 if self.law.discrete else 0.0)
        mean = np.array([of_text.mean() for of_text in self.of_tokens])[:, None]
        spread = np.array([of_text.std() for of_text in self.of_tokens])[:, None]
        above = (scored * mean - least) / np.maximum(np.sqrt(scored) * spread, 1e-9)
        return np.asarray(special.ndtr(above).mean(axis=0), np.float64)

    def passed(self, scored: int, aim: Aim, texts: int, generator: np.random.Generator) -> int:
        """Count the passing texts. The tokens of each text are drawn from one of the measured texts."""
        chosen = generator.integers(len(self.of_tokens), size=texts)
        sums = np.array([generator.choice(self.of_tokens[i], scored).sum() for i in chosen])
        return int(aim.passes(self.law.log10_p(sums, scored)).sum())


def probability_of(of_token: float) -> float:
    """Find the probability that all tokens would have if a token scored so much on average under Gumbel, at most 1.

    The mean of −ln(1 − U^p) is ψ(1 + 1/p) + γ, where γ is Euler's constant.
    """
    if of_token <= 1.0:
        return 1.0
    low, high = 1e-12, 1.0
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if special.digamma(1 + 1 / middle) + np.euler_gamma > of_token else (low, middle)
    return high


def thresholds(law: Law, scored: NDArray[np.int64], aim: Aim) -> NDArray[np.float64]:
    """Find the least score of T tokens that passes, by bisection: float64. Above the largest score if none passes."""
    low, high = np.zeros(len(scored), np.float64), np.asarray(law.largest(scored), np.float64) + 1.0
    if law.discrete:
        low -= 1.0
    for _ in range(_HALVINGS):
        middle = np.floor(0.5 * (low + high)) if law.discrete else 0.5 * (low + high)
        # beyond the largest score p is not defined
        enough = (middle >= 0) & aim.passes(law.log10_p(np.clip(middle, 0, law.largest(scored)), scored))
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high
