"""`brickscan status`: the last scans, how they ended, and each fault that needs attention."""

import csv
import io
import json
from datetime import timedelta

import pyarrow as pa
import pytest

from jobs.nights import EXIT_CODE_WORDS
from scanner.cluster.scan import ExitCode
from scanner.results.scan_list import resumed_by
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import write_file
from schemas.tables import QUARANTINE, SCANS, SHARDS
from tests.support.command_line import call
from tests.support.rows import NOW, filled
from tests.support.signed_results import NOT_CHECKED


def ended(i: int, exit_code: int = 0, shards: int = 4, **changes: object) -> dict[str, object]:
    """The row of a scan that began i hours ago."""
    began = NOW - timedelta(hours=i)
    times = {"started_at": began, "finished_at": began + timedelta(seconds=75)}
    counts = {"shards": shards, "shards_skipped": 0, "files_quarantined": 0, "quarantined": 2, "documents": 12_345}
    well = {"audit": "no alarm", "audited_scans": [f"s{i}"], "keys": [], "values_not_read": 0, "exit_code": exit_code}
    counts |= {
        "too_short": 3,
        "filtered": 0,
        "part": None,
        "night": f"{began:%Y-%m-%d}",
        "night_stated": None,
        "keys_left_out": [],
        "level_shards_left": None,
    }
    return filled(SCANS, scan_id=f"s{i}", **(times | counts | well | changes))


def shards_of(i: int, number: int) -> list[dict[str, object]]:
    at = {"began_at": NOW - timedelta(hours=i), "scanned_at": NOW - timedelta(hours=i, minutes=-1)}
    about = {"scan_id": f"s{i}", "path": f"/in/{i}", "rows": 10, "keys": "k", "documents": 10, "dropped_at": None}
    return [filled(SHARDS, shard_id=f"s{i}-{j}", first_row=10 * j, **at, **about) for j in range(number)]


def put(folder: str, scans: list[dict], shards: list[dict], lost: tuple[dict, ...] = ()) -> str:
    open_tables(folder)
    tables = (("scans", scans, SCANS), ("shards", shards, SHARDS), ("quarantine", lost, QUARANTINE))
    for name, rows, schema in tables:
        file = write_file(folder, name, [pa.RecordBatch.from_pylist(list(rows), schema)])
        commit(folder, name, [TableEntry("all", (file,) if file else ())])
    return folder


def hands(folder: str, *arguments: object) -> list[str]:
    code, out, _ = call("status", folder, "--format", "json", *arguments)
    assert code == 0
    return json.loads(out)["needs_attention"]


def test_a_key_that_claims_used_up_needs_attention(folder):
    key = filled(SCANS)["keys"][0] | {"key_id": "k", "positions": 90, "positions_shown": 10}
    (hand,) = hands(put(folder, [ended(1, keys=[key]), ended(2)], [shard for i in (1, 2) for shard in shards_of(i, 4)]))
    assert hand.startswith("scan s1: under k, 10.0% of the positions were left out")


def test_scans_newest_first_and_nothing_to_do(folder):
    put(folder, [ended(i) for i in range(7)], [row for i in range(7) for row in shards_of(i, 4)])
    code, out, err = call("status", folder)
    assert (code, err) == (0, "")
    head, *lines, shown, not_checked, waiting, last = out.splitlines()
    assert head.split() == ["scan", "night", "began", "took", "ended", "documents", "flagged", "quarantine", "audit"]
    assert lines[0].split() == [
        *("s0", "2026-08-31", "2026-08-31", "03:00", "0:01:15", "done", "12,345", "0", "2", "no", "alarm")
    ]
    assert [line.split()[0] for line in lines] == [f"s{i}" for i in range(5)]
    assert shown == "5 of 7 scans shown (--limit shows more)"
    assert not_checked == NOT_CHECKED
    assert waiting == "night 2026-08-31 has too little to be compared with: 1 earlier night, of 28"
    assert last == "nothing needs your attention"
    assert "7 of 7 scans shown\n" in call("status", folder, "--limit", 7)[1]


def test_every_exit_code_has_its_word():
    assert set(EXIT_CODE_WORDS) == {int(code) for code in ExitCode}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"audit": "alarm", "exit_code": 3}, "Use no flag of this scan. The registry was changed while the scan ran"),
        ({"audit": "possible framing"}, "possible framing: texts of a few accounts carry messages that no user holds"),
        ({"exit_code": 4, "quarantined": 0}, "scan s0: nothing was read"),
        (
            {"exit_code": 4, "files_quarantined": 1},
            "scan s0: more files could not be read than the configuration allows; ",
        ),
        (
            {"audit": "no decoys", "too_short": 0},
            "the registry has no audit secret (`brickscan keys audit-secret`), or",
        ),
        (
            {"audit": "no decoys", "documents": 5, "too_short": 3},
            "it scored no document: everything it read was too short",
        ),
        (
            {"audit": "no decoys", "documents": 9, "filtered": 4},
            "it scored no document: everything it read was too short, too short after the filter",
        ),
        ({"values_not_read": 1200}, "1,200 documents have an id, account or time that cannot be read"),
        ({"keys_left_out": ["hug"]}, "scan s0 scored no text under key hug: run `brickscan scan --check` to see why"),
        ({"exit_code": 130, "shards": 9}, "interrupted by Ctrl-C, 5 of 9 shards left: run the same command again"),
        ({"exit_code": 143, "shards": 0}, "ended by SIGTERM: run the same command again"),  # while files were listed
        (
            {"level_shards_left": 3},
            "scan s0: its night is not final: the model has not read 3 shards; run the same command",
        ),
        ({"exit_code": 1}, "failed: fix what it reported and run it again"),
        ({"exit_code": 2}, "refused: fix what it reported and run it again"),
    ],
)
def test_what_needs_attention(folder, changes, said):
    put(folder, [ended(0, **changes)], shards_of(0, 4))
    (hand,) = hands(folder)
    assert said in hand
    assert f"- {hand}" in call("status", folder)[1]


def test_what_was_ended_as_it_is_meant_to_be_or_gone_on_with_needs_none(folder):
    put(
        folder,
        [
            ended(0, audited_scans=["s0", "s1", "s3"]),
            ended(1, 130, shards=8),  # s0 went on with it
            ended(2, 143),  # --follow: all that it found is done
        ],
        [row for i in (0, 1, 2, 3) for row in shards_of(i, 4)],  # s3 was killed, and s0 went on with it
    )
    assert hands(folder) == []


@pytest.mark.parametrize(("audited", "needs"), [(["s0"], 1), (["s0", "s1"], 0)])
def test_only_a_later_scan_of_its_night_makes_a_night_final(folder, audited, needs):
    scans = [ended(0, audited_scans=audited, level_shards_left=0), ended(1, level_shards_left=2)]
    put(folder, scans, [row for i in (0, 1) for row in shards_of(i, 4)])
    assert len(hands(folder)) == needs


def test_a_scan_that_was_killed_or_runs_is_told(folder):
    put(folder, [ended(1)], [*shards_of(0, 3), *shards_of(1, 4)])
    (hand,) = hands(folder)
    assert hand.startswith("scan s0 finished 3 shards, the last at 2026-08-31 03:01:00Z, ")
    assert "ago, but did not record an end: it is still running, or its process was killed (SIGKILL" in hand
    (only,) = json.loads(call("status", folder, "--format", "json")[1])["rows"]
    assert only["scan_id"] == "s1"


def test_what_is_in_quarantine_is_told_with_the_command_that_shows_it(folder):
    about = {"scan_id": "s0", "shard_id": "x", "path": "/in/x", "scanned_at": NOW}
    put(
        folder, [ended(0)], shards_of(0, 4), (filled(QUARANTINE, row=None, **about), filled(QUARANTINE, row=2, **about))
    )
    see = f"`brickscan quarantine {folder} --group-by document`"
    assert hands(folder) == [f"1 whole file could not be read: {see} lists them and says why"]


def test_csv(folder):
    put(folder, [ended(0, files_quarantined=2, shards=6), ended(1)], [*shards_of(0, 4), *shards_of(1, 4)])
    code, out, err = call("status", folder, "--format", "csv", "--limit", 1)
    shown, not_checked, waiting, last = err.splitlines()
    assert (code, shown, last) == (0, "1 of 2 scans shown (--limit shows more)", "nothing needs your attention")
    assert not_checked == NOT_CHECKED
    assert waiting.startswith("night 2026-08-31 has too little")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["scan_id"], row["exit_code"], row["committed"], row["shards"]) == ("s0", "0", "4", "6")
    assert "  2 + 2 files  " in call("status", folder)[1].splitlines()[1]


def test_where_nothing_was_scanned(folder, tmp_path):
    open_tables(folder)
    assert call("status", folder)[1] == f"0 of 0 scans shown\n{NOT_CHECKED}\nnothing needs your attention\n"
    code, _, err = call("status", tmp_path / "none")
    assert code == 2
    assert "is no folder, nor the file of a scan's configuration" in err


def test_a_scan_that_was_killed_before_it_read_anything_needs_no_hand_once_its_night_is_done(folder):
    """No audit names such a scan, since it has no verdicts; nor is its night amber."""
    killed = ended(2, 143, audit="not judged", audited_scans=[], documents=0, night="2026-11-19")
    done = ended(1, night="2026-11-19")
    assert resumed_by(killed, done)
    assert all(resumed_by(killed, done | {"exit_code": code}) for code in (3, 4, 5)), "they came to their end"
    assert not resumed_by(killed, done | {"exit_code": 4, "documents": 0}), "it found nothing to read"
    assert not any(resumed_by(killed, done | {"exit_code": code}) for code in (1, 2, 130, 143))
    assert not resumed_by(killed, done | {"night": "2026-11-20"})
    assert not resumed_by(killed | {"documents": 1}, done)
    assert not resumed_by(done, killed)
    put(folder, [done, killed], shards_of(1, 4))
    assert hands(folder) == []


def test_a_part_that_was_interrupted_and_gone_on_with_needs_no_hand(folder):
    """No audit judges a part, so none names the scan that was interrupted."""
    stopped = ended(2, 130, shards=8, part="1/2", audit="not judged")
    done = ended(1, part="1/2", audit="not judged")
    assert resumed_by(stopped, done)
    assert not resumed_by(stopped, done | {"part": "2/2"})
    assert not resumed_by(stopped, done | {"config_sha256": "another"})
    assert not resumed_by(stopped, done | {"exit_code": 130})
    put(folder, [done, stopped], [*shards_of(1, 4), *shards_of(2, 4)])
    assert hands(folder) == []


def test_a_scan_that_read_nothing_before_midnight_was_gone_on_with_after_it():
    killed = ended(2, 143, audit="not judged", audited_scans=[], documents=0)
    later = ended(1) | {"started_at": NOW + timedelta(hours=22), "night": f"{NOW + timedelta(hours=22):%Y-%m-%d}"}
    assert later["night"] != killed["night"]
    assert resumed_by(killed, later)
