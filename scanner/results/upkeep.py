"""Upkeep of the tables of results, safe while scans run: small files are merged, and unneeded files removed.

Merging goes through commits of our own (scanner.results.rewriting). Delta's `optimize.compact` must not be used: two
at once, from one snapshot, both commit, and every row stands twice (deltalake 1.6.6). Transactions of shards are in
Delta's log, not in files: what is committed stays committed.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.results.data_files import ORPHANS_AFTER_HOURS, SCHEMAS, DataFile, write_file
from scanner.results.rewriting import Replacement, files_of, put_in_place
from scanner.results.settlement import tables_beside
from scanner.results.transactions import Tables
from scanner.storage.delta import open_table, table_uri
from scanner.storage.kept import KeptTable
from scanner.storage.locations import filesystem_of

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
    """Result for a table: how many files were removed, and how many came in their place."""

    table: str
    gone: int
    made: int


def compact(results: str) -> list[Upkeep]:
    """Merge the small files of every table; no row changes. Files that others take or replace are left alone.

    Raises:
        Refused: there are no results.
        ScanFailed: a table cannot be read or written, or others kept committing first.
    """
    return [_compact(results, name, KeptTable(table_uri(results, name))) for name in tables_there(results)]


def vacuum(results: str, retention_hours: int = MOST_HOURS) -> list[Upkeep]:
    """Remove the files that were never committed, or that were replaced, longer ago than the retention.

    Raises:
        Refused: there are no results, or a retention out of range.
        ScanFailed: a table cannot be read or written.
    """
    if not LEAST_HOURS <= retention_hours <= MOST_HOURS:
        raise Refused(f"vacuum: a retention of {retention_hours} hours; {LEAST_HOURS} to {MOST_HOURS} are allowed")
    done = []
    for name in tables_there(results):
        try:
            gone = open_table(table_uri(results, name)).vacuum(
                retention_hours, dry_run=False, enforce_retention_duration=False, full=True
            )
        except (DeltaError, OSError) as error:
            raise ScanFailed(f"vacuum: table {table_uri(results, name)} cannot be cleaned: {error}") from None
        done.append(Upkeep(name, len(gone), 0))
    return done


def tables_there(results: str) -> list[str]:
    """Names of the tables in a folder of results.

    Raises:
        Refused: there are none.
    """
    found = [name for name in SCHEMAS if DeltaTable.is_deltatable(table_uri(results, name))]
    if not found:
        raise Refused(
            f"results: there are no tables in {results}; run `brickscan scan` or `brickscan calibrate` "
            "first, or name another folder"
        )
    return found


def merge_bookkeeping(results: str) -> None:
    """Merge the small files of the tables beside verdicts once these are many. Raises as `compact`.

    Each flush leaves a few files in them, and a scan reads all of `shards` when it begins.
    """
    for name in tables_beside(Tables(results)):
        kept = KeptTable(table_uri(results, name))
        if sum(size < MERGED_BYTES // 2 for size in _sizes(kept.now()).values()) >= MANY_FILES:
            _compact(results, name, kept)


def _compact(results: str, name: str, kept: KeptTable) -> Upkeep:
    """Merge the groups of a table, many in a commit: each commit costs as much as the table's log is long."""
    done = Upkeep(name, 0, 0)
    groups = iter(list(_small(_sizes(kept.now()))))
    while some := list(islice(groups, GROUPS_A_COMMIT)):
        files = [(tuple(group), _merge(results, name, group, kept)) for group in some]
        merged = [Replacement(group, file) for group, file in files if file]
        placed = put_in_place(results, name, kept, merged, merged=True)
        done = Upkeep(name, done.gone + sum(len(each.parts) for each in placed), done.made + len(placed))
    return done


def _sizes(table: DeltaTable) -> dict[str, int]:
    """Names of a table's files with their sizes, oldest first."""
    return dict(files_of(table).select("path", "size_bytes").iter_rows())


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


def _merge(results: str, name: str, group: list[str], kept: KeptTable) -> DataFile | None:
    """One file of the rows of many, not part of the table yet; None: one of them was taken away meanwhile."""
    uri = table_uri(results, name)
    filesystem, folder = filesystem_of(uri)
    batches: list[pa.RecordBatch] = []
    for path in group:
        try:
            with filesystem.open_input_file(f"{folder}/{path}") as source:
                rows = pq.read_table(source, schema=SCHEMAS[name], use_threads=False)
        except (pa.ArrowException, OSError) as error:  # stores say in different words that it is gone
            if path not in _sizes(kept.now()):
                return None
            what = f"{uri}/{path}, which the table needs, cannot be read: {in_a_line(error)}"
            raise ScanFailed(f"results: {what}; restore it from a copy") from None
        batches += rows.to_batches()
    return write_file(results, name, batches)
