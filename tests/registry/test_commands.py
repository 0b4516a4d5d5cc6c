"""The commands as people call them: their output, their refusals, and no secret in either."""

import base64
import contextlib
import io
import random
import subprocess
import sys
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import ANY, Mock

import polars as pl
import pytest
from deltalake import DeltaTable

from scanner.registry import Holders, find_key, list_users, load_registry, open_key, registry_sha256
from scanner.results.transactions import open_tables
from scanner.scan_plan import make_plan
from scanner.signing import sign_with
from scanner.storage.toml import digest
from scanner.watermark.formats import format_of
from tests import reference3
from tests.support.rows import add, verdict


@pytest.fixture
def registry(cli, folder, tokenizer):
    done = cli("keys", "new", "k1", "--registry", folder, "--tokenizer", tokenizer, "--messages", 1000, "--seeds", 4)
    assert done.code == 0
    return folder


def test_a_new_key_prints_its_commitment_and_why(cli, folder, tokenizer):
    done = cli("keys", "new", "summer", "--registry", folder, "--tokenizer", tokenizer)
    key = find_key(load_registry(folder), "summer")
    parameters = {"window": 4, "gamma": "1/4", "groups": 325, "seeds": 24, "beacon": ANY}
    assert (key.format, key.parameters) == ("greenlist-v3", parameters)
    assert key.messages == 325**2
    assert (done.code, done.err) == (0, "")
    assert f"commitment  {key.commitment}" in done.out
    assert "Publish the commitment" in done.out
    assert "file:secrets/summer.key" in done.out
    assert "scanned before" not in done.out  # nothing can have been
    second = cli("keys", "new", "g", "--registry", folder, "--tokenizer", tokenizer, "--method", "gumbel", "--seeds", 4)
    assert (second.code, "Nights that were already scanned" in second.out) == (0, True)
    assert find_key(load_registry(folder), "g").parameters == {"window": 4, "groups": 325, "seeds": 4, "beacon": ANY}
    new = ("keys", "new", "--registry", folder, "--tokenizer", tokenizer, "--seeds", 4)
    assert cli(*new, "none", "--window", 0).code == 0
    assert find_key(load_registry(folder), "none").messages == 65_536  # without a window, a key has no groups


def test_a_key_of_version_1_says_whom_it_may_accuse(cli, folder, tokenizer):
    """The warning comes when the key is made and when it is listed. A key of version 3 warns of a short window only."""
    old = ("keys", "new", "--registry", folder, "--tokenizer", tokenizer)
    new = (*old, "--seeds", 4)
    paper = cli(*old, "paper", "--version", 1)
    assert (paper.code, paper.err.count("can accuse the innocent")) == (0, 1)
    assert cli(*old, "all", "--version", 1, "--messages", 1).err == ""
    assert "1,000 marked tokens" in cli(*new, "none", "--window", 0).err
    assert "window 2: " in cli(*new, "two", "--window", 2).err
    assert cli(*new, "three", "--window", 3).err == ""
    paper, all_alike, none, two, three = cli("keys", "list", "--registry", folder).out.split("  made ")[1:]
    assert [part.count("careful") for part in (paper, all_alike, none, two, three)] == [1, 0, 1, 1, 0]
    assert max(map(len, (paper + none).split("\n"))) <= 100
    key = find_key(load_registry(folder), "paper")
    assert (key.format, key.parameters, key.messages) == ("greenlist", {"window": 4, "gamma": "1/4"}, 100_000)
    assert cli(*old, "paper-2", "--version", 1).code == 0
    config = folder.parent / "scan.toml"
    config.write_text(
        f'version = 2\nregistry = "{folder}"\nresults = "out"\nfalse_positive_rate = 1e-6\n[input]\npaths = ["in"]\n'
    )
    told = [caution.split(":")[0] for caution in make_plan(config).cautions]
    assert told == [
        "keys paper, paper-2",
        "key none",
        "key two",
        "key three",
    ]  # the last one's record has three looks


def test_who_else_holds_a_key_is_on_record(cli, folder, tokenizer):
    """Other holders can mark for anybody. Where none is named, the registry's digest is as without the field."""
    new = ("keys", "new", "--registry", folder, "--tokenizer", tokenizer, "--seeds", 4)
    assert cli(*new, "silent").code == 0
    before = registry_sha256(load_registry(folder))
    silent = find_key(load_registry(folder), "silent").model_dump(mode="json")
    left_out = {"format", "parameters", "one_of", "held_by", "beacon_value"}
    assert before == digest_of(folder, silent.keys() - left_out)
    told = cli(*new, "site", "--held-by", "  site A,\x1b[31m since May ").out
    assert "held by     site A,\\x1b[31m since May, who can mark for anybody" in told
    assert find_key(load_registry(folder), "site").held_by == "site A,\x1b[31m since May"
    listed = cli("keys", "list", "--registry", folder).out
    assert listed.count("held by site A,\\x1b[31m since May") == listed.count("held by") == 1
    assert registry_sha256(load_registry(folder)) != before
    assert cli(*new, "wrong", "--held-by", " ").code == 2


def digest_of(folder: Path, fields: Iterable[str]) -> str:
    """Digest of a registry's record that has only these fields of its one key."""
    registry = load_registry(folder)
    whole = registry.model_dump(mode="json", exclude={"version", "keys", "canaries", "trial", "lasting_secret"})
    (key,) = registry.keys
    return digest(whole | {"keys": [key.model_dump(mode="json", include=set(fields)) | format_of(key).digest_fields()]})


def test_a_key_without_groups(cli, folder, tokenizer):
    new = ("keys", "new", "--registry", folder, "--tokenizer", tokenizer, "--seeds", 4)
    assert cli(*new, "green", "--messages", 65_536).code == 0
    assert cli(*new, "g", "--method", "gumbel", "--messages", 1000, "--window", 3).code == 0
    green, gumbel = load_registry(folder).keys
    assert (green.format, green.messages, green.parameters) == (
        "greenlist-v3",
        65_536,
        {"window": 4, "gamma": "1/4", "seeds": 4, "beacon": ANY},
    )
    assert (gumbel.format, gumbel.messages, gumbel.parameters) == (
        "gumbel-v3",
        1000,
        {"window": 3, "seeds": 4, "beacon": ANY},
    )
    secret = bytes.fromhex((folder / "secrets/g.key").read_text())
    assert gumbel.commitment == reference3.commitment(secret, "gumbel-v3;h=3;seeds=4").hex()
    refused = cli(*new, "many", "--messages", 100_000)
    assert (refused.code, "Give --users 100000 instead" in refused.err) == (2, True)
    assert cli(*new, "other", "--method", "vllm-gumbel").code == 2


def test_a_key_for_a_thousand_million_users(cli, folder, tokenizer):
    new = ("keys", "new", "--registry", folder, "--tokenizer", tokenizer, "--users", 1e9, "--seeds", 4)
    assert cli(*new, "green").code == 0
    assert cli(*new, "g", "--method", "gumbel").code == 0
    green, gumbel = load_registry(folder).keys
    parameters = {"window": 4, "groups": 32_445, "seeds": 4, "beacon": ANY}
    assert (green.messages, green.parameters) == (32_445**2, parameters | {"gamma": "1/4"})
    assert (gumbel.messages, gumbel.parameters) == (32_445**2, parameters)
    assert (
        "greenlist-v3, window 4, gamma 1/4, groups 32445, seeds 4, 1,052,678,025 messages"
        in cli("keys", "list", "--registry", folder).out
    )
    assert cli("users", "add", "alice", "--registry", folder).code == 0
    assert 0 <= list_users(folder, ["g"])["message"][0] < 32_445**2
    for wrong in (("--messages", 5), ("--version", 1), ("--window", 0), ("--users", 5e9), ("--users", 0)):
        assert cli(*new, "wrong", *wrong).code == 2


def test_a_key_for_next_winter(cli, folder, tokenizer):
    new = ("keys", "new", "winter", "--registry", folder, "--tokenizer", tokenizer, "--seeds", 4)
    assert cli(*new, "--active-from", "2036-12-01", "--active-until", "2036-12-01").code == 2
    assert cli(*new, "--active-from", "winter").code == 2
    assert cli(*new, "--active-from", "2036-12-01", "--active-until", "2037-03-01T12:00").code == 0
    key = find_key(load_registry(folder), "winter")
    assert (key.active_from, key.active_until) == (
        datetime(2036, 12, 1, tzinfo=UTC),
        datetime(2037, 3, 1, 12, tzinfo=UTC),
    )
    listed = cli("keys", "list", "--registry", folder).out
    assert "marks from 2036-12-01 00:00:00Z until 2037-03-01 12:00:00Z" in listed


def test_keys_are_listed_with_all_that_they_are_within_100_columns(cli, folder, tokenizer, make_key):
    long = "a-name-of-sixty-four-characters-is-the-longest-that-a-key-can-.x"
    new = ("--registry", folder, "--tokenizer", tokenizer, "--version", 1, "--messages", 2**31)
    assert cli("keys", "new", long, *new, "--active-from", "2036-12-01", "--active-until", "2037-03-01").code == 0
    assert cli("keys", "new", "g", "--method", "gumbel", *new).code == 0
    first, second = load_registry(folder).keys
    lines = cli("keys", "list", "--registry", folder).out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == long
    parameters = "  greenlist, window 4, gamma 1/4, 2,147,483,648 messages, tokenizer "
    assert lines[1] == parameters + first.tokenizer.sha256[:12]
    assert f"  commitment {first.commitment}" in lines
    assert lines[lines.index("g") + 1].startswith("  gumbel, window 4, 2,147,483,648 messages, tokenizer ")
    assert f"  commitment {second.commitment}" in lines
    assert lines.count("  calibrated: not yet") == 2


def test_a_key_is_retired_once_and_told_so_again(cli, registry):
    retire = ("keys", "retire", "k1", "--registry", registry)
    assert "still test it" in cli(*retire, "--yes").out
    when = load_registry(registry).keys[0].retired_at
    listed = cli("keys", "list", "--registry", registry).out
    assert f"retired {when:%Y-%m-%d %H:%M:%S}Z" in listed
    again = cli(*retire)  # no question, since nothing changes
    assert (again.code, again.err) == (0, "")
    assert again.out == f"k1 was retired {when:%Y-%m-%d %H:%M:%S}Z; nothing changed\n"
    assert load_registry(registry).keys[0].retired_at == when


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    "command", [("keys", "retire", "k1"), ("users", "remove", "bob"), ("users", "remove", "bob", "--erase")]
)
def test_what_cannot_be_undone_asks_first(cli, registry, monkeypatch, command):
    cli("users", "add", "bob", "--registry", registry)

    def state():
        return load_registry(registry), list_users(registry)["user_id", "removed_at"].rows()

    before = state()
    dry = cli(*command, "--registry", registry, "--dry-run")
    assert dry.code == 0
    assert "permanently" in dry.out
    assert dry.out.endswith("nothing was done (--dry-run)\n")
    nobody = cli(*command, "--registry", registry)
    assert nobody.code == 2
    assert "permanently" in nobody.err
    assert "give --yes, or --dry-run" in nobody.err
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    said_no = cli(*command, "--registry", registry)
    assert (said_no.code, said_no.out) == (0, "")
    assert "nothing was done" in said_no.err
    assert state() == before
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert cli(*command, "--registry", registry).code == 0
    assert state() != before


def test_users_are_added_listed_and_removed(cli, registry):
    assert cli("users", "add", "alice", "bob", "--registry", registry).out == (
        "k1: 2 users added; 948 messages are left\n"
    )
    again = cli("users", "add", "bob", "carol", "--key", "k1", "--registry", registry)
    assert again.out == "k1: 1 user added, 1 had a message and keep it; 947 messages are left\n"
    assert cli("users", "remove", "bob", "--registry", registry, "--yes").out == "1 message withdrawn\n"
    again = cli("users", "remove", "bob", "--registry", registry, "--yes")
    assert (again.code, again.out) == (0, "no message was withdrawn: these users no longer hold any\n")
    lines = [line.split() for line in cli("users", "list", "--registry", registry).out.splitlines()]
    assert lines[0] == ["user", "key", "message", "allocated", "removed"]
    assert {line[0]: line[-1] == "-" for line in lines[1:]} == {"alice": True, "bob": False, "carol": True}
    assert cli("users", "list", "--registry", registry, "--key", "k9").code == 2
    erased = cli("users", "remove", "bob", "--erase", "--registry", registry, "--yes")
    assert "names erased from 2 rows of the registry" in erased.out
    assert "may still be in results of scans: run this again with --results FOLDER" in erased.out
    refused = cli("users", "remove", "bob", "--erase", "--registry", registry, "--yes")
    assert (refused.code, refused.err) == (
        2,
        "error: user 'bob' holds no message in this registry\nhint: see `brickscan users list`\n",
    )


def test_a_name_cannot_steer_the_terminal(cli, registry):
    cli("users", "add", "a\x1b[31m\nb", "--registry", registry, "--yes")
    assert r"a\x1b[31m\nb" in cli("users", "list", "--registry", registry).out


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_users_from_a_file(cli, registry, tmp_path, suffix):
    frame = pl.DataFrame({"name": ["x", "y", "z"], "user_id": ["007", "1.0", 'a "quoted", id']})
    file = tmp_path / f"users{suffix}"
    frame.write_csv(file) if suffix == ".csv" else frame.write_parquet(file)
    assert cli("users", "add", "--file", file, "--registry", registry).code == 0
    assert set(list_users(registry)["user_id"]) == {"007", "1.0", 'a "quoted", id'}
    assert cli("users", "add", "--file", file, "--column", "name", "--registry", registry).code == 0
    assert list_users(registry).height == 6


def test_users_from_a_file_whose_columns_are_parted_by_tabs(cli, registry, tmp_path):
    (tmp_path / "u.tsv").write_text("name\tuser_id\nx\talice\ny\tbob, jr\n")
    assert cli("users", "add", "--file", tmp_path / "u.tsv", "--registry", registry).code == 0
    assert set(list_users(registry)["user_id"]) == {"alice", "bob, jr"}


def test_a_file_named_as_a_pattern_is_that_file(cli, registry, tmp_path):
    (tmp_path / "u[1].csv").write_text("user_id\nmine\n")
    (tmp_path / "u1.csv").write_text("user_id\nanother's\n")
    assert cli("users", "add", "--file", tmp_path / "u[1].csv", "--registry", registry).code == 0
    assert list_users(registry)["user_id"].to_list() == ["mine"]


def test_the_longest_id_is_256_characters(cli, registry):
    assert cli("users", "add", "é" * 256, "--registry", registry).code == 0
    assert cli("users", "add", "x" * 257, "--registry", registry).code == 2


def test_an_id_that_comes_back_is_told_that_older_text_names_nobody(cli, registry):
    assert cli("users", "add", "alice", "bob", "--registry", registry).err == ""
    (old,) = list_users(registry).filter(pl.col("user_id") == "bob")["message"]
    assert cli("users", "remove", "bob", "--registry", registry, "--yes").code == 0
    back = cli("users", "add", "alice", "bob", "--registry", registry)
    assert back.code == 0
    assert back.err.startswith("user 'bob' was removed ")
    assert "text marked for this id names nobody" in back.err
    named = Holders.load(registry, ["k1"]).naming("k1", old, datetime.now(UTC))
    assert named[:2] == ("removed", None)  # so it is
    assert cli("users", "add", "bob", "--registry", registry).err == ""  # holds one


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        (" alice", "user ' alice' begins or ends with a space, and is a different user from 'alice'"),
        ("alice ", "user 'alice ' begins or ends with a space, and is a different user from 'alice'"),
        ("аlice", "user 'аlice' looks like user 'alice'"),  # a Cyrillic letter
        ("Alice", "user 'Alice' looks like user 'alice'"),
        ("ali\u200bce", r"user 'ali\u200bce' looks like user 'alice'"),
        ("\uff41lice", "user '\uff41lice' looks like user 'alice'"),
    ],
)
def test_ids_that_look_like_others_are_warned_of(cli, registry, name, warning):
    assert cli("users", "add", "alice", "bob", "--registry", registry).err == ""
    done = cli("users", "add", name, "--registry", registry, "--yes")
    assert done.code == 0
    assert warning in done.err
    assert cli("users", "add", name, "carol", "--registry", registry).err.count("looks like") == 0  # known by now


@pytest.mark.parametrize(("name", "shown"), [("a\x1b[2Jb", "a\\x1b[2Jb"), ("a\nb", "a\\nb"), ("a\u2066b", "a\\u2066b")])
def test_ids_that_no_list_shows_as_they_are_are_warned_of(cli, registry, name, shown):
    done = cli("users", "add", name, "--registry", registry, "--yes")
    assert done.code == 0
    assert "has characters that are invisible or control terminals; lists show" in done.err
    assert shown in done.err
    assert cli("users", "add", "Zoë 漢", "o'neil", "--registry", registry).err == ""


@pytest.mark.parametrize("name", ["member-03 ", "\tmember-03", "member\u200b-03"])
def test_ask_about_a_typing_error(cli, registry, name):
    """An id that is given for good is asked about where it is probably mistyped; once given, it is not asked again."""
    refused = cli("users", "add", "alice", name, "--registry", registry)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert list_users(registry).height == 0
    assert cli("users", "add", "alice", name, "--registry", registry, "--yes").code == 0
    assert cli("users", "add", "alice", name, "--registry", registry).code == 0
    assert set(list_users(registry)["user_id"]) == {"alice", name}


def test_many_warnings_are_summed_up(cli, registry):
    done = cli("users", "add", *(f"user-{i} " for i in range(40)), "--registry", registry, "--yes")
    assert done.err.count("begins or ends with a space") == 10
    assert "and 30 more such users" in done.err


def test_whole_numbers_are_names_too(cli, registry, tmp_path):
    pl.DataFrame({"user_id": [7, 12]}).write_parquet(tmp_path / "u.parquet")
    assert cli("users", "add", "--file", tmp_path / "u.parquet", "--registry", registry).code == 0
    assert set(list_users(registry)["user_id"]) == {"7", "12"}


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("u.csv", b"user_id\nalice\n\nbob\n", "row 2 has no user id"),
        ("u.csv", b"name,user_id\nx,alice\ny,\n", "row 2 has no user id"),
        ("u.csv", b'user_id\nalice\n"  "\n', "row 2 has no user id"),
        ("u.csv", b"name\nalice\n", "has no column 'user_id'\nhint: it has 'name'"),
        ("u.csv", b"", "cannot be read as csv"),
        ("u.csv", b"user_id\n\xff\xfe\n", "cannot be read as csv"),
        ("u.parquet", b"PAR1 not really", "cannot be read as Parquet"),
        ("u.txt", b"alice\n", "must end in one of .csv, .tsv, .parquet"),
        (
            "u.csv",
            b"name;user_id\nx;alice\n",
            "its columns are separated by semicolons, but a .csv file needs commas",
        ),
        (
            "u.csv",
            b"name\tuser_id\nx\talice\n",
            "its columns are separated by tabs, but a .csv file needs commas",
        ),
        (
            "u.tsv",
            b"name,user_id\nx,alice\n",
            "its columns are separated by commas, but a .tsv file needs tabs",
        ),
        ("u.csv", b"user_id\n" + b"x" * 257 + b"\n", "has 257 characters\nhint: 256 are allowed; no user was added"),
        ("u[1].csv", None, "u[1].csv: cannot be read"),
        ("u*.csv", None, "u*.csv: cannot be read"),
        ("u.csv", b"\x1b[2Jname\x1b]0;x\x07\nalice\n", r"it has '\x1b[2Jname\x1b]0;x\x07'"),
        ("missing.csv", None, "missing.csv: cannot be read"),
        ("missing.parquet", None, "missing.parquet: cannot be read"),
    ],
)
def test_files_that_hold_no_users_are_refused(cli, registry, tmp_path, name, data, what):
    (tmp_path / "u1.csv").write_text("user_id\nanother file's\n")  # the file that a pattern would match
    if data is not None:
        (tmp_path / name).write_bytes(data)
    done = cli("users", "add", "--file", tmp_path / name, "--registry", registry)
    assert (done.code, done.out) == (2, "")
    assert what in done.err
    assert done.err.count("\n") <= 2  # an error and a hint, whatever is in the file
    assert list_users(registry).is_empty()


def test_a_column_of_no_names_is_refused(cli, registry, tmp_path):
    pl.DataFrame({"user_id": [1.5]}).write_parquet(tmp_path / "u.parquet")
    done = cli("users", "add", "--file", tmp_path / "u.parquet", "--registry", registry)
    assert (done.code, "type Float64\nhint: text or whole numbers are needed" in done.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [("users", "add"), ("users", "add", "a", "--file", "u.csv"), ("users", "remove", "a", "--results", "results")],
)
def test_calls_that_make_no_sense_are_refused(cli, registry, arguments):
    done = cli(*arguments, "--registry", registry)
    assert done.code == 2
    assert "Usage:" in done.err


def test_an_erasure_that_died_before_it_deleted_files_is_finished_by_the_same_command(cli, registry, monkeypatch):
    cli("users", "add", "alice", "bob", "--registry", registry)

    def holding() -> int:
        files = (registry / "users").glob("*.parquet")
        return sum("alice" in pl.read_parquet(file)["user_id"] for file in files)

    erase = ("users", "remove", "alice", "--erase", "--registry", registry, "--yes")
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "vacuum", Mock(side_effect=KeyboardInterrupt))
        assert cli(*erase).code == 130
    assert "alice" not in list_users(registry)["user_id"]
    assert holding() == 2  # files of events that no table lists any more
    assert cli(*erase).code == 2  # the name is unknown by now
    assert holding() == 0


def test_erasing_reaches_results_even_for_a_name_that_only_they_hold(cli, registry, tmp_path):
    """What stays under the same name, as an account's, is counted, and erased where that is asked for."""
    results = str(tmp_path / "results")
    sign_with(results, str(registry))
    open_tables(results)
    alice = [verdict(row, user="alice", message=1) | {"account_id": "alice"} for row in range(3)]
    add(results, "t", [*alice, verdict(3, user="left", message=2)])
    cli("users", "add", "alice", "bob", "--registry", registry)
    remove = ("users", "remove", "--erase", "--results", results, "--registry", registry, "--yes")
    done = cli(*remove, "alice")
    assert done.code == 0
    assert "names erased from 3 rows of the results" in done.out
    assert "3 rows of verdicts" in done.out
    assert "--accounts" in done.out
    done = cli(*remove, "alice", "--accounts")
    assert done.code == 0
    assert "names erased from 3 rows of the results" in done.out
    assert "3 rows of verdicts" not in done.out
    assert cli(*remove, "left").code == 0
    done = cli(*remove, "typo")
    assert (done.code, "neither in the registry nor in the results" in done.err) == (2, True)
    done = cli("users", "remove", "bob", "--erase", "--results", tmp_path / "none", "--registry", registry)
    assert (done.code, "has no results" in done.err) == (2, True)
    assert dict(list_users(registry).select("user_id", "removed_at").rows())["bob"] is None


def forms(secret: bytes) -> list[str]:
    """Forms in which key bytes could leak: hex, base64, decimal numbers, Python's bytes, whole or in parts."""
    halves = [secret, secret[:8], secret[8:16], secret[-8:]]
    texts = [secret.hex(), secret.hex().upper(), repr(secret)[2:-1], base64.b64encode(secret).decode().rstrip("=")]
    texts += [
        str(list(secret))[1:-1],
        *(str(int.from_bytes(part, order)) for part in halves for order in ("big", "little")),
    ]
    return texts + [part.hex() for part in halves]


def test_no_key_byte_in_any_output_error_or_repr(cli, folder, tokenizer, monkeypatch, caplog):
    secret = random.Random(1).randbytes(32)
    monkeypatch.setenv("BRICKSCAN_TEST", secret.hex())
    new = ("keys", "new", "--registry", folder, "--tokenizer", tokenizer)
    outcomes = [
        cli(*new, "k1", "--secret", "env:BRICKSCAN_TEST"),
        cli(*new, "k2", "--secret", "env:BRICKSCAN_TEST"),
        cli(*new, "k3", "--secret", secret.hex()),
        cli(*new, "k4", "--secret", f"env:{secret.hex()}"),
        cli(*new, "k5", "--secret", f"file:{secret.hex()}"),
        cli(*new, "k6", "--secret", f"file:0x{secret.hex()}"),
    ]
    assert [done.code for done in outcomes] == [0, 2, 2, 2, 2, 2]
    for name, text, mode in (
        ("open", secret.hex(), 0o644),
        ("odd", secret.hex() + "zz", 0o600),
        ("raw", secret, 0o600),
    ):
        path = folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        outcomes.append(cli(*new, f"key-{name}", "--secret", f"file:{name}"))
        assert outcomes[-1].code == 2
    key = load_registry(folder).keys[0]
    text = [repr(key), str(key), key.model_dump_json(), repr(load_registry(folder)), repr(open_key(folder, key))]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        print(*vars(open_key(folder, key)).values())
    for edited in (
        key.model_copy(update={"parameters": {"window": 3, "gamma": "1/4"}}),
        key.model_copy(update={"secret": "file:odd"}),
    ):
        try:
            open_key(folder, edited)
        except Exception:
            text.append(traceback.format_exc())
    assert "does not fit" in text[-2]
    assert "not hexadecimal" in text[-1]
    broken = (folder / "keys.toml").read_text()
    for wrong in ('secret = "env:BRICKSCAN_TEST"', "window = 4"):
        (folder / "keys.toml").write_text(broken.replace(wrong, f'secret = "{secret.hex()}"'))
        outcomes.append(cli("keys", "list", "--registry", folder))
        assert outcomes[-1].code == 2
    (folder / "keys.toml").write_text(broken)
    outcomes.append(cli("keys", "list", "--registry", folder))
    everything = "\n".join(
        [*text, shown.getvalue(), caplog.text, *(str(done) for done in outcomes), (folder / "keys.toml").read_text()]
    )
    assert len(everything) > 3000
    for form in forms(secret):
        assert form not in everything, form


def test_in_a_process_of_its_own_the_error_is_one_line(folder):
    line = [sys.executable, "-m", "jobs.cli", "users", "list", "--registry", str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"error: registry {folder}: is not a folder\nhint: check the path; make its first key with `brickscan "
        "keys new`\n"
    )
