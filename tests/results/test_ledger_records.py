"""A scan holds the registry against what earlier scans of the same results saw of it, before it names anybody."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import polars as pl
import pytest
from deltalake import write_deltalake

from scanner.cluster.scan import run_scan
from scanner.errors import Refused, ScanFailed, TableError
from scanner.registry import add_users, erase_users, ledger, load_registry, new_key, registry_sha256, remove_users
from scanner.results.registry_record import VERIFIED_USERS_TABLE, lost_record
from scanner.results.transactions import read_whole
from scanner.signing import tables_on_record
from schemas.tables import VERIFIED_USERS
from tests.support.claiming import Platform
from tests.support.command_line import call
from tests.support.forged_users import part_files, swap_names
from tests.support.signed_results import reopen
from tests.support.two_keys import TOKENIZER, message_of

pytestmark = pytest.mark.usefixtures("without_ray")


def explained(night) -> dict[str, Any]:
    """What is said of the flag of the first text."""
    code, out, err = call("explain", night.config, "a:0", "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.costly
@pytest.mark.parametrize("seconds", [-1.0, 1e9], ids=["another process", "remembers the registry"])
def test_a_registry_that_is_older_than_its_own_results_names_nobody(night, own_registry, marked, monkeypatch, seconds):
    """Whether the process still remembers the signatures of the newer registry, or is another one."""
    monkeypatch.setattr(tables_on_record, "_SECONDS_OF_A_QUERY", seconds)
    before = shutil.copytree(own_registry, night.folder / "backup")
    add_users(own_registry, ["green"], ["zoe"])
    night.write("a", [marked(message_of(own_registry, "green", "zoe"), 80, 1)])
    night.scan()
    assert lost_record(str(own_registry), night.results) is None
    assert "older" not in call("status", night.config)[1]
    shutil.rmtree(own_registry)
    shutil.copytree(before, own_registry)
    if seconds < 0:
        reopen(night.results, own_registry)
    add_users(own_registry, ["green"], ["mallory"])  # a chain that holds, and another than the scan saw
    night.write("b", [marked(3, 80, 2)])
    rows = len(night.verdicts())
    with pytest.raises(
        Refused, match=r"is older than its own results .*, or is a different registry: scan .* recorded the head"
    ):
        night.scan()
    assert len(night.verdicts()) == rows
    for arguments in (("scan", night.config), ("scan", night.config, "--check")):
        code, _, err = call(*arguments)
        assert code == 2
        assert "is older than its own results" in err
    assert "is older than its own results" in call("status", night.config)[1]
    shutil.rmtree(own_registry / "users")
    assert call("scan", night.config)[0] == 2  # a users table that is gone is older, too


@pytest.mark.parametrize("lost", ["gone", "made anew under its id"])
def test_a_registry_without_a_key_that_a_scan_tested_is_refused(night, own_registry, marked, lost):
    """Its p-values would count too few keys, and nobody would look for the mark of the key that is gone."""
    blue = {"format": "greenlist", "window": 3, "gamma": "1/4", "messages": 1, "tokenizer": TOKENIZER}
    night.write("a", [marked(3, 80, 1)])
    night.scan()
    older = (own_registry / "keys.toml").read_text()
    new_key(own_registry, "blue", **blue)
    night.write("b", [marked(3, 80, 2)])
    night.scan()
    assert lost_record(str(own_registry), night.results) is None
    newer = (own_registry / "keys.toml").read_text()
    (own_registry / "keys.toml").write_text(newer.replace('"blue"', '"renamed"'))
    assert lost_record(str(own_registry), night.results) is None  # the same key
    (own_registry / "keys.toml").write_text(older)
    if lost != "gone":
        (own_registry / "secrets" / "blue.key").unlink()
        new_key(own_registry, "blue", **blue)
    night.write("c", [marked(3, 80, 3)])
    with pytest.raises(Refused, match=r"older than its own results .* tested key 'blue', which this registry lacks"):
        night.scan()
    assert "tested key 'blue', which this registry lacks" in " ".join(call("status", night.config)[1].split())


def test_a_key_that_only_a_killed_scan_tested_is_looked_for(tmp_path, words, monkeypatch):
    platform = Platform(tmp_path, words)
    older = (platform.registry / "keys.toml").read_text()
    new_key(platform.registry, "later", **SEEDED)
    platform.scan_and_be_killed(monkeypatch, platform.text())
    assert lost_record(str(platform.registry), platform.night.results) is None
    (platform.registry / "keys.toml").write_text(older)
    with pytest.raises(Refused, match="tested key 'later', which this registry lacks"):
        platform.night.scan()


SEEDED = {"format": "greenlist-v3", "window": 3, "gamma": "1/4", "seeds": 4, "messages": 20, "tokenizer": TOKENIZER}


@pytest.mark.costly
@pytest.mark.parametrize("when", ["reading file footers", "starting Ray and its workers, which open the keys"])
def test_a_scan_whose_registry_was_replaced_while_it_ran_fails_and_says_so(night, own_registry, marked, when):
    """The chain of the other registry holds, and gives alice's message to zoe."""
    message, other = message_of(own_registry, "green", "alice"), night.folder / "other"
    shutil.copytree(own_registry, other)
    shutil.rmtree(other / "users")
    add_users(other, None, ["zoe", "bob"], datetime.now(UTC) - timedelta(minutes=1))
    assert message_of(other, "green", "zoe") == message
    night.write("a", [marked(message, 80, 1)])

    def replace(what):
        if what.startswith(when):
            shutil.move(own_registry / "users", night.folder / "kept")
            shutil.copytree(other / "users", own_registry / "users")

    with pytest.raises(ScanFailed, match=r"It was changed while this scan ran: do not use any of its flags"):
        night.scan(wait=replace)
    shutil.rmtree(own_registry / "users")
    shutil.move(night.folder / "kept", own_registry / "users")
    assert night.last_scan()["exit_code"] == 1
    assert "failed: fix what it reported" in call("status", night.config)[1]
    assert explained(night)["audit"] == "alarm"
    assert "registry was changed while the scan ran" in json.dumps(explained(night)["says"])


@pytest.mark.costly
@pytest.mark.parametrize("hides", [False, True])
def test_a_scan_whose_registry_was_replaced_for_a_while_fails_and_says_so(night, own_registry, marked, hides):
    """The other registry gives alice's message to zoe, or to nobody, and is gone again when the scan ends."""
    message, users = message_of(own_registry, "green", "alice"), own_registry / "users"
    shutil.copytree(own_registry, night.folder / "other")
    shutil.rmtree(night.folder / "other" / "users")
    if not hides:
        add_users(night.folder / "other", None, ["zoe", "bob"], datetime.now(UTC) - timedelta(minutes=1))
    night.write("a", [marked(message, 80, 1)])

    def swap(what):
        if what.startswith("starting Ray"):
            shutil.move(users, night.folder / "kept")
            if not hides:
                shutil.copytree(night.folder / "other" / "users", users)

    def put_back(_work, totals):
        if totals.shards and (night.folder / "kept").exists():
            shutil.rmtree(users, ignore_errors=True)
            shutil.move(night.folder / "kept", users)

    with pytest.raises(ScanFailed, match=rf"message {message} of key green, rows have .* use any of its flags"):
        run_scan(night.plan(), put_back, wait=swap)
    (row,) = read_whole(night.results, "flags").collect().to_dicts()
    assert row["user_id"] == (None if hides else "zoe")
    assert night.last_scan()["exit_code"] == 1


@pytest.mark.costly
@pytest.mark.parametrize("when", ["opening keys", "listing the input", "starting Ray"])
def test_keys_that_are_replaced_while_a_scan_runs_change_nothing_of_it(night, own_registry, marked, when):
    """A scan has the keys that it read when it was planned."""
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])
    before = registry_sha256(load_registry(own_registry))

    def replace(what):
        if what.startswith(when):
            (own_registry / "keys.toml").write_text("keys = [")

    assert night.scan(wait=replace).exit_code == 0
    assert night.verdicts()["user_id"].to_list() == ["alice"]
    assert night.last_scan()["registry_sha256"] == before
    with pytest.raises(Refused, match=r"keys.toml: is not valid TOML"):
        night.scan()


@pytest.mark.costly
def test_users_that_come_and_go_while_a_scan_runs_fail_no_scan(night, own_registry, marked):
    add_users(own_registry, None, ["carl"])
    night.write("a", [marked(message_of(own_registry, "green", "alice"), 80, 1)])

    def change(what):
        if what.startswith("starting"):
            add_users(own_registry, None, ["zoe"])
            remove_users(own_registry, ["bob", "carl"])
            erase_users(own_registry, ["carl"])

    assert night.scan(wait=change).exit_code == 0


@pytest.mark.costly
@pytest.mark.parametrize("scanned_before", [True, False])
def test_two_names_that_were_swapped_in_the_ledger_name_nobody(
    night, own_registry, marked, monkeypatch, scanned_before
):
    monkeypatch.setattr(ledger, "_MOST_NEW_FILES", 2)
    add_users(own_registry, ["green"], ["zoe", "bystander"])
    night.write("a", [marked(message_of(own_registry, "green", "zoe"), 80, 1)])
    if scanned_before:
        night.scan()
        first = read_whole(night.results, VERIFIED_USERS_TABLE).collect()
        assert first["sha256"].drop_nulls().len() > 0
        night.scan()
        assert read_whole(night.results, VERIFIED_USERS_TABLE).collect().equals(first)  # nothing new, no row
    rows = len(night.verdicts()) if scanned_before else 0
    swapped = [swap_names(*of) for of in part_files(own_registry, "user_id").items()]
    assert any(swapped)
    night.write("b", [marked(message_of(own_registry, "green", "zoe"), 80, 2)])
    with pytest.raises(Refused, match="its users"):
        night.scan()
    code, _, err = call("scan", night.config, "--check")
    assert (code, "`brickscan users verify` says more" in err) == (2, True)
    assert not scanned_before or len(night.verdicts()) == rows
    assert call("users", "verify", "--registry", own_registry)[0] == 3


@pytest.mark.costly
@pytest.mark.parametrize(
    "when",
    [
        {"verified_at": datetime(9999, 1, 1, tzinfo=UTC)},
        {"verified_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"verified_at": datetime(9999, 1, 1, tzinfo=UTC), "scan_id": "20990101T000000Z-00000000"},
        {},
    ],
)
def test_no_forged_verification_speaks_for_an_edited_registry(night, own_registry, marked, monkeypatch, when):
    """Neither at any time nor in the time of its scan, while the row that it contradicts stands."""
    monkeypatch.setattr(ledger, "_MOST_NEW_FILES", 2)
    add_users(own_registry, ["green"], ["zoe", "bystander"])
    message = message_of(own_registry, "green", "zoe")
    night.write("a", [marked(message, 80, 1)])
    night.scan()
    parts = part_files(own_registry, "user_id")
    swapped = {path: swap_names(path, rows) for path, rows in parts.items()}
    assert any(swapped.values())
    rows = read_whole(night.results, VERIFIED_USERS_TABLE).collect()
    for path in (path for path, done in swapped.items() if done):
        of_file = rows.filter(file=path.name).with_columns(sha256=pl.lit(sha256(path.read_bytes()).hexdigest()))
        changed = of_file.with_columns(**{name: pl.lit(to) for name, to in when.items()})
        table = f"{night.results}/{VERIFIED_USERS_TABLE}"
        write_deltalake(table, changed.to_arrow().cast(VERIFIED_USERS), mode="append")
    with pytest.raises(TableError, match="verified_users: its files are not those that brickscan committed"):
        night.scan()
    assert call("scan", night.config, "--check")[0] == 2
