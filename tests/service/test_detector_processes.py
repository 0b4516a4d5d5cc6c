"""The detector with processes of its own: what it writes under strace, killed processes, changed registries, crowds."""

import gc
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import polars as pl
import pytest

from scanner.registry import add_users
from scanner.service.detector_app import DetectorServer
from scanner.service.scoring import Scorer, ServedScan
from scanner.storage.toml import read_toml
from scanner.watermark.kernel import Kernel
from schemas.service import DetectorConfig
from tests.support.detecting import ask, configured, detecting, request, until
from tests.support.forged_users import rewrite
from tests.support.reviewing import running
from tests.support.two_keys import message_of

pytestmark = pytest.mark.costly

ROOT = Path(__file__).parents[2]
MARKED_WORD = "zanzibarquux"
"""A word that stands in every text which is asked about, and nowhere else."""


@pytest.fixture
def own(tmp_path, registry) -> Path:
    return Path(shutil.copytree(registry, tmp_path / "registry"))


def processes(server) -> list[int]:
    return [pid for each in server.answers.pool.processes for pid in each._processes]


def test_a_killed_process_costs_its_own_request_alone(tmp_path, registry, plain):
    """Two processes, a text each, and one of the two is killed meanwhile."""
    config = configured(tmp_path, registry, detector="workers = 2\n")
    with detecting(config, here=False) as server, ThreadPoolExecutor(2) as callers:
        killed, other = processes(server)
        for pid in (killed, other):
            os.kill(pid, signal.SIGSTOP)
        asking = [callers.submit(ask, server, plain(5_000, seed)) for seed in range(2)]
        until(lambda: server.answers.pool.scoring == 2)
        os.kill(killed, signal.SIGKILL)
        os.kill(other, signal.SIGCONT)
        assert sorted(each.result()["status"] for each in asking) == [200, 503]
        assert server.answers.pool.killed == 1
        until(lambda: ask(server, plain(150, 5))["status"] == 200)
        assert request(server, "GET", "/ready")[0] == 200


def test_short_texts_that_were_looked_at_together_are_answered_though_their_process_is_killed(
    tmp_path, registry, plain
):
    """Each is looked at again by itself: what ended the process may be in another one's text."""
    config = configured(tmp_path, registry, detector="workers = 1\n")
    with detecting(config, here=False) as server, ThreadPoolExecutor(5) as callers:
        pool, (stopped,) = server.answers.pool, processes(server)
        os.kill(stopped, signal.SIGSTOP)
        first = callers.submit(ask, server, plain(150, 1))
        until(lambda: pool.scoring == 1)
        others = [callers.submit(ask, server, plain(150, seed)) for seed in range(2, 6)]
        until(lambda: pool.waiting == 4)
        os.kill(stopped, signal.SIGKILL)
        until(lambda: pool.killed == 1 and processes(server) and pool.waiting == 0)
        os.kill(processes(server)[0], signal.SIGKILL)
        assert [each.result()["status"] for each in (first, *others)] == [503, 200, 200, 200, 200]
        assert pool.killed == 2


def after_opening(config: DetectorConfig, folder: Path, texts: list[bytes]) -> tuple[list[str], set[str], set[str]]:
    """What a new process finds in texts, one after the other, and kernels and modules that it loads meanwhile."""
    scorer = Scorer(ServedScan.of(config, folder), b"1" * 32)
    kernels, modules = loaded_kernels(), set(sys.modules)
    found = [scorer.find_marks([text])[0].result for text in texts]
    return found, loaded_kernels() - kernels, set(sys.modules) - modules


def loaded_kernels() -> set[str]:
    every = [one for one in gc.get_objects() if isinstance(one, Kernel) and "compiled" in vars(one)]
    return {f"{one.py_func.__qualname__} {kinds}" for one in every for kinds in one.compiled.signatures}


@pytest.mark.parametrize("looks", ["", "variants = { normalised = true }\nspans = { windows = true, segments = true }"])
def test_the_first_texts_of_a_process_find_everything_loaded(tmp_path, registry, marked, plain, looks):
    """Else the first flagged text compiled and imported for 8 seconds, and all that came meanwhile waited."""
    config = configured(tmp_path, registry, more=looks)
    texts = [
        plain(200, 1).encode(),
        marked(1, 200, 2).encode(),
        plain(200, 3).upper().encode(),
        plain(9000, 4).encode(),
    ]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found = process.submit(after_opening, read_toml(config, DetectorConfig), tmp_path, texts).result()
    assert found == (["not found", "found", "not found", "not found"], set(), set())


def test_users_keys_and_an_unreadable_registry_are_taken_over(tmp_path, own, words, plain):
    from tests.support.two_keys import marked_text

    proxy = '[proxy]\naddresses = ["127.0.0.1"]\nexpert = "X-Expert"\n'
    config = configured(tmp_path, own, detector='workers = 1\nnames = "experts"\n' + proxy)
    with detecting(config, here=False) as server:
        add_users(own, ["green"], ["carol"])
        text = marked_text(own, words)(message_of(own, "green", "carol"), 200, 1)
        assert ask(server, text, X_Expert="Ms Roth")["user"] == "carol", "a user who was added a moment ago"
        keys = own / "keys.toml"
        before = keys.read_text()
        keys.write_text("no TOML")
        until(lambda: request(server, "GET", "/ready")[0] == 503)
        assert ask(server, text)["status"] == 503
        assert request(server, "GET", "/health")[0] == 200
        keys.write_text(before)
        until(lambda: request(server, "GET", "/ready")[0] == 200)
        assert ask(server, text)["result"] == "found"
        secret = next(path for path in own.rglob("*") if path.is_file() and "green" in path.name)
        secret.chmod(0o644)
        until(lambda: request(server, "GET", "/ready")[0] == 503)
        secret.chmod(0o600)
        until(lambda: request(server, "GET", "/ready")[0] == 200)


@pytest.mark.long
def test_long_texts_slow_clients_and_a_thousand_connections(tmp_path, registry, plain):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    config = configured(tmp_path, registry, detector="workers = 1\nmost_bytes = 10000000\n")
    deep = "e" + "\u0301" * 200_000 + "\U0001f468\u200d" * 100_000
    try:
        with detecting(config, here=False) as server, ExitStack() as stack:
            large = json.dumps({"text": deep + " " + plain(1_000, 1)}, ensure_ascii=False).encode()
            assert request(server, "POST", "/detect", large)[0] == 200
            assert request(server, "POST", "/detect", json.dumps({"text": "x" * 10_000_001}))[0] == 413
            for _ in range(1_000):
                slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
                slow.sendall(b'POST /detect HTTP/1.1\r\nHost: a\r\nContent-Length: 90\r\n\r\n{"text": "')
            began = time.monotonic()
            assert [ask(server, plain(150, seed))["status"] for seed in range(5)] == [200] * 5
            assert time.monotonic() - began < 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_no_part_of_a_text_is_written_anywhere(tmp_path, registry, marked, plain):
    """All that server and processes write to files, pipes of logs and terminals, under strace, and files.

    Pipes between server and processes carry texts, as sockets do; both are memory. Everything else is searched.
    """
    config = configured(tmp_path, registry, detector='workers = 1\nnames = "experts"\n')
    trace = tmp_path / "trace"
    calls = "write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,openat,creat,memfd_create,mmap"
    command = ["strace", "-f", "-y", "-s", "1000000", "-e", f"trace={calls}", "-o", str(trace)]
    serve = [sys.executable, "-m", "jobs.cli", "serve", str(config), "--port", "0"]
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "HOME": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    with (tmp_path / "out").open("wb") as out:
        run = subprocess.Popen(
            [*command, *serve], stdout=out, stderr=out, env=environment, cwd=Path(__file__).parents[2]
        )
    try:
        until(lambda: re.search(r"127\.0\.0\.1:(\d+)/ ", (tmp_path / "out").read_text()), 300)
        port = int(re.search(r"127\.0\.0\.1:(\d+)/ ", (tmp_path / "out").read_text())[1])
        at = type("At", (), {"port": port})
        until(lambda: request(at, "GET", "/ready")[0] == 200, 500)
        texts = [
            f"{MARKED_WORD} {text} {MARKED_WORD}" for text in (marked(1, 200, 1), plain(200, 2), plain(4_000, 3), "x")
        ]
        assert [ask(at, text)["result"] for text in texts] == ["found", "not found", "not found", "too short"]
        bodies = [("/detect", f'{{"txt": "{MARKED_WORD}"}}'), ("/detect", MARKED_WORD), ("/detect/file", MARKED_WORD)]
        assert {request(at, "POST", path, body)[0] for path, body in bodies} == {422, 415}
        page = f'--e\r\nContent-Disposition: form-data; name="text"\r\n\r\n{texts[1]}\r\n--e--\r\n'
        assert request(at, "POST", "/", page, Content_Type="multipart/form-data; boundary=e")[0] == 200
        assert request(at, "POST", "/detect/file", f"<p>{texts[1]}", Content_Type="text/html")[0] == 200
        (server,) = [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
        limits = Path(f"/proc/{server}/limits").read_text()
        assert re.search(r"Max core file size\s+0\s+0", limits)
    finally:
        for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGTERM)
        run.wait(60)
    said = [line for line in trace.read_text(errors="replace").splitlines() if MARKED_WORD in line]
    kept = [
        line for line in said if not re.search(r"(write|writev|sendto|sendmsg)\(\d+<(pipe|socket|TCP|UNIX)[:\[-]", line)
    ]
    assert said, "texts went through pipes, so that the trace would show them"
    assert kept == []
    holding = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and path != trace and MARKED_WORD.encode() in path.read_bytes()
    ]
    assert holding == []
    written = {
        match[1] for match in re.finditer(r"(?:write|pwrite64)\(\d+<(/[^>]+)>", trace.read_text(errors="replace"))
    }
    assert any("detector/log/" in path for path in written)
    assert any("budget.sqlite" in path for path in written)


def test_processes_end_with_a_server_that_is_killed(tmp_path, registry):
    """Else they would hold the keys for ever."""
    config = configured(tmp_path, registry, detector="workers = 1\n")
    with (tmp_path / "out").open("wb") as out:
        command = [sys.executable, "-m", "jobs.cli", "serve", str(config), "--port", "0"]
        run = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    until(lambda: "event=serving" in (tmp_path / "out").read_text())
    scoring = [
        pid for pid in children.read_text().split() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert scoring
    run.kill()
    run.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in scoring))


def test_sigterm_ends_a_detector_within_five_seconds_whatever_it_works_on(tmp_path, registry, plain):
    """It waited for all texts that its processes had begun with: minutes, under costly keys."""
    config = configured(tmp_path, registry, detector="workers = 2\nmost_bytes = 16000000\n")
    with (tmp_path / "out").open("wb") as out:
        command = [sys.executable, "-m", "jobs.cli", "serve", str(config), "--port", "0"]
        run = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
    until(lambda: "event=serving" in (tmp_path / "out").read_text())
    port = int(re.search(r"127\.0\.0\.1:(\d+)/ ", (tmp_path / "out").read_text())[1])
    with ExitStack() as stack:
        body = json.dumps({"text": plain(100_000, 1)}).encode()  # a detector with little memory refuses longer texts
        for _ in range(12):  # so many that some wait whenever this asks
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            slow.sendall(b"POST /detect HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        metrics = type("At", (), {"port": port})
        waiting = re.compile(rb"^brickscan_detector_waiting ([0-9.]+)$", re.MULTILINE)
        until(lambda: float(waiting.search(request(metrics, "GET", "/metrics")[2])[1]) >= 2)
        began = time.monotonic()
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM
        assert time.monotonic() - began < 5
    assert "Traceback" not in (tmp_path / "out").read_text()


def hang_up(server, texts: list[str], begun) -> None:
    """Ask about each text on a connection of its own, and end all once `begun` holds."""
    with ExitStack() as stack:
        for text in texts:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            body = json.dumps({"text": text}).encode()
            connection.sendall(b"POST /detect HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        until(begun)


@pytest.mark.parametrize("killed", [False, True])
def test_callers_who_hang_up_pay_and_hold_up_nobody(tmp_path, registry, plain, killed):
    """Their texts were looked at, each after the other, and cost nothing. Once no text was looked at from then on.

    killed: the process is, while it looks at a text of a caller who has hung up.
    """
    config = configured(tmp_path, registry, detector="workers = 1\nmost_bytes = 16000000\n")
    with detecting(config, here=False) as server, ThreadPoolExecutor(1) as others:
        pool, budget, (stopped,) = server.answers.pool, server.answers.budget, processes(server)
        os.kill(stopped, signal.SIGSTOP)  # else a fast machine would be done before they hang up
        texts = [plain(20_000, seed) for seed in range(5)]
        hang_up(server, texts, lambda: pool.scoring == 1 and pool.waiting == 4)
        until(lambda: not pool._callers)
        (paid,) = budget._paid.values()
        other = others.submit(ask, server, plain(150, 8))
        until(lambda: pool.waiting == 5)
        os.kill(stopped, signal.SIGKILL if killed else signal.SIGCONT)
        assert other.result()["status"] == 200
        assert [ask(server, plain(150, seed))["status"] for seed in range(9, 12)] == [200] * 3
        assert (pool.waiting, pool.killed) == (0, killed)
        assert paid >= 5
        assert not budget._is_answered(budget.digest(texts[4].encode()))


CHANGED = "its users"


def test_a_registry_that_was_edited_is_told_once(tmp_path, own, marked, plain):
    """Experts got 503, and the operator did not learn why."""
    add_users(own, ["green"], ["carol", "dave"])
    exchanged = pl.col("user_id").replace({"carol": "dave", "dave": "carol"})
    told, text = list[str](), marked(message_of(own, "green", "carol"), 200, 1)
    config = configured(tmp_path, own, detector='workers = 1\nnames = "experts"\n')
    with detecting(config, here=False, told=told) as server:
        rewrite(own, lambda events: events.with_columns(user_id=exchanged))
        assert [ask(server, each)["status"] for each in (text, f"{text} more", plain(150, 1))] == [503, 503, 200]
    (line,) = [line for line in told if line.startswith("event=not_naming")]
    why = json.loads(line.removeprefix("event=not_naming why="))
    assert CHANGED in why
    assert "`brickscan users verify` says more" in why
    assert not any(word in why for word in ("carol", "dave", text.split()[0]))
    told.clear()
    server = DetectorServer(read_toml(config, DetectorConfig), tmp_path, "127.0.0.1", 0, told.append)
    with running(server):
        until(lambda: told)
        assert request(server, "GET", "/ready")[0] == 503
    assert told[0].startswith("event=not_serving why=")
    assert CHANGED in told[0]


def test_a_registry_that_cannot_be_opened_is_told(tmp_path, own, monkeypatch):
    """The reason stayed in the process that could not open it."""
    told = list[str]()
    monkeypatch.setattr("scanner.service.scoring.check_secret", lambda *_: None)
    (own / "secrets" / "green.key").write_text("not hexadecimal")
    server = DetectorServer(read_toml(configured(tmp_path, own), DetectorConfig), tmp_path, "127.0.0.1", 0, told.append)
    with running(server):
        until(lambda: told)
    assert "hexadecimal" in told[0]
    assert "event=not_serving" in told[0]


def test_slow_files_hold_up_no_text(tmp_path, registry, plain):
    """24 files of one caller that take ten seconds each had everybody's texts wait for more than a minute."""
    config = configured(tmp_path, registry, detector="workers = 1\n")
    slow = b"<p>" + b"<>" * 450_000  # takes a second or so, and has text
    with detecting(config, here=False) as server, ThreadPoolExecutor(6) as crowd:
        ask(server, plain(150, 1))
        asking = [
            crowd.submit(request, server, "POST", "/detect/file", slow, Content_Type="text/html") for _ in range(6)
        ]
        until(lambda: server.files._callers.total() == 6)
        answers = [ask(server, plain(150, seed))["status"] for seed in range(2, 5)]
        still = server.files._callers.total()
        assert (answers, still >= 1) == ([200] * 3, True)
        assert {one.result()[0] for one in asking} <= {200, 422, 503}
