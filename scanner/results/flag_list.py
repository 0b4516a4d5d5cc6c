"""The flags that somebody asks for: the newest texts with their copies, or sums by user, account or text.

Filters go into the read of the table `flags`. What is kept is a digest, a message and a count for each distinct text
that was asked for; whole rows are read of those alone that are shown.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, NamedTuple

import polars as pl

from scanner.results.pieces import OF, pieces
from scanner.results.queries import ask, scanned_and_one_of, standing_flags, with_audit
from schemas.registry import CANARY_ID
from schemas.words import AuditState, Naming

By = Literal["user", "account", "text"]

_SAME = ("text_sha256", "key_id", "message", "user_id", "naming")
"""Of copies that are one entry of the list: one text, which names the same user or, for the same reason, nobody."""

_GROUPS: Mapping[By, tuple[str, ...]] = {"user": ("user_id", "naming"), "account": ("account_id",), "text": _SAME}
_DOCUMENT = ("path", "row")
_OF_CANARY = (
    (pl.col("naming") == Naming.NAMED)
    & (pl.col("account_id") == pl.col("user_id"))
    & pl.col("user_id").str.contains(CANARY_ID)
).fill_null(value=False)
"""A canary's text as it is meant to come: under its own account, and named right; nobody else's flag hides so."""


_OF_ENTRY = ("key_id", "message", "user_id", "naming", "log10_p_global")
"""What NAMED says of each who is named."""

_OF_FIRST = (
    "score",
    "log10_p",
    "runner_up_log10_p",
    "runner_up_log10_p_global",
    "first_seen_at",
    "held_since",
    "p_rank",
)
"""What a row says of who is named first alone."""


def _of_one_of(users: tuple[str, ...]) -> pl.Expr:
    """Whether an entry of NAMED is of one of these users."""
    return pl.element().struct.field("user_id").is_in(list(users)).fill_null(value=False)


class Wanted(NamedTuple):
    """Which flags are asked for: those scanned since and before these times, and of one of each; empty: of any."""

    since: datetime | None = None
    before: datetime | None = None
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()

    def expression(self) -> pl.Expr:
        """Of columns of schemas.tables.VERDICTS."""
        columns = {"account_id": self.accounts, "key_id": self.keys, "doc_id": self.documents}
        asked = scanned_and_one_of(self.since, self.before, columns)
        if self.users:
            among = pl.col("named").list.eval(_of_one_of(self.users)).list.any()
            asked &= pl.col("user_id").is_in(list(self.users)) | among.fill_null(value=False)
        return asked

    def own(self) -> list[pl.Expr]:
        """Of a row that names one of the users beside another, what it says of that user; null for what it does not.

        A row of VERDICTS is about who comes first.
        """
        entry = pl.col("named").list.eval(pl.element().filter(_of_one_of(self.users))).list.first()
        beside = pl.col("user_id").is_in(list(self.users)).fill_null(value=False).not_() & entry.is_not_null()
        told = [pl.when(beside).then(entry.struct.field(name)).otherwise(name).alias(name) for name in _OF_ENTRY]
        return told + [pl.when(~beside).then(name).alias(name) for name in _OF_FIRST]


class Totals(NamedTuple):
    """Of all that was asked for.

    entries: rows, were all shown; texts: distinct ones; unnamed: documents that name nobody, by Naming, most first;
    alarmed: documents of scans whose audit alarmed; canaries: documents left out that are canaries' own; pieces: of
    evidence, where near-duplicates are one; None: there are too many texts to tell.
    """

    entries: int
    documents: int
    texts: int
    unnamed: Mapping[str, int]
    alarmed: int
    canaries: int = 0
    pieces: int | None = None


class FlagList(NamedTuple):
    """What is shown, and how much there is. rows: see `newest` and `sums`."""

    rows: pl.DataFrame
    totals: Totals


def newest(
    results: str, rate: float, wanted: Wanted, limit: int | None, *, fold: bool = True, canaries: bool = True
) -> FlagList:
    """The newest flags that are asked for, newest first and of one time the surest, those of one text in one row.

    Columns: as in schemas.tables.VERDICTS, of the newest copy; audit, `alarm` where the audit of any copy's scan
    alarmed; copies and accounts, int64, of all copies, distinct accounts without null.

    Args:
        results: folder or URI.
        rate: a stricter one than a flag's scan had leaves out what would not have been flagged under it.
        wanted: which.
        limit: how many rows at most; None: all.
        fold: False: each document has a row.
        canaries: False: texts of canaries that were named right are left out, and counted.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased all the while.
    """
    same = _SAME if fold else (*_SAME, *_DOCUMENT)

    def question() -> FlagList:
        entries, left_out = _entries(_found(results, rate, wanted), same, canaries=canaries)
        down = [name not in _DOCUMENT for name in same]  # of one time the surest, and documents as their file has them
        order = entries.sort(
            "last", "log10_p_global", *same, descending=[True, False, *down], nulls_last=True, maintain_order=True
        )
        shown = order.head(_most(limit, entries))
        few = None if limit is None else shown["text_sha256"]
        rows = _newest_copies(_found(results, rate, wanted, few), shown, same)
        return FlagList(rows, _totals(entries, len(entries), left_out))

    return ask(results, question)


def sums(results: str, rate: float, wanted: Wanted, limit: int | None, by: By, *, canaries: bool = True) -> FlagList:
    """The flags that are asked for, added up by user, account or text, those with most texts first.

    Columns: user_id and naming (by user), account_id (by account), or text_sha256, key_id, message, user_id and naming
    (by text); documents, texts, accounts and users, int64, distinct ones and without null; first and last, when they
    were scanned; log10_p_global, the smallest; alarmed, documents of scans whose audit alarmed; pieces, of evidence:
    texts that are no near-duplicates (scanner.results.pieces), 0 where there are too many to be told apart.

    Args, raises: as `newest`.
    """
    group = _GROUPS[by]

    def question() -> FlagList:
        entries, left_out = _entries(_found(results, rate, wanted), (*_SAME, "account_id"), canaries=canaries)
        distinct = {"texts": "text_sha256", "accounts": "account_id", "users": "user_id"}
        summed = entries.group_by(group).agg(
            documents=pl.col("copies").sum(),
            **{name: pl.col(column).drop_nulls().n_unique().cast(pl.Int64) for name, column in distinct.items()},
            first=pl.col("first").min(),
            last=pl.col("last").max(),
            log10_p_global=pl.col("log10_p_global").min(),
            alarmed=pl.col("alarmed").sum(),
            pieces=pl.col("piece").drop_nulls().n_unique().cast(pl.Int64),
        )
        largest = summed.sort("texts", "documents", *group, descending=[True, True, *(False for _ in group)])
        return FlagList(largest.head(_most(limit, largest)), _totals(entries, len(largest), left_out))

    return ask(results, question)


def _found(results: str, rate: float, wanted: Wanted, texts: pl.Series | None = None) -> pl.LazyFrame:
    asked = wanted.expression()
    if texts is not None:
        asked &= pl.col("text_sha256").is_in(texts.implode())
    rows = standing_flags(results, rate, asked)
    if wanted.users:
        rows = rows.with_columns(wanted.own()).filter(pl.col("log10_p_global") <= math.log10(rate))
    return with_audit(results, rows)


def _entries(found: pl.LazyFrame, same: tuple[str, ...], *, canaries: bool) -> tuple[pl.DataFrame, int]:
    """What is asked for, added up, and how many documents of canaries were left out."""
    grouped = found.with_columns(of_canary=pl.lit(value=False) if canaries else _OF_CANARY)
    counted = grouped.group_by(*same, "of_canary").agg(
        copies=pl.len().cast(pl.Int64),
        alarmed=(pl.col("audit") == AuditState.ALARM).sum().cast(pl.Int64),
        first=pl.col("scanned_at").min(),
        last=pl.col("scanned_at").max(),
        log10_p_global=pl.col("log10_p_global").min(),
        accounts=pl.col("account_id").drop_nulls().n_unique().cast(pl.Int64),
    )
    entries = counted.collect(engine="streaming")
    told = pieces(found)
    if told is None:
        entries = entries.with_columns(piece=pl.lit(None, pl.Int64))
    else:
        entries = entries.join(told, on=OF, how="left", nulls_equal=True, maintain_order="left")
    return entries.filter(~pl.col("of_canary")), int(entries.filter("of_canary")["copies"].sum())


def _newest_copies(found: pl.LazyFrame, shown: pl.DataFrame, same: tuple[str, ...]) -> pl.DataFrame:
    """A whole row of each entry, in their order."""
    place = shown.select(*same, "copies", "accounts", "alarmed", scanned_at="last").with_row_index("place")
    latest = found.join(place.lazy(), on=[*same, "scanned_at"], how="inner", nulls_equal=True)
    rows = latest.collect(engine="streaming").sort(
        "place", "scan_id", *_DOCUMENT, descending=[False, True, False, False]
    )
    alarm = pl.when(pl.col("alarmed") > 0).then(pl.lit(str(AuditState.ALARM))).otherwise("audit")
    one = rows.unique("place", keep="first", maintain_order=True)
    return one.with_columns(audit=alarm).drop("place", "alarmed")


def _most(limit: int | None, rows: pl.DataFrame) -> int:
    return len(rows) if limit is None else limit


def _totals(entries: pl.DataFrame, shown_at_most: int, left_out: int) -> Totals:
    nobody = entries.filter(pl.col("naming") != Naming.NAMED).group_by("naming").agg(pl.col("copies").sum())
    return Totals(
        entries=shown_at_most,
        documents=int(entries["copies"].sum()),
        texts=entries["text_sha256"].n_unique(),
        unnamed=dict(nobody.sort("copies", "naming", descending=[True, False]).iter_rows()),
        alarmed=int(entries["alarmed"].sum()),
        canaries=left_out,
        pieces=None if entries["piece"].null_count() else entries["piece"].n_unique(),
    )
