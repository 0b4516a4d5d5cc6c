"""`brickscan probe` from end to end: a real server of ours, a page, a kill, what was expected."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.probe.classes import CLASSES
from scanner.registry import load_registry, open_key
from tests.probe.model import model
from tests.probe.planted import PLAIN, green_server
from tests.probe.server import drips, sends, serving, status
from tests.support.command_line import call
from tests.support.two_keys import message_of

ROOT = Path(__file__).parents[2]
TOKEN = "sk-a-token-of-the-tests-0123456789"
OFF = [one.name for one in CLASSES if one.name not in ("temperature-1", "tools", "greedy")]


@pytest.fixture
def marking(registry, words):
    """A function from the classes that a server leaves unmarked to its model, which marks for a request's message."""
    mark = open_key(registry, next(key for key in load_registry(registry).keys if key.key_id == "green"))

    def make(*unmarked: str, length: int = 150):
        def server_for(body):
            left = ("tools" in body and "tools" in unmarked) or "all" in unmarked
            return PLAIN if left else green_server(mark, body["vllm_xargs"]["brickscan_message"])

        return model(words, server_for, length)

    return make


def configure(folder: Path, url: str, registry: Path, more: str = "", answers: int = 8) -> Path:
    """A probe of three classes, for alice and bob."""
    fields = "fields = {{ vllm_xargs = {{ brickscan_message = {} }} }}\n"
    users = "".join(
        f'[[users]]\nid = "{user}"\n{fields.format(message_of(registry, "green", user))}' for user in ("alice", "bob")
    )
    off = "".join(f'[[classes]]\nname = "{name}"\nanswers = 0\n' for name in OFF)
    path = folder / "probe.toml"
    path.write_text(
        f'version = 2\nregistry = "{registry}"\nkeys = ["green"]\nanswers = {answers}\n'
        f'[server]\nurl = "{url}"\nmodel = "m"\nrequests_a_minute = 100000\n{more}\n{users}{off}'
    )
    return path


def states(folder: Path) -> dict[str, str]:
    page = json.loads((folder / "probe" / "probe.json").read_text())
    return {one["name"]: one["state"] for one in page["keys"][0]["classes"]}


@pytest.mark.costly
def test_from_a_server_to_a_page(tmp_path, registry, marking):
    """Tools are left unmarked, which is on top; the next night's probe begins anew, and says what changed."""
    with serving(marking("tools")) as server:
        config = configure(tmp_path, server.url, registry)
        code, out, err = call("probe", config)
        assert code == 0, err
        assert states(tmp_path) == {"tools": "unmarked", "greedy": "unmarked", "temperature-1": "marked"}
        asked = len(server.asked)
        assert asked == 24
        page = tmp_path / "probe"
        assert {file.name for file in page.iterdir()} >= {"probe.html", "probe.json", "answers.parquet"}
        assert not (page / "asking.jsonl").exists()
        assert "event=probe step='ask' done=24/24" in err
        assert "class" in out
        shutil.copy(page / "probe.json", tmp_path / "expected.json")

        code, out, _ = call("probe", config, "--expect", tmp_path / "expected.json")
        assert (code, len(server.asked)) == (0, 2 * asked)
        assert "as expected" in out
    with serving(marking("all")) as server:
        config = configure(tmp_path, server.url, registry)
        code, out, _ = call("probe", config, "--expect", tmp_path / "expected.json")
        assert code == 3
        assert "NOT AS EXPECTED: key green: all answers together carry no mark, where 1 of its classes did" in out


@pytest.mark.costly
def test_a_killed_probe_goes_on(tmp_path, registry, marking):
    """After kill -9 nothing that was answered is asked again."""
    with serving(marking("tools"), troubles=[None] * 9, always=drips) as server:
        config = configure(tmp_path, server.url, registry, "requests_at_once = 2")
        running = subprocess.Popen(
            [sys.executable, "-m", "jobs.cli", "probe", str(config)],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        kept = tmp_path / "probe" / "asking.jsonl"
        deadline = time.monotonic() + 60
        while not kept.exists() or len(kept.read_bytes().splitlines()) < 9 or len(server.asked) < 11:
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.kill()
        running.wait()

        server.always = None
        code, _, err = call("probe", config)
        assert code == 0, err
        assert "continues with 9 of 24 requests, answered since" in err
        bodies = [json.dumps(one.body) for one in server.asked]
    assert len(bodies) == 11 + 24 - 9  # two were under way
    assert set(bodies[:9]).isdisjoint(bodies[11:])
    assert pq.read_metadata(tmp_path / "probe" / "answers.parquet").num_rows == 24


def test_check_asks_nothing(tmp_path, registry):
    price = "[price]\na_million_in = 1.0\na_million_out = 2.0\nmost = 0.5"
    with serving() as server:
        config = configure(tmp_path, server.url, registry, price)
        code, out, err = call("probe", config, "--check")
        assert code == 0, err
        assert server.asked == []
    assert "24 requests for 24 answers" in out
    assert "7,200 of answers at most" in out
    cost = re.search(r"cost: ([\d.]+) at most, at the stated price; no request is sent that could exceed 0.5", out)
    assert float(cost[1]) == pytest.approx(0.02, abs=0.01)
    assert re.search(r"tested: \d+ configurations of the keys", out)
    assert "not asked: replica: define it" in out
    assert not (tmp_path / "probe").exists()


def test_what_no_server_answers_ends_with_1(tmp_path, registry, monkeypatch):
    """HTML everywhere; the reason is told, no token is."""
    monkeypatch.setenv("PROBE_TOKEN", TOKEN)
    with serving(always=sends(f"<html>sign in; or run this, {TOKEN}</html>".encode())) as server:
        config = configure(tmp_path, server.url, registry, 'token = "env:PROBE_TOKEN"')
        code, out, err = call("probe", config)
    assert code == 1
    told = "the server sent HTML instead of JSON: <html>sign in, or run this, [token]</html>\nhint: fix the cause"
    assert f"no request got a text, most often because: {told}" in err
    assert TOKEN not in out + err


def test_a_token_that_is_refused_ends_the_probe_early(tmp_path, registry):
    with serving(always=status(401, "no such token; run this")) as server:
        config = configure(tmp_path, server.url, registry, "requests_at_once = 1")
        code, _, err = call("probe", config)
        assert code == 1
        assert 10 <= len(server.asked) <= 13
    assert (
        "10 requests in a row got no answer, the last one because: HTTP 401: no such token, run this\n"
        "hint: fix the cause" in err
    )


@pytest.mark.seconds
def test_a_log_of_answers_needs_no_server(tmp_path, registry, marked, plain):
    message = message_of(registry, "green", "alice")
    texts = [marked(message, 150, seed) for seed in range(8)] + [plain(150, seed) for seed in range(8)]
    pq.write_table(pa.table({"text": texts, "class": ["own"] * 8 + ["other"] * 8}), tmp_path / "answers.parquet")
    call_of = ("probe", "--answers", tmp_path / "answers.parquet", "--registry", registry, "--key", "green")
    code, _, err = call(*call_of, "--out", tmp_path / "probe")
    assert code == 0, err
    assert states(tmp_path) == {"own": "marked", "other": "unmarked"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Give a CONFIG"),
        (("probe.toml", "--registry", "registry"), "--registry does not go with CONFIG"),
        (("--answers", "probe.toml", "--registry", "registry", "--out", "page"), "--answers probe.toml"),
        (("probe.toml", "--expect", "probe.toml"), "is not a probe.json"),
    ],
)
def test_what_cannot_be_right_is_refused(arguments, told, tmp_path, registry, monkeypatch):
    monkeypatch.chdir(tmp_path)
    configure(tmp_path, "http://127.0.0.1:1", registry)
    code, _, err = call("probe", *arguments)
    assert code == 2
    assert told in err


def test_another_key_or_no_key_is_refused_before_anything_is_asked(tmp_path, registry):
    with serving() as server:
        config = configure(tmp_path, server.url, registry)
        config.write_text(config.read_text().replace('["green"]', '["grene"]'))
        assert call("probe", config)[0] == 2
        assert server.asked == []
