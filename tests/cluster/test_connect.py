"""The start of an embedded Ray: begun early, tried again on a machine whose CPUs others use, closed to strangers."""

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile

import pytest
import ray

from scanner.cluster import embedded
from scanner.cluster.machines import cluster, ray_begun
from scanner.errors import ScanFailed
from schemas.config import ClusterConfig

SLOW = Exception("The current node timed out during startup. This could happen because some of the raylet failed.")
CONFIG = ClusterConfig(workers=3)

STRANGER = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(ray.get(ray.remote(lambda: "ran here").remote()))
"""
"""Program of somebody who knows where a cluster listens."""

STARTER = """
import threading, time, ray
from scanner.cluster.machines import cluster, ray_begun
from schemas.config import ClusterConfig

config, before = ClusterConfig(workers=1), threading.active_count()
with ray_begun(config) as connect, cluster(config, connect):
    print(ray.get_runtime_context().gcs_address)
while threading.active_count() > before:  # some of Ray's end a little later
    time.sleep(0.1)
"""
"""Program that starts Ray, ends it, says where it was, and goes on until no thread of it is left."""

FAILED_STARTS = '''
import subprocess, threading, time
from pathlib import Path
from scanner.cluster.machines import cluster
from scanner.errors import ScanFailed
from schemas.config import ClusterConfig

start, starters = subprocess.Popen.__init__, set()

def running():
    """Child processes of this one that have not ended."""
    children = [pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()]
    return [pid for pid in children if " Z " not in Path(f"/proc/{pid}/stat").read_text()]

def start_one(self, command, *given, **options):
    if threading.current_thread() in starters:  # each try has a thread of its own
        raise RuntimeError("no second process")
    start(self, command, *given, **options)
    starters.add(threading.current_thread())

subprocess.Popen.__init__ = start_one
try:
    with cluster(ClusterConfig(workers=1)):
        raise AssertionError("Ray started")
except ScanFailed:
    pass
end = time.monotonic() + 60  # a process that got its signal ends when it has a CPU
while running() and time.monotonic() < end:
    time.sleep(0.1)
print(f"{len(starters)} started, {len(running())} left")
'''
"""Program whose Ray can start one process only, in each of three tries."""


class Starts:
    """In place of `ray.init` and `ray.shutdown`: tries of which some fail, and ends of those that did not."""

    def __init__(self) -> None:
        self.errors, self.tried, self.ended, self.connected = list[Exception](), 0, 0, False

    def init(self, *_address: str, **_options: object) -> None:
        self.tried += 1
        if self.errors:
            raise self.errors.pop()
        self.connected = True

    def shutdown(self, **_options: object) -> None:
        self.ended += self.connected
        self.connected = False


@pytest.fixture
def starts(monkeypatch) -> Starts:
    """This process is connected to no Ray, and connects to none."""
    fake = Starts()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: fake.connected)
    monkeypatch.setattr(ray, "shutdown", fake.shutdown)
    monkeypatch.setattr(ray, "init", fake.init)
    return fake


@pytest.mark.parametrize("late", [0, 2])
def test_a_ray_that_starts_too_late_is_started_again(starts, late):
    starts.errors = [SLOW] * late
    with cluster(CONFIG) as workers:
        assert (workers, starts.tried, starts.ended) == (3, late + 1, 0)
    assert starts.ended == 1


def test_a_ray_that_was_begun_is_ended_though_nobody_needed_it(starts):
    with ray_begun(CONFIG):
        pass
    assert (starts.tried, starts.ended) == (1, 1)


def test_a_scan_connects_several_times_to_the_ray_that_it_began(starts):
    with ray_begun(CONFIG) as connect:
        for _ in range(2):
            with cluster(CONFIG, connect), cluster(CONFIG):
                pass
        assert (starts.tried, starts.ended) == (1, 0)
    assert (starts.tried, starts.ended) == (1, 1)


def test_a_ray_that_is_elsewhere_is_not_started(starts):
    with ray_begun(ClusterConfig(address="127.0.0.1:1")) as connect, pytest.raises(ScanFailed, match="cannot be reach"):
        connect()
    assert starts.tried == 0


def test_a_ray_that_never_starts_ends_with_advice(starts):
    starts.errors = [SLOW] * 9
    advice = r"did not start in 3 attempts.*run this again.*ray start --head.*address"
    with pytest.raises(ScanFailed, match=advice), cluster(CONFIG):
        pass
    assert starts.tried == 3


@pytest.mark.costly
def test_nothing_stays_of_a_start_that_failed():
    """Ray forgets what a start that failed has left behind; here its second process cannot be started."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    program = subprocess.run(
        [sys.executable, "-c", FAILED_STARTS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert program.stdout == "3 started, 0 left\n", program.stderr


def long_folder(tmp_path, length: int = 120):
    """A folder whose path is longer than a socket's may be."""
    folder = tmp_path / ("a" * 60) / ("b" * length)
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def temporary(monkeypatch):
    """Has `tempfile` take another folder."""

    def use(folder) -> None:
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)

    return use


def test_the_folder_is_private_and_its_path_short(tmp_path, temporary):
    """TMPDIR of SLURM and of macOS is too long for sockets."""
    long = long_folder(tmp_path)
    for folder in (long, "/tmp"):
        temporary(folder)
        with embedded.ray_folder() as made, embedded.ray_folder() as other:
            assert made != other
            assert len(made) < 40
            status = os.stat(made)
            assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, os.getuid())
        assert not os.path.exists(made)
    assert made.startswith("/tmp/bricks")
    assert not [*long.iterdir()]


def test_a_ray_without_a_folder_says_so(tmp_path, temporary, monkeypatch, starts):
    """Once, and without a word about busy machines; the folders that it made are gone."""
    long = long_folder(tmp_path)
    temporary(long)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(embedded, "_SHORT_FOLDERS", (str(tmp_path / "missing"), "/proc"))
    with pytest.raises(ScanFailed, match=r"no folder can hold .*missing.*/proc.*set TMPDIR to"), cluster(CONFIG):
        pass
    monkeypatch.setattr(tempfile, "TemporaryFile", full_disk)
    with pytest.raises(ScanFailed, match=r"bbb: .*No space left.*TMPDIR"), cluster(CONFIG):
        pass
    assert starts.tried == 0
    assert not [*long.iterdir()]


def full_disk(**_options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_error_that_stays_is_met_once(starts):
    """A disk that fills while Ray starts is no busy machine, and three tries take a minute and a half."""
    starts.errors = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))] * 9
    with pytest.raises(ScanFailed, match=r"cannot start here: .*No space left"), cluster(CONFIG):
        pass
    assert starts.tried == 1


@pytest.mark.costly
def test_ray_runs_where_the_temporary_folder_has_a_long_path(tmp_path):
    folder = long_folder(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"TMPDIR": str(folder)}
    subprocess.run([sys.executable, "-c", STARTER], env=environment, capture_output=True, check=True, timeout=300)
    assert not [name for name in os.listdir(folder) if name.startswith("bricks")]


@pytest.mark.costly
def test_strangers_do_not_get_in():
    """Ray listens on all addresses: whoever has no token, or another, is refused."""
    with cluster(ClusterConfig(workers=1)):
        address = ray.get_runtime_context().gcs_address
        token = os.environ["RAY_AUTH_TOKEN"]
        for mode, theirs, enters in (("token", token, True), ("token", "0" * 64, False), ("disabled", "", False)):
            environment = os.environ | {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": theirs}
            stranger = subprocess.run(
                [sys.executable, "-c", STRANGER, address],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (stranger.stdout == "ran here\n") is enters, (mode, stranger.stderr[-500:])


@pytest.mark.costly
def test_no_thread_and_no_process_of_a_ray_stays():
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    program = subprocess.run(
        [sys.executable, "-c", STARTER], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    host, _, port = program.stdout.strip().rpartition(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port)), 5):
        pass
