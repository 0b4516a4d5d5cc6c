"""A real Ray cluster on this machine: a head without CPUs, and nodes of one CPU that are killed and replaced."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.night import ROOT
from tests.chaos.processes import command_of, descendants, kill_all
from tests.support.submitted import free_ports

_OBJECT_STORE = 80 * 2**20
_STARTS = 5


class Nodes:
    """A cluster with its own port, folder and token; `close` ends its processes and no others."""

    def __init__(self, count: int = 2) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bc-"))  # short, since socket names must be short
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
            # notice a lost node within seconds, so that faults can follow each other
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "4",
        }
        (self.port,) = free_ports(1)
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            head = self._start(f"--head --port={self.port} --include-dashboard=false --num-cpus=0")
            assert head, self._log.read_text()
            self.nodes = [self.add() for _ in range(count)]
        except BaseException:
            self.close()
            raise

    @property
    def _log(self) -> Path:
        return self.folder / "nodes.log"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self) -> "subprocess.Popen[bytes]":
        for _ in range(_STARTS):  # Ray's 30 s for a start can be too short
            if node := self._start(f"--address={self.address} --num-cpus=1"):
                return node
        raise AssertionError(self._log.read_text())

    def kill(self, node: "subprocess.Popen[bytes]") -> None:
        """SIGKILL a node's raylet; the node's other processes notice it by themselves."""
        raylets = [pid for pid in descendants(node.pid) if b"raylet/raylet" in command_of(pid)]
        os.kill(raylets[0], signal.SIGKILL)
        self.nodes.remove(node)

    def take(self, node: "subprocess.Popen[bytes]") -> None:
        """Tell a node to end, as a cloud does that takes a machine back; the node drains for half a minute and ends."""
        node.terminate()
        self.nodes.remove(node)

    def close(self) -> None:
        for node in reversed(self._started):  # the head ends last
            left = descendants(node.pid)
            node.terminate()
            try:
                node.wait(60)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
            kill_all(left)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, options: str) -> "subprocess.Popen[bytes] | None":
        """Start a node; None when it ended before it had started."""
        log = self._log
        before = log.read_text().count("Ray runtime started") if log.exists() else 0
        with log.open("ab") as out:
            process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("ray")),
                    *("start", "--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1"),
                    *(*options.split(), f"--object-store-memory={_OBJECT_STORE}"),
                    *([f"--temp-dir={self.folder}/ray"] if "--head" in options else []),
                ],
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )
        self._started.append(process)
        end = time.monotonic() + 180
        while log.read_text().count("Ray runtime started") == before:
            if process.poll() is not None:
                return None
            assert time.monotonic() < end, f"a node did not start in time: {log.read_text()}"
            time.sleep(0.1)
        return process
