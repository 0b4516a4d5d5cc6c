"""Calls over Ray: each result comes once, few calls are in flight, and errors reach the caller."""

import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanner.cluster import pool
from scanner.cluster.machines import cluster
from scanner.cluster.pool import Call, spread
from scanner.errors import Refused, ScanFailed
from schemas.config import ClusterConfig


@pytest.fixture(scope="module", autouse=True)
def ray_cluster() -> Iterator[None]:
    with cluster(ClusterConfig(workers=1)):
        yield


def double(number: int) -> int:
    return 2 * number


def niceness() -> int:
    return os.nice(0)


def refuse(number: int) -> int:
    raise Refused(f"{number} is refused")


def fail(number: int) -> int:
    raise ZeroDivisionError(f"{number}")


def die(number: int) -> int:
    os._exit(number)


@pytest.mark.costly
def test_nobody_else_enters_the_folder_of_an_embedded_cluster():
    """Ray opens its own folder to everybody: logs, sockets and the token's clients lie in it."""
    sessions = [
        session
        for base in {tempfile.gettempdir(), "/tmp"}
        for session in Path(base).glob(f"bricks*/ray/session_*_{os.getpid()}")
    ]
    assert [stat.S_IMODE(session.parents[1].stat().st_mode) for session in sessions] == [0o700]


@pytest.mark.costly
def test_workers_of_an_embedded_cluster_are_as_nice_as_this_process():
    assert list(spread([Call("a", niceness, ())], 1)) == [("a", niceness())]


@pytest.mark.costly
def test_every_call_gives_its_result():
    assert dict(spread((Call(i, double, (i,)) for i in range(23)), 2)) == {i: 2 * i for i in range(23)}
    assert list(spread([], 2)) == []


def test_calls_are_made_as_they_are_needed():
    asked = []

    def calls():
        for i in range(50):
            asked.append(i)
            yield Call(i, double, (i,))

    results = spread(calls(), 1)
    next(results)
    assert len(asked) <= 4
    results.close()


def wait(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.costly
def test_somebody_is_called_while_nothing_ends(monkeypatch):
    monkeypatch.setattr(pool, "_WAIT_SECONDS", 0.1)
    called = []
    list(spread([Call("a", wait, (2.0,))], 1, lambda: called.append(time.monotonic())))
    assert len(called) >= 10
    assert called[-1] - called[0] >= 1


def test_what_goes_wrong_is_told():
    with pytest.raises(Refused, match="5 is refused"):
        list(spread([Call("a", refuse, (5,))], 1))
    with pytest.raises(ScanFailed, match="the first failed: ZeroDivisionError: 7"):
        list(spread([Call("the first", fail, (7,)), Call("b", double, (1,))], 1))


@pytest.mark.costly
def test_a_call_that_kills_every_worker_is_told():
    with pytest.raises(ScanFailed, match="the deadly one failed"):
        list(spread([Call("the deadly one", die, (1,))], 1))
