"""Posts of an account as one text, against plain loops."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from scanner.watermark.native.version3_marks import Version3GreenList
from scanner.watermark.pooled_positions import by_post, pooled_positions
from scanner.watermark.positions import WholeWindows
from tests.watermark.pairs import SECRET, batch_tokens

POSTS = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [], [7], [2, 3, 4, 8], [1, 2, 3, 4], [6, 6, 6, 6, 6]]
ACCOUNTS = np.array([0, 3, 3, 7])


def plain_pooled(window: int) -> list[list[int]]:
    """Scored places in all posts: the n-gram is new to the account, and its window lies in one post."""
    found = []
    for first, last in pairwise(ACCOUNTS.tolist()):
        begin = sum(map(len, POSTS[:first]))
        text = [token for post in POSTS[first:last] for token in post]
        within = [i for post in POSTS[first:last] for i in range(len(post))]
        seen, kept = set(), []
        for i in range(window, len(text)):
            gram = tuple(text[i - window : i + 1])
            if gram not in seen and within[i] >= window:
                kept.append(begin + i)
            seen.add(gram)
        found.append(kept)
    return found


@pytest.mark.parametrize("window", [0, 1, 2])
def test_what_posts_repeat_counts_once_for_their_account(window):
    posts = batch_tokens(POSTS)
    positions = pooled_positions(WholeWindows(window), window, posts, ACCOUNTS, "ngram")
    of_accounts = [
        positions.index[a:b].tolist() for a, b in zip(positions.offsets, positions.offsets[1:], strict=False)
    ]
    assert of_accounts == plain_pooled(window)
    of_posts = by_post(positions, posts)
    assert of_posts.scored.sum() == len(positions.index)
    for post, (a, b) in enumerate(pairwise(of_posts.offsets)):
        assert ((posts.offsets[post] <= of_posts.index[a:b]) & (of_posts.index[a:b] < posts.offsets[post + 1])).all()


def test_posts_together_score_what_they_score_one_by_one():
    mark, generator = Version3GreenList(SECRET, 2, Fraction(1, 4)), np.random.default_rng(1)
    posts = batch_tokens([generator.integers(50_000, size=20) for _ in range(30)])
    accounts = np.array([0, 10, 30])
    positions = pooled_positions(mark.rule, 2, posts, accounts, "ngram")
    whole = mark.score(posts._replace(offsets=posts.offsets[accounts]), positions, 3)
    assert whole.tolist() == np.add.reduceat(mark.score(posts, by_post(positions, posts), 3), accounts[:-1]).tolist()
