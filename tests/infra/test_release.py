"""A release: the same bytes each time, all files in it, and a wheel that works where nothing else of ours is.

Fresh environments ask the index for packages, so `make test-release` alone runs these tests.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path
from urllib.error import HTTPError

import polars as pl
import pytest
from pyarrow.dataset import dataset, field

from tests.support.detecting import until

ROOT = Path(__file__).parents[2]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
"""Pythons that pyproject.toml names."""


def run(*command, **options) -> str:
    """The output of a command, which stands in the error where it fails."""
    done = subprocess.run(
        list(map(str, command)), check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout[-3000:]}"
    return done.stdout


def environment(folder: Path, *packages, python=sys.executable) -> Path:
    """Make a fresh environment with packages from the index; returns its Python."""
    run(python, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *packages)
    return folder / "bin/python"


def checkout(folder: Path) -> Path:
    run("git", "clone", "--quiet", ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def tools(tmp_path_factory) -> Path:
    """The environment in which `make release` builds."""
    return environment(tmp_path_factory.mktemp("tools"), "--require-hashes", "-r", ROOT / "infra/release/tools.lock")


@pytest.fixture(scope="module")
def release(tmp_path_factory, tools) -> Path:
    """Folder of a release of what is committed."""
    folder = checkout(tmp_path_factory.mktemp("release") / "repository")
    run(tools, folder / "infra/release/build.py", folder / "dist", "--unsigned")
    return folder / "dist"


@pytest.mark.long
def test_a_release_has_the_same_bytes_wherever_and_whenever_it_is_built(release, tools, tmp_path):
    again = checkout(tmp_path / "elsewhere")
    os.utime(again / "README.md", (0, 0))
    run(tools, again / "infra/release/build.py", tmp_path / "out", "--unsigned", umask=0o077)
    sums = (release / "SHA256SUMS").read_text()
    assert sums == (tmp_path / "out/SHA256SUMS").read_text()
    assert len(sums.splitlines()) == 4
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=release)


@pytest.mark.costly
def test_refuse_a_release_that_nobody_signs(tmp_path):
    folder = checkout(tmp_path / "repository")
    with pytest.raises(AssertionError, match="one of the arguments --key --unsigned is required"):
        run(sys.executable, folder / "infra/release/build.py", tmp_path / "out")
    with pytest.raises(AssertionError, match="is not a file; name the SSH key"):
        run(sys.executable, folder / "infra/release/build.py", tmp_path / "out", "--key", tmp_path / "none")
    assert not (tmp_path / "out").exists()


@pytest.mark.costly
def test_sign_digests_with_the_named_key(tmp_path, monkeypatch):
    """Whoever knows the public key can verify the signature, and no other file passes for the signed one."""
    monkeypatch.syspath_prepend(ROOT / "infra/release")
    import build

    key, sums = tmp_path / "key", tmp_path / build.DIGESTS
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    sums.write_text("0  file\n")
    signature = build.sign(sums, key)
    signers = tmp_path / "allowed_signers"
    signers.write_text(f"releases@example.com {key.with_suffix('.pub').read_text()}")
    verify = ("ssh-keygen", "-Y", "verify", "-f", signers, "-I", "releases@example.com", "-n", build.NAMESPACE)
    with sums.open() as file:
        run(*verify, "-s", signature, stdin=file)
    sums.write_text("1  file\n")
    with sums.open() as file, pytest.raises(AssertionError):
        run(*verify, "-s", signature, stdin=file)


@pytest.mark.long
def test_what_is_not_committed_is_not_released(tools, tmp_path):
    folder = checkout(tmp_path / "repository")
    (folder / "scanner" / "more.py").touch()
    with pytest.raises(AssertionError, match=r"commit or remove first:\n +\?\? scanner/more.py"):
        run(tools, folder / "infra/release/build.py", tmp_path / "out", "--unsigned")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_the_wheel_has_every_file_of_the_packages(release):
    (wheel,) = release.glob("brickscan-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = run("git", "ls-files", "scanner", "schemas", "jobs", cwd=release.parent).splitlines()
    assert names == {name.removeprefix("scanner/api/") if "/api/brickscan/" in name else name for name in files}


@pytest.mark.long
def test_each_wheel_has_the_licence_and_no_test_cache_or_path_of_this_machine(release):
    for path in release.glob("*.whl"):
        wheel = zipfile.ZipFile(path)
        (licence,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
        assert not [name for name in wheel.namelist() if name.endswith(".pyc") or "tests" in name.split("/")]
        assert not [name for name in wheel.namelist() if str(ROOT).encode() in wheel.read(name)]


@pytest.mark.long
def test_the_bill_of_materials_names_what_the_image_installs(release):
    (path,) = release.glob("*.cdx.json")
    parts = {part["name"].lower().replace("_", "-"): part for part in json.loads(path.read_text())["components"]}
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "infra/requirements.lock").read_text(), re.MULTILINE)
    assert parts.keys() == {name.lower() for name in locked}
    assert parts["ray"]["version"] == "2.60.0"
    assert all(any(at.get("hashes") for at in part["externalReferences"]) for part in parts.values())


@pytest.mark.long
@pytest.mark.parametrize("name", PYTHONS)
def test_the_wheel_works_in_a_fresh_environment(name, release, tmp_path):
    """The demo names whom the texts were marked for, known answers agree, the detector answers."""
    if subprocess.run([shutil.which(name) or "false", "--version"], check=False, capture_output=True).returncode:
        pytest.skip(f"{name} is not on PATH")
    (wheel,) = release.glob("brickscan-*.whl")
    packages = (f"{wheel}[serve]", "mypy")
    python = environment(tmp_path / "env", "-c", ROOT / "infra/constraints.txt", *packages, python=name)
    settings = {"cwd": tmp_path, "env": {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": ""}}
    assert str(tmp_path) in run(python, "-c", "import scanner; print(scanner.__file__)", **settings)
    table = run(python, "-m", "jobs.demo", **settings)
    assert "Warning" not in table
    assert re.search(r"written by people +400 +0\n", table)
    assert re.search(r"wrong: somebody else( +0){6}\n", table)
    assert int(re.search(r"flagged +(\d+ +){5}(\d+)\n", table)[2]) >= 110
    check_types(python, tmp_path)
    command = python.with_name("brickscan")
    assert re.search(r"[1-9]\d* passed, 0 failed", run(command, "selftest", **settings))
    with (tmp_path / "serve.log").open("w") as log:
        server = subprocess.Popen(
            [command, "serve", "demo/detector.toml", "--port", "0"], stdout=log, stderr=subprocess.STDOUT, **settings
        )
    try:
        until(lambda: "detector: " in (tmp_path / "serve.log").read_text())
        address = re.search(r"detector: (http://\S+)/ ", (tmp_path / "serve.log").read_text())[1]
        until(lambda: answers(f"{address}/ready"))
        for text, marked in ((most_surely_marked(tmp_path / "demo"), True), ("Text to inspect", False)):
            body = json.dumps({"text": text}).encode()
            request = urllib.request.Request(f"{address}/detect", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.load(answer)["is_watermarked"] is marked
    finally:
        server.terminate()
        assert server.wait(60) == 128 + signal.SIGTERM


PROGRAM = """
import brickscan

registry = brickscan.open("registry")
users: tuple[str, ...] = registry.check("Hi").users
verdicts: brickscan.TextVerdicts = registry.check(["Hi"])
code: int = int(brickscan.scan("scan.toml").exit_code)
rows: int = brickscan.results("results").flagged.collect().height
held: dict[str, int] = registry.messages("key", users and ["alice"])
version: str = brickscan.__version__
"""
WRONG = ('brickscan.opne("registry")', "registry.check(3)", 'label: int = registry.check("Hi").naming')


def check_types(python: Path, folder: Path) -> None:
    """A program of a user passes strict types, and each wrong line is found: `__getattr__` let misspelt names pass."""
    (folder / "program.py").write_text("\n".join((PROGRAM, *WRONG)), encoding="utf-8")
    command = [python, "-m", "mypy", "--strict", "program.py"]
    done = subprocess.run(command, cwd=folder, check=False, text=True, capture_output=True)
    found = [int(line) for line in re.findall(r"^program.py:(\d+): error: ", done.stdout, re.MULTILINE)]
    lines = len(PROGRAM.splitlines())
    assert found == [lines + 2 + place for place in range(3)], done.stdout + done.stderr


def most_surely_marked(demo: Path) -> str:
    """Text of the document with the smallest p-value."""
    flags = pl.read_delta(str(demo / "results/flags")).sort("log10_p_global")
    texts = dataset(demo / "documents").to_table(columns=["text"], filter=field("doc_id") == flags["doc_id"][0])
    return texts["text"][0].as_py()


def answers(address: str) -> bool:
    """Whether a server answers at an address with 200."""
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except OSError as error:
        if isinstance(error, HTTPError):
            error.close()
        return False


@pytest.mark.long
def test_the_plugin_needs_nothing_of_ours_but_its_wheel(release, tmp_path):
    """Beside torch and its triton all of it can be imported, but what vLLM calls: vLLM is in no test environment."""
    (wheel,) = release.glob("brickscan_vllm-*.whl")
    python = environment(tmp_path / "env", "-c", ROOT / "infra/constraints.txt", wheel, "triton")
    look = """
from importlib.metadata import entry_points
(check,) = entry_points(group="vllm.general_plugins", name="brickscan")
print(check.load().__module__)
(marks,) = entry_points(group="vllm.logits_processors", name="brickscan")
try:
    marks.load()
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run(python, "-c", look, cwd=tmp_path).split() == ["brickscan_vllm.start", "vllm"]
