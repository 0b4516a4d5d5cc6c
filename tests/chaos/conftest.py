"""Fixtures of the chaos tests: a printed seed, an undisturbed night to compare with, a cluster, and the final table."""

import os
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scanner.cluster.machines import cluster
from scanner.cluster.scan import run_scan
from scanner.scan_plan import make_plan
from schemas.config import ClusterConfig
from tests.chaos.night import Night, make_input, make_registry
from tests.chaos.nodes import Nodes
from tests.chaos.table import Row, show
from tests.chaos.worker import REASONS

SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
ROWS: list[Row] = []

os.environ.setdefault("RAY_worker_niceness", "0")  # workers as fast as drivers on a busy machine


def pytest_terminal_summary(terminalreporter) -> None:
    if not ROWS:
        return
    table = show(SEED, ROWS)
    terminalreporter.write_line(table)
    if path := os.environ.get("CHAOS_TABLE"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(table + "\n")


@pytest.fixture
def chance(request) -> random.Random:
    """Random numbers of a test. Each test has its own, so that it can be repeated alone; CHAOS_SEED sets them all."""
    print(f"CHAOS_SEED={SEED}")
    return random.Random(SEED + zlib.crc32(request.node.name.encode()))


@pytest.fixture(scope="session")
def chaos_cluster() -> Iterator[None]:
    """The embedded cluster of this process."""
    with cluster(ClusterConfig(workers=2)):
        yield


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, chaos_cluster) -> Night:
    folder = tmp_path_factory.mktemp("calm")
    registry = make_registry(folder / "registry")
    night = Night(folder / "night", registry, make_input(folder / "in", registry))
    outcome = run_scan(make_plan(night.config), lambda *_: None)
    assert outcome.exit_code == 0
    accidents = set(REASONS.values()) & set(night.quarantine()["reason"])
    assert not accidents, "the night to compare with was disturbed"
    assert {"alice", "bob"} <= set(night.spans()["user_id"]), "the night to compare with has no spans"
    return night


@pytest.fixture
def new_night(tmp_path, undisturbed) -> Callable[..., Night]:
    """A function for nights of the same registry and input. The input may be a copy, the results may lie elsewhere."""
    count = 0

    def make(*, copy: bool = False, results: Path | None = None) -> Night:
        nonlocal count
        count += 1
        data = shutil.copytree(undisturbed.input, tmp_path / f"in-{count}") if copy else undisturbed.input
        return Night(tmp_path / f"night-{count}", undisturbed.registry, data, results=results)

    return make


@pytest.fixture
def judge(undisturbed) -> Callable[..., None]:
    """A function that notes a fault's row of the table, and fails unless its differences are zeros.

    calm: a night without faults to compare with, where the input is another.
    """

    def compare(fault: str, runs: int, nights: list[Night], calm: Night = undisturbed, **expected) -> None:
        from tests.chaos.night import Difference

        found = [night.compare(calm, **expected) for night in nights]
        row = Row(fault, runs, Difference(*map(sum, zip(*found, strict=True))))
        ROWS.append(row)
        assert row.difference == (0, 0, 0), row

    return compare


@pytest.fixture
def nodes(monkeypatch) -> Iterator[Nodes]:
    started = Nodes()
    for name, value in started.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield started
    finally:
        started.close()
