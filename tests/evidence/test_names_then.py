"""Names of flags are held against the registry: a row that was changed accuses nobody, wherever flags are shown."""

import json
import re
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from deltalake import write_deltalake

from scanner.evidence.explainer import Explainer
from scanner.evidence.names_then import held_against
from scanner.registry import add_users, erase_users, head_of, list_users, new_key, remove_users
from scanner.results.tables import append_scan, open_tables
from scanner.review.asked import Asked
from scanner.review.desk import Desk
from schemas.tables import FLAGS, SCANS
from tests.support.command_line import call
from tests.support.rows import filled, verdict
from tests.support.two_keys import message_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def overwrite(results: str, **values: object) -> None:
    """Change columns of all flags, as somebody does who can write the results."""
    table = f"{results}/flags"
    rows = pl.read_delta(table).with_columns(**{name: pl.lit(value) for name, value in values.items()})
    write_deltalake(table, rows.to_arrow().cast(FLAGS), mode="overwrite")


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
    (entry,) = Desk(Explainer(night.config), "eve").list(Asked(), 0).entries
    assert entry.line.user.startswith("nobody: this row and the registry")
    code, out, _ = call("replay", night.config, "a:0")
    assert code == 3
    assert re.search(r"user_id +zoe +alice +DIFFERS +the row says otherwise than the registry", out)
    assert "the users table changed since" not in out


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
    append_scan(results, filled(SCANS, scan_id="scan", started_at=NOON, users_head=head_of(registry)))
    remove_users(registry, ["leaves", "erased"], NOON + 9 * HOUR)
    add_users(registry, None, ["during"], NOON + HOUR / 2)
    add_users(registry, None, ["backdated"], NOON - HOUR)
    add_users(registry, None, ["late"], NOON + 9 * HOUR)
    messages = dict(list_users(registry).select("user_id", "message").iter_rows())
    erase_users(registry, ["erased"])

    def ask(holder: str | None, **row: object) -> bool | None:
        message = next(iter(set(range(19)) - {*messages.values()})) if holder is None else messages[holder]
        about = {"message": message, "scanned_at": NOON + HOUR, "first_seen_at": None, "named": None}
        return held_against(registry, results, [verdict(0, **(about | row))])[0].agrees

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
    assert asked("early", user_id="early", naming="named", scan_id="silent") is True  # by its time
