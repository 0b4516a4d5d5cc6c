"""The cost of a scan, from made-up seconds."""

import pyarrow as pa
import pytest

from scanner.cluster.commits import NO_UNITS, ScanTotals, costs
from scanner.cluster.pieces import DocumentCounts, Seconds
from scanner.input.files import InputFile
from scanner.input.shards import Range, Shard
from schemas.tables import SCANS, STAGES

SECONDS = Seconds(read=1.0, tokenise=2.0, score=3.0, prove=4.0, write=5.0, commit=100.0)


def shard(number: int) -> Shard:
    path = f"/in/{number}.parquet"
    return Shard(f"shard-{number}", InputFile(path, path, path, 1, 1), Range(10 * number, 10 * number + 10, 1))


def test_seconds_are_added_by_stage_and_the_drivers_are_no_workers():
    both = SECONDS.plus(Seconds(prove=1.0, commit=1.0))
    assert both == (1.0, 2.0, 3.0, 5.0, 5.0, 101.0)
    assert (SECONDS.of_workers, both.of_workers) == (15.0, 16.0)
    assert Seconds._fields == STAGES


def test_the_slowest_work_is_named_beside_the_mean():
    units = NO_UNITS
    for number, seconds in enumerate([3.0, 9.0, 9.0, 3.0]):
        units = units.plus(shard(number), Seconds(score=seconds, commit=50.0))
    found = costs(ScanTotals(seconds=Seconds(score=24.0), units=units))
    assert (found["slowest_shard"], found["slowest_path"], found["slowest_row"]) == ("shard-1", "/in/1.parquet", 10)
    assert (found["slowest_seconds"], found["skew"]) == (9.0, pytest.approx(1.5))


def test_documents_and_bytes_a_core_hour_are_those_of_the_workers():
    found = costs(ScanTotals(counts=DocumentCounts(documents=600, text_bytes=1500), seconds=SECONDS))
    assert found["documents_a_core_hour"] == pytest.approx(600 * 240)
    assert found["bytes_a_core_hour"] == pytest.approx(1500 * 240)
    assert found["core_seconds"] == SECONDS._asdict()


def test_a_scan_without_work_has_no_rates():
    found = costs(ScanTotals())
    assert [name for name, value in found.items() if value is not None] == ["text_bytes", "core_seconds"]
    names = SCANS.names[SCANS.names.index("text_bytes") : SCANS.names.index("skew") + 1]
    assert list(found) == names
    pa.RecordBatch.from_pylist([found], pa.schema([SCANS.field(name) for name in names]))
