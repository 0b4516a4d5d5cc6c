"""The rank of a key among decoys: no law is asked, so it holds however the format's hash behaves.

If a text owes nothing to a key, the key and 999 decoy keys of its format are exchangeable, and it has the largest score
of all with probability 1/1000. Decoys are drawn one after another until one scores as high (J. Besag and P. Clifford,
Sequential Monte Carlo p-values, 1991): after the l-th, p_rank = 1/l is exact, and unmarked text is done after a few.
"""

import numpy as np

from scanner.watermark.abilities import RanksAmongDecoys
from scanner.watermark.format import Watermark
from scanner.watermark.positions import Positions, Tokens, only, spread_out
from scanner.watermark.search import DECOYS, LEAST_RANK, Found, candidates, passes

SECONDS = 300.0
"""Most seconds for ranking a text, by its format's generous count. Without a limit, whoever can make a mark could keep
a worker busy for hours with one text.
"""

FEWEST, MOST = 256, 2**16
"""Fewest and most scored positions of a text that are ranked."""


def most_ranked(seconds: float) -> int:
    """How many positions of a text are ranked when each takes so many seconds under a key."""
    return int(min(max(SECONDS / (DECOYS * seconds), FEWEST), MOST))


def ranked(
    found: Found,
    mark: Watermark,
    tokens: Tokens,
    positions: Positions,
    messages: int,
    false_positive_rate: float,
    most: int = MOST,
) -> Found:
    """What a key found, with its rank where it would be flagged; where the law is proven, no rank is computed.

    In a long text `most` evenly spaced positions are ranked: the key and the decoys meet the same ones. The p-value for
    all keys of a candidate that a decoy equals is at least its rank. A format that cannot draw decoys has no rank, and
    is not flagged. The cost of a candidate that beats all of them is that of searching its text DECOYS times.

    Args:
        found: findings of the D documents.
        mark: the opened key.
        tokens: of the batch.
        positions: of the D documents.
        messages: M: a decoy's best message of so many is compared.
        false_positive_rate: at or below it a corrected p would pass.
        most: of the scored positions of a text that are looked at.
    """
    if mark.basis.proven or not isinstance(mark, RanksAmongDecoys):
        return found
    left = np.array(passes(found.log10_p_global, false_positive_rate))
    p_rank = np.where(left, LEAST_RANK, np.nan)
    score = found.score
    long = np.flatnonzero(left.any(axis=1) & (positions.scored > most))
    if len(long):
        positions, score = spread_out(positions, most), score.copy()
        for c in range(left.shape[1]):
            some = long[left[long, c]]
            score[some, c] = mark.score(tokens, only(positions, some), found.message[some, c])
    for number in range(1, DECOYS + 1):
        documents = np.flatnonzero(left.any(axis=1))
        if not len(documents):
            break
        best = candidates(mark.decoy(number), tokens, only(positions, documents), messages).score[:, :1]
        beaten = left[documents] & (best.astype(np.float64) >= score[documents])
        p_rank[documents] = np.where(beaten, 1.0 / number, p_rank[documents])
        left[documents] &= ~beaten
    beaten = p_rank > LEAST_RANK
    no_smaller = np.maximum(found.log10_p_global, np.log10(np.where(beaten, p_rank, 1.0)))
    return found._replace(p_rank=p_rank, log10_p_global=np.where(beaten, no_smaller, found.log10_p_global))
