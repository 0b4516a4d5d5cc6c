"""Registries that were copied, changed on both sides and put together by hand: nobody's text gets another name."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from deltalake import write_deltalake

from scanner.errors import Refused
from scanner.evidence.explainer import Explainer
from scanner.registry import add_users, ledger
from scanner.results.transactions import read_whole
from scanner.service.review_session import FlagRequest, ReviewSession
from schemas.tables import USERS
from tests.support.command_line import call
from tests.support.forged_users import read_events
from tests.support.night import Night
from tests.support.two_keys import message_of

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("without_ray")]


def copy_over(ours: Path, theirs: Path) -> None:
    """Their files beside ours; of one name, theirs."""
    shutil.copytree(theirs / "users", ours / "users", dirs_exist_ok=True)


def take_theirs(ours: Path, theirs: Path) -> None:
    shutil.rmtree(ours / "users")
    copy_over(ours, theirs)


def take_their_log(ours: Path, theirs: Path) -> None:
    shutil.rmtree(ours / "users" / "_delta_log")
    copy_over(ours, theirs)


def take_their_index(ours: Path, theirs: Path) -> None:
    shutil.rmtree(ours / "users" / "_index")
    shutil.copytree(theirs / "users" / "_index", ours / "users" / "_index")


def append_theirs(ours: Path, theirs: Path) -> None:
    """Their events behind ours, with numbers that go on."""
    known = read_events(ours)
    new = read_events(theirs).filter(~pl.col("head").is_in(known["head"].implode())).sort("seq")
    new = new.with_columns(seq=pl.int_range(pl.len(), dtype=pl.Int64) + known["seq"].max() + 1)
    write_deltalake(ours / "users", new.select(USERS.names).to_arrow().cast(USERS), mode="append")


@pytest.fixture
def forked(night, own_registry, marked, monkeypatch) -> tuple[Night, Path, int]:
    """A scanned night, the fork of its registry, and a message that is carol's here and dave's there."""
    monkeypatch.setattr(ledger, "_MOST_NEW_FILES", 2)  # so that an index is made
    before = datetime.now(UTC) - timedelta(minutes=1)
    night.write("first", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    night.scan()
    fork = Path(shutil.copytree(own_registry, night.folder / "fork"))
    for registry, users in ((own_registry, ["carol", "ours 1", "ours 2"]), (fork, ["dave", "theirs 1", "theirs 2"])):
        for user in users:
            add_users(registry, ["green"], [user], before)
    message = message_of(own_registry, "green", "carol")
    assert message == message_of(fork, "green", "dave")
    night.write("second", [marked(message, 80, 2)])
    return night, fork, message


@pytest.mark.parametrize(
    "merge",
    [
        *(pytest.param(merge, marks=pytest.mark.long) for merge in (take_theirs, copy_over, take_their_index)),
        *(take_their_log, append_theirs),
    ],
)
def test_a_registry_that_was_merged_by_hand_names_nobody_else(forked, marked, tmp_path, merge: Callable):
    night, fork, message = forked
    night.scan()
    merge(night.registry, fork)
    night.write("third", [marked(message, 80, 3)])
    shown = [call("flagged", night.config), call("explain", night.config, "second:0")]
    shown += [call("export", night.config), call("report", night.config, "--out", tmp_path / "report")]
    pages = [path.read_text() for path in (tmp_path / "report").rglob("*.html")]
    code, _, said = call("scan", night.config)
    users = read_whole(night.results, "flags").collect()["user_id"].to_list()
    harmless = merge is take_their_index  # the events decide, and an index of other ones is not asked
    assert (code, sorted(users)) == ((0, ["alice", "carol", "carol"]) if harmless else (2, ["alice", "carol"])), said
    assert all(code == 0 for code, *_ in shown), shown
    named = any("carol" in text for _, *texts in shown for text in texts)
    assert named or not harmless
    for text in (*(text for _, *texts in shown for text in texts), *pages):
        assert "Traceback" not in text
        assert "theirs" not in text
        assert "dave" not in text.replace("the registry, that user dave held the message then", "")
    code, _, said = call("users", "verify", "--registry", night.registry, "--results", night.results)
    assert (code == 0) is harmless, said


def test_of_two_forks_that_scan_one_night_the_later_scan_of_either_is_refused(forked):
    """Both begin before either has ended, so that neither can know of the other."""
    night, fork, _ = forked
    other = night.config.with_name("other.toml")
    other.write_text(night.config.read_text().replace(f'"{night.registry}"', f'"{fork}"'))
    ended = []

    def scan_the_other(what: str) -> None:
        if what.startswith("reading file footers") and not ended:
            ended.append(call("scan", other)[0])

    night.scan(wait=scan_the_other)
    assert ended == [0]
    (row,) = read_whole(night.results, "flags").collect().filter(user_id="dave").to_dicts()
    assert row["doc_id"] == "second:0"  # the fork's scan was first, and names its own user
    code, _, err = call("flagged", night.config)
    assert (code, "with another copy of the registry" in err) == (2, True)  # the fork signed what it committed
    assert call("sign", night.config, "--yes")[0] == 0  # whoever wants to read both takes the tables as they are
    answers = {
        "flagged": call("flagged", night.config),
        "as JSON": call("flagged", night.config, "--format", "json", "--group-by", "user"),
        "explain": call("explain", night.config, "second:0"),
        "export": call("export", night.config),
        "report": call("report", night.config, "--out", night.folder / "report"),
    }
    listed = ReviewSession(Explainer(night.config), "eve").list(FlagRequest(), 0).entries
    answers["review"] = (0, *(str(entry.line) for entry in listed))
    pages = [path.read_text() for path in (night.folder / "report").rglob("*.html")]
    for door, (code, *texts) in answers.items():
        assert code == 0, (door, texts)
        assert not any("dave" in text for text in (*texts, *(pages if door == "report" else ()))), door
    why = "nobody: the scan used a different registry"
    assert why in answers["flagged"][1]
    assert f"no user is named: {why[8:]}" in answers["explain"][1]
    exported = [json.loads(line) for line in answers["export"][1].splitlines()]
    assert [(row["user_id"], row["naming"], row["named"]) for row in exported] == [
        ("alice", "named", ["alice"]),
        (None, "other_registry", []),
    ]
    assert call("flagged", night.config, "--user", "dave")[1].startswith("No flagged document matches")
    assert "dave" in call("flagged", other)[1]  # whom the fork gave the message
    with pytest.raises(Refused, match="is older than its own results"):
        night.scan()
