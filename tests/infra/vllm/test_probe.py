"""`brickscan probe` of a real vLLM server: with the plugin it marks as the key says, and without it nothing is claimed.

`make test-vllm` runs this file; what the probe says is written to build/vllm-probe.txt.
"""

import json
from pathlib import Path

import pytest

from scanner.probe.classes import CLASSES
from scanner.registry import add_users, new_key
from tests.fixed import fix_secrets
from tests.infra.vllm.served import MODEL, PYTHON, ROOT, Server, serving
from tests.support.command_line import call
from tests.support.two_keys import message_of

pytestmark = pytest.mark.vllm

ASKED = ("temperature-1", "streaming", "json-schema", "greedy")
OFF = [one.name for one in CLASSES if one.name not in ASKED]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probed") / "registry"
    fix_secrets(folder, "green")
    parameters = {"format": "greenlist-v3", "gamma": "1/4", "window": 2, "messages": 1000}
    new_key(folder, "green", tokenizer=MODEL / "tokenizer.json", **parameters)
    add_users(folder, ["green"], ["alice", "bob"])
    return folder


@pytest.fixture
def without_the_plugin(tmp_path: Path) -> Path:
    """All packages of vLLM's environment but the plugin: vLLM loads whatever is installed there."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (packages,) = PYTHON.parents[1].glob("lib/python*/site-packages")
    for one in packages.iterdir():
        if not one.name.startswith("brickscan"):
            (folder / one.name).symlink_to(one)
    return folder


def probed(server: Server, registry: Path, folder: Path) -> dict:
    """The page of a probe of a few classes, for alice and bob."""
    users = "".join(
        f'[[users]]\nid = "{user}"\nfields.vllm_xargs.brickscan_message = {message_of(registry, "green", user)}\n'
        for user in ("alice", "bob")
    )
    classes = "".join(f'[[classes]]\nname = "{name}"\nanswers = 0\n' for name in OFF)
    (folder / "probe.toml").write_text(
        f'version = 2\nregistry = "{registry}"\nanswers = 4\n[server]\nurl = "{server.url}"\nmodel = "served"\n'
        f"token_ids = true\nmost_tokens = 120\nrequests_at_once = 8\ntimeout_s = 900\n{users}{classes}"
    )
    code, out, err = call("probe", folder / "probe.toml")
    assert code == 0, out + err
    report = ROOT / "build" / "vllm-probe.txt"
    report.parent.mkdir(exist_ok=True)
    with report.open("a") as file:
        file.write(out + "\n")
    (key,) = json.loads((folder / "probe" / "probe.json").read_text())["keys"]
    return key


def test_a_server_with_the_plugin_marks_as_the_key_says(registry, tmp_path):
    settings = {"BRICKSCAN_REGISTRY": str(registry), "BRICKSCAN_KEY": "green", "BRICKSCAN_DELTA": "3"}
    with serving(tmp_path / "server", settings) as server:
        key = probed(server, registry, tmp_path)
    assert (key["named"], key["differences"]) == ("as the key says", [])
    assert {one["name"]: one["state"] for one in key["classes"]} == dict.fromkeys(ASKED, "marked")
    assert sum(one["users"]["right"] for one in key["classes"]) > 0
    assert sum(one["users"]["wrong"] for one in key["classes"]) == 0


def test_a_server_without_the_plugin_marks_nothing(registry, tmp_path, without_the_plugin):
    """A page claims a mark that is not there at a rate of 0.01 at most; vLLM ignores arguments that nobody reads."""
    with serving(tmp_path / "server", {"PYTHONPATH": str(without_the_plugin)}, python=PYTHON.resolve()) as server:
        key = probed(server, registry, tmp_path)
    assert (key["named"], key["differences"]) == (None, [])
    assert "marked" not in {one["state"] for one in key["classes"]}
