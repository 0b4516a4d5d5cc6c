"""Leases of readers: who may not know an event, when one is over, and when its holder refuses to go on."""

import errno
import gc
import json
import multiprocessing
import os
import runpy
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from scanner.errors import Refused, ScanFailed
from scanner.registry import find_key, leases, load_registry
from scanner.registry.leases import (
    CLOCK_MAY_DIFFER,
    LEASE,
    MARGIN,
    CopyLease,
    HeldLease,
    NoLease,
    leased,
    readers_before,
    refuse_lost_reads,
    refuse_unread,
    take_lease,
)
from scanner.registry.shown_seeds import append_event
from tests.support.showing import make_seeded_registry


@pytest.fixture
def held(tmp_path):
    lease = HeldLease(tmp_path, "scan")
    yield lease
    lease.end()


def file_of(tmp_path):
    (file,) = (tmp_path / "leases").glob("*.json")
    return file


def expire(tmp_path, ago: timedelta):
    file = file_of(tmp_path)
    fields = json.loads(file.read_bytes()) | {"expires": (datetime.now(UTC) - ago).isoformat()}
    file.write_text(json.dumps(fields))
    return file


def test_a_reader_counts_until_it_knows_the_event(tmp_path, held):
    (lease,) = readers_before(tmp_path, "k1", 1)  # it may be reading an older file now
    assert (lease.kind, lease.events) == ("scan", None)
    assert "is reading events now" in str(lease)
    held.read({"k1": 3, "k2": 0})
    assert readers_before(tmp_path, "k1", 3) == []
    assert readers_before(tmp_path, "other", 1) == []  # a key that it does not read
    (lease,) = readers_before(tmp_path, "k1", 4)
    assert lease.events == {"k1": 3, "k2": 0}
    assert "read events {'k1': 3, 'k2': 0}" in str(lease)
    assert lease.name.startswith("scan-")
    assert datetime.now(UTC) + LEASE - lease.expires < timedelta(seconds=30)
    assert len(readers_before(tmp_path, "k2", 1)) == 1
    held.check()
    held.end()
    assert readers_before(tmp_path, "k1", 4) == []
    assert not held.holds


def test_a_dead_reader_counts_until_the_margin_is_over(tmp_path, held):
    held.read({"k1": 0})
    expire(tmp_path, MARGIN - timedelta(minutes=1))
    assert len(readers_before(tmp_path, "k1", 1)) == 1
    file = expire(tmp_path, MARGIN + timedelta(minutes=1))
    assert readers_before(tmp_path, "k1", 1) == []
    assert not file.exists()
    held.renew()  # whoever was taken for dead does not come back
    with pytest.raises(ScanFailed, match="somebody deleted it"):
        held.check()
    assert not list((tmp_path / "leases").glob("*.json"))


def test_it_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "SECONDS_TO_RENEW", 0.01)
    with leased(tmp_path, "detector", needed=True) as lease:
        first = readers_before(tmp_path, "k1", 1)[0].expires
        for _ in range(500):
            if (now := readers_before(tmp_path, "k1", 1)[0].expires) > first:
                break
            threading.Event().wait(0.01)
        assert now > first
        lease.check()
    assert list((tmp_path / "leases").iterdir()) == []


def test_who_was_taken_for_over_commits_nothing_more(tmp_path, held):
    """Also where its clocks stood still, as those of a virtual machine that was paused."""
    held.read({"k1": 0})
    held.confirm()
    file_of(tmp_path).unlink()
    held.check()
    with pytest.raises(ScanFailed, match="somebody deleted it"):
        held.confirm()
    with pytest.raises(ScanFailed, match="somebody deleted it"):
        held.check()


def fail(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("clock", ["boot", "wall"])
def test_who_cannot_renew_refuses_once_the_lease_is_over(tmp_path, held, monkeypatch, clock):
    monkeypatch.setattr(leases, "write_whole", fail)
    held.renew()
    held.check()  # the lease still holds
    if clock == "boot":
        later = leases._seconds() + LEASE.total_seconds()
        monkeypatch.setattr(leases, "_seconds", lambda: later)
    else:  # it was set forward: others count the lease as over then
        held._expires = datetime.now(UTC)
    with pytest.raises(ScanFailed, match=r"could not be renewed \(No space left on device\)"):
        held.check()
    monkeypatch.undo()
    if clock == "wall":
        held.renew()  # too late: a claim may have been made meanwhile
        assert not held.holds


def test_a_clock_that_differs_from_the_files_is_refused(tmp_path, held, monkeypatch):
    class Late(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(minutes=6)

    before = file_of(tmp_path).read_bytes()
    monkeypatch.setattr(leases, "datetime", Late)
    with pytest.raises(Refused, match="this machine's clock"):
        HeldLease(tmp_path, "scan")
    with pytest.raises(Refused, match="this machine's clock"):
        readers_before(tmp_path, "k1", 1)
    held.renew()
    monkeypatch.undo()
    with pytest.raises(ScanFailed, match="this machine's clock"):
        held.check()
    # nobody would end the lease of the one that did not begin, and claims would refuse a time so far ahead
    assert file_of(tmp_path).read_bytes() == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_machine_that_sleeps_while_a_lease_is_renewed_has_no_wrong_clock(tmp_path, held, monkeypatch, when):
    """Else a server marks nothing more until it is started again, and its log tells to set the clock."""
    slept, touch = [0], Path.touch

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(minutes=slept[0])

    def sleep(path, mode=0o666):
        touch(path, mode)
        slept[0] = 9
        if when == "before":
            os.utime(path, (Clock.now(UTC).timestamp(),) * 2)

    monkeypatch.setattr(leases, "datetime", Clock)
    monkeypatch.setattr(Path, "touch", sleep)
    held.renew()
    assert held._lost == ""


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "write_whole", fail)
    with pytest.raises(Refused, match=r"cannot be written \(No space left on device\).*mount this folder"):
        take_lease(tmp_path, "scan", needed=True)


def test_a_file_that_is_no_lease_is_refused(tmp_path, held):
    file = file_of(tmp_path)
    own = json.loads(file.read_bytes())
    contents = [
        *("", "[]", '{"events": null}', '{"events": null, "kind": "scan", "name": "a", "expires": 3}'),
        *(json.dumps(own | {"events": events}) for events in ([1], 3, {"k1": "0"}, {"k1": None}, {"k1": True})),
        *(json.dumps(own | {"expires": f"{at}+00:00"}) for at in (datetime.max.isoformat(), "2999-01-01T00:00:00")),
        *(json.dumps(own | {name: 3}) for name in ("kind", "name")),
    ]
    for content in contents:
        file.write_text(content)
        with pytest.raises(Refused, match="is not a lease; delete it once no scan, detector or server reads"):
            readers_before(tmp_path, "k1", 1)


def test_where_nothing_can_be_shown_there_is_none(tmp_path):
    for lease in (take_lease(tmp_path, "scan", needed=False), take_lease("s3://bucket/registry", "scan", needed=True)):
        assert isinstance(lease, NoLease)
        lease.read({})
        lease.check()
        assert lease.holds
        lease.end()
    assert not (tmp_path / "leases").exists()
    assert readers_before(tmp_path, "k1", 1) == []


class Reader:
    def __init__(self):
        self.number = 0

    def read_anew(self):
        return {"k1": self.number}


def test_who_reads_anew_states_it_a_renewal_later(tmp_path, held):
    reader = Reader()
    held.read(reader.read_anew())
    held.follow(reader.read_anew)
    reader.number = 5
    for stated in (0, 5, 5):
        held.renew()
        assert [dict(lease.events) for lease in readers_before(tmp_path, "k1", 9)] == [{"k1": stated}]
    del reader
    gc.collect()
    held.renew()
    assert readers_before(tmp_path, "k1", 9) == []
    assert not held.holds


def test_a_lease_that_is_over_does_not_come_to_life_again(tmp_path, monkeypatch):
    """As of a machine that sleeps between two lines: meanwhile its lease was deleted, and a claim handed out."""
    slept, seconds = [0.0], leases._seconds
    monkeypatch.setattr(leases, "_seconds", lambda: seconds() + slept[0])

    class Sleeping(Reader):
        def read_anew(self):
            slept[0] += 2 * LEASE.total_seconds()
            return super().read_anew()

    sleeping = Sleeping()
    with leased(tmp_path, "scan", needed=True) as reader, leased(tmp_path, "scan", needed=True) as renewed:
        renewed.read({"k1": 0})
        renewed.follow(sleeping.read_anew)
        renewed.renew()
        assert not renewed.holds
        with pytest.raises(ScanFailed, match=r"could not be renewed \(in time\)"):
            reader.read({"k1": 0})  # it was taken, and the events were read, before the sleep
        assert not reader.holds


def test_a_lease_that_somebody_deleted_before_events_were_stated(tmp_path, held):
    file_of(tmp_path).unlink()
    with pytest.raises(ScanFailed, match="somebody deleted it"):
        held.read({"k1": 0})
    assert not held.holds
    assert not list((tmp_path / "leases").glob("*.json"))


@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), MemoryError(), OSError(5, "Input/output error")])
def test_a_reader_that_cannot_read_anew_for_once_tries_again(tmp_path, held, error):
    """As of a device that is full, or captures a graph: else nothing more would be marked, ten minutes later."""

    class OnceFailing:
        errors, number = [error], 0

        def read_anew(self):
            if self.errors:
                raise self.errors.pop()
            return {"k1": self.number}

    reader = OnceFailing()
    held.read({"k1": 0})
    held.follow(reader.read_anew)
    reader.number = 1
    for stated in (0, 0, 1):
        held.renew()
        assert held.holds
        assert [lease.events for lease in readers_before(tmp_path, "k1", 9)] == [{"k1": stated}]


def test_a_lease_that_ends_within_its_renewal_is_over(tmp_path, held):
    """As where the collector takes its holder away meanwhile, in the thread that renews."""

    class Ending(Reader):
        def read_anew(self):
            held.end()
            return super().read_anew()

    reader = Ending()
    held.follow(reader.read_anew)
    renewing = threading.Thread(target=held.renew, daemon=True)
    renewing.start()
    renewing.join(30)
    assert not renewing.is_alive()
    assert readers_before(tmp_path, "k1", 9) == []
    assert not held.holds


def _check_in_child(lease, folder, found):
    held_before = lease.holds
    lease.check()
    found.put((held_before, [(one.name, one.events) for one in readers_before(folder, "k1", 9)]))


def test_a_process_that_was_forked_takes_a_lease_of_its_own(tmp_path, held):
    reader = Reader()
    held.read(reader.read_anew())
    held.follow(reader.read_anew)
    reader.number = 3  # the parent has not read it yet
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=_check_in_child, args=(held, tmp_path, found))
    child.start()
    held_then, leases_then = found.get(timeout=60)
    leases_then = dict(leases_then)
    assert not held_then  # by itself, the lease is the parent's
    child.join()
    assert leases_then.pop(readers_before(tmp_path, "k1", 3)[0].name) == {"k1": 0}
    assert [*leases_then.values()] == [{"k1": 3}]


def _check_three_times(lease, reader, folder, found):
    said = []
    for fails in (True, True, False):
        reader.fails = fails
        try:
            lease.check()
            said.append(reader.in_force)
        except Refused:
            said.append([one.events for one in readers_before(folder, "k1", 9)])
    found.put(said)


def _check_in_two_threads(lease, reader, folder, found):
    said = []

    def check_now():
        lease.check()
        said.append(reader.in_force)

    first, second = (threading.Thread(target=check_now, daemon=True) for _ in range(2))
    first.start()
    assert reader.begun.wait(30)
    second.start()
    second.join(0.5)  # it waits for the first one
    reader.goes_on.set()
    for thread in (first, second):
        thread.join(30)
    found.put([*said, [one.events for one in readers_before(folder, "k1", 9)]])


class SlowReader(Reader):
    """A reader whose events are read in two steps, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.fails, self.in_force = False, 0
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def read_anew(self):
        self.begun.set()
        assert self.goes_on.wait(30)
        if self.fails:
            raise Refused("shown/k1.jsonl: cannot be read (Too many open files)")
        self.in_force = self.number
        return super().read_anew()


@pytest.mark.parametrize(
    ("in_child", "says"),
    [
        (_check_three_times, [[{"k1": 0}], [{"k1": 0}], 3]),  # a lease that read nothing is given back
        (_check_in_two_threads, [3, 3, [{"k1": 0}, {"k1": 3}]]),
    ],
)
def test_a_process_that_was_forked_uses_no_events_of_its_parent(tmp_path, held, in_child, says):
    """They can be hours old, and claims that were handed out since have shown more."""
    reader = SlowReader()
    reader.goes_on.set()
    held.read(reader.read_anew())
    held.follow(reader.read_anew)
    reader.number = 3
    reader.begun.clear()
    if in_child is _check_in_two_threads:
        reader.goes_on.clear()
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=in_child, args=(held, reader, tmp_path, found))
    child.start()
    said = found.get(timeout=60)
    child.join()
    if in_child is _check_in_two_threads:
        said[-1].sort(key=lambda events: events["k1"])
    assert said == says


@pytest.mark.parametrize("change", ["another working folder", "the registry was moved"])
def test_a_process_that_was_forked_takes_no_lease_where_nobody_looks(tmp_path, monkeypatch, change):
    """No event is there either, so that all that claims have shown would count as secret."""
    registry, reader, own = tmp_path / "registry", Reader(), os.getpid()
    monkeypatch.chdir(tmp_path)
    with leased("registry", "program", needed=True) as lease:
        lease.read(reader.read_anew())
        lease.follow(reader.read_anew)
        (tmp_path / "elsewhere").mkdir()
        if change == "another working folder":
            monkeypatch.chdir("elsewhere")
        else:
            registry.rename(tmp_path / "elsewhere" / "registry")
        with monkeypatch.context() as patch:
            patch.setattr("scanner.registry.leases.os.getpid", lambda: own + 1)
            if change == "another working folder":
                lease.check()
                assert len(readers_before(registry, "k1", 1)) == 2
                assert [*(tmp_path / "elsewhere").iterdir()] == []
                lease.end()
            else:
                with pytest.raises(Refused, match="leases: cannot be written"):
                    lease.check()
                assert not registry.exists()


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_lease_that_a_listing_leaves_out_counts(tmp_path, held, monkeypatch, lacks):
    """btrfs leaves out a file that is being replaced: its old name is gone, and its new one too far behind."""
    listings, list_all = [], os.listdir

    def listdir(path):
        listings.append(path)
        return [name for name in list_all(path) if len(listings) % 2 == lacks or not name.endswith(".json")]

    monkeypatch.setattr(os, "listdir", listdir)
    assert len(readers_before(tmp_path, "k1", 1)) == 1


def test_a_folder_in_which_no_scan_began_to_read_is_not_that_of_the_scans(tmp_path):
    """Another reader's may be another: a program that marks on a machine where scans run in a container."""
    began = datetime.now(UTC)
    for kind in ("detector", "program", "server"):
        with leased(tmp_path, kind, needed=True), pytest.raises(Refused, match="no scan has registered here since"):
            refuse_unread(tmp_path, began)
    with leased(tmp_path, "scan", needed=True):
        refuse_unread(tmp_path, began)
    refuse_unread(tmp_path, began + CLOCK_MAY_DIFFER - timedelta(minutes=1))
    with pytest.raises(Refused, match=r"run `mkdir -p .* && touch .*\.readers`") as refused:
        refuse_unread(tmp_path, began + CLOCK_MAY_DIFFER + timedelta(minutes=1))
    path = Path(str(refused.value).rpartition("touch ")[2].rstrip("`"))
    os.utime(path, ((began + timedelta(minutes=6)).timestamp(),) * 2)
    refuse_unread(tmp_path, began + CLOCK_MAY_DIFFER + timedelta(minutes=1))


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_folder_of_leases_that_cannot_be_listed_is_not_empty(tmp_path, held, monkeypatch, error):
    """Path.glob takes it for one: the first error in each version of Python, all of them from 3.12 on."""

    def refuse(path: object) -> None:
        raise OSError(error, os.strerror(error))

    assert len(readers_before(tmp_path, "k1", 1)) == 1
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(Refused, match="leases: cannot be read or written"):
        readers_before(tmp_path, "k1", 1)


def test_a_machine_without_the_clock_that_goes_on_in_its_sleep_has_another(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    seconds = runpy.run_path(leases.__file__)["_seconds"]()
    assert 0 <= time.monotonic() - seconds < 60


def test_a_reader_that_knows_what_the_registry_lacks_is_told(tmp_path):
    folder = make_seeded_registry(tmp_path / "registry")
    key = find_key(load_registry(folder), "seeded")
    refuse_lost_reads(folder, key)
    with leased(folder, "scan", needed=True) as lease:
        refuse_lost_reads(folder, key)  # it has read nothing yet
        for number in (0, 1):
            lease.read({"other": 7, "seeded": number})
            if number:
                with pytest.raises(Refused, match="the registry has 0 of key 'seeded': an older registry"):
                    refuse_lost_reads(folder, key)
                append_event(folder, "seeded", b"a text", [5], [bytes(32)])
            refuse_lost_reads(folder, key)


def test_threads_that_use_a_copy_read_it_anew_one_after_the_other(monkeypatch):
    """Else one that read it earlier could put back older events after another one had read the newest."""
    inside, most, calls = [0], [0], [0]

    class Reader:
        def read_anew(self) -> dict[str, int]:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.05)
            inside[0] -= 1
            calls[0] += 1
            return {}

    reader, lease = Reader(), CopyLease()
    lease.follow(reader.read_anew)
    lease.check()
    seconds = leases._seconds
    monkeypatch.setattr(leases, "_seconds", lambda: seconds() + leases.SECONDS_TO_RENEW)
    threads = [threading.Thread(target=lease.check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, calls) == ([1], [1])
