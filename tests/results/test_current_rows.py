"""Documents that were scanned more than once: the rows that stand, against a plain reading of the rule, row by row."""

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from scanner import results
from scanner.registry import load_registry, new_key
from scanner.results.flags import WantedFlags
from scanner.results.flags import newest as newest_list
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import write_file
from schemas.tables import FLAGS, SHARDS
from schemas.versions import VERSION
from tests.support.command_line import call
from tests.support.rescanned import FLAGGED_AT, SHARDS_OF_NIGHTS, Shard, ended, write
from tests.support.rows import NOW, verdict
from tests.support.signed_results import NOT_CHECKED
from tests.support.two_keys import TOKENIZER, message_of


def standing(nights: list[Shard]) -> dict[tuple[str, int], tuple[int, float]]:
    """The scan and p-value that stand for each document, by the rule in scanner.results.current_rows."""
    found: dict[tuple[str, int], tuple[int, float]] = {}
    by_age = sorted(enumerate(nights), key=lambda one: (ended(one[1], one[0]), one[0]))
    places = {(shard.path, shard.first + i) for shard in nights for i in range(len(shard.log10_p))}
    for path, row in places:
        seen = [  # oldest first, without scans that could not score the row
            (scan, shard, shard.log10_p[row - shard.first])
            for scan, shard in by_age
            if shard.path == path
            and shard.first <= row < shard.first + len(shard.log10_p)
            and shard.log10_p[row - shard.first] is not None
        ]
        of_this_file = [one for one in seen if one[1].file == seen[-1][1].file]
        newest_of_keys = {shard.keys: (p, -scan) for scan, shard, p in of_this_file}
        if newest_of_keys:
            p, scan = min(newest_of_keys.values())
            found[path, row] = (-scan, p)
    return found


FLAGGED, NOT = (-7.0,), (-1.0,)
PUT_BACK = [
    Shard("/in/a", "one", "1:1", 0, FLAGGED),
    Shard("/in/a", "one", "2:2", 0, NOT),  # the file was another one for a night
    Shard("/in/a", "two", "1:1", 0, NOT),
]
OUTRUN = [Shard("/in/a", "one", "1:1", 0, FLAGGED, late=5), Shard("/in/a", "one", "1:1", 0, NOT)]


@pytest.mark.long
@settings(max_examples=300)
@given(SHARDS_OF_NIGHTS)
def test_verdicts_and_flags_are_those_of_the_plain_rule_in_many_nights(tmp_path_factory, nights):
    assert_plain_rule(tmp_path_factory, nights)


@pytest.mark.costly
@example(PUT_BACK)
@example(OUTRUN)
@settings(max_examples=30)
@given(SHARDS_OF_NIGHTS)
def test_verdicts_and_flags_are_those_of_the_plain_rule(tmp_path_factory, nights):
    assert_plain_rule(tmp_path_factory, nights)


def assert_plain_rule(tmp_path_factory, nights: list[Shard]) -> None:
    folder = str(tmp_path_factory.mktemp("results"))
    write(folder, nights)
    expected = standing(nights)
    columns = ("path", "row", "scan_id", "log10_p_global")
    verdicts = results.verdicts(folder).select(columns).collect().rows()
    assert sorted(verdicts) == sorted((*document, f"scan {scan}", p) for document, (scan, p) in expected.items())
    flagged = results.flagged(folder).select(columns).collect().rows()
    wanted = [(*document, f"scan {scan}", p) for document, (scan, p) in expected.items() if p <= FLAGGED_AT]
    assert sorted(flagged) == sorted(wanted)


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_key_that_is_added_and_scans_alone_hides_no_older_flag(night, own_registry, marked, plain):
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 60, 1), plain(60, 2)])
    night.scan()
    before = results.flagged(night.results).select("row", "user_id", "key_id", "log10_p_global").collect()
    assert before["user_id"].to_list() == ["alice"]
    new_key(own_registry, "late", format="greenlist", window=3, gamma="1/4", messages=1, tokenizer=TOKENIZER)
    config = night.configure()
    config.write_text('keys = ["late"]\n' + config.read_text())
    assert len(night.scan().work.left) == 1
    assert len(load_registry(own_registry).keys) == 3
    assert results.flagged(night.results).select(before.columns).collect().equals(before)
    whose = before.drop("log10_p_global")
    assert results.verdicts(night.results).filter("flagged").select(whose.columns).collect().equals(whose)
    assert results.verdicts(night.results).collect().height == 2


def test_migrate_says_that_there_is_nothing_to_move(tmp_path):
    folder = tmp_path / "results"
    open_tables(str(folder))
    assert call("migrate", folder) == (
        0,
        f"9 tables of version {VERSION}, which this brickscan writes: nothing to upgrade\n",
        f"{NOT_CHECKED}\n",
    )
    code, _, err = call("migrate", tmp_path / "nowhere")
    assert code == 2
    assert "no folder" in err


def test_nights_count_what_their_scans_finished(tmp_path):
    folder = str(tmp_path / "results")
    write(folder, [Shard("/in/a", "one", "1:1", 0, (-7.0, None)), Shard("/in/b", "one", "1:1", 0, (-1.0,))])
    found = results.nights(folder).collect()
    assert found.select("night", "shards", "documents").rows() == [("3", 2, 6)]  # a row of `filled` counts 3 documents
    assert results.shards(folder).collect().columns == SHARDS.names


def entry(key_id: str, message: int, user: str | None, log10_p: float) -> dict:
    naming = "named" if user else "unallocated"
    return {"key_id": key_id, "message": message, "user_id": user, "naming": naming, "log10_p_global": log10_p}


def of_scan(scan: int, keys: str, naming: str, named: list[dict], log10_p: float, again: list[dict] | None = None):
    """A scan's row of flags for document 0 of /in/a.parquet, and its row of shards."""
    first = named[0] if named else entry(keys, 5, None, log10_p)
    about = {"key_id": first["key_id"], "message": first["message"], "naming": naming, "log10_p_global": log10_p}
    at = NOW + timedelta(hours=scan)
    same = {
        "scan_id": f"scan-{scan}",
        "shard_id": f"shard-{scan}",
        "path": "/in/a.parquet",
        "scanned_at": at,
        "keys": keys,
    }
    row = verdict(0, user=first["user_id"], **(about | same)) | {"named": named or None, "further_messages": again}
    counts = dict.fromkeys(("quarantined", "too_short", "scored_in_part"), 0)
    more = {"night": "n", "first_row": 0, "rows": 1, "file": "1:1", "began_at": at, "documents": 1, "flagged": 1}
    return row, {**same, **counts, **more, "tokens": 99, "dropped_at": None}


def stored(folder: str, scans: list) -> str:
    open_tables(folder)
    for name, schema, rows in (("flags", FLAGS, [row for row, _ in scans]), ("shards", SHARDS, [r for _, r in scans])):
        file = write_file(folder, name, [pa.RecordBatch.from_pylist(rows, schema)])
        commit(folder, name, [TableEntry("all", (file,))])
    return folder


def test_names_of_scans_under_other_keys_are_put_together(tmp_path):
    """Key one names alice and bob, key two later alice again and carol; two messages belong to nobody."""
    alice, bob = entry("one", 1, "alice", -9.0), entry("one", 2, "bob", -6.5)
    later = [entry("two", 7, "alice", -8.0), entry("two", 8, "carol", -7.0), entry("two", 9, None, -6.2)]
    nobody = entry("three", 4, None, -6.1)
    scans = [
        of_scan(0, "one", "named", [alice, bob], -9.0),
        of_scan(1, "two", "named", later, -8.0, [entry("two", 3, "alice", -6.3)]),
        of_scan(2, "three", "unallocated", [nobody], -6.1),
        of_scan(3, "four", "undecided", [], -40.0),
    ]
    folder = stored(str(tmp_path / "out"), scans)
    (row,) = results.flagged(folder).collect().iter_rows(named=True)
    assert (row["user_id"], row["key_id"], row["scan_id"]) == ("alice", "one", "scan-0")  # not the undecided scan
    assert row["named"] == [alice, later[1], bob, later[2], nobody]
    assert row["further_messages"] == [later[0], entry("two", 3, "alice", -6.3)]
    for user in ("alice", "bob", "carol"):
        (found,) = newest_list(folder, 1.0, WantedFlags(users=(user,)), None).rows["user_id"]
        assert found == user
    (strict,) = results.flagged(folder, 1e-10).collect().iter_rows(named=True)
    assert (strict["naming"], strict["named"]) == ("undecided", None)


def test_a_scan_under_the_same_keys_takes_the_names_of_the_one_before_back(tmp_path):
    alice, bob = entry("one", 1, "alice", -9.0), entry("one", 2, "bob", -8.0)
    scans = [of_scan(0, "one", "named", [alice], -9.0), of_scan(1, "one", "named", [bob], -8.0)]
    (row,) = results.flagged(stored(str(tmp_path / "out"), scans)).collect().iter_rows(named=True)
    assert (row["user_id"], row["named"], row["further_messages"]) == ("bob", [bob], None)
