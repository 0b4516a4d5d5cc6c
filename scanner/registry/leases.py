"""Manage leases of readers of a registry. A reader scores or marks by a state of the shown seeds (SPEC_3 §5).

    leases/NAME.json    {"events": {key id: number of the last event read} or null, "expires", "kind", "name"}

A claim shows seeds in two phases. First it writes its event. It is completed only when no reader holds a lease on an
earlier event. A reader therefore takes a lease first, then reads the events, and states which it has read. It renews
the lease every minute. If it cannot (the disk is full, the folder is gone, the clock jumped), it continues until the
lease runs out, and refuses after that.

The folder of leases can be a volume of its own. If an empty folder is mounted in its place, it looks as if there were
no readers. Each scan therefore leaves a trace when it begins, the file `.readers`. By it, a claim can tell that it
looks in the folder that scans use. Other readers leave no trace, because a program may mark on a machine with another
folder than the scans'.

Clocks differ. Whenever a reader or a claim writes, it compares its clock with the time of the written file, which comes
from the file system. The clocks of two of them therefore differ by MARGIN at most. A lease counts as over that long
after it expired.
"""

import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from scanner.errors import Refused, ScanFailed
from scanner.printable import printable
from scanner.registry.shown_seeds import EventsUnreadable, read_shown
from scanner.storage.locations import is_there, is_uri, list_files, make_private, parse_json, read_named, write_whole
from schemas.registry import MasterKey

LEASES_FOLDER = "leases"

LEASE = timedelta(minutes=10)
"""Time for which a lease is taken or renewed."""

SECONDS_TO_RENEW = 60.0

CLOCK_MAY_DIFFER = timedelta(minutes=5)
"""Largest allowed difference between a machine's clock and that of the registry's files."""

MARGIN = 2 * CLOCK_MAY_DIFFER
"""Time from the end of a lease until it counts as over."""

SCAN = "scan"
"""Kind of a reader that is a scan."""

_MOST_BYTES = 2**20
_TRACE = ".readers"
_DELETED = "somebody deleted it"


class Lease(NamedTuple):
    """A lease as its file states it.

    kind: kind of the reader: scan, detector, program or server.
    events: number of the last event that it read of each key, by id. None: it has not read them yet.
    expires: time at which the lease ends unless it is renewed.
    """

    name: str
    kind: str
    events: Mapping[str, int] | None
    expires: datetime

    def holds_before(self, key_id: str, number: int) -> bool:
        """Return whether the lease's reader may not know an event of a key."""
        return self.events is None or self.events.get(key_id, number) < number

    def __str__(self) -> str:
        """Describe the reader and the events it has read."""
        read = "is reading events now" if self.events is None else f"read events {dict(self.events)}"
        return f"{self.kind} {self.name} {read} (until {self.expires:%Y-%m-%d %H:%M} UTC at least)"


def readers_before(folder: Path | str, key_id: str, number: int) -> list[Lease]:
    """Return the leases of readers that may not know an event of a key. Delete leases that are over.

    Args:
        folder: the registry's local folder.
        key_id: id of the key.
        number: number of the event, which is already written.

    Raises:
        Refused: a lease cannot be read, or this machine's clock is wrong.
    """
    return [lease for lease in _held(folder) if lease.holds_before(key_id, number)]


def refuse_lost_reads(folder: Path | str, key: MasterKey) -> None:
    """Refuse a registry that lacks an event of a key which a reader knows.

    The next event would get the number of the lost one. A reader of the lost one would then seem to know both.

    Args:
        folder: the registry's local folder.
        key: a key of version 3.

    Raises:
        Refused: an older registry was put back. Or as `readers_before` or `read_shown`.
    """
    leases = _held(folder)
    number = read_shown(folder, key).number  # after the leases, so no reader among them knows more
    for lease in leases:
        if lease.events is not None and lease.events.get(key.key_id, 0) > number:
            raise Refused(
                f"{lease}, but the registry has {number} of key {key.key_id!r}: an older registry was restored. "
                "Restore the newest copy; or, if there is none, stop that reader"
            )


def refuse_unread(folder: Path | str, since: datetime) -> None:
    """Refuse a registry if its folder of leases shows no scan since a time at which a scan began.

    Args:
        folder: the registry's local folder.
        since: when a scan with a lease began, by the clock of its machine.

    Raises:
        Refused: the scan's lease was in another folder, so this folder does not show the readers.
    """
    path = Path(folder) / LEASES_FOLDER / _TRACE
    try:
        left_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        left_at = None
    if left_at is None or left_at < since - CLOCK_MAY_DIFFER:
        raise Refused(
            f"{path.parent}: no scan has registered here since the one of {since.astimezone(UTC):%Y-%m-%d %H:%M} UTC, "
            "so scans register in another folder, such as a volume that only they mount, and it is unknown which of "
            "them still treat shown seeds as secret. Mount the same folder here; or, once no reader is running, run "
            f"`mkdir -p {path.parent} && touch {path}`"
        )


def _held(folder: Path | str) -> list[Lease]:
    """Return all leases that are not over, and delete the others. Raises as `readers_before`."""
    leases, path = list[Lease](), Path(folder) / LEASES_FOLDER
    try:
        if not is_there(path):
            return []
        now = _now_beside(path)
        # twice, because some file systems (btrfs) leave out a file that is being replaced: no lease is replaced so soon
        for file in sorted({*list_files(path, ".json"), *list_files(path, ".json")}):
            with suppress(FileNotFoundError):  # its reader ended it at the same time
                lease = _read(file)
                if now > lease.expires + MARGIN:
                    file.unlink()
                else:
                    leases.append(lease)
    except OSError as error:
        raise Refused(f"{path}: cannot be read or written ({error.strerror}); check its permissions") from None
    return leases


def _read(file: Path) -> Lease:
    try:
        fields = parse_json(read_named(file, _MOST_BYTES))
        expires, events = datetime.fromisoformat(fields["expires"]).astimezone(UTC), fields["events"]
        numbers = [] if events is None else events.values()
        if expires > datetime.now(UTC) + LEASE + MARGIN or any(type(number) is not int for number in numbers):
            raise ValueError
        return Lease(printable(fields["name"]), printable(fields["kind"]), events, expires)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise Refused(
            f"{file}: is not a lease; delete it once no scan, detector or server reads the registry"
        ) from None


def _now_beside(folder: Path) -> datetime:
    """Return this machine's time, after comparing it with the time of a file written into a folder.

    Raises:
        Refused: they differ.
    """
    now, probe = datetime.now(UTC), folder / f".{secrets.token_hex(8)}.probe"
    try:
        probe.touch(mode=0o600)
        written = datetime.fromtimestamp(probe.stat().st_mtime, UTC)
    finally:
        probe.unlink(missing_ok=True)
    # the machine can sleep between any two lines, before or after the file was written
    if not now - CLOCK_MAY_DIFFER <= written <= datetime.now(UTC) + CLOCK_MAY_DIFFER:
        raise Refused(
            f"this machine's clock: it says {now:%Y-%m-%d %H:%M} UTC, but a file written just now has the time "
            f"{written:%Y-%m-%d %H:%M} UTC; set the clock"
        )
    return now


class HeldLease:
    """A lease that this process holds. A thread renews it until it ends.

    Args:
        folder: the registry's local folder.
        kind: kind of the reader.

    Raises:
        Refused: the registry cannot be written, or this machine's clock is wrong.
    """

    def __init__(self, folder: Path | str, kind: str) -> None:
        self._folder, self._kind = Path(folder).absolute() / LEASES_FOLDER, kind
        self._follow: weakref.WeakMethod[Callable[[], Mapping[str, int]]] | None = None
        self._begin(is_first=True)
        self._ready_in = self._pid

    def _begin(self, *, is_first: bool = False) -> None:
        self._name, self._pid = f"{self._kind}-{socket.gethostname()}-{secrets.token_hex(6)}", os.getpid()
        self._path = self._folder / f"{self._name}.json"
        self._events: Mapping[str, int] | None = None
        self._in_force: Mapping[str, int] | None = None
        # reentrant: the garbage collector may end a lease during its own renewal
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._lost, self._why_late = "", "in time"
        self._valid_until, self._expires = 0.0, datetime.now(UTC)
        begun = _seconds()
        try:
            if is_first:  # a forked process makes no folder: if the registry was moved, nobody would look into it
                make_private(self._folder)
            if self._kind == SCAN:
                write_whole(self._folder / _TRACE, lambda _: None)
            self._write(begun)
        except OSError as error:
            raise Refused(
                f"{self._folder}: cannot be written ({error.strerror}). Every process that scores or marks with "
                "keys of version 3 records there which claims it knows of: mount this folder as writable, and the "
                "same folder for all processes that read the registry"
            ) from None
        threading.Thread(target=self._renew_until_ended, name="lease", daemon=True).start()

    def read(self, events: Mapping[str, int]) -> None:
        """State the last event read of each key, by the keys' ids. Events of other keys count as unread.

        Raises:
            Refused: as for the class.
            ScanFailed: the lease has run out, for example because the machine slept.
        """
        begun = _seconds()
        with self._lock:
            try:
                if not is_there(self._path):
                    self._lost = _DELETED
                self._refuse_if_over()
                self._events = self._in_force = events
                self._write(begun)
            except OSError as error:
                raise Refused(f"{self._path}: cannot be written ({error.strerror}); mount it as writable") from None

    def follow(self, read_anew: Callable[[], Mapping[str, int]]) -> None:
        """Read new events with a method each time that the lease is renewed, and use them from then on.

        They are stated one renewal later. By then, no work that began before uses the older events. The lease ends with
        the method's object.

        read_anew: a bound method. It returns the argument of `read`. Raises Refused: the events cannot be read.
        """
        self._follow = weakref.WeakMethod(read_anew)

    @property
    def holds(self) -> bool:
        """Return whether the lease is this process's own and counts as valid everywhere."""
        in_time = _seconds() < self._valid_until and datetime.now(UTC) < self._expires
        return os.getpid() == self._pid and in_time and not self._lost and not self._ended.is_set()

    def check(self) -> None:
        """Raise if the lease does not hold. A forked process takes a lease of its own first.

        Raises:
            Refused: as for the class, in a forked process.
            ScanFailed: it does not hold. A claim may have shown seeds that this process counts as secret.
        """
        if os.getpid() != self._ready_in:
            self._take_over()
        self._refuse_if_over()

    def _take_over(self) -> None:
        """Take a lease for a forked process and read new events. Other threads of the process wait. Raises as `check`.

        If the events cannot be read, the lease is given back. Otherwise the next check would find a lease that holds,
        and the process would use the events that its parent had read.
        """
        with _READING_ANEW:
            if os.getpid() == self._ready_in:
                return
            read_anew = None if self._follow is None else self._follow()
            if read_anew is None:
                raise ScanFailed(
                    "the key was opened in another process, and this process cannot renew that lease: open the key here"
                )
            self._begin()
            try:
                self.read(read_anew())
            except BaseException:
                self.end()
                raise
            self._ready_in = self._pid

    def confirm(self) -> None:
        """Raise as `check` does, and also if the lease's file is gone. Processes that take a lease for over delete it.

        A virtual machine that was paused together with its clocks notices this in no other way.
        """
        self.check()
        with self._lock, suppress(OSError):
            if not is_there(self._path):
                self._lost = _DELETED
        self._refuse_if_over()

    def _refuse_if_over(self) -> None:
        if not self.holds:
            raise ScanFailed(
                f"{self._path}: this lease could not be renewed ({self._lost or self._why_late}), so a claim may have "
                "shown seeds since that would be scored as if they were secret; scoring has stopped. Check that the "
                "folder is writable and the clock is right, and start again"
            )

    def end(self) -> None:
        """End the lease.

        The events that were read must not be used any more. In a forked process, this does nothing.
        """
        if os.getpid() != self._pid:
            return
        self._ended.set()
        with self._lock, suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(SECONDS_TO_RENEW):
            self.renew()

    def renew(self) -> None:
        """Renew the lease, unless it does not hold any more or its file was deleted."""
        begun = _seconds()
        with self._lock:
            if not self.holds:
                return
            try:
                if not is_there(self._path):
                    self._lost = _DELETED
                    return
                if self._follow is not None:
                    read_anew = self._follow()
                    if read_anew is None:
                        self._ended.set()
                        self._path.unlink()
                        return
                    self._events, self._in_force = self._in_force, read_anew()
                self._write(begun)
                if self._ended.is_set():
                    self._path.unlink()
                self._why_late = "in time"
            # of the disk, or of the device that a reader marks on: try again in a minute, as long as the lease holds
            except EventsUnreadable as why:
                self._why_late = str(why)
            except Refused as why:
                self._lost = str(why)
            except OSError as why:
                self._why_late = why.strerror or str(why)
            except (RuntimeError, MemoryError):
                pass

    def _write(self, begun: float) -> None:
        """Write the file, unless the clock is wrong. begun: `_seconds()` before the check that the lease holds."""
        # the lease counts from that moment, because the machine can sleep between any two lines
        expires = _now_beside(self._folder) + LEASE
        fields: dict[str, Any] = {"events": self._events, "expires": expires.isoformat(), "kind": self._kind}
        content = json.dumps(fields | {"name": self._name}).encode()
        write_whole(self._path, lambda file: file.write(content))
        self._valid_until, self._expires = begun + LEASE.total_seconds(), expires


_READING_ANEW = threading.Lock()
"""Held by the thread that reads events anew for a forked process, or from a copy of the registry."""


def _release_after_fork() -> None:
    # the parent's may be held by a thread that the forked process does not have
    global _READING_ANEW
    _READING_ANEW = threading.Lock()


os.register_at_fork(after_in_child=_release_after_fork)

_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Clock of `_seconds`. macOS has only the second one, which there continues while the machine sleeps."""


def _seconds() -> float:
    """Return seconds of a clock that cannot be set, and that continues while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class NoLease:
    """A stand-in for a lease if no seeds can be shown, because the keys have none."""

    holds = True

    def read(self, events: Mapping[str, int]) -> None:
        """Do nothing."""

    def follow(self, read_anew: Callable[[], Mapping[str, int]]) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def confirm(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class CopyLease(NoLease):
    """A stand-in for a lease on a registry on another machine, which is a copy: no claim waits for its readers.

    Those that follow it read new events each minute all the same.
    """

    def __init__(self) -> None:
        self._follow: weakref.WeakMethod[Callable[[], Mapping[str, int]]] | None = None
        self._read_at = _seconds()

    def follow(self, read_anew: Callable[[], Mapping[str, int]]) -> None:
        """Read new events with a method at the first check that comes a minute after the last reading."""
        self._follow = weakref.WeakMethod(read_anew)

    def check(self) -> None:
        """Read new events if the last ones are a minute old.

        Raises:
            Refused: they cannot be read.
        """
        if self._is_old():
            with _READING_ANEW:  # one thread after the other, so that none puts back what it read earlier
                read_anew = None if self._follow is None else self._follow()
                if read_anew is not None and self._is_old():
                    now = _seconds()
                    read_anew()
                    self._read_at = now

    def _is_old(self) -> bool:
        return _seconds() - self._read_at >= SECONDS_TO_RENEW


def take_lease(folder: Path | str, kind: str, *, needed: bool) -> HeldLease | NoLease:
    """Take a lease. Call this before reading the shown seeds.

    Args:
        folder: the registry's folder, or a URI.
        kind: kind of the reader: scan, detector, program or server.
        needed: whether there is a key whose seeds can be shown.

    Raises:
        Refused: as `HeldLease`.
    """
    if not needed:
        return NoLease()
    return CopyLease() if is_uri(folder) else HeldLease(folder, kind)


@contextmanager
def leased(folder: Path | str, kind: str, *, needed: bool) -> Iterator[HeldLease | NoLease]:
    """Hold a lease, taken as by `take_lease`, for the time of a context."""
    lease = take_lease(folder, kind, needed=needed)
    try:
        yield lease
    finally:
        lease.end()
