"""What claims have shown of a key: appended, chained, and refused where it is not as it was written."""

import errno
import hashlib
import json
import multiprocessing
import os
import random
import stat
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner.errors import Refused
from scanner.registry import load_registry, new_key, shown_seeds
from scanner.registry.shown_seeds import (
    ShownEvent,
    ShownSeeds,
    ShownUpTo,
    append_event,
    event_bytes,
    event_head,
    find_events,
    read_event,
    read_shown,
    refuse_above_cap,
    shown_path,
    shown_since,
)
from scanner.storage import locations

MONTH = datetime(2026, 5, 1, tzinfo=UTC)
TEXT = "Größe und ein Name".encode()


def leaf(bucket):
    return hashlib.sha256(f"leaf {bucket}".encode()).digest()


def show(folder, text, buckets, key_id="k1"):
    return append_event(folder, key_id, text, buckets, [leaf(bucket) for bucket in buckets])


def make_seeded(folder, tokenizer, key_id="k1"):
    parameters = {"window": 4, "gamma": "1/4", "seeds": 4}
    return new_key(folder, key_id, format="greenlist-v3", messages=20, tokenizer=tokenizer, **parameters)


@pytest.fixture
def key(folder, tokenizer):
    return make_seeded(folder, tokenizer)


def lines_of(folder, key_id="k1"):
    return Path(shown_path(folder, key_id)).read_bytes().splitlines(keepends=True)


def test_nothing_is_shown_at_first(folder, key):
    shown = read_shown(folder, key)
    assert (shown.events, shown.number, shown.head, shown.leaves) == ((), 0, "0" * 64, frozenset())
    assert shown.buckets.dtype == np.int64
    assert not len(shown.buckets)


def test_a_text_has_the_events_of_all_claims_about_it(folder, key):
    events = [show(folder, text, [1]) for text in (b"another", TEXT, b"a third", TEXT)]
    assert [find_events(folder, key, text) for text in (TEXT, b"a third", b"")] == [[2, 4], [3], []]
    assert [read_event(folder, key, number) for number in (1, 2, 3, 4)] == events


def test_an_event_is_public_and_its_buckets_are_not(folder, key):
    event, salt = show(folder, TEXT, [9, 3, 12])
    line = json.loads(lines_of(folder)[0])
    assert line["buckets"] == [3, 9, 12]
    digests = hashlib.sha256(salt + TEXT).hexdigest(), line_digest(line, salt, key)
    assert event == ShownEvent(1, "0" * 64, *digests, tuple(sorted(leaf(b).hex() for b in (3, 9, 12))))
    plain = json.dumps(event._asdict(), sort_keys=True, separators=(",", ":")).encode()
    assert event_bytes(event) == plain
    assert len(salt) == 16
    shown = read_shown(folder, key)
    assert shown.buckets.tolist() == [3, 9, 12]
    assert shown.head == hashlib.sha256(plain).hexdigest()
    assert (shown.number, shown.leaves) == (1, {leaf(3), leaf(9), leaf(12)})
    assert "12" not in repr(shown).replace(shown.head, "")


def test_an_event_shows_what_is_new(folder, key):
    _, first_salt = show(folder, TEXT, [1, 2])
    other, _ = show(folder, TEXT, [2, 5])
    third, salt = show(folder, TEXT + b".", [1, 2, 5])
    assert [other.number, third.number] == [2, 3]
    assert other.leaves == (leaf(5).hex(),)
    assert third.leaves == ()
    assert salt != first_salt
    assert read_shown(folder, key).up_to(1).buckets.tolist() == [1, 2]
    assert read_shown(folder, key).up_to(0) == ShownSeeds()
    with pytest.raises(ValueError, match="there is no event 4, only 3"):
        read_shown(folder, key).up_to(4)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 2**28 - 1), max_size=6)), max_size=6))
def test_the_chain_holds_whatever_is_shown(claims):
    with tempfile.TemporaryDirectory() as above:
        folder, tokenizer = Path(above) / "registry", Path(above) / "tokenizer.json"
        tokenizer.write_text('{"model": {}}')
        key, plain, shown, head = make_seeded(folder, tokenizer), [], set(), "0" * 64
        for name, buckets in claims:
            event, salt = show(folder, str(name).encode(), sorted(buckets))
            digest = hashlib.sha256(salt + str(name).encode()).hexdigest()
            leaves = tuple(sorted(leaf(bucket).hex() for bucket in buckets - shown))
            assert event == (len(plain) + 1, head, digest, event.line, leaves)
            shown |= buckets
            raw = json.dumps(event._asdict(), sort_keys=True, separators=(",", ":")).encode()
            plain.append(event)
            head = hashlib.sha256(raw).hexdigest()
        read = read_shown(folder, key)
        assert read.events == tuple(plain)
        assert (read.buckets.tolist(), read.head) == (sorted(shown), head)


def edits(lines):
    """Yield what an editor, a crash of a lesser program or an older copy could make of a file of three lines."""
    chosen = random.Random(66)
    raw = b"".join(lines)
    for place in chosen.sample(range(len(raw)), 150):
        old = raw[place : place + 1]
        yield raw[:place] + (b"1" if old != b"1" else b"2") + raw[place + 1 :]
        yield raw[:place] + raw[place + 1 :]
    yield b""
    yield raw[:-1]
    yield raw + b"\n"
    yield raw[:-30]
    yield lines[1] + lines[2]
    yield lines[0] + lines[2]
    yield lines[1] + lines[0] + lines[2]
    yield raw + lines[2]
    for number, line in enumerate(lines):
        table = json.loads(line)
        others = [*lines]
        changes = [
            {"buckets": table["buckets"][1:]},
            {"buckets": [*table["buckets"][:-1], 15]},
            {"salt": "00" * 16},
            {"at": "2026-01-01T00:00:00Z"},
            {"text_sha256": "00" * 32},
            {"event": table["event"] | {"text": "00" * 32}},
            {"event": table["event"] | {"leaves": table["event"]["leaves"][1:]}},
            {"event": table["event"] | {"further": 1}},
            {"event": None},
            {"further": 1},
        ]
        for change in changes:
            others[number] = json.dumps(table | change, sort_keys=True, separators=(",", ":")).encode() + b"\n"
            yield b"".join(others)
        others[number] = json.dumps(table).encode() + b"\n"  # the same, and not as it is written
        yield b"".join(others)


def test_each_edit_of_a_line_is_refused(folder, key):
    for number in range(3):
        show(folder, f"text {number}".encode(), [4 * number + i for i in range(3)])
    path, lines = Path(shown_path(folder, "k1")), lines_of(folder)
    assert len(lines) == 3
    for edited in edits(lines):
        path.write_bytes(edited)
        for act in (lambda: read_shown(folder, key), lambda: show(folder, b"another", [15])):
            with pytest.raises(Refused, match=r"k1\.jsonl[^;]*; restore the file from the newest copy") as caught:
                act()
            assert str(path) in str(caught.value)
            assert "[" not in str(caught.value)  # no bucket
        assert path.read_bytes() == edited
    path.write_bytes(b"".join(lines))
    assert read_shown(folder, key).number == 3


def test_a_line_that_was_made_to_fit_is_refused_too(folder, key):
    """Whoever makes the digests anew still needs lines of events that follow each other."""
    _, salt = show(folder, TEXT, [1, 2])
    path, table = Path(shown_path(folder, "k1")), json.loads(lines_of(folder)[0])
    event = table["event"]
    for change, fault in [
        ({"buckets": [2, 1]}, "ascending order"),
        ({"buckets": [1]}, "a leaf for each bucket"),
        ({"buckets": [1, True]}, "ascending order"),
        ({"buckets": [False, 2]}, "a leaf for each bucket"),
        ({"salt": "00" * 15}, "the wrong length"),
        ({"event": event | {"number": 2}}, "do not follow"),
        ({"event": event | {"before": "1" * 64}}, "do not follow"),
        ({"event": event | {"leaves": event["leaves"][::-1]}}, "ascending order"),
        ({"event": event | {"leaves": ["00" * 31, "11" * 32]}}, "the wrong length"),
    ]:
        path.write_bytes(refit(table | change, salt, key))
        with pytest.raises(Refused, match=fault):
            read_shown(folder, key)
    path.write_bytes(refit(table, salt, key))
    assert read_shown(folder, key).number == 1


def line_digest(table, salt, key):
    event = {name: value for name, value in table["event"].items() if name != "line"}
    fields = {name: value for name, value in table.items() if name != "salt"} | {"event": event, "record": key.record}
    return hashlib.sha256(salt + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def refit(table, salt, key):
    """Return a line whose event has the digest of what the line has now."""
    line = table | {"event": table["event"] | {"line": line_digest(table, salt, key)}}
    return json.dumps(line, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def test_other_buckets_for_an_event_have_another_head(folder, key):
    """Else whoever can write the registry could let scans count shown seeds, though the head is the published one."""
    event, salt = show(folder, TEXT, [1, 2])
    path, table = Path(shown_path(folder, "k1")), json.loads(lines_of(folder)[0]) | {"buckets": [5, 6]}
    path.write_bytes(refit(table, salt, key))
    assert read_shown(folder, key).head != event_head(event)
    with pytest.raises(Refused, match="lacks event 1 of key 'k1'"):
        shown_since(folder, key, ShownUpTo(1, event_head(event)))


def test_a_file_of_another_key_is_refused(folder, key, tokenizer):
    other = make_seeded(folder, tokenizer, "k2")
    show(folder, TEXT, [1, 2])
    Path(shown_path(folder, "k2")).write_bytes(b"".join(lines_of(folder)))
    with pytest.raises(Refused, match="or belongs to another key"):
        read_shown(folder, other)


def test_what_cannot_be_is_refused(folder, key, make_key):
    make_key("old")
    with pytest.raises(Refused, match="keys of version 3 "):
        show(folder, TEXT, [1], key_id="old")
    with pytest.raises(Refused, match="'k9' is not in the registry"):
        show(folder, TEXT, [1], key_id="k9")
    show(folder, TEXT, [1])
    for buckets, leaves, fault in [
        ([2**28], [leaf(2)], "out of its range"),
        ([-1], [leaf(2)], "out of its range"),
        ([2], [b"short"], "32 bytes"),
        ([2, 3], [leaf(2), leaf(2)], "two buckets"),
        ([2, 3], [leaf(2)], "zip"),
        ([1], [leaf(2)], "from the one shown for its bucket"),
        ([2], [leaf(1)], "from the one shown for its bucket"),
    ]:
        with pytest.raises(ValueError, match=fault):
            append_event(folder, "k1", b"another", buckets, leaves)
    assert read_shown(folder, key).number == 1


def test_a_crash_leaves_whole_lines(folder, key, monkeypatch):
    show(folder, TEXT, [1])
    before = lines_of(folder)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(locations.os, "fsync", fail)
        with pytest.raises(Refused, match="cannot be written"):
            show(folder, b"second", [2])
    assert lines_of(folder) == before
    with monkeypatch.context() as patch:
        patch.setattr(locations, "sync_to_disk", fail)  # the file is in its place by now
        with pytest.raises(Refused, match="cannot be written"):
            show(folder, b"second", [2])
    after = lines_of(folder)
    assert after[0] == before[0]
    assert find_events(folder, key, b"second") == [2]  # the claim goes on with the event that is there
    assert [path.name for path in (folder / "shown").iterdir()] == ["k1.jsonl"]


def _show_some(folder, first, results):
    results.put([show(folder, b"a text", range(number, number + 3)) for number in range(first, first + 3)])


def test_claims_at_once_stand_one_after_the_other(folder, key):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_show_some, args=(folder, first, results)) for first in (0, 3, 6, 9)]
    for process in processes:
        process.start()
    told = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    shown = read_shown(folder, key)
    assert shown.number == 12
    assert {event for events in told for event, _ in events} == set(shown.events)
    assert shown.buckets.tolist() == list(range(14))
    assert load_registry(folder).keys == (key,)


@pytest.mark.parametrize("link", ["shown", "shown/k1.jsonl"])
def test_a_link_is_followed_and_one_that_leads_nowhere_is_refused(folder, key, tmp_path, link):
    """As where the volume that it leads to is not mounted: then nobody may take it that nothing was shown."""
    event, _ = show(folder, b"a text", [1, 2])
    place, volume = folder / link, tmp_path / "volume"
    place.rename(volume)
    place.symlink_to(volume)
    assert read_shown(folder, key).events == (event,)
    later, _ = show(folder, b"another text", [3])
    assert place.is_symlink()
    assert volume.is_dir() or len(volume.read_bytes().splitlines()) == 2
    assert read_shown(folder, key).events == (event, later)
    volume.rename(tmp_path / "unmounted")
    with pytest.raises(Refused, match="a link leads nowhere"):
        read_shown(folder, key)
    with pytest.raises(Refused, match="a link leads nowhere"):
        show(folder, b"a third text", [4])
    volume.mkdir()
    if link == "shown":
        assert read_shown(folder, key).number == 0  # as of a volume that is new


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o660), (0o022, 0o640), (0o077, 0o600)])
def test_the_umask_decides_what_the_group_may(folder, key, umask, mode):
    """Others may nothing. What a person set stays as it is, else a user of the group would stop after a claim."""
    path, before = Path(shown_path(folder, "k1")), os.umask(umask)
    try:
        show(folder, b"a text", [1])
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert not stat.S_IMODE(path.parent.stat().st_mode) & stat.S_IRWXO
        path.chmod(0o664)
        show(folder, b"another text", [2])
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    finally:
        os.umask(before)


@pytest.mark.parametrize("what", ["shown", "shown/k1.jsonl"])
def test_a_file_that_others_can_write_is_refused(folder, key, what):
    """They could make public seeds secret again, or delete it."""
    show(folder, b"a text", [1])
    (folder / what).chmod((folder / what).stat().st_mode | stat.S_IWOTH)
    if what == "shown":  # whoever can write the folder can put another link there
        (folder / "shown/k1.jsonl").rename(folder / "elsewhere.jsonl")
        (folder / "shown/k1.jsonl").symlink_to(folder / "elsewhere.jsonl")
    with pytest.raises(Refused, match=r"k1\.jsonl: others can write .*; remove that permission \(chmod o-w"):
        read_shown(folder, key)


def test_a_line_of_nested_values_is_refused(folder, key):
    show(folder, b"a text", [1])
    path = Path(shown_path(folder, "k1"))
    path.write_bytes(lines_of(folder)[0].replace(b'"buckets":[1]', b'"buckets":' + b"[" * 900 + b"]" * 900))
    with pytest.raises(Refused, match="restore the file"):
        read_shown(folder, key)


OWNERS = [
    ({"registry": 7}, [("shown", 7), ("file", 7)]),
    ({"keys.toml": 7}, [("shown", 7), ("file", 7)]),  # of a volume that is root's
    ({"registry": 7, "shown": 8}, [("file", 8)]),
    ({"registry": 7, "shown": 8, "k1.jsonl": 9}, [("file", 9)]),
    ({}, [("shown", -1), ("file", -1)]),
]


@pytest.mark.parametrize(("owners", "given"), OWNERS)
def test_what_root_writes_belongs_to_the_user_of_the_registry(folder, key, monkeypatch, owners, given):
    """Else every detector and server of that user would stop after a claim that was made by sudo."""
    given_to, stat = [], Path.stat
    owners = {folder.name if name == "registry" else name: owner for name, owner in owners.items()}
    if "shown" in owners:
        show(folder, b"before", [9])

    def owned(path: Path, **how: object) -> os.stat_result:
        mode, ino, dev, links, _, *others = stat(path, **how)
        return os.stat_result((mode, ino, dev, links, owners.get(path.name, 0), *others))

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(Path, "stat", owned)
    monkeypatch.setattr("os.lchown", lambda made, uid, gid: given_to.append((made.name, uid)))
    monkeypatch.setattr("os.fchown", lambda made, uid, gid: given_to.append(("file", uid)))
    show(folder, b"a text", [1])
    assert given_to == given


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.ENOSYS])
def test_what_root_writes_stays_its_own_where_the_file_system_has_no_other_owner(folder, key, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name in ("chown", "lchown", "fchown"):
        monkeypatch.setattr(f"os.{name}", refuse)
    show(folder, b"a text", [1])
    assert read_shown(folder, key).number == 1


def test_a_file_that_a_user_may_not_read_is_told_as_such(folder, key, monkeypatch):
    show(folder, b"a text", [1])

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shown_seeds, "read_named", refuse)
    with pytest.raises(Refused, match=r"cannot be read \(Permission denied\).*; let this user read it"):
        read_shown(folder, key)


def test_a_file_beyond_the_most_is_refused(folder, key, monkeypatch):
    show(folder, TEXT, [1])
    monkeypatch.setattr(shown_seeds, "MOST_BYTES", len(lines_of(folder)[0]) + 50)
    with pytest.raises(Refused, match="mark with a new key"):
        show(folder, b"second", [2])
    monkeypatch.setattr(shown_seeds, "MOST_BYTES", 50)
    with pytest.raises(Refused, match="50 are allowed"):
        read_shown(folder, key)


def test_a_month_has_as_many_events_as_it_may_have(folder, key):
    """In UTC, whatever the zone; and a clock that was put back gains none."""
    november = datetime(2026, 11, 30, 23, 59, 59, 999_999, UTC)
    december = datetime(2026, 12, 1, 3, tzinfo=timezone(timedelta(hours=3)))

    def claim(number, at, most=2):
        refuse_above_cap(folder, key, most, at)
        return append_event(folder, "k1", b"%d" % number, [number], [leaf(number)], at=at)[0]

    claim(1, november)
    claim(2, november)
    with pytest.raises(Refused, match=r"2 claims showed seeds of it in November 2026 \(UTC\), and scan.toml allows 2"):
        claim(3, november)
    refuse_above_cap(folder, key, 3, november)
    refuse_above_cap(folder, key, 2, december)
    claim(3, december)
    with pytest.raises(Refused, match=r"1 claim showed seeds of it in December 2026"):
        claim(4, november, most=1)
    claim(4, november)
    with pytest.raises(Refused, match=r"2 claims showed seeds of it in December 2026"):
        claim(5, december)
    assert [json.loads(line)["at"] for line in lines_of(folder)] == [
        *["2026-11-30T23:59:59Z"] * 2,
        *["2026-12-01T00:00:00Z"] * 2,
    ]
    with pytest.raises(Refused, match="allows 0 a month"):
        claim(6, datetime(2027, 1, 1, tzinfo=UTC), most=0)
    # what shows nothing new is written, and counts for nothing
    january = datetime(2027, 1, 2, tzinfo=UTC)
    part = append_event(folder, "k1", b"1", [1], [leaf(1)], at=january)[0]
    assert (part.number, part.leaves) == (5, ())
    claim(6, january, most=1)


def _claim_one(folder, number, known):
    try:
        append_event(folder, "k1", b"%d" % number, [number], [leaf(number)], known=known, at=MONTH)
    except Refused:
        return False
    return True


@pytest.mark.costly
def test_of_claims_that_were_computed_at_once_one_is_made(folder, key):
    """The others count its seeds only once they are computed anew; so no month has more than it may have, either."""
    known = read_shown(folder, key).last
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        done = pool.starmap(_claim_one, [(folder, number, known) for number in range(12)], chunksize=1)
    assert (sum(done), read_shown(folder, key).number) == (1, 1)
