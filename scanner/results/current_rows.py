"""Select the rows that count: of a shard, those of the run that finished it first, and of a document, the newest.

Two runs may finish one shard, with different results: a document that happened to kill a worker is in quarantine under
one run and among the verdicts of the other. There is no transaction across tables, so `verdicts` decides. The first run
with committed verdicts wins, for good. The shard's transaction in `verdicts` has this run's number as version.

All other tables get a run's rows first. There, the shard's transaction has this run's number as version, or CONTESTED
after a second run. If the version differs from that in `verdicts`, `settle` removes the rows of the runs that lost. Any
process may settle, at any time and repeatedly. Every run does it after its commit, whether it won or lost, and the next
scan does it for a run that died first.

A pass in which a model reads hides the flags of an earlier pass, with any model, but not those of the scan. A scan
hides both. At any time, the flags of only one pass count, because a pass has one share of the rate.

A key that is added later and scanned by itself hides no older flag: the verdict on a document is the row with the
smallest corrected p-value among the newest rows of each set of keys. Rows of a file that replaced another under its
name hide the rows of that other file, for all keys. A row in quarantine hides none.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from scanner.input.shards import MAX_ROWS, MOST_SHARDS
from scanner.results.canary_flags import of_canary
from scanner.results.names_of_registry import without_foreign_names
from scanner.results.transactions import TableEntry, Tables, additions, kept_tables, read_whole, try_to_commit
from scanner.storage.data_files import AFTER_VERDICTS, OF_A_NIGHT, SCHEMAS, all_rows, read_file, write_file
from scanner.storage.delta import attempts, files_of
from scanner.storage.locations import table_uri
from schemas.tables import DECADES, NAMED_LISTS
from schemas.words import OF_PASS, Naming

CONTESTED = 0
SIDE_TABLES = (*(name for name in OF_A_NIGHT if name not in ("verdicts", "shards", *AFTER_VERDICTS)), "shards")
"""Tables whose rows belong to verdicts, by shard_id and scan_id. A scan makes those that it is configured to fill."""


def side_tables(tables: Tables) -> tuple[str, ...]:
    """Return the tables of SIDE_TABLES that exist."""
    return tuple(name for name in SIDE_TABLES if tables.has(name))


def run_number(scan_id: str) -> int:
    """Return the number of a run, for use as a version in Delta: 1 … 2^56, by SHA-256."""
    return int.from_bytes(hashlib.sha256(scan_id.encode()).digest()[:7], "big") + 1


def enter_side_rows(results: str | Tables, name: str, entries: Sequence[TableEntry], scan_id: str) -> None:
    """Commit a run's rows to one of SIDE_TABLES, besides those of other runs. Repeated calls change nothing.

    Raises:
        ScanFailed: other processes kept committing first, or the table cannot be written.
    """
    tables, number = kept_tables(results), run_number(scan_id)
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, kept_table = tables.now(name)
        names = {shard: f"{shard}:{scan_id}" for entry in entries for shard in entry.transactions}
        committed = tables.versions(name, [*names, *names.values()])
        missing = [entry for entry in entries if names[entry.transaction] not in committed]
        if not missing:
            return
        transactions = []
        for shard in (shard for entry in missing for shard in entry.transactions):
            transactions.append(Transaction(shard, CONTESTED if shard in committed else number))
            transactions.append(Transaction(names[shard], 1))
        files = [file for entry in missing for file in entry.files]
        earlier = kept_table.lasting(committed) if committed else {}
        if try_to_commit(tables.results, table, name, additions(files), transactions, earlier):
            return


def settle(results: str | Tables, shards: Iterable[str]) -> None:
    """Remove the rows of runs that lost from SIDE_TABLES, for shards that have verdicts.

    The run whose verdicts are committed has won.

    Raises:
        ScanFailed: other processes kept committing first, or a table cannot be written.
    """
    tables = kept_tables(results)
    winners = tables.now("verdicts")[1].lasting(shards)  # only lasting ones: no signature covers those that expire
    for name in side_tables(tables):
        _settle(tables, name, winners)


def drop_runs(tables: Tables, runs: Iterable[tuple[str, str]]) -> None:
    """Remove the rows of runs that died before their verdicts from SIDE_TABLES.

    Args:
        tables: tables of the results.
        runs: shard_id and scan_id of each run.

    Raises:
        ScanFailed: other processes kept committing first, or a table cannot be written.
    """
    dead = set(runs)
    for name in side_tables(tables) if dead else ():
        for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
            table, _ = tables.now(name)
            actions = _without(table, tables.results, name, {shard for shard, _ in dead}, dead.__contains__)
            if not actions or try_to_commit(tables.results, table, name, actions, []):
                break


def _settle(tables: Tables, name: str, winners: Mapping[str, int]) -> None:
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, kept_table = tables.now(name)
        numbers = kept_table.lasting(winners)
        conflicts = {shard: winners[shard] for shard, number in numbers.items() if winners[shard] != number}
        if not conflicts:
            return

        def is_loser(run: tuple[str, str], conflicts: Mapping[str, int] = conflicts) -> bool:
            return run[0] in conflicts and run_number(run[1]) != conflicts[run[0]]

        transactions = [Transaction(shard, winner) for shard, winner in conflicts.items()]
        actions = _without(table, tables.results, name, conflicts, is_loser)
        if try_to_commit(tables.results, table, name, actions, transactions, kept_table.lasting(conflicts)):
            return


def _without(
    table: DeltaTable, results: str, name: str, shards: Collection[str], goes: Callable[[tuple[str, str]], bool]
) -> list[AddAction | RemoveAction]:
    """Return the actions that remove the files with rows to drop, and add one file with their other rows.

    Args:
        table: the table as it is now.
        results: folder or URI.
        name: name of the table.
        shards: only rows of these shards are examined.
        goes: selects the rows to drop, by shard_id and scan_id.
    """
    shard_ids = pa.array(list(shards), pa.string())
    removals: list[AddAction | RemoveAction] = []
    batches: list[pa.RecordBatch] = []
    for file_name in files_of(table)["path"]:
        file = pq.ParquetFile(pa.BufferReader(read_file(results, name, file_name)))
        ids = file.read(["shard_id", "scan_id"])
        if not pc.any(pc.is_in(ids["shard_id"], shard_ids)).as_py():
            continue
        pairs = zip(ids["shard_id"].to_pylist(), ids["scan_id"].to_pylist(), strict=True)
        stays = [not goes(pair) for pair in pairs]
        if not all(stays):
            removals.append(RemoveAction(file_name, True, int(time.time() * 1000)))
            batches += all_rows(name, file).filter(pa.array(stays)).to_batches()
    file = write_file(results, name, batches)
    return [*removals, *additions([file] if file else [])]


EVERY_ROW = pl.lit(value=True)
"""Filter that keeps every row."""

_NAMES_NOBODY = [
    *map(str, (Naming.NONE, Naming.AMBIGUOUS, Naming.UNDECIDED, Naming.ASSUMED, Naming.UNPROVED, Naming.OTHER_REGISTRY))
]
"""Namings of rows in which no message may be named."""

_OF_SHARD = ["shard_id", "scan_id"]
_OF_RANGE = [*_OF_SHARD, "path"]
_DOCUMENT = ["path", "row"]
_ROW = [*_OF_SHARD, *_DOCUMENT]
_OTHER = ["shard_id", "scan_id", "keys", "file", "scanned_at"]


def shards(results: str) -> pl.LazyFrame:
    """Return every range of rows that was scanned and whose night was not dropped, as in schemas.tables.SHARDS.

    Raises:
        Refused: there are no results.
    """
    return ranges_ever(results).filter(pl.col("dropped_at").is_null())


def ranges_ever(results: str) -> pl.LazyFrame:
    """Return the ranges of all nights, including dropped nights, which have no other rows left. Raises as `shards`."""
    return read_whole(results, "shards")


def sets_of_keys(results: str) -> set[str]:
    """Return the digests of all sets of keys that any range of rows was scanned under. Raises as `shards` does."""
    return set(ranges_ever(results).select(pl.col("keys").unique()).collect(engine="streaming")["keys"])


def flags(results: str) -> pl.LazyFrame:
    """Return every flagged row, as in schemas.tables.FLAGS. Raises as `shards` does."""
    return read_whole(results, "flags")


def newest_flags(results: str, rows: pl.LazyFrame, wanted: pl.Expr) -> pl.LazyFrame:
    """Return the current rows of `flags`, one per document, as in schemas.tables.VERDICTS. Raises as `shards`.

    Args:
        results: folder or URI.
        rows: rows of `flags`.
        wanted: expression on columns of VERDICTS that selects the current rows to return. Other rows are not kept in
            memory, except those of documents that were scanned again and have a wanted row.
    """
    rows_scanned_once, rescanned = _standing(results, rows, wanted)
    columns = SCHEMAS["verdicts"].names
    return pl.concat(
        [rows_scanned_once.select(columns), _best(rescanned, pl.col("log10_p_global")).filter(wanted).select(columns)]
    )


def current_flags(results: str, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows of `flags` that no later scan took back, as in schemas.tables.FLAGS. Raises as `shards`."""
    return pl.concat(part.select(SCHEMAS["flags"].names) for part in _standing(results, rows, EVERY_ROW))


def _standing(results: str, rows: pl.LazyFrame, row_filter: pl.Expr) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Return the wanted rows of `flags` that no later range hides.

    Returns:
        The wanted rows of files that were scanned once.
        All rows of the documents with a wanted row, of files that were scanned again. Their column own_at is the time
        at
            which their range was scanned.
    """
    ranges = shards(results)
    # flags may be kept from dropped nights; the ranges of these nights hide nothing any more
    dropped_paths = rows.join(ranges.select("scan_id").unique(), on="scan_id", how="anti").select("path")
    rescanned_paths = pl.concat([_rescanned(ranges), dropped_paths]).unique()
    shard_ranges = ranges.select(*_OF_RANGE, own_file="file", own_at="scanned_at")
    some_row = rows.filter(row_filter).join(rescanned_paths, on="path", how="semi").select(_DOCUMENT).unique()
    rescanned_rows = rows.join(some_row, on=_DOCUMENT, how="semi").join(shard_ranges, on=_OF_RANGE, how="left")
    later_ranges = _later(rescanned_rows, ranges, read_whole(results, "quarantine"))
    newest_file = pl.col("other_file").sort_by("other_scanned_at", "other_scan_id").last()
    is_newest_file = (pl.col("other_file") == newest_file).fill_null(value=True)
    scan_keys = pl.col("keys").str.strip_suffix(OF_PASS)
    same_keys = (
        is_newest_file & ((pl.col("other_keys") == pl.col("keys")) | (pl.col("other_keys") == scan_keys))
    ).any()
    hides = same_keys | (newest_file != pl.col("own_file").first())
    hidden_rows = later_ranges.group_by(*_OF_SHARD, *_DOCUMENT).agg(hides=hides).filter("hides")
    current = rescanned_rows.join(hidden_rows, on=[*_OF_SHARD, *_DOCUMENT], how="anti")
    return rows.filter(row_filter).join(rescanned_paths, on="path", how="anti"), current


def newest_quarantine(results: str, wanted: pl.Expr) -> pl.LazyFrame:
    """Return the rows of `quarantine` on documents and files that no scan has read since, the newest of each.

    A row counts until a younger scan has a verdict on its document, or reads its file. Raises as `shards`.

    Args:
        results: folder or URI.
        wanted: expression on columns of QUARANTINE that selects the current rows to return.
    """
    ranges, rows = shards(results), read_whole(results, "quarantine")
    some_row = rows.filter(wanted).select(_DOCUMENT).unique()
    candidates = rows.join(some_row, on=_DOCUMENT, how="semi", nulls_equal=True)
    shard_ranges = ranges.select(*_OF_RANGE, own_at="scanned_at")
    # as for flags: age is that of the range's end
    documents = candidates.drop_nulls("row").join(shard_ranges, on=_OF_RANGE, how="left")
    scored = _later(documents, ranges, rows).select(*_OF_SHARD, *_DOCUMENT).unique()
    unscored = documents.join(scored, on=[*_OF_SHARD, *_DOCUMENT], how="anti")
    read = ranges.group_by("path").agg(read_at=pl.col("scanned_at").max())
    files = candidates.filter(pl.col("row").is_null()).join(read, on="path", how="left")
    unread = files.filter((pl.col("read_at") < pl.col("scanned_at")).fill_null(value=True)).drop("read_at")
    by_age = pl.concat([unscored, unread], how="diagonal").sort(pl.coalesce("own_at", "scanned_at"), "scan_id")
    newest = by_age.unique(_DOCUMENT, keep="last", maintain_order=True)
    return newest.filter(wanted).select(SCHEMAS["quarantine"].names)


def _later(rows: pl.LazyFrame, ranges: pl.LazyFrame, quarantine: pl.LazyFrame) -> pl.LazyFrame:
    """Pair each row with every younger range that has a result for its document.

    Args:
        rows: rows of documents, with own_at.
        ranges: rows of SHARDS.
        quarantine: rows of QUARANTINE. A range has no result for a document that it put there.
    """
    first, end = pl.col("first_row"), pl.col("first_row") + pl.col("rows")
    possible = ranges.filter(pl.col("rows") <= MOST_SHARDS * MAX_ROWS)  # the parts of more rows would not fit in memory
    other = possible.select(
        "path",
        "first_row",
        "rows",
        *(pl.col(name).alias(f"other_{name}") for name in _OTHER),
        part=pl.int_ranges(first // MAX_ROWS, (end - 1) // MAX_ROWS + 1),
    ).explode("part")  # a large file has many ranges, so only those near a row are compared
    scanned_at, other_at = pl.coalesce("own_at", "scanned_at"), pl.col("other_scanned_at")
    is_later = (other_at > scanned_at) | ((other_at == scanned_at) & (pl.col("other_scan_id") > pl.col("scan_id")))
    near = rows.with_columns(part=pl.col("row") // MAX_ROWS).join(other, on=["path", "part"])
    is_other_scan = pl.col("other_scan_id") != pl.col("scan_id")  # a scan and its own pass do not hide each other
    later_ranges = near.filter(is_other_scan & is_later & (pl.col("row") >= first) & (pl.col("row") < end))
    quarantine_rows = quarantine.select(other_shard_id="shard_id", other_scan_id="scan_id", row="row")
    return later_ranges.join(quarantine_rows, on=["other_shard_id", "other_scan_id", "row"], how="anti")


def newest_verdicts(results: str, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the current rows of `verdicts`, one per document. Raises as `shards`."""
    ranges, rows = shards(results), without_foreign_names(results, "verdicts", rows)
    paths = _rescanned(ranges)
    shard_ranges = ranges.select(*_OF_RANGE, "keys", "file", own_at="scanned_at")
    rescanned_rows = rows.join(paths, on="path", how="semi").join(shard_ranges, on=_OF_RANGE, how="left")
    exact_flags = without_foreign_names(results, "flags", flags(results)).select(*_ROW, "log10_p_global", *NAMED_LISTS)
    rescanned_rows = rescanned_rows.join(exact_flags, on=_ROW, how="left", suffix="_exact")
    rescanned_rows = rescanned_rows.with_columns(pl.coalesce(f"{name}_exact", name).alias(name) for name in NAMED_LISTS)
    by_age = rescanned_rows.sort(pl.coalesce("own_at", "scanned_at"), "scan_id")  # as for flags: by the range's end
    same_file = (pl.col("file") == pl.col("file").last().over(_DOCUMENT)).fill_null(value=True)
    newest = by_age.filter(same_file).unique([*_DOCUMENT, "keys"], keep="last", maintain_order=True)
    best = _best(newest, pl.coalesce("log10_p_global_exact", largest_p())).with_columns(map(_published, NAMED_LISTS))
    return pl.concat([rows.join(paths, on="path", how="anti"), best.select(SCHEMAS["verdicts"].names)])


def _published(name: str) -> pl.Expr:
    """Return a list of NAMED as `verdicts` has it, without p-values."""
    none = pl.element().struct.with_fields(log10_p_global=pl.lit(None, pl.Float64))
    return pl.col(name).list.eval(none)


def exact(results: str, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows of `verdicts`, with exact values from `flags` for flagged ones. Raises as `shards`."""
    flagged = pl.col("flagged") | of_canary()  # in `verdicts`, a canary's row is not flagged
    published = flagged & pl.col("score").is_null()
    flag_rows = flags(results).join(rows.filter(published).select(_ROW), on=_ROW, how="semi")
    return pl.concat([rows.filter(~published), flag_rows.select(SCHEMAS["verdicts"].names)])


def largest_p() -> pl.Expr:
    """Return log10 of the largest corrected p that a row of VERDICTS allows.

    It is p itself if the row states p, and null if it states neither p nor a class of p. `status` tells rows without a
    p-value from rows that were not tested.
    """
    return pl.coalesce("log10_p_global", pl.col("p_class") * -float(DECADES))


def _best(rows: pl.LazyFrame, p: pl.Expr) -> pl.LazyFrame:
    """Return the best row of each document, with the names of all its rows, as a scan under all their keys would."""
    # The smallest p-value is best, and any p-value is better than none. Of equal rows, the newest is best. Among
    # flagged
    # rows of a document, a row that may name somebody comes before all others.
    ranked = rows.sort(
        pl.col("naming").is_in(_NAMES_NOBODY),
        *(p, "scanned_at", "scan_id"),
        descending=[False, False, True, True],
        nulls_last=True,
    )
    entries = pl.concat_list(pl.col(column).fill_null([]) for column in NAMED_LISTS)
    rest = pl.all().exclude(*_DOCUMENT, *NAMED_LISTS, "entries").first()
    best = (
        ranked.with_columns(entries=entries)
        .group_by(_DOCUMENT, maintain_order=True)
        .agg(rest, pl.col("entries").list.explode(keep_nulls=False, empty_as_null=False))
    )
    first, further = (pl.col("entries").list.eval(_entries(further=further)) for further in (False, True))
    return best.with_columns(
        pl.when(names.list.len() > 0).then(names).alias(column)
        for column, names in zip(NAMED_LISTS, (first, further), strict=True)
    )


def _entries(*, further: bool) -> pl.Expr:
    """Return the entries of NAMED, each message of a key once, with the smallest p first.

    Args:
        further: False: the first entry of every user, and all entries without a user. True: all other entries.
    """
    entry = (
        pl.element().drop_nulls().sort_by(pl.element().drop_nulls().struct.field("log10_p_global"), maintain_order=True)
    )
    message = pl.struct(entry.struct.field("key_id"), entry.struct.field("message"))
    entry = entry.filter(message.is_first_distinct())
    user = entry.struct.field("user_id")
    first = user.is_null() | user.is_first_distinct()
    return entry.filter(~first if further else first)


def _rescanned(ranges: pl.LazyFrame) -> pl.LazyFrame:
    """Return the paths with two overlapping ranges. Only in these files can a row hide another."""
    reached = (pl.col("first_row") + pl.col("rows")).cum_max().shift().over("path")
    return ranges.sort("path", "first_row").filter(pl.col("first_row") < reached).select("path").unique()
