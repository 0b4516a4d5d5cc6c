"""Names of flags are held against the registry: a row that was changed accuses nobody, wherever flags are shown."""

import json
import math
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from scanner.errors import Refused
from scanner.evidence.explainer import Explainer
from scanner.evidence.registry_check import RegistryCheck, held_against, with_registry_names
from scanner.night_report import night_of
from scanner.registry import add_users, erase_users, head_of, list_users, new_key, remove_users
from scanner.results.decision_log import users_of
from scanner.results.transactions import TableEntry, append_scan, commit, open_tables
from scanner.service.review_session import FlagRequest, ReviewSession
from scanner.storage.data_files import write_file
from schemas.audit import AUDITS
from schemas.tables import FLAGS, SCANS, SHARDS, SPANS
from tests.support.command_line import call
from tests.support.rows import filled, verdict
from tests.support.two_keys import message_of

OF_FLAGS = ("first_seen_at", "created_at", "path", "row")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def overwrite(results: str, **values: object) -> None:
    """Change columns of all flags, as somebody does who can write the results."""
    table = f"{results}/flags"
    rows = pl.read_delta(table).with_columns(**{name: pl.lit(value) for name, value in values.items()})
    write_deltalake(table, rows.to_arrow().cast(FLAGS), mode="overwrite")


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_user_who_was_written_over_is_named_nowhere(night, own_registry, marked, tmp_path):
    night.configure(columns='account = "account"')
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)], account=["ann"])
    night.scan()
    said = call("explain", night.config, "a:0")[1]
    assert "By the registry: it gave the message to this user" in said
    overwrite(night.results, user_id="zoe")
    explained = json.loads(call("explain", night.config, "a:0", "--json")[1])
    assert (explained["user_id"], explained["naming"], explained["registry_agrees"]) == (None, "contradicted", False)
    (says,) = (one["sentence"] for one in explained["says"] if one["heading"] == "By the registry")
    assert says.startswith("the row says that user zoe held the message then; the registry, that user alice held the")
    assert "its chain has the head that this scan wrote down, so the row was changed" in says
    assert "zoe" not in json.dumps([one for one in explained["says"] if one["heading"] != "By the registry"])
    (record,) = map(json.loads, call("export", night.config)[1].splitlines())
    assert (record["user_id"], record["named"], record["registry_agrees"]) == (None, [], False)
    listed = json.loads(call("flagged", night.config, "--format", "json")[1])
    assert [(row["user_id"], row["naming"]) for row in listed["rows"]] == [(None, "contradicted")]
    assert "the row says that user zoe held the message" in call("flagged", night.config)[1]
    by_user = call("flagged", night.config, "--group-by", "user")[1]
    assert "user zoe: 1 document name this user for messages that the registry never gave them" in by_user
    assert call("report", night.config, "--out", tmp_path / "report")[0] == 0
    index = json.loads((tmp_path / "report" / "index.json").read_text())
    assert (index["light"], index["by"]["user_id"]) == ("red", [{"value": None, "count": 1}])
    assert "zoe" not in (tmp_path / "report" / "index.html").read_text()
    (entry,) = ReviewSession(Explainer(night.config), "eve").list(FlagRequest(), 0).entries
    assert entry.line.user.startswith("nobody: the row and the registry")
    code, out, _ = call("replay", night.config, "a:0")
    assert code == 3
    assert re.search(r"user_id +zoe +alice +DIFFERS +the row says otherwise than the registry", out)
    assert "the users table changed since" not in out


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_message_that_was_written_over_with_its_user_is_named_on_no_page(night, own_registry, marked):
    """The registry gave bob that message, so that it has nothing against the row; the text has something against it."""
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    night.scan()
    assert json.loads(call("explain", night.config, "a:0", "--json")[1])["user_id"] == "alice"
    overwrite(night.results, message=message_of(own_registry, "green", "bob"), user_id="bob", named=None)
    explained = json.loads(call("explain", night.config, "a:0", "--json")[1])
    assert (explained["user_id"], explained["naming"], explained["registry_agrees"]) == (None, "contradicted", False)
    (says,) = (one["sentence"] for one in explained["says"] if one["heading"] == "By the registry")
    assert re.search(r"its text, scored again for message \d+, has score .*, and the row says", says)
    (record,) = map(json.loads, call("export", night.config)[1].splitlines())
    assert (record["user_id"], record["named"], record["registry_agrees"]) == (None, [], False)
    assert call("replay", night.config, "a:0")[0] == 3


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_night_whose_flags_were_taken_out_or_doubled_is_red(night, own_registry, marked, times):
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, seed) for seed in range(3)])
    night.scan()
    rows = pl.read_delta(f"{night.results}/flags").sort("row")
    changed = pl.concat([rows.head(2), *[rows.tail(1)] * times]).to_arrow().cast(FLAGS)
    write_deltalake(f"{night.results}/flags", changed, mode="overwrite")
    found = night_of(night.results, 1.0, None)
    assert (found.light == "red") is (times != 1)
    counts = {0: ["1 flags that its scans wrote are gone, and 0 were added"], 1: []}
    counts[2] = ["0 flags that its scans wrote are gone, and 1 were added"]
    told = [why.partition(":")[0] for why in found.why if "somebody changed" in why]
    assert told == counts[times]


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_flag_that_a_changed_value_takes_out_of_the_list_is_counted(night, own_registry, marked):
    """A row without its text or p-value, or with a p-value above 1, was left out of lists without a word."""
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, seed) for seed in range(2)])
    night.scan()
    rows = pl.read_delta(f"{night.results}/flags").sort("row")
    changes = [("log10_p_global", value) for value in (None, math.nan, math.inf, 0.5)]
    changes += [("text_sha256", None)]
    said = "1 row of the table `flags` left out, as no scan writes them: somebody changed the table"
    assert said not in call("flagged", night.config)[1]
    for name, value in changes:
        lost = rows.tail(1).with_columns(pl.lit(value, rows.schema[name]).alias(name))
        changed = pl.concat([rows.head(1), lost]).to_arrow().cast(FLAGS)
        write_deltalake(f"{night.results}/flags", changed, mode="overwrite")
        for asked in ((), ("--group-by", "user")):
            code, out, _ = call("flagged", night.config, *asked)
            assert (name, value, code, said in out) == (name, value, 0, True)
        found = night_of(night.results, 1.0, None)
        told = [why.partition(":")[0] for why in found.why if "somebody changed" in why]
        gone = "1 flags that its scans wrote are gone, and 0 were added"
        assert (name, value, found.light, told) == (name, value, "red", [gone])


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("gone_on_with", [True, False])
def test_flags_of_a_scan_that_was_killed_stand_in_the_report_of_their_night(
    night, own_registry, marked, monkeypatch, gone_on_with
):
    """A killed scan wrote flags and no end: the next one goes on after them, and their night was green without them."""
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1), "plain words " * 40])
    with monkeypatch.context() as patch:
        patch.setattr("scanner.cluster.scan.append_scan", lambda results, row: None)
        killed = night.scan().scan_id
    if gone_on_with:
        night.write("b", [marked(message_of(own_registry, "green", "bob"), 80, 2)])
        night.scan()
    found = night_of(night.results, 1.0, datetime.now(UTC).date())
    assert (found.documents, len(found.flags)) == ((3, 2) if gone_on_with else (2, 1))
    assert found.light == ("green" if gone_on_with else "amber"), found.why
    assert [f"scan {killed} finished 2 documents of this night and wrote no end" in why for why in found.why] == (
        [] if gone_on_with else [True]
    )


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_flags_of_a_scan_that_was_given_another_night_make_the_report_red(night, own_registry, marked):
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    first = night.scan().scan_id
    night.write("b", [marked(message_of(own_registry, "green", "bob"), 80, 2)])
    night.scan()
    table = f"{night.results}/scans"
    moved = pl.when(scan_id=first).then(pl.lit("2020-01-01")).otherwise("night").alias("night")
    write_deltalake(table, pl.read_delta(table).with_columns(moved).to_arrow().cast(SCANS), mode="overwrite")
    found = night_of(night.results, 1.0, None)
    assert (found.light, len(found.flags)) == ("red", 2)
    assert f"scan {first} finished 1 document of this night and `scans` dates it 2020-01-01" in found.why[0]


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_an_audit_with_a_value_that_no_audit_writes_is_refused_in_a_sentence(night, plain):
    night.write("a", [plain(80, seed) for seed in range(3)])
    night.scan()
    table, counts = f"{night.results}/audits", {"hits": [None, -1, 10**9], "tests": [-1]}
    rows = pl.read_delta(table)
    assert night_of(night.results, 1.0, None).rates
    rates = {"expected": [None, math.nan, -1.0, 1e308], "low": [None, math.nan, -1.0], "high": [None, -math.inf]}
    for column, values in (counts | rates | {"threshold": [None, math.nan, 0.0, 2.0]}).items():
        for value in values:
            changed = rows.with_columns(pl.lit(value, rows.schema[column]).alias(column))
            write_deltalake(table, changed.to_arrow().cast(AUDITS), mode="overwrite")
            with pytest.raises(Refused, match=f"a row has {column} = .*, as no audit writes it"):
                night_of(night.results, 1.0, None)


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_flag_of_a_shard_that_is_given_to_another_scan_makes_the_report_red(night, own_registry, marked):
    """A shard's row with another scan's id looks like a later scan of the same rows, which hides their flags."""
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    night.scan()
    assert not [why for why in night_of(night.results, 1.0, None).why if "somebody changed" in why]
    table = f"{night.results}/shards"
    rows = pl.read_delta(table).with_columns(scan_id=pl.lit("20990101T000000Z-00000000"))
    write_deltalake(table, rows.to_arrow().cast(SHARDS), mode="overwrite")
    found = night_of(night.results, 1.0, None)
    (why,) = (why for why in found.why if "somebody changed" in why)
    assert (found.light, why.partition(":")[0]) == ("red", "0 flags that its scans wrote are gone, and 1 were added")


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("where", ["named", "spans"])
def test_no_user_is_put_beside_another(night, own_registry, marked, where):
    """A list of names, or a part, that names who holds a message for which nothing in the text speaks."""
    night.configure(more="spans = { windows = true }")
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 200, 1)])
    night.scan()
    before = json.loads(call("explain", night.config, "a:0", "--json")[1])
    assert (before["user_id"], before["registry_agrees"]) == ("alice", True)
    assert "alice" in next(one["sentence"] for one in before["says"] if one["heading"] == "Marked parts")
    table = f"{night.results}/{'flags' if where == 'named' else 'spans'}"
    rows = pl.read_delta(table).to_dicts()
    bob = {"message": message_of(own_registry, "green", "bob"), "user_id": "bob"}
    if where == "named":
        rows[0]["named"] = [*rows[0]["named"], rows[0]["named"][0] | bob]
    else:
        rows = [*rows, rows[0] | bob]
    write_deltalake(table, pa.Table.from_pylist(rows, FLAGS if where == "named" else SPANS), mode="overwrite")
    explained = json.loads(call("explain", night.config, "a:0", "--json")[1])
    assert (explained["user_id"], explained["registry_agrees"]) == (None, False)
    assert "speaks for message" in json.dumps(explained["says"])
    assert "bob" not in json.dumps(explained)


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_post_that_is_dated_to_the_end_of_time_hides_no_flag(night, own_registry, marked, tmp_path):
    """A poster may choose the date: 9999-12-31 is what many systems write for never."""
    night.configure(columns='time = "posted"')
    texts = [marked(message_of(own_registry, "green", "alice"), 80, seed) for seed in range(2)]
    night.write("a", texts, posted=[datetime(9999, 12, 31, 23, tzinfo=UTC), datetime.now(UTC)])
    night.scan()
    rows = json.loads(call("flagged", night.config, "--all", "--format", "json")[1])["rows"]
    assert [row["user_id"] for row in rows] == ["alice", "alice"]
    explained = json.loads(call("explain", night.config, "a:0", "--json")[1])
    assert (explained["user_id"], explained["registry_agrees"]) == ("alice", True)
    assert len(call("export", night.config)[1].splitlines()) == 2
    assert call("report", night.config, "--out", tmp_path / "report")[0] == 0


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_scan_with_an_impossible_time_ends_no_list(night, own_registry, marked, tmp_path):
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    night.scan()
    scans, report = pl.read_delta(f"{night.results}/scans"), tmp_path / "report"
    for name in ("started_at", "finished_at"):
        for time in (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)):
            changed = scans.with_columns(pl.lit(time, scans.schema[name]).alias(name))
            write_deltalake(f"{night.results}/scans", changed.to_arrow().cast(SCANS), mode="overwrite")
            for command, *more in (
                ["flagged"],
                ["explain", "a:0"],
                ["export"],
                ["status"],
                ["report", "--out", report],
            ):
                code, _, err = call(command, night.config, *more)
                assert (code, "Traceback" in err) == (0, False), (name, time.year, command, err)


IMPOSSIBLE = {
    "key_id": [None],
    "message": [-1, 2**32],
    "messages_tested": [None, 0, -1],
    "correction": [None, 0.0, 0.5, math.nan],
    "score": [None, math.nan, math.inf, -math.inf],
    "log10_p": [None, math.nan, -math.inf],
    "log10_p_global": [-math.inf],
    "text_sha256": [None],
    "p_rank": [-1.0, 0.0, 1.5, math.inf],
}
"""Values of columns of `flags` that no scan writes; a row that is not at or below the rate is no flag at all."""


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.usefixtures("without_ray")
def test_a_row_with_a_value_that_no_scan_writes_is_refused_in_a_sentence(night, own_registry, marked):
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    night.scan()
    right = pl.read_delta(f"{night.results}/flags").to_arrow().cast(FLAGS)
    for column, values in IMPOSSIBLE.items():
        for value in values:
            overwrite(night.results, **{column: value})
            for command in (
                ("explain", night.config, "a:0"),
                ("replay", night.config, "a:0"),
                ("export", night.config),
            ):
                code, out, err = call(*command)
                assert (code, f"its flag has {column} = " in err, "alice" in out) == (2, True, False), (column, value)
            write_deltalake(f"{night.results}/flags", right, mode="overwrite")
    overwrite(night.results, key_id="no key")
    code, _, err = call("replay", night.config, "a:0")
    assert (code, "'no key' is none that its scan tested" in err) == (2, True)


@pytest.mark.usefixtures("without_ray")
def test_a_range_of_more_rows_than_any_file_has_ends_no_process(night, own_registry, marked):
    """Polars ends it where so much memory is asked for."""
    for seed in (1, 2):
        night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, seed)])
        night.scan()
    ranges = pl.read_delta(f"{night.results}/shards").with_columns(rows=pl.lit(2**62, pl.Int64))
    write_deltalake(f"{night.results}/shards", ranges.to_arrow().cast(SHARDS), mode="overwrite")
    assert call("flagged", night.config)[0] == 0


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("sketch", [b"", b"1" * 255])
def test_a_row_with_a_sketch_that_no_scan_writes_is_a_piece_of_its_own(night, own_registry, marked, sketch):
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    night.scan()
    overwrite(night.results, sketch=sketch)
    code, out, err = call("flagged", night.config)
    assert (code, "alice" in out) == (0, True), err


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_scan_with_a_value_that_no_scan_writes_is_refused_in_a_sentence(night, own_registry, marked, tmp_path):
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    night.scan()
    scans = pl.read_delta(f"{night.results}/scans")
    commands = [("explain", "a:0"), ("replay", "a:0"), ("export",), ("report", "--out", tmp_path / "report")]
    rates = {"false_positive_rate": [math.nan, -math.inf, 0.0, 1.0], "misnaming_rate": [math.nan, -1.0, 2.0]}
    nights = {"night": [None, "", "zoe", "20261121", "2026-02-30"]}
    for column, values in (rates | nights | {"dedup": ["", "twice"], "min_scored": [0, -1]}).items():
        for value in values:
            changed = scans.with_columns(pl.lit(value, scans.schema[column]).alias(column))
            write_deltalake(f"{night.results}/scans", changed.to_arrow().cast(SCANS), mode="overwrite")
            for command, *more in [*commands, *([("status",)] if column == "night" else [])]:
                code, out, err = call(command, night.config, *more)
                assert (code, f"its row has {column} = " in err, "alice" in out) == (2, True, False), (value, command)


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize(
    "smaller",
    [{"log10_p": -60.0}, {"log10_p_global": -60.0}, {"log10_p": -60.0, "log10_p_global": -58.0}],
    ids=" and ".join,
)
def test_nobody_is_named_by_a_p_value_that_was_made_smaller(night, own_registry, marked, smaller):
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 40, 1)])
    night.scan()
    assert json.loads(call("explain", night.config, "a:0", "--json")[1])["registry_agrees"] is True
    overwrite(night.results, **smaller)
    explained = json.loads(call("explain", night.config, "a:0", "--json")[1])
    assert (explained["user_id"], explained["registry_agrees"]) == (None, False)
    assert "log10 p" in next(one["sentence"] for one in explained["says"] if one["heading"] == "By the registry")
    (record,) = map(json.loads, call("export", night.config)[1].splitlines())
    assert (record["user_id"], record["registry_agrees"]) == (None, False)


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("kept", [True, False])
def test_whose_post_it_is_stands_in_its_file(night, own_registry, marked, kept):
    night.configure(columns='account = "account"')
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)], account=["ann"])
    night.scan()
    overwrite(night.results, account_id="bob")
    if not kept:  # an account that the file has no column for any more contradicts nothing
        night.configure(columns='account = "gone"')
    explained = json.loads(call("explain", night.config, "a:0", "--json")[1])
    assert (explained["user_id"], explained["account_id"]) == ((None, "ann") if kept else ("alice", "bob"))
    assert explained["registry_agrees"] is not kept
    (record,) = map(json.loads, call("export", night.config)[1].splitlines())
    assert record["document"]["account_id"] == ("ann" if kept else "bob")


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("kept", [False, True])
def test_a_row_that_was_moved_to_another_document_names_nobody(night, own_registry, marked, kept):
    """Its file is as it was scanned, and another text stands there: a user was shown beside a text of somebody else."""
    more = "evidence = { keep_text = true }" if kept else ""
    night.configure(columns='account = "account"', more=more)
    texts = [marked(message_of(own_registry, "green", "alice"), 80, 1), "words of somebody else " * 30]
    path = night.write("a", texts, account=["ann", "ben"])
    night.scan()
    overwrite(night.results, row=1, doc_id="a:1", account_id="ben")
    explained = json.loads(call("explain", night.config, "a:1", "--json")[1])
    assert (explained["user_id"], explained["naming"], explained["registry_agrees"]) == (None, "contradicted", False)
    (says,) = (one["sentence"] for one in explained["says"] if one["heading"] == "By the registry")
    assert "another text stands there than the row says, in a file of the size and time that it had" in says
    (record,) = map(json.loads, call("export", night.config)[1].splitlines())
    assert (record["user_id"], record["named"], record["registry_agrees"]) == (None, [], False)
    os.utime(path, (1, 1))  # a file that was written since may hold another text than the scan read
    assert json.loads(call("explain", night.config, "a:1", "--json")[1])["user_id"] == "alice"


@pytest.fixture
def asked(tmp_path):
    """A registry with users, and a function that asks it about a flag of a scan that began at NOON."""
    tokenizer, registry, results = tmp_path / "tokenizer.json", tmp_path / "registry", str(tmp_path / "results")
    tokenizer.write_text('{"model": {}}')
    new_key(registry, "key", format="greenlist", window=4, gamma="1/4", messages=100, tokenizer=tokenizer)
    open_tables(results)
    add_users(registry, None, ["early", "gone"], NOON - 9 * HOUR)
    remove_users(registry, ["gone"], NOON - 8 * HOUR)
    add_users(registry, None, ["leaves", "erased"], NOON - 7 * HOUR)
    scan = {"scan_id": "scan", "started_at": NOON, "finished_at": NOON + HOUR, "users_head": head_of(registry)}
    append_scan(results, filled(SCANS, **scan))
    done = filled(SHARDS, scan_id="killed", shard_id="done", began_at=NOON, scanned_at=NOON + HOUR, file="7:0")
    old = done | {"scan_id": "before", "path": "/in/old", "began_at": NOON - 3 * HOUR, "scanned_at": NOON - 2 * HOUR}
    same = done | {"path": "/in/old"}
    file = write_file(results, "shards", [pa.RecordBatch.from_pylist([done, same, old], SHARDS)])
    commit(results, "shards", [TableEntry("done", (file,) if file else ())])
    remove_users(registry, ["leaves", "erased"], NOON + 9 * HOUR)
    add_users(registry, None, ["during"], NOON + HOUR / 2)
    add_users(registry, None, ["backdated"], NOON - HOUR)
    add_users(registry, None, ["late"], NOON + 9 * HOUR)
    messages = dict(list_users(registry).select("user_id", "message").iter_rows())
    erase_users(registry, ["erased"])

    def says(holder: str | None, without: Sequence[str] = (), **row: object) -> tuple[RegistryCheck, dict]:
        message = next(iter(set(range(19)) - {*messages.values()})) if holder is None else messages[holder]
        about = {"message": message, "scanned_at": NOON + HOUR, "first_seen_at": None, "named": None}
        made = verdict(0, **(about | row))
        made = {name: value for name, value in made.items() if name not in without}
        return held_against(registry, results, [made])[0], made

    def ask(holder: str | None, **row: object) -> bool | None:
        return says(holder, **row)[0].agrees

    ask.says, ask.messages = says, messages
    return ask


def test_what_the_registry_said_then_counts_and_not_what_it_says_now(asked):
    for user in ("early", "leaves"):  # one of whom was removed since
        assert asked(user, user_id=user, naming="named") is True
        assert asked(user, user_id="mallory", naming="named") is False
        assert asked(user, user_id=None, naming="named") is True  # erased from the results
        assert asked(user, user_id=None, naming="removed") is False
        assert asked(user, user_id=None, naming="unallocated") is False
    assert asked("gone", user_id="gone", naming="named") is False
    assert asked("gone", user_id=None, naming="removed") is True
    assert asked("late", user_id="late", naming="named") is False
    assert asked("late", user_id=None, naming="unallocated") is True
    assert asked(None, user_id="mallory", naming="named") is False
    assert asked(None, user_id=None, naming="everybody") is True
    assert asked("erased", user_id="erased", naming="named") is None  # nothing tells whose it was
    assert asked("erased", user_id=None, naming="named") is True


@pytest.mark.parametrize("moved", [{}, {"first_seen_at": NOON + 9 * HOUR}, {"created_at": NOON + 9 * HOUR}])
def test_no_time_that_was_written_into_a_row_names_who_got_the_message_later(asked, moved):
    """The time of a row is that of its scan and its range; a file that an earlier scan had was there then."""
    for far in (HOUR, 10 * HOUR, timedelta(days=9000)):
        about = {"naming": "named", "scanned_at": NOON + far}
        assert asked("late", user_id="late", **about, **moved) is False
        assert asked("late", user_id="late", scan_id="killed", shard_id="done", **about, **moved) is False
        assert asked("early", user_id="early", **about, **moved) is (far == HOUR)
    assert asked("early", user_id="early", naming="named", scanned_at=NOON - HOUR, **moved) is False
    later = {"naming": "named", "scan_id": "killed", "shard_id": "done", "path": "/in/old"}
    assert asked("early", user_id="early", **later, **moved) is True
    assert asked("backdated", user_id="backdated", **later, **moved) is False  # its file was there before


def test_no_name_is_shown_whose_user_was_erased_from_the_registry(asked):
    """Nothing tells whose the message was, so that any name in a row may be a stranger's, beside others too."""
    ask, message_of = asked.says, asked.messages
    early, erased = ({"key_id": "key", "message": message_of[user]} for user in ("early", "erased"))
    own = {"user_id": "mallory", "naming": "named", "log10_p_global": -9.0}
    for beside in ([], [early | own | {"user_id": "early"}]):
        says, row = ask("erased", user_id="mallory", naming="named", named=[erased | own, *beside])
        assert (says.agrees, says.erased) == (None, {("key", message_of["erased"])})
        shown = with_registry_names(row, says)
        assert users_of(shown | {"further_messages": None}) == [one["user_id"] for one in beside]
        says, row = ask("early", user_id="early", naming="named", named=[*beside, erased | own])
        assert users_of(with_registry_names(row, says) | {"further_messages": None}) == ["early"]
    assert asked("erased", user_id=None, naming="removed") is True  # as an erasure from results leaves it
    assert asked("early", user_id=None, naming="removed") is False


def test_a_list_of_accounts_is_held_against_the_registry_as_flags_are(asked):
    ask, account = asked.says, {"keys": "", "account_id": "ann", "first_post": NOON}
    for user, says in (("early", True), ("mallory", False)):
        found, row = ask(
            "early",
            user_id=user,
            naming="named",
            last_post=NOON,
            **account,
            without=OF_FLAGS,
        )
        assert found.agrees is says
        assert with_registry_names(row, found)["user_id"] == (user if says else None)
    for last in (NOON - 10 * HOUR, NOON, None):  # the message was given nine hours before
        found, _ = ask(
            "early",
            user_id="early",
            naming="named",
            last_post=last,
            **account,
            without=OF_FLAGS,
        )
        assert found.agrees is (last != NOON - 10 * HOUR)
    found, _ = ask("early", user_id=None, naming="quoted", message=None, last_post=NOON, **account)
    assert found.agrees is True


def test_events_that_came_while_a_scan_ran_may_be_in_its_rows_or_not(asked):
    for user in ("during", "backdated"):
        assert asked(user, user_id=None, naming="unallocated") is True
        assert asked(user, user_id="mallory", naming="named") is False
    assert asked("backdated", user_id="backdated", naming="named") is True
    assert asked("during", user_id=None, naming="held_later", first_seen_at=NOON) is True
    assert asked("during", user_id="during", naming="named") is False  # its document existed before


def test_all_whom_a_row_names_are_held_against_it(asked):
    beside = {"key_id": "key", "message": 3, "user_id": "mallory", "naming": "named", "log10_p_global": -9.0}
    assert asked("early", user_id="early", naming="named", named=[beside]) is False
    assert asked("early", user_id="early", naming="named", held_since=NOON) is False
    assert asked("early", user_id="early", naming="named", held_since=NOON - 9 * HOUR) is True
    assert asked("early", user_id=None, naming="undecided", message=None) is True
    assert asked("early", user_id="early", naming="named", scan_id="killed", shard_id="done") is True  # by its range
    assert asked("early", user_id="early", naming="named", scan_id="nowhere") is False  # nothing tells when it was
