"""How often texts may be asked about: each new text is charged to its caller, and to texts that it nearly repeats.

An identical text costs nothing, so a text that everybody asks about stays answerable. A text is a near-duplicate where
at least ALIKE of the smaller of a passage of it and a passage of an earlier text stands in the other: edited, cut and
padded texts are. What is kept of a text is a keyed digest, a keyed digest of its caller, the time, and, of passages
that are the first of their near-duplicates, a keyed sketch. All of it ends with the window.

Passages are compared with the first of their near-duplicates alone. Compared with each other, they would join unrelated
texts by chance, and whoever asks about one would use up the other's budget.
"""

import hashlib
import hmac
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.errors import InternalFault, Refused
from scanner.service.passages import PassageIndex, compile_index, containments
from schemas.service import BudgetConfig

ALIKE = 0.2
"""Share of the smaller passage's n-grams from which two are near-duplicates; tests/bench/oracle.py measures it."""

_PASSAGES = 8
"""Passages that cost a caller as much as a short text: else three long texts, each a quarter of every one of a thousand
others, would use up what these are answered.
"""

_COMPARED = 32
"""Most first passages that a passage is compared with: those that share most of these hashes."""

SECONDS_BETWEEN_CHECKPOINTS = 10.0
"""Longest time that what was deleted stands in SQLite's log of writes; a checkpoint waits for the disk."""

_PAGES_OF_LOG = 8000
"""Pages of 4 KiB after which SQLite's log is taken over: one text in hundreds waits for the disk then."""

_SKETCHES = 32_768
"""Most keyed sketches of first passages that are held in memory, of 1 KiB each."""

_TABLES = """
CREATE TABLE IF NOT EXISTS texts (digest BLOB PRIMARY KEY, caller BLOB NOT NULL, at REAL NOT NULL,
    cost INTEGER NOT NULL DEFAULT 1) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS texts_of_caller ON texts (caller, at);
CREATE INDEX IF NOT EXISTS texts_by_time ON texts (at);
CREATE TABLE IF NOT EXISTS firsts (id INTEGER PRIMARY KEY, sketch BLOB NOT NULL);
DROP TABLE IF EXISTS grams;
DROP TABLE IF EXISTS hashes;
CREATE TABLE IF NOT EXISTS charges (first INTEGER NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS charges_of_first ON charges (first, at);
CREATE INDEX IF NOT EXISTS charges_by_time ON charges (at);
"""


class BudgetSpent(InternalFault):
    """No new text is answered for now; seconds: until one may be, rounded up to minutes."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why)
        self.why, self.seconds = why, 60 * max(1, math.ceil(seconds / 60))


class Charge(NamedTuple):
    """A text to be charged. passages: its keyed sketches; expert: whether an expert asks."""

    digest: bytes
    caller: str
    passages: Sequence[NDArray[np.uint64]]
    expert: bool


class Budget:
    """The budget of a detector; its table survives a restart. One thread uses it; `has_left` may be called by others.

    Args:
        file: the table's file, made where there is none.
        secret: the server's, under which everything is digested.
        config: limits.
        clock: seconds since 1970.

    Raises:
        Refused: the file cannot be used.
    """

    def __init__(self, file: Path, secret: bytes, config: BudgetConfig, clock: Callable[[], float] = time.time) -> None:
        self._secret, self._config, self._clock = secret, config, clock
        self._window, self._expired, self._emptied, self._deleted = config.hours * 3600, -math.inf, -math.inf, False
        self._index, self._sketches = PassageIndex(), dict[int, NDArray[np.uint64]]()
        # first passages that the transaction under way began, and those that it ended, with their keyed sketches
        self._begun, self._ended = list[int](), dict[int, NDArray[np.uint64]]()
        compile_index()
        try:
            self._db = sqlite3.connect(file, timeout=1, check_same_thread=False)
            # exclusive: a second server would share no budget with this one, and each would wait for the other's lock;
            # a commit waits for no disk: a machine that loses power loses seconds of the budget
            self._db.executescript(
                "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                "PRAGMA secure_delete=ON; PRAGMA temp_store=MEMORY; BEGIN EXCLUSIVE; COMMIT;"
                f"PRAGMA wal_autocheckpoint={_PAGES_OF_LOG};" + _TABLES
            )
            if "cost" not in [name for _, name, *_ in self._db.execute("PRAGMA table_info(texts)")]:  # an older table
                self._db.execute("ALTER TABLE texts ADD COLUMN cost INTEGER NOT NULL DEFAULT 1")
            self._count()
            for first, sketch in self._db.execute("SELECT id, sketch FROM firsts"):
                self._index.add(first, np.frombuffer(sketch, "<u8"))
        except sqlite3.OperationalError as error:
            raise Refused(
                f"{file}: cannot be used as the budget's table ({error}); each detector needs a `state` of its own, "
                "which it can write"
            ) from None
        except sqlite3.Error as error:
            raise Refused(f"{file}: cannot be used as the budget's table ({error}); remove it to begin anew") from None

    def close(self) -> None:
        """Close the table."""
        self._db.close()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A transaction: where something cannot be written, nothing is, nor counted or indexed."""
        self._begun.clear()
        self._ended.clear()
        try:
            yield
            self._db.commit()
        except BaseException:
            self._db.rollback()
            for first in self._begun:
                self._index.remove(first)
                self._sketches.pop(first, None)  # its number may be another's
            for first, grams in self._ended.items():
                self._index.add(first, grams)
            self._count()
            raise

    def digest(self, text: bytes) -> bytes:
        """Keyed digest of a text, 32 bytes."""
        return hmac.digest(self._secret, b"text\n" + text, "sha256")

    def is_free(self, digest: bytes) -> bool:
        """Whether a text was answered within the window, so that it costs nothing."""
        return self._db.execute("SELECT 1 FROM texts WHERE digest = ?", (digest,)).fetchone() is not None

    def has_left(self, caller: str, *, expert: bool) -> bool:
        """Whether a caller may ask about a new text. Reads no table."""
        if self._texts[self._caller(caller, expert)] >= self._most(expert):
            return False
        return self._total < self._config.most_texts or expert  # whom no crowd can shut out

    def refusals(self, digests: Sequence[bytes], caller: str, *, expert: bool) -> list[BudgetSpent | None]:
        """Why a caller's texts are not even looked at; None: they are."""
        self.expire()
        free = [self.is_free(digest) for digest in digests]
        return [None if each else _refusal(self._refuse_spent, caller, expert) for each in free]

    def _refuse_spent(self, caller: str, expert: bool) -> None:
        if self.has_left(caller, expert=expert):
            return
        name = self._caller(caller, expert)
        if self._texts[name] >= self._most(expert):
            (oldest,) = self._db.execute("SELECT min(at) FROM texts WHERE caller = ?", (name,)).fetchone()
            raise BudgetSpent("You have asked about as many new texts as one caller may.", self._left(oldest))
        (oldest,) = self._db.execute("SELECT min(at) FROM texts").fetchone()
        raise BudgetSpent("This detector has been asked about as many new texts as it may.", self._left(oldest))

    def _most(self, expert: bool) -> int:
        return self._config.expert_texts if expert else self._config.texts

    def charge(self, charges: Sequence[Charge]) -> list[BudgetSpent | None]:
        """Charge texts, each to its caller and, unless an expert asks, to the texts that it nearly repeats.

        Returns why a text is not answered now, and None where it is: then it was charged, or costs nothing.

        Raises:
            sqlite3.Error: the table cannot be written; none of them is charged.
        """
        self.expire()
        with self._all_or_nothing():
            return [_refusal(self._charge, *each) for each in charges]

    def _charge(self, digest: bytes, caller: str, passages: Sequence[NDArray[np.uint64]], expert: bool) -> None:
        if self.is_free(digest):
            return
        self._refuse_spent(caller, expert)
        now, firsts = self._clock(), [] if expert else [self.near_duplicates_of(passage) for passage in passages]
        charged = {first for found in firsts for first in found}
        spent = [oldest for used, oldest in map(self._charged, charged) if used >= self._config.near_duplicates]
        if spent:
            raise BudgetSpent(
                "This text is a near-duplicate of texts that were asked about too often.", self._left(max(spent))
            )
        name = self._caller(caller, expert)
        cost = 1 if expert else max(1, math.ceil(len(passages) / _PASSAGES))
        self._db.execute("INSERT INTO texts VALUES (?, ?, ?, ?)", (digest, name, now, cost))
        self._texts[name] += cost
        self._total += cost
        if not expert:
            charged |= {self._begin(passage) for passage, found in zip(passages, firsts, strict=True) if not found}
        self._db.executemany("INSERT INTO charges VALUES (?, ?)", [(first, now) for first in charged])

    def near_duplicates_of(self, grams: NDArray[np.uint64]) -> list[int]:
        """Numbers of the first passages whose near-duplicate a passage with this keyed sketch is."""
        numbers = self._index.most_alike(grams, _COMPARED)
        if not numbers:
            return []
        sketches = [self._sketch_of(first) for first in numbers]
        found = containments(grams, np.concatenate(sketches), np.array([len(sketch) for sketch in sketches]))
        return [first for first, share in zip(numbers, found.tolist(), strict=True) if share >= ALIKE]

    def _sketch_of(self, first: int) -> NDArray[np.uint64]:
        """Keyed sketch of a first passage: SQLite takes most of a charge to read what a text is compared with."""
        if first not in self._sketches:
            (raw,) = self._db.execute("SELECT sketch FROM firsts WHERE id = ?", (first,)).fetchone()
            if len(self._sketches) >= _SKETCHES:
                self._sketches.clear()
            self._sketches[first] = np.frombuffer(raw, "<u8")
        return self._sketches[first]

    def _charged(self, first: int) -> tuple[int, float]:
        """How many texts were charged to a first one, and when the oldest was."""
        row = self._db.execute("SELECT count(*), min(at) FROM charges WHERE first = ?", (first,)).fetchone()
        return row[0], row[1]

    def _begin(self, grams: NDArray[np.uint64]) -> int:
        first = self._db.execute("INSERT INTO firsts (sketch) VALUES (?)", (grams.astype("<u8").tobytes(),)).lastrowid
        self._begun.append(first := int(first or 0))
        self._index.add(first, grams)
        return first

    def expire(self) -> None:
        """Delete what is older than the window, once a second; a first passage stays while a near-duplicate of it does.

        What a clock dated that was ahead is of now, so that it ends with the window, too.
        """
        now = self._clock()
        if abs(now - self._expired) < 1:
            return
        self._expired, begin = now, now - self._window
        with self._all_or_nothing():
            for table in ("texts", "charges"):
                self._db.execute(f"UPDATE {table} SET at = ? WHERE at > ?", (now, now))  # noqa: S608 - two names
            callers = self._db.execute("SELECT caller, sum(cost) FROM texts WHERE at < ? GROUP BY caller", (begin,))
            self._forget(dict(callers.fetchall()))
            charges = "SELECT first FROM charges WHERE at < ? GROUP BY first"
            old = [first for (first,) in self._db.execute(charges, (begin,))]
            for table in ("texts", "charges"):
                self._deleted |= self._db.execute(f"DELETE FROM {table} WHERE at < ?", (begin,)).rowcount > 0  # noqa: S608
            for first in old:
                if not self._charged(first)[0]:
                    self._end(first)
        if self._deleted and abs(now - self._emptied) >= SECONDS_BETWEEN_CHECKPOINTS:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # in which deleted rows would stand on
            self._deleted, self._emptied = False, now

    def _forget(self, texts: Mapping[bytes, int]) -> None:
        """Take costs of texts by caller off the counts: counting what is left would take longer the more there are."""
        for caller, count in texts.items():
            self._texts[caller] -= count
            if not self._texts[caller]:
                del self._texts[caller]
        self._total -= sum(texts.values())

    def _end(self, first: int) -> None:
        self._ended[first] = self._sketch_of(first)
        self._index.remove(first)
        self._db.execute("DELETE FROM firsts WHERE id = ?", (first,))
        del self._sketches[first]  # its number may be another's

    def _count(self) -> None:
        """Count what texts cost by caller, and in all, as the table has them now."""
        self._texts = Counter(dict(self._db.execute("SELECT caller, sum(cost) FROM texts GROUP BY caller")))
        self._total = self._texts.total()

    def _left(self, oldest: float) -> float:
        """Seconds until what was charged then leaves the window."""
        return oldest + self._window - self._clock()

    def _caller(self, caller: str, expert: bool) -> bytes:
        of_class = b"expert" if expert else b"anybody"  # no address is an expert's name
        return hashlib.blake2b(caller.encode(), key=self._secret[:64], digest_size=16, person=of_class).digest()


def _refusal(refuse: Callable[..., None], *arguments: Any) -> BudgetSpent | None:  # noqa: ANN401
    try:
        refuse(*arguments)
    except BudgetSpent as spent:
        return spent
    return None
