"""The seam of controls: what each of them gives, on workers and when a scan is judged.

A control counts something whose chance is known, and judges the counts. It is a folder of this package and a line of
scanner.controls.controls.CONTROLS; nothing else names it.

Workers import controls too. So a control imports polars and tables inside `count`, `judge` and `conclude`, which only
the driver calls: they would cost each worker half a second and some 50 MiB.
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
    """What an observer is shown, with the positions that each key scores of it."""

    TEXTS = "texts"  # as they are
    LEVELS = "levels"  # texts whose tokens count by a model
    ACCOUNTS = "accounts"  # all posts of an account as one text
    REHEARSAL = "rehearsal"  # two texts that compile kernels; they are counted nowhere


class Observer(ScoreObserver, Protocol):
    """Is shown what a worker scores, and counts."""

    def rows(self) -> list[pa.RecordBatch]:
        """Return the counts so far as rows of AUDIT_COUNTS."""


class DecidedAccounts(NamedTuple):
    """Decisions on A accounts by all of their posts.

    account_ids, digests: names of the accounts, and their SHA-256.
    key_ids: of the keys that give the decisions.
    message: int64[A], the best; −1 where no key scored the account.
    log10_p: float64[A], corrected; NaN where there is none.
    flagged: bool[A].
    scored: int64[A] of each key, by its id.
    """

    account_ids: Sequence[str]
    digests: Sequence[bytes]
    key_ids: Sequence[str]
    message: NDArray[np.int64]
    log10_p: NDArray[np.float64]
    flagged: NDArray[np.bool_]
    scored: Mapping[str, NDArray[np.int64]]


class DecidesAccounts(Protocol):
    """Decides on accounts by all of their posts, as the look at accounts does."""

    def decide_under(
        self, marks: Mapping[str, Watermark], scores: Sequence[KeyPositions], accounts: NDArray[np.int64], rate: float
    ) -> NDArray[np.float64]:
        """Decide on accounts under other marks in place of the keys. Corrections stay those of the keys.

        Args:
            marks: by the ids of the keys; other keys are left out.
            scores: of all accounts, as an observer is shown them.
            accounts: int64[A], places of the accounts.
            rate: false-positive and misnaming rate.

        Returns:
            float64[A], log10 p of each decision; NaN where no key scored the account.
        """


class OpenControl(Protocol):
    """A control in a worker, with what it needs of secrets."""

    def observers(
        self,
        subject: Subject,
        origin: BatchOrigin,
        piece: str,
        detector: Detector | None,
        accounts: DecidesAccounts | None,
    ) -> Sequence[Observer]:
        """Return observers of a piece of work; none where the control counts nothing of this subject.

        Args:
            subject: what the observers will be shown.
            origin: of the piece, as it stands in every row.
            piece: text that names the piece; one that is worked through again has the same, and the same draws.
            detector: decides texts whole; None: there is none, as for accounts.
            accounts: decides accounts whole; None: there is none, as for texts.
        """


class ScanRows(NamedTuple):
    """Rows of a scan's shards, whichever run committed them.

    verdicts: rows of VERDICTS on traffic, without texts of canaries.
    every_verdict: rows of VERDICTS, with texts of canaries.
    counts: rows of AUDIT_COUNTS.
    earlier: ids of shards that hold the same rows, and that scans under other keys committed.
    whole: whether the shards are all that the configuration names.
    """

    verdicts: "pl.LazyFrame"
    every_verdict: "pl.LazyFrame"
    counts: "pl.LazyFrame"
    earlier: Collection[str]
    whole: bool


class JudgedScan(NamedTuple):
    """A scan of which every control was judged.

    audit: the run, with the error of one family.
    rows: of all controls.
    """

    plan: Plan
    audit: "Audit"
    traffic: "Traffic"
    rows: "Sequence[Row]"
    law_holds: bool


class Conclusion(NamedTuple):
    """What a control says of a scan.

    state: how the audit ends as far as it is concerned; None: it says nothing.
    alarms: a sentence for each row that alarms, and advice.
    warnings: sentences on what may be wrong.
    lines: of the summary, each with its label.
    log: numbers for logs.
    facts: values of the summary's JSON.
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

    name: of its folder.
    kinds: of the rows of AUDITS that it writes, each with its name in the summary's table; empty: not shown there.
    law_kinds: those kinds that test the law itself.
    families: how many families of tests its rows are, each of which takes the same share of a scan's family error.
    """

    name: ClassVar[str]
    kinds: ClassVar[Mapping[str, str]]
    law_kinds: ClassVar[frozenset[str]] = frozenset()
    families: ClassVar[int] = 1

    def open(self, plan: Plan) -> OpenControl | None:
        """Open the control in this process; None: it observes nothing of this scan.

        Raises:
            SecretError: the audit secret cannot be read.
        """
        del plan
        return None

    def rows_of_verdicts(self, plan: Plan, exact: Sequence[pa.RecordBatch], ids: "TextIds") -> list[pa.RecordBatch]:
        """Return rows of AUDIT_COUNTS on exact rows of VERDICTS, before what a key can be learnt from is removed."""
        del plan, exact, ids
        return []

    def rows_of_accounts(
        self, plan: Plan, origin: BatchOrigin, decided: DecidedAccounts, ids: "TextIds"
    ) -> list[pa.RecordBatch]:
        """Return rows of AUDIT_COUNTS on accounts, of which only flagged ones are written."""
        del plan, origin, decided, ids
        return []

    @abstractmethod
    def count(self, plan: Plan, rows: ScanRows) -> Counts:
        """Count what the tables hold of a scan. It may be called again, on a later snapshot."""

    @abstractmethod
    def judge(self, plan: Plan, audit: "Audit", traffic: "Traffic", counts: Counts) -> "list[Row]":
        """Judge the counts: rows of AUDITS, of as many families as `families`, each at the error of the audit."""

    @abstractmethod
    def conclude(self, scan: JudgedScan, counts: Counts) -> Conclusion:
        """Say what the rows of this control mean, beside those of all others."""

    def advise(self, rows: "Sequence[Row]", *, law_holds: bool) -> str | None:
        """Say why rows of AUDITS alarm, and what to do; None: no row of this control does.

        Args:
            rows: of all controls, of one audit.
            law_holds: whether rows that test the law find that it holds.
        """
        del rows, law_holds
        return None
