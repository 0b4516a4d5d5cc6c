"""Maintain the tables of results while scans run: merge, change and remove files without doubling a row.

A file never changes, so each file needs to be checked only once. New files replace old ones through a snapshot with all
of the old files. Delta refuses the commit if anybody committed since that snapshot was read. Then the same files are
offered again. That takes only a moment, so it succeeds even while a scan commits all the time. If two processes replace
the same file, one of them finds it gone, and checks its replacement.

Do not use Delta's `optimize.compact`: two calls at once, from one snapshot, both commit, and then every row exists
twice (deltalake 1.6.6). Transactions of shards are in Delta's log, not in files, so committed shards stay committed.
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
"""Number of files that are checked in parallel. On an object store each check is a few requests."""

FILES_A_COMMIT = 64
"""Number of files that are replaced in one commit.

The cost of each commit grows with the table's log. An interruption loses the files of one commit.
"""

BYTES_A_COMMIT = 2**27
"""Largest size of the files of a commit, in bytes. They take several times as much memory."""


class Replacement(NamedTuple):
    """Files of a table and their replacement.

    parts: names of the files.
    file: a file that is not part of the table yet. None: nothing replaces them.
    """

    parts: tuple[str, ...]
    file: DataFile | None


class RewrittenFile(NamedTuple):
    """New content of a file.

    rows: number of rows that were removed or changed.
    table: all rows of the replacement.
    """

    rows: int
    table: pa.Table


def put_in_place(tables: Tables, name: str, replacements: Sequence[Replacement], *, merged: bool) -> list[Replacement]:
    """Commit that files replace others.

    New files that could not be placed are deleted, because they may contain a name that was erased meanwhile. If the
    result of a commit is unknown, they stay for scanner.results.upkeep.vacuum: a store may carry a commit out although
    its answer was lost.

    Args:
        tables: tables of the results.
        name: name of the table.
        replacements: the replacements.
        merged: whether the rows are the same. Readers of Delta's change feed are told.

    Returns:
        The replacements that were placed. Those of files that are gone meanwhile are left out.

    Raises:
        ScanFailed: other processes kept committing first, or the table cannot be read or written.
    """
    offer: list[Replacement] = []
    answered = True
    try:
        for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
            table, _ = tables.now(name)
            present = set(files_of(table)["path"])
            if offer and present.isdisjoint(_parts(offer)) and _files(offer) <= present:
                break  # our own commit had succeeded, and its answer was lost
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
    """Check all files of a table, including files that are added meanwhile, and replace those that `change` changes.

    A second call continues where an interrupted one stopped.

    Args:
        results: folder or URI.
        name: name of the table.
        change: returns the new content of an open file. None: the file stays. It is called in several threads.
        may_hold: selects the rows of `files_of` whose files are checked. By default, all.
        watch: called now and then with the number of checked files, and of all files to check.

    Returns:
        The number of rows that were removed or changed.

    Raises:
        ScanFailed: other processes kept committing first, or the table cannot be read or written.
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
    """Return a file of a table with only some of its rows. None: all of them stay, so the file stays as it is.

    Args:
        name: name of the table.
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
    """Yield names of files in groups that are checked and replaced together."""
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
    """Return the new content of a file. None: it stays, or another process has replaced it.

    Raises:
        ScanFailed: a file that the table needs cannot be read.
    """
    uri = table_uri(results, name)
    try:
        return change(pq.ParquetFile(pa.BufferReader(read_file(results, name, path))))
    except (OSError, pa.ArrowException) as error:
        if path not in set(files_of(Tables(results).now(name)[0])["path"]):  # another process has replaced it
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
        with contextlib.suppress(FileNotFoundError):  # placed, then replaced and deleted by another process
            filesystem.delete_file(f"{folder}/{unplaced}")


MERGED_BYTES = 64 * 2**20
"""Largest size of a merged file, in bytes. A file of at least half this size is left as it is."""

GROUPS_A_COMMIT = 50
"""Number of groups of merged files in a commit."""

MANY_FILES = 64
"""Number of small files of a table other than verdicts. From this number on, the next scan merges them."""

LEAST_HOURS, MOST_HOURS = ORPHANS_AFTER_HOURS, 168
"""Limits of the retention.

A younger file may belong to a shard that is not committed yet, or a query that began before the file was replaced may
still read it. After a week, Delta forgets when a file was replaced, so it could not keep it for longer.
"""


class Upkeep(NamedTuple):
    """Result for a table.

    table: name of the table.
    gone: number of files that were removed.
    made: number of files that replaced them.
    """

    table: str
    gone: int
    made: int


def compact(results: str) -> list[Upkeep]:
    """Merge the small files of every table, without changing a row. Files that other processes replace are left alone.

    Raises:
        Refused: there are no results.
        ScanFailed: a table cannot be read or written, or other processes kept committing first.
    """
    tables = Tables(results)
    return [_compact(tables, name) for name in existing_tables(results)]


def vacuum(results: str, retention_hours: int = MOST_HOURS) -> list[Upkeep]:
    """Remove files that were never committed, or that were replaced longer ago than the retention.

    Raises:
        Refused: there are no results, the retention is out of range, or a table's folder is a link.
        ScanFailed: a table cannot be read or written.
    """
    if not LEAST_HOURS <= retention_hours <= MOST_HOURS:
        raise Refused(f"vacuum: a retention of {retention_hours} hours; {LEAST_HOURS} to {MOST_HOURS} are allowed")
    names = existing_tables(results)
    return [Upkeep(name, delete_unneeded(results, name, retention_hours, retention_hours), 0) for name in names]


def delete_unneeded(results: str, name: str, replaced_hours: int, orphan_hours: int) -> int:
    """Delete the files that a table does not need any more.

    Do not use Delta's own `vacuum`: it follows links, and deletes the files behind them (deltalake 1.6.6).

    Args:
        results: folder or URI.
        name: name of the table.
        replaced_hours: hours since a file was replaced.
        orphan_hours: hours since a file was written that was never committed, or that was replaced so long ago that the
            log has forgotten it.

    Returns:
        The number of deleted files.

    Raises:
        ScanFailed: the table cannot be read, or a file cannot be deleted.
    """
    uri, now = table_uri(results, name), time.time()

    def unneeded(changed_at: Mapping[str, float]) -> list[str]:
        table, _ = Tables(results).now(name)  # read after the files were listed, so newer commits keep their files
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
        ScanFailed: the folder of a table cannot be read.
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
    """Merge the small files of the tables other than verdicts, once there are many. Raises as `compact`.

    Each flush leaves a few files in them, and a scan reads all of `shards` when it begins.
    """
    tables = Tables(results)
    for name in side_tables(tables):
        if sum(size < MERGED_BYTES // 2 for size in _sizes(tables.now(name)[0]).values()) >= MANY_FILES:
            _compact(tables, name)


def _compact(tables: Tables, name: str) -> Upkeep:
    """Merge the groups of a table, many in one commit, because the cost of a commit grows with the table's log."""
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
    """Write the rows of many files into one, which is not part of the table yet. None: one of them is gone meanwhile.

    Raises:
        ScanFailed: a file that the table needs cannot be read.
    """
    uri = table_uri(tables.results, name)
    batches: list[pa.RecordBatch] = []
    for path in group:
        try:
            source = pa.BufferReader(read_file(tables.results, name, path))
            rows = pq.read_table(source, schema=SCHEMAS[name], use_threads=False)
        except (pa.ArrowException, OSError) as error:  # each store has its own words for a missing file
            if path not in _sizes(tables.now(name)[0]):
                return None
            fault = f"{uri}/{path}, which the table needs, cannot be read: {in_a_line(error)}"
            raise ScanFailed(f"results: {fault}; restore it from a copy") from None
        batches += rows.to_batches()
    return write_file(tables.results, name, batches)
