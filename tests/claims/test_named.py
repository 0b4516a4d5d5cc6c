"""Claims about flags that name a user: the record of the name, and what the published list says of it."""

import json
import re
import shutil
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs import users
from scanner.claims import claim as claims
from scanner.claims.claim import prepare, refuse_if_changed, show
from scanner.errors import Refused
from scanner.evidence.case import FlagCase
from scanner.evidence.replay import Replay
from scanner.registry import add_users, erase_users, find_key, load_registry, new_key, remove_users
from scanner.registry.holders import messages_held
from scanner.registry.keys_file import read_published
from scanner.registry.shown_seeds import append_event
from scanner.results import retention
from schemas.words import Naming
from tests.support.claiming import Platform
from tests.support.command_line import call
from tests.support.two_keys import TOKENIZER

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("without_ray", "opened_once")]

TOLD = "message {} was given to 'alice'"


class NamingPlatform(Platform):
    """A platform that marked a text for alice, of three users, and published a list before it."""

    def __init__(self, folder: Path, words) -> None:
        super().__init__(folder, words)
        self.listed = folder / "list.txt"
        add_users(self.registry, None, ["bob-4f9c", "alice", "carol-8d1e"], datetime.now(UTC) - timedelta(hours=1))
        self.message = messages_held(self.registry, "green", ["alice"])["alice"]
        self.scan(self.forger.mark_words(words, self.message, 130, 1))

    def publish(self) -> str:
        """Publish, and return the list's head."""
        assert call("keys", "publish", self.listed, "--registry", self.registry)[0] == 0
        return self.listed.read_text().split()[-1]

    def told(self, said: str) -> list[str]:
        return [line for line in said.splitlines() if TOLD.format(self.message) in line]


@pytest.fixture
def platform(tmp_path, words) -> NamingPlatform:
    return NamingPlatform(tmp_path, words)


def test_a_claim_carries_the_record_of_the_name_and_shows_no_other(platform):
    head = platform.publish()
    code, said = platform.claim("--yes", "--list", platform.listed)
    assert code == 0, said
    platform.publish()
    code, said = platform.checked(platform.listed, head)
    assert (code, "FAILS" in said, "NOT CHECKED" in said) == (0, False, False), said
    (listed,) = platform.told(said)
    assert re.search("^holds       by the claim's own dates .*: the message came first$", said, re.MULTILINE)
    assert "the list has its record on" in listed
    assert platform.read("name.json")["events"] == 3
    for path in platform.case.iterdir():
        held = path.read_bytes()
        assert not any(name in held for name in (b"bob-4f9c", b"carol-8d1e"))


def test_users_who_came_after_the_list_have_the_platforms_word(platform):
    assert platform.claim("--yes")[0] == 0
    _, said = platform.checked()
    assert "no list has a root with its record, and so it is the platform's word" in platform.told(said)[0]
    assert platform.read("name.json")["path"] == []


def test_users_who_are_not_those_of_each_line_are_named_in_no_claim(platform):
    """Its users were put back once, and alice came since: the line of the list that has her is not the first."""
    head = platform.publish()
    lines = read_published(platform.listed)
    body = *lines[-1][1:8], "1:" + "ab" * 32
    text = f"brickscan commitments 5\n{head}\n{len(lines) + 1} " + " ".join(map(str, body))
    line = f"{len(lines) + 1} {' '.join(map(str, body))} {sha256(text.encode()).hexdigest()}\n"
    platform.listed.write_text(platform.listed.read_text() + line)
    code, said = platform.claim("--yes", "--list", platform.listed)
    assert (code, "its first 1 events have a different root from the one on the list" in said) == (2, True), said
    assert platform.shown().number == 0


def test_users_whom_a_scan_saw_and_who_are_lost_are_missed_without_a_list(platform):
    shutil.rmtree(platform.registry / "users")
    code, said = platform.claim("--yes")
    assert (code, "is older than its own results" in said) == (2, True), said
    assert platform.shown().number == 0


def test_users_of_the_list_who_are_lost_are_missed_also_if_nobody_is_named(tmp_path, words):
    platform, listed = Platform(tmp_path, words), tmp_path / "list.txt"
    platform.scan(platform.text())
    add_users(platform.registry, None, ["alice"])
    assert call("keys", "publish", listed, "--registry", platform.registry)[0] == 0
    shutil.rmtree(platform.registry / "users")
    code, said = platform.claim("--yes", "--list", listed)
    assert (code, "on the list" in said) == (2, True), said
    assert platform.shown().number == 0


def test_a_name_that_was_erased_stands_in_no_claim(platform):
    remove_users(platform.registry, ["alice"])
    assert platform.claim("--yes", out="removed")[0] == 0
    assert platform.read("name.json", "removed")["user_id"] == "alice"
    erase_users(platform.registry, ["alice"])
    assert platform.claim("--yes")[0] == 0
    assert not (platform.case / "name.json").exists()
    assert platform.told(platform.checked()[1]) == []


@pytest.mark.parametrize("erased", ["while it is asked", "while readers are waited for"])
def test_a_name_that_is_erased_meanwhile_stands_in_no_claim(platform, erased, monkeypatch):
    """Its record was read before the question, and a scan that is waited for can take hours."""

    def erase() -> None:
        assert call("users", "remove", "alice", "--erase", "--yes", "--registry", platform.registry)[0] == 0

    at = "show" if erased == "while it is asked" else "wait_for_readers"
    inner = getattr(claims, at)

    def first(*arguments: object, **options: object) -> object:
        erase()
        return inner(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(claims, at, first)
        code, said = platform.claim("--yes")
    assert (code, "was erased in the meantime" in said, platform.case.exists()) == (2, True, False), said
    assert platform.claim("--yes")[0] == 0
    assert not (platform.case / "name.json").exists()
    assert not any(b"alice" in path.read_bytes() for path in platform.case.iterdir())
    assert platform.shown().number == 1


def test_a_name_that_stands_still_is_no_reason_to_refuse(platform):
    prepared = prepare(platform.night.config, "a:0", None)
    files = show(prepared)
    refuse_if_changed(prepared, files)
    other = json.loads(files["name.json"]) | {"user_id": "bob-4f9c"}
    with pytest.raises(Refused, match="was erased in the meantime"):
        refuse_if_changed(prepared, files | {"name.json": json.dumps(other).encode()})


def test_a_row_that_was_edited_names_nobody(platform, monkeypatch):
    """As of tables whose signatures nobody checks: a text from after its message's user was removed names them."""
    remove_users(platform.registry, ["alice"])
    platform.night.write("b", [platform.forger.mark_words(platform.words, platform.message, 130, 2)])
    platform.night.scan()
    replay = claims.replay

    def edited(*arguments: object) -> Replay:
        again = replay(*arguments)
        assert again.case.row["naming"] == Naming.REMOVED
        row = again.case.row | {"naming": Naming.NAMED, "user_id": "alice"}
        return again._replace(case=FlagCase(row, again.case.scan))

    monkeypatch.setattr(claims, "replay", edited)
    assert platform.claim("--yes", document="b:0")[0] == 0
    assert not (platform.case / "name.json").exists()


def test_a_row_that_names_another_than_the_registry_is_refused(platform, monkeypatch):
    replay = claims.replay

    def edited(*arguments: object) -> Replay:
        again = replay(*arguments)
        return again._replace(case=FlagCase(again.case.row | {"user_id": "bob-4f9c"}, again.case.scan))

    monkeypatch.setattr(claims, "replay", edited)
    code, said = platform.claim("--yes")
    assert (code, "gave the message to" in said) == (2, True), said
    assert platform.shown().number == 0


def test_an_erasure_names_the_claims_that_it_does_not_take_back(platform, monkeypatch):
    erase = "users", "remove", "alice", "--registry", platform.registry, "--erase"
    with_results = *erase, "--results", platform.night.results
    assert "remains: the claim" not in call(*with_results, "--dry-run")[1]
    assert platform.claim("--yes")[0] == 0
    code, said, _ = call(*erase, "--dry-run")
    assert (code, "1 claim showed seeds of this registry's keys: --results shows which" in said) == (0, True), said
    others = *erase[:2], "bob-4f9c", *with_results[3:]
    assert "remains: the claim" not in call(*others, "--dry-run")[1]
    told = f"a.parquet:0 (event 1 of key green, {datetime.now(UTC):%Y-%m-%d}), with everyone who received it"
    for how in ("--dry-run", "--yes"):
        code, said, err = call(*with_results, how)
        assert (code, "remains: the claim about " in said, told in " ".join(said.split())) == (0, True, True), (
            said + err
        )
    monkeypatch.setattr(retention, "cutoff", lambda _: date.today() + timedelta(days=9))
    code, said, _ = call("retain", platform.night.config, "--keep", "1", "--dry-run")
    assert (code, "remains: claims that were given to the parties" in said) == (0, True), said


def test_an_erasure_names_claims_that_were_made_while_it_asked_and_erased(platform, monkeypatch):
    erase = "users", "remove", "alice", "--registry", platform.registry, "--erase", "--results", platform.night.results

    def ask(*_arguments: object) -> bool:
        assert platform.claim("--yes")[0] == 0
        return True

    monkeypatch.setattr(users, "confirm", ask)
    code, said, _ = call(*erase)
    assert (code, "remains: the claim about " in said) == (0, True), said


def test_an_erasure_names_claims_before_it_begins_since_a_second_run_no_longer_knows_whose_texts_they_are_about(
    platform, monkeypatch
):
    erase = "users", "remove", "alice", "--registry", platform.registry, "--erase", "--results", platform.night.results
    assert platform.claim("--yes")[0] == 0

    def stop(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(users, "erase_users", stop)
        code, said, err = call(*erase, "--yes")
    assert (code, "remains: the claim about " in err) == (130, True), said + err
    code, said, err = call(*erase, "--yes")
    assert (code, "remains: the claim about " in said + err) == (0, False), said + err


@pytest.mark.parametrize(
    ("of_alice", "of_bob", "spans", "first"),
    [
        (260, 160, False, "bob-4f9c"),
        (1100, 260, False, "alice"),
        (1200, 90, True, "bob-4f9c"),
        (0, 90, True, "alice"),
        (0, 90, True, "bob-4f9c"),
    ],
)
def test_each_user_whom_a_flag_names_can_have_a_claim(platform, plain, of_alice, of_bob, spans, first):
    """As of a reply that quotes: in any order, of a whole text and of parts of one."""
    messages = messages_held(platform.registry, "green", ["alice", "bob-4f9c"])
    alice, bob = (
        platform.forger.mark_words(platform.words, messages[user], length, seed)
        for user, length, seed in (("alice", of_alice or 120, 4), ("bob-4f9c", of_bob, 5))
    )
    platform.night.configure(more="looks_added = true\nspans = { windows = true }" if spans else "")
    platform.night.write(
        "b", [alice + bob if of_alice else plain(900, 1) + alice + plain(900, 2) + bob + plain(900, 3)]
    )
    platform.night.scan()
    (flag,) = (row for row in platform.night.verdicts().to_dicts() if row["doc_id"] == "b:0")
    assert ([named["user_id"] for named in flag["named"]], flag["look"]) == (
        ["alice", "bob-4f9c"],
        None if of_alice else "span",
    )
    code, said = platform.claim("--user", "carol-8d1e", document="b:0")
    assert (code, "does not name user 'carol-8d1e'" in said, "it names 'alice', 'bob-4f9c'" in said) == (2, True, True)
    order = sorted(messages, key=lambda user: user != first)
    config = platform.night.config
    claim_alone = {user: prepare(config, "b:0", None, user).log10_p for user in order}
    for user in (*order, *order):
        out = user if not (platform.folder / user).exists() else f"{user} again"
        code, said = platform.claim("--yes", "--user", user, document="b:0", out=out)
        assert code == 0, said
        claim = platform.read("claim.json", out)
        assert (claim["message"], platform.read("name.json", out)["user_id"]) == (messages[user], user)
        assert max(claim["log10_p_global"], claim["log10_p_user_global"]) == claim_alone[user] < -4
        assert "FAILS" not in platform.checked(out=out)[1]
    for user in order:
        assert platform.read("claim.json", user) == platform.read("claim.json", f"{user} again")


def test_p_of_a_user_under_another_key_is_corrected_by_that_key(platform):
    """By the weight of its own key, which may be a later one: by the first user's, p would be too small."""
    key = find_key(load_registry(platform.registry), "green")
    first, later = (key.model_copy(update={"key_id": name, "one_of": tests}) for name, tests in (("a", 4), ("b", 24)))
    explainer = SimpleNamespace(key_on_record={"a": first, "b": later}.get)
    flag = FlagCase({"key_id": "a", "correction": 8.0}, {"keys_tested": 2})
    assert [claims._correction(explainer, flag, one) for one in (first, later, key)] == [8.0, 48.0, 4.0]


def test_a_user_whose_name_was_erased_is_found_by_the_message(platform):
    """Else a claim about the second user, whose seeds are shown, could not be finished after an erasure."""
    messages = messages_held(platform.registry, "green", ["alice", "bob-4f9c"])
    marked = [platform.forger.mark_words(platform.words, messages[user], 130, 6) for user in messages]
    platform.night.write("b", ["".join(marked)])
    platform.night.scan()
    row = next(row for row in platform.night.verdicts().to_dicts() if row["doc_id"] == "b:0")
    second = row["named"][1]
    assert call("users", "remove", second["user_id"], "--erase", "--yes", "--registry", platform.registry)[0] == 0
    case = FlagCase({**row, "named": [row["named"][0], second | {"user_id": None}]}, None)
    message = f"green:{second['message']}"
    assert case.about(message).row["message"] == second["message"]
    assert case.about(f"green:{row['message']}").row["message"] == row["message"]
    with pytest.raises(Refused, match=f"it names '{row['user_id']}', '{message}'"):
        case.about(second["user_id"])
    code, said = platform.claim("--yes", "--user", message, document="b:0")
    assert (code, (platform.case / "name.json").exists()) == (0, False), said
    assert platform.read("claim.json")["message"] == second["message"]


@pytest.mark.parametrize("again", [False, True])
def test_keys_that_are_made_meanwhile_are_counted(platform, again):
    """Also by a claim that shows nothing new, as each after the first one about a text."""
    if again:
        show(prepare(platform.night.config, "a:0", None))
    prepared = prepare(platform.night.config, "a:0", None)
    assert (prepared.newly == 0) == again
    blue = {"format": "greenlist", "window": 3, "gamma": "1/4", "messages": 1, "tokenizer": TOKENIZER}
    new_key(platform.registry, "blue", **blue)
    with pytest.raises(Refused, match="keys of the registry changed in the meantime"):
        show(prepared)
    assert platform.shown().number == again
    with pytest.raises(Refused, match="keys of the registry changed in the meantime"):
        append_event(
            platform.registry, "green", b"a text", [1], [bytes(32)], known=prepared.known, keys=prepared.keys
        )  # as where a key is made while this waits for the registry's lock
    assert platform.shown().number == again
    show(prepare(platform.night.config, "a:0", None))


def test_a_registry_that_lost_a_key_makes_no_claim(platform, plain):
    keys_file = platform.registry / "keys.toml"
    before = keys_file.read_bytes()
    blue = {"format": "greenlist", "window": 3, "gamma": "1/4", "messages": 1, "tokenizer": TOKENIZER}
    new_key(platform.registry, "blue", **blue)
    platform.night.write("b", [plain(80, 3)])
    platform.night.scan()
    keys_file.write_bytes(before)
    code, said = platform.claim("--yes")
    assert (code, "tested key 'blue', which this registry lacks" in said) == (2, True), said
    assert platform.shown().number == 0


def test_the_way_on_where_there_is_no_newer_registry(platform, plain):
    """The page's steps: no scan and no check scores a text by seeds that a lost claim showed."""
    shutil.copytree(platform.registry, platform.folder / "backup")
    assert platform.night.verdicts()["key_id"].to_list() == ["green"]
    assert platform.claim("--yes")[0] == 0
    platform.publish()
    shutil.rmtree(platform.registry)
    (platform.folder / "backup").rename(platform.registry)
    registry = ("--registry", platform.registry)
    code, _, err = call("keys", "verify", platform.listed, *registry)
    assert (code, "lacks event 1 of key 'green'" in err) == (3, True), err
    assert call("keys", "retire", "green", "--yes", *registry)[0] == 0
    (platform.registry / "secrets" / "green.key").rename(platform.folder / "green.key")
    tokenizer = ("--tokenizer", TOKENIZER, "--window", 3, "--seeds", 10, "--users", 100)
    code, said, err = call("keys", "new", "blue", *registry, *tokenizer)
    assert code == 0, err
    code, said, err = call("users", "add", "alice", "dora", "--key", "blue", *registry)
    assert code == 0, said + err
    platform.night.configure(more='keys = ["blue"]')
    platform.night.config.write_text(platform.night.config.read_text().replace('"results"', '"results-2"'))
    platform.night.results = str(platform.folder / "results-2")
    platform.listed.unlink()
    platform.publish()
    platform.night.scan()
    assert platform.night.verdicts()["key_id"].to_list() == [None]
    for key in ((), ("--key", "green"), ("--key", "blue")):
        code, said, err = call("check", *registry, *key, "--text", platform.case / "text.txt")
        assert (code == 2, "green.key" in err) == ("blue" not in key,) * 2, (code, said, err)
