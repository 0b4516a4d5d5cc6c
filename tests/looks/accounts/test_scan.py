"""Posts of accounts through whole scans: pooled, named, committed once, erased, dropped with their window."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from jobs.summary import summary
from scanner import results
from scanner.cluster.scan import run_scan
from scanner.cluster.work import inspect_input
from scanner.errors import Refused, TableError
from scanner.input.files import list_files
from scanner.looks.accounts import follow_up
from scanner.looks.accounts import judge as account_judge
from scanner.looks.accounts.follow_up import AccountUnit, take_first_looks
from scanner.looks.accounts.posts import PostGroup
from scanner.printable import counted
from scanner.results.retention import erase_user
from scanner.results.transactions import read_whole
from scanner.scan_plan import make_plan
from scanner.signing import opened_signers, signature_of
from scanner.storage.locations import table_uri
from scanner.watermark.positions import Positions
from tests.support.command_line import call
from tests.support.signed_tables import delete_results, signed_at
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")

KINDS = ("decoy_accounts",)
ON = "accounts = { nights = 1 }"


def counts_of(outcome):
    """What the look at accounts counted in a scan; None: it had nothing to do."""
    return outcome.looks["accounts"].counts


def accounts_in(night) -> pl.DataFrame:
    return read_whole(night.results, "accounts").collect().sort("account_id")


@pytest.fixture
def posted(night, registry, marked, plain):
    """Three accounts, 30 short posts each: `bot` marked for alice, `human` unmarked, `template` one marked text."""
    night.configure(more=ON, columns='account = "who"\ntime = "at"')
    alice = message_of(registry, "green", "alice")
    write(night, "a", alice, marked, plain, range(1))
    write(night, "b", alice, marked, plain, range(1, 30))
    return night


def write(night, name, alice, marked, plain, seeds) -> None:
    rows = [("bot", marked(alice, 14, seed)) for seed in seeds]
    rows += [("human", plain(14, 1000 + seed)) for seed in seeds]
    rows += [("template", marked(alice, 14, 1)) for _ in seeds] + [(None, marked(alice, 14, seed)) for seed in seeds]
    who, texts = zip(*rows, strict=True)
    night.write(name, texts, who=pl.Series(who, dtype=pl.String).to_arrow(), at=[datetime.now(UTC)] * len(rows))


@pytest.mark.costly
def test_short_posts_are_found_together(posted):
    night, began = posted, datetime.now(UTC) - timedelta(minutes=5)
    assert counts_of(night.scan(files=list_files(night.plan().locations))) is None  # as `--follow` scans what landed
    outcome = night.scan()
    assert outcome.work.skipped == outcome.work.shard_count
    assert outcome.exit_code == 0
    assert (counts_of(outcome)["tested"], counts_of(outcome)["flagged"]) == (3, 1)
    assert not night.verdicts()["flagged"].any()
    (row,) = accounts_in(night).to_dicts()
    assert (row["account_id"], row["user_id"], row["naming"]) == ("bot", "alice", "named")
    assert (row["posts"], row["texts"], row["nights"]) == (30, 30, 1)
    assert began <= row["first_post"] <= row["last_post"] <= datetime.now(UTC)
    assert (row["log10_p_global"] <= -6, row["proof"]) == (True, "proved")
    kinds = read_whole(night.results, "audit_counts").collect()["kind"].unique()
    assert set(KINDS) <= set(kinds)
    assert results.accounts(night.results).collect().to_dicts() == [row]
    assert results.accounts(night.results, 1e-300).collect().is_empty()
    assert counts_of(night.scan()) is None
    assert accounts_in(night).to_dicts() == [row]  # committed once
    erase_user(night.results, ["alice"])
    (erased,) = accounts_in(night).to_dicts()
    assert (erased["user_id"], erased["naming"]) == (None, "removed")
    files = [pl.read_parquet(file) for file in Path(night.results, "account_posts").glob("*.parquet")]
    assert set(pl.concat(files)["account_id"]) == {"human", "template"}  # the name is gone from replaced files too


@pytest.mark.costly
def test_accounts_of_shared_ngrams_counted_in_each_post_name_nobody(posted, marked, monkeypatch):
    """The planted fault marks accounts of people, too: none is named, and the scan ends with an alarm, also again."""
    night = posted

    def of_each_post(rule, _reach, posts, begins, dedup):
        of_posts = rule.positions(posts, dedup)
        return Positions(of_posts.index, of_posts.offsets[begins])

    monkeypatch.setattr(account_judge, "pooled_positions", of_each_post)
    outcome = night.scan()
    assert (outcome.exit_code, outcome.audit.state) == (3, "alarm")
    assert counts_of(outcome)["flagged"] >= counts_of(outcome)["refuted"] >= 1
    rows = accounts_in(night)
    wrong = rows.filter(proof="differs")
    assert "template" in wrong["account_id"].to_list()
    assert (
        wrong["user_id"].null_count() == wrong["message"].null_count() == wrong.height == counts_of(outcome)["refuted"]
    )
    assert set(wrong["naming"]) == {"unproved"}
    said = " ".join(summary(outcome, night.results, 1e-6).split())
    assert f"{counted(wrong.height, 'account')} left without a user's name: scores were computed again" in said
    assert (
        f"A slower method computed {counted(wrong.height, 'marked account')} again and got a different result" in said
    )
    listed = call("accounts", night.config)[1]
    assert "nobody: a slower method computed the flag again and found a different result" in listed
    shown = call("explain", night.config, "--account", "template")[1]
    assert "a different result: do not use" in " ".join(shown.split())
    assert night.scan().exit_code == 3  # the rows and the alarm stand


RUN = ("scan_id", "scanned_at")


@pytest.mark.costly
def test_workers_read_no_posts_from_before_the_scan(posted, monkeypatch):
    """A worker is a process of its own: what the scan committed is on record before it reads."""
    night, real, numbers = posted, follow_up.AccountWorker.do, list[tuple[int, int]]()

    def do(worker, part):
        signature = signature_of(DeltaTable(table_uri(night.results, "account_posts")))
        (entry,) = (each for each in signed_at(night.registry, night.results) if each.table == "account_posts")
        numbers.append((entry.number, signature.number))
        return real(worker, part)

    monkeypatch.setattr(follow_up.AccountWorker, "do", do)
    night.scan()
    assert numbers
    assert all(on_record == signed > 0 for on_record, signed in numbers)


def test_a_pass_that_dies_between_its_commits_is_gone_on_with(posted, monkeypatch):
    night, real = posted, follow_up.commit

    def dies(results, name, entries, run=None):
        if name == follow_up.ACCOUNTS_TABLE and run is None:
            raise OSError("the disk is gone")
        return real(results, name, entries, run)

    monkeypatch.setattr(follow_up, "commit", dies)
    with pytest.raises(OSError, match="the disk is gone"):
        night.scan()
    monkeypatch.setattr(follow_up, "commit", real)
    assert accounts_in(night).is_empty()
    again = night.scan()
    assert again.work.skipped == again.work.shard_count  # every document was scanned before
    resumed = accounts_in(night).drop(RUN)
    units = set(resumed["shard_id"])
    counts = read_whole(night.results, "audit_counts").filter(pl.col("kind").is_in(KINDS)).collect()
    assert set(counts["shard_id"]) == units
    assert counts.filter(pl.col("threshold") == 0.1)["texts"].sum() == 3
    delete_results(night.results, night.registry)
    night.scan()
    assert accounts_in(night).drop(RUN).equals(resumed)


@pytest.mark.costly
def test_posts_of_a_window_are_looked_at_together_and_dropped_with_it(posted, monkeypatch):
    night = posted
    night.configure(more="accounts = { nights = 30 }", columns='account = "who"', paths=["in/a.parquet"])
    monkeypatch.setattr(follow_up, "window_begins", lambda day, _nights: day - timedelta(days=10))
    first = night.scan()
    assert (counts_of(first)["tested"], counts_of(first)["flagged"]) == (3, 0)
    night.configure(more="accounts = { nights = 30 }", columns='account = "who"', paths=["in/b.parquet"])
    again = night.scan()
    assert counts_of(again)["had_look"]
    assert "none tested again" in summary(again, night.results, 1e-6)
    second = run_scan(
        replace(night.plan(), date=datetime.now(UTC).date() + timedelta(days=1)), lambda work, totals: None
    )
    assert (
        counts_of(second)["tested"],
        counts_of(second)["flagged"],
        counts_of(second)["had_look"],
    ) == (3, 1, False)
    (row,) = accounts_in(night).to_dicts()
    assert (row["account_id"], row["posts"], row["nights"]) == ("bot", 30, 30)
    assert row["correction"] == 2 / 0.5
    posts = read_whole(night.results, "account_posts").collect()
    assert len(posts) == 90
    monkeypatch.setattr(follow_up, "window_begins", lambda _night, _nights: date(2999, 1, 1))
    night.configure(more="accounts = { nights = 30 }", columns='account = "who"')
    night.scan()
    assert read_whole(night.results, "account_posts").collect().is_empty()


@pytest.mark.costly
def test_a_scan_of_a_date_to_come_drops_no_posts_of_the_window(posted):
    night, today = posted, datetime.now(UTC).date()
    night.configure(more="accounts = { nights = 30 }", columns='account = "who"')
    for day in (today, today + timedelta(days=1000)):
        run_scan(make_plan(night.config, day), lambda work, totals: None)
    assert read_whole(night.results, "account_posts").collect()["night"].unique().to_list() == [today.isoformat()]


def test_accounts_need_a_column_and_a_weight(night):
    night.configure(more=ON)
    with pytest.raises(Refused, match=r"accounts needs input\.account"):
        night.plan()
    night.configure(more=f"{ON}\nweights = {{ document = 0.9 }}", columns='account = "who"')
    with pytest.raises(Refused, match=r"weights\.account is missing"):
        night.plan()
    night.configure(more="weights = { document = 0.8, account = 0.2 }", columns='account = "who"')
    kept = night.plan()
    night.configure(more=f"{ON}\nweights = {{ document = 0.8, account = 0.2 }}", columns='account = "who"')
    with_accounts = night.plan()
    for key in kept.keys:
        assert (kept.corrections_of(key) == with_accounts.corrections_of(key)).all()
    assert kept.verdict_settings != with_accounts.verdict_settings


@pytest.mark.costly
def test_accounts_are_tested_in_a_nights_first_look_only(posted, marked, plain, registry):
    """A night that is scanned again with more files looks again, for which no correction pays."""
    night, alice = posted, message_of(registry, "green", "alice")
    night.write("first", [plain(14, 1)], who=["early"], at=[datetime.now(UTC)])
    for name in ("a", "b"):
        (night.input / f"{name}.parquet").rename(night.folder / f"{name}.parquet")
    assert counts_of(night.scan())["flagged"] == 0
    for name in ("a", "b"):
        (night.folder / f"{name}.parquet").rename(night.input / f"{name}.parquet")
    assert counts_of(night.scan())["flagged"] == 0  # the pooled score of `bot` would flag it
    write(night, "c", alice, marked, plain, range(30, 40))
    later = run_scan(replace(night.plan(), date=date(2026, 3, 2)), lambda work, totals: None)
    assert counts_of(later)["flagged"] == 1  # another night's first look
    (row,) = accounts_in(night).to_dicts()
    assert (row["account_id"], row["night"]) == ("bot", "2026-03-02")


def test_a_killed_first_look_stays_the_first(posted):
    plan, unit = posted.plan(), AccountUnit("0" * 31 + "1", PostGroup((), None, 1), datetime.now(UTC), date(2026, 3, 2))
    posted.scan()
    assert take_first_looks(plan.results, unit, ["green", "gum"]) == {"green", "gum"}
    assert take_first_looks(plan.results, unit, ["green", "gum"]) == {"green", "gum"}
    other = unit._replace(name="f" * 32)
    assert take_first_looks(plan.results, other, ["green", "new"]) == {"new"}  # a key that came later
    assert take_first_looks(plan.results, other._replace(night=date(2026, 3, 3)), ["green"]) == {"green"}


@pytest.mark.costly
def test_an_account_that_only_quotes_is_marked_and_named_for_nobody(posted, marked, plain, registry):
    """`quoter` quotes a user's posts among own words; `both` quotes, and writes text that is marked for the user."""
    night, alice = posted, message_of(registry, "green", "alice")
    quoted = [f"> {marked(alice, 14, seed)}\n{plain(14, 500 + seed)}" for seed in range(30)]
    both = [f"> {marked(alice, 14, seed)}\n{marked(alice, 14, 700 + seed)}" for seed in range(30)]
    at = [datetime.now(UTC)] * 60
    night.write("q", quoted + both, who=["quoter"] * 30 + ["both"] * 30, at=at)
    night.scan()
    rows = {row["account_id"]: row for row in accounts_in(night).to_dicts()}
    assert {name: (row["naming"], row["user_id"]) for name, row in rows.items()} == {
        "bot": ("named", "alice"),
        "both": ("named", "alice"),
        "quoter": ("quoted", None),
    }
    assert rows["quoter"]["message"] is None
    assert rows["bot"]["quoted_share"] == 0
    assert 0.3 < rows["quoter"]["quoted_share"] < 0.7
    code, out, _ = call("accounts", night.config)
    assert (code, out.count("alice")) == (0, 2)
    assert "nobody: without the lines that it quotes, its own words do not name a user" in " ".join(out.split())
    assert "3 of 3 marked accounts shown; 2 named for a user." in out
    shown = json.loads(call("accounts", night.config, "--account", "quoter", "--format", "json")[1])
    assert [(row["account_id"], row["user_id"]) for row in shown["rows"]] == [("quoter", None)]
    assert "0 of 0 marked accounts" in call("accounts", night.config, "--date", "2020-01-01")[1]


def test_an_account_is_named_for_those_whom_all_its_posts_and_its_own_words_name(night, registry, marked, plain):
    """`writer` quotes a user and writes text marked for another; `torn` quotes two users and writes unmarked text."""
    alice, bob = (message_of(registry, "green", user) for user in ("alice", "bob"))
    writer = [f"> {marked(alice, 20, seed)}\n{marked(bob, 14, 100 + seed)}" for seed in range(30)]
    torn = [f"> {marked((alice, bob)[seed % 2], 20, 200 + seed)}\n{plain(14, seed)}" for seed in range(30)]
    torn += [f"> {marked(alice, 20, 300)}"]  # nothing of its own
    night.configure(more=ON, columns='account = "who"')
    night.write("a", writer + torn, who=["writer"] * 30 + ["torn"] * 31)
    night.scan()
    rows = {row["account_id"]: row for row in accounts_in(night).to_dicts()}
    assert {name: (row["naming"], row["user_id"], row["message"]) for name, row in rows.items()} == {
        "writer": ("named", "bob", bob),
        "torn": ("quoted", None, None),
    }
    (named,) = rows["writer"]["named"]
    assert (named["user_id"], named["log10_p_global"]) == ("bob", rows["writer"]["log10_p_global"])


@pytest.mark.costly
def test_a_worker_tests_no_post_that_somebody_changed(posted):
    """It is a process of its own, and has to check what it reads by itself."""
    posted.configure(more="accounts = { nights = 30 }", columns='account = "who"')
    posted.scan()
    plan = posted.plan()
    unit = follow_up.unit_of(plan, inspect_input(plan, list_files(plan.locations)).shards, datetime.now(UTC))
    file = next(Path(table_uri(posted.results, "account_posts")).glob("part-*.parquet"))
    pq.write_table(pl.read_parquet(file).with_columns(account_id=pl.lit("somebody else")).to_arrow(), file)
    for memory in (opened_signers._registries, opened_signers._signers):
        memory.pop(posted.results)
    with pytest.raises(TableError, match=r"account_posts/.*its content is not what brickscan wrote"):
        follow_up.AccountWorker(plan, "a scan", unit).do(0)
