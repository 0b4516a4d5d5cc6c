"""Define the interface of a control: its work on workers, and its part when a scan is judged.

A control counts events of known chance and judges the counts. It is a folder of this package and a line of
scanner.controls.controls.CONTROLS. No other file names it.

Workers import controls too. So a control imports polars and tables only inside `count`, `judge` and `conclude`, which
only the driver calls. Otherwise these imports would cost each worker half a second and some 50 MiB.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.attribution import BatchOrigin, KeyPositions, ScoreObserver
from scanner.detection.detector import Detector
from scanner.scan_plan import Plan
from scanner.watermark import Watermark
from schemas.words import AuditState

if TYPE_CHECKING:
    import polars as pl

    from scanner.audit.statistics.audit_rows import Audit, Row
    from scanner.controls.traffic import Traffic
    from scanner.detection.rows import TextIds


class Subject(StrEnum):
    """The texts that an observer is shown, with the positions that each key scores in them."""

    TEXTS = "texts"  # texts as they are
    LEVELS = "levels"  # texts in which a model weighs the tokens
    ACCOUNTS = "accounts"  # all posts of an account as one text
    REHEARSAL = "rehearsal"  # two texts that compile kernels and are not counted


class Observer(ScoreObserver, Protocol):
    """An object that is shown the scores of a worker, and counts."""

    def rows(self) -> list[pa.RecordBatch]:
        """Return the counts so far as rows of AUDIT_COUNTS."""


class DecidedAccounts(NamedTuple):
    """Decisions on A accounts, each by all of its posts.

    account_ids, digests: names of the accounts, and their SHA-256.
    key_ids: the keys that give the decisions.
    message: int64[A], the best message. −1 where no key scored the account.
    log10_p: float64[A], corrected. NaN where there is none.
    flagged: bool[A].
    scored: int64[A] for each key id.
    """

    account_ids: Sequence[str]
    digests: Sequence[bytes]
    key_ids: Sequence[str]
    message: NDArray[np.int64]
    log10_p: NDArray[np.float64]
    flagged: NDArray[np.bool_]
    scored: Mapping[str, NDArray[np.int64]]


class DecidesAccounts(Protocol):
    """An object that decides on accounts by all of their posts, as the look at accounts does."""

    def decide_under(
        self, marks: Mapping[str, Watermark], scores: Sequence[KeyPositions], accounts: NDArray[np.int64], rate: float
    ) -> NDArray[np.float64]:
        """Decide on accounts under other marks in place of the keys. Corrections stay those of the keys.

        Args:
            marks: a mark for each key id. Other keys are left out.
            scores: scores of all accounts, as an observer is shown them.
            accounts: int64[A], places of the accounts.
            rate: false-positive rate and misnaming rate.

        Returns:
            float64[A], log10 p of each decision. NaN where no key scored the account.
        """


class OpenControl(Protocol):
    """A control opened in a worker, with the secrets that it needs."""

    def observers(
        self,
        subject: Subject,
        origin: BatchOrigin,
        piece: str,
        detector: Detector | None,
        accounts: DecidesAccounts | None,
    ) -> Sequence[Observer]:
        """Return the observers of a piece of work. Empty if the control counts nothing of this subject.

        Args:
            subject: the texts that the observers will be shown.
            origin: the origin of the piece, as in each of its rows.
            piece: name of the piece. A piece that is done again has the same name, and the same draws.
            detector: decides on whole texts. None for accounts.
            accounts: decides on whole accounts. None for texts.
        """


class ScanRows(NamedTuple):
    """Rows of a scan's shards, from whichever run committed them.

    verdicts: rows of VERDICTS on traffic, without texts of canaries.
    every_verdict: rows of VERDICTS, with texts of canaries.
    counts: rows of AUDIT_COUNTS.
    earlier: ids of shards that hold the same rows, committed by scans under other keys.
    whole: whether these are all shards that the configuration names.
    """

    verdicts: "pl.LazyFrame"
    every_verdict: "pl.LazyFrame"
    counts: "pl.LazyFrame"
    earlier: Collection[str]
    whole: bool


class JudgedScan(NamedTuple):
    """A scan after all controls were judged.

    audit: the run, with the error of one family.
    rows: rows of all controls.
    """

    plan: Plan
    audit: "Audit"
    traffic: "Traffic"
    rows: "Sequence[Row]"
    law_holds: bool


class Conclusion(NamedTuple):
    """The conclusion of a control about a scan.

    state: the end of the audit as far as this control is concerned. None: it has no say.
    alarms: a sentence for each row that alarms, and advice.
    warnings: sentences on possible faults.
    lines: lines of the summary, each with its label.
    log: numbers for logs.
    facts: values for the summary's JSON.
    """

    state: AuditState | None = None
    alarms: Sequence[str] = ()
    warnings: Sequence[str] = ()
    lines: Sequence[tuple[str, str]] = ()
    log: Mapping[str, int] = MappingProxyType({})
    facts: Mapping[str, Any] = MappingProxyType({})


Counts = TypeVar("Counts")


class Control(ABC, Generic[Counts]):
    """A way to notice that p-values are wrong.

    name: name of its folder.
    kinds: kinds of the rows of AUDITS that it writes, each with its name in the summary's table. Empty: not shown
        there.
    law_kinds: the kinds that test the law itself.
    families: number of families of tests among its rows. Each takes the same share of a scan's family error.
    """

    name: ClassVar[str]
    kinds: ClassVar[Mapping[str, str]]
    law_kinds: ClassVar[frozenset[str]] = frozenset()
    families: ClassVar[int] = 1

    def open(self, plan: Plan) -> OpenControl | None:
        """Open the control in this process. None: it observes nothing of this scan.

        Raises:
            SecretError: the audit secret cannot be read.
        """
        del plan
        return None

    def rows_of_verdicts(self, plan: Plan, exact: Sequence[pa.RecordBatch], ids: "TextIds") -> list[pa.RecordBatch]:
        """Return rows of AUDIT_COUNTS from exact rows of VERDICTS.

        Later, data that reveals a key is removed from these.
        """
        del plan, exact, ids
        return []

    def rows_of_accounts(
        self, plan: Plan, origin: BatchOrigin, decided: DecidedAccounts, ids: "TextIds"
    ) -> list[pa.RecordBatch]:
        """Return rows of AUDIT_COUNTS on accounts. Only flagged accounts have rows in the tables."""
        del plan, origin, decided, ids
        return []

    @abstractmethod
    def count(self, plan: Plan, rows: ScanRows) -> Counts:
        """Count a scan's rows in the tables. It may be called again, on a later snapshot."""

    @abstractmethod
    def judge(self, plan: Plan, audit: "Audit", traffic: "Traffic", counts: Counts) -> "list[Row]":
        """Judge the counts. The rows of AUDITS form as many families as `families`, each at the error of the audit."""

    @abstractmethod
    def conclude(self, scan: JudgedScan, counts: Counts) -> Conclusion:
        """Explain the rows of this control, next to those of all others."""

    def advise(self, rows: "Sequence[Row]", *, law_holds: bool) -> str | None:
        """Explain why rows of AUDITS alarm, and what to do. None: no row of this control alarms.

        Args:
            rows: rows of all controls in one audit.
            law_holds: whether the rows that test the law find that it holds.
        """
        del rows, law_holds
        return None
