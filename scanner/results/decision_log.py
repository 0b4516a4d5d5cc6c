"""Record people's decisions on flags, each exactly once after any interruption, and find the current decisions.

A decision has an id from before it is made (the form's id), which is also its application transaction. Sending it
again, because no answer came, therefore changes nothing. Rows are only ever added. The newest row of each decider on a
document is current. If deciders differ, all of their decisions are shown.
"""

import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from scanner.errors import Refused
from scanner.results.queries import ask
from scanner.results.transactions import TableEntry, commit, has_table, open_tables, read_whole
from scanner.signing import keep_signatures
from scanner.storage.data_files import write_file
from schemas.tables import DECISIONS
from schemas.verdict import LONGEST_NAME, LONGEST_NOTE
from schemas.words import Naming, ReviewDecision

_log = logging.getLogger(__name__)

DECIDED_ON = ("path", "row", "text_sha256")
"""Columns that identify a document and its text in every scan of it."""

State = Literal["open", "unclear", "decided"]
"""State of a flag.

open: nobody decided.
unclear: all decisions are `unclear`.
decided: there is another decision.
"""

_ID = re.compile(r"[0-9a-f]{32}")


def new_id() -> str:
    """Return an id for a decision that is about to be made: 128 random bits."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class NewDecision:
    """A decision that is about to be recorded.

    decision_id: 32 hexadecimal digits.
    decided_by: name of the decider.
    source: where the decision was made: app, command or file.
    decision: one of schemas.words.ReviewDecision.
    note: empty: none.
    decided_at: time with its zone. None: the time when it is recorded.

    Raises:
        Refused: the id is malformed, the decider has no name, the decision is unknown, or the note is too long.
    """

    decision_id: str
    decided_by: str
    source: str
    decision: str
    note: str = ""
    decided_at: datetime | None = None

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.decision_id):
            raise Refused(f"decision_id {self.decision_id[:40]!r}: 32 hexadecimal digits are allowed; reload the page")
        if not self.decided_by.strip() or len(self.decided_by) > LONGEST_NAME:
            raise Refused(f"decided_by: a name of 1 to {LONGEST_NAME} characters is needed; give one with --by")
        if self.decision not in set(ReviewDecision):
            raise Refused(f"decision {self.decision[:40]!r}: allowed are {', '.join(ReviewDecision)}")
        if len(self.note) > LONGEST_NOTE:
            raise Refused(f"note: {len(self.note):,} characters; {LONGEST_NOTE:,} are allowed: shorten it")


def decide(results: str, flag: Mapping[str, Any], decision: NewDecision) -> Mapping[str, Any]:
    """Record a decision on a flag. Return the table's row with its id. If there already was one, it is that row.

    When this returns, the decision is on the disk and in the table. Decisions that are made at the same time are not
    lost.

    Raises:
        Refused: the table cannot be made, or has another version.
        ScanFailed: it cannot be written, or other processes kept committing first.
    """
    record(results, [(decision, flag)])
    return recorded_decision(results, decision.decision_id) or _row(decision, flag)  # its night may be dropped by now


def record(results: str, decisions: Sequence[tuple[NewDecision, Mapping[str, Any]]]) -> set[str]:
    """Record decisions, each with its flag, in one commit. Return the ids that the table did not have yet.

    Raises:
        Refused: as `decide`.
        ScanFailed: as `decide`.
    """
    if not decisions:
        return set()
    open_tables(results, ["decisions"])
    rows = [_row(decision, flag) for decision, flag in decisions]
    file = write_file(results, "decisions", [pa.RecordBatch.from_pylist(rows, DECISIONS)])
    first, *others = (row["decision_id"] for row in rows)
    entry = TableEntry(first, (file,) if file else (), tuple(others), "decision_id")
    entered = commit(results, "decisions", [entry])
    if (why := keep_signatures(results)) is not None:  # now, because a server of reviews may run for months
        _log.warning("%s", why)
    return entered


def _row(decision: NewDecision, flag: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **asdict(decision),
        "note": decision.note or None,
        "decided_at": decision.decided_at or datetime.now(UTC),
        "user_ids": users_of(flag),
        **{name: flag[name] for name in ("scan_id", "shard_id", "path", "row", "doc_id", "text_sha256", "key_id")},
    }


def recorded_decision(results: str, decision_id: str) -> Mapping[str, Any] | None:
    """Return the row of a decision. None: there is none."""
    same = pl.col("decision_id") == decision_id
    rows = ask(results, lambda: decisions(results).filter(same).collect())
    return rows.row(0, named=True) if len(rows) else None


def users_of(flag: Mapping[str, Any]) -> list[str]:
    """Return the users whom a flag names, the user of its own message first. Messages without a name are left out."""
    listed = (entry for name in ("named", "further_messages") for entry in flag[name] or ())
    named = (entry["user_id"] for entry in (flag, *listed) if entry["naming"] == Naming.NAMED)
    return list(dict.fromkeys(user for user in named if user is not None))


def decisions(results: str) -> pl.LazyFrame:
    """Return all decisions, oldest first, as in schemas.tables.DECISIONS. Empty: there are none."""
    if not has_table(results, "decisions"):
        return pl.LazyFrame(schema=pl.Schema(DECISIONS))
    return read_whole(results, "decisions").sort("decided_at", "decision_id")


def current_decisions(results: str) -> pl.LazyFrame:
    """Return the newest decision of each decider on each document, oldest first, as in schemas.tables.DECISIONS."""
    return decisions(results).unique([*DECIDED_ON, "decided_by"], keep="last", maintain_order=True)


def in_state(results: str, rows: pl.LazyFrame, state: State) -> pl.LazyFrame:
    """Return the rows whose flags are in a state.

    Args:
        results: folder or URI.
        rows: rows with the columns DECIDED_ON.
        state: the state.
    """
    decided = current_decisions(results).group_by(DECIDED_ON)
    reviewed = decided.agg(unclear=(pl.col("decision") == ReviewDecision.UNCLEAR).all())
    if state == "open":
        return rows.join(reviewed, on=DECIDED_ON, how="anti")
    return rows.join(reviewed.filter(pl.col("unclear") == (state == "unclear")), on=DECIDED_ON, how="semi")


def on_documents(results: str, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the current decisions on some flags, oldest first, by the columns DECIDED_ON."""
    documents = pl.LazyFrame(
        [{name: row[name] for name in DECIDED_ON} for row in rows],
        schema={name: pl.Schema(DECISIONS)[name] for name in DECIDED_ON},
    )
    decisions_by_document: dict[tuple[Any, ...], list[dict[str, Any]]] = {}

    def current() -> pl.LazyFrame:
        return current_decisions(results).join(documents, on=DECIDED_ON, how="semi", maintain_order="left")

    for row in ask(results, lambda: current().collect()).iter_rows(named=True):
        decisions_by_document.setdefault(tuple(row[name] for name in DECIDED_ON), []).append(row)
    return decisions_by_document
