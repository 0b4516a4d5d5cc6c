"""Judge the counts of all controls in the audit of a scan: is any stated rate incompatible with them?

The audit covers every shard of the scan's input, from whichever run committed it, so a resumed night is judged as a
whole.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from scanner.audit.statistics.audit_rows import Audit, Row
from scanner.controls.alarms import alarm_advice, law_holds
from scanner.controls.control import Conclusion, JudgedScan, ScanRows
from scanner.controls.controls import CONTROLS, FAMILIES
from scanner.controls.traffic import Traffic, measure
from scanner.results import queries
from scanner.results.current_rows import flags
from scanner.results.expected_false_flags import ExpectedFalseFlags, expected_false_flags
from scanner.results.pieces_of_evidence import pieces_of_evidence
from scanner.scan_plan import Plan
from schemas.words import AuditState, Naming, Proof

_WORST_FIRST = (AuditState.ALARM, AuditState.CANARIES_LOST, AuditState.POSSIBLE_FRAMING, AuditState.NO_ALARM)
"""States in which a control may end an audit. If no control states one, the law was not tested."""


@dataclass(frozen=True)
class ScanAudit:
    """Result of a scan's audit.

    state: how it ended.
    rows: rows of AUDITS.
    traffic: counts over distinct texts.
    unadmitted: keys under test that never passed an audit.
    conclusions: conclusions of the controls, in the order of the table.
    """

    state: AuditState
    rows: tuple[Row, ...]
    traffic: Traffic
    unadmitted: tuple[str, ...]
    conclusions: tuple[Conclusion, ...] = ()

    def fields(self) -> dict[str, object]:
        """Return numbers of the result for logs. No text among them has a blank."""
        unproved = self.traffic.unproved + self.traffic.unproved_accounts
        return {
            "state": self.state.replace(" ", "_"),
            "alarms": len(self.alarms()) + (unproved > 0),
            **{name: number for conclusion in self.conclusions for name, number in conclusion.log.items()},
            "texts": self.traffic.texts,
            "flagged": self.traffic.flagged,
            "flagged_pieces": "unknown" if self.traffic.pieces is None else self.traffic.pieces,
            "expected_false": "unknown" if self.expected_false is None else f"{self.expected_false.number:.3g}",
            "reserved": self.traffic.reserved,
            "unheld": self.traffic.unheld,
            "unproved": self.traffic.unproved,
            "unproved_accounts": self.traffic.unproved_accounts,
        }

    @property
    def facts(self) -> dict[str, Any]:
        """Return the facts that controls add to the summary in JSON."""
        return {name: value for conclusion in self.conclusions for name, value in conclusion.facts.items()}

    @property
    def expected_false(self) -> ExpectedFalseFlags | None:
        """Return how many of the flagged distinct texts are expected to be false. None after an alarm."""
        return None if self.state == AuditState.ALARM else self.traffic.false_flags

    @property
    def advice(self) -> str | None:
        """Return advice after an alarm, with the reason. None without an alarm."""
        if self.state != AuditState.ALARM:
            return None
        return alarm_advice(self.rows, self.traffic.unproved, self.traffic.unproved_accounts)

    def alarms(self) -> list[str]:
        """Return a sentence for each row that raises an alarm, with the advice of some controls."""
        return [alarm for conclusion in self.conclusions for alarm in conclusion.alarms]

    def warnings(self) -> list[str]:
        """Return a sentence on each possible fault."""
        return [warning for conclusion in self.conclusions for warning in conclusion.warnings]

    def lines(self) -> list[tuple[str, str]]:
        """Return lines of the summary, each with its label."""
        return [line for conclusion in self.conclusions for line in conclusion.lines]


def audit_scan(
    plan: Plan,
    scan_id: str,
    shards: Collection[str],
    earlier: Collection[str] = (),
    audited_by_looks: Collection[str] = (),
    unproved_accounts: int = 0,
    *,
    whole: bool = True,
) -> ScanAudit:
    """Judge the counts of a scan's shards.

    All other shards of the scans that committed them are judged too, unless they were judged before. Otherwise,
    scanning a part of an interrupted scan's input would leave verdicts that no audit has seen.

    Args:
        plan: plan of the scan.
        scan_id: id of the scan.
        shards: ids of its shards.
        earlier: ids of shards of the same rows that were scanned under other keys. Their texts have the same decoys
            once more, and these count once.
        audited_by_looks: ids under which looks have rows of AUDIT_COUNTS: groups of accounts, shards that a model read.
        unproved_accounts: number of marked accounts whose proof differs.
        whole: whether these shards are all that the configuration names. Only then are all canaries due.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased all the while.
    """
    rate = math.log10(plan.config.false_positive_rate)

    def read_counts() -> tuple[Traffic, dict[str, Any]]:
        judged = queries.scans(plan.results).filter(pl.col("audit") != AuditState.NOT_JUDGED)
        every_verdict = queries.verdicts_of(plan.results, [*shards, *earlier], judged.select("scan_id"))
        # another driver's counts of a shard may be there until they are settled, so only those of the verdicts' scan
        # count
        scans = ["shard_id", "scan_id"]
        every_count = queries.audit_counts(plan.results)
        shard_counts = every_count.join(every_verdict.select(scans).unique(), on=scans, how="semi")
        by_looks = pl.col("shard_id").is_in(list(audited_by_looks))  # flags by levels have no row among verdicts
        counted = pl.concat([shard_counts, every_count.filter(by_looks)])
        # canaries are no traffic: they are marked on purpose, and show no false flags
        is_traffic = ~pl.col("account_id").is_in(sorted(plan.canary_accounts)).fill_null(value=False)
        verdicts = every_verdict.filter(is_traffic) if plan.canary_accounts else every_verdict
        rows = ScanRows(verdicts, every_verdict, counted, earlier, whole)
        counts = {control.name: control.count(plan, rows) for control in CONTROLS}
        differing = flags(plan.results).filter(by_looks, proof=Proof.DIFFERS).select(pl.len()).collect().item()
        in_input = pl.col("shard_id").is_in([*shards, *earlier, *audited_by_looks])
        traffic_flags = flags(plan.results).filter(in_input, is_traffic, pl.col("log10_p_global") <= rate)
        pieces = pieces_of_evidence(traffic_flags)["piece"]
        traffic = measure(verdicts, rate)
        # a canary whose proof differs shows a fault as well as any text does
        is_unproved = pl.col("naming") == Naming.UNPROVED
        of_canaries = every_verdict.filter(~is_traffic, is_unproved).select(pl.len())
        differing += of_canaries.collect(engine="streaming").item() if plan.canary_accounts else 0
        return traffic._replace(
            unproved=traffic.unproved + differing,
            unproved_accounts=unproved_accounts,
            pieces=None if pieces.null_count() else pieces.n_unique(),
            false_flags=expected_false_flags(traffic_flags, traffic.texts * plan.config.false_positive_rate),
        ), counts

    return judge_scan(plan, scan_id, *queries.ask(plan.results, read_counts))


def judge_scan(plan: Plan, scan_id: str, traffic: Traffic, counts: Mapping[str, Any]) -> ScanAudit:
    """Judge the counts of every control, by its name.

    The table of controls fixes FAMILIES of tests. They share the error evenly.
    """
    whole = Audit.begin(
        plan.config_sha256, ", ".join(plan.locations), "the audit secret", plan.config.audit.family_error
    )
    audit = dataclasses.replace(whole, audit_id=scan_id, family_error=whole.family_error / FAMILIES)
    rows = [row for control in CONTROLS for row in control.judge(plan, audit, traffic, counts[control.name])]
    judged = JudgedScan(plan, audit, traffic, rows, law_holds(rows))
    conclusions = [control.conclude(judged, counts[control.name]) for control in CONTROLS]
    states = {conclusion.state for conclusion in conclusions}
    if traffic.unproved or traffic.unproved_accounts:
        states.add(AuditState.ALARM)
    return ScanAudit(
        state=next((state for state in _WORST_FIRST if state in states), AuditState.NO_DECOYS),
        rows=tuple(rows),
        traffic=traffic,
        unadmitted=tuple(key.key_id for key in plan.keys if key.admitted_by is None),
        conclusions=tuple(conclusions),
    )
