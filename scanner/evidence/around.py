"""Other flags beside one: of its user, message, account and very text, and of near-duplicates of its text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from scanner.results.flag_list import sums
from scanner.results.pieces import OF, pieces, sizes_of
from scanner.results.queries import ask, standing_flags
from scanner.results.wanted_flags import WantedFlags
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
    flags = standing_flags(results, rate, wanted).group_by(same).agg(counts)
    found = ask(results, flags.collect)
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
