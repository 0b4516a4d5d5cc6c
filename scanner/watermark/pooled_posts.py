"""Posts of one account as one text: the positions that are scored together, and evidence that grows night by night.

**Pooled.** The scored positions of all posts count as those of one text, each tuple that decides a draw once. So the
law of one text of so many positions holds, whatever the posts share.

**Over nights.** A score over all posts forgets the few that are marked. For a post of n positions and score S, a law
gives L, its likelihood under a mark of some strength over its likelihood by chance; the mean of L under H0 is 1. A
share π of marked posts gives each post 1 − π + π·L. The product over all posts so far, averaged over strengths and
shares that are fixed before, is an e-process: under H0 it starts at 1 and its mean stays 1, whatever came before. So
the probability that it ever reaches x, at any night, is at most 1/x (Ville 1939), and 1/(the largest so far) is a
p-value at every night with no bill for looking. No draw may count twice, on whatever night: positions are pooled first,
and a tuple belongs to the first post that has it. See arXiv 2602.14286 for the idea.
"""

import math

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Law, TellsRatios
from scanner.watermark.positions import Dedup, PositionRule, Positions, Tokens, positions_where

MARKED_SHARES = (1.0, 0.3, 0.1, 0.03)
"""Shares of an account's posts that may be marked."""

_LOG_SHARES = np.log(MARKED_SHARES)
_LOG_REST = np.array([math.log1p(-share) if share < 1 else -math.inf for share in MARKED_SHARES])

_LOG10_E = math.log10(math.e)


def pooled_positions(
    rule: PositionRule, reach: int, posts: Tokens, accounts: NDArray[np.int64], dedup: Dedup
) -> Positions:
    """The scored positions of each account, in the order of its posts, repeats left out across all of them.

    rule: which positions of a text are scored. reach: how many tokens before a token decide its draw; all of them must
    be of its own post. accounts: int64[A+1], the first post of each account, and the number of posts.
    """
    whole = rule.positions(Tokens(posts.ids, posts.offsets[accounts]), dedup)
    post = np.searchsorted(posts.offsets, whole.index, "right") - 1
    return positions_where(whole, whole.index - posts.offsets[post] >= reach)


def by_post(positions: Positions, posts: Tokens, first: int = 0, last: int | None = None) -> Positions:
    """The positions of accounts as those of their posts, first … last−1 of all, to the end unless last is given."""
    bounds = posts.offsets[first:] if last is None else posts.offsets[first : last + 1]
    return Positions(positions.index, np.searchsorted(positions.index, bounds).astype(np.int64))


def log10_evidence(
    law: Law,
    score: NDArray[np.generic],
    scored: NDArray[np.int64],
    accounts: NDArray[np.int64],
    nights: NDArray[np.int64],
) -> NDArray[np.float64]:
    """log10 of the largest value that the e-process of each account had at the end of any night: float64[A], 0 or more.

    0 throughout under a law that tells no ratios.
    score: [P], of each post, account by account and night by night; scored: int64[P]; accounts: int64[A+1], where the
    posts of each begin; nights: int64[P], which never fall within an account.
    """
    if not isinstance(law, TellsRatios):
        return np.zeros(len(accounts) - 1)
    return _LOG10_E * _largest(law.log_ratios(score, scored), _LOG_SHARES, _LOG_REST, accounts, nights)


@kernel
def _largest(
    ratios: NDArray[np.float64],
    log_share: NDArray[np.float64],
    log_rest: NDArray[np.float64],
    accounts: NDArray[np.int64],
    nights: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Largest natural logarithm of the mean of all products, at the end of a night."""
    strengths, shares = ratios.shape[1], len(log_share)
    sums, most = np.zeros(strengths * shares), np.zeros(len(accounts) - 1)
    for a in range(len(accounts) - 1):
        sums[:] = 0.0
        for p in range(accounts[a], accounts[a + 1]):
            for i in range(strengths):
                for j in range(shares):
                    marked, rest = log_share[j] + ratios[p, i], log_rest[j]
                    top = max(marked, rest)
                    sums[i * shares + j] += top + math.log1p(math.exp(min(marked, rest) - top))
            if p + 1 == accounts[a + 1] or nights[p + 1] != nights[p]:
                top = sums.max()
                mean = top + math.log(np.exp(sums - top).mean())
                most[a] = max(most[a], mean)
    return most
