"""Test one hypothesis on one class of answers exactly, and measure marked answers. Arrays in, numbers out.

The answers of a class count as one text in which each draw counts once (scanner.watermark.pooled_positions). So the law
of one text holds even if answers have words in common. The p-value of a hypothesis on a class:

1. Tokens of all answers of the class are joined. A position is scored if its window lies within one answer, and if the
   input to its draw did not occur before in any answer. This choice never depends on the key that is tested.
2. If the message of every answer is known, each answer is scored under its own message. Otherwise all messages are
   searched, and p is corrected for them.
3. Several messages that share draws may meet in one draw. With several messages, each window therefore counts once,
   whatever token follows.
4. p is corrected for all tests of the page.

The strength of a p-value is z, the number of standard deviations beyond which a normal variable has this tail. It grows
with the root of the number of tokens, whatever the law. So the power for other numbers of tokens follows from it. For
example, z = 3 from 100 tokens means z = 6 from 400.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.watermark.by_levels import TermsOfKeys
from scanner.watermark.format import Format, Watermark
from scanner.watermark.laws import Binomial, Floored, Gamma, Law
from scanner.watermark.pooled_positions import by_post, pooled_positions
from scanner.watermark.positions import Dedup, Positions, Tokens, reach_of, select_documents
from scanner.watermark.pvalues import LN10
from scanner.watermark.rule import candidates, corrected, log10_p_of

MOST_SECONDS = 20.0
"""Most seconds of one test, by its format's generous estimate. Beyond it, only a class's first positions are tested."""

SEVERAL = -1
"""Stands in place of a message where answers have several known messages, or an unknown one."""

TOP_SHARE = 0.25
"""Share of all draws that count as large. In marked text, tokens have large draws more often than this."""

HALF = 0.5
"""Part of the strength of marked answers. Answers are called unmarked if a mark this strong would have been found."""


class OpenedForm(NamedTuple):
    """An opened hypothesis.

    form: its format.
    mark: the format opened with its secret.
    messages: M.
    """

    form: Format
    mark: Watermark
    messages: int


class Evidence(NamedTuple):
    """The result of testing a hypothesis on a class.

    scored: T.
    score: S.
    message: the best message, or the known one. SEVERAL where answers have several.
    log10_p: corrected for the searched messages, without the floor of short keys. Hypotheses are compared by it.
    log10_p_page: with the floor, corrected for all tests of the page. A mark is claimed by it.
    """

    scored: int
    score: float
    message: int
    log10_p: float
    log10_p_page: float

    @property
    def strength(self) -> float:
        """Return z. It is negative where p is above one half."""
        return strength_of(self.log10_p)


NO_EVIDENCE = Evidence(0, 0.0, SEVERAL, 0.0, 0.0)


def strength_of(log10_p: float) -> float:
    """Return the number of standard deviations that a normal variable exceeds with chance p, at least −8."""
    return max(-8.0, -float(special.ndtri_exp(min(log10_p, -1e-16) * LN10)))


def unfloored(law: Law) -> Law:
    """Return the law without the floor under the p-values of short keys."""
    return law.of if isinstance(law, Floored) else law


def evidence_on(
    opened: OpenedForm, tokens: Tokens, answers: NDArray[np.int64], known: NDArray[np.int64], tests: int
) -> Evidence:
    """Test a hypothesis on a class.

    Args:
        opened: the hypothesis.
        tokens: of all answers.
        answers: int64[A], the answers of the class.
        known: int64, the message of each of all answers, or SEVERAL where it is unknown.
        tests: number of tests of the page.
    """
    form, mark, messages = opened
    law = mark.law
    unit, own = select_documents(tokens, answers), known[answers]
    if law is None or not len(unit.ids):
        return NO_EVIDENCE
    # 1. each draw once
    is_known = messages == 1 or bool((own >= 0).all())
    own = np.zeros_like(own) if messages == 1 else own
    single = is_known and len(np.unique(own)) == 1
    dedup: Dedup = "context" if is_known and not single and form.can_be_framed() else "ngram"
    begins = np.array([0, len(answers)], np.int64)
    positions = pooled_positions(mark.rule, reach_of(mark.rule), unit, begins, dedup)
    most = int(MOST_SECONDS / form.seconds(1 if is_known else messages))
    if len(positions.index) > most:
        positions = Positions(positions.index[:most], np.array([0, most], np.int64))
    scored = len(positions.index)
    if not scored:
        return NO_EVIDENCE
    # 2. score
    whole = Tokens(unit.ids, np.array([0, len(unit.ids)], np.int64))
    if single:
        message, score = int(own[0]), float(mark.score(whole, positions, int(own[0]))[0])
    elif is_known:
        message, score = SEVERAL, float(mark.score(unit, by_post(positions, unit), own).sum())
    else:
        best = candidates(mark, whole, positions, messages)
        message, score = int(best.message[0, 0]), float(best.score[0, 0])
    # 3. correct
    of_messages = 1 if is_known else messages
    free, floored = (float(log10_p_of(of, score, scored)) for of in (unfloored(law), law))
    return Evidence(
        scored,
        score,
        message,
        float(corrected(free, of_messages)),
        float(corrected(floored, of_messages, tests)),
    )


def tokens_needed(strength_a_root: float, log10_level: float, power: float) -> float:
    """Return how many tokens are needed to reach a level of p with some power, at a given strength of tokens.

    Args:
        strength_a_root: z divided by the root of the number of tokens, above 0.
        log10_level: log10 of the level of p.
        power: chance to reach it.
    """
    return ((strength_of(log10_level) + float(special.ndtri(power))) / strength_a_root) ** 2


def carried(mark: Watermark, tokens: Tokens, positions: Positions, messages: NDArray[np.int64]) -> tuple[int, float]:
    """Count the scored tokens with a large draw. Also return the share of all draws that are large.

    For a green list, draws of green tokens are large. For Gumbel marks, the top quarter of draws is. For other marks
    the result is (0, 1.0).

    messages: int64[D].
    """
    law = None if mark.law is None else unfloored(mark.law)
    if isinstance(mark, TermsOfKeys):
        terms = mark.terms_of_keys(tokens, positions, messages)
        # the largest of a token's K draws counts: P(max > t) = 1 − (1 − e^−t)^K
        least = -math.log(1.0 - (1.0 - TOP_SHARE) ** (1.0 / len(terms)))
        return int((terms.max(axis=0) > least).sum()), TOP_SHARE
    if not isinstance(law, Gamma | Binomial):
        return 0, 1.0
    singles = Positions(positions.index, np.arange(len(positions.index) + 1, dtype=np.int64))
    terms = np.asarray(mark.score(tokens, singles, np.repeat(messages, positions.scored)), np.float64)
    if isinstance(law, Binomial):
        return int((terms > 0).sum()), law.mean
    return int((terms > -math.log(TOP_SHARE)).sum()), TOP_SHARE
