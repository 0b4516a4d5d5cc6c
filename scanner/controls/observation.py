"""Open the controls of a scan in a worker. All that observe are shown the same batches."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from scanner.controls.control import DecidedAccounts, DecidesAccounts, Observer, Subject
from scanner.controls.controls import CONTROLS
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.detection.detector import Detector
from scanner.detection.rows import TextIds
from scanner.scan_plan import Plan


class Observers:
    """The observers of a piece of work, as one observer."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Show a batch to each observer."""
        for observer in self._observers:
            observer.observe(digests, scores, text_of)

    def rows(self) -> list[pa.RecordBatch]:
        """Return the counts of all as rows of AUDIT_COUNTS."""
        return [batch for observer in self._observers for batch in observer.rows()]


class OpenControls:
    """The controls that observe a scan, opened in this process.

    Raises:
        SecretError: the audit secret cannot be read.
    """

    def __init__(self, plan: Plan) -> None:
        opened = [control.open(plan) for control in CONTROLS]
        self._opened = [control for control in opened if control is not None]

    def __bool__(self) -> bool:
        return bool(self._opened)

    def observers(
        self,
        subject: Subject,
        origin: BatchOrigin,
        piece: str,
        detector: Detector | None = None,
        accounts: DecidesAccounts | None = None,
    ) -> Observers | None:
        """Return the observers of a piece of work, as `OpenControl.observers` does. None: no control observes it."""
        observers_by_control = (
            control.observers(subject, origin, piece, detector, accounts) for control in self._opened
        )
        observers = [observer for control_observers in observers_by_control for observer in control_observers]
        return Observers(observers) if observers else None

    def rehearsal(self) -> Observers | None:
        """Return observers that count nothing. The batches that they are shown compile their kernels."""
        return self.observers(Subject.REHEARSAL, BatchOrigin("", "", ""), "")


def count_verdicts(plan: Plan, exact: Sequence[pa.RecordBatch], ids: TextIds) -> list[pa.RecordBatch]:
    """Return rows of AUDIT_COUNTS that controls make of exact rows of VERDICTS."""
    return [batch for control in CONTROLS for batch in control.rows_of_verdicts(plan, exact, ids)]


def count_accounts(plan: Plan, origin: BatchOrigin, decided: DecidedAccounts, ids: TextIds) -> list[pa.RecordBatch]:
    """Return rows of AUDIT_COUNTS that controls make of decisions on accounts."""
    return [batch for control in CONTROLS for batch in control.rows_of_accounts(plan, origin, decided, ids)]
