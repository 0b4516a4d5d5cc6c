"""Times without a zone and dates, in the zone that is configured; the standard library's zones are the reference."""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanner.errors import Refused
from scanner.input.columns import Columns, times
from scanner.input.documents import read
from scanner.input.files import list_files
from scanner.input.named_files import describe
from scanner.storage.toml import read_toml_text
from schemas.config import InputConfig
from schemas.tables import DOCUMENTS
from tests.support.inspection import inspect

ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia", "America/Havana"]
YEARS = {"min_value": datetime(1950, 1, 1), "max_value": datetime(2035, 1, 1)}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_OF_A_DAY = timedelta(days=1) - timedelta(microseconds=1)


def in_utc(shown: datetime, zone: str, fold: int = 0) -> datetime:
    return shown.replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


@given(st.sampled_from(ZONES), st.lists(st.datetimes(**YEARS), min_size=1))
@example("Europe/Berlin", [datetime(2026, 3, 29, 2, 30), datetime(2026, 10, 25, 2, 30)])  # skipped, shown twice
@example("Pacific/Apia", [datetime(2011, 12, 30, 12)])  # a day that was skipped
def test_a_time_without_a_zone_is_of_the_configured_one(zone, shown):
    found = times(pa.array(shown, pa.timestamp("us")), zone)
    assert found.earliest.to_pylist() == found.latest.to_pylist() == [in_utc(value, zone) for value in shown]


@given(st.sampled_from(ZONES), st.dates(date(1950, 1, 1), date(2035, 1, 1)))
@example("America/Havana", date(2026, 10, 31))  # the next day begins with an hour that comes twice
@example("America/Havana", date(2026, 3, 8))  # begins with an hour that is skipped
@example("Pacific/Apia", date(2011, 12, 29))
def test_a_date_is_its_first_moment_and_can_mean_its_last(zone, day):
    first = datetime(day.year, day.month, day.day)
    for kind in (pa.date32(), pa.date64()):
        found = times(pa.array([day], kind), zone)
        assert found.earliest.to_pylist() == [in_utc(first, zone)]
        assert found.latest.to_pylist() == [in_utc(first + LAST_OF_A_DAY, zone, fold=1)]


@given(st.sampled_from(ZONES), st.datetimes(**YEARS))
def test_texts_are_read_as_the_times_that_they_write(zone, shown):
    """ISO 8601 with and without a zone, in several spellings; a date alone has a last moment."""
    own = shown.replace(tzinfo=ZoneInfo("Asia/Kolkata"))
    known = [
        own.isoformat(),
        f" {own.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC\n",
        f"{own.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}",
    ]
    clock = [shown.isoformat(), shown.isoformat(" ")]
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.string_view()):
        found = times(pa.array([*known, *clock], pa.string()).cast(kind), zone)
        wanted = [own.astimezone(UTC)] * 3 + [in_utc(shown, zone)] * 2
        assert found.earliest.to_pylist() == found.latest.to_pylist() == wanted
        assert not found.unread.any()
    day = times(pa.array([f"{shown:%Y-%m-%d}", f"{shown:%Y%m%d}"]), zone)
    same = times(pa.array([shown.date()] * 2), zone)
    assert (day.earliest, day.latest) == (same.earliest, same.latest)


@given(st.lists(st.sampled_from(["2026-08-31", "2026-08-31T12:00Z", "2026-08-31 12:00", "soon", " ", "", None])))
def test_texts_are_the_same_times_however_often_they_stand_there(words):
    found, zone = times(pa.array(words, pa.string()), "Asia/Tokyo"), "Asia/Tokyo"
    each = [times(pa.array([word], pa.string()), zone) for word in words]
    assert found.earliest.to_pylist() == [one.earliest[0].as_py() for one in each]
    assert found.latest.to_pylist() == [one.latest[0].as_py() for one in each]
    assert found.unread.tolist() == [bool(one.unread[0]) for one in each]


def test_texts_that_are_no_times_are_null_and_told_apart_from_blank_ones():
    words = [
        "yesterday",
        "2026-13-01",
        "1712010112345678901234",
        "20260831120000",
        "2026083112",
        "2026-08-31T25:00",
        "٢٠٢٦-٠٨-٣١",
        "2026-08-31 12:00 CET",
        "Z" * 10**6,
    ]
    words += ["0001-01-01T00:00+14:00", "2026-08-31T12:00:60Z"]
    found = times(pa.array([*words, "", "  ", None]), "UTC")
    assert found.earliest.to_pylist() == found.latest.to_pylist() == [None] * (len(words) + 3)
    assert found.unread.tolist() == [True] * len(words) + [False] * 3


@given(st.integers(10**8, 9 * 10**10), st.integers(0, 10**6 - 1))
@example(10**8, 0)
@example(9 * 10**10, 0)
def test_numbers_are_seconds_or_parts_of_them_by_their_size(seconds, micros):
    """Any time from 1973 to 4821, in every unit that stays within 64 bits, and in floats to their precision."""
    exact = seconds * 10**6 + micros
    for sign in (1, -1) if seconds < 6 * 10**10 else (1,):  # before the year 1 there are no times
        whole = EPOCH + sign * timedelta(seconds=seconds)
        fine = EPOCH + sign * timedelta(seconds=seconds, microseconds=micros)
        found = times(pa.array([sign * seconds, sign * seconds * 10**3, sign * exact]), "Asia/Kolkata")
        assert found.earliest.to_pylist() == [whole, whole, fine]
        if exact < 9 * 10**15:
            assert times(pa.array([sign * exact * 1000]), "UTC").earliest.to_pylist() == [fine]
        close = times(pa.array([sign * exact / 1e6]), "UTC").earliest[0].as_py()
        assert abs(close - fine) <= timedelta(microseconds=16)  # half of a double's last place at 9e10


@given(st.integers(10**9, 2 * 10**9 - 1), st.integers(0, 10**6 - 1))
@example(1712010112, 345000)  # of 13 digits, whose first eight are a date of 1712
def test_numbers_as_text_are_the_same_times(seconds, micros):
    """In every unit, and with a fraction of seconds; no digit passes for the T of ISO 8601."""
    fine = EPOCH + timedelta(seconds=seconds, microseconds=micros)
    exact = seconds * 10**6 + micros
    words = [f"{exact}", f"{exact}789", f" {seconds}.{micros:06}\n", f"{exact // 1000}.{exact % 1000:03}"]
    found = times(pa.array(words), "Asia/Kolkata")
    assert found.earliest.to_pylist() == found.latest.to_pylist() == [fine] * 4
    assert times(pa.array([f"{seconds}"]), "UTC").earliest.to_pylist() == [fine.replace(microsecond=0)]


FAR = [datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999)]


@pytest.mark.parametrize("schema", [True, False])
def test_int96_times_are_those_of_int64(tmp_path, schema):
    """Spark's and Impala's int96 reach further than nanoseconds of 64 bits do, with Arrow's schema and without."""
    stored = pa.table({"text": ["a", "b", "c"], "at": pa.array(FAR, pa.timestamp("us", "UTC"))})
    for name, int96 in (("96", True), ("64", False)):
        pq.write_table(stored, tmp_path / f"{name}.parquet", use_deprecated_int96_timestamps=int96, store_schema=schema)
    columns = Columns("text", None, None, "at")
    of_64, of_96 = (next(iter(read(file, columns, 0, 3))) for file in list_files([str(tmp_path)]))
    assert of_96["created_at"].to_pylist() == [at.replace(tzinfo=UTC) for at in FAR]
    assert of_96["created_at"] == of_64["created_at"]
    assert describe(list_files([str(tmp_path / "96.parquet")])[0], columns)[1].type.startswith("timestamp[us")


def test_numbers_that_are_no_times():
    for values, known in (
        (pa.array([float("nan"), float("inf"), -1e300, 0.0, None]), [False, False, False, True, True]),
        (pa.array([2**64 - 1, 2**63, 1_756_600_000, None], pa.uint64()), [False, False, True, True]),
        (pa.array([-(2**63), 2**63 - 1, 2**62]), [False, False, True]),
        (pa.array([1756600000, None], pa.decimal128(20, 3)), [True, True]),
        (pa.array([1_756_600_000, 5], pa.uint32()), [True, True]),
    ):
        found = times(values, "UTC")
        assert found.unread.tolist() == [not one for one in known]
        assert [value is None for value in found.earliest.to_pylist()] == [
            not one or value is None for one, value in zip(known, values.to_pylist(), strict=True)
        ]


@pytest.mark.parametrize("zone", ["UTC", *ZONES])
def test_a_time_with_a_zone_is_not_touched(zone):
    moment = datetime(2026, 8, 31, 3, tzinfo=UTC)
    found = times(pa.array([moment, None], pa.timestamp("ns", "Asia/Tokyo")), zone)
    assert found.earliest.to_pylist() == found.latest.to_pylist() == [moment, None]


@pytest.mark.parametrize("zone", ["UTC", *ZONES])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_ends_of_time_stay_within_what_python_can_hold(zone, unit):
    found = times(pa.array([2**63 - 1, -(2**63), None], pa.timestamp(unit)), zone)
    last, first, none = found.earliest.to_pylist()
    assert first.year == (1 if unit != "ns" else 1677)
    assert last.year == (9999 if unit != "ns" else 2262)
    assert none is None
    ends = times(pa.array([2**31 - 1, -(2**31)], pa.int32()).view(pa.date32()), zone)
    assert [value.year for value in ends.latest.to_pylist()] == [9999, 1]


def test_a_file_of_dates_in_a_zone(tmp_path):
    stored = {"text": ["a", "b"], "day": pa.array([date(2026, 8, 31), None])}
    pq.write_table(pa.table(stored), tmp_path / "a.parquet")
    (file,) = list_files([str(tmp_path)])
    columns = Columns("text", None, None, "day", "Europe/Berlin")
    inspect(file, columns)
    (batch,) = read(file, columns, 0, 2)
    assert batch.schema == DOCUMENTS
    assert batch["created_at"].to_pylist() == [datetime(2026, 8, 30, 22, tzinfo=UTC), None]
    assert batch["created_at_latest"].to_pylist() == [datetime(2026, 8, 31, 21, 59, 59, 999999, UTC), None]


CONFIG = 'paths = ["in"]\ntime_zone = "{}"\n'


def test_the_zone_is_one_of_the_iana_database():
    assert read_toml_text("c.toml", CONFIG.format("Europe/Berlin"), InputConfig).time_zone == "Europe/Berlin"
    assert read_toml_text("c.toml", 'paths = ["in"]', InputConfig).time_zone == "UTC"
    for wrong in ("Europe/Bärlin", "europe/berlin", "CEST", "+02:00", "", "localtime"):
        with pytest.raises(
            Refused, match=r"c.toml: field 'time_zone' = '.*': not a time zone of the IANA database; allowed"
        ):
            read_toml_text("c.toml", CONFIG.format(wrong), InputConfig)


def test_zones_need_no_database_of_the_machine():
    code = """
import zoneinfo, pyarrow as pa
from scanner.input.columns import times
from schemas.config import InputConfig
zoneinfo.reset_tzpath([])
assert InputConfig(paths=("in",), time_zone="Asia/Kolkata").time_zone == "Asia/Kolkata"
print(times(pa.array([0], pa.timestamp("s")), "Asia/Kolkata").earliest.cast(pa.int64())[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{-int(5.5 * 3600) * 10**6}\n", done.stderr
