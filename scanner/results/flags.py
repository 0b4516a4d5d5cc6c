"""Select flags, count them, put them in order, and list them or add them up.

A text of a canary that was found and named right needs no decision. It is counted separately everywhere.

Filters are pushed into the read of the table `flags`. For each distinct text only a digest, a message and a count are
kept in memory. Whole rows are read only for texts that are shown.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Any, Literal, NamedTuple

import polars as pl

from scanner.printable import counted
from scanner.results.canary_flags import of_canary
from scanner.results.current_rows import EVERY_ROW
from scanner.results.decision_log import State, in_state
from scanner.results.expected_false_flags import ExpectedFalseFlags, expected_false_flags, flags_by_chance
from scanner.results.pieces_of_evidence import EVIDENCE_COLUMNS, pieces_of_evidence, sizes_of
from scanner.results.queries import ask, flags_at_rate, scanned_and_one_of, with_audit
from scanner.results.shown_p_values import LOG10_P_SHOWN
from schemas.registry import Canary
from schemas.tables import NAMED_LISTS
from schemas.words import AuditState, Naming, Proof

OF_ENTRY = ("key_id", "message", "user_id", "naming", "log10_p_global")
"""Fields of NAMED for each user who is named."""


class WantedFlags(NamedTuple):
    """A filter for flags. An empty field filters nothing.

    since: only flags scanned at or after this time. None: at any time.
    before: only flags scanned before this time. None: at any time.
    users: ids of users.
    accounts: ids of accounts.
    keys: ids of keys.
    documents: ids of documents.
    state: state of the decision. None: any.
    user_part: part of a user's name, in upper or lower case.
    account_part: part of an account's name, in upper or lower case.
    """

    since: datetime | None = None
    before: datetime | None = None
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    state: State | None = None
    user_part: str = ""
    account_part: str = ""

    def expression(self) -> pl.Expr:
        """Return the filter as an expression on columns of schemas.tables.VERDICTS."""
        requested = scanned_and_one_of(self.since, self.before, {"account_id": self.accounts, "doc_id": self.documents})
        if self.account_part:
            requested &= _has(pl.col("account_id"), self.account_part)
        if self.about_users:
            in_lists = (
                pl.col(name).list.eval(self._is_of(pl.element().struct.field)).list.any()
                for name in ("named", "further_messages")
            )
            requested &= pl.any_horizontal(
                self._is_of(pl.col), *(in_list.fill_null(value=False) for in_list in in_lists)
            )
        return requested

    @property
    def about_users(self) -> bool:
        """Return whether the filter has users or keys. If so, a flag may name users who are not requested."""
        return bool(self.users or self.keys or self.user_part)

    def _is_of(self, field: Callable[[str], pl.Expr]) -> pl.Expr:
        """Return whether a row, or an entry of NAMED, is about one of the users under one of the keys."""
        requested = (("user_id", self.users), ("key_id", self.keys))
        conditions = [field(name).is_in(list(values)) for name, values in requested if values]
        conditions += [_has(field("user_id"), self.user_part)] if self.user_part else []
        return reduce(and_, (condition.fill_null(value=False) for condition in conditions), EVERY_ROW)

    def requested_users(self) -> list[pl.Expr]:
        """Return two columns of a requested row, `asked` and `beside`.

        For example, a row names user A first and user B second, and only B is requested. Then `asked` has the entry of
        B, and `beside` is true.

        Returns:
            asked: entries of NAMED, one for each requested user under the requested keys.
            beside: whether the row's own user and key, which come first, are not among the requested ones.
        """
        field = pl.element().struct.field
        requested_entries = pl.element().filter(self._is_of(field))
        first = (field("user_id").is_not_null() & field("user_id").is_first_distinct()) | (pl.int_range(pl.len()) == 0)
        surest_first = pl.element().sort_by(field("log10_p_global"), maintain_order=True)
        named = pl.concat_list(pl.col(name).fill_null([]) for name in NAMED_LISTS).list.eval(surest_first)
        entries = pl.concat_list(pl.concat_list(pl.struct(OF_ENTRY)), named)
        users = entries.list.eval(requested_entries).list.eval(pl.element().filter(first))
        return [users.alias("asked"), self._is_of(pl.col).not_().alias("beside")]


FLAG_ID_PREFIX = "brickscan-"


def flag_id(row: Mapping[str, Any]) -> str:
    """Return the id of a flag for other systems. Every scan of the same document and text gives the same id.

    The first half comes from the digest of the text, so a column of digests can be searched for it.
    """
    place = hashlib.sha256(f"{row['path']}\n{row['row']}\n{row['text_sha256'].hex()}".encode())
    return f"{FLAG_ID_PREFIX}{row['text_sha256'][:8].hex()}{place.digest()[:8].hex()}"


def _has(name: pl.Expr, part: str) -> pl.Expr:
    """Return whether a name contains a part, in upper or lower case."""
    return name.str.to_lowercase().str.contains(part.lower(), literal=True)


IN_NEED = (
    "flags that name a user",
    "flags that name no user",
    "flags that you cannot use: the audit raised an alarm, the message is reserved or a second computation differs",
)
"""Groups of flags. Those that most need a decision come first."""


class FlagCount(NamedTuple):
    """Counts of flagged documents.

    flagged: documents, without those of canaries.
    canaries: documents of canaries that were found and named right.
    """

    flagged: int
    canaries: int

    def in_words(self) -> str:
        """Return the count as text, with canaries as a separate number."""
        canary_words = f", and {counted(self.canaries, 'canary text')}" if self.canaries else ""
        return f"{self.flagged:,} flagged{canary_words}"


NO_FLAGS = FlagCount(0, 0)


def count_flags(results: str, rate: float, wanted: WantedFlags, canaries: Collection[Canary] | None) -> FlagCount:
    """Count the requested flags.

    Args:
        results: folder or URI.
        rate: false-positive rate. One stricter than the scan's leaves out the flags that it would not have made.
        wanted: which flags.
        canaries: as scanner.results.canary_flags.of_canary.

    Raises:
        Refused: there are no results.
    """
    counts = ask(results, lambda: _counted(found_flags(results, rate, wanted), canaries).collect())
    return FlagCount(*counts.row(0))


def flags_at(results: str, rate: float, wanted: WantedFlags, documents: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the requested flags of given documents as rows of VERDICTS with `audit`, in the order of the documents.

    Args:
        results: folder or URI.
        rate: as `count_flags`.
        wanted: which flags.
        documents: columns path and row.

    Raises:
        Refused: there are no results.
    """
    numbered = documents.select("path", "row").with_row_index("number").lazy()
    path_filter = pl.col("path").is_in(documents["path"].unique().implode())

    def newest_flags() -> pl.DataFrame:
        return found_flags(results, rate, wanted).filter(path_filter).join(numbered, on=["path", "row"]).collect()

    return ask(results, newest_flags).sort("number").drop("number", "again").to_dicts()


def counts_of_scans(results: str, rate: float, canaries: Collection[Canary] | None) -> dict[str, FlagCount]:
    """Count the current flags by the scan that found them. Args, raises: as `count_flags`."""
    rows = ask(results, lambda: _counted(flags_at_rate(results, rate), canaries, "scan_id").collect())
    return {scan_id: FlagCount(*counts) for scan_id, *counts in rows.rows()}


def _counted(rows: pl.LazyFrame, canaries: Collection[Canary] | None, *by: str) -> pl.LazyFrame:
    hidden_canaries = of_canary(canaries).sum().cast(pl.Int64)
    counts = [(pl.len().cast(pl.Int64) - hidden_canaries).alias("flagged"), hidden_canaries.alias("canaries")]
    return rows.group_by(*by).agg(counts) if by else rows.select(counts)


def by_need(results: str, rate: float, wanted: WantedFlags, canaries: Collection[Canary] | None) -> pl.DataFrame:
    """Return the requested flags in the order in which they need a decision.

    The groups IN_NEED come first to last. In a group, flags are ordered by:

    1. the number of requested copies of the text, most first,
    2. the time of the last scan, latest first,
    3. the p-value, smallest first.

    Copies of one text stay together. Args, raises: as `count_flags`.

    Returns:
        path and row: the document.
        need: place in IN_NEED.
        copies: number of copies of the text among the requested flags.
    """
    unusable = (
        (pl.col("audit") == AuditState.ALARM)
        | (pl.col("proof") == Proof.DIFFERS)
        | pl.col("naming").is_in([Naming.UNPROVED, Naming.RESERVED])
    )
    need = (
        pl.when(unusable.fill_null(value=False))
        .then(2)
        .when(pl.col("naming") != Naming.NAMED)
        .then(1)
        .otherwise(0)
        .alias("need")
    )

    def question(requested: WantedFlags) -> pl.DataFrame:
        rows = found_flags(results, rate, requested).filter(~of_canary(canaries))
        return rows.select("path", "row", *EVIDENCE_COLUMNS, "scanned_at", "log10_p_global", need).collect()

    # sort by flags in all states: a decision on one flag then leaves the order of the others unchanged
    copies, last = pl.len().over(EVIDENCE_COLUMNS).cast(pl.Int64), pl.col("scanned_at").max().over(EVIDENCE_COLUMNS)
    first, surest = pl.col("need").min().over(EVIDENCE_COLUMNS), pl.col("log10_p_global").min().over(EVIDENCE_COLUMNS)
    every = ask(results, lambda: question(wanted._replace(state=None)))
    order = every.with_columns(copies=copies, last=last, first=first, surest=surest)
    down = {"copies", "last", "scanned_at"}
    names = (
        "first",
        "copies",
        "last",
        "surest",
        *EVIDENCE_COLUMNS,
        "need",
        "scanned_at",
        "log10_p_global",
        "path",
        "row",
    )
    ordered = order.sort(*names, descending=[name in down for name in names], nulls_last=True)
    if wanted.state is not None:
        in_state = ask(results, lambda: question(wanted)).select("path", "row")
        ordered = ordered.join(in_state, on=["path", "row"], how="semi", maintain_order="left")
    return ordered.select("path", "row", "need", copies=copies)


By = Literal["user", "account", "text"]

_SAME = ("text_sha256", "key_id", "message", "user_id", "naming")
"""Columns that are equal in all copies of one entry of the list. Copies have the same text and name the same user, or
name no user for the same reason.
"""

_GROUPS: Mapping[By, tuple[str, ...]] = {"user": ("user_id", "naming"), "account": ("account_id",), "text": _SAME}
_DOCUMENT = ("path", "row")

_OF_FIRST = (
    "score",
    "log10_p",
    "runner_up_log10_p",
    "runner_up_log10_p_global",
    "first_seen_at",
    "held_since",
    "p_rank",
)
"""Columns about the first named user only."""


class FlagTotals(NamedTuple):
    """Totals of all requested flags, shown or not."""

    entries: int
    """Number of rows if all were shown."""
    documents: int
    texts: int
    """Distinct texts."""
    unnamed: Mapping[str, int]
    """Documents that name no user, by Naming, most frequent first."""
    alarmed: int
    """Documents of scans whose audit raised an alarm."""
    canaries: int = 0
    """Documents that were left out because they are a canary's own."""
    pieces: int | None = None
    """Pieces of evidence. Near-duplicates count as one. None: there are too many texts to compare."""
    expected_false: ExpectedFalseFlags | None = None
    """How many flags are expected to be false. None: after an alarm, or while no scan has ended."""


class FlagList(NamedTuple):
    """The shown rows, and the totals. rows: see `newest` and `sums`."""

    rows: pl.DataFrame
    totals: FlagTotals


def newest(
    results: str,
    rate: float,
    wanted: WantedFlags,
    limit: int | None,
    *,
    fold: bool = True,
    canaries: Collection[Canary] | None = (),
) -> FlagList:
    """Return the newest requested flags in one row for each text.

    Rows are ordered by time, newest first. At equal times, the smallest p-value comes first. A row is about the first
    requested user under the requested keys, with that user's p-value.

    Args:
        results: folder or URI.
        rate: false-positive rate. One stricter than the scan's leaves out the flags that it would not have made.
        wanted: which flags.
        limit: how many rows at most. None: all.
        fold: False: one row for each document instead of each text.
        canaries: as `of_canary`. Their own texts that were named right are counted but not listed.

    Returns:
        Rows and totals. Rows have the columns of schemas.tables.VERDICTS, of the newest copy. Further columns:
        log10_p_shown: see scanner.results.shown_p_values.
        audit: `alarm` if the audit of any copy's scan raised an alarm.
        copies, accounts: int64, the number of copies, and of their distinct accounts without null.
        piece_documents, piece_texts, piece_accounts: int64, the same of copies and near-duplicates together, which are
            one piece of evidence. Null where there are too many texts to compare.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased at every attempt.
    """
    same = _SAME if fold else (*_SAME, *_DOCUMENT)

    def question() -> FlagList:
        entries, canary_copies = _entries(found_flags(results, rate, wanted), same, canaries)
        page = _with_pieces(_in_order(entries, same).head(_most(limit, entries)), entries, results, rate, wanted)
        texts = None if limit is None else page["text_sha256"]
        rows = _newest_copies(found_flags(results, rate, wanted, texts), page, same)
        expected = _expected_false(entries, results, rate, wanted)
        return FlagList(rows, _totals(entries, len(entries), canary_copies, expected))

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
    """Add up the requested flags by user, account or text.

    Rows with most texts come first, and rows without a user last. A text that is marked for several users counts for
    each of them, but only once in the totals. Args, raises: as `newest`.

    Returns:
        Rows and totals. Columns:
        by user: user_id and naming.
        by account: account_id.
        by text: text_sha256, key_id, message, user_id and naming.
        documents, texts, accounts and users: int64, distinct and without null.
        first and last: times of the first and the last scan.
        log10_p_global and log10_p_shown (scanner.results.shown_p_values): the smallest.
        alarmed: documents of scans whose audit raised an alarm.
        pieces: pieces of evidence, that is, texts that are no near-duplicates of each other
            (scanner.results.pieces_of_evidence). 0 where there are too many texts to compare.
    """
    group = _GROUPS[by]

    def question() -> FlagList:
        rows = found_flags(results, rate, wanted, each=by != "text")
        all_entries, canary_copies = _entries(rows, (*_SAME, "account_id"), canaries)
        entries = all_entries.filter(~pl.col("again"))
        distinct = {"texts": "text_sha256", "accounts": "account_id", "users": "user_id"}
        # a document counts once for each of its users, but only once for its account
        counts = (by == "user") | ~pl.col("again")
        summed = all_entries.group_by(group).agg(
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
        largest = summed.sort(
            pl.col(group[0]).is_null(),
            "texts",
            "documents",
            *group,
            descending=[False, True, True, *(False for _ in group)],
        )
        expected = _expected_false(entries, results, rate, wanted)
        return FlagList(largest.head(_most(limit, largest)), _totals(entries, len(largest), canary_copies, expected))

    return ask(results, question)


def found_flags(
    results: str, rate: float, wanted: WantedFlags, texts: pl.Series | None = None, *, each: bool = False
) -> pl.LazyFrame:
    """Return rows of VERDICTS with `audit`, one for each document, about the first requested user.

    Args:
        results: folder or URI.
        rate: as `count_flags`.
        wanted: which flags.
        texts: digests of texts. Rows of other texts are left out. None: all texts.
        each: return a row for each requested user instead.

    Returns:
        The rows, with a column `again`: whether the row is a further one of its document.
    """
    requested = wanted.expression()
    if texts is not None:
        requested &= pl.col("text_sha256").is_in(texts.implode())
    rows = flags_at_rate(results, rate, requested)
    if wanted.state is not None:
        rows = in_state(results, rows, wanted.state)
    if each or wanted.about_users:
        rows = _rows_per_user(rows, rate, wanted).filter(each | ~pl.col("again"))
    else:
        rows = rows.with_columns(again=pl.lit(value=False))
    return with_audit(results, rows)


def _rows_per_user(rows: pl.LazyFrame, rate: float, wanted: WantedFlags) -> pl.LazyFrame:
    """Return rows of VERDICTS about each requested user.

    Values that are known only of a document's first user are null for other users.
    """
    passes = pl.element().struct.field("log10_p_global") <= math.log10(rate)
    passing = pl.col("asked").list.eval(pl.element().filter(passes))
    requests = rows.with_columns(wanted.requested_users()).with_columns(passing)
    numbers = pl.int_ranges(pl.col("asked").list.len())
    user_rows = requests.filter(pl.col("asked").list.len() > 0).with_columns(number=numbers).explode("asked", "number")
    about_first_user = ~pl.col("beside") & (pl.col("number") == 0)
    return user_rows.with_columns(
        *(pl.col("asked").struct.field(name).alias(name) for name in OF_ENTRY),
        *(pl.when(about_first_user).then(name).alias(name) for name in _OF_FIRST),
        again=pl.col("number") > 0,
    ).drop("asked", "beside", "number")


def _entries(
    rows: pl.LazyFrame, same: tuple[str, ...], canaries: Collection[Canary] | None
) -> tuple[pl.DataFrame, int]:
    """Add up requested flags with equal columns.

    Returns:
        The entries, without those of canaries.
        The number of canaries' documents that were left out.
    """
    flags = rows.with_columns(of_canary=of_canary(canaries))
    counts = flags.group_by(*same, "again", "of_canary").agg(
        copies=pl.len().cast(pl.Int64),
        alarmed=(pl.col("audit") == AuditState.ALARM).sum().cast(pl.Int64),
        first=pl.col("scanned_at").min(),
        last=pl.col("scanned_at").max(),
        log10_p_global=pl.col("log10_p_global").min(),
        log10_p_shown=LOG10_P_SHOWN.min(),
        messages_tested=pl.col("messages_tested").max(),
        accounts=pl.col("account_id").drop_nulls().n_unique().cast(pl.Int64),
    )
    entries = counts.collect(engine="streaming")
    entries = entries.join(
        pieces_of_evidence(rows), on=EVIDENCE_COLUMNS, how="left", nulls_equal=True, maintain_order="left"
    )
    canary_texts = entries.filter(pl.col("of_canary") & ~pl.col("again"))
    return entries.filter(~pl.col("of_canary")), int(canary_texts["copies"].sum())


def _with_pieces(
    page: pl.DataFrame, entries: pl.DataFrame, results: str, rate: float, wanted: WantedFlags
) -> pl.DataFrame:
    """Add the size of its piece of evidence to each entry. Entries on other pages count too."""
    shown_pieces = (
        entries.filter(pl.col("piece").is_in(page["piece"].implode())).select(*EVIDENCE_COLUMNS, "piece").unique()
    )
    texts = None if len(page) == len(entries) else shown_pieces["text_sha256"]
    sizes = sizes_of(found_flags(results, rate, wanted, texts), shown_pieces)
    return page.join(sizes, on="piece", how="left", maintain_order="left")


def _in_order(entries: pl.DataFrame, same: tuple[str, ...]) -> pl.DataFrame:
    """Sort entries: newest first, then smallest p-value, then documents in the order of their file."""
    down = [name not in _DOCUMENT for name in same]
    return entries.sort(
        "last", "log10_p_global", *same, descending=[True, False, *down], nulls_last=True, maintain_order=True
    )


def _newest_copies(flags: pl.LazyFrame, page: pl.DataFrame, same: tuple[str, ...]) -> pl.DataFrame:
    """Return one whole row for each entry, in the order of the entries."""
    counts = ("copies", "accounts", "piece_documents", "piece_texts", "piece_accounts", "alarmed")
    place = page.select(*same, *counts, scanned_at="last").with_row_index("place")
    latest = flags.join(place.lazy(), on=[*same, "scanned_at"], how="inner", nulls_equal=True)
    rows = latest.collect(engine="streaming").sort(
        "place", "scan_id", *_DOCUMENT, descending=[False, True, False, False]
    )
    alarm = pl.when(pl.col("alarmed") > 0).then(pl.lit(str(AuditState.ALARM))).otherwise("audit")
    entry_rows = rows.unique("place", keep="first", maintain_order=True)
    return entry_rows.with_columns(audit=alarm, log10_p_shown=LOG10_P_SHOWN).drop("place", "alarmed", "again")


def _most(limit: int | None, rows: pl.DataFrame) -> int:
    return len(rows) if limit is None else limit


def _expected_false(entries: pl.DataFrame, results: str, rate: float, wanted: WantedFlags) -> ExpectedFalseFlags | None:
    """Estimate how many of the requested flags are false. None: as in FlagTotals."""
    chance_flags = flags_by_chance(results, rate, wanted.since, wanted.before)
    if chance_flags is None or entries["alarmed"].sum():
        return None
    if wanted.users or wanted.user_part or wanted.state:
        # no user holds a reserved message, so lists by user or decision lack the flags of reserved messages
        return ExpectedFalseFlags(chance_flags, entries["text_sha256"].n_unique(), 0, chance_flags)
    return expected_false_flags(entries.lazy(), chance_flags)


def _totals(
    entries: pl.DataFrame, shown_at_most: int, canary_copies: int, expected_false: ExpectedFalseFlags | None
) -> FlagTotals:
    unnamed_counts = entries.filter(pl.col("naming") != Naming.NAMED).group_by("naming").agg(pl.col("copies").sum())
    return FlagTotals(
        entries=shown_at_most,
        documents=int(entries["copies"].sum()),
        texts=entries["text_sha256"].n_unique(),
        unnamed=dict(unnamed_counts.sort("copies", "naming", descending=[True, False]).iter_rows()),
        alarmed=int(entries["alarmed"].sum()),
        canaries=canary_copies,
        pieces=None if entries["piece"].null_count() else entries["piece"].n_unique(),
        expected_false=expected_false,
    )
