"""Whatever is edited in the tables of results, evidence, review, exports and reports show nothing of it as checked."""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from scanner.evidence.explainer import Explainer
from scanner.night_report import night_of
from scanner.registry import set_audit_secret
from scanner.results.transactions import properties_of
from scanner.service.review_session import DocumentPlace, FlagRequest, ReviewSession
from scanner.signing import opened_signers
from scanner.storage.data_files import SCHEMAS
from scanner.storage.delta import make_table
from scanner.storage.locations import table_uri
from tests.support.command_line import call
from tests.support.night import Night
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")

Edit = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def put(**values: object) -> Edit:
    """An edit that writes values into every row."""
    return lambda rows: [row | values for row in rows]


ZOE = {"key_id": "green", "message": 7, "user_id": "zoe", "naming": "named", "log10_p_global": -9.0}

EDITS: Mapping[str, list[Edit]] = {
    "flags": [
        put(message=7, user_id="zoe", named=[ZOE], proof="proved"),
        put(canary=True),
        lambda rows: rows[1:],
        lambda rows: [*rows, rows[0] | {"row": 2, "doc_id": "a:2", "user_id": "zoe"}],
    ],
    "spans": [put(user_id="zoe", char_from=0, char_to=1), lambda rows: rows[1:]],
    "scans": [put(false_positive_rate=math.nan, audit="no alarm", exit_code=0), put(started_at=LAST), lambda rows: []],
    "shards": [put(scan_id="20990101T000000Z-00000000"), put(rows=2**62)],
    "audits": [put(verdict="as expected", hits=0), lambda rows: rows[1:]],
    "quarantine": [lambda rows: rows[1:]],
}
"""Edits of tables: a value, a row that is gone, one that was added. Signatures see files, so one of a kind suffices."""


@pytest.fixture
def scanned(night, own_registry, marked) -> Night:
    """A night of two flags, of which parts are flagged too, and a document that cannot be read."""
    night.configure(columns='account = "account"', more="spans = { windows = true }")
    alice = message_of(own_registry, "green", "alice")
    texts = [marked(alice, 200, 1), "somebody else " * 30, marked(alice, 80, 2), b"\xff\xfe"]
    night.write("a", texts, account=["ann", "ben", "cem", None])
    night.scan()
    return night


def without_times(value: Any) -> Any:
    """A record without the seconds that its making took."""
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if name != "seconds"}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def answers(night: Night) -> dict[str, object]:
    """What each door says of the results: its answer, or that it refuses, with the sentence."""

    def reviewed() -> tuple[int, str, str]:
        session = ReviewSession(Explainer(night.config), "eve")
        entries = session.list(FlagRequest(), 0).entries
        shown = session.view_flag(FlagRequest(), DocumentPlace(str(night.input / "a.parquet"), 0))
        return 0, json.dumps([[entry.line.user for entry in entries], shown.explained.row["user_id"]]), ""

    def reported() -> tuple[int, str, str]:
        folder = night.folder / "report"
        code, _, err = call("report", night.config, "--out", folder)
        return code, (folder / "index.json").read_text() if code == 0 else "", err

    doors: dict[str, Callable[[], tuple[int, str, str]]] = {
        "explain": lambda: call("explain", night.config, "a:0", "--json"),
        "replay": lambda: call("replay", night.config, "a:0", "--json"),
        "export": lambda: call("export", night.config),
        "flagged": lambda: call("flagged", night.config, "--all", "--format", "json"),
        "report": reported,
        "review": reviewed,
    }
    said: dict[str, object] = {}
    for door, ask in doors.items():
        try:
            code, out, err = ask()
        except Exception as error:
            code, out, err = 2, "", str(error)
        if code == 2:
            assert "zoe" not in out + err
            assert "o not trust its rows" in err, (door, err)
            said[door] = "refused"
        else:
            assert code in (0, 3), (door, err)
            lines = out.splitlines() if door == "export" else [out]
            said[door] = without_times([json.loads(line) for line in lines])
    return said


READ_BY_ALL = ("flags", "shards", "scans")


@pytest.mark.costly
@pytest.mark.seconds
def test_no_edit_is_shown_as_checked(scanned):
    """Each door refuses what reads an edited table; what reads none of it says what it said before."""
    night, before = scanned, answers(scanned)
    assert "refused" not in before.values()
    assert json.dumps(before["explain"]).count('"checked": true') == 1
    for table, number, edit in ((table, *each) for table, edits in EDITS.items() for each in enumerate(edits)):
        uri, copy = Path(table_uri(night.results, table)), night.folder / "copies" / f"{table}-{number}"
        shutil.copytree(uri, copy)
        rows = edit(pl.read_delta(str(uri)).to_dicts())
        write_deltalake(str(uri), pa.Table.from_pylist(rows, SCHEMAS[table]), mode="overwrite")
        after = answers(night)
        assert all(after[door] in ("refused", before[door]) for door in before), (table, number, after)
        refusing = {door for door in before if after[door] == "refused"}
        expected = {*before} if table in READ_BY_ALL else {"report"} if table == "audits" else set()
        assert refusing >= expected, (table, number)
        shutil.rmtree(uri)
        shutil.move(copy, uri)
    assert answers(night) == before


@pytest.mark.costly
def test_without_the_secret_evidence_says_that_nothing_was_checked(scanned):
    night = scanned
    uri = table_uri(night.results, "flags")
    rows = put(user_id="zoe")(pl.read_delta(uri).to_dicts())
    write_deltalake(uri, pa.Table.from_pylist(rows, SCHEMAS["flags"]), mode="overwrite")
    (night.registry / "secrets" / "decoys.secret").unlink()
    opened_signers._signers.pop(night.results)  # as in the next process
    explained = json.loads(call("explain", night.config, "a:0", "--json")[1])
    assert (explained["user_id"], explained["checked"]) == ("zoe", False)
    (says,) = (one["sentence"] for one in explained["says"] if one["heading"] == "Signature")
    assert says.startswith("not checked: secret file ")
    assert all(json.loads(line)["checked"] is False for line in call("export", night.config)[1].splitlines())
    assert "signatures of tables were not checked: secret file" in call("flagged", night.config)[1]
    assert call("report", night.config, "--out", night.folder / "report")[0] == 0
    assert json.loads((night.folder / "report" / "index.json").read_text())["checked"] is False
    assert "not checked: secret file" in (night.folder / "report" / "index.html").read_text()


@pytest.mark.costly
@pytest.mark.seconds
def test_a_scan_reads_no_table_that_was_edited(scanned):
    """By `shards` a scan knows what is done, and by `flags` what was flagged before."""
    night = scanned
    uri = table_uri(night.results, "shards")
    rows = put(rows=10**6)(pl.read_delta(uri).to_dicts())
    write_deltalake(uri, pa.Table.from_pylist(rows, SCHEMAS["shards"]), mode="overwrite")
    night.write("b", ["more words " * 40], account=["dan"])
    code, _, err = call("scan", night.config)
    assert (code, "shards: its files are not those that brickscan committed" in err) == (2, True)


@pytest.mark.costly
@pytest.mark.seconds
def test_signing_anew_takes_tables_as_they_are(scanned):
    """After a compaction by another program, say: what it wrote is believed from then on, and checked."""
    night = scanned
    before = answers(night)
    assert call("sign", night.config, "--dry-run")[1] == "every table is byte for byte as brickscan left it\n"
    uri = table_uri(night.results, "flags")
    write_deltalake(uri, pl.read_delta(uri).to_arrow().cast(SCHEMAS["flags"]), mode="overwrite")
    assert answers(night)["explain"] == "refused"
    code, out, _ = call("sign", night.config, "--dry-run")
    assert (code, "flags: results: table" in out, "current state of 1 table" in out) == (0, True, True)
    assert answers(night)["explain"] == "refused"
    assert call("sign", night.config, "--yes")[1].split() == ["flags", "signed;", "1", "file", "rewritten"]
    assert answers(night) == before
    night.write("b", ["more words " * 40], account=["dan"])
    assert night.scan().exit_code == 0
    shutil.rmtree(table_uri(night.results, "spans"))
    assert call("scan", night.config)[0] == 2
    assert "spans: was signed but no longer exists" in call("sign", night.config, "--dry-run")[1]
    assert call("sign", night.config, "--yes")[1].split() == ["spans", "given", "up"]
    assert call("scan", night.config)[0] == 0


@pytest.mark.costly
@pytest.mark.seconds
def test_another_audit_secret_signs_all_results(scanned):
    night, registry = scanned, scanned.registry
    code, out, err = call("keys", "audit-secret", "--registry", registry, "--secret", "file:secrets/new.secret")
    assert (code, f"{Path(night.results).resolve()}: " in out) == (0, True), err
    assert call("sign", night.config, "--dry-run")[1] == "every table is byte for byte as brickscan left it\n"
    assert "refused" not in answers(night).values()
    night.write("b", ["more words " * 40], account=["dan"])
    night.scan()
    assert json.loads(call("explain", night.config, "a:0", "--json")[1])["checked"] is True
    set_audit_secret(registry, "file:secrets/decoys.secret")  # as by hand, without signing
    opened_signers._signers.pop(night.results)
    code, _, err = call("explain", night.config, "a:0")
    assert (code, "was not signed under the audit secret" in err) == (2, True)


@pytest.mark.costly
def test_no_secret_signs_what_was_edited(scanned):
    night = scanned
    uri = table_uri(night.results, "flags")
    rows = put(user_id="zoe")(pl.read_delta(uri).to_dicts())
    write_deltalake(uri, pa.Table.from_pylist(rows, SCHEMAS["flags"]), mode="overwrite")
    secret = "file:secrets/new.secret"
    code, _, err = call("keys", "audit-secret", "--registry", night.registry, "--secret", secret)
    assert (code, "/flags: its files are not those that brickscan committed" in err) == (2, True), err
    assert secret not in (night.registry / "keys.toml").read_text()


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("gone_on_with", [True, False])
def test_flags_of_a_scan_that_was_killed_stand_in_the_report_of_their_night(
    night, own_registry, marked, monkeypatch, gone_on_with
):
    """A killed scan wrote flags and no end: the next one goes on after them, and their night was green without them."""
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1), "plain words " * 40])
    with monkeypatch.context() as patch:
        patch.setattr("scanner.cluster.scan.append_scan", lambda results, row: None)
        killed = night.scan().scan_id
    if gone_on_with:
        night.write("b", [marked(message_of(own_registry, "green", "bob"), 80, 2)])
        night.scan()
    found = night_of(night.results, 1.0, datetime.now(UTC).date())
    assert (found.documents, len(found.flags)) == ((3, 2) if gone_on_with else (2, 1))
    assert found.light == ("green" if gone_on_with else "amber"), found.why
    assert [f"scan {killed} finished 2 documents of this night and did not" in why for why in found.why] == (
        [] if gone_on_with else [True]
    )


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_post_that_is_dated_to_the_end_of_time_hides_no_flag(night, own_registry, marked, tmp_path):
    """A poster may choose the date: 9999-12-31 is what many systems write for never."""
    night.configure(columns='time = "posted"')
    texts = [marked(message_of(own_registry, "green", "alice"), 80, seed) for seed in range(2)]
    night.write("a", texts, posted=[datetime(9999, 12, 31, 23, tzinfo=UTC), datetime.now(UTC)])
    night.scan()
    rows = json.loads(call("flagged", night.config, "--all", "--format", "json")[1])["rows"]
    assert [row["user_id"] for row in rows] == ["alice", "alice"]
    explained = json.loads(call("explain", night.config, "a:0", "--json")[1])
    assert (explained["user_id"], explained["checked"]) == ("alice", True)
    assert len(call("export", night.config)[1].splitlines()) == 2
    assert call("report", night.config, "--out", tmp_path / "report")[0] == 0


def test_the_first_page_of_a_server_says_what_nobody_checked_of_all_that_it_shows(night, own_registry, marked):
    """Its decisions are read after the flag: of a table that is empty, and that nobody signed."""
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    night.scan()
    make_table(table_uri(str(night.results), "decisions"), SCHEMAS["decisions"], properties_of("decisions"))
    opened_signers._signers.clear()
    opened_signers._registries.clear()
    session = ReviewSession(Explainer(night.config), "eve")
    shown = session.view_flag(FlagRequest("all"), DocumentPlace(str(night.input / "a.parquet"), 0))
    assert "decisions is not signed" in str(shown.explained.not_checked)
