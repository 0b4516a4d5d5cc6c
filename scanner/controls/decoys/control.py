"""Count decoys as a control: texts, accounts and whole decisions under keys that mark no text."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS
from scanner.controls.control import (
    Conclusion,
    Control,
    DecidesAccounts,
    JudgedScan,
    Observer,
    OpenControl,
    ScanRows,
    Subject,
)
from scanner.controls.decoys.account_observer import AccountDecoyObserver, WholeAccountObserver
from scanner.controls.decoys.distinct import DECOY_KEYS
from scanner.controls.decoys.draws import Decoys, open_decoys
from scanner.controls.decoys.level_observer import LevelDecoyObserver
from scanner.controls.decoys.text_observer import STRATA, DecoyObserver, Rehearsal
from scanner.controls.decoys.whole_texts import (
    DECISION,
    DECISION_ACCOUNTS,
    DECISION_NORMALISED,
    DECISION_WHOLE,
    WholeTextDecoys,
    WholeTextObserver,
    open_whole_texts,
)
from scanner.detection.attribution import BatchOrigin
from scanner.detection.detector import Detector
from scanner.printable import counted
from scanner.scan_plan import Plan
from schemas.words import AuditState

if TYPE_CHECKING:
    import polars as pl

    from scanner.audit.statistics.audit_rows import Audit, Row
    from scanner.controls.traffic import Traffic

STRATUM_WORDS = dict(zip(STRATA, 2 * ("texts of scored length", "host"), strict=True))

_LAW_KINDS = {
    DECISION: "decoys, whole decisions",
    DECISION_WHOLE: "decoys, decisions on whole texts",
    DECISION_NORMALISED: "decoys, decisions on normalised texts",
    DECISION_ACCOUNTS: "decoys, whole decisions on accounts",
    "decoy": "decoys",
    "decoy_best": "decoys, best message",
    "decoy_own": "decoys, tokens that only one user reads",
    "decoy_all": "decoys, all messages",
    "decoy_spans": "decoys, parts of texts",
    "decoy_accounts": "decoys, posts of accounts",
    "decoy_levels": "decoys, weighted by a model",
}

_ALARM_WORDS: Mapping[str, str] = _LAW_KINDS | {kind: f"decoys, {words}" for kind, words in STRATUM_WORDS.items()}


def _told_alike(row: "Row") -> str:
    """Say how many decoys that should differ draw alike."""
    from scanner.audit.statistics.audit_rows import number

    return (
        f"decoy keys that should differ draw alike: {row['hits']:,} of {counted(row['tests'], 'pair')}, where "
        f"{number(row['expected'])} were expected. Test: {DECOY_KEYS} {row['label']} {row['dedup']}"
    )


class OpenDecoys:
    """The decoys of a scan in one process. It holds the audit secret, and no repr shows it."""

    def __init__(self, decoys: Decoys | None, whole_texts: WholeTextDecoys | None, dedup: str) -> None:
        self._decoys, self._whole_texts, self._dedup = decoys, whole_texts, dedup

    def observers(
        self,
        subject: Subject,
        origin: BatchOrigin,
        piece: str,
        detector: Detector | None,
        accounts: DecidesAccounts | None,
    ) -> list[Observer]:
        """Return observers of a piece of work. The arguments are those of scanner.controls.control.OpenControl."""
        observers, name = list[Observer](), piece.encode()
        if self._decoys is not None:
            match subject:
                case Subject.TEXTS:
                    observers.append(DecoyObserver(self._decoys, origin, name))
                case Subject.LEVELS:
                    observers.append(LevelDecoyObserver(self._decoys, origin, name))
                case Subject.ACCOUNTS:
                    observers.append(AccountDecoyObserver(self._decoys, origin, name))
                case Subject.REHEARSAL:
                    observers.append(Rehearsal(self._decoys))
        if self._whole_texts is not None and detector is not None and subject is Subject.TEXTS:
            observers.append(WholeTextObserver(self._whole_texts, detector, origin, self._dedup, name))
        if self._whole_texts is not None and accounts is not None and subject is Subject.ACCOUNTS:
            observers.append(WholeAccountObserver(self._whole_texts, accounts, origin, self._dedup, name))
        return observers


class DecoyControl(Control["pl.DataFrame"]):
    """Decoys as a control. Each kind of its rows of AUDITS scores something, and a small p-value of it is a hit.

    | kind                | scored                                              | p-value                              |
    |---------------------|-----------------------------------------------------|--------------------------------------|
    | decision            | a text by the whole detector, decoys for all keys   | the smallest corrected p of any key, |
    |                     |                                                     | variant or part                      |
    | decision_whole      | the same, for texts that normalising leaves as they | that of the whole text               |
    |                     | are, where parts are tested or texts normalised     |                                      |
    | decision_normalised | the same, for texts with another normal form, where | that of the normalised text          |
    |                     | texts are normalised                                |                                      |
    | decision_accounts   | an account by the look at accounts, decoys for all  | the corrected p of its decision      |
    |                     | keys                                                |                                      |
    | decoy               | a text under a key of its own with one message, if  | p of that message                    |
    |                     | the key under test has one                          |                                      |
    | decoy_best          | a text under a key of its own, with all messages    | p of the best message                |
    | decoy_all           | the same                                            | p of each message, or of each pair   |
    |                     |                                                     | of group and user                    |
    | decoy_own           | a text under a key of its own with groups, where    | the second p that names need, on the |
    |                     | one group is looked into                            | user evidence of the group's best    |
    |                     |                                                     | user                                 |
    | decoy_spans         | the windows of a document, under one message and    | p of the best window                 |
    |                     | under all                                           |                                      |
    | decoy_accounts      | the posts of an account                             | p of their pooled score              |
    | decoy_levels        | a text whose tokens a model weighs                  | p of one message                     |
    | decoy_keys          | two decoys of one format                            | a hit if they draw alike; it tests   |
    |                     |                                                     | decoys, not the law                  |
    | STRATA              | as decoy and decoy_all, by parts of the traffic     | the same; a family of its own        |
    """

    name: ClassVar[str] = "decoys"
    kinds = _LAW_KINDS | dict.fromkeys((DECOY_KEYS, *STRATA), "")
    law_kinds = frozenset(_LAW_KINDS)
    families: ClassVar[int] = 2

    def open(self, plan: Plan) -> OpenControl | None:
        """Read the audit secret and draw decoys. None if the plan scores no document under them.

        Raises:
            SecretError: the secret cannot be read.
        """
        decoys, whole_texts = open_decoys(plan), open_whole_texts(plan)
        return OpenDecoys(decoys, whole_texts, plan.config.dedup) if decoys or whole_texts else None

    def count(self, plan: Plan, rows: ScanRows) -> "pl.DataFrame":
        """Add up the counts of the shards."""
        import polars as pl

        from scanner.controls.decoys.answers import compare_decoys, sum_counts

        del plan
        return pl.concat([sum_counts(rows, frozenset(self.kinds) - {DECOY_KEYS}), compare_decoys(rows)])

    def judge(self, plan: Plan, audit: "Audit", traffic: "Traffic", counts: "pl.DataFrame") -> "list[Row]":
        """Judge the law on all decoys, and the decoys themselves, as one family.

        Parts of the traffic are another family.
        """
        from scanner.audit.statistics.audit_rows import rate_rows
        from scanner.controls.decoys.answers import law_answers, strata_answers

        del traffic
        law_rows = rate_rows(audit, law_answers(counts, self.law_kinds | {DECOY_KEYS}), DEEP_THRESHOLDS)
        for row in law_rows:
            if row["kind"] == DECOY_KEYS:
                row["threshold"] = row["expected"] / row["tests"]
        return [
            *law_rows,
            *rate_rows(audit, strata_answers(counts, plan.config.dedup), DEEP_THRESHOLDS),
        ]

    def conclude(self, scan: JudgedScan, counts: "pl.DataFrame") -> Conclusion:
        """Alarm if the p-values of a row are too small."""
        from scanner.audit.statistics.audit_rows import failing, wrong_rows

        del counts
        rows = [row for row in scan.rows if row["kind"] in self.kinds]
        tested = any(row["kind"] in self.law_kinds for row in rows)
        document_tests = sum(row["tests"] for row in rows if row["kind"] in ("decoy", "decoy_best"))
        return Conclusion(
            state=AuditState.ALARM if wrong_rows(rows) else AuditState.NO_ALARM if tested else None,
            alarms=[
                *(_told_alike(row) for row in wrong_rows(rows) if row["kind"] == DECOY_KEYS),
                *failing([row for row in rows if row["kind"] != DECOY_KEYS], _ALARM_WORDS),
            ],
            log={"decoys": document_tests // len(THRESHOLDS)},
        )

    def advise(self, rows: "Sequence[Row]", *, law_holds: bool) -> str | None:
        """Tell a part of the traffic from the whole."""
        from scanner.audit.statistics.audit_rows import wrong_rows

        del law_holds
        wrong = wrong_rows(rows)
        if any(row["kind"] == DECOY_KEYS for row in wrong):
            return (
                "Decoys are not independent: keys that should differ draw alike, so the p-values of this scan were "
                "not tested. Run `brickscan selftest`, and report it."
            )
        if wrong and all(row["kind"] in STRATA for row in wrong):
            where = ", ".join(sorted({f"{STRATUM_WORDS[row['kind']]} {row['stratum']}" for row in wrong}))
            return (
                f"p-values are too small for {where}, although they hold for all decoys together. If this is one "
                "host, run `brickscan selftest` there and take it out of the cluster. Report it."
            )
        if any(row["kind"] in self.kinds for row in wrong):
            return (
                "Decoy keys, which never marked anything, hit too often. So p-values of this version, machine or "
                "configuration are too small. Run `brickscan selftest`, and report it."
            )
        return None
