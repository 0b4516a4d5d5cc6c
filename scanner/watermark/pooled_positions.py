"""Score the posts of one account as one text: select the positions that are scored together.

The scored positions of all posts count as those of one text, each tuple that decides a draw once. So the law of one
text of so many positions holds, whatever the posts share.
"""

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.positions import Dedup, PositionRule, Positions, Tokens, positions_where


def pooled_positions(
    rule: PositionRule, reach: int, posts: Tokens, accounts: NDArray[np.int64], dedup: Dedup
) -> Positions:
    """Return the scored positions of each account, in the order of its posts, without repeats across all of them.

    Args:
        rule: rule of the scored positions of a text.
        reach: number of tokens before a token that decide its draw. All of them must be in its own post.
        posts: tokens of each post.
        accounts: int64[A+1], the first post of each account, and last the number of posts.
        dedup: the repeats that are left out.
    """
    whole = rule.positions(Tokens(posts.ids, posts.offsets[accounts]), dedup)
    post = np.searchsorted(posts.offsets, whole.index, "right") - 1
    return positions_where(whole, whole.index - posts.offsets[post] >= reach)


def by_post(positions: Positions, posts: Tokens, first: int = 0, last: int | None = None) -> Positions:
    """Return the positions of accounts by post, for posts first … last−1, or to the end if last is None."""
    bounds = posts.offsets[first:] if last is None else posts.offsets[first : last + 1]
    return Positions(positions.index, np.searchsorted(positions.index, bounds).astype(np.int64))
