"""Collect the rows that a worker makes from the documents of a piece, by table, until they are written.

Count them too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from scanner.cluster.pieces import NO_DOCUMENTS, DocumentCounts
from scanner.input.documents import Unreadable
from scanner.input.files import InputFile
from scanner.scan_plan import Plan
from schemas.words import Proof


@dataclass
class Rows:
    """Rows of a piece, or of a pack of shards.

    batches: rows by table. Those of `verdicts` and `spans` are exact.
    lengths: lengths of texts, one batch for each of `verdicts`.
    set_aside: rows of the file that are in no batch, because their texts may need more memory than there is.
    unread: documents with an id, account or time that cannot be read, and is null: column `row`.
    """

    batches: defaultdict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    set_aside: list[int] = field(default_factory=list)
    unread: list[pa.RecordBatch] = field(default_factory=list)
    text_bytes: int = 0
    counts: DocumentCounts = NO_DOCUMENTS

    def add(self, batches: Mapping[str, Iterable[pa.RecordBatch]]) -> None:
        """Append rows of tables."""
        for table, more in batches.items():
            self.batches[table] += more

    def take_back(self, void: Unreadable) -> None:
        """Remove rows that turned out to be unreadable from every table with rows on documents."""
        for table, batches in self.batches.items():
            if all("row" in batch.schema.names for batch in batches):
                self.batches[table] = [_readable(void, batch) for batch in batches]
        self.unread = [_readable(void, batch) for batch in self.unread]
        self.set_aside = [row for row in self.set_aside if not void.start <= row < void.stop]

    def count(self, plan: Plan, file: InputFile, flagged: int) -> None:
        """Count the documents by result.

        flagged: number of flags that are counted nowhere else, without canaries.
        """
        verdicts, refused = self.batches["verdicts"], sum(map(len, self.batches["quarantine"]))
        keys, future, older, written = {key.key_id: key for key in plan.keys}, 0, 0, file.written
        for batch in verdicts:
            times = batch["created_at"] if written is None else pc.fill_null(batch["created_at"], written)
            future += pc.sum(pc.greater(times, batch["scanned_at"]), min_count=0).as_py()
            dated = batch.filter(pc.is_valid(batch["first_seen_at"])).select(["first_seen_at", "key_id"])
            older += sum(row["first_seen_at"] < keys[row["key_id"]].marked_since() for row in dated.to_pylist())
        self.counts = DocumentCounts(
            documents=sum(map(len, verdicts)) + refused,
            too_short=_count(verdicts, "status", "too_short"),
            scored_in_part=_count(verdicts, "status", "scored_in_part"),
            filtered=_count(verdicts, "status", "filtered"),
            quarantined=refused,
            flagged=flagged,
            canaries=sum(batch["canary"].true_count for batch in verdicts),
            proved=_count(verdicts, "proof", Proof.PROVED),
            unproved=_count(verdicts, "proof", Proof.DIFFERS),
            not_offered=_count(verdicts, "proof", Proof.NOT_OFFERED),
            in_future=future,
            older_than_key=older,
            values_not_read=sum(map(len, self.unread)),
            text_bytes=self.text_bytes,
            tokens=sum(  # as in the published verdicts
                pc.sum(pc.if_else(exact["flagged"], exact["tokens"], plain["tokens"]), min_count=0).as_py()
                for exact, plain in zip(verdicts, self.batches["lengths"], strict=True)
            ),
            of_keys=_sums(self.batches["lengths"]),
        )


def _sums(lengths: Sequence[pa.RecordBatch]) -> Counter[tuple[str, str]]:
    """Return `of_keys` of DocumentCounts: the sums of the columns that are named for a key."""
    sums = Counter[tuple[str, str]]()
    for batch in lengths:
        for name in batch.schema.names:
            kind, _, key_id = name.partition(":")
            if key_id:
                sums[key_id, kind] += pc.sum(batch[name], min_count=0).as_py()
    return sums


def _readable(void: Unreadable, batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.or_(pc.less(batch["row"], void.start), pc.greater_equal(batch["row"], void.stop)))


def _count(verdicts: Sequence[pa.RecordBatch], column: str, value: str) -> int:
    return sum(pc.sum(pc.equal(batch[column], value), min_count=0).as_py() for batch in verdicts)
