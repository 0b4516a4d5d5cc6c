"""The driver beside a hundred made-up workers: it takes several answers at a time, and commits every shard once."""

import polars as pl

from scanner.cluster import commits, pool
from scanner.results.tables import read_whole
from tests.bench.driver import simulated


def test_a_hundred_workers_are_fed_in_few_waits_and_commits(tmp_path, monkeypatch):
    for module, name in ((pool, "time"), (commits, "time"), (pool, "ray")):
        monkeypatch.setattr(module, name, getattr(module, name))  # so that monkeypatch restores it
    found = simulated(100, 400, [0, 2], str(tmp_path))
    assert found["waits a shard"] < 1  # with one answer per wait it would be three
    assert found["shards a commit"] > 20
    rows = read_whole(str(tmp_path), "shards").collect()
    assert rows["shard_id"].n_unique() == rows.height == 400
    assert rows.select(pl.col("documents").sum()).item() == 400 * 20_000
