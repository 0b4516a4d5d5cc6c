"""Upkeep of the tables of results, safe while scans run: small files are merged, and files that nothing needs removed.

Merging goes through commits of our own. Delta's `optimize.compact` must not be used: two at once, from one snapshot,
both commit, and every row stands twice (deltalake 1.6.6). Here a merged file takes the place of its parts only through
a snapshot that holds all of these, and Delta refuses the commit when anyone committed since that snapshot was read. So
of two who merge the same files one finds them gone, and so does one whose files an erasure wrote anew. Transactions of
shards are in Delta's log, not in files: what is committed stays committed.
"""

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from scanner.errors import Refused, ScanFailed
from scanner.results.tables import ORPHANS_AFTER_HOURS, SCHEMAS, DataFile, open_tables, write_file
from scanner.storage.delta import attempts, table_uri
from scanner.storage.locations import filesystem_of

MERGED_BYTES = 64 * 2**20
"""Files are merged up to this size; one of half the size is left as it is."""

LEAST_HOURS, MOST_HOURS = ORPHANS_AFTER_HOURS, 168
"""Retention: a file that is younger may be of a shard that is not committed yet, or be read by a query that began
before it was replaced; after a week, Delta forgets when a file was replaced, and could not keep it for longer."""


class Upkeep(NamedTuple):
    """What was done to a table: how many files went, and how many came in their place."""

    table: str
    gone: int
    made: int


def compact(results: str) -> list[Upkeep]:
    """Merge the small files of every table; rows stay what they are. Files that others take or replace are left alone.

    Raises:
        Refused: there are no results.
        ScanFailed: a table cannot be read or written, or others kept committing first.
    """
    names = _tables(results)
    open_tables(results, names)  # merged files have every column of this version
    return [_compact(results, name) for name in names]


def vacuum(results: str, retention_hours: int = MOST_HOURS) -> list[Upkeep]:
    """Remove the files that were never committed, or that were replaced, longer ago than the retention.

    Raises:
        Refused: there are no results, or a retention out of range.
        ScanFailed: a table cannot be read or written.
    """
    if not LEAST_HOURS <= retention_hours <= MOST_HOURS:
        raise Refused(f"vacuum: a retention of {retention_hours} hours; {LEAST_HOURS} to {MOST_HOURS} are allowed")
    done = []
    for name in _tables(results):
        try:
            gone = DeltaTable(table_uri(results, name)).vacuum(
                retention_hours, dry_run=False, enforce_retention_duration=False, full=True
            )
        except (DeltaError, OSError) as error:
            raise ScanFailed(f"vacuum: table {table_uri(results, name)} cannot be cleaned: {error}") from None
        done.append(Upkeep(name, len(gone), 0))
    return done


def _tables(results: str) -> list[str]:
    found = [name for name in SCHEMAS if DeltaTable.is_deltatable(table_uri(results, name))]
    if not found:
        raise Refused(
            f"results: there are no tables in {results}; run `brickscan scan` or `brickscan calibrate` "
            "first, or name another folder"
        )
    return found


def _compact(results: str, name: str) -> Upkeep:
    gone = made = 0
    for group in _small(_sizes(DeltaTable(table_uri(results, name)))):
        merged = _merge(results, name, group)
        if merged is None:
            continue
        if _put_in_place(results, name, group, merged):
            gone, made = gone + len(group), made + 1
        else:
            filesystem, folder = filesystem_of(table_uri(results, name))
            filesystem.delete_file(f"{folder}/{merged.name}")  # it may hold a name that was erased meanwhile
    return Upkeep(name, gone, made)


def _sizes(table: DeltaTable) -> dict[str, int]:
    """Names of a table's files with their sizes, oldest first."""
    columns = pa.table(table.get_add_actions()).select(["modification_time", "path", "size_bytes"])
    return {path: size for _, path, size in sorted(zip(*columns.to_pydict().values(), strict=True))}


def _small(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Groups of at least two small files, each of about MERGED_BYTES."""
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


def _merge(results: str, name: str, group: list[str]) -> DataFile | None:
    """One file of the rows of many, not part of the table yet; None: one of them was taken away meanwhile."""
    uri = table_uri(results, name)
    filesystem, folder = filesystem_of(uri)
    batches: list[pa.RecordBatch] = []
    for path in group:
        try:
            with filesystem.open_input_file(f"{folder}/{path}") as source:
                rows = pq.read_table(source, schema=SCHEMAS[name], use_threads=False)
        except FileNotFoundError:
            if path not in _sizes(DeltaTable(uri)):
                return None
            raise ScanFailed(f"results: {uri}/{path} is gone, and the table needs it: restore it from a copy") from None
        except (pa.ArrowException, OSError) as error:
            raise ScanFailed(f"results: {uri}/{path} cannot be read: {error}") from None
        batches += rows.to_batches()
    return write_file(results, name, batches)


def _put_in_place(results: str, name: str, group: list[str], merged: DataFile) -> bool:
    """Commit that a merged file stands for its parts; False: not all of them are in the table any more."""
    uri = table_uri(results, name)
    now = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [RemoveAction(path, False, now) for path in group]
    actions.append(AddAction(merged.name, merged.size, {}, now, False, merged.stats))
    for _ in attempts(f"commits to {uri}"):
        table = DeltaTable(uri)
        present = _sizes(table)
        if merged.name in present:  # a commit of ours whose success was not told
            break
        if not present.keys() >= set(group):
            return False
        try:
            properties = CommitProperties(max_commit_retries=0)
            table.create_write_transaction(actions, "append", SCHEMAS[name], commit_properties=properties)
        except CommitFailedError:
            continue
        except (DeltaError, OSError) as error:
            raise ScanFailed(f"results: table {uri} cannot be written: {error}") from None
        break
    return True
