"""Nights of a few documents that were scanned again and again, drawn and written to the tables without a scan."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from scanner.input.shards import MAX_ROWS
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import write_file
from schemas.tables import FLAGS, QUARANTINE, SHARDS, VERDICTS
from tests.support.rows import NOW, filled, verdict


class Shard(NamedTuple):
    """A range of rows that a scan finished. log10_p: of each row from `first` on, None in quarantine; late: hours from
    scoring its rows to finishing it."""

    path: str
    keys: str
    file: str
    first: int
    log10_p: tuple[float | None, ...]
    late: int = 0


FLAGGED_AT = -6.0
SHARDS_OF_NIGHTS = st.lists(
    st.builds(
        Shard,
        path=st.sampled_from(["/in/a", "/in/b"]),
        keys=st.sampled_from(["one", "two", "three"]),
        file=st.sampled_from(["1:1", "2:2"]),
        first=st.sampled_from([0, 1, MAX_ROWS - 2, MAX_ROWS - 1]),
        log10_p=st.lists(st.sampled_from([None, -1.0, -2.0, -7.0, -8.0]), min_size=1, max_size=3).map(tuple),
        late=st.sampled_from([0, 0, 5]),
    ),
    max_size=6,
)


def ended(shard: Shard, scan: int) -> datetime:
    return NOW + timedelta(hours=scan + shard.late)


def rows_of(shard: Shard, scan: int) -> tuple[list[dict], list[dict], dict]:
    """Rows of verdicts and of quarantine, and the row of `shards`, of one shard that is all of a scan."""
    about = {"scan_id": f"scan {scan}", "shard_id": f"shard {scan}", "path": shard.path}
    at = NOW + timedelta(hours=scan)
    verdicts = [
        verdict(shard.first + i, log10_p_global=p, flagged=p <= FLAGGED_AT, scanned_at=at, **about)
        for i, p in enumerate(shard.log10_p)
        if p is not None
    ]
    lost = [filled(QUARANTINE, row=shard.first + i, **about) for i, p in enumerate(shard.log10_p) if p is None]
    span = {"first_row": shard.first, "rows": len(shard.log10_p), "scanned_at": ended(shard, scan)}
    return verdicts, lost, filled(SHARDS, dropped_at=None, keys=shard.keys, file=shard.file, **span, **about)


def write(folder: str, nights: Iterable[Shard]) -> None:
    open_tables(folder)
    for scan, shard in enumerate(nights):
        verdicts, lost, of_shard = rows_of(shard, scan)
        flags = [row | {"keys": shard.keys} for row in verdicts if row["flagged"]]
        tables = {"quarantine": (lost, QUARANTINE), "flags": (flags, FLAGS), "shards": ([of_shard], SHARDS)}
        for name, (rows, schema) in (tables | {"verdicts": (verdicts, VERDICTS)}).items():
            file = write_file(folder, name, [pa.RecordBatch.from_pylist(rows, schema)])
            commit(folder, name, [TableEntry(f"{scan}", (file,) if file else ())])
