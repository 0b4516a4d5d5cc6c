"""Neither the clock nor the filesystem's listing order changes the verdicts or the order of scanning."""

import datetime
import os
from pathlib import Path

import pytest

from scanner.cluster import scan, worker
from scanner.cluster.pieces import Piece
from scanner.cluster.worker import Worker
from scanner.detection import rows

pytestmark = pytest.mark.usefixtures("ray_cluster")

FILES, ROWS = 6, 4


class Diary(Worker):
    """A worker that writes down its pieces in the order in which they come."""

    def scan(self, piece: Piece):
        with (Path(self._plan.results) / "diary").open("a") as diary:
            diary.write(f"{piece.shard.shard_id}\n")
        yield from super().scan(piece)


class LastYear(datetime.datetime):
    """A clock that is a year behind, and stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2025, 11, 20, tzinfo=tz)


class Late(Diary):
    """A worker on a machine whose clock is a year behind."""

    def prepare(self) -> None:
        super().prepare()
        worker.datetime = rows.datetime = LastYear


def claimed(night) -> list[str]:
    return (Path(night.results) / "diary").read_text().splitlines()


@pytest.fixture
def night(night, plain):
    for i in range(FILES):
        night.write(f"{i}", [plain(40, ROWS * i + j) for j in range(ROWS)])
    night.configure(workers=1)  # one worker takes the shards one by one
    return night


@pytest.mark.costly
def test_neither_clock_nor_listing_order_matter(night, monkeypatch):
    night.scan(worker=Diary)
    first, order = night.verdicts(), claimed(night)
    assert len(order) == FILES
    assert list(dict.fromkeys(first["shard_id"])) == order, "shards are claimed in the order of their paths"

    real = os.walk

    def backwards(*arguments, **named):
        for here, folders, names in real(*arguments, **named):
            yield here, folders, names[::-1]

    monkeypatch.setattr(os, "walk", backwards)
    monkeypatch.setattr(scan, "datetime", LastYear)
    night.results = str(night.folder / "again")
    night.config.write_text(night.config.read_text().replace('"results"', '"again"'))
    night.scan(worker=Late)
    again = night.verdicts()
    assert claimed(night) == order
    assert again.drop("scan_id", "scanned_at").equals(first.drop("scan_id", "scanned_at"))
    assert night.last_scan()["started_at"].year == 2025
    assert night.scan(worker=Late).work.left == ()
