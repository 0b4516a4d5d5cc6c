"""Public records of keys of version 3: made with the key, edited, lost, and their beacons' values set once."""

import errno
import hashlib
import json
import multiprocessing
import os
import random
import stat
import tomllib

import pytest
import tomli_w

from scanner.error_shares import ErrorShares, looks_beyond_record
from scanner.errors import Refused
from scanner.looks.normalising import normal_form_sha256
from scanner.registry import add_users, key_records, load_registry, make_canaries, new_key, open_key, registry_sha256
from scanner.registry.key_records import (
    RecordTerms,
    parse_record,
    read_record,
    read_tree,
    record_bytes,
    record_path,
    set_beacon,
    tree_path,
)
from scanner.registry.keys_file import write_registry
from scanner.scan_plan import keys_under_test, make_plan
from scanner.watermark.formats import format_of
from scanner.watermark.native.claim import claimed_positions, score_claim
from scanner.watermark.native.tree import beacon_of, root_by, show_seeds
from scanner.watermark.positions import batch_tokens
from schemas.key_record import KeyRecord, NamedBeacon, NormalFormDigest, parse_label
from tests import reference3

BEACON = RecordTerms(
    {"as written/1": 0.5, "parts/1": 0.5},
    NormalFormDigest(name="form/1", sha256="ab" * 32),
    NamedBeacon(source="https://beacon.example/öffentlich", round="4711"),
)
VALUE = bytes(range(200, 232))
FIELDS = {
    *("version", "label", "root", "commitment", "tokenizer_sha256", "messages"),
    *("normal_form", "looks", "beacon", "earlier"),
}


@pytest.fixture
def make(folder, tokenizer):
    def make(key_id="k1", **changes):
        values = {"format": "greenlist-v3", "window": 4, "gamma": "1/4", "seeds": 4, "messages": 20}
        values = {name: value for name, value in {**values, **changes}.items() if value is not None}
        return new_key(folder, key_id, tokenizer=tokenizer, **values)

    return make


def secret_of(folder, key_id="k1"):
    return bytes.fromhex((folder / f"secrets/{key_id}.key").read_text().strip())


def plain_root(secret, label, seeds):
    key = reference3.seed_key(secret, label)
    level = [hashlib.sha256(b"\0" + reference3.seed_of(key, bucket)).digest() for bucket in range(2**seeds)]
    while len(level) > 1:
        level = [hashlib.sha256(b"\1" + level[i] + level[i + 1]).digest() for i in range(0, len(level), 2)]
    return level[0]


def plain_r(record, value):
    return hashlib.sha256(b"brickscan-beacon-v3" + hashlib.sha256(record).digest() + value).hexdigest()


def edit(folder, **changes):
    """Change fields of the only key in keys.toml, as somebody with an editor would; None takes one out."""
    table = tomllib.loads((folder / "keys.toml").read_text())
    for name, value in changes.items():
        of = table["keys"][0]["parameters"] if name == "beacon" else table["keys"][0]
        of.pop(name, None)
        if value is not None:
            of[name] = value
    (folder / "keys.toml").write_text(tomli_w.dumps(table))


def test_a_key_has_a_record_of_what_was_fixed_with_it(folder, make, tokenizer):
    told = []
    key = make(terms=BEACON, watch=lambda done, of: told.append((done, of)))
    raw = record_path(folder, "k1").read_bytes()
    label = "greenlist-v3;h=4;gamma=1/4;seeds=4"
    assert json.loads(raw) == {
        "version": 3,
        "label": label,
        "root": plain_root(secret_of(folder), label, 4).hex(),
        "commitment": reference3.commitment(secret_of(folder), label).hex(),
        "tokenizer_sha256": hashlib.sha256(tokenizer.read_bytes()).hexdigest(),
        "messages": 20,
        "normal_form": {"name": "form/1", "sha256": "ab" * 32},
        "looks": {"as written/1": 0.5, "parts/1": 0.5},
        "beacon": {"source": "https://beacon.example/öffentlich", "round": "4711"},
        "earlier": [],
    }
    assert set(json.loads(raw)) == FIELDS == set(KeyRecord.model_fields)
    assert raw == json.dumps(json.loads(raw), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert key.record == hashlib.sha256(raw).hexdigest()
    assert told[-1] == (16, 16)
    assert load_registry(folder).keys == (key,)
    assert read_record(folder, key) == (parse_record(raw), raw)
    assert b"".join(read_tree(folder, key)) == tree_path(folder, "k1").read_bytes()
    for file in folder.rglob("*"):  # the secret is in no file but its own
        if file.is_file() and file.parent.name != "secrets":
            assert secret_of(folder) not in file.read_bytes()
            assert secret_of(folder).hex().encode() not in file.read_bytes()


def test_without_a_beacon_r_follows_at_once(folder, make):
    key = make()
    raw = record_path(folder, "k1").read_bytes()
    assert json.loads(raw)["beacon"] is None
    assert key.parameters["beacon"] == plain_r(raw, b"")
    assert (key.beacon_value, len(read_tree(folder, key))) == (None, 16)
    assert open_key(folder, key).label == "greenlist-v3;h=4;gamma=1/4;seeds=4"
    with pytest.raises(Refused, match="its record names no beacon, so it cannot have a value"):
        set_beacon(folder, "k1", VALUE)
    assert load_registry(folder).keys == (key,)


def test_a_key_with_a_beacon_opens_once_its_value_is_set(folder, make):
    key = make(terms=BEACON)
    assert "beacon" not in key.parameters
    with pytest.raises(Exception, match="not set yet"):
        open_key(folder, key)
    before = registry_sha256(load_registry(folder))
    key = set_beacon(folder, "k1", VALUE)
    assert key.beacon_value == VALUE.hex()
    assert key.parameters["beacon"] == plain_r(record_path(folder, "k1").read_bytes(), VALUE)
    assert load_registry(folder).keys == (key,)
    assert registry_sha256(load_registry(folder)) != before
    open_key(folder, key)
    assert set_beacon(folder, "k1", VALUE) == key  # again: nothing changes
    for other in (VALUE[:-1], VALUE + b"\0", bytes(32)):
        with pytest.raises(Refused, match=f"a different value, {VALUE.hex()}"):
            set_beacon(folder, "k1", other)
    assert load_registry(folder).keys == (key,)


@pytest.mark.parametrize(("size", "refused"), [(0, True), (1, False), (4096, False), (4097, True)])
def test_sizes_of_a_value(folder, make, size, refused):
    make(terms=BEACON)
    if refused:
        with pytest.raises(Refused, match=f"{size} bytes; 1 to 4,096 are allowed"):
            set_beacon(folder, "k1", bytes(size))
    else:
        set_beacon(folder, "k1", bytes(size))
    assert (load_registry(folder).keys[0].beacon_value is None) == refused


def test_keys_of_other_versions_have_no_record(folder, make, make_key):
    key = make_key()
    assert (key.record, key.beacon_value) == (None, None)
    assert not (folder / "records").exists()
    for call in (lambda: set_beacon(folder, "k1", VALUE), lambda: read_tree(folder, key)):
        with pytest.raises(Refused, match="has no public record"):
            call()
    edit(folder, record="00" * 32)
    with pytest.raises(Refused, match="record and beacon_value are only for formats with seeds"):
        load_registry(folder)


def test_each_record_names_all_before_it_and_no_two_share_a_root(folder, make):
    keys = [make(name, terms=BEACON, window=window) for name, window in (("a", 4), ("b", 3), ("c", 4))]
    assert [read_record(folder, key)[0].earlier for key in keys] == [
        (),
        (keys[0].record,),
        (keys[0].record, keys[1].record),
    ]
    assert len({read_record(folder, key)[0].root for key in keys}) == 3
    with pytest.raises(Refused, match="two keys with the same secret"):
        make("d", secret="file:secrets/a.key")
    assert not record_path(folder, "d").exists()
    assert not tree_path(folder, "d").exists()


def test_r_is_never_given(folder, make):
    with pytest.raises(Refused, match="is computed from"):
        make(beacon="00" * 32)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (RecordTerms({}), "looks"),
        (RecordTerms({"a/1": 0.6, "b/1": 0.6}), "more than 1"),
        (RecordTerms({"a/1": 0.0}), "looks"),
    ],
)
def test_terms_that_cannot_be_leave_nothing_behind(folder, make, terms, message):
    with pytest.raises(Refused, match=message):
        make(terms=terms)
    assert not list(folder.rglob("k1*"))


@pytest.mark.parametrize("place", [0, 100, -2])
def test_an_edited_record_is_seen(folder, make, place):
    key = make(terms=BEACON)
    path = record_path(folder, "k1")
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    for call in (
        lambda: read_record(folder, key),
        lambda: read_tree(folder, key),
        lambda: set_beacon(folder, "k1", VALUE),
    ):
        with pytest.raises(Refused, match="is not the record that was made with key 'k1'"):
            call()
    assert load_registry(folder).keys == (key,)
    path.unlink()
    with pytest.raises(Refused, match="restore the record from where it was published"):
        set_beacon(folder, "k1", VALUE)


def test_a_record_of_other_messages_or_another_tokenizer_is_refused(folder, make):
    key = make()
    grown, _ = read_record(folder, key.model_copy(update={"messages": 21}))  # without groups they may grow
    assert grown.messages == 20
    other = key.tokenizer.model_copy(update={"sha256": "00" * 32})
    for changes in ({"messages": 19}, {"commitment": "00" * 32}, {"tokenizer": other}):
        with pytest.raises(Refused, match=r"differ from the record; restore keys\.toml"):
            read_record(folder, key.model_copy(update=changes))


@pytest.mark.parametrize("name", ["greenlist-v3", "gumbel-v3"])
@pytest.mark.parametrize("groups", [None, 5])
def test_a_claim_of_a_key_scores_as_the_key_does(folder, make, name, groups):
    """Where nothing was shown before, seeds with their paths give the score that the opened key gives."""
    gamma = {"gamma": "1/4" if name == "greenlist-v3" else None}
    size = {"messages": 25, "groups": groups} if groups else {"messages": 25}
    made = make(terms=BEACON, format=name, seeds=6, **gamma, **size)
    key = set_beacon(folder, made.key_id, VALUE)
    record, raw = read_record(folder, key)
    draw = random.Random(1)
    ids = [draw.randrange(50) for _ in range(80)]
    needed = claimed_positions(ids, record.label).buckets.tolist()
    shown = show_seeds(format_of(key).seed_key(secret_of(folder)), 6, read_tree(folder, key), needed)
    assert {root_by(one).hex() for one in shown} == {record.root}
    claim = score_claim(ids, 17, record.label, beacon_of(raw, VALUE), {one.bucket: one.seed for one in shown})
    mark, tokens = open_key(folder, key), batch_tokens([ids])
    positions = mark.rule.positions(tokens, "ngram")
    assert claim.scored == len(positions.index)
    assert claim.score == pytest.approx(mark.score(tokens, positions, 17)[0], rel=1e-9)
    group_score = mark.parts(tokens, positions, 17)[0][0] if groups else 0
    assert claim.score_user == pytest.approx(claim.score - group_score, rel=1e-9)
    assert len(claim.shows) == len(shown)


@pytest.mark.parametrize("length", [0, 1, 511, 513, 512])
def test_a_tree_that_was_changed_is_seen(folder, make, length):
    key = make()
    path = tree_path(folder, "k1")
    raw = path.read_bytes()
    path.write_bytes((raw + raw)[:length] if length != 512 else raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(Refused, match=r"does not lead to the root of the record|cannot be read"):
        read_tree(folder, key)


@pytest.mark.parametrize(
    "changes",
    [
        {"beacon": "00" * 32},
        {"beacon": None},
        {"beacon_value": None},
        {"beacon_value": "00"},
        {"record": "00" * 32},
        {"record": None},
    ],
)
def test_what_r_follows_from_cannot_be_edited_by_itself(folder, make, changes):
    make(terms=BEACON)
    set_beacon(folder, "k1", VALUE)
    edit(folder, **changes)
    with pytest.raises(Refused, match=r"does not follow from record and beacon_value|has no record"):
        load_registry(folder)


@pytest.mark.parametrize("value", ["0", "0g", "AB", "", "00" * 4097])
def test_a_value_that_is_no_hexadecimal_text_is_refused_in_keys_toml(folder, make, value):
    make(terms=BEACON)
    edit(folder, beacon_value=value)
    with pytest.raises(Refused, match="beacon_value"):
        load_registry(folder)


def test_an_older_keys_toml_that_was_put_back_takes_no_other_value(folder, make):
    make(terms=BEACON)
    older = (folder / "keys.toml").read_bytes()
    key = set_beacon(folder, "k1", VALUE)
    (folder / "keys.toml").write_bytes(older)
    with pytest.raises(Refused, match=f"a different value, {VALUE.hex()}"):
        set_beacon(folder, "k1", bytes(32))
    assert set_beacon(folder, "k1", VALUE) == key


def test_a_crash_before_keys_toml_leaves_a_key_to_make_again(folder, make, monkeypatch):
    """The process dies after the record is written: the same command then makes the same key."""

    class Dead(BaseException):
        pass

    def die(*_):
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr("scanner.registry.keys.write_registry", die)
        patch.setattr("scanner.registry.keys.delete_record", lambda *_: None)  # the dead delete nothing
        patch.setattr("pathlib.Path.unlink", lambda *_, **__: None)
        with pytest.raises(Dead):
            make(terms=BEACON)
    left = record_path(folder, "k1").read_bytes()
    assert not (folder / "keys.toml").exists()
    key = make(terms=BEACON)
    assert record_path(folder, "k1").read_bytes() == left
    assert set_beacon(folder, "k1", VALUE).record == key.record


def test_a_crash_before_keys_toml_leaves_a_value_to_set_again(folder, make, monkeypatch):
    make(terms=BEACON)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("scanner.registry.keys_file.write_registry", die)
        with pytest.raises(KeyboardInterrupt):
            set_beacon(folder, "k1", VALUE)
    assert load_registry(folder).keys[0].beacon_value is None
    assert set_beacon(folder, "k1", VALUE).beacon_value == VALUE.hex()


def test_an_interrupt_once_keys_toml_is_written_deletes_nothing(folder, make, monkeypatch):
    def write_and_die(folder, registry):
        write_registry(folder, registry)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("scanner.registry.keys.write_registry", write_and_die)
        with pytest.raises(KeyboardInterrupt):
            make()
    (key,) = load_registry(folder).keys
    open_key(folder, key)
    read_tree(folder, key)


def test_a_record_is_never_written_over(folder, make):
    """An older keys.toml was put back, without k2: its record, which may be published, stays, and is named later."""
    first = make(terms=BEACON)
    older = (folder / "keys.toml").read_bytes()
    gone = make("k2", terms=BEACON)
    set_beacon(folder, "k2", VALUE)
    files = {path: path.read_bytes() for path in folder.rglob("k2*")}
    assert len(files) == 4
    (folder / "keys.toml").write_bytes(older)
    for changes in (
        {"terms": key_records.ONE_LOOK},
        {"window": 3},
        {"terms": BEACON, "secret": "file:secrets/new.key"},
    ):
        with pytest.raises(Refused, match="is the record of another key with this id"):
            make("k2", **changes)
        assert {path: path.read_bytes() for path in folder.rglob("k2*")} == files
    assert not (folder / "secrets/new.key").exists()
    third = make("k3", terms=BEACON)
    assert read_record(folder, third)[0].earlier == (first.record, gone.record)


def test_records_that_cannot_be_listed_are_not_none(folder, make, monkeypatch):
    """Else p would be corrected for too few keys, and a root could be used once more."""
    make()
    found = os.listdir

    def refuse(path="."):
        if os.fspath(path).endswith("records"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return found(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(Refused, match="records: cannot be read"):
        make("k2")


def test_no_two_records_share_a_root_whatever_became_of_the_first_key(folder, make):
    """An older keys.toml was put back, and what claims showed of the key would count as secret under another id."""
    make()
    older = (folder / "keys.toml").read_bytes()
    make("k2")
    (folder / "keys.toml").write_bytes(older)
    with pytest.raises(Refused, match=r"k2\.json: is the record of a key with the same secret and format"):
        make("k3", secret="file:secrets/k2.key")
    assert not record_path(folder, "k3").exists()
    assert [key.key_id for key in load_registry(folder).keys] == ["k1"]
    make("k3")


def test_the_same_key_is_made_again_from_its_secret_after_a_restore(folder, make):
    make(terms=BEACON)
    older = (folder / "keys.toml").read_bytes()
    made = make("k2", terms=BEACON)
    set_beacon(folder, "k2", VALUE)
    (folder / "keys.toml").write_bytes(older)
    again = make("k2", terms=BEACON)
    assert again.record == made.record
    with pytest.raises(Refused, match="a different value"):
        set_beacon(folder, "k2", bytes(32))
    assert set_beacon(folder, "k2", VALUE).beacon_value == VALUE.hex()


def set_it(folder, value, start, outcomes):
    start.wait()
    try:
        set_beacon(folder, "k1", bytes([value]) * 32)
        outcomes.put(value)
    except Refused:
        outcomes.put(None)


@pytest.mark.costly
def test_of_processes_that_set_different_values_one_does(folder, make):
    make(terms=BEACON)
    context = multiprocessing.get_context("spawn")
    start, outcomes = context.Barrier(3), context.Queue()
    workers = [context.Process(target=set_it, args=(folder, value, start, outcomes)) for value in (1, 2, 3)]
    for worker in workers:
        worker.start()
    found = [outcomes.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    (value,) = [one for one in found if one is not None]
    assert load_registry(folder).keys[0].beacon_value == (bytes([value]) * 32).hex()


@pytest.mark.parametrize("name", ["write_whole", "make_private"])
def test_a_registry_that_cannot_be_written_is_refused_in_words(folder, make, monkeypatch, name):
    def fail(*_):
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(key_records, name, fail)
    with pytest.raises(Refused, match=r"cannot be written .*Read-only file system"):
        make(terms=BEACON)
    assert not list(folder.rglob("k1*"))
    monkeypatch.undo()
    make(terms=BEACON)
    monkeypatch.setattr(key_records, "write_whole", fail)
    with pytest.raises(Refused, match=r"k1.value: cannot be written .*Read-only file system"):
        set_beacon(folder, "k1", VALUE)
    assert load_registry(folder).keys[0].beacon_value is None


def test_others_cannot_read_or_change_records(folder, make):
    before = os.umask(0o022)
    try:
        make(terms=BEACON)
        set_beacon(folder, "k1", VALUE)
    finally:
        os.umask(before)
    for name in ("records", "trees"):
        assert (folder / name).stat().st_mode & (stat.S_IRWXO | stat.S_IWGRP) == 0


GOOD = {
    "version": 3,
    "label": "gumbel-v3;h=4;groups=31;seeds=24",
    "root": "01" * 32,
    "commitment": "02" * 32,
    "tokenizer_sha256": "03" * 32,
    "messages": 961,
    "normal_form": None,
    "looks": {"as written/1": 1.0},
    "beacon": None,
    "earlier": [],
}


def as_json(**changes):
    return json.dumps({name: value for name, value in (GOOD | changes).items() if value is not ...}).encode()


def test_a_record_is_read_as_it_was_written():
    record = parse_record(as_json())
    assert record_bytes(record) == record_bytes(parse_record(record_bytes(record)))
    assert b'"as written/1":1}' in record_bytes(record)
    assert parse_record(as_json(looks={"a/1": 1})).looks == {"a/1": 1.0}
    assert parse_record(as_json(looks={f"{i}/1": 0.1 for i in range(10)})).messages == 961
    assert parse_record(as_json(label="gumbel-v3;h=0;seeds=4", messages=65_536)).messages == 65_536


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (as_json(version=2), "version"),
        (as_json(version=3.0), "version"),
        (as_json(version="3"), "version"),
        (as_json(version=True), "version"),
        (as_json(root=...), "field 'root' is missing"),
        (as_json(more=1), "field 'more' is unknown"),
        (as_json(beacon={"source": "s", "round": "r", "value": "v"}), "unknown"),
        (as_json(beacon={"source": "s"}), "round"),
        (as_json(beacon={"source": "s", "round": ""}), "round"),
        (as_json(root="01" * 31), "root"),
        (as_json(root="AB" * 32), "root"),
        (as_json(messages=960), "exactly 961"),
        (as_json(messages=961.0), "messages"),
        (as_json(messages=True), "messages"),
        (as_json(label="gumbel-v3;h=4;seeds=24", messages=65_537), "at most 65536"),
        (as_json(label="gumbel-v2;h=4;groups=31"), "not a label of version 3"),
        (as_json(looks={}), "looks"),
        (as_json(looks={"a": 0.7, "b": 0.4}), "more than 1"),
        (as_json(looks={"a": -0.1}), "looks"),
        (as_json(looks={"a": "1"}), "looks"),
        (as_json(looks={f"{i}": 0.001 for i in range(101)}), "looks"),
        (as_json(earlier=["00" * 32, "00" * 32]), "twice"),
        (as_json(earlier=["00"]), "earlier"),
        (as_json(earlier="00" * 32), "earlier"),
        (as_json().replace(b'"looks"', b'"root": "00", "looks"'), "the name 'root' occurs twice"),
        (as_json().replace(b'"as written/1": 1.0', b'"a": 0.1, "a": 0.2'), "the name 'a' occurs twice"),
        (as_json().replace(b"1.0", b"NaN"), "NaN is not a JSON number"),
        (as_json().replace(b"1.0", b"Infinity"), "Infinity is not a JSON number"),
        (as_json().replace(b"as written", b"\xff"), "is no UTF-8"),
        (as_json().replace(b"as written", b"\\ud800"), "looks"),
        (as_json()[:-1], "is not JSON"),
        (as_json() + b"{}", "is not JSON"),
        (b"\xef\xbb\xbf" + as_json(), "is not JSON"),
        (b"[]", "as a whole"),
        (b"null", "as a whole"),
        (b"", "is not JSON"),
        (b"[" * 100_000, "too deeply"),
        (b" " * (2**23 + 1), "bytes; 8,388,608 are allowed"),
    ],
    ids=range(38),
)
def test_a_record_of_another_form_is_refused(raw, message):
    with pytest.raises(ValueError, match=message):
        parse_record(raw)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("greenlist-v3;h=4;gamma=1/4;seeds=24", ("greenlist", 4, "1/4", None, 24)),
        ("greenlist-v3;h=4;gamma=1/4;groups=1026;seeds=24", ("greenlist", 4, "1/4", 1026, 24)),
        ("gumbel-v3;h=16;groups=65536;seeds=28", ("gumbel", 16, None, 65_536, 28)),
        ("gumbel-v3;h=0;seeds=4", ("gumbel", 0, None, None, 4)),
    ],
)
def test_labels_are_read(text, parts):
    label = parse_label(text)
    gamma = None if label.gamma is None else f"{label.gamma.numerator}/{label.gamma.denominator}"
    assert (label.method, label.window, gamma, label.groups, label.seeds) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gumbel-v3;h=4",
        "gumbel-v3;h=4;seeds=024",
        "gumbel-v3;h=04;seeds=24",
        "gumbel-v3;h=17;seeds=24",
        "gumbel-v3;h=4;seeds=3",
        "gumbel-v3;h=4;seeds=29",
        "gumbel-v3;h=4;gamma=1/4;seeds=24",
        "greenlist-v3;h=4;seeds=24",
        "greenlist-v3;h=4;gamma=2/4;seeds=24",
        "greenlist-v3;h=4;gamma=1/512;seeds=24",
        "gumbel-v3;h=0;groups=31;seeds=24",
        "gumbel-v3;h=4;groups=1;seeds=24",
        "gumbel-v3;h=4;groups=65537;seeds=24",
        "gumbel-v3;h=4;groups=031;seeds=24",
        "gumbel-v3;h=4;groups=３;seeds=24",
        "gumbel-v3;h=4;seeds=24\n",
        "gumbel-log-v3;h=4;seeds=24",
    ],
)
def test_other_labels_are_refused(text):
    with pytest.raises(ValueError, match=r"label of version 3|allowed|gamma|n/2\^b"):
        parse_label(text)


def test_a_key_that_waits_for_its_beacon_neither_marks_nor_is_scanned(folder, make):
    waiting = make(terms=BEACON)
    with pytest.raises(Refused, match=r"key 'k1' of registry .* waits for the beacon"):
        keys_under_test(load_registry(folder), str(folder), None)
    other = make("k2")
    assert keys_under_test(load_registry(folder), str(folder), None) == (other,)
    with pytest.raises(Refused, match="waits for the beacon"):
        keys_under_test(load_registry(folder), str(folder), ["k1", "k2"])
    assert keys_under_test(load_registry(folder), str(folder), ["k2"]) == (other,)
    now = other.created_at
    assert (waiting.waits_for_beacon, waiting.marks(now), other.marks(now)) == (True, False, True)
    key = set_beacon(folder, "k1", VALUE)
    assert (key.waits_for_beacon, key.marks(now)) == (False, True)
    assert keys_under_test(load_registry(folder), str(folder), None) == (key, other)


def test_users_get_messages_once_the_value_is_set(folder, make):
    make(terms=BEACON)
    with pytest.raises(Refused, match="key 'k1' waits for the beacon"):
        add_users(folder, None, ["alice"])
    make("k2")
    assert [given.key_id for given in add_users(folder, None, ["alice"])] == ["k2"]
    assert {canary.key_id for canary in make_canaries(folder, None, 2, 0.9).made} == {"k2"}
    for call in (lambda: add_users(folder, ["k1"], ["bob"]), lambda: make_canaries(folder, ["k1"], 2, 0.9)):
        with pytest.raises(Refused, match="key 'k1' waits for the beacon"):
            call()
    set_beacon(folder, "k1", VALUE)
    given = {given.key_id: given.added for given in add_users(folder, None, ["alice"])}
    assert given == {"k1": 1, "k2": 0}


def test_commands_make_a_key_and_set_its_beacon(folder, tokenizer, cli):
    new = ("keys", "new", "k1", "--registry", folder, "--tokenizer", tokenizer, "--seeds", 4)
    made = cli(*new, "--users", 100, "--beacon-source", "drand", "--beacon-round", "77")
    assert made.code == 0, made.err
    assert made.err == ""
    key = load_registry(folder).keys[0]
    record = parse_record(record_path(folder, "k1").read_bytes())
    assert record.label == "greenlist-v3;h=4;gamma=1/4;groups=11;seeds=4"
    assert record.looks == {"as written/1": 0.25, "normalised/1": 0.25, "parts/1": 0.5}
    assert record.normal_form == NormalFormDigest(name="brickscan normal form/1", sha256=normal_form_sha256())
    assert f"record      {record_path(folder, 'k1')}, SHA-256 {key.record}" in made.out
    assert "round 77 of drand: nothing is marked or scanned until `brickscan keys beacon k1` sets it" in made.out
    assert f"Publish {record_path(folder, 'k1')} today, byte for byte" in made.out
    assert "time-stamping authority" in made.out
    listed = cli("keys", "list", "--registry", folder).out
    assert f"record {key.record}" in listed
    assert "waits for the beacon" in listed
    for value in ("abc", "0x12", "", "zz", "ab cd"):
        refused = cli("keys", "beacon", "k1", "--registry", folder, "--value", value)
        assert (refused.code, "an even number of digits" in refused.err) == (2, True)
    for said in ("is set, for good", "was set before; nothing changed"):
        done = cli("keys", "beacon", "k1", "--registry", folder, "--value", VALUE.hex().upper())
        assert done.code == 0
        assert done.out.startswith(f"k1: the beacon's value {said}. R is ")
    listed = cli("keys", "list", "--registry", folder).out
    assert "waits" not in listed
    assert load_registry(folder).keys[0].parameters["beacon"] not in listed
    assert cli("keys", "beacon", "k1", "--registry", folder, "--value", "00").code == 2
    without = cli("keys", "new", "k2", *new[3:])
    assert "beacon      none, so others should trust only p-values below 1e-24" in without.out
    assert "names no beacon" in cli("keys", "beacon", "k2", "--registry", folder, "--value", "00").err


def test_options_of_version_3_are_for_version_3(folder, tokenizer, cli):
    new = ("keys", "new", "k1", "--registry", folder, "--tokenizer", tokenizer)
    for options in (("--seeds", 8), ("--beacon-source", "a", "--beacon-round", "b"), ("--looks", tokenizer)):
        refused = cli(*new, "--version", 1, *options)
        assert (refused.code, "are of --version 3" in refused.err) == (2, True)
    alone = cli(*new, "--beacon-source", "a")
    assert (alone.code, "go together" in alone.err) == (2, True)
    empty = cli(*new, "--seeds", 4, "--beacon-source", "", "--beacon-round", "b")
    assert (empty.code, "source" in empty.err) == (2, True)
    assert cli(*new, "--seeds", 29).code == 2
    assert not folder.exists()


def test_shares_of_a_configuration_go_on_record(folder, tokenizer, cli, tmp_path):
    config = tmp_path / "scan.toml"
    config.write_text(
        'version = 2\nregistry = "registry"\nresults = "results"\nfalse_positive_rate = 1e-6\n[input]\npaths = ["in"]\n'
        "[variants]\nnormalised = false\n"
    )
    new = ("keys", "new", "k1", "--registry", folder, "--tokenizer", tokenizer, "--seeds", 4)
    made = cli(*new, "--looks", config)
    assert made.code == 0, made.err
    record, _ = read_record(folder, load_registry(folder).keys[0])
    assert (record.looks, record.normal_form) == ({"as written/1": 1.0}, None)


def test_a_scan_says_what_its_looks_have_beyond_a_record(folder, tokenizer, cli, tmp_path):
    scan = (
        'version = 2\nregistry = "registry"\nresults = "results"\nfalse_positive_rate = 1e-6\n[input]\npaths = ["in"]\n'
    )
    config, of_record = tmp_path / "scan.toml", tmp_path / "record.toml"
    of_record.write_text(scan + "[variants]\nnormalised = false\n")
    new = ("keys", "new", "k1", "--registry", folder, "--tokenizer", tokenizer, "--seeds", 4)
    assert cli(*new, "--looks", of_record).code == 0
    scans = {
        "": [],
        "[variants]\nnormalised = false\n[spans]\nwindows = true\n": ["lacks the look 'parts/1'"],
        "[variants]\nnormalised = true\n": ["lacks the look 'normalised/1'"],
    }
    for tables, expected in scans.items():
        config.write_text(scan + tables)
        cautions = [caution for caution in make_plan(config).cautions if "public record" in caution]
        assert len(cautions) == len(expected)
        for caution, part in zip(cautions, expected, strict=True):
            assert caution.startswith("key k1: ")
            assert part in caution
    record = {"as written/1": 0.25, "parts/1": 0.5}
    alone = looks_beyond_record(record, ErrorShares(document=0.5, span=0.5, account=0.0))
    assert alone == [
        "the public record gives the look 'as written/1' 0.25 of the rate, and this scan 0.5: a claim follows the "
        "record, so its p is 2 times the p of the scan"
    ]
    assert looks_beyond_record(record, ErrorShares(document=0.2, span=0.2, account=0.6)) == []
    record_path(folder, "k1").unlink()
    assert "cannot be read" in " ".join(make_plan(config).cautions)
