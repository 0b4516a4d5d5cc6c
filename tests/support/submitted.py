"""A real Ray head with tokens and dashboard, a scan submitted to it, and all that people could see of the scan."""

import contextlib
import json
import os
import random
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray

from scanner.registry import load_registry, open_key
from tests import reference
from tests.support.faulty_scan import PLANTED, POISON, SLOW
from tests.support.night import Night
from tests.support.two_keys import message_of

ROOT = Path(__file__).parents[2]
SECONDS = 300.0


class Head(NamedTuple):
    """A cluster: ports of its control store, dashboard and metrics, its token, and the folder of its sessions."""

    port: int
    dashboard: int
    metrics: int
    token: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process that talks to the head: the token lies in a file, as a mounted secret does.

        Variables of this process's embedded Ray are left out: Ray would prefer its token to the file.
        """
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "RAY_USAGE_STATS_ENABLED": "0",
            "HOME": str(self.folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
        }

    def ask(self, path: str, body: object = None) -> Any:
        """Text of the dashboard's answer to a GET, or to a POST of `body`."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.dashboard}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.read()

    def scrape(self) -> bytes:
        """The metrics that Prometheus would get."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=SECONDS) as answer:
            return answer.read()


def free_ports(count: int) -> list[int]:
    """Free ports above the range of Ray's workers and below the range from which the system gives any.

    Each test process has a range of its own: until a server takes a port, another process could.
    """
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = range(20_000 + mine, 32_000, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    listening: list[socket.socket] = []
    while len(listening) < count:
        with contextlib.suppress(OSError):
            listening.append(socket.create_server(("127.0.0.1", random.SystemRandom().choice(own))))
    ports = [server.getsockname()[1] for server in listening]
    for server in listening:
        server.close()
    return ports


def start_head(environment: dict[str, str], cpus: int = 2) -> Iterator[Head]:
    """Start a head in a process group of its own; end it, and nothing else, when the generator is closed."""
    folder = Path(tempfile.mkdtemp(prefix="bs-"))  # a short path, since names of sockets are limited
    port, dashboard, agent, client, metrics = free_ports(5)
    head = Head(port, dashboard, metrics, secrets.token_hex(32), folder)
    (folder / "token").write_text(head.token)
    (folder / "token").chmod(0o600)
    options = {
        "head": None,
        "port": port,
        "node-ip-address": "127.0.0.1",
        "dashboard-host": "127.0.0.1",
        "dashboard-port": dashboard,
        "dashboard-agent-listen-port": agent,
        "ray-client-server-port": client,
        "metrics-export-port": metrics,
        "num-cpus": cpus,
        "object-store-memory": 10**8,
        "temp-dir": folder / "ray",
        "labels": f"planted={PLANTED[:24].hex()}",
    }
    process = start_node(head, "head", options, {**environment, "RAY_metrics_report_interval_ms": "200"})
    try:
        wait_for(lambda: head.ask("/api/version"), process)
        wait_for(lambda: b"ray_node_cpu_count" in head.scrape(), process)  # the agent, which runs jobs too
        yield head
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def start_node(
    head: Head, name: str, options: dict[str, object], environment: dict[str, str]
) -> "subprocess.Popen[bytes]":
    """Begin `ray start --block` in a process group of its own; the node ends when that process ends."""
    words = [f"--{option}" if value is None else f"--{option}={value}" for option, value in options.items()]
    with (head.folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", *words],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**head.environment, **environment},
        )


def wait_for(question, process=None) -> Any:
    """Ask until the answer is true."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            answer = question()
        except (OSError, urllib.error.URLError):
            answer = None
        if answer:
            return answer
        assert time.monotonic() < end, "no answer in time"
        assert process is None or process.poll() is None, "the process has ended"
        time.sleep(0.5)


class Submitted(NamedTuple):
    """A scan that has run as a job. scrapes: of the metrics, while it ran and after; shown: where → what was seen."""

    results: str
    exit_code: int
    scrapes: list[str]
    shown: dict[str, bytes]


def submit_a_night(
    folder: Path, registry: Path, marked: Callable[..., str], plain: Callable[..., str]
) -> Iterator[tuple[Submitted, Night, dict[str, bytes]]]:
    """Three files, one of which holds what fails, scanned on a cluster that lives until the generator is closed."""
    own = Path(shutil.copytree(registry, folder / "registry"))
    secrets = secrets_of(own)
    night = Night(folder, own)
    night.configure(workers=2)
    environment = mount(own, folder / "mounted")
    alice = message_of(registry, "green", "alice")
    night.write("a", [marked(alice, 60, 1), *(plain(60, i) for i in range(7))])
    night.write("b", [*(plain(60, 100 + i) for i in range(7)), POISON])
    night.write("c", [*(plain(60, 200 + i) for i in range(7)), SLOW])
    for head in start_head(environment):
        yield submit(head, night), night, secrets | {"token": bytes.fromhex(head.token)}


def submit(head: Head, night: Night) -> Submitted:
    """Run the scan of a night as a job of a cluster, look at the metrics meanwhile, and then at everything."""
    job_to_do = {
        "entrypoint": f"cd {ROOT} && {sys.executable} -m tests.support.faulty_scan {night.config}",
        "metadata": {"note": f"planted {PLANTED.hex().upper()}"},
    }
    job = json.loads(wait_for(lambda: head.ask("/api/jobs/", job_to_do)))["submission_id"]
    scrapes = []

    def info() -> dict[str, Any]:
        return json.loads(head.ask(f"/api/jobs/{job}"))

    def over() -> dict[str, Any] | None:
        said = info()
        scrapes.append(head.scrape().decode())
        return said if said["status"] in ("SUCCEEDED", "FAILED", "STOPPED") else None

    ended = wait_for(over)
    for _ in range(100):  # the agent of a busy machine is late
        if re.search(r"\nray_brickscan_shards_total.* 3\.0\n", scrapes[-1]):
            break
        time.sleep(0.2)
        scrapes.append(head.scrape().decode())
    shown = {
        "jobs": head.ask("/api/jobs/"),
        "job": head.ask(f"/api/jobs/{job}"),
        "job's log": head.ask(f"/api/jobs/{job}/logs"),
        "actors": head.ask("/api/v0/actors?detail=1"),
        "actors of the dashboard": head.ask("/logical/actors"),
        "tasks": head.ask("/api/v0/tasks?detail=1"),
        "nodes": head.ask("/api/v0/nodes?detail=1"),
        "nodes of the dashboard": head.ask("/nodes?view=summary"),
        "workers": head.ask("/api/v0/workers?detail=1"),
        "objects": head.ask("/api/v0/objects?detail=1"),
        "runtime environments": head.ask("/api/v0/runtime_envs?detail=1"),
        "events": head.ask("/events"),
        "metrics": next((scrape for scrape in reversed(scrapes) if "ray_planted" in scrape), "").encode(),
        "metrics in the end": scrapes[-1].encode(),
        "head's output": (head.folder / "head.log").read_bytes(),
    }
    return Submitted(night.results, ended["driver_exit_code"], scrapes, shown | files_of(head.folder / "ray"))


def files_of(folder: Path) -> dict[str, bytes]:
    """Every regular file below a folder, by its path there."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def ray_logs(since: float) -> dict[str, bytes]:
    """Ray's log since a time of the clock, on the cluster that this process is connected to."""
    here = ray.get_runtime_context()
    folder = Path(here.get_temp_dir()) / here.get_session_name() / "logs"
    return {name: text for name, text in files_of(folder).items() if (folder / name).stat().st_mtime >= since}


def secrets_of(registry: Path) -> dict[str, bytes]:
    """Secrets and sub-keys, as the plain reference derives them, and the audit's secret."""
    known = load_registry(registry)
    audit = (registry / known.audit_secret.removeprefix("file:")).read_text()
    every = {"audit secret": bytes.fromhex(audit)}
    for key in known.keys:
        secret = bytes.fromhex((registry / "secrets" / f"{key.key_id}.key").read_text())
        keys = reference.sub_keys(secret, open_key(registry, key).label)
        every |= {
            f"{key.key_id}: secret": secret,
            f"{key.key_id}: chacha": np.array(keys.chacha, "<u4").tobytes(),
            f"{key.key_id}: sip": keys.sip,
        }
    return every


def mount(registry: Path, folder: Path) -> dict[str, str]:
    """Lay out the registry's secrets as Kubernetes mounts them. Returns the environment with the last key's secret.

    A mounted secret is a link into `..data`, itself a link to a folder named after the time; its mode is 0440.
    """
    known = load_registry(registry)
    data = folder / "..2026_11_20_01_00_00.123456789"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    text = (registry / "keys.toml").read_text()
    for reference_to in (known.audit_secret, *(key.secret for key in known.keys[:-1])):
        file = registry / reference_to.removeprefix("file:")
        (data / file.stem).write_bytes(file.read_bytes())
        (data / file.stem).chmod(0o440)
        (folder / file.stem).symlink_to(f"..data/{file.stem}")
        text = text.replace(reference_to, f"file:{folder / file.stem}")
    last = registry / known.keys[-1].secret.removeprefix("file:")
    text = text.replace(known.keys[-1].secret, "env:BRICKSCAN_TEST_SECRET")
    environment = {"BRICKSCAN_TEST_SECRET": last.read_text().strip()}
    shutil.rmtree(registry / "secrets")
    (registry / "keys.toml").write_text(text)
    return environment
