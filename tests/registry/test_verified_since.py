"""Names are held against an earlier verification: whatever was changed since is found, and nothing else is."""

import json

import polars as pl
import pytest

from scanner.errors import Refused
from scanner.registry import (
    NO_RECORD,
    add_users,
    erase_users,
    head_of,
    index,
    ledger,
    list_users,
    remove_users,
    sorted_files,
    verification,
    verify_since,
    verify_users,
)
from tests.support.forged_users import CHANGES, part_files, read_events, rewrite, swap_names

pytestmark = pytest.mark.seconds


@pytest.fixture
def grown(folder, make_key, small_index):
    """A registry whose users came and went one after the other, and the record of a verification half-way."""
    make_key(messages=1000)
    small_index()
    for n in range(6):
        add_users(folder, None, [f"user-{n}", f"friend-{n}"])
    remove_users(folder, ["user-1"])
    record = verify_since(folder, NO_RECORD)
    for n in range(6, 9):
        add_users(folder, None, [f"user-{n}", f"friend-{n}"])
    remove_users(folder, ["user-2"])
    return folder, record


@pytest.mark.costly
def test_what_brickscan_does_is_no_change(grown):
    folder, record = grown
    for _ in range(3):
        record = verify_since(folder, record)
        assert verify_since(folder, record) == record
        assert max(record.checkpoints) == (read_events(folder).height, head_of(folder))
        add_users(folder, None, ["late", "later"])
        erase_users(folder, ["user-1"])
        remove_users(folder, ["late"])
        erase_users(folder, ["late"])
    assert verify_users(folder).holds
    assert verify_since(folder, NO_RECORD).parts == verify_since(folder, record).parts


@pytest.mark.parametrize("since", [True, False])
def test_two_names_that_were_swapped_in_any_file_are_found(grown, since):
    """In files that were verified by their digest, in files that came since by the events."""
    folder, record = grown
    record = verify_since(folder, record) if since else record
    swapped = 0
    for path, rows in part_files(folder, "user_id").items():
        before = path.read_bytes()
        if swap_names(path, rows):
            swapped += 1
            with pytest.raises(Refused, match="its users"):
                verify_since(folder, record)
        path.write_bytes(before)
    assert swapped >= 2
    verify_since(folder, record)


def test_a_part_that_is_taken_out_or_given_to_another_key_is_found(grown):
    folder, record = grown
    record = verify_since(folder, record)
    (newest,) = (folder / "users" / "_index").glob(f"index-{_number(folder):016x}.json")
    written = json.loads(newest.read_text())
    for run, kinds in enumerate(written["runs"]):
        for kind in range(len(kinds)):
            if kinds[kind][1] == index.NAMES:
                continue
            for change in ("out", "key", "twice", "range"):
                forged = json.loads(json.dumps(written))
                entry = forged["runs"][run][kind]
                if change == "out":
                    entry[2] = entry[2][1:]
                elif change == "key":
                    entry[0] = "another"
                elif change == "twice":
                    forged["runs"].append([["k2", entry[1], entry[2]]])
                else:
                    entry[2][0][3] += 1
                newest.write_text(json.dumps(forged))
                with pytest.raises(Refused):
                    verify_since(folder, record)
    newest.write_text(json.dumps(written))
    verify_since(folder, record)


def _number(folder) -> int:
    return ledger.open_table(folder).transaction_version("users-index")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_events_that_were_changed_are_found_by_a_scan_that_reads_them(folder, make_key, change):
    """Here no index exists yet, so that users are named from the events."""
    make_key(messages=100)
    add_users(folder, None, ["alice", "bob", "carol", "dave"])
    remove_users(folder, ["alice"])
    erase_users(folder, ["alice"])
    add_users(folder, None, ["erin", "frank"])
    record = verify_since(folder, NO_RECORD)
    remove_users(folder, ["erin", "bob"])
    verify_since(folder, record)
    rewrite(folder, change)
    with pytest.raises(Refused, match=r"|given or removed twice"):
        verify_since(folder, record)


def test_a_registry_that_is_older_than_the_record_is_found(grown):
    folder, record = grown
    newer = verify_since(folder, record)
    rewrite(folder, lambda rows: rows.filter(pl.col("seq") < 13))
    verify_since(folder, record)
    with pytest.raises(Refused, match="its history does not have the head"):
        verify_since(folder, newer)


def test_only_what_is_new_is_followed(folder, make_key, small_index, monkeypatch):
    """With large runs that stay, events before them are not read again; a merge has older ones looked at."""
    make_key(messages=1000)
    small_index()
    monkeypatch.setattr(sorted_files, "PART_ROWS", 2**18)
    add_users(folder, None, [f"user-{n}" for n in range(400)])
    add_users(folder, None, ["one"])  # now they are in the index
    record = verify_since(folder, NO_RECORD)
    assert sum(part.rows for part in record.parts) == 401
    add_users(folder, None, ["two", "three"])
    begun = []
    windows = ledger._windows
    monkeypatch.setattr(
        ledger, "_windows", lambda table, first, rows: begun.append(first) or windows(table, first, rows)
    )
    after = verify_since(folder, record)
    assert begun == [401]
    assert verify_since(folder, after) == after
    assert {part.sha256 for part in record.parts} <= {part.sha256 for part in after.parts}


def test_a_file_that_goes_while_it_is_read_is_asked_for_again(grown, monkeypatch):
    folder, record = grown
    inner, calls = verification._names_parts, []

    def merged_meanwhile(*given):
        if not calls:
            calls.append(1)
            add_users(folder, None, [f"more-{n}" for n in range(40)])
        return inner(*given)

    monkeypatch.setattr(verification, "_names_parts", merged_meanwhile)
    assert max(verify_since(folder, record).checkpoints)[0] == read_events(folder).height
    assert list_users(folder).height == 58
