"""Nights of three documents each, written without a scan as scans of earlier days would write them."""

from datetime import UTC, datetime, timedelta, tzinfo

import pyarrow as pa

from scanner.results.retention import IN_ORDER
from scanner.results.transactions import TableEntry, append_scan, commit
from scanner.storage.data_files import SCHEMAS, write_file
from schemas.tables import SCANS
from tests.support.rows import filled, verdict

TODAY = datetime.now(UTC)


class Today(datetime):
    """A clock that stands still, so that a test whose nights are some days old may run past midnight."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return TODAY.astimezone(tz)


def scan_of(night: int) -> str:
    return f"{TODAY - timedelta(days=night):%Y%m%dT%H%M%SZ}-0000000{night}"


def add_night(folder: str, night: int, path: str, flagged: int, keys: str = "set", log10_p: float = -1.0) -> None:
    """Write three documents of a file, of which the first `flagged` are flagged under a set of keys."""
    at = TODAY - timedelta(days=night)
    about = {"scan_id": scan_of(night), "shard_id": f"shard {night}", "path": path, "scanned_at": at}
    rows = [verdict(i, user="alice" if i < flagged else None, log10_p_global=log10_p, **about) for i in range(3)]
    span = {
        "first_row": 0,
        "rows": 3,
        "documents": 3,
        "quarantined": 0,
        "flagged": flagged,
        "night": f"{at:%Y-%m-%d}",
        "file": "1:1",
        "dropped_at": None,
    }
    tables = {
        "verdicts": rows,
        "flags": [row | {"keys": keys} for row in rows[:flagged]],
        "flag_texts": [filled(SCHEMAS["flag_texts"], **about, row=i) for i in range(flagged)],
        "shards": [filled(SCHEMAS["shards"], keys=keys, **span, **about)],
    }
    for name in IN_ORDER:
        told = {column: value for column, value in about.items() if column in SCHEMAS[name].names}
        enter(folder, name, f"shard {night}", tables.get(name, [filled(SCHEMAS[name], **told)]))
    append_scan(folder, filled(SCANS, scan_id=scan_of(night), keys=[]))  # a registry must have each key on record


def enter(folder: str, name: str, transaction: str, rows: list[dict]) -> None:
    file = write_file(folder, name, [pa.RecordBatch.from_pylist(rows, SCHEMAS[name])])
    commit(folder, name, [TableEntry(transaction, (file,) if file else ())])
