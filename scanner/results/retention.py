"""Remove rows from results: transactions of nights that are over, nights that are too old, and names on request.

When a night is over for good, its transactions leave Delta's log. From then on, rows in `shards` show which shards are
done. Delta reads all transactions of a table whenever the table is opened or committed to, so a year of them would slow
down every commit.

The work of scans of one date (UTC), here called a night, is frozen FREEZE_AFTER after it. The next scan continues after
an interruption. If a night of data is scanned again later, it is several nights here. The steps:

1. Remove the rows of runs that died before their verdicts from the tables other than verdicts.
2. Commit a transaction of the night to `shards`. Its version is the time of the newest row. From then on, this row and
   older ones replace transactions, and step 1 must not be done again, because it needs transactions that may be gone.
3. Commit the night's transactions once more, with a time. Delta drops them EXPIRE_AFTER after it. It keeps transactions
   without a time, which are all others, for ever.

Nights older than a limit leave the tables. Rows of `scans`, `audits` and `shards` stay. They show the work but no
persons, and keep later scans from scanning the input of such a night again. Rows of `shards` get the time at which
their night was dropped. If rows of a scan are left, by an interruption or because its flags were kept, the next call
finds and drops them. `brickscan vacuum` deletes the files.

Names of people who ask to be forgotten are removed from all tables. The rows stay, without a name. Their kept texts and
the notes on their flags are deleted, because both may show who somebody is.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.input.shards import Shard
from scanner.results.current_rows import current_flags, drop_runs, flags, run_number, settle, shards, side_tables
from scanner.results.queries import ask
from scanner.results.scan_list import TO_THE_END
from scanner.results.transactions import (
    DROPS_TRANSACTIONS,
    NIGHT,
    NO_RUN,
    ORPHANS_AFTER_HOURS,
    Tables,
    find_versions,
    frozen_id,
    has_table,
    open_results_table,
    read_whole,
    shards_of_frozen_nights,
    try_to_commit,
)
from scanner.results.upkeep import RewrittenFile, delete_unneeded, existing_tables, keep_rows, rewrite
from scanner.storage.data_files import OF_A_NIGHT, OF_USERS, SCHEMAS, all_rows
from scanner.storage.delta import LoggedTransaction, attempts, sync_commit
from scanner.storage.locations import refuse_links_of_table, table_uri
from schemas.tables import NAMED_LISTS, SHARDS
from schemas.words import Naming

FREEZE_AFTER = timedelta(days=30)
EXPIRE_AFTER = timedelta(days=30)
"""Time until transactions of a frozen night expire.

It is longer than any scan runs: a scan that looked for its work before the night was frozen uses the transactions.
"""

YOUNGEST_FROZEN = timedelta(days=1)
"""Least age of the newest row of a night. It ensures that no scan of that night still commits."""


def freeze(results: str, now: datetime) -> list[str]:
    """Freeze the nights that are old enough. Return their dates, such as 2026-11-21.

    Raises:
        ScanFailed: other processes kept committing first, or a table cannot be read or written.
    """
    tables, rows = Tables(results), read_whole(results, "shards")
    old = rows.filter(pl.col("began_at") < datetime.combine(now - FREEZE_AFTER, datetime.min.time(), UTC))
    nights = old.group_by(night=NIGHT).agg(pl.col("scanned_at").max()).sort("night").collect()
    ready = find_versions(tables, "shards", map(_expiring, nights["night"]))
    frozen = []
    for night, newest in nights.iter_rows():
        if _expiring(night) not in ready and newest < now - YOUNGEST_FROZEN:
            _freeze(tables, night, newest)
            frozen.append(night)
    return frozen


def done_in_frozen_nights(tables: Tables, shards: Sequence[Shard]) -> set[str]:
    """Return the ids of the given shards that were done in a frozen night. Raises as `freeze`."""
    if not shards:
        return set()
    shard_ids = pl.LazyFrame({"shard_id": [shard.shard_id for shard in shards]}, schema={"shard_id": pl.String})
    paths = pl.Series([shard.file.path for shard in shards], dtype=pl.String)
    rows = read_whole(tables.results, "shards", paths).join(shard_ids, on="shard_id", how="semi")
    return shards_of_frozen_nights(tables, rows)


def _expiring(night: str) -> str:
    return f"expiring:{night}"


def _freeze(tables: Tables, night: str, newest: datetime) -> None:
    """Do all steps of freezing a night, or those that are left.

    Args:
        tables: tables of the results.
        night: date of the night.
        newest: time of the night's newest row.
    """
    # not the present time, because this machine's clock may be wrong; rows that come later have their transactions
    frozen = Transaction(frozen_id(night), math.floor(newest.timestamp()) + 1)
    committed = find_versions(tables, "shards", [frozen.app_id])
    if not committed:
        runs = _runs(tables, night, frozen.version)
        shards = runs["shard_id"].unique().to_list()
        settle(tables, shards)
        won = find_versions(tables, "verdicts", shards)
        drop_runs(tables, [run for run in runs.iter_rows() if run[0] not in won])
        _set(tables, "shards", lambda _: [frozen])
    done_shards = _done(tables, _runs(tables, night, committed.get(frozen.app_id, frozen.version)))
    for name in ("verdicts", *side_tables(tables)):
        _keep_for_a_time(tables, name)
        _set(tables, name, lambda logged: _with_a_time(logged, done_shards))
    _set(tables, "shards", lambda _: [Transaction(_expiring(night), 1)])


def _runs(tables: Tables, night: str, end: int) -> pl.DataFrame:
    """Return shard_id and scan_id of a night's rows in `shards` that are older than `end`, in seconds since 1970."""
    row_filter = (night == NIGHT) & (pl.col("scanned_at") < datetime.fromtimestamp(end, UTC))
    return read_whole(tables.results, "shards").filter(row_filter).select("shard_id", "scan_id").collect()


def _done(tables: Tables, runs: pl.DataFrame) -> set[str]:
    """Return the shards whose verdicts are from these runs. A row here must not count for work of another night."""
    won = find_versions(tables, "verdicts", runs["shard_id"])
    return {shard for shard, scan_id in runs.iter_rows() if won.get(shard) in (run_number(scan_id), NO_RUN)}


def _with_a_time(logged: Mapping[str, LoggedTransaction], done_shards: Iterable[str]) -> list[Transaction]:
    """Return a table's transactions of shards and their runs (scanner.results.current_rows), with the time now."""
    shards, now = set(done_shards), int(time.time() * 1000)
    transactions = ((name, logged[name].version) for name in logged if name.partition(":")[0] in shards)
    return [Transaction(name, version, last_updated=now) for name, version in transactions]


def _set(tables: Tables, name: str, choose: Callable[[Mapping[str, LoggedTransaction]], list[Transaction]]) -> None:
    """Commit transactions that `choose` returns for those of a table."""
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, kept_table = tables.now(name)
        transactions = choose(kept_table.logged())
        earlier = kept_table.lasting(transaction.app_id for transaction in transactions)
        if not transactions or try_to_commit(tables.results, table, name, [], transactions, earlier):
            return


def _keep_for_a_time(tables: Tables, name: str) -> None:
    """Let a table drop transactions that have a time."""
    properties = {DROPS_TRANSACTIONS: f"interval {EXPIRE_AFTER.days} days"}
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, _ = tables.now(name)
        if properties.items() <= table.metadata().configuration.items():
            return
        refuse_links_of_table(table_uri(tables.results, name))
        try:
            table.alter.set_table_properties(properties)
            sync_commit(table, table.version())
        except CommitFailedError:
            continue
        except (DeltaError, OSError) as error:
            raise ScanFailed(f"results: table {table.table_uri} cannot be written: {in_a_line(error)}") from None


_LAST = ("flags", "audit_counts", "verdicts", "shards", "quarantine")

IN_ORDER = (*(name for name in OF_A_NIGHT if name not in _LAST), *_LAST)
"""Tables of nights in the order in which rows leave them.

Texts, spans and decisions leave before their flags, because the flags show which of them are current. A range of
`shards` is marked before its rows leave quarantine. Otherwise it would seem to have a result, and hide flags that stay.
"""


class ExpiredRows(NamedTuple):
    """Rows older than a limit.

    nights: their dates.
    scans: ids of their scans.
    documents: number of documents that these scans read.
    flagged: number of flags of the rows.
    """

    nights: tuple[str, ...]
    scans: tuple[str, ...]
    documents: int
    flagged: int


def expired_rows(results: str, before: date, *, keep_flags: bool = False) -> ExpiredRows:
    """Return the nights before a date that still have rows. Write nothing.

    A scan's rows count from its night, or from the date (UTC) on which it began if that is later. Text that is scanned
    long after its date is then not deleted at once.

    Args:
        results: folder or URI.
        before: the first date that is not returned.
        keep_flags: whether to leave out nights that have rows only in `flags`.

    Raises:
        Refused: there are no results.
    """

    def old_scans() -> pl.DataFrame:
        ranges = shards(results).group_by("scan_id").agg(pl.col("night").max(), pl.col("documents").sum())
        flag_counts = flags(results).group_by("scan_id").agg(flagged=pl.len())
        sides = [name for name in OF_A_NIGHT if name in _ALONE and has_table(results, name)]
        ids = [rows.select("scan_id") for rows in (ranges, *(read_whole(results, name) for name in sides))]
        scans = pl.concat([*ids, *([] if keep_flags else [flag_counts.select("scan_id")])]).unique()
        counts = scans.join(ranges, on="scan_id", how="left").join(flag_counts, on="scan_id", how="left")
        dated_counts = counts.with_columns(night=pl.max_horizontal("night", _BEGAN))
        return dated_counts.filter(pl.col("night") < f"{before:%Y-%m-%d}").sort("night", "scan_id").collect()

    rows = ask(results, old_scans)
    nights = tuple(rows["night"].unique().sort())
    return ExpiredRows(nights, tuple(rows["scan_id"]), int(rows["documents"].sum()), int(rows["flagged"].sum()))


_ALONE = ("audit_counts", "quarantine")
"""Tables in which a scan may have rows without a row in `shards`, for example for files that could not be read."""

_BEGAN = pl.col("scan_id").str.head(8).str.to_date("%Y%m%d", strict=False).dt.strftime("%Y-%m-%d")


def retain(
    results: str,
    scans: Sequence[str],
    *,
    keep_flags: bool,
    watch: Callable[[str, int, int], None] = lambda table, done, files: None,
) -> int:
    """Remove all rows of these scans from the tables, table by table. In `shards` they are marked, and stay.

    Args:
        results: folder or URI.
        scans: ids of the scans.
        keep_flags: whether to keep the current rows of `flags` with their texts. Flags that a later scan took back are
            removed all the same, including such flags of nights that were dropped before.
        watch: called now and then with a table's name, the number of its checked files, and of all its files.

    Returns:
        The number of rows that were removed or marked.

    Raises:
        Refused: there are no results.
        ScanFailed: other processes kept committing first, or a table cannot be read or written.
    """
    ids = pl.DataFrame({"scan_id": scans}, schema={"scan_id": pl.String})
    row_count = 0
    for name in IN_ORDER:
        if has_table(results, name):
            removals = ask(results, lambda: _taken_back(results, ids)) if keep_flags and name in _OF_FLAGS else ids
            change = partial(_marked, ids) if name == "shards" else partial(_without, name, removals)
            row_count += rewrite(results, name, change, partial(_may_hold, removals["scan_id"]), partial(watch, name))
    return row_count


def drop_older(results: str, days: int, *, keep_flags: bool, config_sha256: str) -> int:
    """Drop the nights that are older than so many days, unless a scan of the same configuration did so today.

    A scan of only a part of the input does not count for this. Raises as `expired_rows` and `retain`.

    Returns:
        The number of rows that were removed or marked.
    """
    now = datetime.now(UTC)
    same_config_today = (pl.col("config_sha256") == config_sha256) & (pl.col("started_at").dt.date() == now.date())
    is_done = same_config_today & pl.col("exit_code").is_in(TO_THE_END) & pl.col("part").is_null()
    if not read_whole(results, "scans").filter(is_done).collect().is_empty():
        return 0
    old = expired_rows(results, cutoff(days), keep_flags=keep_flags)
    return retain(results, old.scans, keep_flags=keep_flags) if old.scans else 0


def _taken_back(results: str, scans: pl.DataFrame) -> pl.DataFrame:
    """Return the flags of these scans, or kept from dropped nights, that a later scan took back.

    Once the scans are dropped, no row would show that these flags were taken back.
    """
    stays = shards(results).select("scan_id").unique().join(scans.lazy(), on="scan_id", how="anti")
    rows = flags(results).join(stays, on="scan_id", how="anti")
    return rows.join(current_flags(results, flags(results)), on=_FLAG, how="anti").select(_FLAG).collect()


_OF_FLAGS = ("flag_texts", "flag_levels", "spans", "decisions", "flags")

_FLAG = ["scan_id", "shard_id", "path", "row"]


def _without(name: str, removals: pl.DataFrame, file: pq.ParquetFile) -> RewrittenFile | None:
    """Remove the rows of a file that equal one of `removals` in all of its columns."""
    return keep_rows(name, file, ~_has_row_in(pl.DataFrame(file.read(removals.columns)), removals))


def _marked(scans: pl.DataFrame, file: pq.ParquetFile) -> RewrittenFile | None:
    """Mark rows of `shards` with the time at which they were dropped. The rows stay."""
    rows = pl.DataFrame(file.read().cast(SHARDS))
    goes = _has_row_in(rows, scans) & rows["dropped_at"].is_null()
    if not goes.any():
        return None
    now = pl.lit(datetime.now(UTC), rows.schema["dropped_at"])
    marked = rows.with_columns(dropped_at=pl.when(goes).then(now).otherwise("dropped_at"))
    return RewrittenFile(int(goes.sum()), marked.to_arrow().cast(SHARDS))


def _has_row_in(rows: pl.DataFrame, removals: pl.DataFrame) -> pl.Series:
    numbered = rows.with_row_index("at")
    return numbered["at"].is_in(numbered.join(removals, on=removals.columns, how="semi")["at"].implode())


def _may_hold(scans: pl.Series, files: pl.DataFrame) -> pl.DataFrame:
    """Return the files that may have rows of these scans, by their least and largest scan id."""
    if scans.is_empty():
        return files.clear()
    if not {"min.scan_id", "max.scan_id"} <= set(files.columns):
        return files
    outside = (pl.col("max.scan_id") < scans.min()) | (pl.col("min.scan_id") > scans.max())
    return files.filter(~outside.fill_null(value=False))


def cutoff(days: int) -> date:
    """Return the first date (UTC) whose rows stay if nights are kept for so many days."""
    return datetime.now(UTC).date() - timedelta(days=days)


def redate(results: str, scan_id: str, night: date) -> str:
    """Correct the date of a scan's data, and return the earlier date. It may be interrupted, and called again.

    `scans` keeps the date that the scan stated, in `night_stated`.

    Raises:
        Refused: there are no results or no such scan. Or the scan left out n-grams by the filter of its date.
        ScanFailed: other processes kept committing first, or a table cannot be read or written.
    """
    rows = ask(results, lambda: read_whole(results, "scans").filter(scan_id=scan_id).collect()).to_dicts()
    if not rows:
        raise Refused(f"scan {scan_id!r}: no finished scan has that id; `brickscan status` lists scans")
    if rows[0]["filter_sha256"] is not None:
        raise Refused(
            f"scan {scan_id}: it left out n-grams with the filter of {rows[0]['night']}, which does not apply to "
            "another date; scan the files again into a new folder of results, with the right --date"
        )
    for name in ("shards", "scans"):  # `scans` last: its row shows that everything is done
        rewrite(results, name, partial(_redated, name, scan_id, f"{night}"))
    return str(rows[0]["night"])


def _redated(name: str, scan_id: str, night: str, file: pq.ParquetFile) -> RewrittenFile | None:
    rows = pl.DataFrame(all_rows(name, file))
    row_filter = (pl.col("scan_id") == scan_id) & (pl.col("night") != night)
    number = len(rows.filter(row_filter))
    if not number:
        return None
    values = {"night": pl.lit(night)}
    if name == "scans":
        values["night_stated"] = pl.coalesce("night_stated", "night")
    changed = rows.with_columns(
        pl.when(row_filter).then(value).otherwise(pl.col(column)).alias(column) for column, value in values.items()
    )
    return RewrittenFile(number, changed.to_arrow().cast(SCHEMAS[name]))


def erase_user(
    results: str, user_ids: Sequence[str], watch: Callable[[str, int, int], None] = lambda table, done, files: None
) -> int:
    """Erase names from results. The rows then have `removed` in their place.

    The kept texts of flags for these users are deleted. So are the notes of decisions on these flags, and the posts of
    accounts that name the users.

    The files that contained the names are deleted, with leftovers of attempts that failed at least a day ago. Younger
    files may belong to a running scan, and are left for scanner.results.upkeep.vacuum. The call may be interrupted and
    repeated at any time.

    Args:
        results: folder or URI.
        user_ids: the names.
        watch: called now and then with a table's name, the number of its checked files, and of all its files.

    Returns:
        The number of changed verdicts.

    Raises:
        Refused: there are no results.
        ScanFailed: other processes kept committing first, or the table cannot be read or written.
    """
    if not user_ids:
        return 0
    open_results_table(results, "verdicts")
    existing_tables(results)  # refuse links before anything is changed
    row_counts = {}
    if has_table(results, "account_posts"):
        rewrite(results, "account_posts", partial(_without_posts, _accounts_of(results, user_ids)))
        delete_unneeded(results, "account_posts", 0, ORPHANS_AFTER_HOURS)
    # texts before names, and verdicts before tables that are made from them
    for name in sorted(OF_USERS, key=lambda name: ("user_id" in SCHEMAS[name].names, name != "verdicts")):
        if has_table(results, name):  # not every scan makes all of them
            row_counts[name] = rewrite(results, name, partial(_erased, name, user_ids), watch=partial(watch, name))
            # even if no name was left, because an earlier erasure may have been killed before this step
            delete_unneeded(results, name, 0, ORPHANS_AFTER_HOURS)
    return row_counts["verdicts"]


def flagged_texts_of(results: str, user_ids: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return file, row and SHA-256 (hex) of each flagged text that names one of these users, or whose account does.

    Raises:
        Refused: there are no results.
    """
    names = list(user_ids)
    named = (
        pl.col(name).list.eval(pl.element().struct.field("user_id").is_in(names)).list.any() for name in NAMED_LISTS
    )
    theirs = pl.any_horizontal(pl.col("user_id", "account_id").is_in(names), *named)
    columns = pl.col("path"), pl.col("row"), pl.col("text_sha256").bin.encode("hex")
    rows = ask(results, lambda: flags(results).filter(theirs).select(columns).unique().sort("path", "row").collect())
    return rows.rows()


def count_accounts(results: str, account_ids: Sequence[str]) -> dict[str, int]:
    """Return the number of rows of each table with one of these account ids. Tables without any are left out.

    Raises:
        Refused: there are no results.
    """
    matches = pl.col("account_id").is_in(list(account_ids))

    def question() -> dict[str, int]:
        tables = {name: read_whole(results, name).filter(matches) for name in _tables_of_accounts(results)}
        return {name: int(rows.select(pl.len()).collect().item()) for name, rows in tables.items()}

    return {name: count for name, count in ask(results, question).items() if count}


def erase_accounts(
    results: str, account_ids: Sequence[str], watch: Callable[[str, int, int], None] = lambda table, done, files: None
) -> int:
    """Erase ids of accounts from results. Return the number of rows that were changed or deleted.

    Afterwards the column is null in verdicts, flags, quarantine and counts of audits. Rows about an account (its posts,
    its test) are deleted. The call may be interrupted and repeated at any time.

    Raises:
        Refused: there are no results.
        ScanFailed: other processes kept committing first, or a table cannot be read or written.
    """
    if not account_ids:
        return 0
    row_count = 0
    for name in _tables_of_accounts(results):
        row_count += rewrite(results, name, partial(_without_accounts, name, account_ids), watch=partial(watch, name))
        delete_unneeded(results, name, 0, ORPHANS_AFTER_HOURS)
    return row_count


def _tables_of_accounts(results: str) -> list[str]:
    open_results_table(results, "verdicts")
    existing_tables(results)  # refuse links before anything is changed
    names = (name for name, schema in SCHEMAS.items() if "account_id" in schema.names)
    return [name for name in names if has_table(results, name)]


def _without_accounts(name: str, account_ids: Sequence[str], file: pq.ParquetFile) -> RewrittenFile | None:
    matches = pl.Series(file.read(["account_id"])["account_id"]).is_in(list(account_ids)).fill_null(value=False)
    field = SCHEMAS[name].field("account_id")
    if not field.nullable or not matches.any():
        return keep_rows(name, file, ~matches)
    rows = all_rows(name, file)
    accounts = pc.if_else(matches.to_arrow(), pa.scalar(None, pa.string()), rows["account_id"]).cast(field.type)
    return RewrittenFile(
        int(matches.sum()), rows.set_column(rows.schema.get_field_index("account_id"), field, accounts)
    )


def _without_names(name: str, user_ids: Sequence[str], file: pq.ParquetFile) -> RewrittenFile | None:
    matches = _anywhere(file.read(["user_id", *_lists(name)]), user_ids)
    if not matches.any():
        return None
    rows = all_rows(name, file)
    named = pl.Series(rows["user_id"]).is_in(list(user_ids)).fill_null(value=False)
    user = pc.if_else(named.to_arrow(), pa.scalar(None, pa.string()), rows["user_id"])
    naming = pc.if_else(named.to_arrow(), Naming.REMOVED.value, rows["naming"])
    lists = [(column, _others(rows, column, user_ids)) for column in _lists(name)]
    for column, values in (("user_id", user), ("naming", naming), *lists):
        position = rows.schema.get_field_index(column)
        rows = rows.set_column(position, rows.schema.field(position), values.cast(rows.schema.field(position).type))
    return RewrittenFile(int(matches.sum()), rows)


def _erased(name: str, user_ids: Sequence[str], file: pq.ParquetFile) -> RewrittenFile | None:
    """Rewrite a file as its table's columns require: without names, without their notes, or without the rows."""
    columns = SCHEMAS[name].names
    erase = _without_names if "user_id" in columns else _without_notes if "note" in columns else _without_texts
    return erase(name, user_ids, file)


def _without_texts(name: str, user_ids: Sequence[str], file: pq.ParquetFile) -> RewrittenFile | None:
    return keep_rows(name, file, ~_user_matches(file, user_ids))


def _without_notes(name: str, user_ids: Sequence[str], file: pq.ParquetFile) -> RewrittenFile | None:
    matches = _user_matches(file, user_ids)
    if not matches.any():
        return None
    others = pl.element().filter(~pl.element().is_in(list(user_ids)))
    rows = pl.DataFrame(all_rows(name, file))
    changed = rows.with_columns(user_ids=pl.col("user_ids").list.eval(others), note=pl.when(~matches).then("note"))
    return RewrittenFile(int(matches.sum()), changed.to_arrow().cast(SCHEMAS[name]))


def _user_matches(file: pq.ParquetFile, user_ids: Sequence[str]) -> pl.Series:
    return pl.Series(file.read(["user_ids"])["user_ids"]).list.eval(pl.element().is_in(list(user_ids))).list.any()


def _without_posts(account_ids: Sequence[str], file: pq.ParquetFile) -> RewrittenFile | None:
    matches = pl.Series(file.read(["account_id"])["account_id"]).is_in(list(account_ids))
    return keep_rows("account_posts", file, ~matches)


def _accounts_of(results: str, user_ids: Sequence[str]) -> list[str]:
    """Return the accounts whose posts name one of these users."""
    if not has_table(results, "accounts"):
        return []
    rows = read_whole(results, "accounts").collect().to_arrow()
    return pl.Series(rows["account_id"]).filter(_anywhere(rows, user_ids)).unique().to_list()


def _lists(name: str) -> list[str]:
    return [column for column in NAMED_LISTS if column in SCHEMAS[name].names]


def _anywhere(rows: pa.Table, user_ids: Sequence[str]) -> pl.Series:
    is_erased_user = pl.element().struct.field("user_id").is_in(list(user_ids))
    lists = [column for column in NAMED_LISTS if column in rows.column_names]
    list_matches = (pl.col(column).list.eval(is_erased_user.fill_null(value=False)).list.any() for column in lists)
    in_lists = pl.any_horizontal(pl.lit(value=False), *(match.fill_null(value=False) for match in list_matches))
    erased = pl.col("user_id").is_in(list(user_ids)).fill_null(value=False)
    frame = pl.DataFrame(rows)
    return frame.select(erased | in_lists).to_series()


def _others(rows: pa.Table, column: str, user_ids: Sequence[str]) -> pa.ChunkedArray:
    """Return one of NAMED_LISTS without these names."""
    is_erased = pl.field("user_id").is_in(list(user_ids)).fill_null(value=False)
    entry = pl.element().struct.with_fields(
        user_id=pl.when(~is_erased).then(pl.field("user_id")),
        naming=pl.when(is_erased).then(pl.lit(str(Naming.REMOVED))).otherwise(pl.field("naming")),
    )
    frame = pl.DataFrame(rows.select([column]))
    return frame.select(pl.col(column).list.eval(entry)).to_arrow()[column]
