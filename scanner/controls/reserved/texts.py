"""Note texts whose best message is reserved, as workers count them.

They are noted while they are scored, because verdicts do not tell which message was the best. Each is a row of
`audit_counts`, with a keyed digest of the text that is in no other table. So copies count once over all shards, and a
reader of verdicts does not learn which text it was.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.audit.statistics.hits import THRESHOLDS
from scanner.detection.rows import TextIds
from scanner.watermark.formats import format_of
from schemas.audit import AUDIT_COUNTS, RESERVED_TEXT
from schemas.registry import MasterKey, is_reserved

_NOTHING = {"expected": 0.0, "hits_squared": 0.0, "hits_times_expected": 0.0, "expected_squared": 0.0}


def reserved_texts(
    exact: Sequence[pa.RecordBatch], keys: Sequence[MasterKey], dedup: str, ids: TextIds, canaries: Collection[str] = ()
) -> list[pa.RecordBatch]:
    """Return rows of AUDIT_COUNTS on verdicts whose best message is reserved at p ≤ 0.1: each text of a shard once.

    Args:
        exact: batches of rows of VERDICTS, from scanner.detection.detector.Detector.
        keys: the keys under test.
        dedup: as for the verdicts.
        ids: returns keyed digests of texts and accounts.
        canaries: accounts whose texts are no traffic.
    """
    if not exact:
        return []
    verdict_rows = pa.Table.from_batches([batch.select(_NEEDED) for batch in exact])
    is_small = pc.less_equal(verdict_rows["log10_p_global"], float(np.log10(THRESHOLDS[0])))
    candidates = verdict_rows.filter(pc.and_(pc.fill_null(is_small, False), pc.is_valid(verdict_rows["message"])))
    if not len(candidates):
        return []
    texts = ids.for_audit(candidates["text_sha256"])
    candidate_rows = [row | {"text": text} for row, text in zip(candidates.to_pylist(), texts, strict=True)]
    reserved_rows = [row for row in candidate_rows if is_reserved(row["message"]) and row["account_id"] not in canaries]
    # the first account represents all that posted a text: a dict keeps the last value
    reserved_rows.sort(key=lambda row: (row["account_id"] is None, row["account_id"] or ""), reverse=True)
    rows = list(_rows({(row["shard_id"], row["text"]): row for row in reserved_rows}.values(), keys, dedup))
    return [pa.RecordBatch.from_pylist(rows, AUDIT_COUNTS)] if rows else []


_NEEDED = ["scan_id", "shard_id", "path", "text_sha256", "account_id", "key_id", "message", "log10_p_global"]


def _rows(
    reserved_rows: Iterable[Mapping[str, Any]], keys: Sequence[MasterKey], dedup: str
) -> Iterator[dict[str, Any]]:
    now, keys_by_id = datetime.now(UTC), {key.key_id: key for key in keys}
    for row in sorted(reserved_rows, key=lambda row: row["text"]):
        key, p = keys_by_id[row["key_id"]], row["log10_p_global"]
        key_format = format_of(key)
        yield {
            **{name: row[name] for name in ("scan_id", "shard_id", "path", "key_id", "message", "text")},
            "method": key_format.name,
            **_NOTHING,
            "kind": RESERVED_TEXT,
            "label": key_format.label(),
            "dedup": dedup,
            "messages": key.messages,
            "threshold": min(alpha for alpha in THRESHOLDS if p <= np.log10(alpha)),
            "texts": 1,
            "tests": 1,
            "hits": 1,
            "account_id": row["account_id"] if p <= np.log10(LARGEST_P) else None,
            "scanned_at": now,
        }


LARGEST_P = 1e-3
"""Largest p-value of texts that are looked at.

A person who frames wants far smaller ones, and chance gives few of these.
"""
