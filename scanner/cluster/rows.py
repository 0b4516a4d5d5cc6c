"""Rows that an actor makes: batches of each table, counted, taken back, cut, and written as files."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.audit.in_every_scan.reserved_texts import reserved_texts
from scanner.cluster.pieces import NOTHING, Counts, Files
from scanner.detection.accounts import by_account
from scanner.detection.rows import TextIds, flagged_rows, for_everybody, span_rows, with_ids
from scanner.detection.scan_plan import Plan
from scanner.detection.under_test import Origin
from scanner.input.documents import Identity, Unreadable
from scanner.results.transactions import write_file
from schemas.tables import FLAG_TEXTS, QUARANTINE
from schemas.words import Proof


@dataclass
class Rows:
    """Rows that an actor makes, as batches by table, and their counts.

    batches: `verdicts` and `spans` are exact; `lengths`, as the detector gives them, are one batch for each of
    `verdicts`; set_aside: rows that are in none of them.
    """

    batches: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    set_aside: list[int] = field(default_factory=list)
    counts: Counts = NOTHING

    def add(self, other: "Rows") -> None:
        """Append the rows of another shard of a pack."""
        for table, batches in other.batches.items():
            self.batches[table] += batches

    def take_back(self, void: Unreadable) -> None:
        """Take rows that turned out to be unreadable out of every table whose rows are documents'."""
        for table, batches in self.batches.items():
            self.batches[table] = [without(void, one) if "row" in one.schema.names else one for one in batches]
        self.set_aside = [row for row in self.set_aside if not void.start <= row < void.stop]


def write_rows(plan: Plan, rows: Rows, ids: TextIds) -> Files:
    """Write a file of each table that has rows, into the folder of results; nothing is committed.

    Exact rows go into `flags` where they are flagged, and nowhere else.

    Raises:
        ScanFailed: a file cannot be written.
    """
    made, canaries = rows.batches, plan.canary_accounts
    exact = [with_ids(batch, ids) for batch in made["verdicts"]]
    reserved = reserved_texts(exact, plan.keys, plan.config.dedup, ids, canaries)
    tables = {
        "verdicts": [for_everybody(batch, of_it) for batch, of_it in zip(exact, made["lengths"], strict=True)],
        "quarantine": made["quarantine"],
        "audit_counts": [*made["audit_counts"], *reserved],
        "flags": [flagged_rows(batch, plan.key_set) for batch in exact if batch["flagged"].true_count],
        "flag_texts": made["flag_texts"],
        "spans": [span_rows(batch, plan.key_set) for batch in made["spans"]],
        "account_posts": by_account(made["account_posts"]),
    }
    files = {table: write_file(plan.results, table, batches) for table, batches in tables.items()}
    return {table: (file,) for table, file in files.items() if file}


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
    verdicts, refused = rows.batches["verdicts"], sum(map(len, rows.batches["quarantine"]))
    return Counts(
        documents=sum(map(len, verdicts)) + refused,
        too_short=_count(verdicts, "status", "too_short"),
        scored_in_part=_count(verdicts, "status", "scored_in_part"),
        filtered=_count(verdicts, "status", "filtered"),
        quarantined=refused,
        flagged=sum(batch["flagged"].true_count - batch["canary"].true_count for batch in verdicts),
        canaries=sum(batch["canary"].true_count for batch in verdicts),
        proved=_count(verdicts, "proof", Proof.PROVED),
        unproved=_count(verdicts, "proof", Proof.DIFFERS),
        not_offered=_count(verdicts, "proof", Proof.NOT_OFFERED),
        text_bytes=text_bytes,
        tokens=sum(map(_tokens, verdicts, rows.batches["lengths"])),
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


def without(void: Unreadable, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch without the rows that turned out to be unreadable after they were given."""
    return batch.filter(pc.or_(pc.less(batch["row"], void.start), pc.greater_equal(batch["row"], void.stop)))


def parts_of(batch: pa.RecordBatch, text_bytes: int) -> list[pa.RecordBatch]:
    """A batch cut after each document that brings the texts since the last cut to so many bytes."""
    ends = np.cumsum(pc.fill_null(pc.binary_length(batch["text"]), 0).to_numpy(zero_copy_only=False))
    bounds = [0]
    while bounds[-1] < len(batch):
        before = ends[bounds[-1] - 1] if bounds[-1] else 0
        bounds.append(min(int(np.searchsorted(ends, before + text_bytes)) + 1, len(batch)))
    return [batch.slice(begin, end - begin) for begin, end in pairwise(bounds)]
