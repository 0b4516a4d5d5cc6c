"""Texts whose best message is reserved, noted while they are scored: verdicts do not tell which message was the best.

Each is a row of `audit_counts`, with a keyed digest of the text that stands in no other table, so that copies count
once over all shards and nobody who reads verdicts learns which text it was.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from scanner.audit.in_every_scan.framing import AT_MOST
from scanner.audit.statistics.expectation import THRESHOLDS
from scanner.detection.rows import TextIds
from scanner.watermark.formats import format_of
from schemas.audit_tables import AUDIT_COUNTS, RESERVED_TEXT
from schemas.registry import MasterKey, is_reserved

_NOTHING = {"expected": 0.0, "hits_squared": 0.0, "hits_times_expected": 0.0, "expected_squared": 0.0}


def reserved_texts(
    exact: Sequence[pa.RecordBatch], keys: Sequence[MasterKey], dedup: str, ids: TextIds, canaries: Collection[str] = ()
) -> list[pa.RecordBatch]:
    """Rows of AUDIT_COUNTS on verdicts whose best message is reserved at p ≤ 0.1: each text of a shard once.

    Args:
        exact: batches of rows of VERDICTS, as scanner.detection.detector.Detector gives them.
        keys: the keys under test.
        dedup: as the verdicts have it.
        ids: ids of texts.
        canaries: accounts whose texts are no traffic.
    """
    batches = [_small(batch.select(_NEEDED)) for batch in exact]
    if not sum(map(len, batches)):
        return []
    some = pa.Table.from_batches(batches)
    found = pl.DataFrame(some).with_columns(text=pl.Series(ids.for_audit(some["text_sha256"]), dtype=pl.Binary))
    wanted = is_reserved(pl.col("message")) & ~pl.col("account_id").is_in(list(canaries)).fill_null(value=False)
    texts = found.filter(wanted).sort("account_id", nulls_last=True).unique(["shard_id", "text"], keep="first")
    rows = list(_rows(texts, keys, dedup))
    return [pa.RecordBatch.from_pylist(rows, AUDIT_COUNTS)] if rows else []


def _small(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Those with a message, whose p is small enough."""
    small = pc.less_equal(rows["log10_p_global"], float(np.log10(THRESHOLDS[0])))
    return rows.filter(pc.and_(pc.fill_null(small, False), pc.is_valid(rows["message"])))


_NEEDED = ["scan_id", "shard_id", "path", "text_sha256", "account_id", "key_id", "message", "log10_p_global"]


def _rows(found: pl.DataFrame, keys: Sequence[MasterKey], dedup: str) -> Iterator[dict[str, Any]]:
    now, of_id = datetime.now(UTC), {key.key_id: key for key in keys}
    for row in found.sort("text").iter_rows(named=True):
        key, p = of_id[row["key_id"]], row["log10_p_global"]
        about = format_of(key)
        yield {
            **{name: row[name] for name in ("scan_id", "shard_id", "path", "key_id", "message", "text")},
            **about.columns()._asdict(),
            **_NOTHING,
            "kind": RESERVED_TEXT,
            "label": about.label(),
            "dedup": dedup,
            "messages": key.messages,
            "threshold": min(alpha for alpha in THRESHOLDS if p <= np.log10(alpha)),
            "texts": 1,
            "tests": 1,
            "hits": 1,
            "account_id": row["account_id"] if p <= np.log10(AT_MOST) else None,
            "scanned_at": now,
        }
