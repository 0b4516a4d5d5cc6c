"""The flags that somebody asks for: the newest texts with their copies, or sums by user, account or text.

Filters go into the read of the table `flags`. A digest, a message and a count are kept for each distinct text that was
asked for; whole rows are read only for texts that are shown.
"""

import math
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

import polars as pl

from scanner.results.decided import in_state
from scanner.results.pieces import OF, pieces, sizes_of
from scanner.results.queries import ask, standing_flags, with_audit
from scanner.results.strength import LOG10_P_SHOWN
from scanner.results.wanted_flags import OF_ENTRY, WantedFlags
from schemas.registry import CANARY_ID, Canary
from schemas.words import AuditState, Naming

By = Literal["user", "account", "text"]

_SAME = ("text_sha256", "key_id", "message", "user_id", "naming")
"""Columns that are equal in copies that are one entry of the list: one text, which names the same user or, for the same
reason, nobody.
"""

_GROUPS: Mapping[By, tuple[str, ...]] = {"user": ("user_id", "naming"), "account": ("account_id",), "text": _SAME}
_DOCUMENT = ("path", "row")
_LIKE_CANARY = pl.any_horizontal(pl.col("user_id", "account_id").str.contains(CANARY_ID).fill_null(value=False))
"""Filter for flags whose user or account has a name like a canary's, be it one or not."""


_OF_FIRST = (
    "score",
    "log10_p",
    "runner_up_log10_p",
    "runner_up_log10_p_global",
    "first_seen_at",
    "held_since",
    "p_rank",
)
"""Columns about the first named user alone."""


class Totals(NamedTuple):
    """Totals of everything that was asked for.

    entries: rows, were all shown; texts: distinct ones; unnamed: documents that name nobody, by Naming, most first;
    alarmed: documents of scans whose audit alarmed; canaries: documents left out that are canaries' own; like_canaries:
    documents that stay, though their user or account has a name like a canary's; pieces: of evidence, where
    near-duplicates are one; None: there are too many texts to tell.
    """

    entries: int
    documents: int
    texts: int
    unnamed: Mapping[str, int]
    alarmed: int
    canaries: int = 0
    pieces: int | None = None
    like_canaries: int = 0


class FlagList(NamedTuple):
    """The rows that are shown, and the totals. rows: see `newest` and `sums`."""

    rows: pl.DataFrame
    totals: Totals


def newest(
    results: str,
    rate: float,
    wanted: WantedFlags,
    limit: int | None,
    *,
    fold: bool = True,
    canaries: Collection[Canary] | None = (),
) -> FlagList:
    """The newest flags that are asked for, newest first and of one time the surest, those of one text in one row.

    A row is about who comes first of the users who are asked for, under the keys that are, with their own p-value.

    Columns: as in schemas.tables.VERDICTS, of the newest copy; audit, `alarm` where the audit of any copy's scan
    alarmed; copies and accounts, int64, of all copies, distinct accounts without null; piece_documents, piece_texts and
    piece_accounts, int64, of its copies and near-duplicates together, which are one piece of evidence, null where there
    are too many texts to tell.

    Args:
        results: folder or URI.
        rate: a rate stricter than the scan's leaves out flags that it would not have made.
        wanted: which flags.
        limit: how many rows at most; None: all.
        fold: False: each document has a row.
        canaries: as `of_canary`; their own texts that were named right are left out, and counted.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased all the while.
    """
    same = _SAME if fold else (*_SAME, *_DOCUMENT)

    def question() -> FlagList:
        entries, left_out = _entries(found_flags(results, rate, wanted), same, canaries)
        shown = _with_pieces(_in_order(entries, same).head(_most(limit, entries)), entries, results, rate, wanted)
        few = None if limit is None else shown["text_sha256"]
        rows = _newest_copies(found_flags(results, rate, wanted, few), shown, same)
        return FlagList(rows, _totals(entries, len(entries), left_out))

    return ask(results, question)


def sums(
    results: str,
    rate: float,
    wanted: WantedFlags,
    limit: int | None,
    by: By,
    *,
    canaries: Collection[Canary] | None = (),
) -> FlagList:
    """The flags that are asked for, added up by user, account or text, those with most texts first.

    A text that is marked for several users counts for each of them; totals count it once.

    Columns: user_id and naming (by user), account_id (by account), or text_sha256, key_id, message, user_id and naming
    (by text); documents, texts, accounts and users, int64, distinct ones and without null; first and last, when they
    were scanned; log10_p_global and log10_p_shown (scanner.results.strength), the smallest; alarmed, documents of scans
    whose audit alarmed; pieces, of evidence: texts that are no near-duplicates (scanner.results.pieces), 0 where there
    are too many to be told apart.

    Args, raises: as `newest`.
    """
    group = _GROUPS[by]

    def question() -> FlagList:
        found = found_flags(results, rate, wanted, each=by != "text")
        everybody, left_out = _entries(found, (*_SAME, "account_id"), canaries)
        entries = everybody.filter(~pl.col("again"))
        distinct = {"texts": "text_sha256", "accounts": "account_id", "users": "user_id"}
        counts = (by == "user") | ~pl.col("again")  # a document is one of each of its users, and one of its account
        summed = everybody.group_by(group).agg(
            documents=pl.col("copies").filter(counts).sum(),
            **{name: pl.col(column).drop_nulls().n_unique().cast(pl.Int64) for name, column in distinct.items()},
            first=pl.col("first").min(),
            last=pl.col("last").max(),
            log10_p_global=pl.col("log10_p_global").min(),
            log10_p_shown=pl.col("log10_p_shown").min(),
            alarmed=pl.col("alarmed").filter(counts).sum(),
            pieces=pl.when(pl.col("piece").null_count() == 0)
            .then(pl.col("piece").n_unique())
            .otherwise(0)
            .cast(pl.Int64),
        )
        largest = summed.sort("texts", "documents", *group, descending=[True, True, *(False for _ in group)])
        return FlagList(largest.head(_most(limit, largest)), _totals(entries, len(largest), left_out))

    return ask(results, question)


def found_flags(
    results: str, rate: float, wanted: WantedFlags, texts: pl.Series | None = None, *, each: bool = False
) -> pl.LazyFrame:
    """Rows of VERDICTS with `audit`: one a document, about the first of the users who are asked for.

    texts: digests, of which alone; each: a row for each of these users. again: it is not the first of its document.
    """
    asked = wanted.expression()
    if texts is not None:
        asked &= pl.col("text_sha256").is_in(texts.implode())
    rows = standing_flags(results, rate, asked)
    if wanted.state is not None:
        rows = in_state(results, rows, wanted.state)
    if each or wanted.about_users:
        rows = _of_each(rows, rate, wanted).filter(each | ~pl.col("again"))
    else:
        rows = rows.with_columns(again=pl.lit(value=False))
    return with_audit(results, rows)


def _of_each(rows: pl.LazyFrame, rate: float, wanted: WantedFlags) -> pl.LazyFrame:
    """Rows of VERDICTS about each user who is asked for; values known of the first user alone are null for others."""
    passes = pl.element().struct.field("log10_p_global") <= math.log10(rate)
    passing = pl.col("asked").list.eval(pl.element().filter(passes))
    of_rows = rows.with_columns(wanted.asked_users()).with_columns(passing)
    places = pl.int_ranges(pl.col("asked").list.len())
    each = of_rows.filter(pl.col("asked").list.len() > 0).with_columns(place=places).explode("asked", "place")
    own = ~pl.col("beside") & (pl.col("place") == 0)
    return each.with_columns(
        *(pl.col("asked").struct.field(name).alias(name) for name in OF_ENTRY),
        *(pl.when(own).then(name).alias(name) for name in _OF_FIRST),
        again=pl.col("place") > 0,
    ).drop("asked", "beside", "place")


def of_canary(canaries: Collection[Canary] | None) -> pl.Expr:
    """Filter for a canary's text as intended: under its own account, and named right; no other flag hides so.

    canaries: of the registry; None: no registry is known, and the column `canary` says what its scan knew.
    """
    if canaries is None:
        return pl.col("canary").fill_null(value=False)
    known = {f"{canary.key_id}\n{canary.message}\n{canary.account_id}" for canary in canaries}
    flag = pl.concat_str("key_id", pl.col("message").cast(pl.String), "user_id", separator="\n")
    named = (pl.col("naming") == Naming.NAMED) & (pl.col("account_id") == pl.col("user_id"))
    return (named & flag.is_in(sorted(known))).fill_null(value=False)


def _entries(
    found: pl.LazyFrame, same: tuple[str, ...], canaries: Collection[Canary] | None
) -> tuple[pl.DataFrame, int]:
    """What is asked for, added up, and how many documents of canaries were left out."""
    grouped = found.with_columns(of_canary=of_canary(canaries))
    counted = grouped.group_by(*same, "again", "of_canary").agg(
        like_canaries=_LIKE_CANARY.sum().cast(pl.Int64),
        copies=pl.len().cast(pl.Int64),
        alarmed=(pl.col("audit") == AuditState.ALARM).sum().cast(pl.Int64),
        first=pl.col("scanned_at").min(),
        last=pl.col("scanned_at").max(),
        log10_p_global=pl.col("log10_p_global").min(),
        log10_p_shown=LOG10_P_SHOWN.min(),
        accounts=pl.col("account_id").drop_nulls().n_unique().cast(pl.Int64),
    )
    entries = counted.collect(engine="streaming")
    entries = entries.join(pieces(found), on=OF, how="left", nulls_equal=True, maintain_order="left")
    left_out = entries.filter(pl.col("of_canary") & ~pl.col("again"))
    return entries.filter(~pl.col("of_canary")), int(left_out["copies"].sum())


def _with_pieces(
    shown: pl.DataFrame, entries: pl.DataFrame, results: str, rate: float, wanted: WantedFlags
) -> pl.DataFrame:
    """Entries with the sizes of their pieces, which other entries may belong to."""
    of_shown = entries.filter(pl.col("piece").is_in(shown["piece"].implode())).select(*OF, "piece").unique()
    some = None if len(shown) == len(entries) else of_shown["text_sha256"]
    sizes = sizes_of(found_flags(results, rate, wanted, some), of_shown)
    return shown.join(sizes, on="piece", how="left", maintain_order="left")


def _in_order(entries: pl.DataFrame, same: tuple[str, ...]) -> pl.DataFrame:
    """Entries newest first, of one time the surest, and documents as their file has them."""
    down = [name not in _DOCUMENT for name in same]
    return entries.sort(
        "last", "log10_p_global", *same, descending=[True, False, *down], nulls_last=True, maintain_order=True
    )


def _newest_copies(found: pl.LazyFrame, shown: pl.DataFrame, same: tuple[str, ...]) -> pl.DataFrame:
    """A whole row of each entry, in their order."""
    counts = ("copies", "accounts", "piece_documents", "piece_texts", "piece_accounts", "alarmed")
    place = shown.select(*same, *counts, scanned_at="last").with_row_index("place")
    latest = found.join(place.lazy(), on=[*same, "scanned_at"], how="inner", nulls_equal=True)
    rows = latest.collect(engine="streaming").sort(
        "place", "scan_id", *_DOCUMENT, descending=[False, True, False, False]
    )
    alarm = pl.when(pl.col("alarmed") > 0).then(pl.lit(str(AuditState.ALARM))).otherwise("audit")
    one = rows.unique("place", keep="first", maintain_order=True)
    return one.with_columns(audit=alarm).drop("place", "alarmed", "again")


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
        like_canaries=int(entries["like_canaries"].sum()),
        pieces=None if entries["piece"].null_count() else entries["piece"].n_unique(),
    )
