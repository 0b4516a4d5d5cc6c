"""Nights on an Iceberg table: each live document once, whatever snapshots did to the files."""

import signal
from contextlib import nullcontext
from types import SimpleNamespace

import hypothesis.strategies as st
import pyarrow as pa
import pytest
import ray
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import In

from scanner import results
from tests.chaos.night import start_driver
from tests.chaos.processes import output_of
from tests.support.icebergs import NAME, compact, delete_by_position, forget_snapshots, make_table, name_catalog
from tests.support.night import Night
from tests.support.table_histories import PlainTable, check_histories, scan_here, some_of

STEPS = [
    "append", "append", "copies", "delete", "positions", "vector", "update", "compact", "overwrite", "scan", "scan",
    "forget",
]  # fmt: skip
SCHEMA = pa.schema({"doc_id": pa.string(), "text": pa.string()})


@pytest.fixture
def catalogs(tmp_path_factory, monkeypatch):
    """New folders, each with a catalog of its own and an empty table, one an example."""

    def new_one():
        folder = tmp_path_factory.mktemp("history")
        name_catalog(folder, monkeypatch)
        make_table(SCHEMA)
        return folder

    return (new_one() for _ in iter(int, 1))


def step(kind: str, _night: Night, model: PlainTable, number: int, data: st.DataObject) -> None:
    """One commit to the Iceberg table, and the same to the model."""
    table, count, some = (
        load_catalog("lake").load_table("forum.posts"),
        data.draw(st.integers(1, 4)),
        some_of(model, data),
    )
    if kind in ("append", "copies"):
        table.append(model.append(number, count) if kind == "append" else model.append_copies(count))
    elif kind == "update" and some:
        table.overwrite(
            pa.table({"doc_id": some, "text": [f"changed {number}"] * len(some)}), In("doc_id", literals=some)
        )
        model.update(some, f"changed {number}")
    elif kind in ("delete", "positions", "vector") and some:
        if kind == "delete":
            table.delete(In("doc_id", literals=some))
        else:
            delete_by_position(table, some, puffin=kind == "vector")
        model.delete(some)
    elif kind == "overwrite":
        if rows := table.scan().to_arrow():  # of a table without rows nothing can be removed, which pyiceberg warns of
            table.overwrite(rows)  # a snapshot that removes, and one that adds
    elif kind == "compact":
        compact(table)
    elif kind == "forget":
        forget_snapshots(table)


@pytest.mark.costly
def test_a_scan_that_ended_half_way_goes_on_although_files_moved(catalogs, registry):
    night, model = Night(next(catalogs), registry), PlainTable()
    night.configure(paths=[NAME], more='keys = ["gum"]')
    table = load_catalog("lake").load_table("forum.posts")
    for number in range(2):
        table.append(model.append(number, 3))
    scan_here(night, 0, shards=1)
    assert len(night.verdicts()) == 3
    compact(table)
    scan_here(night, 1)
    model.scan()
    model.check(night)


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_a_night_whose_driver_was_killed_goes_on_although_files_moved(catalogs, registry):
    night, model = Night(next(catalogs), registry), PlainTable()
    address = ray.get_runtime_context().gcs_address  # a cluster of the driver's own would take seconds
    with night.configure(paths=[NAME], more='keys = ["gum"]').open("a") as config:
        config.write(f'address = "{address}"\n')
    table = load_catalog("lake").load_table("forum.posts")
    for number in range(8):
        table.append(model.append(number, 3))
    killed = start_driver(night.config, at="between the commits", commit=3, delay=0)
    out = output_of(killed)
    assert killed.returncode == -signal.SIGKILL, out
    assert 0 < len(night.verdicts()) < 24
    compact(table)
    assert night.scan().exit_code == 0
    model.scan()
    model.check(night)


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_scan_that_follows_a_table_scans_what_is_appended_and_nothing_that_moved(catalogs, registry, monkeypatch):
    night, model = Night(next(catalogs), registry), PlainTable()
    night.configure(paths=[NAME], more='keys = ["gum"]', rate=0.5)  # an audit of so few documents is not judged
    table = load_catalog("lake").load_table("forum.posts")
    for number in range(3):
        table.append(model.append(number, 10))

    def delete(*names: str, puffin: bool) -> None:
        model.scan()  # they were scored before
        delete_by_position(table, names, puffin=puffin)
        model.delete(names)

    commits = [
        lambda: table.append(model.append(3, 5)),
        lambda: delete("0:4", "3:1", puffin=False),
        lambda: compact(table),
        lambda: table.overwrite(table.scan().to_arrow()),
        lambda: delete("1:2", puffin=True),
        lambda: table.append(model.append(4, 2)),
    ]
    from scanner.cluster import follow as following

    looks = []

    def sleep(_seconds: float) -> None:
        looks.append(night.verdicts().height if results.exist(night.results) else 0)
        if len(looks) % 3 == 0:  # files are scanned at the second look that finds them as they are
            if not commits:
                raise KeyboardInterrupt
            commits.pop(0)()
            table.refresh()

    monkeypatch.setattr(following, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(following, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(following, "cluster", lambda _: nullcontext())
    assert following.follow(night.plan, lambda *_: None, lambda _: None) == 0
    assert looks[2::3] == [30, 35, 35, 35, 35, 35, 37]
    model.scan()
    model.check(night)
    assert sorted(results.verdicts(night.results).collect()["doc_id"]) == sorted(night.verdicts()["doc_id"])


@pytest.mark.costly
def test_files_that_a_rollback_brings_back_are_not_scanned_again(catalogs, registry):
    """Their rows were scanned in the file that a snapshot, which was undone, had written them into."""
    night, model = Night(next(catalogs), registry), PlainTable()
    night.configure(paths=[NAME], more='keys = ["gum"]')
    table = load_catalog("lake").load_table("forum.posts")
    for number in range(2):
        table.append(model.append(number, 3))
    before = table.snapshots()[-1].snapshot_id
    compact(table)
    for number in range(2, 4):
        scan_here(night, number)
        model.scan()
        model.check(night)
        with table.manage_snapshots() as change:
            change.rollback_to_snapshot(before)
        scan_here(night, 10 * number)
        model.check(night)
        table.append(model.append(number, 2))
        before = table.snapshots()[-1].snapshot_id
        compact(table)


@pytest.mark.long
def test_histories_of_a_table_lose_and_double_nothing(catalogs, registry):
    check_histories(10, STEPS, step, NAME, catalogs, registry)


@pytest.mark.long
def test_a_hundred_histories_of_a_table_lose_and_double_nothing(catalogs, registry):
    check_histories(100, STEPS, step, NAME, catalogs, registry)
