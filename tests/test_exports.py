"""`brickscan export` against servers with the published calls: each report is sent once, through kills.

The contracts are written down here from roostorg/coop's docs/api/report.md and from the lexicon
tools.ozone.moderation.emitEvent of bluesky-social/atproto, as they stood in 2026.
"""

import csv
import io
import json
import shlex
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema
import pytest

from scanner import exports, results
from scanner.errors import ScanFailed
from scanner.evidence.advice import Precision, precision
from scanner.exports import VERDICT_COLUMNS, ReceiverAnswer, ozone_or_coop, sent_records
from scanner.printable import cell
from schemas.verdict import Verdict
from tests.support.command_line import call
from tests.support.hostile_pages import HOSTILE
from tests.support.night import Night
from tests.support.two_keys import message_of
from tests.support.without_ray import open_once, put_in_the_place_of_ray

TOKEN = "tok-5f2c9a"
STRING = {"type": "string"}
ITEM = {"type": "object", "required": ["id", "typeId"], "properties": {"id": STRING, "typeId": STRING}}
COOP = {
    "type": "object",
    "required": ["reporter", "reportedAt", "reportedItem"],
    "additionalProperties": False,
    "properties": {
        "reporter": ITEM | {"required": ["kind", "typeId", "id"], "properties": {"kind": {"const": "user"}}},
        "reportedAt": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT"},
        "reportedForReason": {"type": "object", "properties": {"policyId": STRING, "reason": STRING}},
        "reportedItem": ITEM | {"required": ["id", "typeId", "data"]},
    },
}
OZONE = {
    "type": "object",
    "required": ["event", "subject", "createdBy"],
    "additionalProperties": False,
    "properties": {
        "event": {
            "type": "object",
            "required": ["$type", "reportType"],
            "properties": {"$type": {"const": "tools.ozone.moderation.defs#modEventReport"}, "comment": STRING},
        },
        "subject": {
            "type": "object",
            "required": ["$type", "did"],
            "properties": {"$type": {"const": "com.atproto.admin.defs#repoRef"}, "did": {"pattern": "^did:"}},
        },
        "createdBy": {"type": "string", "pattern": "^did:"},
        "externalId": STRING,
        "modTool": {"type": "object", "required": ["name"]},
    },
}


class Console(ThreadingHTTPServer):
    """A server for Coop's and Ozone's calls. It checks tokens and bodies as published; Ozone takes an id once."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: list[dict] = []
        self.answers = None  # status of every answer, with a redirect
        self.dies_after = None  # number of reports to answer before the connection is cut

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_args):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        console: Console = self.server
        if console.answers is not None:
            console.taken.append(body)
            self.send_response(console.answers)
            self.send_header("Location", f"{console.url}/api/v1/report?elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path == "/api/v1/report":
            allowed, schema = self.headers["X-API-KEY"] == TOKEN, COOP
        else:
            assert self.path == "/xrpc/tools.ozone.moderation.emitEvent"
            allowed, schema = self.headers["Authorization"] == f"Bearer {TOKEN}", OZONE
            if any(one.get("externalId") == body.get("externalId") for one in console.taken):
                self._answer(400, {"error": "DuplicateExternalId", "message": "exists"})
                return
        if not allowed:
            self._answer(401, {"errors": [{"status": 401, "type": ["/errors/unauthorized"], "title": "no"}]})
            return
        jsonschema.validate(body, schema)
        console.taken.append(body)
        if console.dies_after is not None:
            console.dies_after -= 1
            if console.dies_after < 0:
                self.close_connection = True
                return
        self._answer(201, {"reportId": f"report-{len(console.taken)}"})

    def _answer(self, status, body):
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


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
        open_once(patch)
        night = Night(folder, registry)
        night.configure(columns='account = "account"')
        night.write("a", texts, doc_id=ids, account=accounts)
        night.scan()
    return night


@pytest.fixture
def console(scanned, monkeypatch) -> Iterator[Console]:
    shutil.rmtree(Path(scanned.results) / "sent", ignore_errors=True)
    server = Console()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    token = scanned.folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    monkeypatch.setenv("OZONE_TOKEN", TOKEN)
    about = f"""\
[export.coop]
url = "{server.url}"
token = "file:token"
item_type = "post"
reporter_type = "system"
[export.ozone]
url = "{server.url}/"
token = "env:OZONE_TOKEN"
created_by = "did:plc:moderator"
"""
    scanned.configure(columns='account = "account"')
    scanned.config.write_text(scanned.config.read_text() + about)
    with pytest.MonkeyPatch.context() as patch:
        open_once(patch)
        yield server
    server.shutdown()
    server.server_close()
    scanned.configure(columns='account = "account"')


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
    shutil.rmtree(Path(scanned.results) / "decisions")


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


def test_nothing_is_sent_unless_it_is_asked_for(scanned, console):
    code, out, err = export(scanned, "coop")
    assert (code, console.taken, sent_records(scanned.results).collect().height) == (0, [], 0)
    assert "nothing was sent: --send sends this" in err
    for line in out.splitlines():
        jsonschema.validate(json.loads(line), COOP)
    assert TOKEN not in out + err
    assert export(scanned, "csv", "--send")[0] == 2


@pytest.mark.costly
@pytest.mark.parametrize("form", ["coop", "ozone"])
def test_each_flag_is_sent_once(scanned, console, form):
    most = {"coop": 10, "ozone": 9}[form]  # one account is no DID
    code, out, err = export(scanned, form, "--send")
    assert (code, len(console.taken)) == (int(most < 10), most), out + err
    code, out, _ = export(scanned, form, "--send")
    assert (len(console.taken), f"{most} sent before" in out) == (most, True)


@pytest.mark.costly
@pytest.mark.parametrize(("form", "again"), [("coop", False), ("coop", True), ("ozone", False)])
def test_nothing_is_sent_twice_after_a_kill(scanned, console, form, again):
    """The connection is cut after three reports were answered, and a fourth was taken without an answer."""
    console.dies_after = 3
    code, _, err = export(scanned, form, "--send")
    assert (code, len(console.taken), "cannot be sent to" in err) == (1, 4, True)
    assert TOKEN not in err
    console.dies_after = None
    code, out, _ = export(scanned, form, "--send", *["--again"] * again)
    ids = [one.get("externalId") or one["reportedItem"]["id"] for one in console.taken]
    most = {"coop": 10, "ozone": 9}[form]
    assert len(set(ids)) == most
    assert len(ids) == most + again  # Coop may not drop repeats, so only --again risks one
    assert (code, "1 in doubt" in out) == (int(not again), form == "coop" and not again)


@pytest.mark.costly
@pytest.mark.parametrize("status", [307, 500])
def test_a_receiver_that_fails_or_sends_elsewhere_ends_the_run_and_gets_one_report(scanned, console, status):
    """A redirect is not followed. The report may have been taken, so no second one is sent."""
    console.answers = status
    code, _, err = export(scanned, "coop", "--send")
    assert (code, f"answered {status}" in err, len(console.taken)) == (1, True, 1)
    console.answers = None
    code, out, _ = export(scanned, "coop", "--send")
    assert (code, "1 in doubt, 9 sent" in out, len(console.taken)) == (1, True, 10)
    ids = [one["reportedItem"]["id"] for one in console.taken]
    assert len(set(ids)) == len(ids)


@pytest.mark.costly
def test_a_process_that_dies_before_or_after_it_sent_leaves_a_doubt_and_no_second_report(scanned, console, monkeypatch):
    def dies(*_args) -> ReceiverAnswer:
        raise KeyboardInterrupt

    monkeypatch.setattr(exports, "_post", dies)
    assert export(scanned, "coop", "--send")[0] == 130
    monkeypatch.undo()
    monkeypatch.setenv("OZONE_TOKEN", TOKEN)
    code, out, _ = export(scanned, "coop", "--send")
    assert (code, len(console.taken), "1 in doubt, 9 sent" in out) == (1, 9, True)


@pytest.mark.usefixtures("console")
def test_no_repr_of_a_receiver_shows_its_token(scanned):
    for name in ("coop", "ozone"):
        receiver = ozone_or_coop(scanned.config, name)[1]()
        assert any(TOKEN in value for value in receiver.headers.value.values())
        assert TOKEN not in repr(receiver)


@pytest.mark.costly
def test_a_wrong_token_and_a_wrong_place_are_told_and_mended(scanned, console):
    (scanned.folder / "token").write_text("other")
    code, out, err = export(scanned, "coop", "--send")
    assert (code, "the token was not accepted" in err, console.taken) == (1, True, [])
    assert "other" not in out + err
    (scanned.folder / "token").chmod(0o644)
    assert "others must not read it" in export(scanned, "coop", "--send")[2]
    (scanned.folder / "token").chmod(0o600)
    (scanned.folder / "token").write_text(TOKEN)
    assert export(scanned, "coop", "--send")[0] == 0
    assert len(console.taken) == 10
    for url in ("http://coop.example", "ftp://127.0.0.1", "https://u:p@coop.example", "https://"):
        scanned.config.write_text(scanned.config.read_text().replace(console.url, url, 1))
        code, _, err = export(scanned, "coop", "--send")
        assert (code, "is no address to send to" in err) == (2, True), url
        scanned.config.write_text(scanned.config.read_text().replace(url, console.url, 1))


def test_a_redirect_takes_the_token_nowhere():
    answered = exports._NoRedirect().redirect_request(None, None, 302, "", {}, "http://evil.example")
    assert answered is None
    with pytest.raises(ScanFailed, match="cannot be sent to"):
        exports._post("http://127.0.0.1:1/", {}, {})
