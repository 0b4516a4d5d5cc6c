"""Flags beside one: of its user, account or text, and earlier posts that it may have copied.

Whoever strings runs of others' marked text together is flagged for their mark. Earlier posts are found by their
sketches, so that a run that is short beside its posts may be missed: the share is a lower bound.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.detection.sketches import PLACES
from scanner.results.false_discoveries import OF, pieces, sizes_of
from scanner.results.flags import WantedFlags, sums
from scanner.results.queries import ask, standing_flags
from schemas.words import Naming

MESSAGE, ACCOUNT, TEXT = ("key_id", "message"), ("account_id",), ("text_sha256",)


class Around(NamedTuple):
    """Flagged documents, distinct texts among them, and distinct accounts that posted them, as far as they are told."""

    documents: int
    texts: int
    accounts: int


def equal_in(
    results: str, rate: float, rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...]
) -> dict[tuple[Any, ...], Around]:
    """Flags that equal a row in these columns, by their values; null equals nothing. Raises Refused: no results."""
    values = {name: {row[name] for row in rows} - {None} for name in columns}
    wanted = pl.all_horizontal(*(pl.col(name).is_in(list(found)) for name, found in values.items()))
    accounts = pl.col("account_id").drop_nulls().n_unique().alias("accounts")
    counts = [pl.len().alias("documents"), pl.col("text_sha256").n_unique().alias("texts"), accounts]
    same = [pl.col(name).alias(f"same_{name}") for name in columns]
    found = ask(results, lambda: standing_flags(results, rate, wanted).group_by(same).agg(counts).collect())
    return {row[:-3]: Around(*row[-3:]) for row in found.iter_rows()}


def naming_users(results: str, rate: float, rows: Sequence[Mapping[str, Any]]) -> dict[str | None, Around]:
    """Flags that name a user of these rows, be it first or beside others, by user. Raises Refused: no results."""
    users = tuple({row["user_id"] for row in rows if row["naming"] == Naming.NAMED} - {None})
    if not users:
        return {}
    counts = sums(results, rate, WantedFlags(users=users), None, "user").rows.filter(naming=Naming.NAMED)
    return {user: Around(*of) for user, *of in counts.select("user_id", "documents", "texts", "accounts").iter_rows()}


def alike_with(results: str, rate: float, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], Around]:
    """Flags that are one piece of evidence with a row, by its values in OF. Raises Refused: no results."""
    keys, messages = ({row[name] for row in rows} for name in MESSAGE)
    of_messages = pl.col("message").is_in(list(messages - {None}))
    unshown = pl.col("message").is_null() & (None in messages)

    def of_these() -> pl.DataFrame:
        flags = standing_flags(results, rate, pl.col("key_id").is_in(list(keys)) & (of_messages | unshown))
        told = pieces(flags)
        schema = {name: told.schema[name] for name in OF}
        own = pl.DataFrame([{name: row[name] for name in OF} for row in rows], schema).unique()
        mine = told.join(own, on=OF, how="semi", nulls_equal=True).drop_nulls("piece")
        sizes = sizes_of(flags, told.filter(pl.col("piece").is_in(mine["piece"].implode())))
        return mine.join(sizes, on="piece").select(*OF, "piece_documents", "piece_texts", "piece_accounts")

    found = ask(results, of_these) if rows else pl.DataFrame()
    return {row[:-3]: Around(*row[-3:]) for row in found.iter_rows()}


MOST_POSTS = 10
"""Earlier posts that are read for a flag, the most alike ones."""

MOST_ROWS = 200_000
"""Flags whose sketches are held; where more have the messages that are asked for, nothing is told."""

RUN = 5
"""Least tokens of a run that counts as copied: shorter ones stand in unrelated texts too."""

Place = tuple[str, int]

_COLUMNS = ("path", "row", *MESSAGE, "account_id", "text_sha256", "variant", "scan_id", "sketch")


class Copied(NamedTuple):
    """What a text shares with earlier flagged posts of other accounts.

    share: of its runs that end in a scored token, from 0 to 1; posts, accounts: those that hold some of them; path,
    row: of the post that holds most, None: none holds any.
    """

    share: float
    posts: int
    accounts: int
    path: str | None = None
    row: int | None = None


class EarlierPost(NamedTuple):
    """An earlier post: who posted it, where it stands, and its tokens, uint32[T]."""

    account_id: str
    path: str
    row: int
    ids: NDArray[np.uint32]


def earlier_of_others(
    results: str, rate: float, rows: Sequence[Mapping[str, Any]]
) -> dict[Place, Sequence[Mapping[str, Any]]]:
    """Earlier flagged posts of other accounts, for the same key and message, that share n-grams with flagged documents.

    Args:
        results: folder or URI.
        rate: false-positive rate of the flags.
        rows: of `flagged`.

    Returns:
        By path and row of a document: rows of flags, one a text, MOST_POSTS at most, the most alike first. A document
        without an account or a message has none.

    Raises:
        Refused: there are no results.
    """
    keys, messages = ({row[name] for row in rows} - {None} for name in MESSAGE)
    wanted = pl.col("key_id").is_in(list(keys)) & pl.col("message").is_in(list(messages))
    told = wanted & pl.col("account_id").is_not_null()
    posted = pl.coalesce("created_at", "scanned_at").alias("posted")

    def flags() -> pl.DataFrame:
        rows = standing_flags(results, rate, told).filter(pl.col("sketch").is_not_null())
        return rows.select(*_COLUMNS, posted).head(MOST_ROWS + 1).collect()

    if not messages or len(found := ask(results, flags)) > MOST_ROWS:
        return {}
    places = np.frombuffer(b"".join(found["sketch"]), "<u4").reshape(len(found), PLACES)
    numbered = found.drop("sketch").with_row_index("number")
    of_place = {(path, row): number for number, path, row in numbered.select("number", "path", "row").iter_rows()}
    addresses = ((row["path"], row["row"]) for row in rows)
    return {place: _alike(numbered, places, of_place[place]) for place in addresses if place in of_place}


def _alike(numbered: pl.DataFrame, places: NDArray[np.uint32], number: int) -> Sequence[Mapping[str, Any]]:
    """Earlier posts of other accounts that have a place of their sketch in common with one flag."""
    own = numbered.row(number, named=True)
    earlier = numbered.filter(
        *(pl.col(name) == own[name] for name in MESSAGE),
        pl.col("account_id") != own["account_id"],
        pl.col("posted") < own["posted"],
    )
    equal = (places[earlier["number"].to_numpy()] == places[number]).sum(axis=1)
    alike = earlier.with_columns(equal=pl.Series(equal)).filter(pl.col("equal") > 0)
    ordered = alike.sort("equal", "posted", descending=[True, False]).unique("text_sha256", maintain_order=True)
    return ordered.head(MOST_POSTS).to_dicts()


def copied_of(ids: NDArray[np.uint32], scored: NDArray[np.int64], reach: int, posts: Iterable[EarlierPost]) -> Copied:
    """What a text shares with posts.

    Args:
        ids: its tokens, uint32[T].
        scored: places of its scored tokens.
        reach: how many previous tokens decide a token's draw; a run has one token more, and RUN at least.
        posts: the earlier posts, the most alike first.
    """
    length = max(reach + 1, RUN)
    ends = set(scored.tolist())
    own = [run for end, run in enumerate(_runs(ids, length), length - 1) if end in ends]
    there, holding = np.zeros(len(own), bool), list[tuple[int, EarlierPost]]()
    for post in posts:
        runs = set(_runs(post.ids, length))
        shared = np.array([run in runs for run in own], bool)
        there |= shared
        holding += [(int(shared.sum()), post)] if shared.any() else []
    if not holding:
        return Copied(0.0, 0, 0)
    _, most = max(holding, key=lambda one: one[0])  # of equal ones the first, which is the most alike
    accounts = {post.account_id for _, post in holding}
    return Copied(float(there.mean()), len(holding), len(accounts), most.path, most.row)


def _runs(ids: NDArray[np.uint32], length: int) -> list[bytes]:
    """All runs of so many tokens, in order."""
    data = np.ascontiguousarray(ids, "<u4").tobytes()
    return [data[4 * at : 4 * (at + length)] for at in range(len(ids) - length + 1)]
