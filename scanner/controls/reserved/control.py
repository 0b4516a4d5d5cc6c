"""Watch reserved messages as a control: the messages of each key that are never given to a user."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from scanner.audit.statistics.hits import THRESHOLDS
from scanner.controls.control import Conclusion, Control, DecidedAccounts, JudgedScan, ScanRows
from scanner.controls.reserved.texts import reserved_texts
from scanner.detection.attribution import BatchOrigin
from scanner.detection.rows import TextIds
from scanner.scan_plan import Plan
from schemas.audit import RESERVED_ACCOUNT, RESERVED_TEXT, SCORED_ACCOUNTS
from schemas.words import AuditState

if TYPE_CHECKING:
    from scanner.audit.statistics.audit_rows import Audit, Row
    from scanner.controls.reserved.reserved_counts import ReservedCounts
    from scanner.controls.traffic import Traffic

_ALARM_WORDS = {
    "reserved": "reserved messages",
    "reserved_accounts": "all posts of an account, and reserved messages",
}


class ReservedControl(Control["ReservedCounts"]):
    """Writes rows on verdicts for a message that is never given to a user. A flag is a hit.

    - reserved: texts
    - reserved_accounts: all posts of an account as one text
    """

    name: ClassVar[str] = "reserved"
    kinds: ClassVar[dict[str, str]] = {
        "reserved": "reserved messages (expected at most)",
        "reserved_accounts": "reserved messages of accounts (expected at most)",
    }

    def rows_of_verdicts(self, plan: Plan, exact: Sequence[pa.RecordBatch], ids: TextIds) -> list[pa.RecordBatch]:
        """Note texts whose best message is reserved, because published verdicts do not tell it."""
        return reserved_texts(exact, plan.keys, plan.config.dedup, ids, plan.canary_accounts)

    def rows_of_accounts(
        self, plan: Plan, origin: BatchOrigin, decided: DecidedAccounts, ids: TextIds
    ) -> list[pa.RecordBatch]:
        """Note accounts whose best message is reserved, and how many are expected."""
        from scanner.controls.reserved.accounts import reserved_accounts  # late: workers that scan texts do not need it

        return reserved_accounts(plan, origin, decided, ids)

    def count(self, plan: Plan, rows: ScanRows) -> "ReservedCounts":
        """Count the texts and accounts that were noted."""
        import polars as pl

        from scanner.controls.reserved.accounts import count_accounts
        from scanner.controls.reserved.reserved_counts import count_reserved

        del plan
        accounts = rows.counts.filter(pl.col("kind").is_in([RESERVED_ACCOUNT, SCORED_ACCOUNTS])).collect()
        texts = count_reserved(rows.counts.filter(pl.col("kind") == RESERVED_TEXT), rows.verdicts)
        return texts._replace(accounts=count_accounts(accounts.to_dicts()))

    def judge(self, plan: Plan, audit: "Audit", traffic: "Traffic", counts: "ReservedCounts") -> "list[Row]":
        """Judge hits against KEY_BOUND times the expected ones, like all audits of one key on one traffic (SPEC §4)."""
        from scanner.audit.statistics.audit_rows import rate_rows
        from scanner.audit.statistics.judgement import KEY_BOUND
        from scanner.controls.reserved.accounts import account_answers
        from scanner.controls.reserved.expectation import reserved_answers

        answers = [*reserved_answers(plan, traffic, counts.hits), *account_answers(plan, counts.accounts)]
        return rate_rows(audit, answers, THRESHOLDS, KEY_BOUND)

    def conclude(self, scan: JudgedScan, counts: "ReservedCounts") -> Conclusion:
        """Alarm if messages hit too often, unless the texts of a few accounts explain it."""
        from scanner.audit.statistics.audit_rows import failing, wrong_rows
        from scanner.controls.reserved.framing import framing_accounts, framing_warnings

        framing = framing_accounts(scan, counts)
        if framing:
            return Conclusion(AuditState.POSSIBLE_FRAMING, warnings=framing_warnings(framing))
        rows = [row for row in scan.rows if row["kind"] in self.kinds]
        return Conclusion(AuditState.ALARM if wrong_rows(rows) else None, alarms=[*failing(rows, _ALARM_WORDS)])

    def advise(self, rows: "Sequence[Row]", *, law_holds: bool) -> str | None:
        """Distinguish a bad key from a broken law."""
        from scanner.audit.statistics.audit_rows import wrong_rows

        if not any(row["kind"] in self.kinds for row in wrong_rows(rows)):
            return None
        if law_holds:
            return (
                "Decoys are as expected, but too many texts carry messages that no user was ever given. Run "
                "`brickscan calibrate` to see whether the key favours common phrases, find out whether its secret has "
                "leaked, and retire the key."
            )
        return (
            "Too many texts carry messages that no user was ever given, and there are too few decoys to tell whether "
            "the p-values or the key are at fault. Run `brickscan selftest`, check that decoys are scored (`brickscan "
            "keys audit-secret`, [audit]), and run `brickscan calibrate` to see whether the key favours common phrases."
        )
