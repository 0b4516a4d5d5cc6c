"""`ray job submit` to a cluster of two nodes with tokens: the upload is small, both nodes work, exit codes are seen."""

import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.night import Night
from tests.support.submitted import ROOT, Head, start_head, start_node, wait_for
from tests.support.two_keys import message_of

pytestmark = pytest.mark.costly

RAY = str(Path(sys.executable).with_name("ray"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Head]:
    """A head and a second node of one CPU each, so that two workers need both.

    The first worker compiles the kernels anew: it would do all the work alone before the second has started.
    """
    environment = {"NUMBA_CACHE_DIR": str(tmp_path_factory.mktemp("kernels"))}
    for head in start_head(environment, cpus=1):
        options = {
            "address": f"127.0.0.1:{head.port}",
            "num-cpus": 1,
            "object-store-memory": 10**8,
        }
        node = start_node(head, "node", options, environment)
        try:
            wait_for(lambda head=head: len(alive(head)) == 2, node)
            yield head
        finally:
            node.terminate()
            node.wait(60)


def alive(head: Head) -> list[str]:
    listed = json.loads(head.ask("/api/v0/nodes?detail=1"))["data"]["result"]["result"]
    return [node["node_id"] for node in listed if node["state"] == "ALIVE"]


def submit(head: Head, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `ray job submit` with these options and this command."""
    return subprocess.run(
        [
            *(RAY, "job", "submit", "--address", f"http://127.0.0.1:{head.dashboard}"),
            *("--submission-id", name, "--working-dir", ".", *words),
        ],
        cwd=ROOT,
        env=head.environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def info(head: Head, name: str) -> dict[str, object]:
    return json.loads(head.ask(f"/api/jobs/{name}"))


def test_a_submitted_scan_runs_on_both_nodes_and_tells_its_exit_code(cluster, night, registry, marked, plain, tmp_path):
    night.configure(workers=2)
    alice = message_of(registry, "green", "alice")
    for i in range(4):
        night.write(f"f{i}", [marked(alice, 60, i), *(plain(60, 100 * i + j) for j in range(150))])
    (tmp_path / "refused").mkdir()
    refused = Night(tmp_path / "refused", registry)
    refused.configure(more='keys = ["nosuch"]')
    # a file of its own: Ray writes to a job's log too, between lines of the job
    uploads = tmp_path / "uploads.txt"
    refusal = f"exec {sys.executable} -m jobs.scan --config {refused.config}"
    listing = f"find . -type f -printf '%s %P\\n' > {uploads}; {refusal}"
    assert submit(cluster, "refused", "--no-wait", "--", "sh", "-c", listing).returncode == 0
    done = submit(cluster, "night", "--", sys.executable, "-m", "jobs.scan", "--config", str(night.config))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "604 documents in" in done.stdout

    verdicts = night.verdicts()
    assert verdicts.height == 604
    assert verdicts.filter("flagged")["user_id"].to_list() == ["alice"] * 4
    assert night.last_scan()["exit_code"] == 0
    actors = json.loads(cluster.ask("/api/v0/actors?detail=1"))["data"]["result"]["result"]
    assert {actor["node_id"] for actor in actors if actor["class_name"] == "Worker"} == set(alive(cluster))

    said = info(cluster, "night")
    assert (said["status"], said["driver_exit_code"]) == ("SUCCEEDED", 0)
    said = wait_for(lambda: (found := info(cluster, "refused"))["status"] in ("SUCCEEDED", "FAILED") and found)
    assert (said["status"], said["driver_exit_code"]) == ("FAILED", 2)
    log = json.loads(cluster.ask("/api/jobs/refused/logs"))["logs"]
    assert "'nosuch' is not in registry" in log

    lines = (line.split(" ", 1) for line in uploads.read_text().splitlines())
    uploaded = {Path(path): int(size) for size, path in lines}
    found = [path for folder in ("jobs", "scanner", "schemas") for path in (ROOT / folder).rglob("*")]
    code = [path for path in [*found, ROOT / "pyproject.toml"] if path.suffix in {".py", ".toml", ".md", ".j2", ".js"}]
    needed = {path.relative_to(ROOT): path.stat().st_size for path in code if "demo" not in path.parts}
    assert uploaded == needed  # no other file is uploaded


def test_without_the_token_nothing_is_told(cluster):
    with pytest.raises(urllib.error.HTTPError) as refused:
        cluster._replace(token="0" * 64).ask("/api/jobs/")
    with refused.value as answer:
        assert answer.code in (401, 403)
