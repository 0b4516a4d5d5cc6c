"""How often texts may be asked about: each new text is charged to its caller, and to texts that it nearly repeats.

An identical text costs nothing, so a text that everybody asks about stays answerable. A text is a near-duplicate where
at least ALIKE of the smaller of it and an earlier text stands in the other: edited, cut and padded texts are. What is
kept of a text is a keyed digest, a keyed digest of its caller, the time, and, of the first of its near-duplicates, a
keyed sketch. All of it ends with the window.

Texts are compared with the first of their near-duplicates alone. Compared with each other, they would join unrelated
texts by chance, and whoever asks about one would use up the other's budget.
"""

import hashlib
import hmac
import math
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scanner.detection.sketches import MOST_GRAMS
from scanner.errors import InternalFault, Refused
from schemas.service import BudgetConfig

ALIKE = 0.2
"""Share of the smaller text's n-grams from which two texts are near-duplicates; tests/bench/oracle.py measures it."""

FEWEST_SHARED = 4
"""Fewest hashes that near-duplicates share."""

_TABLES = """
CREATE TABLE IF NOT EXISTS texts (digest BLOB PRIMARY KEY, caller BLOB NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS texts_of_caller ON texts (caller, at);
CREATE INDEX IF NOT EXISTS texts_by_time ON texts (at);
CREATE TABLE IF NOT EXISTS firsts (id INTEGER PRIMARY KEY, sketch BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS grams (hash INTEGER, first INTEGER, PRIMARY KEY (hash, first)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS grams_of_first ON grams (first);
CREATE TABLE IF NOT EXISTS charges (first INTEGER NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS charges_of_first ON charges (first, at);
CREATE INDEX IF NOT EXISTS charges_by_time ON charges (at);
"""


class BudgetSpent(InternalFault):
    """No new text is answered for now; seconds: until one may be, rounded up to minutes."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why)
        self.why, self.seconds = why, 60 * max(1, math.ceil(seconds / 60))


class Budget:
    """The budget of a detector; its table survives a restart. One thread uses it.

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
        self._window, self._expired = config.hours * 3600, -math.inf
        try:
            self._db = sqlite3.connect(file, check_same_thread=False)
            # a commit waits for no disk: a machine that loses power loses seconds of the budget
            self._db.executescript(
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA secure_delete=ON;" + _TABLES
            )
        except sqlite3.Error as error:
            raise Refused(f"{file}: cannot be used as the budget's table ({error}); remove it to begin anew") from None

    def close(self) -> None:
        """Close the table."""
        self._db.close()

    def digest(self, text: bytes) -> bytes:
        """Keyed digest of a text, 32 bytes."""
        return hmac.digest(self._secret, b"text\n" + text, "sha256")

    def is_free(self, digest: bytes) -> bool:
        """Whether a text was answered within the window, so that it costs nothing."""
        self._expire()
        return self._db.execute("SELECT 1 FROM texts WHERE digest = ?", (digest,)).fetchone() is not None

    def refuse_spent(self, caller: str, *, expert: bool) -> None:
        """Refuse a caller who has no new text left, before any work. Raises BudgetSpent."""
        most, name = self._config.expert_texts if expert else self._config.texts, self._caller(caller)
        used, oldest = self._db.execute("SELECT count(*), min(at) FROM texts WHERE caller = ?", (name,)).fetchone()
        if used >= most:
            raise BudgetSpent("You have asked about as many new texts as one caller may.", self._left(oldest))
        held, oldest = self._db.execute("SELECT count(*), min(at) FROM texts").fetchone()
        if held >= self._config.most_texts:
            raise BudgetSpent("This detector has been asked about as many new texts as it may.", self._left(oldest))

    def charge(self, digest: bytes, caller: str, grams: NDArray[np.uint64], *, expert: bool) -> None:
        """Charge a text to its caller and, unless an expert asks, to the texts that it nearly repeats.

        Args:
            digest: of the text.
            caller: who asks.
            grams: its keyed sketch.
            expert: whether an expert asks.

        Raises:
            BudgetSpent: it is new, and may not be answered now.
        """
        if self.is_free(digest):
            return
        self.refuse_spent(caller, expert=expert)
        now, firsts = self._clock(), [] if expert else self.near_duplicate_of(grams)
        spent = [oldest for used, oldest in map(self._charged, firsts) if used >= self._config.near_duplicates]
        if spent:
            raise BudgetSpent(
                "This text is a near-duplicate of texts that were asked about too often.", self._left(max(spent))
            )
        with self._db:
            self._db.execute("INSERT INTO texts VALUES (?, ?, ?)", (digest, self._caller(caller), now))
            if not expert:
                for first in firsts or [self._begin(grams)]:
                    self._db.execute("INSERT INTO charges VALUES (?, ?)", (first, now))

    def near_duplicate_of(self, grams: NDArray[np.uint64]) -> list[int]:
        """Numbers of the first texts whose near-duplicate a text with this sketch is."""
        hashes = grams.view(np.int64).tolist()
        rows = self._db.execute(
            f"SELECT first FROM grams WHERE hash IN ({','.join('?' * len(hashes))}) "  # noqa: S608 - marks alone
            "GROUP BY first HAVING count(*) >= ?",
            (*hashes, FEWEST_SHARED),
        ).fetchall()
        return [first for (first,) in rows if containment(grams, self._sketch(first)) >= ALIKE]

    def _sketch(self, first: int) -> NDArray[np.uint64]:
        (raw,) = self._db.execute("SELECT sketch FROM firsts WHERE id = ?", (first,)).fetchone()
        return np.frombuffer(raw, "<u8")

    def _charged(self, first: int) -> tuple[int, float]:
        """How many texts were charged to a first one, and when the oldest was."""
        row = self._db.execute("SELECT count(*), min(at) FROM charges WHERE first = ?", (first,)).fetchone()
        return row[0], row[1]

    def _begin(self, grams: NDArray[np.uint64]) -> int:
        first = self._db.execute("INSERT INTO firsts (sketch) VALUES (?)", (grams.astype("<u8").tobytes(),)).lastrowid
        hashes = grams.view(np.int64).tolist()
        self._db.executemany("INSERT INTO grams VALUES (?, ?)", [(one, first) for one in hashes])
        return int(first or 0)

    def _expire(self) -> None:
        """Delete what is older than the window, once a second; a first text stays while a near-duplicate of it does."""
        begin = self._clock() - self._window
        if begin < self._expired + 1:
            return
        self._expired = begin
        old = [row[0] for row in self._db.execute("SELECT DISTINCT first FROM charges WHERE at < ?", (begin,))]
        with self._db:
            self._db.execute("DELETE FROM texts WHERE at < ?", (begin,))
            self._db.execute("DELETE FROM charges WHERE at < ?", (begin,))
            for first in old:
                if not self._charged(first)[0]:
                    self._db.execute("DELETE FROM grams WHERE first = ?", (first,))
                    self._db.execute("DELETE FROM firsts WHERE id = ?", (first,))

    def _left(self, oldest: float) -> float:
        """Seconds until what was charged then leaves the window."""
        return oldest + self._window - self._clock()

    def _caller(self, caller: str) -> bytes:
        return hashlib.blake2b(caller.encode(), key=self._secret[:64], digest_size=16).digest()


def containment(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """Share of the smaller text's n-grams that the other holds, by two keyed sketches; 0 with few shared hashes."""
    shared = len(np.intersect1d(one, other, assume_unique=True))
    if shared < FEWEST_SHARED:
        return 0.0
    bounds = [int(each[-1]) if len(each) == MOST_GRAMS else 2**64 - 1 for each in (one, other)]
    bound = np.uint64(min(bounds))
    return shared / min(int(np.searchsorted(each, bound, "right")) for each in (one, other))
