"""Attacks on the detector that once went through: forms, addresses, memory, a crowd of one, panics, keys, clocks."""

import json
import os
import resource
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from docs.examples.check_report import check
from scanner.errors import Refused
from scanner.registry import add_users, load_registry, new_key
from scanner.registry.shown_seeds import shown_path
from scanner.service import detector_app, known_registry, scoring, scoring_pool
from scanner.service.detector_app import _fields, network_of
from scanner.service.detector_log import DetectorLog
from scanner.service.known_registry import refuse_older
from scanner.service.scoring import ServedScan, find_marks
from scanner.service.signing import (
    Signer,
    expert_of,
    issue_token,
    new_signing_key,
    revoke_signing_key,
    revoke_token,
    signing_keys,
    tokens,
)
from scanner.storage import toml
from scanner.storage.locations import read_named
from schemas.service import DetectorConfig, DetectorResult, ProxyConfig, Statement
from tests.fixed import fix_secrets
from tests.support.detecting import ask, configured, detecting, request, until
from tests.support.showing import make_seeded_registry, show_text
from tests.support.two_keys import TOKENIZER, marked_text, message_of

pytestmark = pytest.mark.seconds

PROXY = '[proxy]\naddresses = ["127.0.0.0/8"]\ncaller = "X-Forwarded-For"\nexpert = "X-Expert"\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory, registry):
    config = configured(tmp_path_factory.mktemp("attacked"), registry, detector=PROXY + "[budget]\ntexts = 2\n")
    with detecting(config) as server:
        yield server


def statement(key_id: str) -> Statement:
    return Statement(
        detector="d",
        signing_key=key_id,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        text_sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        result=DetectorResult.NOT_FOUND,
        techniques=(),
        technique=None,
        commitments_head=None,
        false_positive_rate=1e-8,
        audited=None,
        version="0",
    )


def signpost(state: Path) -> bytes:
    return json.dumps({"signingKeys": [key.model_dump(mode="json") for key in signing_keys(state)]}).encode()


@pytest.mark.parametrize("depth", [2, 400])
def test_parts_of_parts_of_a_form_are_not_read(depth):
    """62 KB took a CPU second of the thread that answers everybody, 2 MB a minute."""
    head = b"--e%d\r\nContent-Type: multipart/mixed; boundary=e%d\r\n\r\n"
    body = b"".join(head % (place, place + 1) for place in range(depth)) + b"x\n" * 500_000
    began = time.process_time()
    assert _fields("multipart/form-data; boundary=e0", body) == {}
    assert time.process_time() - began < 0.5


def test_a_form_has_the_fields_of_the_page_and_no_thousands():
    part = b'--e\r\nContent-Disposition: form-data; name="text"\r\n\r\na\r\nb\r\n--e--\r\n'
    assert _fields("multipart/form-data; boundary=e", part) == {"text": ("", b"a\r\nb")}
    named = b'--"e\r\nContent-Disposition: form-data; name="file"; filename="\xc3\xa9.md"\r\n\r\n\x00--e\r\n--"e--'
    ((name, value),) = _fields('multipart/form-data; boundary="\\"e"', named).values()
    assert (name[-3:], value) == (".md", b"\x00--e")
    for kind, body in (
        ("multipart/form-data; boundary=e", part[:-7] * 50),
        ("multipart/form-data", part),
        ("(" * 9000, b""),
    ):
        with pytest.raises(detector_app.HTTPException):
            _fields(kind, body)


def field(name: str, value: bytes, more: str = "") -> bytes:
    return f'--e\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


@pytest.mark.parametrize(
    ("parts", "status", "words"),
    [
        ([field("text", b"one"), field("file", b"two", '; filename="a.txt"')], 422, "not both"),
        ([field("text", b"one"), field("text", b"two")], 422, "may occur only once"),
        (
            [field("file", b"one", '; filename="a.txt"'), field("file", b"two", '; filename="b.txt"')],
            422,
            "may occur only once",
        ),
        ([field("text", b"b25l", "\r\nContent-Transfer-Encoding: base64")], 422, "must not be encoded"),
        ([field("text", b"\xe9 one")], 422, "is not valid UTF-8"),
        ([field("text", b"o\xed\xa0\x80ne")], 422, "is not valid UTF-8"),
        ([field("file", b"one", '; filename="a.exe"')], 415, ".txt, .md"),
        ([], 422, "Either paste a text"),
    ],
)
def test_a_form_that_could_be_answered_about_another_text_is_refused(server, parts, status, words):
    """The last was answered of a text and a file, or of two of one name, and what is no UTF-8 as U+FFFD."""
    body = b"".join(parts) + b"--e--\r\n"
    got, _, page = request(server, "POST", "/", body, Content_Type="multipart/form-data; boundary=e")
    assert (got, words in page.decode()) == (status, True)


def test_a_boundary_in_letters_that_no_header_has_is_no_fault(server):
    """It was one of the detector's own, with a line of the log each."""
    kind = "multipart/form-data; boundary*=utf-8''%E2%82%AC"
    assert request(server, "POST", "/", b"", Content_Type=kind)[0] == 415


def test_nobody_is_sent_elsewhere_by_a_slash(server):
    """A client would send its text again, to the host that the request named, without TLS."""
    status, headers, _ = request(server, "POST", "/detect/", "{}", Host="evil.example")
    assert (status, "location" in headers) == (404, False)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("::ffff:192.0.2.1", "192.0.2.1"),  # else all of IPv4 was one caller
        ("192.0.2.1:50000", "192.0.2.1"),  # else each port was a caller
        ("[2001:db8:0:1::1]:443", "2001:db8::/56"),
        ("2001:db8:0:ff::1%eth0", "2001:db8::/56"),
        ("2001:db8:0:100::1", "2001:db8:0:100::/56"),
        ("unknown", "unknown"),
    ],
)
def test_a_household_is_one_caller(address, network):
    assert network_of(address) == network


@pytest.mark.parametrize(
    ("addresses", "address", "sends"),
    [
        (("10.0.0.1",), "10.0.0.1", True),
        (("10.0.0.1",), "::ffff:10.0.0.1", True),
        (("::ffff:10.0.0.1",), "10.0.0.1", False),  # nobody reaches us so who has no IPv6
        (("10.0.0.1", "10.1.0.0/16"), "10.1.255.3", True),
        (("10.1.0.0/16", "2001:db8::/32"), "10.2.0.1", False),
        (("2001:db8::/32",), "2001:db8:1::1", True),
        (("10.0.0.1",), "unix", False),
    ],
)
def test_a_proxy_is_known_by_its_address_or_network(addresses, address, sends):
    assert ProxyConfig(addresses=addresses).sends(address) == sends


def test_ports_and_networks_of_one_household_share_its_budget(server, plain):
    callers = ("2001:db8::1", "[2001:db8:0:7::2]:99", "2001:db8:0:ff::3")
    assert [ask(server, plain(150, n), X_Forwarded_For=one)["status"] for n, one in enumerate(callers)] == [
        200,
        200,
        429,
    ]


def test_two_experts_in_one_request_are_nobody(server, plain):
    body = json.dumps({"text": plain(150, 9)}).encode()
    head = f"POST /detect HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    for names, status in ((["Ms Roth"], b"200"), (["Mallory", "Ms Roth"], b"400")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall((head + "".join(f"X-Expert: {name}\r\n" for name in names) + "\r\n").encode() + body)
            assert connection.makefile("rb").readline().split()[1] == status


@pytest.mark.parametrize("good_first", [True, False])
def test_two_tokens_in_one_request_are_nobodys(server, plain, good_first):
    """The first one counted, whichever a proxy in front had looked at."""
    token, _ = issue_token(server.answers.state, "Ms Roth", datetime.now(UTC) + timedelta(days=1))
    body = json.dumps({"text": plain(200, 41)})
    named = [f"Authorization: Bearer {one}" for one in (token, "other")][:: 1 if good_first else -1]
    head = "\r\n".join(
        ["POST /detect HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", "Connection: close", *named]
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"{head}\r\n\r\n{body}".encode())
        assert connection.recv(12) == b"HTTP/1.1 400"


def test_bodies_together_have_a_bound(server, monkeypatch):
    """1,024 of 6 MB each, which anybody may send, were more memory than a pod has."""
    monkeypatch.setattr(server.room, "_max_bytes", 50_000)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
        slow.sendall(b"POST /detect HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n" + b" " * 40_000)
        until(lambda: server.room._held == 40_000)
        assert request(server, "POST", "/detect", " " * 20_000)[0] == 503
    until(lambda: server.room._held == 0)
    assert request(server, "POST", "/detect", " " * 20_000)[0] == 422
    assert server.room._held == 0


@pytest.mark.costly
def test_an_unforeseen_fault_of_the_registry_ends_answers_and_not_the_look_at_it(tmp_path, registry, monkeypatch):
    """It ended the look alone: a key that was retired afterwards was served for ever."""
    told = []
    with detecting(configured(tmp_path, registry), told=told) as server:
        monkeypatch.setattr(scoring.ServedScan, "of", lambda *_: {}["missing"])
        until(lambda: request(server, "GET", "/ready")[0] == 503)
        assert 'event=not_serving why="KeyError"' in told
        monkeypatch.undo()
        until(lambda: request(server, "GET", "/ready")[0] == 200)


@pytest.mark.costly
@pytest.mark.parametrize("cut", ["keys.toml", "secrets/green.key", "users/_delta_log/*.json"])
def test_a_registry_that_is_cut_short_ends_answers_until_it_is_whole(tmp_path, registry, plain, cut):
    folder = Path(shutil.copytree(registry, tmp_path / "registry"))
    with detecting(configured(tmp_path, folder, detector='names = "experts"\n')) as server:
        assert ask(server, plain(150, 1))["status"] == 200
        file = sorted(folder.glob(cut))[-1]
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        until(lambda: request(server, "GET", "/ready")[0] == 503)
        assert ask(server, plain(150, 1))["status"] == 503
        file.write_bytes(whole)
        until(lambda: request(server, "GET", "/ready")[0] == 200)
        assert ask(server, plain(150, 1))["status"] == 200


@pytest.mark.costly
@pytest.mark.parametrize("held", ["{", "[]", "{}x", '{"keys": 5}', ""])
def test_what_the_detector_knows_of_its_registry_is_whole_or_the_sentence_says_what_to_do(tmp_path, registry, held):
    """The start ended in a traceback, and what ended answers was told as JSONDecodeError."""
    (tmp_path / "known.json").write_text(held)
    with pytest.raises(Refused, match="is not as the detector wrote it; restore it"):
        refuse_older(registry, (), tmp_path / "known.json", ())


def test_an_older_registry_that_is_put_back_at_a_uri_is_noticed(tmp_path, monkeypatch):
    """Its files have no time to look at, so they are read each minute."""
    folder, known, now = make_seeded_registry(tmp_path / "registry"), tmp_path / "known.json", time.monotonic()
    (key,) = load_registry(folder).keys
    look = partial(refuse_older, f"file://{folder}", ("seeded",), known, [key])
    show_text(folder, "a few words of a text")
    look()
    Path(shown_path(folder, "seeded")).unlink()
    monkeypatch.setattr(known_registry.time, "monotonic", lambda: now + 120)
    with pytest.raises(Refused, match="lacks event 1 of key 'seeded'"):
        look()


def test_a_look_at_the_registry_reads_each_file_once(tmp_path, registry, monkeypatch):
    """Else its keys could be of one state and its rules of the next, and it takes twice as long."""
    configured(tmp_path, registry)
    read = list[str]()
    this_thread = threading.get_ident()  # detectors of other tests look at their registries meanwhile

    def note(path: Path) -> bytes:
        if threading.get_ident() == this_thread:
            read.append(path.name)
        return read_named(path)

    monkeypatch.setattr(toml, "read_named", note)
    served = ServedScan.of(DetectorConfig(version=2), tmp_path)
    refuse_older(registry, served.key_ids, tmp_path / "known.json", served.check.keys)
    assert sorted(read) == ["keys.toml", "scan.toml"]


def test_a_folder_that_cannot_be_made_is_refused_in_a_sentence(tmp_path, registry):
    config = configured(tmp_path, registry)
    (tmp_path / "detector" / "log").write_text("")
    with pytest.raises(Refused, match="cannot be created"), detecting(config):
        pass


@pytest.mark.parametrize("lost", ["a user", "a key"])
def test_a_registry_that_is_put_back_to_an_older_state_ends_answers_until_it_is_meant(tmp_path, registry, plain, lost):
    """It was answered by: users of the older state were named, and marks of newer keys not found."""
    folder = Path(shutil.copytree(registry, tmp_path / "registry"))
    older = Path(shutil.copytree(folder, tmp_path / "older"))
    if lost == "a user":
        add_users(folder, ["green"], ["carol"])
    else:
        fix_secrets(folder, "newer")
        new_key(folder, "newer", format="gumbel", window=4, messages=5, tokenizer=TOKENIZER)
    config, told = configured(tmp_path, folder), list[str]()
    with detecting(config, told=told) as server:
        assert ask(server, plain(150, 1))["status"] == 200
        shutil.rmtree(folder)
        shutil.copytree(older, folder)
        until(lambda: "is older than this detector" in "".join(told), seconds=60)
        assert ask(server, plain(150, 1))["status"] == 503
    with pytest.raises(Refused, match=r"is older than this detector.*delete .*registry\.json"), detecting(config):
        pass
    (tmp_path / "detector" / "registry.json").unlink()
    with detecting(config) as server:
        assert ask(server, plain(150, 1))["status"] == 200


def test_events_of_claims_that_are_lost_end_answers(tmp_path, words):
    """A process that took the place of one which knew them scored what was shown as if it were secret."""
    folder = make_seeded_registry(tmp_path / "registry")
    text, told = marked_text(folder, words, "seeded")(message_of(folder, "seeded", "alice"), 300, 1), list[str]()
    config, shown = configured(tmp_path, folder), Path(shown_path(folder, "seeded"))
    with detecting(config, told=told) as server:
        assert ask(server, text)["result"] == "found"
        show_text(folder, text)
        until(lambda: '"shown":{"seeded":[1,' in (tmp_path / "detector" / "registry.json").read_text(), seconds=60)
        shown.unlink()
        until(lambda: "lacks event 1 of key 'seeded'" in "".join(told), seconds=60)
        assert ask(server, text)["status"] == 503
    with pytest.raises(Refused, match="an older registry"), detecting(config):
        pass


@pytest.mark.costly
def test_a_disk_that_is_full_gives_no_answer_and_ends_nothing(tmp_path, registry, plain):
    """What is not charged or not logged is not answered; the text may be asked about when there is room."""

    def answers(seed: int) -> list[dict]:
        texts = [plain(40, place) for place in range(100 * seed, 100 * seed + 100)]
        status, _, body = request(server, "POST", "/detect/batch", json.dumps({"texts": texts}))
        assert (status in (200, 503), "result" in body.decode()) == (True, status == 200)
        return json.loads(body)["answers"] if status == 200 else []

    with detecting(configured(tmp_path, registry, detector="[budget]\ntexts = 9000\n")) as server:
        today = tmp_path / "detector" / "log" / f"{datetime.now(UTC).date()}.jsonl"
        today.symlink_to("/dev/full")
        assert ask(server, plain(150, 1)) == {"detail": "The detector cannot answer now.", "status": 503}
        today.unlink()
        assert ask(server, plain(150, 1))["status"] == 200
        (pages,) = server.answers.budget._db.execute("PRAGMA page_count").fetchone()
        server.answers.budget._db.execute(f"PRAGMA max_page_count = {pages}").fetchone()
        with ThreadPoolExecutor(4) as callers:
            given = [*callers.map(answers, range(1, 9))]
        assert [] in given
        (charged,) = server.answers.budget._db.execute("SELECT count(*) FROM answered").fetchone()
        assert sum(map(len, given)) == charged - 1, "what is answered is charged"
        server.answers.budget._db.execute(f"PRAGMA max_page_count = {2**30}").fetchone()
        assert [len(answers(seed)) for seed in range(1, 9)] == [100] * 8
        assert len(today.read_text().splitlines()) == 1 + 800 + sum(map(len, given))
        assert request(server, "GET", "/ready")[0] == 200


@pytest.mark.parametrize(("changed", "why"), [("gone", "is missing, but its private"), ("ahead", "set the clock")])
def test_a_detector_that_can_sign_nothing_is_not_ready_and_says_why(tmp_path, registry, plain, changed, why):
    """It was ready, each request was refused, and the line of each said no more than Refused."""
    told = list[str]()
    with detecting(configured(tmp_path, registry), told=told) as server:
        listed = tmp_path / "detector" / "signing.json"
        kept = listed.read_text()
        listed.unlink()
        if changed == "ahead":
            key = json.loads(kept)["keys"][0]
            listed.write_text(json.dumps({"keys": [key | {"signs_from": "2990-01-01T00:00:00Z"}]}))
        until(lambda: request(server, "GET", "/ready")[0] == 503)
        assert ask(server, plain(150, 1))["status"] == 503
        until(lambda: why in "".join(told))
        listed.write_text(kept)
        until(lambda: request(server, "GET", "/ready")[0] == 200)
        assert ask(server, plain(150, 1))["status"] == 200


class Full(list[str]):
    """What is told to a disk that is full."""

    def append(self, _line: str) -> None:
        raise OSError(28, "No space left on device")


def test_lines_that_cannot_be_written_end_nothing(tmp_path, registry, plain, monkeypatch):
    """The look at the registry ended, and a fault was answered by a traceback of the server."""
    with detecting(configured(tmp_path, registry), told=Full()) as server:
        assert ask(server, plain(150, 1))["status"] == 200
        monkeypatch.setattr(server.answers.budget, "has_left", lambda *_, **__: {}["missing"])
        assert ask(server, plain(150, 2)) == {"detail": "This went wrong.", "status": 500}
        monkeypatch.setattr(scoring.ServedScan, "of", lambda *_: {}["missing"])
        until(lambda: request(server, "GET", "/ready")[0] == 503)
        monkeypatch.undo()
        until(lambda: request(server, "GET", "/ready")[0] == 200)


def panics(_texts: object) -> None:
    os.write(2, b"panicked at byte index 1 of `WORD`")
    raise KeyboardInterrupt("WORD")


@pytest.mark.long
def test_a_library_that_panics_writes_nothing_and_one_caller_leaves_room(tmp_path, registry, plain, capfd, monkeypatch):
    """A panic of Rust is no Exception, and writes a part of the text to where errors go."""
    config = configured(tmp_path, registry, detector="workers = 1\nmost_bytes = 4000000\n" + PROXY)
    with detecting(config, here=False) as server:
        pool = server.answers.pool
        ((process,),) = [each._processes for each in pool.processes]
        assert Path(f"/proc/{process}/oom_score_adj").read_text().strip() == "1000"
        assert os.readlink(f"/proc/{process}/fd/2") == "/dev/null"
        monkeypatch.setattr(scoring_pool, "_OF_ONE_CALLER", 2)
        slow = plain(150_000, 1)
        with ThreadPoolExecutor(8) as crowd:
            asking = [crowd.submit(ask, server, slow, X_Forwarded_For="192.0.2.1") for _ in range(6)]
            until(lambda: sum(each.done() for each in asking) >= 4)
            other = ask(server, plain(150, 2), X_Forwarded_For="192.0.2.2")
        assert other["status"] == 200
        assert sorted(each.result()["status"] for each in asking) == [200, 200, 503, 503, 503, 503]
    assert "WORD" not in "".join(capfd.readouterr())


def test_what_is_raised_within_a_text_stays_in_the_process(monkeypatch):
    class Scorer:
        find_marks = staticmethod(panics)

    monkeypatch.setattr(scoring, "_scorer", Scorer())
    assert find_marks([b"WORD"]) is None


def test_reports_that_are_signed_while_keys_change_are_good(tmp_path):
    """Those of the second in which a key was made for a time that had passed when it was written were not."""
    new_signing_key(tmp_path)
    signer, reports, ended = Signer(tmp_path), [], threading.Event()

    def sign() -> None:
        while not ended.is_set():
            reports.append(signer.sign(statement))
            time.sleep(0.005)

    signing = threading.Thread(target=sign)
    signing.start()
    for _ in range(4):
        time.sleep(0.6)
        new_signing_key(tmp_path)
    ended.set()
    signing.join()
    assert len({json.loads(report.statement)["signing_key"] for report in reports}) > 2
    for report in reports:
        assert check(report.model_dump_json().encode(), b"", signpost(tmp_path))


def test_a_key_whose_report_takes_seconds_to_sign_is_good_after_a_rotation(tmp_path):
    new_signing_key(tmp_path)
    late = (datetime.now(UTC) + timedelta(seconds=3)).isoformat(timespec="seconds")
    report = Signer(tmp_path).sign(lambda key_id: statement(key_id).model_copy(update={"time": late}))
    new_signing_key(tmp_path)
    assert check(report.model_dump_json().encode(), b"", signpost(tmp_path))


def test_a_clock_that_went_back_signs_nothing(tmp_path):
    new_signing_key(tmp_path)
    early = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="seconds")
    with pytest.raises(Refused, match="set the clock"):
        Signer(tmp_path).sign(lambda key_id: statement(key_id).model_copy(update={"time": early}))


def test_changes_of_keys_and_tokens_at_one_time_are_all_kept(tmp_path):
    """Each read the list, and the last to write undid the others: a revoked token was good again."""
    until_day = datetime.now(UTC) + timedelta(days=1)
    issued = [issue_token(tmp_path, f"expert {place}", until_day) for place in range(8)]
    keys = [new_signing_key(tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(20) as many:
        list(many.map(lambda one: revoke_token(tmp_path, one[1].token_id), issued))
        new = list(many.map(lambda place: issue_token(tmp_path, f"new {place}", until_day), range(8)))
        list(many.map(lambda key: revoke_signing_key(tmp_path, key.key_id), keys))
        list(many.map(lambda _: new_signing_key(tmp_path), range(8)))
    assert len(tokens(tmp_path)) == 16
    assert [expert_of(tmp_path, token) for token, _ in issued] == [None] * 8
    assert all(expert_of(tmp_path, token) for token, _ in new)
    assert len(signing_keys(tmp_path)) == 12
    assert sum(key.signs_until is None for key in signing_keys(tmp_path)) == 1


def test_hostile_reports_are_refused_in_words():
    for statement_text in ("[]", "5", "null", "[" * 5000, '{"type": "brickscan detector report 1"}'):
        report = json.dumps({"statement": statement_text, "signature": ""}).encode()
        with pytest.raises((ValueError, KeyError, RecursionError)):
            check(report, b"", b'{"signingKeys": []}')


def test_a_line_of_the_log_that_a_full_disk_cut_is_gone(tmp_path):
    """The next line went on where it was cut, and neither could be read."""
    log, (soft, hard) = DetectorLog(tmp_path, 90, 10**6), resource.getrlimit(resource.RLIMIT_FSIZE)
    log.add([{"digest": "one"}])
    (day,) = tmp_path.iterdir()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (day.stat().st_size + 20, hard))
        with pytest.raises(OSError, match="No space"):
            log.add([{"digest": "two"}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.add([{"digest": "three"}])
    assert [json.loads(line)["digest"] for line in day.read_text().splitlines()] == ["one", "three"]


def test_days_of_the_log_end_though_nobody_asks(tmp_path):
    log = DetectorLog(tmp_path / "log", 90, 10**6)
    old = tmp_path / "log" / "2020-01-01.jsonl"
    old.write_text("{}\n")
    log.expire()
    assert not old.exists()


def test_the_log_takes_no_more_bytes_than_it_may(tmp_path):
    """138 requests of 511 bytes each wrote 31 kB of it each, and a disk with the keys on it was full."""
    old = tmp_path / "log" / f"{datetime.now(UTC).date() - timedelta(days=1)}.jsonl"
    log = DetectorLog(tmp_path / "log", 90, 20_000)
    old.write_text("x" * 10_000)
    log.expire()
    assert old.exists()
    lines = 0
    with suppress(OSError):
        while lines < 1_000:
            log.add([{"digest": "0" * 64}] * 3)
            lines += 3
    assert not old.exists()
    (today,) = (tmp_path / "log").iterdir()
    assert len(today.read_text().splitlines()) == lines
    assert 19_000 < today.stat().st_size <= 20_000


def test_who_sends_short_texts_writes_a_bounded_log(tmp_path, registry):
    """Texts that are too short were free: 511 bytes wrote 31 kB, as often as anybody liked."""
    with detecting(configured(tmp_path, registry, detector="[budget]\ntexts = 30\n")) as server:
        body, answered = json.dumps({"texts": ["a"] * 100}), 0
        for _ in range(60):
            answers = json.loads(request(server, "POST", "/detect/batch", body)[2])["answers"]
            answered += sum(one.get("result") == "too short" for one in answers)
        assert {one["retry_after"] > 0 for one in answers} == {True}
        (day,) = (tmp_path / "detector" / "log").iterdir()
        assert len(day.read_text().splitlines()) == answered
        assert 200 <= answered <= 301


def test_the_description_is_made_once():
    assert detector_app.openapi() is detector_app.openapi()
