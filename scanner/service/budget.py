"""Limit the answers to callers in a window: each text is paid for before work begins, and marked text is limited too.

There is one currency. A new text costs its caller 1, or its seconds of CPU if they are more. A text that was answered
before, or is too short, costs its seconds, and LEAST at least. Work that is killed or abandoned is therefore paid for,
and the number of requests is bounded.

A new text that contains a piece of marked text is refused if the mark of this piece was told too often, no matter which
text is around it. Marked pieces are recognised by n-grams (scanner.service.marked_grams).

Of a text, only a keyed digest is kept. Of a caller, only a keyed digest and the payments are kept. All of this is
deleted at the end of the window.
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
"""Least cost of a text. It bounds requests, lines of the log and rows of the table."""

SHARED = 16
"""Number of kept n-grams of marked text, about 128 bytes, that a text must have to contain the piece.

For a short piece, half of its own n-grams suffice.
"""

_TABLES = """
CREATE TABLE IF NOT EXISTS answered (digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS callers (caller BLOB PRIMARY KEY, paid REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS windows (ends REAL NOT NULL);
"""


def holds(matches: NDArray[np.bool_]) -> bool:
    """Return whether a text contains a piece.

    Args:
        matches: whether the piece has each of the text's n-grams, bool[G].
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
    """The caller of a request.

    name: an address, or an expert's name.
    """

    name: str
    expert: bool


class Payment(NamedTuple):
    """A payment for a text.

    seconds: estimated seconds of CPU for it.
    is_new: whether it was not answered in this window before.
    """

    caller: Caller
    digest: bytes
    seconds: float
    is_new: bool

    @property
    def amount(self) -> float:
        """Return the amount that the caller paid."""
        return max(self.seconds, 1.0 if self.is_new else LEAST)


class Outcome(NamedTuple):
    """The outcome of a text that was paid for.

    result: None: the text was not scored.
    grams: keyed n-grams of the text.
    marked: keyed n-grams of the part that carries the mark.
    """

    payment: Payment
    result: DetectorResult | None
    grams: NDArray[np.uint64]
    marked: NDArray[np.uint64]


class Budget:
    """The budget of a detector. It survives a restart.

    One thread uses it. Other threads may call `has_left`.

    Args:
        folder: folder of its table and its counts, which are made if they do not exist.
        secret: the server's secret, for all digests.
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
            # exclusive: a second server would not share this budget, and each would wait for the other's lock;
            # commits do not wait for the disk: if the machine loses power, seconds of the budget are lost
            self._db.executescript(
                "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                "PRAGMA secure_delete=ON; PRAGMA temp_store=MEMORY; BEGIN EXCLUSIVE; COMMIT;" + _TABLES
            )
            self._read()
            self.marked = MarkedGrams(folder / "budget.counts")
            self.begin_window()
        except sqlite3.OperationalError as error:
            raise Refused(
                f"{file}: cannot be used as the budget's table ({error}); each detector needs its own writable "
                "`state` folder"
            ) from None
        except (sqlite3.Error, OSError) as error:
            raise Refused(f"{file}: cannot be used as the budget's table ({error}); delete it to start over") from None

    def close(self) -> None:
        """Close the table."""
        self._db.close()

    def digest(self, text: bytes) -> bytes:
        """Compute the keyed digest of a text, 32 bytes."""
        return hmac.digest(self._secret, b"text\n" + text, "sha256")

    def has_left(self, caller: Caller) -> bool:
        """Return whether a caller may ask more. Read no table."""
        if self._paid.get(self._name(caller), 0.0) >= self._max_texts(caller):
            return False
        return self._total < self._config.most_texts or caller.expert  # other callers cannot shut experts out

    def refuse_spent(self, caller: Caller) -> None:
        """Raise BudgetSpent if the caller may ask nothing more in this window."""
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
            texts: digest of each text, and its estimated seconds of CPU.

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
        """Charge a caller for seconds of CPU beyond the estimate of a text. Raises as `pay`."""
        with self._all_or_nothing():
            self._add(caller, seconds)

    def settle(self, outcomes: Sequence[Outcome]) -> list[BudgetSpent | None]:
        """Settle the cost of texts, and give back payments that were too high.

        Returns:
            For each text, why it is not answered after all. None: it is.

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
                    return BudgetSpent("This text contains marked text that was asked about too often.", self._left())
                if outcome.result != DetectorResult.NOT_FOUND:
                    self.marked.add(outcome.marked)
                elif holds(counts > 0):
                    self.marked.add(outcome.grams[counts > 0])
            self._db.execute("INSERT INTO answered VALUES (?)", (payment.digest,))
        return None

    def begin_window(self) -> None:
        """If the window has ended, forget everything and begin a new one."""
        now = self._clock()
        if now < self._ends <= now + self._window:
            return
        begins_anew = now >= self._ends
        with self._all_or_nothing():
            if begins_anew:
                self._db.execute("DELETE FROM answered")
                self._db.execute("DELETE FROM callers")
            self._db.execute("DELETE FROM windows")  # also windows of a clock that was ahead, and longer windows
            self._db.execute("INSERT INTO windows VALUES (?)", (now + self._window,))
        if begins_anew:
            self.marked.clear()
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # the log would still contain deleted rows
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
        """Hold a transaction open. If something cannot be written, nothing is written or counted."""
        try:
            yield
            self._db.commit()
        except BaseException:
            self._db.rollback()
            self._read()
            raise

    def _read(self) -> None:
        """Read the content of the table."""
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
