"""The driver beside made-up workers, on the pool's own clock: few waits and commits, and work instead of rows."""

import polars as pl
import pytest

from scanner.cluster import commits, pool
from scanner.results.transactions import read_whole
from tests.bench.driver import simulated


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    for module, name in ((pool, "time"), (commits, "time"), (pool, "ray")):
        monkeypatch.setattr(module, name, getattr(module, name))  # so that monkeypatch restores it


def test_a_hundred_workers_are_fed_in_few_waits_and_commits(tmp_path):
    found = simulated(100, 400, [0, 2], str(tmp_path))
    assert found["waits a shard"] < 1  # with one answer per wait it would be three
    assert found["shards a commit"] > 20
    assert found["pieces a shard"] == 1
    rows = read_whole(str(tmp_path), "shards").collect()
    assert rows["shard_id"].n_unique() == rows.height == 400
    assert rows.select(pl.col("documents").sum()).item() == 400 * 20_000


@pytest.mark.parametrize(("messages", "seconds"), [(10**5, 130), (10**6, 1_300)])
def test_a_slow_key_shows_progress_within_a_minute_and_its_shards_are_pieces_of_seconds(tmp_path, messages, seconds):
    """A shard took 50 s to ten minutes before anything of it was seen."""
    found = simulated(8, 4, [], str(tmp_path), seconds=seconds, messages=messages)
    assert found["first progress s"] < 30
    assert found["longest piece s"] < 45
    assert found["pieces a shard"] < seconds / 5
    assert found["busy"] > 0.6  # four shards keep eight workers busy: whole, they would keep half of them
    rows = read_whole(str(tmp_path), "shards").collect()
    assert rows["shard_id"].n_unique() == rows.height == 4
    assert rows["documents"].to_list() == [20_000] * 4


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize(("messages", "seconds"), [(1, 1.25), (1_000, 3), (10**5, 12)])
def test_shards_of_a_key_that_is_cheap_stay_whole_once_that_is_known(tmp_path, messages, seconds):
    """Under a key of many messages a few first pieces tell; of one message none is cut."""
    found = simulated(8, 200, [], str(tmp_path), seconds=seconds, messages=messages)
    first_pieces = 2 * 8 / 200 if messages > 1_000 else 0
    assert found["pieces a shard"] <= 1 + 2 * first_pieces
