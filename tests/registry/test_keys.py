"""Master keys: made, refused, retired, opened; the contents of keys.toml; two processes that make keys at once."""

import hashlib
import multiprocessing
import random
import re
import sys
import tomllib
from datetime import UTC, datetime, timedelta

import pytest
import tomli_w

from scanner.errors import Refused, SecretError, TokenizerError
from scanner.registry import (
    add_users,
    find_key,
    load_registry,
    new_key,
    open_key,
    registry_sha256,
    retire_key,
    tokenizer_path,
)
from scanner.registry.keys import AUDIT_SECRET, set_audit_secret
from scanner.watermark import commitment
from schemas.registry import MasterKey, Registry

HEX = random.Random(1).randbytes(24).hex()


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_new_key_is_on_record_and_opens(folder, make_key, tokenizer):
    before = datetime.now(UTC)
    key = make_key()
    assert load_registry(folder) == Registry(version=2, audit_secret=AUDIT_SECRET, keys=(key,))
    assert before <= key.created_at <= datetime.now(UTC)
    assert key.tokenizer.sha256 == hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    secret = bytes.fromhex((folder / "secrets/k1.key").read_text().strip())
    assert key.commitment == commitment(secret, "greenlist;h=4;gamma=1/4").hex()
    watermark = open_key(folder, key)
    assert (watermark.window, watermark.label) == (4, "greenlist;h=4;gamma=1/4")
    assert secret.hex() not in (folder / "keys.toml").read_text()


def test_the_audit_secret_lies_where_the_first_keys_secret_does(folder, make_key, tmp_path, monkeypatch):
    monkeypatch.setenv("BRICKSCAN_TEST", HEX)
    make_key(secret="env:BRICKSCAN_TEST")
    assert load_registry(folder).audit_secret is None
    make_key("k2", secret=f"file:{tmp_path}/elsewhere/k2")
    assert load_registry(folder).audit_secret == f"file:{tmp_path}/elsewhere/decoys.secret"
    secret = tmp_path / "elsewhere" / "decoys.secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.read_text() != (tmp_path / "elsewhere" / "k2").read_text()
    make_key("k3")
    assert load_registry(folder).audit_secret == f"file:{secret}"  # the reference stays
    assert set_audit_secret(folder) == AUDIT_SECRET == load_registry(folder).audit_secret
    with pytest.raises(Refused, match="a reference is needed") as raised:
        set_audit_secret(folder, HEX)
    assert HEX not in str(raised.value)
    (folder / "weak").touch(mode=0o600)
    (folder / "weak").write_text("ab" * 15)
    with pytest.raises(SecretError, match="15 bytes"):
        set_audit_secret(folder, "file:weak")
    assert load_registry(folder).audit_secret == AUDIT_SECRET


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, where no file can be made, whoever asks")
def test_a_key_whose_folder_takes_no_file_gets_no_audit_secret(folder, make_key, tmp_path):
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "key").write_text(HEX)
    with (tmp_path / "key").open() as held:
        make_key(secret=f"file:/proc/self/fd/{held.fileno()}")
    assert load_registry(folder).audit_secret is None


def test_an_audit_secret_that_is_there_must_be_a_good_one(folder, make_key, tmp_path):
    (tmp_path / "decoys.secret").touch(mode=0o600)
    (tmp_path / "decoys.secret").write_text("ab" * 15)
    with pytest.raises(SecretError, match="15 bytes"):
        make_key(secret=f"file:{tmp_path}/k1")


def test_both_methods_and_a_secret_of_the_environment(folder, make_key, monkeypatch):
    monkeypatch.setenv("BRICKSCAN_TEST", HEX)
    key = make_key(format="gumbel", gamma=None, window=0, messages=1, secret="env:BRICKSCAN_TEST")
    assert key.parameters == {"window": 0}
    assert open_key(folder, key).label == "gumbel;h=0"
    assert key.commitment == commitment(bytes.fromhex(HEX), "gumbel;h=0").hex()
    assert "gamma" not in (folder / "keys.toml").read_text()
    assert make_key("k2", gamma="3/8", window=16).parameters == {"gamma": "3/8", "window": 16}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"gamma": "2/8"}, "gamma = '2/8'.*lowest terms"),
        ({"gamma": "1/3"}, "gamma = '1/3'"),
        ({"gamma": "0.25"}, "gamma = '0.25'"),
        ({"gamma": "1/512"}, "gamma = '1/512'"),
        ({"gamma": "1/1"}, "gamma = '1/1'"),
        ({"gamma": None}, "gamma: is needed"),
        ({"format": "gumbel"}, "gamma = '1/4': Extra inputs are not permitted"),
        ({"format": "exp"}, "its format is unknown; allowed: greenlist, gumbel"),
        ({"window": -1}, "window = -1.*greater than or equal to 0"),
        ({"window": 17}, "window = 17.*less than or equal to 16"),
        ({"messages": 0}, "messages = 0.*greater than or equal to 1"),
        ({"messages": 2**31 + 1}, "2147483649 messages: a key of format 'greenlist' has at most 2147483648"),
        ({"messages": 2**32 + 1}, "messages = 4294967297.*less than or equal to 4294967296"),
        (
            {"format": "greenlist-v3", "messages": 65_537},
            "'greenlist-v3' without groups has at most 65536; give --users",
        ),
        ({"key_id": "../k"}, "key_id = '../k'"),
        ({"key_id": "K1"}, "key_id = 'K1': 1 to 64 small letters a to z, digits, and . _ - after the first are needed"),
        ({"tokenizer": "none.json"}, "tokenizer none.json: cannot be read .No such file"),
        ({"secret": "env:BRICKSCAN_UNSET"}, "BRICKSCAN_UNSET is not set"),
        ({"secret": "secrets/k"}, "secret: a reference is needed"),
    ],
)
def test_a_refused_key_leaves_nothing(tmp_path, folder, make_key, changes, what):
    there = files_in(tmp_path)
    with pytest.raises(Refused, match=what):
        make_key(**changes)
    assert files_in(tmp_path) == there
    make_key("first")
    there = files_in(tmp_path)
    text = (folder / "keys.toml").read_text()
    with pytest.raises(Refused, match=what):
        make_key(**changes)
    assert files_in(tmp_path) == there
    assert (folder / "keys.toml").read_text() == text


def test_an_id_in_use_is_refused_even_with_another_secret(folder, make_key, tmp_path):
    make_key()
    there = files_in(tmp_path)
    for secret in (None, "file:other.key"):
        with pytest.raises(Refused, match="'k1' is already in the registry"):
            make_key(secret=secret)
    assert files_in(tmp_path) == there


@pytest.mark.parametrize(
    "changes", [{}, {"window": 7}, {"gamma": "1/2"}, {"format": "gumbel", "gamma": None}, {"messages": 5}]
)
def test_a_secret_used_twice_is_refused_whatever_the_parameters(folder, make_key, monkeypatch, tmp_path, changes):
    make_key("other")
    make_key()
    monkeypatch.setenv("BRICKSCAN_TEST", (folder / "secrets/k1.key").read_text())
    copy = tmp_path / "copy.key"
    copy.write_text((folder / "secrets/k1.key").read_text().upper())
    copy.chmod(0o600)
    (folder / "secrets/k1.key").unlink()  # the registered secret need not be readable
    there = files_in(tmp_path)
    for secret in ("env:BRICKSCAN_TEST", f"file:{copy}"):
        with pytest.raises(Refused, match="this is the secret of key 'k1'"):
            make_key("k2", secret=secret, **changes)
    assert files_in(tmp_path) == there


def test_a_secret_that_is_there_is_used_and_one_that_is_open_is_refused(folder, make_key):
    folder.mkdir()
    path = folder / "mine.key"
    path.write_text(HEX)
    path.chmod(0o644)
    with pytest.raises(SecretError, match="0644"):
        make_key(secret="file:mine.key")
    path.chmod(0o400)
    assert (
        make_key(secret="file:mine.key").commitment == commitment(bytes.fromhex(HEX), "greenlist;h=4;gamma=1/4").hex()
    )
    assert path.read_text() == HEX


def test_a_failed_write_leaves_no_orphan_secret(folder, make_key, monkeypatch):
    make_key("first")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scanner.registry.keys_file.write_whole", full)
    with pytest.raises(OSError, match="No space"):
        make_key()
    assert not (folder / "secrets/k1.key").exists()
    assert [key.key_id for key in load_registry(folder).keys] == ["first"]


def test_another_secret_in_its_place_is_refused(folder, make_key, tokenizer):
    key, other = make_key(), make_key("k2")
    (folder / "secrets/k2.key").replace(folder / "secrets/k1.key")
    with pytest.raises(SecretError, match=r"'k1'.*does not fit the recorded commitment"):
        open_key(folder, key)
    with pytest.raises(SecretError, match="No such file"):
        open_key(folder, other)
    with pytest.raises(SecretError, match="does not fit"):
        open_key(
            folder,
            other.model_copy(update={"secret": "file:secrets/k1.key", "parameters": {"window": 5, "gamma": "1/4"}}),
        )


def test_retired_once(folder, make_key):
    make_key()
    kept = make_key("k2")
    retired = retire_key(folder, "k1")
    assert datetime.now(UTC) - retired.retired_at < timedelta(minutes=1)
    assert load_registry(folder) == Registry(version=2, audit_secret=AUDIT_SECRET, keys=(retired, kept))
    assert retire_key(folder, "k1") == retired  # a second time changes nothing
    with pytest.raises(Refused, match="'k3' is not in the registry; its keys: k1, k2"):
        retire_key(folder, "k3")
    open_key(folder, retired)


DAY = timedelta(days=1)


def test_generations_at_once(folder, make_key):
    """Four keys: ended, marking, to come, retired. All can be opened, two take users, one marks."""
    now = datetime.now(UTC)
    make_key("old", active_from=now - 9 * DAY, active_until=now - DAY)
    make_key("now", active_from=now - DAY, active_until=now + DAY)
    make_key("next", active_from=now + DAY)
    early, _, late = load_registry(folder).keys
    assert (early.marked_since(), late.marked_since()) == (now - 9 * DAY, late.created_at)
    make_key("retired")
    retire_key(folder, "retired")
    keys = load_registry(folder).keys
    assert [key.key_id for key in keys if key.marks(datetime.now(UTC))] == ["now"]
    assert [key.key_id for key in keys if key.has_ended(datetime.now(UTC))] == ["old", "retired"]
    assert [done.key_id for done in add_users(folder, None, ["alice"])] == ["now", "next"]
    for key_id in ("old", "retired"):
        with pytest.raises(Refused, match=f"'{key_id}' is retired"):
            add_users(folder, [key_id], ["alice"])
    for key in keys:
        open_key(folder, key)


def test_when_a_key_marks(make_key):
    start = datetime(2026, 12, 1, tzinfo=UTC)
    key = make_key(active_from=start, active_until=start + 9 * DAY)
    moment = timedelta(microseconds=1)
    times = [start - moment, start, start + 9 * DAY - moment, start + 9 * DAY]
    assert [key.marks(time) for time in times] == [False, True, True, False]
    assert [key.has_ended(time) for time in times] == [False, False, False, True]


def test_impossible_times_are_refused(folder, make_key):
    now = datetime.now(UTC)
    for changes, what in (
        ({"active_from": now, "active_until": now}, "active_until must be later than active_from"),
        ({"active_from": now.replace(tzinfo=None)}, "active_from.*timezone"),
    ):
        with pytest.raises(Refused, match=what):
            make_key(**changes)
    make_key(active_from=now)
    path = folder / "keys.toml"
    text = path.read_text()
    for time in (
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T00:00:00",
        "2026-11-20 00:00:00",
    ):
        for field in ("created_at", "retired_at", "active_until"):  # `keys list` ended in a traceback
            others = re.sub(f"(?m)^{field} .*\n", "", text)
            path.write_text(others.replace("\nsecret =", f"\n{field} = {time}\nsecret =", 1))
            with pytest.raises(Refused, match=rf"keys\.0\.{field}.*(1970 to 9998|timezone)"):
                load_registry(folder)
    path.write_text(text)
    path.write_text(path.read_text().replace("active_from = ", "active_until = 2020-01-01T00:00:00Z\nactive_from = "))
    with pytest.raises(Refused, match=r"keys\.0.*active_until must be later than active_from"):
        load_registry(folder)


def test_no_registry(tmp_path):
    for call in (load_registry, lambda folder: retire_key(folder, "k1")):
        with pytest.raises(Refused, match="brickscan keys new"):
            call(tmp_path / "none")
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("window = 4", "window = 40", r"keys.toml: field 'keys.0.parameters.window': .*less than or equal to 16"),
        (
            "window = 4",
            "widow = 4",
            r"field 'keys.0.parameters.widow' is unknown \(did you mean 'window'\?\); allowed: gamma, window",
        ),
        ('gamma = "1/4"', 'gamma = "2/8"', r"field 'keys.0.parameters.gamma': is not n/2\^b"),
        ("messages = 1000", "", "field 'keys.0.messages' is missing"),
        ("version = 2\n", "", "keys.toml: was made before 0.1.0;"),
        ("version = 2\n", "version = 1\n", "'version': was made before 0.1.0; .* write `version = 2`"),
        (
            "version = 2\n",
            "version = 3\n",
            "'version': 2 is the newest version that this brickscan reads; a larger one is from a newer brickscan",
        ),
        ('secret = "file:secrets/k1.key"', f'secret = "{HEX}"', "reference is needed"),
        ('secret = "file:secrets/k1.key"', f'secret = "env:{HEX}"', "reference is needed"),
        ('key_id = "k2"', 'key_id = "k1"', "keys.0 and keys.1 have the same key_id"),
        ("messages = 1000", 'messages = "1000"', "field 'keys.0.messages': .* valid integer"),
        ("window = 4", "window = true", "field 'keys.0.parameters.window': .* valid integer"),
        ('sha256 = "', 'sha256 = "x', "field 'keys.0.tokenizer.sha256': 64 digits 0 to 9 and a to f, as `sha256sum`"),
        ("[[keys]]", "[[keys", "not valid TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(folder, make_key, old, new, what):
    make_key()
    make_key("k2")
    path = folder / "keys.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(Refused, match=what) as raised:
        load_registry(folder)
    assert HEX not in str(raised.value)


@pytest.mark.parametrize("where", [*MasterKey.model_fields, "tokenizer.file", "tokenizer.sha256"])
@pytest.mark.parametrize("value", [HEX, [HEX], {"file": HEX}, {"inner": [HEX]}])
def test_a_secret_that_was_pasted_anywhere_is_not_repeated(folder, make_key, where, value):
    make_key()
    data = tomllib.loads((folder / "keys.toml").read_text())
    (key,) = data["keys"]
    *outer, field = where.split(".")
    (key[outer[0]] if outer else key)[field] = value
    (folder / "keys.toml").write_text(tomli_w.dumps({"version": 2, "keys": [key, key]}))
    with pytest.raises(Refused) as raised:
        load_registry(folder)
    assert HEX not in str(raised.value)


def test_the_digest_changes_with_the_record_only(folder, make_key):
    make_key()
    first = registry_sha256(load_registry(folder))
    path = folder / "keys.toml"
    path.write_text("# a comment\n" + path.read_text())
    assert registry_sha256(load_registry(folder)) == first
    retire_key(folder, "k1")
    assert registry_sha256(load_registry(folder)) != first


def test_the_file_is_plain_toml(folder, make_key):
    make_key()
    data = tomllib.loads((folder / "keys.toml").read_text())
    assert data["keys"][0]["secret"] == "file:secrets/k1.key"
    assert list(data) == ["version", "audit_secret", "keys"]


def test_tokenizer_paths_work_from_elsewhere(folder, make_key, tmp_path, monkeypatch):
    work = tmp_path / "shelf"
    for beside in (work, folder, folder / "inside"):
        beside.mkdir(parents=True, exist_ok=True)
        (beside / "t.json").write_text(f'{{"model": {{}}, "at": "{beside.name}"}}')
    (folder / "only-there.json").write_text('{"model": {}}')
    monkeypatch.chdir(work)
    with pytest.raises(TokenizerError, match=r"two files.*absolute"):
        make_key("two", tokenizer="t.json")
    keys = {
        "relative": make_key("relative", tokenizer="only-there.json"),
        "inside": make_key("inside", tokenizer="../registry/inside/t.json"),
        "outside": make_key("outside", tokenizer="../shelf/t.json"),
    }
    assert keys["relative"].tokenizer.file == "only-there.json"
    assert keys["inside"].tokenizer.file == "inside/t.json"
    assert keys["outside"].tokenizer.file == str(work / "t.json")
    monkeypatch.chdir(tmp_path)
    for key in keys.values():
        data = tokenizer_path(folder, find_key(load_registry(folder), key.key_id)).read_bytes()
        assert hashlib.sha256(data).hexdigest() == key.tokenizer.sha256


def test_a_tokenizer_that_is_none_is_refused(make_key, tmp_path):
    for name, text in (("text.json", "hello"), ("list.json", "[1]"), ("config.json", '{"vocab": 1}')):
        (tmp_path / name).write_text(text)
        with pytest.raises(TokenizerError, match=f"{name}: is not a tokenizer.json"):
            make_key(tokenizer=tmp_path / name)
    with pytest.raises(TokenizerError, match="Is a directory"):
        make_key(tokenizer=tmp_path)


def make_three(folder, tokenizer, name):
    for n in range(3):
        new_key(folder, f"{name}-{n}", format="gumbel", window=2, messages=10, tokenizer=tokenizer, secret=None)


@pytest.mark.costly
def test_two_makers_at_once_lose_no_key(folder, tokenizer):
    context = multiprocessing.get_context("spawn")
    makers = [context.Process(target=make_three, args=(folder, tokenizer, f"maker-{n}")) for n in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert [maker.exitcode for maker in makers] == [0] * 3
    keys = load_registry(folder).keys
    assert sorted(key.key_id for key in keys) == sorted(f"maker-{n}-{m}" for n in range(3) for m in range(3))
    assert len({key.commitment for key in keys}) == 9
    assert not list(folder.glob("*.new"))
