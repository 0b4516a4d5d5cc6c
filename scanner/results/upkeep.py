"""Upkeep of the tables of results, safe while scans run: files are merged, changed and removed, and no row is doubled.

A file never changes, so whoever looks at one looks once. New files take the place of old ones through a snapshot that
holds all of these, and Delta refuses the commit when anyone committed since that snapshot was read: then the same files
are offered again, which takes a moment, so that it succeeds even while a scan commits all the time. When two replace
the same file, one finds it gone, and looks at its replacement.

Delta's `optimize.compact` must not be used: two at once, from one snapshot, both commit, and every row stands twice
(deltalake 1.6.6). Transactions of shards are in Delta's log, not in files: what is committed stays committed.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.results.current_rows import side_tables
from scanner.results.transactions import ORPHANS_AFTER_HOURS, Tables, additions, faults_named, try_to_commit
from scanner.storage.data_files import SCHEMAS, DataFile, all_rows, read_file, write_file
from scanner.storage.delta import attempts, files_of, removed_files
from scanner.storage.locations import delete_files, filesystem_of, refuse_links_of_table, table_uri

FILES_AT_ONCE = 16
"""Files that are looked at side by side: on an object store each look is a few requests."""

FILES_A_COMMIT = 64
"""Files that are replaced at once: each commit costs as much as the table's log is long, and an interruption loses
these.
"""

BYTES_A_COMMIT = 2**27
"""Bytes of the files of a commit, which take some times as much memory."""


class Replacement(NamedTuple):
    """Files of a table and their replacement.

    parts: names of the files.
    file: a file that is no part of the table yet; None: nothing takes their place.
    """

    parts: tuple[str, ...]
    file: DataFile | None


class RewrittenFile(NamedTuple):
    """New content of a file.

    rows: how many rows were removed or changed.
    table: all rows of the replacement.
    """

    rows: int
    table: pa.Table


def put_in_place(tables: Tables, name: str, replacements: Sequence[Replacement], *, merged: bool) -> list[Replacement]:
    """Commit that files replace others.

    Files that were not placed are deleted: they may hold a name that was erased meanwhile. Where the result of a commit
    is unknown they stay, for scanner.results.upkeep.vacuum: a store may carry it out after its answer was lost.

    Args:
        tables: of the results.
        name: of the table.
        replacements: to be placed.
        merged: the rows are the same, which readers of Delta's change feed are told.

    Returns:
        What was placed, without replacements of files that are gone meanwhile.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be read or written.
    """
    offer: list[Replacement] = []
    answered = True
    try:
        for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
            table, _ = tables.now(name)
            present = set(files_of(table)["path"])
            if offer and present.isdisjoint(_parts(offer)) and _files(offer) <= present:
                break  # a commit of ours whose answer was lost
            offer = [replacement for replacement in replacements if present.issuperset(replacement.parts)]
            if not offer:
                break
            answered = False
            placed = try_to_commit(tables.results, table, name, _actions(offer, merged=merged), [])
            answered = True
            if placed:
                break
    finally:
        if answered:
            _delete_unplaced(tables, name, replacements)
    return offer


def rewrite(
    results: str,
    name: str,
    change: Callable[[pq.ParquetFile], RewrittenFile | None],
    may_hold: Callable[[pl.DataFrame], pl.DataFrame] = lambda files: files,
    watch: Callable[[int, int], None] = lambda done, files: None,
) -> int:
    """Go through all files of a table, new ones included, and replace those that are to change.

    A second call goes on where an interrupted one stopped.

    Args:
        results: folder or URI.
        name: of the table.
        change: gives the new content of an open file; None: the file stays. It is called in several threads.
        may_hold: filters the files of `files_of` that are looked at; default: all.
        watch: called now and then with how many files were looked at, and how many there are to be looked at.

    Returns:
        How many rows were removed or changed.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be read or written.
    """
    tables, seen_paths, rows, done = Tables(results), set[str](), 0, 0
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        while not (unseen_files := _unseen(may_hold(files_of(tables.now(name)[0])), seen_paths)).is_empty():
            total = len(seen_paths) + unseen_files.height
            for paths in _groups(unseen_files):
                rewritten = pool.map(lambda path: _rewritten(results, name, path, change), paths)
                changed = {path: anew for path, anew in zip(paths, rewritten, strict=True) if anew}
                files = {path: write_file(results, name, anew.table.to_batches()) for path, anew in changed.items()}
                replaced = [Replacement((path,), file) for path, file in files.items()]
                placed = put_in_place(tables, name, replaced, merged=False)
                rows += sum(changed[replacement.parts[0]].rows for replacement in placed)
                seen_paths |= {*paths, *(replacement.file.name for replacement in placed if replacement.file)}
                done += len(paths)
                watch(done, max(total, done))
    return rows


def keep_rows(name: str, file: pq.ParquetFile, kept: pl.Series) -> RewrittenFile | None:
    """Return a file of a table with some of its rows; None: all of them stay, and the file as it is.

    Args:
        name: of the table.
        file: the open file.
        kept: whether each row stays, bool[rows].
    """
    if kept.all():
        return None
    rows = all_rows(name, file).filter(kept.to_arrow()) if kept.any() else pa.table({})
    return RewrittenFile(int((~kept).sum()), rows)


def _unseen(files: pl.DataFrame, seen_paths: set[str]) -> pl.DataFrame:
    return files.filter(~pl.col("path").is_in(seen_paths))


def _groups(files: pl.DataFrame) -> Iterator[list[str]]:
    """Yield the names of files that are looked at, and replaced, together."""
    group: list[str] = []
    total = 0
    for path, size in files.select("path", "size_bytes").iter_rows():
        if group and (len(group) == FILES_A_COMMIT or total + size > BYTES_A_COMMIT):
            yield group
            group, total = [], 0
        group.append(path)
        total += size
    if group:
        yield group


def _rewritten(
    results: str, name: str, path: str, change: Callable[[pq.ParquetFile], RewrittenFile | None]
) -> RewrittenFile | None:
    """Return the new content of a file; None: it stays, or others replaced it meanwhile.

    Raises:
        ScanFailed: a file that the table needs cannot be read.
    """
    uri = table_uri(results, name)
    try:
        return change(pq.ParquetFile(pa.BufferReader(read_file(results, name, path))))
    except (OSError, pa.ArrowException) as error:
        if path not in set(files_of(Tables(results).now(name)[0])["path"]):  # others replaced it meanwhile
            return None
        raise ScanFailed(f"results: {uri}/{path} cannot be read: {in_a_line(error)}") from None


def _actions(replacements: Sequence[Replacement], *, merged: bool) -> list[AddAction | RemoveAction]:
    now = int(time.time() * 1000)
    removals = [RemoveAction(path, not merged, now) for replacement in replacements for path in replacement.parts]
    return [
        *removals,
        *additions((replacement.file for replacement in replacements if replacement.file), changes=not merged),
    ]


def _parts(replacements: Sequence[Replacement]) -> set[str]:
    return {path for replacement in replacements for path in replacement.parts}


def _files(replacements: Sequence[Replacement]) -> set[str]:
    return {replacement.file.name for replacement in replacements if replacement.file}


def _delete_unplaced(tables: Tables, name: str, replacements: Sequence[Replacement]) -> None:
    filesystem, folder = filesystem_of(table_uri(tables.results, name))
    for unplaced in _files(replacements) - set(files_of(tables.now(name)[0])["path"]):
        with contextlib.suppress(FileNotFoundError):  # placed, then replaced and deleted by others
            filesystem.delete_file(f"{folder}/{unplaced}")


MERGED_BYTES = 64 * 2**20
"""Largest size of a merged file; a file of half the size is left as it is."""

GROUPS_A_COMMIT = 50
"""Groups of merged files in a commit."""

MANY_FILES = 64
"""Small files of a table beside verdicts at which the next scan merges them."""

LEAST_HOURS, MOST_HOURS = ORPHANS_AFTER_HOURS, 168
"""Limits of the retention: a younger file may belong to a shard that is not committed yet, or be read by a query that
began before it was replaced; after a week, Delta forgets when a file was replaced, and could not keep it for longer.
"""


class Upkeep(NamedTuple):
    """Result for a table.

    table: its name.
    gone: how many files were removed.
    made: how many files came in their place.
    """

    table: str
    gone: int
    made: int


def compact(results: str) -> list[Upkeep]:
    """Merge the small files of every table; no row changes. Files that others take or replace are left alone.

    Raises:
        Refused: there are no results.
        ScanFailed: a table cannot be read or written, or others kept committing first.
    """
    tables = Tables(results)
    return [_compact(tables, name) for name in existing_tables(results)]


def vacuum(results: str, retention_hours: int = MOST_HOURS) -> list[Upkeep]:
    """Remove the files that were never committed, or that were replaced, longer ago than the retention.

    Raises:
        Refused: there are no results, a retention out of range, or a table's folder is a link.
        ScanFailed: a table cannot be read or written.
    """
    if not LEAST_HOURS <= retention_hours <= MOST_HOURS:
        raise Refused(f"vacuum: a retention of {retention_hours} hours; {LEAST_HOURS} to {MOST_HOURS} are allowed")
    names = existing_tables(results)
    return [Upkeep(name, delete_unneeded(results, name, retention_hours, retention_hours), 0) for name in names]


def delete_unneeded(results: str, name: str, replaced_hours: int, orphan_hours: int) -> int:
    """Delete the files of a table that it needs no more.

    Delta's own `vacuum` must not be used: it follows links, and deletes what lies behind them (deltalake 1.6.6).

    Args:
        results: folder or URI.
        name: of the table.
        replaced_hours: hours since a file was replaced.
        orphan_hours: hours since a file was written that was never committed, or replaced so long ago that the log has
            forgotten it.

    Returns:
        The number of files.

    Raises:
        ScanFailed: the table cannot be read, or a file cannot be deleted.
    """
    uri, now = table_uri(results, name), time.time()

    def unneeded(changed_at: Mapping[str, float]) -> list[str]:
        table, _ = Tables(results).now(name)  # after the files were listed: what was committed meanwhile is needed
        replaced_at, files = removed_files(table), changed_at.keys() - set(files_of(table)["path"])
        old = {file for file in files - replaced_at.keys() if changed_at[file] <= now - orphan_hours * 3600}
        old |= {file for file in files & replaced_at.keys() if replaced_at[file] <= now - replaced_hours * 3600}
        return [file for file in old if file.startswith("part-") and file.endswith(".parquet")]

    try:
        return delete_files(uri, unneeded)
    except (DeltaError, OSError) as error:
        raise ScanFailed(f"results: files of {uri} cannot be deleted: {in_a_line(error)}") from None


def existing_tables(results: str) -> list[str]:
    """Return the names of the tables in a folder of results.

    Raises:
        Refused: there are none, or one is a link.
        ScanFailed: the folder of one cannot be read.
    """
    with faults_named(results):
        names = [name for name in SCHEMAS if DeltaTable.is_deltatable(table_uri(results, name))]
    if not names:
        raise Refused(
            f"results: there are no tables in {results}; run `brickscan scan` or `brickscan calibrate` "
            "first, or name another folder"
        )
    for name in names:
        refuse_links_of_table(table_uri(results, name))
    return names


def merge_bookkeeping(results: str) -> None:
    """Merge the small files of the tables beside verdicts once these are many. Raises as `compact`.

    Each flush leaves a few files in them, and a scan reads all of `shards` when it begins.
    """
    tables = Tables(results)
    for name in side_tables(tables):
        if sum(size < MERGED_BYTES // 2 for size in _sizes(tables.now(name)[0]).values()) >= MANY_FILES:
            _compact(tables, name)


def _compact(tables: Tables, name: str) -> Upkeep:
    """Merge the groups of a table, many in a commit: each commit costs as much as the table's log is long."""
    done = Upkeep(name, 0, 0)
    groups = iter(list(_small(_sizes(tables.now(name)[0]))))
    while batch := list(islice(groups, GROUPS_A_COMMIT)):
        files = [(tuple(group), _merge(tables, name, group)) for group in batch]
        merged = [Replacement(group, file) for group, file in files if file]
        placed = put_in_place(tables, name, merged, merged=True)
        done = Upkeep(name, done.gone + sum(len(replacement.parts) for replacement in placed), done.made + len(placed))
    return done


def _sizes(table: DeltaTable) -> dict[str, int]:
    return dict(files_of(table).select("path", "size_bytes").iter_rows())


def _small(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield groups of at least two small files, each group of about MERGED_BYTES."""
    group: list[str] = []
    total = 0
    for path, size in sizes.items():
        if size >= MERGED_BYTES // 2:
            continue
        group.append(path)
        total += size
        if total >= MERGED_BYTES:
            yield group
            group, total = [], 0
    if len(group) > 1:
        yield group


def _merge(tables: Tables, name: str, group: list[str]) -> DataFile | None:
    """Write one file of the rows of many, not part of the table yet; None: one of them was taken away meanwhile.

    Raises:
        ScanFailed: a file that the table needs cannot be read.
    """
    uri = table_uri(tables.results, name)
    batches: list[pa.RecordBatch] = []
    for path in group:
        try:
            source = pa.BufferReader(read_file(tables.results, name, path))
            rows = pq.read_table(source, schema=SCHEMAS[name], use_threads=False)
        except (pa.ArrowException, OSError) as error:  # stores say in different words that it is gone
            if path not in _sizes(tables.now(name)[0]):
                return None
            fault = f"{uri}/{path}, which the table needs, cannot be read: {in_a_line(error)}"
            raise ScanFailed(f"results: {fault}; restore it from a copy") from None
        batches += rows.to_batches()
    return write_file(tables.results, name, batches)
