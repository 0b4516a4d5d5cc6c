"""Rows of verdicts and of any table, written and read as a scan does, without a scan."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa

from scanner.controls.reserved.reserved_counts import ReservedCounts, count_reserved
from scanner.controls.traffic import Traffic, measure
from scanner.results.transactions import TableEntry, commit
from scanner.storage.data_files import write_file
from scanner.storage.locations import table_uri
from schemas.registry import MasterKey, TokenizerFile, is_reserved
from schemas.tables import FLAGS, SCANS, SHARDS, VERDICTS

NOW = datetime(2026, 8, 31, 3, 0, tzinfo=UTC)

GUMBEL_KEY = MasterKey(
    key_id="k",
    format="gumbel",
    parameters={"window": 4},
    messages=1000,
    tokenizer=TokenizerFile(file="t.json", sha256="a" * 64),
    secret="env:SECRET",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def verdict(row: int, path: str = "/in/a", user: str | None = None, age: int = 0, **changes) -> dict:
    return {
        "scan_id": "scan",
        "shard_id": "shard",
        "path": path,
        "row": row,
        "text_sha256": bytes(32),
        "text_id": changes.get("text_sha256", bytes(32)),
        "p_class": None,
        "status": "scored",
        "account_id": None,
        "tokens": 10,
        "scored": 8,
        "key_id": "key",
        "message": 3,
        "user_id": user,
        "naming": "named" if user else "none",
        "score": 1.5,
        "log10_p": -2.0,
        "log10_p_global": -1.0,
        "messages_tested": 10,
        "correction": 1.0,
        "flagged": user is not None,
        "scanned_at": NOW - timedelta(days=age),
        **changes,
    }


AS_SCANS_WRITE = {
    "trial": False, "dedup": "ngram", "false_positive_rate": 1e-6, "misnaming_rate": None, "night": "2026-08-31",
}  # fmt: skip
"""Values of SCANS that are looked at before any other."""


def filled(schema: pa.Schema, **values: object) -> dict[str, object]:
    """A row of a table, with something in every column."""

    def something(kind: pa.DataType) -> object:
        if pa.types.is_list(kind):
            return [something(kind.value_type)] * 2
        if pa.types.is_struct(kind):
            return {field.name: something(field.type) for field in kind}
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return bytes(32)
        return NOW if pa.types.is_timestamp(kind) else pa.scalar(3).cast(kind).as_py()

    row = {field.name: something(field.type) for field in schema}
    return row | (AS_SCANS_WRITE if schema == SCANS else {"events": None} if schema == SHARDS else {}) | values


def entry(folder: str, transaction: str, rows: list[dict]) -> TableEntry:
    file = write_file(folder, "verdicts", [pa.RecordBatch.from_pylist(rows, VERDICTS)])
    assert file is not None
    return TableEntry(transaction, (file,))


def add(folder: str, transaction: str, rows: list[dict]) -> set[str]:
    return commit(folder, "verdicts", [entry(folder, transaction, rows)])


def add_scanned(folder: str, transaction: str, rows: list[dict], **changes: object) -> None:
    """Add verdicts with their rows of `flags` and `shards`, as a scan does. changes: columns of the latter."""
    ranges: dict[tuple[str, str, str], list[dict]] = {}
    for row in rows:
        ranges.setdefault((row["scan_id"], row["shard_id"], row["path"]), []).append(row)
    beside = []
    for (scan_id, shard_id, path), of_range in ranges.items():
        first, last = (pick(row["row"] for row in of_range) for pick in (min, max))
        about = {"scan_id": scan_id, "shard_id": shard_id, "path": path, "keys": scan_id, "file": None}
        times = [row["scanned_at"] for row in of_range]
        span = {"first_row": first, "rows": last - first + 1, "began_at": min(times), "scanned_at": max(times)}
        beside.append(filled(SHARDS, dropped_at=None, **(about | span | changes)))
    flags = [row | {"keys": changes.get("keys", row["scan_id"])} for row in rows if row["flagged"]]
    for name, found, schema in (("flags", flags, FLAGS), ("shards", beside, SHARDS), ("verdicts", rows, VERDICTS)):
        file = write_file(folder, name, [pa.RecordBatch.from_pylist(found, schema)])
        commit(folder, name, [TableEntry(transaction, (file,) if file else ())])


def measured(rows: pl.DataFrame, log10_rate: float) -> Traffic:
    """Counts of exact rows, whose texts are known by their digests."""
    return measure(rows.with_columns(text_id="text_sha256").lazy(), log10_rate)


def reserved_of(rows: pl.DataFrame) -> ReservedCounts:
    """Counts of exact rows with reserved messages, as of those that workers note."""
    hits = rows.filter(is_reserved(pl.col("message")), pl.col("log10_p_global") <= -1)
    noted = hits.select(
        "key_id", "message", "account_id", text="text_sha256", threshold=pl.lit(10.0).pow(pl.col("log10_p_global"))
    )
    return count_reserved(noted.lazy(), rows.lazy())


def rows_of(folder: str) -> list[int]:
    return pl.read_delta(table_uri(folder, "verdicts"))["row"].sort().to_list()


def same(a: pl.DataFrame, b: pl.DataFrame) -> bool:
    return a.drop("scan_id", "scanned_at").equals(b.drop("scan_id", "scanned_at"))
