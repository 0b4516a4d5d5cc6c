"""Rule 2 of naming where `make names` has too few texts: `python -m tests.bench.misnamed --texts 1e6`.

A user who shares a group with the user of a marked text is null on the user steps (SPEC_3 §4). So no text need be
marked: in random text, the best user of a group that was drawn before is such a stranger, and passes rule 2 as rarely
as the law says. Ciphers, search and law are those of a scan; a new key comes every few thousand texts.

`--marked` asks how often a wrong user is named in text that *is* marked, for 1 to 6 users, at a misnaming rate of 1e-4
and a false-positive rate of 1e-6. Positions and scores are simulated without ciphers: a third of the positions are
group steps, each user's run of the text is marked but for edits. Who was not marked for, in a marked group, is null on
the user steps; the chance that the best of them beats the right user and passes both rules follows from the law. It is
averaged over texts, which sees far less than one in all texts. Strangers of other groups are what rule 1 is for.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from scanner.audit.calibration.law_counts import fresh_entropy
from scanner.audit.statistics.hits import chances
from scanner.audit.statistics.judgement import binomial_limits
from scanner.watermark import Tokens
from scanner.watermark.formats import make_format
from scanner.watermark.native.steps import in_two
from scanner.watermark.native.version3_marks import Version3Mark
from scanner.watermark.rule import corrected, passes
from schemas.registry import MOST_NUMBERS

RATES = (1e-2, 1e-3, 1e-4)
A_KEY = 5_000
GROUPS = 1026
TOKENS = 260
VOCABULARY = 49_152


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.misnamed", description=__doc__)
    parser.add_argument("--texts", type=float, default=1e6, help="of each format")
    parser.add_argument("--formats", nargs="+", default=["greenlist-v3", "gumbel-v3"])
    parser.add_argument("--marked", action="store_true", help="texts that are marked, of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.marked:
        for name in options.formats:
            marked(name, int(options.texts), np.random.default_rng(options.seed))
        return
    for name in options.formats:
        keys = int(options.texts) // A_KEY
        hits, expected = map(sum, zip(*batches(name, keys, options.seed.to_bytes(8, "big")), strict=True))
        for j, rate in enumerate(RATES):
            low, high = (limit * keys * A_KEY / expected[j] for limit in binomial_limits(hits[j], keys * A_KEY, 0.025))
            print(
                f"{name}, {GROUPS} groups, {keys * A_KEY:,} texts of {TOKENS} tokens, {keys} keys, at {rate:g}: "
                f"{hits[j]} named of {expected[j]:.1f} expected, ratio {hits[j] / expected[j]:.2f} "
                f"({low:.2f} to {high:.2f})",
                flush=True,
            )


GAMMA = 0.25
MARKED_GREEN, MARKED_RATE = 0.6, 0.4
"""Share of marked tokens that are green; rate of the exponential terms of marked tokens (1: not marked)."""
SCORED, EDITED, OF_USERS, NUMBERS_OF_GROUPS = (60, 120, 250, 500), (0.0, 0.3, 0.6), (1, 2, 3, 6), (325, 32_445)
KEYS, FLAGGED, MISNAMED = 2, 1e-6, 1e-4


def tail(name: str, score: ArrayLike, scored: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(a null score over T positions ≥ S)."""
    if name == "gumbel-v3":
        return np.asarray(special.gammaincc(np.maximum(scored, 1), np.maximum(score, 0.0)), np.float64)
    return np.asarray(stats.binom.sf(np.asarray(score) - 1, scored, GAMMA), np.float64)


def critical(name: str, p: float, scored: NDArray[np.int64]) -> NDArray[np.float64]:
    """The least score whose tail is p or less."""
    if name == "gumbel-v3":
        return np.asarray(special.gammainccinv(np.maximum(scored, 1), p), np.float64)
    return np.asarray(stats.binom.isf(p, scored, GAMMA) + 1, np.float64)


def scores(
    name: str, scored: NDArray[np.int64], of_user: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.float64]:
    """Scores over T positions, of which some are marked for the user."""
    if name == "gumbel-v3":
        return random.gamma(scored - of_user) + random.gamma(of_user) / MARKED_RATE
    return random.binomial(scored - of_user, GAMMA) + random.binomial(of_user, MARKED_GREEN).astype(np.float64)


def chance(
    name: str, scored: int, users: int, edited: float, groups: int, texts: int, random: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Chance that a text names a stranger of a marked group, float64[D], and whether it names a right user, bool[D]."""
    whole = np.full(texts, scored)
    group_steps = random.binomial(scored, 1 / 3, texts)
    user_steps = whole - group_steps
    runs = random.dirichlet(np.full(users, 4.0), texts) * (1 - edited)
    at_group, at_user = (
        -np.expm1(np.log1p(-rate) / (of * KEYS)) for rate, of in ((FLAGGED, groups**2), (MISNAMED, groups))
    )
    total, right = np.zeros(texts), np.zeros(texts, np.bool_)
    for of_user in runs.T:
        shared = scores(name, group_steps, random.binomial(group_steps, of_user), random)
        single = scores(name, user_steps, random.binomial(user_steps, of_user), random)
        least = np.maximum(critical(name, at_user, user_steps), critical(name, at_group, whole) - shared)
        right |= single >= least
        stranger = tail(name, np.maximum(single, least), user_steps)  # a tie counts as won
        total += -np.expm1((groups - 1) * np.log1p(-stranger))
    return total, right


def marked(name: str, texts: int, random: np.random.Generator) -> None:
    """Print the chance of every kind of marked text, with its standard error."""
    for groups in NUMBERS_OF_GROUPS:
        for users in OF_USERS:
            for scored in SCORED:
                cells = []
                for edited in EDITED:
                    wrong, right = chance(name, scored, users, edited, groups, texts, random)
                    error = wrong.std() / np.sqrt(texts)
                    cells.append(
                        f"{edited:.0%} edited {wrong.mean():.1e} ± {error:.0e} ({right.mean():.2f} named right)"
                    )
                print(f"{name}, {groups} groups, {users} users, {scored} scored: " + "; ".join(cells), flush=True)


def batches(name: str, keys: int, seed: bytes) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Strangers that pass in A_KEY texts under each key, and how many the law expects, at each rate: [J] both."""
    form = make_format(
        name,
        {"window": 4, "groups": GROUPS, "beacon": "00" * 32} | ({"gamma": "1/4"} if name == "greenlist-v3" else {}),
    )
    for number, entropy in enumerate(fresh_entropy(seed, form.label(), np.arange(keys))):
        mark = form.open(form.draw_key(entropy))
        assert isinstance(mark, Version3Mark)
        random = np.random.default_rng([*seed, number])
        ids = random.integers(0, VOCABULARY, A_KEY * TOKENS, np.uint32)
        tokens = Tokens(ids, np.arange(0, A_KEY * TOKENS + 1, TOKENS, dtype=np.int64))
        positions = mark.rule.positions(tokens, "ngram")
        _, own = in_two(mark.steps(tokens, positions))
        groups = random.integers(0, GROUPS, A_KEY)
        _, score = mark.best_numbers(own, np.arange(A_KEY), groups * MOST_NUMBERS, GROUPS, 1)
        log10_p = corrected(mark.law.log10_p(score[:, 0], own.scored), GROUPS)
        hits = np.array([passes(log10_p, rate).sum() for rate in RATES], np.int64)
        distinct, count = np.unique(own.scored, return_counts=True)
        yield hits, count @ chances(mark.law, distinct, RATES, GROUPS)


if __name__ == "__main__":
    main()
