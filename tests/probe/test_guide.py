"""The page docs/start/prove-that-your-model-marks.md, gone through as it says, command by command."""

import json
import re
import runpy
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from scanner.probe.classes import CLASSES, classes_of
from scanner.probe.config import ProbeConfig
from scanner.registry import load_registry, open_key
from scanner.storage.toml import read_toml_text
from tests.probe.model import model
from tests.probe.planted import green_server
from tests.probe.server import serving
from tests.support.command_line import call
from tests.support.two_keys import message_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/start/prove-that-your-model-marks.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    return ["".join(line.removeprefix(indent) for line in text.splitlines(keepends=True)) for indent, text in found]


def run(line: str) -> int:
    """Run a line of the page in this process."""
    program, *arguments = line.split()
    if program == "brickscan":
        code, out, err = call(*arguments)
        assert code in (0, 3), out + err
        return code
    if program == "cp":
        shutil.copy(*arguments)
        return 0
    assert program == "python"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        try:
            runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
        except SystemExit as end:
            return 1 if end.code else 0
    return 0


@pytest.mark.costly
def test_the_page_from_top_to_bottom(tmp_path, registry, words, monkeypatch, capsys):
    """All commands but the one that installs, on a probe of three classes; the key and the address are the test's."""
    mark = open_key(registry, next(key for key in load_registry(registry).keys if key.key_id == "green"))
    messages = {message_of(registry, "green", user) for user in ("alice", "bob")}

    def server_for(body):
        assert body["vllm_xargs"]["brickscan_message"] in messages
        return green_server(mark, body["vllm_xargs"]["brickscan_message"])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVER_TOKEN", "sk-of-the-server")
    shutil.copytree(registry, "registry")
    Path("bob.token").write_text("sk-of-bob\n")
    Path("bob.token").chmod(0o600)
    first, users, _ = blocks("toml")
    bob = f"fields = {{ vllm_xargs = {{ brickscan_message = {message_of(registry, 'green', 'bob')} }} }}\n"
    users = users.replace("73311", str(message_of(registry, "green", "alice"))) + bob
    off = [one.name for one in CLASSES if one.name not in ("temperature-1", "streaming", "tools")]
    fewer = "".join(f'[[classes]]\nname = "{name}"\nanswers = 0\n' for name in off)
    with serving(model(words, server_for)) as server:
        text = first.replace("http://127.0.0.1:8000", server.url).replace("site-a", "green")
        Path("probe.toml").write_text(f"answers = 6\n{text}{users}{fewer}")
        commands = [line for block in blocks("sh") for line in block.splitlines() if not line.startswith("pip ")]
        for line in commands:
            if "--answers" in line:
                shutil.copy("probe/answers.parquet", "answers.parquet")
            assert run(line) == 0, line
        tokens = {one.authorization for one in server.asked}
        assert tokens == {"Bearer sk-of-the-server", "Bearer sk-of-bob"}
        assert all(one.body["return_token_ids"] for one in server.asked)
        assert len(server.asked) == 2 * 18
    assert len(commands) == 6
    page = json.loads(Path("probe/probe.json").read_text())
    assert {one["state"] for one in page["keys"][0]["classes"]} == {"marked"}
    assert Path("page/probe.html").is_file()
    written = [path.read_bytes() for path in Path().rglob("*") if path.is_file() and path.suffix != ".token"]
    assert not any(b"sk-of-" in content for content in written)


def test_classes_of_your_own_are_read_as_the_page_says():
    first, users, own = blocks("toml")
    config = read_toml_text("probe.toml", first + users + own, ProbeConfig)
    classes = {one.name: one for one in classes_of(config)}
    assert "greedy" not in classes
    assert classes["replica"].url == "http://127.0.0.1:8001"
    assert classes["opt-out"].fields["vllm_xargs"] == {"watermark": False}
    assert classes["our-agent"].fields["tools"]
    assert classes["our-agent"].fields["temperature"] == 0.2
    assert tomllib.loads(first)["price"]["most"] == config.price.most == 2.0


def test_the_line_for_cron_runs_commands_of_the_page():
    (cron,) = blocks("crontab")
    command = re.fullmatch(
        r"15 3 \* \* \* cd \S+ && (brickscan [^>]*) > probe\.log 2>&1 \|\| tail -n 40 probe\.log\n", cron
    )
    assert any(command[1] in block for block in blocks("sh"))


def test_the_exit_codes_are_those_of_the_command():
    from scanner.probe.expected import AS_EXPECTED, NOT_KNOWN, NOT_MARKED

    rows = dict(re.findall(r"^\| (\d) \| (.*) \|$", PAGE, re.MULTILINE))
    assert list(rows) == ["0", "1", "2", "3", "4"]
    assert "still is" in rows[str(AS_EXPECTED)]
    assert "not any more" in rows[str(NOT_MARKED)]
    assert "cannot be told" in rows[str(NOT_KNOWN)]
