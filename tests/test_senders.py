"""The scripts that report flags to Coop and Ozone, against servers with the published calls: once each, through kills.

The contracts are written down here from roostorg/coop's docs/api/report.md and from the lexicon
tools.ozone.moderation.emitEvent of bluesky-social/atproto, as they stood in 2026.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import jsonschema
import pytest

from schemas.verdict import Verdict, VerdictDocument, VerdictKey, VerdictP
from tests.support.examples import FOLDER

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


def verdict(number: int, account: str) -> Verdict:
    """A flag as `export` prints it."""
    return Verdict(
        id=f"brickscan-{number:032x}",
        document=VerdictDocument(
            path="/in/a.parquet", row=number, doc_id=f"=cmd|{number}", account_id=account, created_at=None
        ),
        text_sha256=f"{number:064x}",
        key=VerdictKey(key_id="green", commitment=None, format="greenlist-v3", tokenizer_sha256=None),
        message=3,
        user_id="alice",
        naming="named",
        named=("alice",),
        p=VerdictP.model_construct(log10_p_global=-9.0),  # scripts read none of its numbers
        checked=True,
        proof="proved",
        audit="passed",
        spans=(),
        says=("Marked for: alice \U0001f600", "How rarely: once in 1e9"),
        does_not_say=("who wrote it",),
        scan_id="scan",
        scanned_at=datetime(2026, 11, 26, tzinfo=UTC),
        scan_version="0.1.0",
        replay="brickscan replay",
    )


class Sender(NamedTuple):
    """A script with its files, and the server that it sends to."""

    folder: Path
    console: Console
    name: str

    def send(self, **environment: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a run. No output shows the token."""
        settings = {"COOP_URL": self.console.url, "COOP_API_KEY": TOKEN, "COOP_ITEM_TYPE": "post"}
        settings |= {"COOP_REPORTER_TYPE": "system", "OZONE_URL": self.console.url, "OZONE_TOKEN": TOKEN}
        settings |= {"OZONE_MODERATOR": "did:plc:moderator"} | environment
        files = [self.folder / "verdicts.jsonl", *[self.ledger] * (self.name == "coop")]
        found = subprocess.run(
            [sys.executable, FOLDER / f"send_to_{self.name}.py", *files],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for token in (TOKEN, settings["COOP_API_KEY"], settings["OZONE_TOKEN"]):
            assert token not in found.stdout + found.stderr
        assert "Traceback" not in found.stderr
        return found.returncode, found.stdout, found.stderr

    @property
    def ledger(self) -> Path:
        return self.folder / "sent.txt"

    @property
    def ids(self) -> list[str]:
        """Ids of the flags that the server took."""
        return [one.get("externalId") or one["reportedItem"]["id"] for one in self.console.taken]


@pytest.fixture
def console() -> Iterator[Console]:
    server = Console()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def sender(request, console, tmp_path) -> Sender:
    """A script and ten flags; all accounts but one are DIDs."""
    accounts = [*(f"did:plc:{i}" for i in range(9)), "=nobody"]
    lines = (verdict(number, account).model_dump_json() for number, account in enumerate(accounts))
    (tmp_path / "verdicts.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return Sender(tmp_path, console, request.param)


@pytest.mark.parametrize(("sender", "most"), [("coop", 10), ("ozone", 9)], indirect=["sender"])
def test_each_flag_is_sent_once(sender, most):
    code, out, err = sender.send()
    assert (code, len(sender.ids)) == (int(most < 10), most), out + err
    code, out, _ = sender.send()
    assert (len(sender.ids), f"{most} sent before" in out) == (most, True)


@pytest.mark.parametrize(("sender", "in_doubt"), [("coop", 1), ("ozone", 0)], indirect=["sender"])
def test_nothing_is_sent_twice_after_a_kill(sender, in_doubt):
    """The connection is cut after three reports were answered, and a fourth was taken without an answer."""
    sender.console.dies_after = 3
    code, _, err = sender.send()
    assert (code, len(sender.ids), "cannot be reached" in err) == (1, 4, True)
    sender.console.dies_after = None
    code, out, _ = sender.send()
    assert (code, "1 in doubt" in out) == (1, bool(in_doubt))
    assert len(set(sender.ids)) == len(sender.ids) == 9 + in_doubt
    if in_doubt:  # somebody looks, does not find it, and deletes its line
        lines = sender.ledger.read_text().splitlines(keepends=True)
        lines.remove(f"sending {sender.ids[3]}\n")
        sender.ledger.write_text("".join(lines))
        assert sender.send()[:2] == (0, "1 sent, 9 sent before\n")


@pytest.mark.parametrize("sender", ["coop"], indirect=True)
def test_a_torn_line_of_the_ledger_is_of_a_report_that_was_not_sent(sender):
    sender.ledger.write_text(f"sending brickscan-{0:032x}\nsent brickscan-{0:032x}\nsending brickscan-000")
    assert sender.send()[:2] == (0, "9 sent, 1 sent before\n")
    assert sender.send()[:2] == (0, "10 sent before\n")


@pytest.mark.parametrize("sender", ["coop"], indirect=True)
@pytest.mark.parametrize("status", [307, 500])
def test_a_server_that_fails_or_sends_elsewhere_gets_one_report(sender, status):
    """A redirect is not followed. The report may have been taken, so no second one is sent."""
    sender.console.answers = status
    code, _, err = sender.send()
    assert (code, f"answered {status}" in err, len(sender.ids)) == (1, True, 1)
    sender.console.answers = None
    assert sender.send()[:2] == (1, "9 sent, 1 in doubt\n")
    assert len(set(sender.ids)) == len(sender.ids) == 10


@pytest.mark.parametrize("sender", ["coop", "ozone"], indirect=True)
def test_a_wrong_token_and_a_wrong_place_are_told_and_mended(sender):
    code, _, err = sender.send(COOP_API_KEY="others", OZONE_TOKEN="others")
    assert (code, "answered 401" in err, sender.ids) == (1, True, [])
    two_lines = "of two lines\nX-More: 1"
    for wrong in (
        {"COOP_API_KEY": two_lines, "OZONE_TOKEN": two_lines},
        {"COOP_ITEM_TYPE": "", "OZONE_MODERATOR": ""},
    ):
        code, _, err = sender.send(**wrong)
        assert (code, "is not set, or is more than a word" in err, sender.ids) == (1, True, [])
    for url in ("http://coop.example", "ftp://127.0.0.1", "https://"):
        code, _, err = sender.send(COOP_URL=url, OZONE_URL=url)
        assert (code, "https://… is needed" in err) == (1, True), url
    sender.send()
    assert len(sender.ids) >= 9


@pytest.mark.parametrize("sender", ["coop"], indirect=True)
def test_two_runs_at_once_send_once(sender):
    outputs = list[str]()
    runs = [threading.Thread(target=lambda: outputs.append(sender.send()[1])) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted(outputs) == ["10 sent\n", "10 sent before\n"]
    assert len(sender.ids) == 10
