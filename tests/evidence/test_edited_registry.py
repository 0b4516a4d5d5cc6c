"""An edited registry names nobody, whoever asks it: two names are exchanged in the files of its users."""

import json
import shutil
from pathlib import Path

import brickscan
import polars as pl
import pytest

import scanner
from jobs import mark
from scanner.errors import Refused
from scanner.registry import NO_RECORD, VerifiedHolders, find_key, load_registry
from scanner.results.registry_record import users_of_config
from scanner.service.scoring import Scorer, ServedScan
from schemas.service import DetectorConfig
from tests.support.command_line import call
from tests.support.forged_users import rewrite
from tests.support.night import Night
from tests.support.opened_once import keep_inspector
from tests.support.two_keys import message_of
from tests.support.without_ray import put_in_the_place_of_ray

CHANGED = "its users"


@pytest.fixture(scope="module")
def texts(registry, marked) -> list[str]:
    return [marked(message_of(registry, "green", user), 80, 1) for user in ("alice", "bob")]


@pytest.fixture(scope="module", params=["scanned", "never scanned"])
def swapped(request, tmp_path_factory, registry, texts) -> Night:
    """A night whose registry gives alice's message to bob, and his to her; tests only read it."""
    folder = tmp_path_factory.mktemp("swapped")
    night = Night(folder, shutil.copytree(registry, folder / "registry"))
    night.write("a", texts)
    if request.param == "scanned":
        with pytest.MonkeyPatch.context() as patch:
            put_in_the_place_of_ray(patch)
            keep_inspector(patch)
            night.scan()
        assert night.verdicts()["user_id"].to_list() == ["alice", "bob"]
    other = pl.col("user_id").replace({"alice": "bob", "bob": "alice"})
    rewrite(night.registry, lambda events: events.with_columns(user_id=other))
    return night


def test_check(swapped, texts, tmp_path):
    (tmp_path / "post.txt").write_text(texts[0])
    for arguments in ((swapped.config,), ("--registry", swapped.registry)):
        code, out, err = call("check", *arguments, "--text", tmp_path / "post.txt")
        assert (code, out, CHANGED in err) == (2, "", True), err


def test_api(swapped, texts):
    with pytest.raises(Refused, match=CHANGED):
        brickscan.open(swapped.registry).check(texts)


def test_serve(swapped, texts):
    """A process that must not name does not answer; the detector says that it cannot look at the text."""
    served = ServedScan.of(DetectorConfig(version=2, names="experts"), swapped.folder)
    with pytest.raises(Refused, match=CHANGED):
        Scorer(served, b"1" * 32).find_marks([texts[0].encode()])
    nobody = ServedScan.of(DetectorConfig(version=2), swapped.folder)
    assert Scorer(nobody, b"1" * 32).find_marks([texts[0].encode()])[0].user is None


def test_commands_for_users(swapped):
    """Whom a message was given to is read to name somebody, and which message a user has to mark text for them."""
    message = message_of(swapped.registry, "green", "alice")
    for arguments in (("show", "alice"), ("who", "green", message)):
        code, out, err = call("users", *arguments, "--registry", swapped.registry)
        assert (code, out, CHANGED in err) == (2, "", True), err


def test_marking(swapped):
    """Text that is marked for another user's message would accuse that user ever after."""
    key = find_key(load_registry(swapped.registry), "green")
    for recipients in (
        lambda: mark.recipients(swapped.registry, key, ["alice"], []),
        lambda: mark.recipients(swapped.registry, key, [], [message_of(swapped.registry, "green", "alice")]),
        lambda: mark.recipients_of_rows(swapped.registry, key, ["alice"]),
    ):
        with pytest.raises(Refused, match=CHANGED):
            recipients()


def test_messages_of_the_api(tmp_path, registry):
    """What is changed after a registry was opened names nobody either."""
    copy = shutil.copytree(registry, tmp_path / "registry")
    opened = brickscan.open(copy)
    held = {user: message_of(copy, "green", user) for user in ("alice", "bob")}
    assert opened.messages("green", [*held, "nobody"]) == held
    other = pl.col("user_id").replace({"alice": "bob", "bob": "alice"})
    rewrite(copy, lambda events: events.with_columns(user_id=other))
    with pytest.raises(Refused, match=CHANGED):
        opened.messages("green", ["alice"])


@pytest.mark.parametrize("swapped", ["scanned"], indirect=True)
def test_commands_on_results(swapped):
    """What a scan found stands, whatever the registry says now; a replay says that the registry is another."""
    code, out, err = call("replay", swapped.config, "a:0", "--json")
    assert (code, json.loads(out)["equal"], "bob" in out) == (3, False, False), err
    code, out, err = call("explain", swapped.config, "a:0", "--json")
    assert (code, json.loads(out)["user_id"], json.loads(out)["checked"]) == (0, "alice", True), err
    assert "alice" in call("flagged", swapped.config)[1]


def test_a_registry_that_is_put_back_to_an_older_state(tmp_path, registry, texts, without_ray, opened_once):
    night = Night(tmp_path, shutil.copytree(registry, tmp_path / "registry"))
    shutil.copytree(night.registry, tmp_path / "older")
    assert call("users", "add", "carol", "--registry", night.registry)[0] == 0
    night.write("a", texts)
    night.scan()
    shutil.rmtree(night.registry)
    shutil.move(tmp_path / "older", night.registry)
    (tmp_path / "post.txt").write_text(texts[0])
    code, _, err = call("check", night.config, "--text", tmp_path / "post.txt")
    assert (code, "is older than its own results" in err) == (2, True)


def test_users_who_were_added_a_moment_ago(tmp_path, registry, texts, without_ray, opened_once):
    """What brickscan does to a registry is no change, with a record and without one."""
    night = Night(tmp_path, shutil.copytree(registry, tmp_path / "registry"))
    night.write("a", texts)
    night.scan()
    for record in (users_of_config(night.config), NO_RECORD):
        holders, message = VerifiedHolders(night.registry, ["green"], record), message_of(registry, "green", "bob")
        for user in ("carol", "dave"):
            call("users", "add", f"{user}-{len(record.parts)}", "--registry", night.registry)
            assert holders.naming("green", message, night.last_scan()["started_at"]).user_id == "bob"


def test_only_workers_of_scans_open_users_that_nobody_verifies():
    """A scan verifies the registry before its work and after it; whatever else names asks VerifiedHolders."""
    root = Path(scanner.__file__).parents[1]
    files = [file for folder in ("scanner", "jobs") for file in (root / folder).rglob("*.py")]
    assert {file.name for file in files if " Holders.load(" in file.read_text()} == {
        "open_plan.py",
        "follow_up.py",
        "model_scoring.py",
    }
