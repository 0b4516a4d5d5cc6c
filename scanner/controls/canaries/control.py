"""Watch canaries as a control. It shows marks that a scan misses, which no control of false flags can see."""

from typing import TYPE_CHECKING, ClassVar

from scanner.controls.control import Conclusion, Control, JudgedScan, ScanRows
from scanner.scan_plan import Plan
from schemas.words import AuditState

if TYPE_CHECKING:
    from scanner.audit.statistics.audit_rows import Audit, Row
    from scanner.controls.canaries.canary_counts import CanaryCounts
    from scanner.controls.traffic import Traffic


class CanaryControl(Control["CanaryCounts | None"]):
    """Writes rows on texts that are known to be marked: how many were found, named right, and named for another user.

    Lost canaries end a scan in another state than p-values that are too small.
    """

    name: ClassVar[str] = "canaries"
    kinds: ClassVar[dict[str, str]] = {"canary_found": "", "canary_right": "", "canary_wrong": ""}

    def count(self, plan: Plan, rows: ScanRows) -> "CanaryCounts | None":
        """Count canaries' texts that came, were found, and were named. None if the registry has no canaries."""
        from scanner.controls.canaries.canary_counts import count_canaries

        if not plan.canaries_made:
            return None
        due = (plan.config.audit.canaries or 0) if rows.whole else 0
        return count_canaries(rows.every_verdict, plan.canaries_made, due)

    def judge(self, plan: Plan, audit: "Audit", traffic: "Traffic", counts: "CanaryCounts | None") -> "list[Row]":
        """Compare the shares that were found and named with the planned shares."""
        from scanner.controls.canaries.canary_counts import judge_canaries, planned_of, risk_of_row

        del traffic
        if counts is None or plan.canaries is None:
            return []
        planned = planned_of(plan, plan.canaries, risk_of_row(audit) / 2)
        return judge_canaries(audit, counts, planned, plan.config.false_positive_rate)

    def conclude(self, scan: JudgedScan, counts: "CanaryCounts | None") -> Conclusion:
        """Write how many came and were found, and what to do if they are too few."""
        from scanner.controls.canaries.canary_counts import canaries_in_words, canaries_lost, canary_alarms

        if counts is None:
            return Conclusion(facts={"canaries": None})
        return Conclusion(
            state=AuditState.CANARIES_LOST if canaries_lost(scan.rows) else None,
            alarms=canary_alarms(scan.rows, counts.came),
            lines=[("canaries", line) for line in canaries_in_words(scan.rows, counts)],
            facts={"canaries": counts._asdict()},
        )
