"""Count the flags beside a flag: of its user, account or text, and those that are one piece of evidence with it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from scanner.results.flags import WantedFlags, sums
from scanner.results.pieces_of_evidence import EVIDENCE_COLUMNS, pieces_of_evidence, sizes_of
from scanner.results.queries import ask, flags_at_rate
from schemas.words import Naming

MESSAGE, ACCOUNT, TEXT = ("key_id", "message"), ("account_id",), ("text_sha256",)


class GroupCounts(NamedTuple):
    """Counts of a group of flags.

    documents: flagged documents.
    texts: distinct texts among them.
    accounts: distinct accounts that posted them, as far as they are told.
    """

    documents: int
    texts: int
    accounts: int


def equal_in(
    results: str, rate: float, rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...]
) -> dict[tuple[Any, ...], GroupCounts]:
    """Count flags that equal a row in these columns, by their values. Null equals nothing.

    Raises:
        Refused: there are no results.
    """
    values = {name: {row[name] for row in rows} - {None} for name in columns}
    value_filter = pl.all_horizontal(*(pl.col(name).is_in(list(options)) for name, options in values.items()))
    accounts = pl.col("account_id").drop_nulls().n_unique().alias("accounts")
    counts = [pl.len().alias("documents"), pl.col("text_sha256").n_unique().alias("texts"), accounts]
    group_columns = [pl.col(name).alias(f"same_{name}") for name in columns]
    group_counts = ask(
        results, lambda: flags_at_rate(results, rate, value_filter).group_by(group_columns).agg(counts).collect()
    )
    return {row[:-3]: GroupCounts(*row[-3:]) for row in group_counts.iter_rows()}


def naming_users(results: str, rate: float, rows: Sequence[Mapping[str, Any]]) -> dict[str | None, GroupCounts]:
    """Count flags that name a user of these rows, be it first or beside others, by user.

    Raises:
        Refused: there are no results.
    """
    users = tuple({row["user_id"] for row in rows if row["naming"] == Naming.NAMED} - {None})
    if not users:
        return {}
    counts = sums(results, rate, WantedFlags(users=users), None, "user").rows.filter(naming=Naming.NAMED)
    return {
        user: GroupCounts(*numbers)
        for user, *numbers in counts.select("user_id", "documents", "texts", "accounts").iter_rows()
    }


def alike_with(results: str, rate: float, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], GroupCounts]:
    """Count flags that are one piece of evidence with a row, by EVIDENCE_COLUMNS.

    Raises:
        Refused: there are no results.
    """
    keys, messages = ({row[name] for row in rows} for name in MESSAGE)
    message_filter = pl.col("message").is_in(list(messages - {None}))
    unshown = pl.col("message").is_null() & (None in messages)

    def count_pieces() -> pl.DataFrame:
        flags = flags_at_rate(results, rate, pl.col("key_id").is_in(list(keys)) & (message_filter | unshown))
        groups = pieces_of_evidence(flags)
        schema = {name: groups.schema[name] for name in EVIDENCE_COLUMNS}
        flagged = pl.DataFrame([{name: row[name] for name in EVIDENCE_COLUMNS} for row in rows], schema).unique()
        mine = groups.join(flagged, on=EVIDENCE_COLUMNS, how="semi", nulls_equal=True).drop_nulls("piece")
        sizes = sizes_of(flags, groups.filter(pl.col("piece").is_in(mine["piece"].implode())))
        return mine.join(sizes, on="piece").select(
            *EVIDENCE_COLUMNS, "piece_documents", "piece_texts", "piece_accounts"
        )

    piece_counts = ask(results, count_pieces) if rows else pl.DataFrame()
    return {row[:-3]: GroupCounts(*row[-3:]) for row in piece_counts.iter_rows()}
