"""Decisions made in ROOST Coop come back: signed by plain code, sent by real requests, once through repeats."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import polars as pl
import pytest

from scanner import results
from scanner.errors import Refused, ScanFailed, SecretError
from scanner.exports import Outbox, Receiver, ReceiverAnswer
from scanner.results.flags import WantedFlags, newest
from scanner.results.flags import flag_id as item_id
from scanner.service import serving, webhook
from scanner.service.webhook import MOST_BYTES, Signatures, WebhookServer
from scanner.storage.toml import read_toml
from scanner.watermark.stacks.shared import HiddenValue
from schemas.config import ScanConfig
from tests.support.command_line import call
from tests.support.coop import WEBHOOK, Coop, action, coop
from tests.support.hostile_pages import HOSTILE


@pytest.fixture(scope="module")
def flags(scanned) -> list[dict]:
    """Standing flags; all but the last were sent to Coop."""
    found = results.flagged(scanned.results).collect().sort("path", "row").to_dicts()
    receiver = Receiver("coop", "https://coop.example/api/v1/report", HiddenValue({}), drops_repeats=False)
    outbox = Outbox(scanned.results, receiver, post=lambda *_: ReceiverAnswer(201, {}))
    assert {outbox.send(item_id(row), row, {}) for row in found[:-1]} == {"sent"}
    return found


class Posting:
    """Requests to a webhook app, and the lines of its log."""

    def __init__(self, server: WebhookServer, told: list[str]) -> None:
        self.server, self.told = server, told

    def post(self, body: bytes, *signatures: str, path: str = "/coop") -> tuple[int, dict]:
        """Status and answer of a request; Coop's own signature is sent unless others are given."""
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        connection.putrequest("POST", path)
        for one in signatures or (coop().signature(body),):
            if one:
                connection.putheader("Coop-Signature", one)
        connection.putheader("Content-Length", str(len(body)))
        with suppress(ConnectionError):  # an answer may come before all is sent
            connection.endheaders(body)
        answer = connection.getresponse()
        raw = answer.read()
        connection.close()
        return answer.status, json.loads(raw) if raw.startswith(b"{") else {"said": raw.decode()}


@pytest.fixture
def configured(night) -> Iterator[Path]:
    (night.folder / "coop.pem").write_bytes(coop().public)
    before = night.config.read_text()
    night.config.write_text(before.replace("[audit]", WEBHOOK + "[audit]"))
    yield night.config
    night.config.write_text(before)


@contextmanager
def listening(config: Path) -> Iterator[Posting]:
    told: list[str] = []
    server = WebhookServer(config, "127.0.0.1", 0, told.append)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield Posting(server, told)
    finally:
        server.end()
        thread.join()


@pytest.fixture
def hook(configured) -> Iterator[Posting]:
    with listening(configured) as posting:
        yield posting


def rows(night) -> list[dict]:
    return results.decisions(night.results).collect().to_dicts()


@pytest.mark.costly
def test_a_decision_made_elsewhere_comes_back_and_a_repeat_is_the_same_decision(night, flags, hook):
    acts = ("a-yes", "a-quote", "a-no", "a-quote-2")
    for number, (act, flag) in enumerate(zip(acts, flags, strict=False)):
        body = action(item_id(flag), act, note=f"because {number}" if number % 2 else None)
        assert [hook.post(body)[1]["outcome"] for _ in range(2)] == ["recorded", "recorded before"]
    found = rows(night)
    assert [row["decision"] for row in found] == ["confirmed", "quoted", "dismissed", "quoted"]
    for number, (row, flag) in enumerate(zip(found, flags, strict=False)):
        for name in ("path", "row", "doc_id", "text_sha256", "scan_id", "shard_id", "key_id"):
            assert row[name] == flag[name]
        assert (row["decided_by"], row["source"]) == ("mod@example.com", "webhook:coop")
        assert row["note"] == (f"because {number}" if number % 2 else None)
        assert row["user_ids"][0] == flag["user_id"]
    left = newest(night.results, 1e-6, WantedFlags(state="open"), None, fold=False).rows
    assert set(left["row"]) == {flag["row"] for flag in flags} - {row["row"] for row in found}
    assert hook.server.summary() == "4 recorded, 4 recorded before"


def test_what_coop_did_not_sign_is_nothing(night, flags, hook):
    body = action(item_id(flags[0]), "a-yes")
    own = coop().signature(body)
    other = action(item_id(flags[0]), "a-no")
    stranger = Coop().signature(body)
    wrong = ["", "x", "=", own[:-4], own + "AAAA", own.swapcase(), stranger, coop().signature(other), "A" * 3000]
    assert {hook.post(body, one)[0] for one in wrong} == {401}
    assert hook.post(body, own, own)[0] == 401  # two signatures are ambiguous
    assert hook.post(body + b" ", own)[0] == 401
    assert hook.post(body, own, path="/")[0] == 404
    assert (rows(night), hook.server.summary()) == ([], "11 not signed")
    assert len(hook.told) == 4  # the first, second, fourth and eighth
    assert not [line for line in hook.told if own in line or stranger in line]
    assert hook.post(body, own)[0] == 200


@pytest.mark.costly
def test_hostile_text_stays_text(night, flags, hook):
    hostile = [*HOSTILE, "=cmd|' /C calc'!A1", "x\r\nSet-Cookie: a=b", "\U0001f600" * 50]
    for said in hostile:
        body = action(item_id(flags[3]), "a-yes", by=said[:200], note=said, custom={said: [said]})
        assert hook.post(body)[1]["outcome"] == "recorded"
        for field in ("item", "action"):
            assert hook.post(action("x", "a-yes", **{field: {"id": said, "typeId": "post"}}))[0] in (404, 422)
    assert [(row["decided_by"], row["note"]) for row in rows(night)] == [(s[:200].strip(), s.strip()) for s in hostile]
    assert len(hook.told) == 3 * len(hostile)
    assert not [line for line in hook.told if not line.isprintable()]


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b"", "malformed"),
        (b"\xff", "malformed"),
        (b"null", "malformed"),
        (b"[" * 100_000, "malformed"),
        (b'{"item": {"id": 1, "typeId": "post"}, "action": {"id": "a-yes"}}', "malformed"),
        (b'{"appealId": "1", "item": {"id": "x", "typeId": "post"}, "appealDecision": "ACCEPT"}', "malformed"),
        (action("x", "a-yes", by="\ud800"), "malformed"),
        (action("x", "a-yes", note="\udfff"), "malformed"),
        (action("x", "a-yes", by="m" * 201), "malformed"),
        (action("x", "a-yes"), "unknown item"),
        (action("brickscan-" + "0" * 32, "a-yes"), "unknown item"),
        (action("x" * 100_000, "a-yes"), "unknown item"),
        (action("x", "a-other"), "no decision"),
        (action("x", "a-yes", item={"id": "x", "typeId": "other"}), "no decision"),
        (action("x", "a-yes", by=None), "no decision"),
        (action("x", "a-yes", by=" \n"), "no decision"),
        (action("x", "a-yes", by=None, rules=[{"id": "r", "name": "spam"}]), "no decision"),
    ],
)
def test_what_is_signed_and_no_decision_is_refused_and_counted(night, hook, flags, body, outcome):
    status, said = hook.post(body)
    assert (said["outcome"], 400 <= status < 500, len(said["said"]) < 500) == (outcome, True, True)
    assert (rows(night), hook.server.summary()) == ([], f"1 {outcome}")
    assert len(hook.told) == 1


def test_what_was_not_sent_to_coop_is_unknown(night, flags, hook):
    status, said = hook.post(action(item_id(flags[-1]), "a-yes"))
    assert (status, "sent no such item" in said["said"]) == (404, True)
    assert rows(night) == []


def test_a_flag_whose_text_changed_or_that_is_gone_is_not_decided_on(night, flags, hook, monkeypatch):
    body, find = action(item_id(flags[0]), "a-yes"), webhook.flag_as_shown

    monkeypatch.setattr(webhook, "flag_as_shown", lambda folder, rate, place, _: find(folder, rate, place, "0" * 64))
    assert hook.post(body)[0] == 409
    monkeypatch.setattr(webhook, "flag_as_shown", lambda folder, _, place, digest: find(folder, 1e-300, place, digest))
    assert hook.post(body)[0] == 404
    assert (rows(night), hook.server.summary()) == ([], "1 text changed, 1 unknown item")


def test_a_body_that_comes_again_does_not_undo_what_was_decided_since(night, flags, hook):
    first, second = (action(item_id(flags[0]), act) for act in ("a-yes", "a-no"))
    assert [hook.post(body)[0] for body in (first, second, second)] == [200, 200, 200]
    status, said = hook.post(first)
    assert (status, said["outcome"], "dismissed came after it" in said["said"]) == (409, "overtaken", True)
    assert hook.post(action(item_id(flags[0]), "a-yes", note="anew"))[0] == 200
    assert hook.post(first)[0] == 200  # the standing decision again: nothing changes
    assert hook.post(second)[0] == 409
    assert [row["decision"] for row in rows(night)] == ["confirmed", "dismissed", "confirmed"]
    standing = results.current_decisions(night.results).collect()
    assert standing["decision"].to_list() == ["confirmed"]


def test_deliveries_at_once_are_one_decision_each(night, flags, hook):
    bodies = [action(item_id(flags[0]), "a-yes", by=f"mod-{i % 3}@example.com") for i in range(9)]
    with ThreadPoolExecutor(9) as threads:
        statuses = list(threads.map(lambda body: hook.post(body)[0], bodies))
    assert statuses == [200] * 9
    assert sorted(row["decided_by"] for row in rows(night)) == [f"mod-{i}@example.com" for i in range(3)]
    assert hook.server.summary() == "3 recorded, 6 recorded before"


@pytest.mark.parametrize("after_the_commit", [False, True])
def test_what_failed_or_got_no_answer_comes_again_and_is_one_decision(
    night, flags, hook, monkeypatch, after_the_commit
):
    body, kept = action(item_id(flags[0]), "a-quote"), webhook.decide

    def dies(*arguments):
        if after_the_commit:
            kept(*arguments)
        raise ScanFailed("the disk of /secret/place is full")

    with monkeypatch.context() as patch:
        patch.setattr(webhook, "decide", dies)
        status, said = hook.post(body)
    assert (status, "/secret/place" in said["said"], "/secret/place" in hook.told[0]) == (503, False, True)
    assert len(rows(night)) == after_the_commit
    assert hook.post(body)[0] == 200
    assert [row["decision"] for row in rows(night)] == ["quoted"]


def test_a_body_too_long_or_too_slow_is_not_waited_for(night, hook, monkeypatch):
    assert hook.post(b" " * (MOST_BYTES + 1))[0] == 413
    head = b"POST /coop HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    assert answered(hook, head + b"x" * 400_000) == b"413"
    monkeypatch.setattr(serving, "SECONDS_TO_READ", 0.05)
    assert answered(hook, b"POST /coop HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc") == b"408"
    assert rows(night) == []


def answered(hook: Posting, raw: bytes) -> bytes:
    """The status of the answer to an unfinished request."""
    with socket.create_connection(("127.0.0.1", hook.server.port), timeout=120) as connection:
        with suppress(ConnectionError):
            connection.sendall(raw)
        return connection.recv(12)[9:]


def test_a_key_that_others_can_change_or_that_is_none_is_refused(configured):
    pem = configured.parent / "coop.pem"
    (configured.parent / "private.pem").write_bytes(coop().private)
    for wrong in (b"", b"x", coop().private, coop().public[:200], Coop(1024).public, b"x" * 5000):
        pem.write_bytes(wrong)
        pem.chmod(0o644)
        with pytest.raises(Refused) as refused:
            WebhookServer(configured, "127.0.0.1", 0, print)
        assert coop().private.decode()[60:100] not in str(refused.value)
    pem.write_bytes(coop().public)
    pem.chmod(0o664)
    with pytest.raises(SecretError, match="must not write it"):
        WebhookServer(configured, "127.0.0.1", 0, print)
    pem.unlink()
    assert call("webhook", configured)[0] == 2


def test_the_command_says_what_is_missing(night, tmp_path):
    code, _, err = call("webhook", night.config)
    assert (code, "has no section [export.coop.webhook]" in err) == (2, True)
    for wrong in ('quoted = ["a-quote", "a-yes"]', 'quoted = [""]', 'quoted = "a"'):
        path = tmp_path / "scan.toml"
        about = WEBHOOK.replace('quoted = ["a-quote", "a-quote-2"]', wrong)
        path.write_text(night.config.read_text().replace("[audit]", about + "[audit]"))
        with pytest.raises(Refused):
            read_toml(path, ScanConfig)


def test_a_signature_is_of_one_body_by_one_key():
    signatures, body = Signatures(coop().public, "here"), b'{"a": 1}'
    assert signatures.holds(coop().signature(body), body)
    assert not signatures.holds(coop().signature(body), body + b"\n")
    assert not Signatures(Coop().public, "here").holds(coop().signature(body), body)


def test_decisions_of_before_stay_as_they_are(night, flags, configured):
    """The newest rows of each decider stand side by side, whether from the app, the command or the webhook."""
    assert call("decide", configured, f"{flags[0]['path']}:{flags[0]['row']}", "dismissed", "--by", "ruth")[0] == 0
    with listening(configured) as hook:
        assert hook.post(action(item_id(flags[0]), "a-yes"))[0] == 200
    standing = results.current_decisions(night.results).collect().sort("decided_by")
    assert standing.select("decided_by", "decision").rows() == [("mod@example.com", "confirmed"), ("ruth", "dismissed")]
    assert standing["source"].to_list() == ["webhook:coop", "command"]
    assert standing.schema["decided_at"] == pl.Datetime("us", "UTC")
    shutil.rmtree(Path(night.results) / "decisions")


def test_no_answer_sends_a_client_where_its_header_says(hook):
    connection = HTTPConnection("127.0.0.1", hook.server.port, timeout=120)
    connection.request("POST", "/coop/", b"", {"Host": "elsewhere.example"})
    answer = connection.getresponse()
    assert (answer.status, b"elsewhere" in answer.read()) == (404, False)
    assert not [value for _, value in answer.getheaders() if "elsewhere" in value]
    connection.close()
