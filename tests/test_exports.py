"""`brickscan export` in each form, and decisions that come back."""

import csv
import io
import json
import shlex

import jsonschema
import pytest

from scanner import results
from scanner.evidence.advice import Precision, precision
from scanner.exports import VERDICT_COLUMNS
from scanner.printable import cell
from schemas.verdict import Verdict
from tests.support.command_line import call
from tests.support.hostile_pages import HOSTILE
from tests.support.night import Night
from tests.support.opened_once import keep_inspector
from tests.support.signed_tables import drop_table
from tests.support.two_keys import message_of
from tests.support.without_ray import put_in_the_place_of_ray


@pytest.fixture(scope="module")
def scanned(tmp_path_factory, registry, marked, words) -> Night:
    """Ten flags with hostile ids, which a spreadsheet would compute; all accounts but one are DIDs."""
    folder = tmp_path_factory.mktemp("export")
    alice = message_of(registry, "green", "alice")
    texts = [f"{hostile}\n{marked(alice, 80, seed)}\U0001f600" for seed, hostile in enumerate(HOSTILE)]
    ids = [f"{first}cmd|' /C calc'!A{i}" for i, first in enumerate("=+-@\t\r\n＝ x")]
    accounts = [f"did:plc:{i}" for i in range(9)] + ["=nobody"]
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        keep_inspector(patch)
        night = Night(folder, registry)
        night.configure(columns='account = "account"')
        night.write("a", texts, doc_id=ids, account=accounts)
        night.scan()
    return night


def export(night: Night, *arguments: str) -> tuple[int, str, str]:
    return call("export", night.config, "--format", *arguments)


@pytest.mark.costly
def test_a_verdict_is_what_its_schema_says_and_replays(scanned):
    code, out, err = export(scanned, "verdict")
    assert (code, err) == (0, "10 flagged\n")
    code, schema, _ = call("schema", "verdict")
    verdicts = [json.loads(line) for line in out.splitlines()]
    assert len(verdicts) == len({verdict["id"] for verdict in verdicts}) == 10
    for verdict in verdicts:
        jsonschema.validate(verdict, json.loads(schema))
        Verdict.model_validate(verdict)
        assert (verdict["user_id"], verdict["key"]["commitment"] is not None) == ("alice", True)
    _, *arguments = shlex.split(verdicts[0]["replay"])
    assert call(*arguments)[0] == 0
    assert export(scanned, "verdict")[1] == out


@pytest.mark.costly
def test_decisions_on_exported_flags_come_back(scanned):
    """Out as verdicts, decided elsewhere, back as a file: the flags are open no more, and the report counts them."""
    verdicts = [json.loads(line) for line in export(scanned, "verdict", "--open")[1].splitlines()]
    rows = [
        {"id": verdict["id"], "decision": "dismissed" if number % 2 else "confirmed", "decided_by": "mod@example.com"}
        for number, verdict in enumerate(verdicts)
    ]
    file = scanned.folder / "decisions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("decide", scanned.config, "--from", file) == (0, f"{file}: 10 recorded, 0 recorded before\n", "")
    assert call("decide", scanned.config, "--from", file) == (0, f"{file}: 0 recorded, 10 recorded before\n", "")
    assert export(scanned, "verdict", "--open")[1] == ""
    standing = results.current_decisions(scanned.results).collect()
    places = {(verdict["document"]["path"], verdict["document"]["row"]) for verdict in verdicts}
    assert set(standing.select("path", "row").iter_rows()) == places
    assert precision(standing) == Precision(5, 5, 0, 0)
    drop_table(scanned.results, scanned.registry, "decisions")


def test_no_cell_of_a_table_is_a_formula(scanned):
    code, out, _ = export(scanned, "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (code, len(rows), tuple(rows[0])) == (0, 10, VERDICT_COLUMNS)
    cells = [value for row in rows for value in row.values()]
    assert not [value for value in cells if value[:1] in set("=+@\t\r\n＝＋－＠")]
    assert {value for value in cells if value.startswith("-")} == {row["log10_p_global"] for row in rows}  # numbers


@pytest.mark.parametrize("value", ["a;=1+1", 'a;"=1+1', "a; \t@SUM(1)", "=1;+2;-3", "a;＝1", "a;b=c", "2;3"])
def test_no_part_of_a_cell_is_a_formula_where_semicolons_part_cells(value):
    """Spreadsheets part cells by semicolons in countries with decimal commas."""
    line = io.StringIO()
    csv.writer(line).writerow(["x", cell(value), "y"])
    for parted in csv.reader(io.StringIO(line.getvalue()), delimiter=";"):
        assert not [part for part in parted if part.strip(' "')[:1] in set("=+@-＝＋－＠")]


@pytest.mark.costly
def test_label_studio_gets_characters_of_the_text(scanned):
    code, out, _ = export(scanned, "label-studio")
    tasks = json.loads(out)
    assert (code, len(tasks)) == (0, 10)
    for task in tasks:
        (prediction,) = task["predictions"]
        for region in prediction["result"]:
            value = region["value"]
            assert task["data"]["text"][value["start"] : value["end"]] == value["text"] != ""
            assert (region["type"], region["from_name"], region["to_name"]) == ("labels", "label", "text")
