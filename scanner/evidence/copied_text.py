"""Find the runs of tokens that a flagged text shares with earlier posts of other accounts. It may have copied them.

A person who joins runs of other people's marked text is flagged for their mark. Earlier posts are found by their
sketches. A run that is short beside its posts may be missed, so the share is a lower bound.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.detection.sketches import SKETCH_PLACES
from scanner.evidence.related_flags import MESSAGE
from scanner.results.queries import ask, flags_at_rate

EARLIER_POSTS_READ = 10
"""Number of earlier posts that are read for a flag. The most similar ones are chosen."""


SKETCHES_HELD = 200_000
"""Largest number of flags whose sketches are held. If more have the requested messages, no earlier post is returned."""


COPIED_RUN = 5
"""Smallest number of tokens of a run that counts as copied. Shorter runs are in unrelated texts too."""


PathAndRow = tuple[str, int]


_COLUMNS = ("path", "row", *MESSAGE, "account_id", "text_sha256", "variant", "scan_id", "sketch")


class CopiedShare(NamedTuple):
    """The part of a text that is in earlier flagged posts of other accounts.

    share: share of the text's runs, among those that end in a scored token, that are in these posts, from 0 to 1.
    posts: number of posts with any of these runs.
    accounts: number of accounts that posted them.
    path: path of the post with most of the runs. None: no post has any.
    row: row of that post.
    not_read: number of such posts that cannot be read. The text is not compared with them.
    """

    share: float
    posts: int
    accounts: int
    path: str | None = None
    row: int | None = None
    not_read: int = 0


class EarlierPost(NamedTuple):
    """An earlier post: its account, its file and row, and its tokens, uint32[T]."""

    account_id: str
    path: str
    row: int
    ids: NDArray[np.uint32]


def earlier_of_others(
    results: str, rate: float, rows: Sequence[Mapping[str, Any]]
) -> dict[PathAndRow, Sequence[Mapping[str, Any]]]:
    """Return earlier flagged posts of other accounts that share n-grams with flagged documents.

    The posts are flagged for the same key and message as the document.

    Args:
        results: folder or URI of the results.
        rate: false-positive rate of the flags.
        rows: rows of the flagged documents.

    Returns:
        Rows of flags by path and row of a document, one for each text, EARLIER_POSTS_READ at most, the most similar
        first. A document without an account or a message has none.

    Raises:
        Refused: there are no results.
    """
    keys, messages = ({row[name] for row in rows} - {None} for name in MESSAGE)
    message_filter = pl.col("key_id").is_in(list(keys)) & pl.col("message").is_in(list(messages))
    post_filter = message_filter & pl.col("account_id").is_not_null()
    posted = pl.coalesce("created_at", "scanned_at").alias("posted")

    def flags() -> pl.DataFrame:
        rows = flags_at_rate(results, rate, post_filter).filter(pl.col("sketch").is_not_null())
        return rows.select(*_COLUMNS, posted).head(SKETCHES_HELD + 1).collect()

    if not messages or len(flagged_posts := ask(results, flags)) > SKETCHES_HELD:
        return {}
    places = np.frombuffer(b"".join(flagged_posts["sketch"]), "<u4").reshape(len(flagged_posts), SKETCH_PLACES)
    numbered_posts = flagged_posts.drop("sketch").with_row_index("number")
    numbers = {(path, row): number for number, path, row in numbered_posts.select("number", "path", "row").iter_rows()}
    addresses = ((row["path"], row["row"]) for row in rows)
    return {place: _most_similar(numbered_posts, places, numbers[place]) for place in addresses if place in numbers}


def _most_similar(numbered_posts: pl.DataFrame, places: NDArray[np.uint32], number: int) -> Sequence[Mapping[str, Any]]:
    """Return earlier posts of other accounts that have a place of their sketch in common with one flag."""
    row = numbered_posts.row(number, named=True)
    earlier_posts = numbered_posts.filter(
        *(pl.col(name) == row[name] for name in MESSAGE),
        pl.col("account_id") != row["account_id"],
        pl.col("posted") < row["posted"],
    )
    equal_counts = (places[earlier_posts["number"].to_numpy()] == places[number]).sum(axis=1)
    near_posts = earlier_posts.with_columns(equal=pl.Series(equal_counts)).filter(pl.col("equal") > 0)
    by_likeness = near_posts.sort("equal", "posted", "path", "row", descending=[True, False, False, False])
    distinct_posts = by_likeness.unique("text_sha256", keep="first", maintain_order=True)
    return distinct_posts.head(EARLIER_POSTS_READ).to_dicts()


def copied_share(
    ids: NDArray[np.uint32], scored: NDArray[np.int64], reach: int, posts: Iterable[EarlierPost]
) -> CopiedShare:
    """Compute the share of a text that is in earlier posts.

    Args:
        ids: its tokens, uint32[T].
        scored: places of its scored tokens.
        reach: number of previous tokens that decide a token's draw. A run has one token more, and at least COPIED_RUN.
        posts: the earlier posts, the most similar first.
    """
    length = max(reach + 1, COPIED_RUN)
    ends = set(scored.tolist())
    flagged_runs = [run for end, run in enumerate(_runs(ids, length), length - 1) if end in ends]
    copied, holding = np.zeros(len(flagged_runs), bool), list[tuple[int, EarlierPost]]()
    for post in posts:
        runs = set(_runs(post.ids, length))
        shared = np.array([run in runs for run in flagged_runs], bool)
        copied |= shared
        holding += [(int(shared.sum()), post)] if shared.any() else []
    if not holding:
        return CopiedShare(0.0, 0, 0)
    _, main_source = max(holding, key=lambda holder: holder[0])  # of equal ones the first, which is the most alike
    accounts = {post.account_id for _, post in holding}
    return CopiedShare(float(copied.mean()), len(holding), len(accounts), main_source.path, main_source.row)


def _runs(ids: NDArray[np.uint32], length: int) -> list[bytes]:
    data = np.ascontiguousarray(ids, "<u4").tobytes()
    return [data[4 * begin : 4 * (begin + length)] for begin in range(len(ids) - length + 1)]
