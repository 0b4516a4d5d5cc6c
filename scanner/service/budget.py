"""What callers may ask in a window: each pays for a text before work begins, and marked text is answered a few times.

One currency: a new text costs its caller 1, and more where it takes more than a second of CPU; a text that was answered
before, or is too short, costs the seconds that it takes, and LEAST at least. So work that is killed or abandoned is
paid for, and the number of requests is bounded.

A new text that holds text whose mark was told is refused where that was told too often, whatever stands around it. What
was marked is known by n-grams (scanner.service.marked_grams). Of a text, a keyed digest is kept; of a caller, a keyed
digest and what they paid. All of it ends with the window.
"""

import hashlib
import hmac
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.errors import InternalFault, Refused
from scanner.service.marked_grams import MarkedGrams
from schemas.service import BudgetConfig, DetectorResult

LEAST = 0.1
"""What a text costs at least, which bounds requests, lines of the log and rows of the table."""

SHARED = 16
"""Kept n-grams of marked text that make a text hold it: 128 bytes or so; of a short one, half of its own."""

_TABLES = """
CREATE TABLE IF NOT EXISTS answered (digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS callers (caller BLOB PRIMARY KEY, paid REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS windows (ends REAL NOT NULL);
"""


def holds(matches: NDArray[np.bool_]) -> bool:
    """Return whether a text holds a piece.

    Args:
        matches: which of the text's n-grams the piece has, bool[G].
    """
    return int(np.count_nonzero(matches)) >= min(SHARED, max(1, len(matches) // 2))


class BudgetSpent(InternalFault):
    """A text is not answered for now.

    seconds: time until the window ends, rounded up to minutes.
    """

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why)
        self.why, self.seconds = why, 60 * max(1, math.ceil(seconds / 60))


class Caller(NamedTuple):
    """Who asks.

    name: an address, or an expert's name.
    """

    name: str
    expert: bool


class Payment(NamedTuple):
    """What was paid for a text.

    seconds: seconds of CPU that it was to take.
    is_new: whether it was not answered in this window before.
    """

    caller: Caller
    digest: bytes
    seconds: float
    is_new: bool

    @property
    def amount(self) -> float:
        """What the caller paid."""
        return max(self.seconds, 1.0 if self.is_new else LEAST)


class Outcome(NamedTuple):
    """What came of a text that was paid for.

    result: None where it was not looked at.
    grams: keyed n-grams of the text.
    marked: keyed n-grams of the part that carries the mark.
    """

    payment: Payment
    result: DetectorResult | None
    grams: NDArray[np.uint64]
    marked: NDArray[np.uint64]


class Budget:
    """The budget of a detector, which survives a restart.

    One thread uses it. Others may call `has_left`.

    Args:
        folder: of its table and its counts, which are made where there are none.
        secret: the server's, under which everything is digested.
        config: limits.
        clock: seconds since 1970.

    Raises:
        Refused: the files cannot be used.
    """

    def __init__(
        self, folder: Path, secret: bytes, config: BudgetConfig, clock: Callable[[], float] = time.time
    ) -> None:
        self._secret, self._config, self._clock, self._window = secret, config, clock, config.hours * 3600
        file = folder / "budget.sqlite"
        try:
            self._db = sqlite3.connect(file, timeout=1, check_same_thread=False)
            # exclusive: a second server would share no budget with this one, and each would wait for the other's lock;
            # a commit waits for no disk: a machine that loses power loses seconds of the budget
            self._db.executescript(
                "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                "PRAGMA secure_delete=ON; PRAGMA temp_store=MEMORY; BEGIN EXCLUSIVE; COMMIT;" + _TABLES
            )
            self._read()
            self.marked = MarkedGrams(folder / "budget.counts")
            self.begin_window()
        except sqlite3.OperationalError as error:
            raise Refused(
                f"{file}: cannot be used as the budget's table ({error}); each detector needs a `state` of its own, "
                "which it can write"
            ) from None
        except (sqlite3.Error, OSError) as error:
            raise Refused(f"{file}: cannot be used as the budget's table ({error}); remove it to begin anew") from None

    def close(self) -> None:
        """Close the table."""
        self._db.close()

    def digest(self, text: bytes) -> bytes:
        """Compute the keyed digest of a text, 32 bytes."""
        return hmac.digest(self._secret, b"text\n" + text, "sha256")

    def has_left(self, caller: Caller) -> bool:
        """Return whether a caller may ask on. Reads no table."""
        if self._paid.get(self._name(caller), 0.0) >= self._max_texts(caller):
            return False
        return self._total < self._config.most_texts or caller.expert  # whom no crowd can shut out

    def refuse_spent(self, caller: Caller) -> None:
        """Raise BudgetSpent where the caller may ask nothing more in this window."""
        if not self.has_left(caller):
            caller_spent = self._paid.get(self._name(caller), 0.0) >= self._max_texts(caller)
            subject = (
                "You have asked as much as one caller" if caller_spent else "This detector has been asked as much as it"
            )
            raise BudgetSpent(f"{subject} may.", self._left())

    def pay(self, caller: Caller, texts: Sequence[tuple[bytes, float]]) -> list[Payment | BudgetSpent]:
        """Charge a caller for texts before any work.

        Args:
            caller: the caller.
            texts: digest of each text, and the seconds of CPU that it is to take.

        Raises:
            sqlite3.Error: the table cannot be written. Nothing is paid.
        """
        self.begin_window()
        payments = list[Payment | BudgetSpent]()
        with self._all_or_nothing():
            for digest, seconds in texts:
                try:
                    self.refuse_spent(caller)
                except BudgetSpent as spent:
                    payments.append(spent)
                    continue
                payments.append(payment := Payment(caller, digest, seconds, not self._is_answered(digest)))
                self._add(caller, payment.amount)
        return payments

    def pay_more(self, caller: Caller, seconds: float) -> None:
        """Charge a caller for seconds of CPU beyond those that a text was to take. Raises as `pay`."""
        with self._all_or_nothing():
            self._add(caller, seconds)

    def settle(self, outcomes: Sequence[Outcome]) -> list[BudgetSpent | None]:
        """Settle what texts cost, and give back what was paid too much.

        Returns:
            Why a text is not answered after all; None where it is.

        Raises:
            sqlite3.Error: the table cannot be written. None of them is settled.
        """
        with self._all_or_nothing():
            return [self._settle(outcome) for outcome in outcomes]

    def _settle(self, outcome: Outcome) -> BudgetSpent | None:
        payment = outcome.payment
        if outcome.result in (None, DetectorResult.TOO_SHORT):
            seconds = payment.seconds if outcome.result else 0.0
            self._add(payment.caller, max(seconds, LEAST) - payment.amount)
        elif not self._is_answered(payment.digest):
            if not payment.caller.expert:
                counts = self.marked.counts(outcome.grams)
                if holds(counts >= self._config.near_duplicates):
                    return BudgetSpent("This text holds marked text that was asked about too often.", self._left())
                if outcome.result != DetectorResult.NOT_FOUND:
                    self.marked.add(outcome.marked)
                elif holds(counts > 0):
                    self.marked.add(outcome.grams[counts > 0])
            self._db.execute("INSERT INTO answered VALUES (?)", (payment.digest,))
        return None

    def begin_window(self) -> None:
        """Forget everything where the window has ended, so that a new one begins."""
        now = self._clock()
        if now < self._ends <= now + self._window:
            return
        begins_anew = now >= self._ends
        with self._all_or_nothing():
            if begins_anew:
                self._db.execute("DELETE FROM answered")
                self._db.execute("DELETE FROM callers")
            self._db.execute("DELETE FROM windows")  # of a clock that was ahead, too, or of longer windows
            self._db.execute("INSERT INTO windows VALUES (?)", (now + self._window,))
        if begins_anew:
            self.marked.clear()
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # in which deleted rows would stand on
        self._read()

    def _is_answered(self, digest: bytes) -> bool:
        """Return whether a text was answered in this window."""
        return self._db.execute("SELECT 1 FROM answered WHERE digest = ?", (digest,)).fetchone() is not None

    def _add(self, caller: Caller, amount: float) -> None:
        name = self._name(caller)
        self._paid[name] = self._paid.get(name, 0.0) + amount
        self._total += amount
        self._db.execute("INSERT OR REPLACE INTO callers VALUES (?, ?)", (name, self._paid[name]))

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Hold a transaction open: where something cannot be written, nothing is, nor counted."""
        try:
            yield
            self._db.commit()
        except BaseException:
            self._db.rollback()
            self._read()
            raise

    def _read(self) -> None:
        """Read what the table has."""
        self._paid = dict[bytes, float](self._db.execute("SELECT caller, paid FROM callers"))
        self._total = sum(self._paid.values())
        self._ends = float((self._db.execute("SELECT ends FROM windows").fetchone() or (-math.inf,))[0])

    def _max_texts(self, caller: Caller) -> int:
        return self._config.expert_texts if caller.expert else self._config.texts

    def _left(self) -> float:
        """Return the seconds until the window ends."""
        return self._ends - self._clock()

    def _name(self, caller: Caller) -> bytes:
        group = b"expert" if caller.expert else b"anybody"  # no address is an expert's name
        return hashlib.blake2b(caller.name.encode(), key=self._secret[:64], digest_size=16, person=group).digest()
