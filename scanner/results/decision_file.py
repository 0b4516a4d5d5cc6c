"""Record decisions of any other system, read from a file of CSV or JSON lines, each of them once.

A row is a schemas.verdict.Decision. Its digest is the id of the decision. So a row that is repeated, in the same file,
in another one or in two processes at once, is one decision.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from pydantic import ValidationError

from scanner.errors import Refused, did_you_mean
from scanner.printable import counted, printable
from scanner.results.decision_log import DECIDED_ON, NewDecision, decisions, on_documents, record
from scanner.results.flags import FLAG_ID_PREFIX, flag_id
from scanner.results.queries import ask, flagged
from scanner.results.transactions import find_committed, has_table
from scanner.storage.locations import read_named
from scanner.storage.toml import explain_error
from schemas.verdict import Decision
from schemas.words import AuditState

MOST_BYTES = 64 * 1024**2

MOST_ROWS = 100_000

CLOCKS_DIFFER = timedelta(minutes=5)
"""Largest time by which a decision may be in the future, because the clocks of two machines differ."""


class WrongRows(Refused):
    """Some rows of a file are no decisions on flags that count, so nothing was recorded.

    faults: a line for each wrong row.
    """

    def __init__(self, path: Path, faults: Sequence[str]) -> None:
        wrong = f"{counted(len(faults), 'row')} {'is' if len(faults) == 1 else 'are'} wrong"
        super().__init__(
            f"{path}: nothing was recorded, since {wrong}: {faults[0]}; fix the file and run the command again"
        )
        self.faults = faults


class FileOutcome(NamedTuple):
    """The result of recording a file.

    new: number of decisions that this call recorded.
    recorded_before: number of other distinct rows.
    under_alarm: number of new decisions on flags of scans whose audit alarmed.
    changed_since: a line for each row that has no time and was recorded before, if its decider has changed the decision
        since.
    """

    new: int
    recorded_before: int
    under_alarm: int
    changed_since: Sequence[str]


class _Line(NamedTuple):
    number: int
    decision: Decision


def record_file(results: str, rate: float, path: Path) -> FileOutcome:
    """Record the decisions of a file: all of them, or none if any row is wrong.

    Args:
        results: folder or URI.
        rate: the false-positive rate. Flags with a larger p do not count.
        path: ends in .csv or .jsonl.

    Raises:
        Refused: the file cannot be read.
        WrongRows: a row is wrong.
        ScanFailed: the table cannot be read or written.
    """
    lines = {_decision_id(line.decision): line for line in _read_lines(path)}
    exists = has_table(results, "decisions")
    recorded_ids = find_committed(results, "decisions", lines) if exists else set()
    # A row that was recorded needs no flag any more: its night may have been dropped since.
    missing = {decision_id: line for decision_id, line in lines.items() if decision_id not in recorded_ids}
    flags = _find_flags(results, rate, {line.decision.id for line in missing.values()})
    faults = [
        f"line {line.number}: field 'id' = {line.decision.id!r}: there is no flag with this id; `brickscan export` "
        "prints the ids of flags, and the id changes when the text changes"
        for line in missing.values()
        if line.decision.id not in flags
    ]
    if faults:
        raise WrongRows(path, faults)
    new_decisions = [(_new_decision(name, line.decision), flags[line.decision.id]) for name, line in missing.items()]
    new_ids = record(results, new_decisions)
    under_alarm = sum(
        decision.decision_id in new_ids and flag["audit"] == AuditState.ALARM for decision, flag in new_decisions
    )
    change_lines = [*_changed_since(results, {name: lines[name] for name in recorded_ids})]
    return FileOutcome(len(new_ids), len(lines) - len(new_ids), under_alarm, change_lines)


def _read_lines(path: Path) -> list[_Line]:
    """Read the rows of a file.

    Raises:
        Refused: the file cannot be read.
        WrongRows: a row is no decision, or contradicts another.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise Refused(f"{path}: the name must end in .csv or .jsonl, which says how the file is read")
    try:
        text = read_named(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise Refused(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        raise Refused(f"{path}: line {text[: text.index(chr(0))].count(chr(10)) + 1} contains a null character")
    lines, faults = list[_Line](), list[str]()
    for number, fields in _csv_rows(path, text) if path.suffix == ".csv" else _json_rows(text):
        if len(lines) + len(faults) == MOST_ROWS:
            raise Refused(f"{path}: has more than {MOST_ROWS:,} rows; split it")
        try:
            if isinstance(fields, str):
                raise ValueError(fields)
            lines.append(_Line(number, _decision(fields)))
        except ValueError as error:
            faults.append(f"line {number}: {error}")
    faults += _contradictions(lines)
    if faults:
        raise WrongRows(path, faults)
    return lines


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yield the line number and fields of each row, or its fault in words.

    Raises:
        Refused: the header or the quotes of the file are wrong.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        _check_header(path, header)
        for cells in reader:
            if len(cells) == len(header):
                yield reader.line_num, dict(zip(header, cells, strict=True))
            elif cells:
                yield reader.line_num, f"{len(cells)} cells, but the header has {len(header)} columns"
    except csv.Error as error:
        raise Refused(f"{path}: line {reader.line_num}: {error}; quote cells as spreadsheets do") from None


def _check_header(path: Path, header: Sequence[str]) -> None:
    allowed = list(Decision.model_fields)
    needed = [name for name, field in Decision.model_fields.items() if field.is_required()]
    for name in header:
        if name not in allowed:
            raise Refused(
                f"{path}: the header names {name[:60]!r}{did_you_mean(name[:60], allowed)}; allowed are "
                f"{', '.join(allowed)}, separated by commas"
            )
        if header.count(name) > 1:
            raise Refused(f"{path}: the header names {name!r} twice; name each column once")
    if missing := [name for name in needed if name not in header]:
        raise Refused(f"{path}: the header lacks {' and '.join(missing)}; its first line must name the columns")


def _json_rows(text: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield the line number and object of each line that is not blank, or its fault in words."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line, object_pairs_hook=_fields_once)
            yield number, fields if isinstance(fields, dict) else "an object {…} is needed"
        except RecursionError:
            yield number, "lists or objects are nested too deeply"
        except ValueError as error:
            yield number, f"is not a JSON object: {error}"


def _fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _decision(fields: Mapping[str, Any]) -> Decision:
    """Return the decision of a row. Empty fields count as left out.

    Raises:
        ValueError: the row is no decision. The message names field, value and what is allowed.
    """
    try:
        decision = Decision.model_validate({name: value for name, value in fields.items() if value not in (None, "")})
    except ValidationError as error:
        raise ValueError(explain_error(error, Decision)) from None
    if decision.decided_at is not None and decision.decided_at > datetime.now(UTC) + CLOCKS_DIFFER:
        raise ValueError(f"field 'decided_at' = '{decision.decided_at.isoformat()}': is in the future")
    return decision


def _contradictions(lines: Sequence[_Line]) -> Iterator[str]:
    first: dict[tuple[str, str, datetime | None], _Line] = {}
    for line in lines:
        decision = line.decision
        earlier = first.setdefault((decision.id, decision.decided_by, decision.decided_at), line)
        if earlier.decision.decision != decision.decision:
            yield (
                f"line {line.number}: {decision.decided_by!r} decided {decision.decision} on {decision.id}, and "
                f"{earlier.decision.decision} in line {earlier.number}; it is unknown which one is newer: give the "
                "time of each in decided_at"
            )


def _decision_id(decision: Decision) -> str:
    """Return the id of a decision, the same for equal rows in any file or form: 32 hexadecimal digits."""
    decided_at = None if decision.decided_at is None else decision.decided_at.isoformat(timespec="microseconds")
    fields = [decision.id, str(decision.decision), decision.decided_by, decided_at, decision.note]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:32]


def _new_decision(decision_id: str, decision: Decision) -> NewDecision:
    return NewDecision(decision_id, decision.decided_by, "file", decision.decision, decision.note, decision.decided_at)


def _find_flags(results: str, rate: float, ids: set[str]) -> dict[str, dict[str, Any]]:
    """Return the flags that count, by id: rows of schemas.tables.VERDICTS with `audit`. Other ids are left out."""
    # An id begins with the digest of the text, so a column is compared and not a digest made for every flag.
    starts = {bytes.fromhex(identifier.removeprefix(FLAG_ID_PREFIX)[:16]) for identifier in ids}
    same_start = pl.col("text_sha256").bin.head(8).is_in(sorted(starts))
    rows = ask(results, lambda: flagged(results, rate, same_start, canaries=True).collect()) if ids else pl.DataFrame()
    return {name: row for row in rows.iter_rows(named=True) if (name := flag_id(row)) in ids}


def _changed_since(results: str, recorded_lines: Mapping[str, _Line]) -> Iterator[str]:
    """Yield a line for each decision without a time that was recorded and that a newer one has replaced."""
    untimed = {name: line for name, line in recorded_lines.items() if line.decision.decided_at is None}
    if not untimed:
        return
    same = pl.col("decision_id").is_in(list(untimed))
    rows = ask(results, lambda: decisions(results).filter(same).collect()).to_dicts()
    standing = on_documents(results, rows)
    for row in rows:
        document_decisions = standing[tuple(row[name] for name in DECIDED_ON)]
        newest = next(decision for decision in document_decisions if decision["decided_by"] == row["decided_by"])
        if newest["decision"] != row["decision"]:
            yield (
                f"line {untimed[row['decision_id']].number}: {row['decision']} was recorded before, and "
                f"{printable(row['decided_by'], 60)} has since decided {newest['decision']}, which counts; if this is "
                "a new decision, give its time in decided_at"
            )
