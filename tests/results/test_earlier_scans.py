"""No user is named for a text that was seen before they got the message, even if the text states a later time."""

import os
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from scanner.detection.attribution import EarlierScans, FileHistory
from scanner.input.files import list_files
from scanner.registry import list_users, new_key, restore_users
from scanner.results.earlier_scans import read_earlier_scans
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import TABLES, write_file
from schemas.tables import FLAGS, QUARANTINE, USER_EVENTS
from tests.support.command_line import call
from tests.support.night import Night
from tests.support.rows import add_scanned, verdict
from tests.support.two_keys import TOKENIZER, message_of

DAY = timedelta(days=1)
ALL_KEYS, GUM_ALONE = "", 'keys = ["gum"]'


def free_message(registry: Path) -> int:
    held = set(list_users(registry, ["green"])["message"])
    return next(m for m in range(100) if m not in held and m % 20 != 19)


def give(registry: Path, message: int, user: str, at: datetime | None = None) -> datetime:
    """Give a user this message of the green-list key, from now on or from another time."""
    at = at or datetime.now(UTC)
    row = {"key_id": "green", "message": message, "user_id": user, "event": "allocated", "at": at}
    restore_users(registry, pa.Table.from_pylist([row], USER_EVENTS))
    return at


def newest(night: Night) -> dict[str, dict]:
    """The newest flagged verdict of each document, by doc_id."""
    rows = night.verdicts().sort("scanned_at").filter("flagged")
    return {row["doc_id"]: row for row in rows.iter_rows(named=True)}


pytestmark = pytest.mark.usefixtures("without_ray")


@pytest.mark.costly
def test_a_rescan_names_nobody_who_got_the_message_since(night, own_registry, marked):
    message = free_message(own_registry)
    night.write("a", [marked(message, 60, 1)])
    night.scan()
    first = newest(night)["a:0"]
    assert (first["naming"], first["user_id"], first["held_since"]) == ("unallocated", None, None)

    given = give(own_registry, message, "carol")
    time.sleep(1)  # scan ids count whole seconds
    night.write("b", [marked(message, 60, 2)])  # first seen after carol got the message
    new_key(own_registry, "k", format="greenlist", window=3, gamma="1/4", messages=500, tokenizer=TOKENIZER)
    for rescan in ("with a new key", "by other rules", "of files with a new time"):
        if rescan == "by other rules":
            night.configure(more="weights = { document = 0.9 }")
        if rescan == "of files with a new time":
            os.utime(night.input / "a.parquet")
        night.scan()
        again, new = newest(night)["a:0"], newest(night)["b:0"]
        assert again["scan_id"] != first["scan_id"]
        assert (again["naming"], again["user_id"], again["held_since"]) == ("held_later", None, given), rescan
        assert again["first_seen_at"] <= first["scanned_at"] < given
        assert (new["naming"], new["user_id"], new["held_since"]) == ("named", "carol", given), rescan
        assert given < new["first_seen_at"] < new["scanned_at"]

    _, out, _ = call("flagged", night.config)
    seen = again["first_seen_at"]
    assert f"seen by {seen:%Y-%m-%d %H:%M}, which its user got later: {given:%Y-%m-%d %H:%M}" in out
    assert "no user held" not in out


def test_a_text_is_known_that_was_flagged_for_a_message_beside_another(night, own_registry):
    """The verdict's own message is alice's. The message beside it was nobody's then, and carol got it since."""
    alice, free = message_of(own_registry, "green", "alice"), free_message(own_registry)
    entry = {"key_id": "green", "message": alice, "user_id": "alice", "naming": "named", "log10_p_global": -19.0}
    beside = entry | {"message": free, "user_id": None, "naming": "unallocated"}
    at = datetime.now(UTC)
    about = {"key_id": "green", "message": alice, "log10_p_global": -19.0, "scanned_at": at, "keys": "set"}
    rows = [
        verdict(i, user="alice", text_sha256=bytes([i]) * 32, named=named, **about)
        for i, named in enumerate(([entry, beside], [entry], None))
    ]
    open_tables(night.results)
    file = write_file(night.results, "flags", [pa.RecordBatch.from_pylist(rows, FLAGS)])
    commit(night.results, "flags", [TableEntry("all", (file,))])
    night.write("a", ["x"])
    files = list_files((str(night.input),))
    assert read_earlier_scans(night.plan(), files, datetime.now(UTC)).texts == {}
    give(own_registry, free, "carol")
    assert read_earlier_scans(night.plan(), files, datetime.now(UTC)).texts == {bytes(32): at}


@pytest.mark.costly
def test_a_file_that_was_scanned_before_is_as_old_as_that_scan(night, own_registry, marked):
    """The age holds even if the text was not flagged then, and whatever the time column says."""
    message = free_message(own_registry)
    created = pa.array([datetime.now(UTC) + 9 * DAY, None], pa.timestamp("us", "UTC"))
    night.configure(more='keys = ["gum"]', columns='time = "at"')
    night.write("a", [marked(message, 60, i) for i in range(2)], at=created)
    assert night.scan().totals.counts.flagged == 0
    given = give(own_registry, message, "carol")
    night.configure(columns='time = "at"')
    night.scan()
    for row in newest(night).values():
        assert (row["naming"], row["held_since"]) == ("held_later", given)
        assert row["first_seen_at"] <= night.verdicts()["scanned_at"].min()

    night.write("a", [marked(message, 60, i) for i in range(2, 4)], at=created)  # another file in its place
    night.scan()
    assert {name: row["naming"] for name, row in newest(night).items()} == {"a:0": "named", "a:1": "named"}


def test_a_copy_is_as_old_as_the_text_that_was_flagged_before(night, own_registry, marked):
    """The copy's own stated time does not matter. Nor does one copy's stated time make another copy older."""
    message, alice = free_message(own_registry), message_of(own_registry, "green", "alice")
    recorded_history, never_seen, now = marked(message, 60, 1), marked(alice, 60, 2), datetime.now(UTC)
    night.configure(columns='time = "at"')
    night.write("a", [recorded_history], at=[now])
    night.scan()
    give(own_registry, message, "carol")
    later = datetime.now(UTC)
    night.write("b", [recorded_history, never_seen, never_seen], at=[later, datetime(2001, 1, 1, tzinfo=UTC), later])
    outcome = night.scan()
    found = {name: (row["naming"], row["user_id"]) for name, row in newest(night).items()}
    assert found == {
        "a:0": ("unallocated", None),
        "b:0": ("held_later", None),
        "b:1": ("held_later", None),
        "b:2": ("named", "alice"),
    }
    assert newest(night)["b:1"]["first_seen_at"] == datetime(2001, 1, 1, tzinfo=UTC)
    assert outcome.totals.counts.older_than_key == 1


def test_a_file_older_than_its_key_is_told(night, registry, marked, plain):
    alice = message_of(registry, "green", "alice")
    path = night.write("a", [marked(alice, 60, 1), plain(60, 2)])
    os.utime(path, (86400, 86400))  # as unpacked from an archive without times
    code, out, _ = call("scan", night.config)
    assert code == 0
    assert newest(night)["a:0"]["naming"] == "held_later"
    assert newest(night)["a:0"]["first_seen_at"] == datetime(1970, 1, 2, tzinfo=UTC)
    assert "- 1 flagged document older than the key, by the text's own time or, where it has none, the file's" in out


def test_a_time_to_come_is_told_and_counts_as_now(night, own_registry, marked, plain):
    message, tomorrow = free_message(own_registry), datetime.now(UTC) + DAY
    give(own_registry, message, "carol", tomorrow - DAY / 2)
    night.configure(columns='time = "at"')
    times = pa.array([tomorrow, tomorrow, None], pa.timestamp("us", "UTC"))
    night.write("a", [marked(message, 60, 1), plain(60, 2), plain(60, 3)], at=times)
    path = night.write("b", [marked(message, 60, 4), plain(60, 5)], at=times[1:])
    os.utime(path, (tomorrow.timestamp(),) * 2)
    code, out, _ = call("scan", night.config)
    assert code == 0
    for row in newest(night).values():
        assert row["naming"] == "held_later"
        assert row["first_seen_at"] < row["scanned_at"]
    assert "- 4 documents with a time in the future, which counts as now" in out


@pytest.mark.costly
def test_a_date_is_compared_by_its_last_moment_in_the_zone(night, own_registry, marked):
    """The message was given at two in the morning by UTC: in New York, at nine in the evening of the day before."""
    message = free_message(own_registry)
    give(own_registry, message, "carol", datetime(2026, 11, 2, 2, tzinfo=UTC))
    night.write("a", [marked(message, 60, 1)] * 3, at=[date(2026, 10, 31), date(2026, 11, 1), date(2026, 11, 2)])

    def named_in(zone: str) -> list[str]:
        night.configure(columns=f'time = "at"\ntime_zone = "{zone}"')
        assert night.scan().totals.counts.documents == 3
        return [newest(night)[f"a:{i}"]["naming"] for i in range(3)]

    assert named_in("UTC") == ["held_later", "held_later", "named"]
    row = newest(night)["a:1"]
    assert row["created_at"] == datetime(2026, 11, 1, tzinfo=UTC)
    assert row["first_seen_at"] == datetime(2026, 11, 1, 23, 59, 59, 999999, UTC)
    assert named_in("America/New_York") == ["held_later", "named", "named"]


BEGAN = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def seen(night):
    """A function that reads the earlier scans of two files, given older rows; `a` was modified two hours before."""
    path = night.write("a", ["text"])
    night.write("b", ["text"])
    os.utime(path, ((BEGAN - 2 * HOUR).timestamp(),) * 2)

    def ask(verdicts=(), quarantine=(), **changes) -> EarlierScans:
        open_tables(night.results)
        for row in verdicts:
            began = (
                datetime.strptime(row["scan_id"][:16], "%Y%m%dT%H%M%S%z")
                if "T" in row["scan_id"]
                else row["scanned_at"]
            )
            add_scanned(night.results, f"{row['scan_id']} {row['row']}", [row], began_at=began)
        if quarantine:
            file = write_file(night.results, "quarantine", [pa.RecordBatch.from_pylist(list(quarantine), QUARANTINE)])
            commit(night.results, "quarantine", [TableEntry("quarantine", (file,))])
        night.configure(**changes)
        return read_earlier_scans(night.plan(), list_files([str(night.input)]), BEGAN)

    ask.path = str(path)
    return ask


BEFORE, SINCE, NEVER = 41, 42, 43
"""Messages of the green-list key that nobody else holds: given before a flag, since, and never."""


def at(hours: float) -> datetime:
    return BEGAN - hours * HOUR


def test_nothing_was_seen_before_the_first_scan(seen):
    assert seen() == EarlierScans(BEGAN, {}, {})


def test_a_scan_had_the_same_file_if_it_came_after_its_last_change(seen):
    rows = [verdict(i, seen.path, scan_id=f"s{hours}", scanned_at=at(hours)) for i, hours in enumerate((5, 3, 1.5, 1))]
    rows += [verdict(9, "/elsewhere/a.parquet", scan_id="s", scanned_at=at(1.9))]
    assert seen(rows).files == {seen.path: at(1.5)}


@pytest.mark.parametrize("modified", [BEGAN + DAY, datetime(1970, 1, 1, tzinfo=UTC)], ids=["to come", "not told"])
def test_any_scan_may_have_had_a_file_whose_last_change_is_not_known(seen, modified):
    os.utime(seen.path, (modified.timestamp(),) * 2)
    assert seen([verdict(0, seen.path, scanned_at=at(5))]).files == {seen.path: at(5)}


def test_a_file_was_there_when_the_scan_that_had_it_began(seen):
    """The start of a scan counts, not the time of its row. A scan from before the file's last change does not count."""
    ids = [f"{at(hours):%Y%m%dT%H%M%SZ}-0123abcd" for hours in (3, 1.5)]
    rows = [verdict(i, seen.path, scan_id=ids[i], scanned_at=at(hours)) for i, hours in enumerate((2.5, 1))]
    assert seen(rows).files == {seen.path: at(1.5)}


@pytest.mark.parametrize("row", [3, None])
def test_a_scan_that_put_it_in_quarantine_had_the_file_too(seen, row):
    refused = {"scan_id": "s", "shard_id": "x", "path": seen.path, "row": row, "reason": "failed", "detail": ""}
    assert seen(quarantine=[refused | {"scanned_at": at(1)}]).files == {seen.path: at(1)}


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"message": SINCE}, True),
        ({"message": SINCE, "naming": "held_later"}, True),
        ({"message": NEVER}, False),
        ({"message": BEFORE, "naming": "held_later"}, False),
        ({"message": 19, "naming": "reserved"}, False),
        ({"message": None, "naming": "ambiguous"}, True),
        ({"message": NEVER, "naming": "unproved"}, True),
        ({"message": None, "naming": "unproved"}, True),
        ({"message": SINCE, "naming": "none", "flagged": False}, False),
        ({"message": BEFORE, "naming": "named", "user_id": "u"}, False),
        ({"message": BEFORE, "naming": "removed"}, False),
        ({"message": NEVER, "key_id": "gum"}, True),  # its key is not under test now
        ({"message": NEVER, "log10_p_global": -5.9}, True),  # above today's rate
        ({"message": NEVER, "log10_p_global": -6.2, "correction": 1.0}, True),  # above it when corrected for two keys
        ({"message": NEVER, "log10_p_global": -6.2, "correction": 2.0}, False),
        ({"message": NEVER, "log10_p_global": -6.2, "correction": 9.0}, False),
        ({"message": NEVER, "log10_p_global": -6.2, "correction": 1.2}, True),
        ({"message": NEVER, "log10_p_global": -6.2, "correction": 1.3}, False),
    ],
)
def test_flags_that_can_change_whom_a_text_names(own_registry, seen, changes, counts):
    """A text was flagged four and three hours ago. Users got messages before the first flag and between the two."""
    give(own_registry, BEFORE, "early", at(4.5))
    give(own_registry, SINCE, "late", at(3.5))
    digests = [bytes([i]) * 32 for i in range(2)]
    both = {"key_id": "green", "flagged": True, "log10_p_global": -9.0, "correction": 2.0, "naming": "unallocated"}
    rows = [
        verdict(0, "/x", text_sha256=digests[0], scanned_at=at(3), **both | changes),
        verdict(1, "/y", text_sha256=digests[0], scanned_at=at(4), **both | changes),
        verdict(2, "/z", text_sha256=digests[1], scanned_at=at(5), key_id="green", flagged=False),
    ]
    assert seen(rows, more='keys = ["green"]').texts == ({digests[0]: at(4)} if counts else {})


@pytest.mark.parametrize("own", [None, 0.5, 1.5, 2.5, -1])
@pytest.mark.parametrize("text", [None, 1, 3])
@pytest.mark.parametrize("before", [None, 1, 3])
@pytest.mark.parametrize("modified", [None, 2, -1])
def test_the_earliest_time_counts_and_its_files_only_without_one_of_its_own(own, text, before, modified):
    def time_of(hours: float | None) -> datetime | None:
        return None if hours is None else at(hours)

    known = FileHistory(BEGAN, {} if text is None else {b"x": at(text)}, time_of(before), time_of(modified))
    hours = [0, text, before, modified if own is None else own]
    earliest = max(hour for hour in hours if hour is not None)
    assert known.existed_by(time_of(own), b"x") == (at(earliest) if earliest else None)
    assert FileHistory(BEGAN, {}, None, None).existed_by(None, b"x") is None


@pytest.mark.parametrize("tables", [1, len(TABLES) - 2, len(TABLES) - 1])
def test_a_scan_begins_where_one_died_while_it_made_its_tables(night, plain, without_ray, tables):
    """As on a full disk: a folder with some of the tables was refused for those that it lacked."""
    night.write("a", [plain(30, 1)])
    open_tables(str(night.results), list(TABLES)[:tables])
    assert night.scan().exit_code == 0
    assert night.verdicts().height == 1
