"""Rows that an actor makes: batches of each table, counted, taken back, cut, and written as files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.audit.in_every_scan.reserved_texts import reserved_texts
from scanner.cluster.reports import NOTHING, Counts
from scanner.detection.posts import by_account
from scanner.detection.published import TextIds, flagged_rows, for_everybody, span_rows, with_ids
from scanner.detection.scan_plan import Plan
from scanner.detection.under_test import Origin
from scanner.input.documents import Unreadable
from scanner.input.identity import Identity
from scanner.results.data_files import DataFile, write_file
from schemas.evidence_tables import FLAG_TEXTS
from schemas.tables import QUARANTINE
from schemas.words import Proof


@dataclass
class Rows:
    """Batches of each table, with their counts. verdicts: exact rows; lengths: as the detector gives them."""

    verdicts: list[pa.RecordBatch] = field(default_factory=list)
    lengths: list[pa.RecordBatch] = field(default_factory=list)
    quarantine: list[pa.RecordBatch] = field(default_factory=list)
    audit: list[pa.RecordBatch] = field(default_factory=list)
    texts: list[pa.RecordBatch] = field(default_factory=list)
    spans: list[pa.RecordBatch] = field(default_factory=list)
    posts: list[pa.RecordBatch] = field(default_factory=list)
    set_aside: list[int] = field(default_factory=list)
    counts: Counts = NOTHING

    def add(self, other: "Rows") -> None:
        """Append the rows of another shard of a pack."""
        self.verdicts += other.verdicts
        self.lengths += other.lengths
        self.quarantine += other.quarantine
        self.audit += other.audit
        self.texts += other.texts
        self.spans += other.spans
        self.posts += other.posts


class Files(NamedTuple):
    """One file of each table, or none where there are no rows."""

    verdicts: tuple[DataFile, ...]
    quarantine: tuple[DataFile, ...]
    audit: tuple[DataFile, ...]
    flags: tuple[DataFile, ...]
    texts: tuple[DataFile, ...]
    spans: tuple[DataFile, ...]
    posts: tuple[DataFile, ...]


def write_rows(plan: Plan, rows: Rows, ids: TextIds) -> Files:
    """Write a file of each table that has rows, into the folder of results; nothing is committed.

    Exact rows go into `flags` where they are flagged, and nowhere else.

    Raises:
        ScanFailed: a file cannot be written.
    """
    exact = [with_ids(batch, ids) for batch in rows.verdicts]
    canaries = plan.canary_accounts
    reserved = [reserved_texts(batch, plan.keys, plan.config.dedup, ids, canaries) for batch in exact]
    tables = {
        "verdicts": [for_everybody(batch, of_it) for batch, of_it in zip(exact, rows.lengths, strict=True)],
        "quarantine": rows.quarantine,
        "audit_counts": [*rows.audit, *(batch for some in reserved for batch in some)],
        "flags": [flagged_rows(batch, plan.key_set) for batch in exact if batch["flagged"].true_count],
        "flag_texts": rows.texts,
        "spans": [span_rows(batch, plan.key_set) for batch in rows.spans],
        "account_posts": by_account(rows.posts),
    }
    files = (write_file(plan.results, name, batches) for name, batches in tables.items())
    return Files(*((file,) if file else () for file in files))


def texts_of_flags(documents: pa.RecordBatch, verdicts: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of FLAG_TEXTS.

    Args:
        documents: rows of DOCUMENTS.
        verdicts: exact rows of VERDICTS on some of them, in their order.
    """
    flags = verdicts.filter(verdicts["flagged"])
    named = flags.select(["user_id", "named", "named_again"]).to_pylist()
    columns = {name: flags[name] for name in FLAG_TEXTS.names if name in flags.schema.names}
    columns["user_ids"] = pa.array(map(_who, named), FLAG_TEXTS.field("user_ids").type)
    columns["text"] = documents.filter(pc.is_in(documents["row"], flags["row"]))["text"]
    return pa.RecordBatch.from_arrays([columns[name] for name in FLAG_TEXTS.names], schema=FLAG_TEXTS)


def _who(row: Mapping[str, Any]) -> list[str]:
    """Users whom a row of VERDICTS names."""
    also = {one["user_id"] for name in ("named", "named_again") for one in row[name] or ()}
    return sorted((also | {row["user_id"]}) - {None})


def counts_of(rows: Rows, text_bytes: int) -> Counts:
    """Counts by result of the documents of some rows, whose texts have so many bytes."""
    refused = sum(len(batch) for batch in rows.quarantine)
    return Counts(
        documents=sum(len(batch) for batch in rows.verdicts) + refused,
        too_short=_count(rows.verdicts, "status", "too_short"),
        scored_in_part=_count(rows.verdicts, "status", "scored_in_part"),
        filtered=_count(rows.verdicts, "status", "filtered"),
        quarantined=refused,
        flagged=sum(batch["flagged"].true_count for batch in rows.verdicts),
        proved=_count(rows.verdicts, "proof", Proof.PROVED),
        unproved=_count(rows.verdicts, "proof", Proof.DIFFERS),
        not_offered=_count(rows.verdicts, "proof", Proof.NOT_OFFERED),
        text_bytes=text_bytes,
        tokens=sum(map(_tokens, rows.verdicts, rows.lengths)),
    )


def _tokens(exact: pa.RecordBatch, lengths: pa.RecordBatch) -> int:
    """Tokens of the texts of some verdicts, as the verdicts show them to everybody."""
    shown = pc.if_else(exact["flagged"], exact["tokens"], lengths["tokens"])
    return int(pc.sum(shown, min_count=0).as_py())


def _count(verdicts: list[pa.RecordBatch], column: str, value: str) -> int:
    return sum(pc.sum(pc.equal(batch[column], value), min_count=0).as_py() for batch in verdicts)


def quarantine_rows(
    origin: Origin, rows: Iterable[tuple[int | None, Identity]], reason: str, detail: str
) -> pa.RecordBatch:
    """Rows of QUARANTINE that share a reason, each with its identity; a row of None stands for the whole file."""
    shared = origin._asdict() | {"reason": reason, "detail": detail, "scanned_at": datetime.now(UTC)}
    return pa.RecordBatch.from_pylist([shared | {"row": row} | whose._asdict() for row, whose in rows], QUARANTINE)


def without(void: Unreadable, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows without those that turned out to be unreadable after they were given."""
    outside = (pc.or_(pc.less(b["row"], void.start), pc.greater_equal(b["row"], void.stop)) for b in batches)
    return [batch.filter(kept) for batch, kept in zip(batches, outside, strict=True)]


def parts_of(batch: pa.RecordBatch, text_bytes: int) -> list[pa.RecordBatch]:
    """A batch cut after each document that brings the texts since the last cut to so many bytes."""
    ends = np.cumsum(pc.fill_null(pc.binary_length(batch["text"]), 0).to_numpy(zero_copy_only=False))
    bounds = [0]
    while bounds[-1] < len(batch):
        before = ends[bounds[-1] - 1] if bounds[-1] else 0
        bounds.append(min(int(np.searchsorted(ends, before + text_bytes)) + 1, len(batch)))
    return [batch.slice(begin, end - begin) for begin, end in pairwise(bounds)]
