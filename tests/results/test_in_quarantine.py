"""`brickscan quarantine`: the rows that stand, against a plain reading of the rule, and each option of the command."""

import csv
import io
import json
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings

from jobs import options
from jobs.nights import REASON_WORDS
from jobs.text import width
from scanner.results.scan_list import QuarantineFilter, in_quarantine
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import write_file
from schemas.tables import QUARANTINE, SHARDS
from schemas.words import DOCUMENT_REASONS, LASTING_FILE_REASONS, PASSING_FILE_REASONS
from tests.support.command_line import call
from tests.support.rescanned import SHARDS_OF_NIGHTS, Shard, ended, write
from tests.support.rows import NOW, filled
from tests.support.signed_results import NOT_CHECKED


def lost(i: int, reason: str = "null_text", row: int | None = -1, **changes: object) -> dict[str, object]:
    """A row of quarantine for document i, scanned i hours ago; for a whole file where `row` is None."""
    about = {"scan_id": "night", "shard_id": "s", "path": "/in/a.parquet", "doc_id": f"doc-{i}", "account_id": None}
    at = {"row": i if row == -1 else row, "scanned_at": NOW - timedelta(hours=i), "reason": reason}
    return filled(QUARANTINE, **(about | at | changes))


def put(folder: str, rows: list[dict], ranges: list[dict] | None = None) -> str:
    open_tables(folder)
    for name, found, schema in (("quarantine", rows, QUARANTINE), ("shards", ranges or [], SHARDS)):
        file = write_file(folder, name, [pa.RecordBatch.from_pylist(found, schema)])
        commit(folder, name, [TableEntry("all", (file,) if file else ())])
    return folder


@pytest.fixture
def rows(folder):
    """Quarantine with three documents without text, from two accounts, two documents that took too long, and a file."""
    return put(
        folder,
        [
            *(lost(i, account_id=f"a{i % 2}") for i in (0, 3, 4)),
            *(lost(i, "timed_out", account_id="a1") for i in (1, 2)),
            lost(5, "truncated", None, path="/in/b.parquet", doc_id=None),
        ],
    )


def standing(nights: list[Shard]) -> dict[tuple[str, int], str]:
    """The newest scan of each document that stands in quarantine: the newest scan could not score it."""
    found = {}
    for path, row in {(shard.path, shard.first + i) for shard in nights for i in range(len(shard.log10_p))}:
        tries = [
            (ended(shard, scan), scan, shard.log10_p[row - shard.first])
            for scan, shard in enumerate(nights)
            if shard.path == path and shard.first <= row < shard.first + len(shard.log10_p)
        ]
        _, scan, p = max(tries, key=lambda one: one[:2])
        if p is None:
            found[path, row] = f"scan {scan}"
    return found


@pytest.mark.costly
@settings(max_examples=30)
@given(SHARDS_OF_NIGHTS)
def test_what_stands_is_what_no_later_scan_could_score(tmp_path_factory, nights):
    folder = str(tmp_path_factory.mktemp("results"))
    write(folder, nights)
    found = in_quarantine(folder, QuarantineFilter(), None, "document")
    shown = {(path, row): scan for path, row, scan in found.rows.select("path", "row", "scan_id").rows()}
    assert shown == standing(nights)
    assert (found.documents, found.files, found.entries) == (len(shown), 0, len(shown))


def test_a_file_stands_until_it_is_read(folder):
    broken = [lost(i, "truncated", None, path=f"/in/{i}", doc_id=None) for i in (2, 4)]
    again = lost(1, "changed", None, path="/in/2", doc_id=None)
    span = {"first_row": 0, "rows": 3, "keys": "k", "dropped_at": None, "shard_id": "t", "scan_id": "next"}
    read = filled(SHARDS, path="/in/4", scanned_at=NOW - timedelta(hours=3), **span)
    before = filled(SHARDS, path="/in/2", scanned_at=NOW - timedelta(hours=9), **span)
    put(folder, [*broken, again], [read, before])
    found = in_quarantine(folder, QuarantineFilter(), None, "document")
    assert found.rows.select("path", "row", "reason").rows() == [("/in/2", None, "changed")]
    assert (found.documents, found.files) == (0, 1)
    assert (
        in_quarantine(folder, QuarantineFilter(reasons=("truncated",)), None, "document").entries == 0
    )  # tried again since


@pytest.mark.parametrize(
    ("arguments", "documents"),
    [
        ((), [0, 1, 2, 3, 4, 5]),
        (("--since", "2026-08-31"), [0, 1, 2, 3]),
        (("--until", "2026-08-30"), [4, 5]),
        (("--since", "2026-08-31T01:00", "--until", "2026-08-31T03:00"), [1, 2]),
        (("--reason", "timed_out"), [1, 2]),
        (("--reason", "timed_out", "--reason", "truncated"), [1, 2, 5]),
        (("--account", "a1"), [1, 2, 3]),
        (("--account", "a1", "--account", "a0"), [0, 1, 2, 3, 4]),
        (("--limit", 2), [0, 1]),
    ],
)
def test_each_option(rows, arguments, documents):
    code, out, _ = call("quarantine", rows, "--group-by", "document", "--format", "json", *arguments)
    assert code == 0
    hours = [(NOW - datetime.fromisoformat(row["scanned_at"])) / timedelta(hours=1) for row in json.loads(out)["rows"]]
    assert hours == documents


def test_by_reason_with_what_to_do(rows):
    code, out, err = call("quarantine", rows)
    assert (code, err) == (0, "")
    head, *lines, below, not_checked = out.splitlines()
    assert not_checked == NOT_CHECKED
    assert head.split()[:4] == ["reason", "documents", "files", "accounts"]
    assert [line.split()[:4] for line in lines] == [
        ["null_text", "3", "0", "2"],
        ["timed_out", "2", "0", "1"],
        ["truncated", "0", "1", "0"],
    ]
    assert lines[0].endswith("2026-08-31 03:00  no text; ask who exports")
    assert below == "3 of 3 shown; in quarantine: 5 documents, 1 whole file"
    assert "1 of 3 shown (--limit or --all shows more); in" in call("quarantine", rows, "--limit", 1)[1]
    assert set(REASON_WORDS) == {*DOCUMENT_REASONS, *LASTING_FILE_REASONS, *PASSING_FILE_REASONS}


def test_by_account(rows):
    out = call("quarantine", rows, "--group-by", "account")[1].splitlines()
    assert [line.split()[:4] for line in out[1:-2]] == [
        ["a1", "3", "0", "2"],
        ["a0", "2", "0", "1"],
        ["-", "0", "1", "1"],
    ]
    code, out, err = call("quarantine", rows, "--group-by", "account", "--format", "csv", "--account", "a1")
    assert (code, err) == (0, f"1 of 1 shown; in quarantine: 3 documents\n{NOT_CHECKED}\n")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["account_id"], row["documents"], row["reasons"]) == ("a1", "3", "2")
    assert (row["first"], row["last"]) == ("2026-08-31T00:00:00+00:00", "2026-08-31T02:00:00+00:00")


def test_by_document_fits_a_terminal_and_steers_none(folder, monkeypatch):
    put(folder, [lost(0, path="/in/" + "p" * 300, doc_id="\x1b[2Jd" * 30, account_id="a  b")])
    out = call("quarantine", folder, "--group-by", "document")[1]
    assert "p" * 300 + " row 0" in out
    assert "a \\x20b" in out
    monkeypatch.setattr(options, "on_terminal", lambda: True)
    table = call("quarantine", folder, "--group-by", "document")[1].splitlines()[:2]
    assert max(map(width, table)) <= 120
    assert "\x1b" not in out


def test_every_line_by_reason_has_at_most_120_columns(folder):
    reasons = [*DOCUMENT_REASONS, *LASTING_FILE_REASONS, *PASSING_FILE_REASONS]
    put(folder, [lost(i, reason) for i, reason in enumerate(dict.fromkeys(reasons))])
    *lines, _ = call("quarantine", folder, "--all")[1].splitlines()
    assert len(lines) == 1 + len(REASON_WORDS) + 1
    counts = ("documents", "files", "accounts")
    room = sum(len("10,000,000") - len(name) for name in counts)  # large counts are wider than their heads
    assert max(map(width, lines)) <= 120 - room


def test_nothing_and_wrong_questions(folder, tmp_path):
    put(folder, [])
    assert call("quarantine", folder)[1] == f"Nothing is in quarantine.\n{NOT_CHECKED}\n"
    nothing = "Nothing in quarantine matches."
    assert call("quarantine", folder, "--account", "x")[1] == f"{nothing}\n{NOT_CHECKED}\n"
    code, _, err = call("quarantine", folder, "--reason", "laziness")
    assert code == 2
    assert "'laziness' is not one of" in err
    assert call("quarantine", folder, "--limit", 3, "--all")[0] == 2
    assert "is no folder, nor the file" in call("quarantine", tmp_path / "none")[2]
