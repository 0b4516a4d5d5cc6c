"""The start of an embedded Ray: begun early, tried again on a machine whose CPUs others use, closed to strangers."""

import errno
import gc
import os
import socket
import stat
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest
import ray
from ray._private import ray_constants
from ray._private.node import Node

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


@pytest.fixture
def no_ray(monkeypatch):
    """This process is connected to no Ray, and connects to none."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", lambda **_options: None)


class Heads:
    """In place of Ray's processes: starts of them, of which some are late."""

    def __init__(self, late: int) -> None:
        self.late, self.started, self.ended = late, 0, 0

    def __call__(self, *_given: object) -> SimpleNamespace:
        self.started += 1
        if self.started <= self.late:
            raise SLOW
        return SimpleNamespace(gcs_address="here:1", end=self.end)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("late", [0, 2])
def test_a_ray_that_starts_too_late_is_started_again(monkeypatch, late):
    heads = Heads(late)
    monkeypatch.setattr(embedded, "_Head", heads)
    with cluster(CONFIG) as workers:
        assert (workers, heads.started, heads.ended) == (3, late + 1, 0)
    assert heads.ended == 1


@pytest.mark.usefixtures("no_ray")
def test_a_ray_that_cannot_be_connected_to_is_started_again(monkeypatch):
    heads, tries = Heads(0), []

    def init(**_options):
        tries.append(0)
        if len(tries) == 1:
            raise SLOW

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(embedded, "_Head", heads)
    with cluster(CONFIG):
        assert (heads.started, heads.ended) == (2, 1)
    assert heads.ended == 2


@pytest.mark.usefixtures("no_ray")
def test_a_ray_that_was_begun_is_ended_though_nobody_needed_it(monkeypatch):
    heads = Heads(0)
    monkeypatch.setattr(embedded, "_Head", heads)
    with ray_begun(CONFIG):
        pass
    assert (heads.started, heads.ended) == (1, 1)
    with ray_begun(CONFIG) as connect, cluster(CONFIG, connect):
        pass
    assert (heads.started, heads.ended) == (2, 2)


@pytest.mark.usefixtures("no_ray")
def test_a_ray_that_is_elsewhere_is_not_started(monkeypatch):
    monkeypatch.setattr(embedded, "_Head", Heads(0))
    with ray_begun(ClusterConfig(address="127.0.0.1:1")) as connect, pytest.raises(ScanFailed, match="cannot be reach"):
        connect()
    assert embedded._Head.started == 0


@pytest.mark.costly
@pytest.mark.usefixtures("no_ray")
def test_a_ray_that_never_starts_ends_with_advice_and_nothing_of_it_stays(monkeypatch):
    """Ray forgets what it started, and its objects warn of processes that go on when the collector finds them."""
    started, warned = [], []

    def late(head):
        started.append(head.all_processes[ray_constants.PROCESS_TYPE_GCS_SERVER][0].process)
        raise SLOW

    monkeypatch.setattr(Node, "start_ray_processes", late)
    monkeypatch.setattr(sys, "unraisablehook", warned.append)
    advice = r"did not start, tried 3 times.*run it again.*ray start --head.*address"
    with pytest.raises(ScanFailed, match=advice), cluster(CONFIG):
        pass
    assert [process.returncode is not None for process in started] == [True] * 3
    started.clear()
    gc.collect()
    assert not warned


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


@pytest.mark.usefixtures("no_ray")
def test_sockets_lie_in_a_short_private_folder(tmp_path, temporary):
    """TMPDIR of SLURM and of macOS is too long for them; Ray's files lie there all the same."""
    folder = long_folder(tmp_path)
    temporary(folder)
    with embedded.ray_folders() as folders:
        assert folders.files.startswith(f"{folder}/bricks")
        assert len(f"{folders.sockets}/0/plasma_store") < 60
        for private in (folders.files, folders.sockets):
            status = os.stat(private)
            assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, os.getuid())
        with embedded.ray_folders() as others:
            assert not set(others) & set(folders) - {folders.store}
    assert not [*folder.iterdir()]
    assert not os.path.exists(folders.sockets)
    temporary("/tmp")  # short
    with embedded.ray_folders() as folders:
        assert folders.sockets == folders.files


@pytest.mark.usefixtures("no_ray")
def test_a_ray_without_a_folder_says_so(tmp_path, temporary, monkeypatch):
    """Once, and without a word about busy machines; the folders that it made are gone."""
    temporary(long_folder(tmp_path))
    heads = Heads(0)
    monkeypatch.setattr(embedded, "_Head", heads)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(embedded, "_SHORT_FOLDERS", (str(tmp_path / "missing"), "/proc"))
    with (
        pytest.raises(ScanFailed, match=r"no folder can hold its sockets .*missing.*/proc.*have TMPDIR name"),
        cluster(CONFIG),
    ):
        pass
    monkeypatch.setattr(tempfile, "TemporaryFile", full_disk)
    with pytest.raises(ScanFailed, match=r"files cannot be written in .*No space left.*TMPDIR"), cluster(CONFIG):
        pass
    assert heads.started == 0
    assert not [*(tmp_path / ("a" * 60) / ("b" * 120)).iterdir()]


def full_disk(**_options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.usefixtures("no_ray")
def test_an_error_that_stays_is_met_once(monkeypatch):
    """A disk that fills while Ray starts is no busy machine, and three tries take a minute and a half."""
    heads = Heads(9)
    monkeypatch.setattr(sys.modules[__name__], "SLOW", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(embedded, "_Head", heads)
    with pytest.raises(ScanFailed, match=r"cannot start here: .*No space left"), cluster(CONFIG):
        pass
    assert heads.started == 1


def test_shared_memory_without_room_is_not_used(tmp_path, monkeypatch):
    """Docker gives 64 MB of it by default, and some machines none at all."""
    assert embedded._store(str(tmp_path)) in ("/dev/shm", str(tmp_path))
    for bytes_free in (64 * 2**20, None):

        def statvfs(path, free=bytes_free):
            if free is None:
                raise FileNotFoundError(path)
            return SimpleNamespace(f_bavail=free // 4096, f_frsize=4096)

        monkeypatch.setattr(embedded.os, "statvfs", statvfs)
        assert embedded._store(str(tmp_path)) == str(tmp_path)


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
