"""`brickscan flagged` against plain Python: listed flags, folded copies, and the lines below the list."""

import csv
import io
import json
import os
import re
import shutil
import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import options
from jobs.options import is_calibration
from jobs.text import width
from scanner import results
from scanner.detection.sketches import sketch
from scanner.evidence.explainer import Explainer
from scanner.registry import new_key, restore_users, set_canaries
from scanner.results.flags import WantedFlags, by_need, newest, sums
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.service.review_session import FlagRequest, ReviewSession
from scanner.storage.data_files import write_file
from schemas.registry import Canaries, Canary
from schemas.tables import FLAGS, SCANS, SHARDS, USER_EVENTS
from schemas.words import Naming
from tests.support.command_line import call
from tests.support.rescanned import SHARDS_OF_NIGHTS, write
from tests.support.rows import NOW, filled, verdict
from tests.support.signed_results import NOT_CHECKED

SAME = ("text_sha256", "key_id", "message", "user_id", "naming")


NO_CHANCE = "false flags: at most 0 of 1 expected, by chance (N·p)\n"
"""The line where no document was scored."""

COUNTS = ("copies", "accounts", "piece_documents", "piece_texts", "piece_accounts")


def flag(i: int, text: int = 0, **changes: object) -> dict[str, object]:
    """A flag on document i, scanned i hours ago; `text` numbers its text."""
    about = {"scan_id": "night", "shard_id": "s", "doc_id": f"doc-{i}", "log10_p_global": -9.0, "path": "/in/a.parquet"}
    at = {"scanned_at": NOW - timedelta(hours=i)}
    return verdict(i, user="alice", text_sha256=bytes([text]) * 32, **(about | at | changes), keys="set")


def put(folder: str, rows: list[dict], alarmed: tuple[str, ...] = ()) -> str:
    """Put these flags into results; the scans in `alarmed` ended with an alarm."""
    open_tables(folder)
    span = {"first_row": 0, "rows": 100_000, "keys": "set", "dropped_at": None, "file": "7:0"}
    ranges: dict[tuple[str, str, str], datetime] = {}
    for row in rows:
        of_range = row["scan_id"], row["shard_id"], row["path"]
        ranges[of_range] = max(row["scanned_at"], ranges.get(of_range, row["scanned_at"]))
    shards = [
        filled(SHARDS, scan_id=scan, shard_id=shard, path=path, scanned_at=at, **span)
        for (scan, shard, path), at in ranges.items()
    ]
    scans = [
        filled(SCANS, scan_id=scan, audited_scans=[scan], audit="alarm" if scan in alarmed else "no alarm")
        | {"started_at": NOW - timedelta(days=1), "users_head": None}
        for scan in sorted({row["scan_id"] for row in rows})
    ]
    for name, found, schema in (("flags", rows, FLAGS), ("shards", shards, SHARDS), ("scans", scans, SCANS)):
        file = write_file(folder, name, [pa.RecordBatch.from_pylist(found, schema)])
        commit(folder, name, [TableEntry("all", (file,) if file else ())])
    return folder


@pytest.fixture
def flags(folder):
    """Flags: three copies of a text of alice, a text of bob from two accounts, and two texts that name nobody."""
    return put(
        folder,
        [
            *(flag(i, 1, account_id="a1") for i in (0, 3, 5)),
            flag(1, 2, user_id="bob", account_id="a2", key_id="late", log10_p_global=-12.5),
            flag(2, 2, user_id="bob", account_id="a3", key_id="late", log10_p_global=-12.5),
            flag(4, 3, user_id=None, naming="reserved", account_id="a1"),
            flag(6, 4, user_id=None, naming="unallocated"),
        ],
    )


def in_places(found) -> list[tuple[str, int]]:
    return found.rows.select("path", "row").rows()


def ids(found) -> list[str]:
    return found.rows["doc_id"].to_list()


def test_copies_of_one_text_are_one_row_the_newest(flags):
    found = newest(flags, 1.0, WantedFlags(), 20)
    assert ids(found) == ["doc-0", "doc-1", "doc-4", "doc-6"]
    assert found.rows["copies"].to_list() == [3, 2, 1, 1]
    assert set(found.rows.columns) == {
        *(*results.verdicts(flags).collect_schema().names(), "audit", "log10_p_shown", *COUNTS)
    }
    assert found.rows["accounts"].to_list() == [1, 2, 1, 0]
    assert found.totals[:7] == (4, 7, 4, {"reserved": 1, "unallocated": 1}, 0, 0, 4)
    assert ids(newest(flags, 1.0, WantedFlags(), None, fold=False)) == [f"doc-{i}" for i in range(7)]
    assert ids(newest(flags, 1.0, WantedFlags(), 2)) == ["doc-0", "doc-1"]
    assert ids(newest(flags, 10**-10, WantedFlags(), 20)) == ["doc-1"]


def test_near_duplicates_and_their_accounts_are_counted_beside_a_flag(folder):
    """A template: three edited texts of three accounts, one of them posted twice; a text apart, of one of these."""
    random = np.random.default_rng(6)
    ids = random.integers(0, 50_000, 200).astype(np.uint32)
    texts = [ids.copy() for _ in range(3)]
    for number, text in enumerate(texts):
        text[10 * number : 10 * number + 3] = 7
    texts.append(random.integers(0, 50_000, 200).astype(np.uint32))
    of_each = [sketch(text, 4) for text in texts]
    accounts = ["a1", "a2", "a3", "a1", "a1"]
    which = [0, 1, 2, 2, 3]
    put(folder, [flag(i, t, sketch=of_each[t], account_id=accounts[i], message=5) for i, t in enumerate(which)])
    found = newest(folder, 1.0, WantedFlags(), 20).rows.select(*COUNTS)
    assert found.rows() == [(1, 1, 4, 3, 3), (1, 1, 4, 3, 3), (2, 2, 4, 3, 3), (1, 1, 1, 1, 1)]
    assert newest(folder, 1.0, WantedFlags(accounts=("a2",)), 20).rows.select(*COUNTS).rows() == [(1, 1, 1, 1, 1)]
    code, out, _ = call("flagged", folder)
    assert code == 0
    assert ("1 of 4 alike" in out, "2 of 4 alike" in out) == (True, True)
    assert newest(folder, 1.0, WantedFlags(), 1).rows.select(*COUNTS).rows() == [(1, 1, 4, 3, 3)]


def test_who_is_named_beside_another_is_shown_with_a_p_value_of_their_own(folder):
    """A user whose p-value is above the asked rate is not shown. Values that belong to the first user are left out."""
    carol = {"key_id": "late", "message": 8, "user_id": "carol", "naming": "named", "log10_p_global": -7.5}
    alice = {"key_id": "key", "message": 1, "user_id": "alice", "naming": "named", "log10_p_global": -9.0}
    put(folder, [flag(0, 1, user_id="alice", **{k: alice[k] for k in ("key_id", "message")}, named=[alice, carol])])
    for rate in (1.0, 10**-7.4):
        (row,) = newest(folder, rate, WantedFlags(users=("carol",)), None).rows.iter_rows(named=True)
        assert {name: row[name] for name in carol} == carol
        assert (row["score"], row["log10_p"], row["doc_id"]) == (None, None, "doc-0")
        (row,) = sums(folder, rate, WantedFlags(users=("carol",)), None, "user").rows.iter_rows(named=True)
        assert (row["user_id"], row["log10_p_global"], row["documents"]) == ("carol", -7.5, 1)
    assert ids(newest(folder, 10**-7.6, WantedFlags(users=("carol",)), None)) == []
    (row,) = newest(folder, 1.0, WantedFlags(users=("carol", "alice")), None).rows.iter_rows(named=True)
    assert (row["user_id"], row["key_id"], row["score"] is None) == ("alice", "key", False)


def named(user: str, key: str, message: int, log10_p: float) -> dict[str, object]:
    return {"key_id": key, "message": message, "user_id": user, "naming": "named", "log10_p_global": log10_p}


@pytest.fixture
def of_several(folder):
    """Two copies of a text that names alice under two keys and carol under one, and a text that names carol alone."""
    alice, carol, again = (
        named("alice", "key", 1, -9.0),
        named("carol", "late", 8, -7.5),
        named("alice", "late", 3, -8.0),
    )
    several = {"user_id": "alice", "key_id": "key", "message": 1, "named": [alice, carol], "further_messages": [again]}
    alone = named("carol", "late", 8, -9.5)
    return put(
        folder,
        [
            flag(0, 1, account_id="a1", **several),
            flag(1, 1, account_id="a2", **several),
            flag(2, 2, account_id="a2", **alone, named=[alone]),
        ],
    )


def test_a_text_of_two_keys_is_found_under_each(of_several):
    listed = newest(of_several, 1.0, WantedFlags(keys=("late",)), None)
    shown = listed.rows.select("doc_id", "user_id", "key_id", "message", "log10_p_global", "copies").rows()
    assert shown == [("doc-0", "alice", "late", 3, -8.0, 2), ("doc-2", "carol", "late", 8, -9.5, 1)]
    assert (listed.totals.documents, listed.totals.texts) == (3, 2)
    (row,) = newest(of_several, 1.0, WantedFlags(keys=("late",), users=("alice",)), None).rows.iter_rows(named=True)
    assert (row["key_id"], row["message"], row["log10_p_global"], row["score"]) == ("late", 3, -8.0, None)
    (row,) = newest(of_several, 1.0, WantedFlags(users=("alice",)), None).rows.iter_rows(named=True)
    assert (row["key_id"], row["message"], row["log10_p_global"]) == ("key", 1, -9.0)
    assert ids(newest(of_several, 1.0, WantedFlags(keys=("key",), users=("carol",)), None)) == []
    assert ids(newest(of_several, 10**-7.9, WantedFlags(keys=("late",)), None)) == ["doc-0", "doc-2"]
    assert ids(newest(of_several, 10**-8.1, WantedFlags(keys=("late",)), None)) == ["doc-2"]


@pytest.mark.parametrize(
    ("wanted", "by_user"),
    [
        (WantedFlags(), {"alice": (2, 1, 2, -9.0), "carol": (3, 2, 2, -9.5)}),
        (WantedFlags(keys=("late",)), {"alice": (2, 1, 2, -8.0), "carol": (3, 2, 2, -9.5)}),
        (WantedFlags(keys=("key",)), {"alice": (2, 1, 2, -9.0)}),
        (WantedFlags(users=("carol",)), {"carol": (3, 2, 2, -9.5)}),
        (WantedFlags(user_part="AR"), {"carol": (3, 2, 2, -9.5)}),
    ],
)
def test_a_text_of_two_users_counts_for_each_and_once_in_all(of_several, wanted, by_user):
    found = sums(of_several, 1.0, wanted, None, "user")
    rows = found.rows.select("user_id", "documents", "texts", "accounts", "log10_p_global").rows()
    assert {row[0]: row[1:] for row in rows} == by_user
    alone = wanted == WantedFlags(keys=("key",))
    assert (found.totals.documents, found.totals.texts) == ((2, 1) if alone else (3, 2))
    accounts = sums(of_several, 1.0, wanted, None, "account").rows
    documents = dict(accounts.select("account_id", "documents").rows())
    assert documents == ({"a1": 1, "a2": 1} if alone else {"a1": 1, "a2": 2})
    assert accounts["users"].to_list() == [len(by_user)] * 2


@pytest.mark.parametrize(
    ("wanted", "documents"),
    [
        (WantedFlags(since=NOW - timedelta(hours=3)), [0, 1, 2, 3]),
        (WantedFlags(before=NOW - timedelta(hours=3)), [4, 5, 6]),
        (WantedFlags(since=NOW - timedelta(hours=4), before=NOW - timedelta(hours=2)), [3, 4]),
        (WantedFlags(users=("bob",)), [1, 2]),
        (WantedFlags(users=("bob", "alice")), [0, 1, 2, 3, 5]),
        (WantedFlags(user_part="O"), [1, 2]),
        (WantedFlags(user_part="A", users=("bob",)), []),
        (WantedFlags(accounts=("a1",)), [0, 3, 4, 5]),
        (WantedFlags(account_part="A1"), [0, 3, 4, 5]),
        (WantedFlags(keys=("late",)), [1, 2]),
        (WantedFlags(documents=("doc-6", "nosuch")), [6]),
        (WantedFlags(users=("alice",), keys=("late",)), []),
    ],
)
def test_each_filter_and_what_it_counts(flags, wanted, documents):
    found = newest(flags, 1.0, wanted, None, fold=False)
    assert ids(found) == [f"doc-{i}" for i in documents]
    assert newest(flags, 1.0, wanted, 20).totals.documents == len(documents)


def test_an_alarm_over_any_copy_stands_beside_the_text(folder):
    put(folder, [flag(0, 1), flag(1, 1, scan_id="bad", path="/in/b.parquet"), flag(2, 2)], alarmed=("bad",))
    found = newest(folder, 1.0, WantedFlags(), 20)
    assert found.rows.select("doc_id", "audit").rows() == [("doc-0", "alarm"), ("doc-2", "no alarm")]
    assert found.totals.alarmed == 1
    assert "AUDIT ALARM: 1 document from scans" in call("flagged", folder)[1]


@pytest.mark.parametrize("by", ["user", "account", "text"])
def test_sums_are_those_of_a_plain_count(flags, by):
    group = {"user": ("user_id", "naming"), "account": ("account_id",), "text": SAME}[by]
    rows = results.flagged(flags).collect().to_dicts()
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in group), []).append(row)
    expected = {
        values: (
            len(same),
            *(len({row[name] for row in same} - {None}) for name in ("text_sha256", "account_id", "user_id")),
            min(row["scanned_at"] for row in same),
            max(row["scanned_at"] for row in same),
            min(row["log10_p_global"] for row in same),
        )
        for values, same in groups.items()
    }
    found = sums(flags, 1.0, WantedFlags(), None, by)
    shown = found.rows.select(*group, "documents", "texts", "accounts", "users", "first", "last", "log10_p_global")
    assert {row[: len(group)]: row[len(group) :] for row in shown.rows()} == expected
    nameless = found.rows[group[0]].is_null()
    assert nameless.is_sorted()
    assert found.rows.filter(~nameless)["texts"].is_sorted(descending=True)
    assert found.totals._replace(entries=0) == newest(flags, 1.0, WantedFlags(), 1).totals._replace(entries=0)
    assert len(sums(flags, 1.0, WantedFlags(), 1, by).rows) == 1


FILTERS = st.builds(
    WantedFlags,
    since=st.none() | st.integers(0, 6).map(lambda hours: NOW + timedelta(hours=hours)),
    before=st.none() | st.integers(0, 6).map(lambda hours: NOW + timedelta(hours=hours)),
    state=st.none(),
    keys=st.sampled_from([(), ("key",), ("other",)]),
    **dict.fromkeys(("users", "accounts", "documents"), st.just(())),
    **dict.fromkeys(("user_part", "account_part"), st.just("")),
)


@pytest.mark.costly
@settings(max_examples=20)
@given(SHARDS_OF_NIGHTS, FILTERS, st.sampled_from([1.0, 1e-7, 1e-8]))
def test_what_is_asked_for_is_picked_of_what_stands(tmp_path_factory, nights, wanted, rate):
    """Filters go into the read. An earlier row must not stand because a filter drops the later row that hides it."""
    folder = str(tmp_path_factory.mktemp("results"))
    write(folder, nights)
    everything = results.flagged(folder).collect().to_dicts()
    expected = [
        (row["path"], row["row"], row["scan_id"])
        for row in everything
        if (wanted.since is None or row["scanned_at"] >= wanted.since)
        and (wanted.before is None or row["scanned_at"] < wanted.before)
        and (not wanted.keys or row["key_id"] in wanted.keys)
        and 10 ** row["log10_p_global"] <= rate * (1 + 1e-9)
    ]
    found = newest(folder, rate, wanted, None, fold=False)
    assert sorted(found.rows.select("path", "row", "scan_id").rows()) == sorted(expected)
    folded = newest(folder, rate, wanted, None)
    counted = Counter(tuple(row[name] for name in SAME) for row in everything if key_of(row) in expected)
    assert dict(zip(folded.rows.select(SAME).rows(), folded.rows["copies"], strict=True)) == counted


def key_of(row: dict) -> tuple:
    return row["path"], row["row"], row["scan_id"]


def test_filters_are_in_the_read_of_the_flags(flags):
    plan = results.flagged(flags, 1.0, WantedFlags(users=("bob",)).expression()).explain()
    reads = [part for part in plan.split("Parquet SCAN") if "/flags/" in part.partition("\n")[0]]
    picked = ["bob" in read.partition("SELECTION")[2].partition("\n")[0] for read in reads]
    # two reads are filtered: documents scanned once, and documents with a wanted row; joins limit the others
    assert sum(picked) == 2
    assert 'SEMI JOIN:\nLEFT PLAN ON: [col("path"), col("row")]' in "\n".join(map(str.strip, plan.splitlines()))


# ---------------------------------------------------------------- the command


def test_the_list_and_what_stands_below(flags):
    code, out, err = call("flagged", flags)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    head = ["scanned", "document", "account", "contains text marked for"]
    head += ["key", "p-value", "audit", "copies", "where"]
    assert re.split("  +", lines[0]) == head
    assert re.split("  +", lines[1])[1:6] == ["doc-0", "a1", "alice", "key", "1 in 1,000,000,000"]
    assert lines[1].split()[9:] == ["no", "alarm", "3", "/in/a.parquet", "row", "0"]
    assert "doc-1     a2 and 1 more  bob" in lines[2]
    assert lines[5:] == [
        "4 of 4 shown; 7 flagged documents, 4 distinct texts, copies of one text on one line",
        "false flags: at most 0 of 4 expected, by chance (N·p)",
        "2 documents for which no user is named (1: the message is reserved and never given to a user, so this flag is "
        "false; 1: no user had the message then)",
        NOT_CHECKED,
    ]
    assert "2 of 4 shown (--limit or --all shows more); 7 flagged" in call("flagged", flags, "--limit", 2)[1]
    assert len(call("flagged", flags, "--all")[1].splitlines()) == 1 + 7 + 4
    assert "7 of 7 shown" in call("flagged", flags, "--all")[1]


@pytest.mark.parametrize(
    ("arguments", "documents"),
    [
        (("--since", "2026-08-31"), [0, 1, 2, 3]),  # from 0:00 on, three hours before NOW
        (("--since", "2026-08-31T02:00"), [0, 1]),
        (("--since", "2026-08-31T04:00+02:00"), [0, 1]),
        (("--until", "2026-08-30"), [4, 5, 6]),  # the whole day
        (("--until", "2026-08-31T00:00"), [4, 5, 6]),
        (("--user", "bob"), [1, 2]),
        (("--user", "bob", "--user", "alice"), [0, 1, 2, 3, 5]),
        (("--account", "a1"), [0, 3, 4, 5]),
        (("--key", "late"), [1, 2]),
        (("--doc", "doc-6"), [6]),
    ],
)
def test_each_option_of_the_list(flags, arguments, documents):
    out = call("flagged", flags, "--all", *arguments)[1]
    shown = [line.split()[2] for line in out.splitlines()[1:] if "/in/a.parquet" in line]
    assert shown == [f"doc-{i}" for i in documents]


def test_what_is_asked_wrongly_is_refused(flags, tmp_path):
    code, _, err = call("flagged", flags, "--since", "yesterday")
    assert code == 2
    assert "'yesterday' is no time\nhint: allowed: 2026-11-20, or 2026-11-20T03:00 for UTC" in err
    assert call("flagged", flags, "--until", "9999-12-31")[0] == 2
    assert call("flagged", flags, "--limit", 3, "--all")[0] == 2
    assert "is no folder, nor the file" in call("flagged", tmp_path / "none")[2]
    (tmp_path / "empty").mkdir()
    assert "there are no tables of a scan in" in call("flagged", tmp_path / "empty")[2]


def test_nothing_that_was_asked_for(flags):
    assert call("flagged", flags, "--user", "nosuch")[1].splitlines() == [
        "No flagged document matches.",
        NOT_CHECKED,
    ]
    code, out, err = call("flagged", flags, "--user", "nosuch", "--format", "json")
    assert (code, err.splitlines()) == (0, ["No flagged document matches.", NOT_CHECKED])
    nothing = {"entries": 0, "documents": 0, "texts": 0, "unnamed": {}, "alarmed": 0, "canaries": 0, "pieces": 0}
    nothing |= {"expected_false": {"number": 0.0, "flags": 0, "reserved": 0, "by_chance": 0.0}}
    assert json.loads(out) == {"rows": [], **nothing}


def test_json_holds_what_the_table_holds(flags):
    out = json.loads(call("flagged", flags, "--format", "json")[1])
    assert {name: out[name] for name in out if name != "rows"} == {
        "entries": 4,
        "documents": 7,
        "texts": 4,
        "unnamed": {"reserved": 1, "unallocated": 1},
        "alarmed": 0,
        "canaries": 0,
        "pieces": 4,
        "expected_false": {"number": 0.0, "flags": 4, "reserved": 0, "by_chance": 0.0},
    }
    first = out["rows"][0]
    assert (first["doc_id"], first["copies"], first["log10_p_global"]) == ("doc-0", 3, -9.0)
    assert (first["text_sha256"], first["scanned_at"]) == ("01" * 32, "2026-08-31T03:00:00+00:00")


def test_csv_steers_no_terminal_and_starts_no_formula(folder):
    put(folder, [flag(0, 1, doc_id='=cmd|"x",1', account_id="\x1b[2J", user_id="- bob")])
    code, out, err = call("flagged", folder, "--format", "csv")
    assert (code, err) == (0, "1 of 1 shown; 1 flagged document, 1 distinct text\n" + NO_CHANCE + NOT_CHECKED + "\n")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["doc_id"], row["account_id"], row["user_id"]) == ('\'=cmd|"x",1', "\\x1b[2J", "'- bob")
    assert (row["log10_p_global"], row["created_at"]) == ("-9.0", "")


def test_sums_by_user_in_words(flags):
    out = call("flagged", flags, "--group-by", "user")[1].splitlines()
    assert out[0].split()[:3] == ["user", "user", "is"]
    by_user = {tuple(line.split()[:2]): line.split()[2:5] for line in out[1:5]}
    assert by_user["alice", "named"] == ["1", "3", "1"]  # accounts, documents, texts
    assert by_user["bob", "named"] == ["2", "2", "1"]
    assert by_user["-", "reserved"] == ["1", "1", "1"]
    assert out[5] == "4 of 4 shown; 7 flagged documents, 4 distinct texts"
    by_account = json.loads(call("flagged", flags, "--group-by", "account", "--format", "json")[1])["rows"]
    assert by_account[0] == {
        "account_id": "a1",
        "users": 1,
        "documents": 4,
        "texts": 2,
        "pieces": 2,
        "first": (NOW - timedelta(hours=5)).isoformat(),
        "last": NOW.isoformat(),
        "log10_p_global": -9.0,
        "log10_p_shown": -9.0,
        "alarmed": 0,
    }
    by_text = list(csv.DictReader(io.StringIO(call("flagged", flags, "--group-by", "text", "--format", "csv")[1])))
    assert [row["documents"] for row in by_text] == ["3", "2", "1", "1"]


@pytest.mark.parametrize("room", [100, 120, 200])
def test_lines_fit_a_terminal_and_are_whole_when_piped(folder, monkeypatch, room):
    path = "/in/" + "p" * 200 + "/last.parquet"
    long = {"path": path, "user_id": "漢" * 40, "key_id": "k" * 40}
    put(folder, [flag(0, 1, doc_id="d" * 60, **long), flag(1, 2, user_id=None, naming="held_later", **dates())])
    assert f"{path} row 0" in call("flagged", folder)[1]
    assert "its user got later: 2026-08-31 03:00" in call("flagged", folder)[1]
    on_a_terminal_of(monkeypatch, room)
    table = call("flagged", folder)[1].splitlines()[:3]
    assert max(map(width, table)) <= min(room, 120)
    assert table[1].endswith(" row 0")
    assert "nobody: held later" in table[2]


def on_a_terminal_of(monkeypatch, room: int) -> None:
    monkeypatch.setattr(options, "on_terminal", lambda: True)
    monkeypatch.setattr("jobs.flagged.on_terminal", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda **_: os.terminal_size((room, 40)))


def test_a_narrow_terminal_shows_what_tells_rows_apart(folder, monkeypatch):
    """Columns whose values are all the same and as they should be are left out; files are shown without folders."""
    on_a_terminal_of(monkeypatch, 80)
    put(
        folder,
        [flag(i, i, account_id=f"acct-{i}", path="/far/away/a.parquet", log10_p_global=-9.1 - i) for i in range(2)],
    )
    lines = call("flagged", folder)[1].splitlines()
    assert lines[0].split() == ["scanned", "document", "account", "marked", "for", "key", "where"]
    assert "p-value of everything shown: less than 1 in a billion" in lines
    assert lines[1].split()[2:] == ["doc-0", "acct-0", "alice", "key", "…/a.parquet", "row", "0"]
    assert max(map(width, lines[:3])) <= 80
    assert "audit of everything shown: no alarm" in lines
    put(
        str(folder) + "-bad",
        [flag(0, 1), flag(1, 1), flag(2, 2, scan_id="bad", path="/in/b.parquet")],
        alarmed=("bad",),
    )
    first, *lines = call("flagged", str(folder) + "-bad")[1].splitlines()
    assert "AUDIT ALARM" in first
    head = next(line for line in lines if line.startswith("scanned"))
    assert head.split()[-4:] == ["p-value", "audit", "copies", "where"]
    assert "account" not in head
    assert "audit of everything shown: no alarm" not in lines


def dates() -> dict[str, object]:
    return {"first_seen_at": NOW, "held_since": NOW}


def test_three_thousand_copies_do_not_drown_the_list(folder):
    put(folder, [*(flag(i, 1) for i in range(3000)), flag(5000, 2, user_id="bob")])
    out = call("flagged", folder)[1].splitlines()
    assert len(out) == 6
    assert "  3,000  " in out[1]
    assert "bob" in out[2]
    assert out[3] == "2 of 2 shown; 3,001 flagged documents, 2 distinct texts, copies of one text on one line"


def test_every_naming_is_told_below(folder):
    unnamed = [naming for naming in Naming if naming not in ("named", "none")]
    put(folder, [flag(i, i, user_id=None, naming=naming, **dates()) for i, naming in enumerate(unnamed)])
    code, out, _ = call("flagged", folder)
    assert code == 0
    assert f"{len(unnamed)} documents for which no user is named" in out


def test_an_id_that_imitates_columns_stays_one(folder):
    put(folder, [flag(0, 1, doc_id="x  alice  key  1.0e-99  no alarm", user_id="bob")])
    row = call("flagged", folder)[1].splitlines()[1]
    assert "x \\x20alice" in row


def test_it_runs_where_nothing_is_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not options.on_terminal()


CANARY, PERSON = "canary-0123456789abcdef", "canary-fedcba9876543210"


def with_registry(folder: str, *canaries: Canary) -> str:
    """A scan's configuration for results; the registry has these canaries, and PERSON holds message 5."""
    base = Path(folder).parent
    registry, tokenizer = base / "registry", base / "tokenizer.json"
    if not registry.exists():
        tokenizer.write_text('{"model": {}}')
        new_key(registry, "key", format="greenlist", window=4, gamma="1/4", messages=100, tokenizer=tokenizer)
        held = [("key", canary.message, canary.account_id, "allocated", NOW - timedelta(days=9)) for canary in canaries]
        held += [("key", 5, PERSON, "allocated", NOW - timedelta(days=9))]
        rows = [dict(zip(USER_EVENTS.names, event, strict=True)) for event in held]
        restore_users(registry, pa.Table.from_pylist(rows, schema=USER_EVENTS))
        set_canaries(registry, Canaries(power=0.9, made=canaries))
    config = base / "scan.toml"
    config.write_text(
        f'version = 2\nregistry = "registry"\nresults = "{folder}"\nfalse_positive_rate = 0.5\n'
        '[input]\npaths = ["in"]\ntext = "text"\n'
    )
    return str(config)


@pytest.mark.costly
def test_a_person_who_is_named_like_a_canary_is_shown(folder):
    """The registry alone knows canaries: not their names, and not the names of accounts."""
    rows = [
        {"user_id": CANARY, "account_id": CANARY},
        {"user_id": CANARY, "account_id": CANARY, "message": 4},  # another message than the canary's
        {"user_id": PERSON, "account_id": PERSON, "message": 5},
    ]
    put(folder, [flag(i, i, **about) for i, about in enumerate(rows)])
    made = Canary(account_id=CANARY, key_id="key", message=3, names=True)
    config = with_registry(folder, made)
    out = call("flagged", config)[1]
    assert {"doc-1", "doc-2"} <= set(out.split())
    assert "doc-0" not in out.split()
    assert "1 canary text, found and named correctly, not shown" in out
    assert len(newest(folder, 1.0, WantedFlags(), None, canaries=[made]).rows) == 2
    assert [row["user_id"] for row in map(json.loads, call("export", config)[1].splitlines())] == [CANARY, PERSON]
    session = ReviewSession(Explainer(Path(config)), "eve")
    assert [entry.line.user for entry in session.list(FlagRequest(), 0).entries] == [CANARY, PERSON]
    without = call("flagged", folder)[1]
    assert {"doc-0", "doc-1", "doc-2"} <= set(without.split())
    (folder_of_keys,) = Path(config).parent.glob("registry/keys.toml")
    folder_of_keys.unlink()
    assert {"doc-0", "doc-1", "doc-2"} <= set(call("flagged", config)[1].split())


@pytest.mark.costly
def test_canaries_that_came_as_they_should_are_left_out_and_counted(folder):
    """Other flags are shown: a canary's mark from another account, another user's mark, a name like a canary's."""
    own = {"user_id": CANARY, "account_id": CANARY}
    shown = [
        {"user_id": CANARY, "account_id": "a thief"},
        {"user_id": "alice", "account_id": CANARY},
        {"user_id": "canary-me", "account_id": "canary-me"},
        {"user_id": None, "account_id": CANARY, "naming": "undecided"},
    ]
    put(folder, [flag(i, i, **about) for i, about in enumerate([own, *shown, own])])
    canaries = [Canary(account_id=CANARY, key_id="key", message=3, names=True)]
    config = with_registry(folder, *canaries)
    lines = call("flagged", config)[1].splitlines()
    assert [line.split()[2] for line in lines[1:5]] == ["doc-1", "doc-2", "doc-3", "doc-4"]
    assert lines[5:7] == [
        "4 of 4 shown; 4 flagged documents, 4 distinct texts",
        "2 canary texts, found and named correctly, not shown (--canaries shows them)",
    ]
    for arguments in (("--canaries",), ("--all",), ("--user", CANARY, "--user", "alice", "--user", "canary-me")):
        out = call("flagged", config, *arguments)[1]
        assert "canary text" not in out
        assert {"doc-0", "doc-5"} <= set(out.split())
    by_user = call("flagged", config, "--group-by", "user")[1]
    assert "2 canary texts" in by_user
    for wanted in (WantedFlags(), WantedFlags(users=(CANARY, "alice")), WantedFlags(state="open")):
        unfolded = newest(folder, 1.0, wanted, None, fold=False, canaries=canaries)
        assert (
            set(by_need(folder, 1.0, wanted, canaries).select("path", "row").rows())
            == set(in_places(unfolded))
            != set()
        )
    (row,) = [line.split() for line in by_user.splitlines() if line.startswith(CANARY)]
    assert row[3] == "1"  # documents
    put(str(folder) + "-alone", [flag(0, 0, **own)])
    nothing, left_out, not_checked = call("flagged", with_registry(str(folder) + "-alone", *canaries))[1].splitlines()
    assert not_checked.startswith("signatures of tables were not checked")
    assert nothing == "No other document is flagged."
    assert left_out.startswith("1 canary text")


def test_of_one_time_the_surest_comes_first_and_documents_in_order(folder):
    at = {"scanned_at": NOW}
    p = {1: -7.0, 2: -9.0, 3: -8.0, 4: -9.0}
    put(folder, [flag(i, i, log10_p_global=log10_p, **at) for i, log10_p in p.items()])
    assert ids(newest(folder, 1.0, WantedFlags(), None))[2:] == ["doc-3", "doc-1"]
    assert ids(newest(folder, 1.0, WantedFlags(), None, fold=False))[2:] == ["doc-3", "doc-1"]
    copies = [flag(i, 9, log10_p_global=-20.0, **at) for i in (5, 6, 7)]
    put(str(folder) + "-copies", copies)
    assert ids(newest(str(folder) + "-copies", 1.0, WantedFlags(), None, fold=False)) == ["doc-5", "doc-6", "doc-7"]


@pytest.mark.parametrize("more", ['keys = ["green"]', ""])
def test_the_file_of_a_scan_that_names_its_keys_is_not_taken_for_a_calibration(tmp_path, more):
    config = tmp_path / "scan.toml"
    config.write_text(f'version = 2\nregistry = "registry"\nresults = "results"\n{more}\n[input]\npaths = ["in"]\n')
    assert not is_calibration(config)
    config.write_text('results = "audit"\n[keys]\nregistry = "registry"\n')
    assert is_calibration(config)
