"""Decisions from files: every right file is recorded once, in whatever order and form, and no wrong file at all."""

import csv
import io
import json
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner import results
from scanner.errors import Refused
from scanner.results import decision_file
from scanner.results.decision_file import WrongRows, record_file
from scanner.results.decision_log import NewDecision, decisions, new_id
from scanner.results.decision_log import record as record_decisions
from scanner.results.flags import flag_id
from scanner.results.transactions import append_scan, open_tables
from schemas.tables import SCANS, SHARDS
from schemas.words import ReviewDecision
from tests.support.command_line import call
from tests.support.nights import enter
from tests.support.rows import NOW, filled, verdict
from tests.support.signed_results import NOT_CHECKED

FLAGS = [
    verdict(
        row, user="alice", doc_id=f"doc-{row}", text_sha256=bytes([row // 2]) * 32, named=None, further_messages=None
    )
    for row in range(4)
]  # documents 0 and 1 are copies of one text, and so are 2 and 3
IDS = [flag_id(flag) for flag in FLAGS]


@pytest.fixture(scope="module")
def flagged_results(empty_results, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("flagged") / "results"
    shutil.copytree(empty_results, folder)
    enter(str(folder), "flags", "shard", [flag | {"keys": "set"} for flag in FLAGS])
    about = {"scan_id": "scan", "shard_id": "shard", "path": "/in/a", "keys": "set", "scanned_at": NOW}
    enter(str(folder), "shards", "shard", [filled(SHARDS, **about, first_row=0, rows=100, dropped_at=None)])
    return folder


@pytest.fixture
def folder(flagged_results, tmp_path) -> str:
    return str(shutil.copytree(flagged_results, tmp_path / "results"))


def row(number: int = 0, decision: str = "confirmed", by: str = "ruth", **more: str) -> dict[str, str]:
    return {"id": IDS[number], "decision": decision, "decided_by": by} | more


def as_jsonl(rows: list[dict]) -> str:
    return "".join(json.dumps(one) + "\n" for one in rows)


def as_csv(rows: list[dict]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["decided_at", "id", "note", "decision", "decided_by"])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def put(folder: str, rows: list[dict] | str, name: str = "decisions.jsonl", encoding: str = "utf-8") -> Path:
    file = Path(folder).parent / name
    text = rows if isinstance(rows, str) else (as_csv if name.endswith(".csv") else as_jsonl)(rows)
    file.write_bytes(text.encode(encoding))
    return file


def record(folder: str, *arguments, **named) -> tuple[int, int]:
    outcome = record_file(folder, 1.0, put(folder, *arguments, **named))
    return outcome.new, outcome.recorded_before


def recorded(folder: str) -> list[tuple]:
    rows = decisions(folder).sort("row", "decided_by", "decided_at").collect()
    return rows.select("row", "decision", "decided_by", "source", "note").rows()


def test_equal_rows_of_any_form_are_one_decision(folder):
    rows = [
        row(0, note="clear,\n“so”"),
        row(1, "quoted", " omar ", decided_at="2026-11-26T10:00:00+02:00"),
        row(0, note="clear,\n“so”"),
    ]
    assert record(folder, rows) == (2, 0)
    rows[1] |= {"decided_by": "omar", "decided_at": "2026-11-26T08:00:00Z"}
    assert record(folder, rows, "same.csv") == (0, 2)
    assert record(folder, rows, "with-bom.csv", encoding="utf-8-sig") == (0, 2)
    assert record(folder, [*rows, row(2)], "grown.jsonl") == (1, 2)
    assert recorded(folder) == [
        (0, "confirmed", "ruth", "file", "clear,\n“so”"),
        (1, "quoted", "omar", "file", None),
        (2, "confirmed", "ruth", "file", None),
    ]
    times = decisions(folder).filter(decided_by="omar").collect()["decided_at"].to_list()
    assert times == [datetime(2026, 11, 26, 8, tzinfo=UTC)]


LATER = (datetime.now(UTC) + timedelta(hours=1)).isoformat()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"id": "brickscan-" + "0" * 32}, r"line 2: field 'id' = 'brickscan-0+': there is no flag with this id"),
        ({"id": "doc-1"}, "field 'id' = 'doc-1'"),
        ({"decision": "confirm"}, r"'decision' = 'confirm': .*'quoted'.*did you mean 'confirmed'"),
        ({"decided_by": "  "}, "'decided_by'"),
        ({"decided_by": "x" * 201}, "at most 200"),
        ({"decided_by": "a\0b"}, "a null character"),
        ({"decided_by": "\ud800"}, "'decided_by'"),
        ({"decided_by": 7}, r"'decided_by' = 7: .*string"),
        ({"note": "x" * 4001}, "at most 4000"),
        ({"note": ["x"]}, r"'note' = .*string"),
        ({"decided_at": "2026-11-26T10:00:00"}, "a time with its zone"),
        ({"decided_at": "2026-11-26T10:00:00+25:00"}, "a time with its zone"),
        ({"decided_at": "2026-11-26T10:00:00 Europe/Berlin"}, "a time with its zone"),
        ({"decided_at": "0001-01-01T00:00:00+14:00"}, "a time with its zone"),
        ({"decided_at": "1764000000"}, "a time with its zone"),
        ({"decided_at": 1764000000}, "a text is needed"),
        ({"decided_at": LATER}, "is in the future"),
        ({"notes": "x"}, r"field 'notes' is unknown \(did you mean 'note'\?\); allowed: decided_at, "),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_recorded(folder, wrong, said):
    with pytest.raises(WrongRows, match=said) as refused:
        record(folder, [row(0), row(1) | wrong])
    assert "decisions.jsonl: nothing was recorded, since 1 row is wrong: line 2: " in str(refused.value)
    assert recorded(folder) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lacks id and decision and decided_by"),
        ("id,decision,decided_by,note,note\n", "names 'note' twice"),
        ("id,decison,decided_by\n", r"names 'decison' \(did you mean 'decision'\?\); allowed are id, decision"),
        ("id;decision;decided_by\n", "separated by commas"),
        ("id,decision\n", "lacks decided_by"),
        (f"id,decision,decided_by\n{IDS[0]},confirmed\n", "line 2: 2 cells, but the header has 3"),
        (f"id,decision,decided_by\n{IDS[0]},confirmed,ruth,\n", "line 2: 4 cells"),
        (f'id,decision,decided_by\n{IDS[0]},confirmed,"ruth\n', "line 2: unexpected end of data"),
        (f"id,decision,decided_by\n{IDS[0]},,ruth\n", "line 2: field 'decision' is missing"),
        (f"id,decision,decided_by\n{IDS[0]},confirmed,ru\0th\n", "line 2 contains a null character"),
        ("x" * 200_000, "line 1: field larger than field limit"),
    ],
)
def test_a_wrong_table_is_refused(folder, text, said):
    with pytest.raises(Refused, match=said):
        record(folder, text, "decisions.csv")
    assert recorded(folder) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1]", r"an object \{…\} is needed"),
        ("{'id': 1}", "is not a JSON object"),
        ('{"id": "a", "id": "b"}', "a field occurs twice"),
        ("[" * 100_000, "too deeply"),
        ('{"id": ' + "9" * 10_000 + "}", "line 2: is not a JSON object"),
    ],
)
def test_a_line_that_is_no_object_is_refused(folder, line, said):
    with pytest.raises(WrongRows, match=said):
        record(folder, f"\n{line}\n")


def test_a_file_of_another_kind_is_refused(folder, monkeypatch):
    for name, encoding, said in (
        ("decisions.xlsx", "utf-8", "end in .csv or .jsonl"),
        ("decisions.csv", "utf-16", "is not UTF-8"),
    ):
        with pytest.raises(Refused, match=said):
            record(folder, "id", name, encoding=encoding)
    monkeypatch.setattr(decision_file, "MOST_ROWS", 2)
    with pytest.raises(Refused, match="more than 2 rows; split it"):
        record(folder, [row(0), row(1), row(2)])
    monkeypatch.setattr(decision_file, "MOST_BYTES", 10)
    with pytest.raises(Refused, match="10 are allowed"):
        record(folder, [row(0)])
    with pytest.raises(Refused, match="cannot be read"):
        record_file(folder, 1.0, Path(folder) / "none.csv")


def test_rows_that_contradict_each_other_are_refused(folder):
    with pytest.raises(WrongRows, match=r"line 2: 'ruth' decided quoted .* confirmed in line 1; .* in decided_at"):
        record(folder, [row(0, "confirmed"), row(0, "quoted")])
    at = "2026-11-26T10:00:0"
    rows = [row(0, "confirmed", decided_at=f"{at}1Z"), row(0, "quoted", decided_at=f"{at}0Z"), row(0, "quoted", "omar")]
    assert record(folder, rows) == (3, 0)
    standing = results.current_decisions(folder).sort("decided_by").collect()
    assert standing.select("decided_by", "decision").rows() == [("omar", "quoted"), ("ruth", "confirmed")]


def test_the_command_names_ten_wrong_rows(folder):
    file = put(folder, [row(0), *(row(1, "guilty", f"decider {i}") for i in range(12))])
    code, out, err = call("decide", folder, "--from", file)
    assert (code, out, err.count("'guilty'")) == (2, "", 10)
    assert "since 12 rows are wrong: line 2: " in err
    assert call("decide", folder, "--from", file, "--by", "ruth")[0] == 2
    assert call("decide", folder, "doc-1", "--from", file)[0] == 2
    assert call("decide", folder, "doc-1")[0] == 2
    assert call("decide", folder)[0] == 2


def test_the_command_tells_what_was_recorded(folder):
    file = put(folder, [row(0), row(1)])
    assert call("decide", folder, "--from", file) == (
        0,
        f"{file}: 2 recorded, 0 recorded before\n",
        f"{NOT_CHECKED}\n",
    )
    assert call("decide", folder, "doc-0", "dismissed", "--by", "ruth")[0] == 0
    code, out, err = call("decide", folder, "--from", file)
    assert (code, out) == (0, f"{file}: 0 recorded, 2 recorded before\n")
    assert f"{file}, line 1: confirmed was recorded before, and ruth has since decided dismissed, which counts" in err
    assert "line 2" not in err


def test_a_decision_under_an_alarm_is_taken_and_told(folder):
    append_scan(folder, filled(SCANS, scan_id="scan", audit="alarm", audited_scans=["scan"]))
    code, out, err = call("decide", folder, "--from", put(folder, [row(0), row(1)]))
    assert (code, out.endswith(": 2 recorded, 0 recorded before\n")) == (0, True)
    assert "\n2 of them on flags of scans whose audit raised an alarm" in err


def test_a_row_that_was_recorded_needs_no_flag_any_more(folder):
    """A file that grows for ever holds decisions on nights that were dropped."""
    assert record(folder, [row(0)]) == (1, 0)
    shutil.rmtree(Path(folder) / "flags")
    open_tables(folder, ["flags"])
    assert record(folder, [row(0)]) == (0, 1)
    with pytest.raises(WrongRows, match="line 2: field 'id'"):
        record(folder, [row(0), row(1)])


def test_a_decision_holds_for_the_text_that_was_flagged(folder):
    """A decision on a copy, or on a text that was put in the place of the flagged one, is another flag's."""
    changed = flag_id(FLAGS[0] | {"text_sha256": bytes([9]) * 32})
    with pytest.raises(WrongRows, match="no flag with this id"):
        record(folder, [row(0) | {"id": changed}])
    assert record(folder, [row(1)]) == (1, 0)
    assert [found[0] for found in recorded(folder)] == [1]
    assert len(set(IDS)) == 4


ROWS = st.builds(
    lambda number, decision, by, second: row(number, decision, by, decided_at=f"2026-11-26T10:00:0{second}Z"),
    st.integers(0, 3),
    st.sampled_from([*map(str, ReviewDecision)]),
    st.sampled_from(["ruth", "omar"]),
    st.integers(0, 9),
)


def _at_one_time(one: dict) -> tuple:
    return one["id"], one["decided_by"], one["decided_at"]


@pytest.mark.costly
@given(data=st.data(), rows=st.lists(ROWS, min_size=1, max_size=8, unique_by=_at_one_time))
@settings(max_examples=25, deadline=None)
def test_order_repeats_and_files_do_not_matter(flagged_results, data, rows):
    """The table that files leave is the one that plain Python makes of their rows."""
    files = [data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=9), label="file") for _ in range(3)] + [
        data.draw(st.permutations(rows))
    ]
    newest: dict[tuple, dict] = {}
    for one in sorted(rows, key=lambda one: one["decided_at"]):
        newest[one["id"], one["decided_by"]] = one
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(shutil.copytree(flagged_results, Path(scratch) / "results"))
        for number, file in enumerate(data.draw(st.permutations(files))):
            record(folder, file, f"{number}.{data.draw(st.sampled_from(['csv', 'jsonl']))}")
        assert decisions(folder).select(pl.len()).collect().item() == len(rows)
        standing = results.current_decisions(folder).select("row", "decided_by", "decision").collect().rows()
    assert sorted(standing) == sorted((IDS.index(of), by, one["decision"]) for (of, by), one in newest.items())


def test_rows_that_another_process_recorded_meanwhile_are_left_out(folder):
    """The table has one of two decisions by the time of the commit, after both were looked up."""
    made = [(NewDecision(new_id(), by, "file", "quoted"), FLAGS[0]) for by in ("ruth", "omar", "ada")]
    assert record_decisions(folder, made[:2]) == {decision.decision_id for decision, _ in made[:2]}
    assert record_decisions(folder, made[1:]) == {made[2][0].decision_id}
    assert sorted(found[2] for found in recorded(folder)) == ["ada", "omar", "ruth"]


PROGRAM = """
import sys
from pathlib import Path
from scanner.results.decision_file import record_file
print("ready", flush=True)
sys.stdin.readline()
outcome = record_file(sys.argv[1], 1.0, Path(sys.argv[2]))
print(outcome.new, flush=True)
"""


@pytest.mark.costly
@pytest.mark.seconds
def test_two_processes_record_each_row_once(folder):
    """Their files share forty rows."""
    rows = [row(number, by=f"decider {i}") for number in range(4) for i in range(25)]
    files = [put(folder, rows[:70], "a.csv"), put(folder, rows[30:], "b.jsonl")]
    command = [sys.executable, "-c", PROGRAM, folder]
    running = [
        subprocess.Popen([*command, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for file in files
    ]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    new = [int(process.communicate(timeout=120)[0]) for process in running]
    assert sum(new) == 100
    found = decisions(folder).collect()
    assert len(found) == found["decision_id"].n_unique() == 100
