"""The audit of a scan: its decoys and reserved messages, judged. Is any stated rate incompatible with the counts?

It covers every shard of the scan's input, whichever run committed it, so that a resumed night is judged as a whole.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.audit.statistics.audit_rows import Audit, Question, Row, failing, rate_rows
from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS, ClusterSums
from scanner.audit.statistics.judgement import KEY_BOUND
from scanner.controls.alarms import DECOY_KINDS, alarm_advice, law_holds, wrong_rows
from scanner.controls.canaries.canary_counts import (
    CanaryCounts,
    canaries_lost,
    canary_alarms,
    count_canaries,
    judge_canaries,
    planned_of,
    risk_of_row,
)
from scanner.controls.reserved.framing import LARGEST_SHARE_OF_TOP_ACCOUNTS, framing_warnings
from scanner.controls.traffic import (
    COUNT_KEY_COLUMNS,
    SUMMED_COLUMNS,
    Traffic,
    columns_of,
    fresh_answers,
    measure,
    reserved_moments,
    single_p,
    strata_answers,
    unmarked,
)
from scanner.results import queries
from scanner.results.current_rows import flags
from scanner.results.expected_false_flags import ExpectedFalseFlags, expected_false_flags
from scanner.results.pieces_of_evidence import pieces_of_evidence
from scanner.scan_plan import Plan
from scanner.watermark.formats import format_of
from schemas.audit import RESERVED_TEXT
from schemas.registry import MasterKey, reserved_count
from schemas.words import AuditState, Proof

FAMILIES = 4
"""Families of tests, which share the family error: decoys, messages of keys, strata, canaries."""


@dataclass(frozen=True)
class ScanAudit:
    """Result of a scan's audit.

    state: how it ended; rows: of AUDITS; traffic: counts over distinct texts; unadmitted: keys under test
    that never passed an audit; framing: where the state is POSSIBLE_FRAMING, by key, the number of accounts without
    whose texts nothing is too small; canaries: their counts, None where the registry has no canaries.
    """

    state: AuditState
    rows: tuple[Row, ...]
    traffic: Traffic
    unadmitted: tuple[str, ...]
    framing: Mapping[str, int] = field(default_factory=dict)
    canaries: CanaryCounts | None = None

    def fields(self) -> dict[str, object]:
        """Numbers of the result for logs; no text among them holds a blank."""
        of_documents = [row for row in self.rows if row["kind"] in ("decoy", "decoy_best")]
        return {
            "state": self.state.replace(" ", "_"),
            "alarms": len(self._wrong_rows())
            + (self.traffic.unproved + self.traffic.unproved_accounts > 0)
            + canaries_lost(self.rows),
            "decoys": sum(row["tests"] for row in of_documents) // len(THRESHOLDS),
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
    def expected_false(self) -> ExpectedFalseFlags | None:
        """How many of the distinct texts flagged are expected to be false; None after an alarm."""
        return None if self.state == AuditState.ALARM else self.traffic.false_flags

    def warnings(self) -> list[str]:
        """A sentence on each key with which somebody may be framing others."""
        return framing_warnings(self.framing)

    @property
    def advice(self) -> str | None:
        """What to do after an alarm, and why; None where there is none."""
        if self.state != AuditState.ALARM:
            return None
        return alarm_advice(self.rows, self.traffic.unproved, self.traffic.unproved_accounts)

    def alarms(self) -> list[str]:
        """A sentence for each row that raises an alarm, and for canaries that were not found as planned."""
        lost = canary_alarms(self.rows, self.canaries.came) if self.canaries else []
        return [*failing(self._wrong_rows()), *lost]

    def _wrong_rows(self) -> list[Row]:
        return [] if self.framing else wrong_rows(self.rows)


def _state(rows: Sequence[Row], *, tested: bool, framing: bool, unproved: int) -> AuditState:
    if unproved:
        return AuditState.ALARM
    if wrong_rows(rows) and not framing:
        return AuditState.ALARM
    if canaries_lost(rows):
        return AuditState.CANARIES_LOST
    if framing:
        return AuditState.POSSIBLE_FRAMING
    return AuditState.NO_ALARM if tested else AuditState.NO_DECOYS


def _framing(plan: Plan, audit: Audit, traffic: Traffic, rows: Sequence[Row]) -> dict[str, int]:
    """The number of accounts, by key, whose texts alone raise the alarm; empty unless they explain all of it."""
    wrong = {row["key_id"] for row in wrong_rows(rows)}
    if not wrong or not law_holds(rows) or not wrong <= set(traffic.without_top_accounts):  # a decoy's row names no key
        return {}
    suspected = [key for key in plan.keys if key.key_id in wrong]
    if not all(format_of(key).can_be_framed() for key in suspected):
        return {}
    fewest = {key.key_id: _fewest(plan, audit, traffic, key.key_id) for key in suspected}
    found = {key_id: accounts for key_id, accounts in fewest.items() if accounts is not None}
    return found if len(found) == len(fewest) else {}


def _fewest(plan: Plan, audit: Audit, traffic: Traffic, key_id: str) -> int | None:
    """Accounts without whose texts no count is too small under a key: how many; None where it takes more than a few."""
    for left in traffic.without_top_accounts[key_id]:
        if left.share > LARGEST_SHARE_OF_TOP_ACCOUNTS:
            return None
        rows = rate_rows(audit, _reserved_answers(plan, traffic, {key_id: left.hits}), THRESHOLDS, KEY_BOUND)
        if key_id not in {row["key_id"] for row in wrong_rows(rows)}:
            return left.accounts
    return None


def _reserved_answers(
    plan: Plan, traffic: Traffic, replaced: Mapping[str, NDArray[np.int64]] = MappingProxyType({})
) -> list[tuple[Question, ClusterSums]]:
    """Hits of reserved messages of each key that has any; `replaced` holds hits, by key, in place of the traffic's."""
    texts = unmarked(traffic, plan.config.false_positive_rate)
    return [
        (
            Question.about("reserved", "exact", "message", how, plan.config.dedup, **columns_of(key)),
            reserved_moments(
                traffic,
                texts,
                key,
                plan.corrections_of(key),
                replaced.get(key.key_id),
                _by_spans(plan, key),
            ),
        )
        for key, how in ((key, format_of(key)) for key in plan.keys)
        if reserved_count(key.messages) and traffic.texts and how.law() is not None
    ]


def _by_spans(plan: Plan, key: MasterKey) -> NDArray[np.float64] | float:
    """Chance that a flagged span of a text has a reserved message, by threshold: of spans only flags are written."""
    correction = plan.weights.correction_of_spans(key, plan.keys_tested)
    if correction is None:
        return 0.0
    return single_p(np.minimum(THRESHOLDS, plan.config.false_positive_rate).tolist(), key.messages, correction)


def audit_scan(
    plan: Plan,
    scan_id: str,
    shards: Collection[str],
    earlier: Collection[str] = (),
    units: Collection[str] = (),
    unproved_accounts: int = 0,
    *,
    whole: bool = True,
) -> ScanAudit:
    """Judge the counts of a scan's shards.

    All other shards of the scans that committed them are judged too, unless they were judged before: whoever scans a
    part of an interrupted scan's input would else leave verdicts that no audit has seen.
    earlier: ids of shards of the same rows that were scanned under other keys: their texts have the same decoys once
    more, which count once; units: names under which accounts were tested, and ids of shards whose texts a model read;
    unproved_accounts: marked accounts of these units whose proof came out differently;
    whole: whether these shards are all that the configuration names, so that all canaries are due.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased all the while.
    """
    rate = math.log10(plan.config.false_positive_rate)

    canaries = plan.canaries.made if plan.canaries else ()
    of_canaries = [canary.account_id for canary in canaries]

    def read_counts() -> tuple[pl.DataFrame, Traffic, CanaryCounts | None]:
        judged = queries.scans(plan.results).filter(pl.col("audit") != AuditState.NOT_JUDGED)
        verdicts = queries.verdicts_of(plan.results, [*shards, *earlier], judged.select("scan_id"))
        # another driver's counts of a shard stand there until they are settled: only those of the verdicts' scan count
        scans = ["shard_id", "scan_id"]
        every = queries.audit_counts(plan.results)
        of_shards = every.join(verdicts.select(scans).unique(), on=scans, how="semi")
        counted = pl.concat([of_shards, every.filter(pl.col("shard_id").is_in(list(units)))])
        of_units = pl.col("shard_id").is_in(list(units))  # flags by weights have no row among verdicts
        differing = flags(plan.results).filter(of_units, proof=Proof.DIFFERS).select(pl.len()).collect().item()
        of_input = pl.col("shard_id").is_in([*shards, *earlier, *units])
        of_traffic = ~pl.col("account_id").is_in(of_canaries).fill_null(value=False)
        found = flags(plan.results).filter(of_input, of_traffic, pl.col("log10_p_global") <= rate)
        pieces = pieces_of_evidence(found)["piece"]
        is_text = pl.col("kind") == RESERVED_TEXT
        counts, reserved = counted.filter(~is_text & ~pl.col("shard_id").is_in(earlier)), counted.filter(is_text)
        # sorted, so that a sum is the same to its last digit in whatever order the rows are read
        decoys = counts.group_by(COUNT_KEY_COLUMNS).agg(pl.col(SUMMED_COLUMNS).sort().sum())
        due = (plan.config.audit.canaries or 0) if whole else 0
        canary_counts = count_canaries(verdicts, canaries, due) if canaries else None
        if canaries:  # canaries are no traffic: they are marked on purpose, and show no false flags
            verdicts = verdicts.filter(~pl.col("account_id").is_in(of_canaries).fill_null(value=False))
        traffic = measure(verdicts, rate, reserved)
        traffic = traffic._replace(unproved=traffic.unproved + differing, unproved_accounts=unproved_accounts)
        false_flags = expected_false_flags(found, traffic.texts * plan.config.false_positive_rate)
        traffic = traffic._replace(pieces=None if pieces.null_count() else pieces.n_unique(), false_flags=false_flags)
        return decoys.collect(engine="streaming"), traffic, canary_counts

    return judge_scan(plan, scan_id, *queries.ask(plan.results, read_counts))


def judge_scan(
    plan: Plan, scan_id: str, decoys: pl.DataFrame, traffic: Traffic, counted: CanaryCounts | None = None
) -> ScanAudit:
    """Judge sums of AUDIT_COUNTS, counts of verdicts and counts of canaries.

    FAMILIES of tests, fixed by the configuration alone, share the error evenly. Reserved messages are judged against
    KEY_BOUND times the expected hits, as every audit of one key on one traffic is (SPEC §4).
    """
    whole = Audit.begin(
        plan.config_sha256, ", ".join(plan.locations), "the audit secret", plan.config.audit.family_error
    )
    audit = dataclasses.replace(whole, audit_id=scan_id, family_error=whole.family_error / FAMILIES)
    fresh = decoys.filter(pl.col("kind").is_in(DECOY_KINDS))
    of_keys = _reserved_answers(plan, traffic)
    rows = [
        *rate_rows(audit, fresh_answers(fresh), DEEP_THRESHOLDS),
        *rate_rows(audit, of_keys, THRESHOLDS, KEY_BOUND),
    ]
    rows += rate_rows(audit, strata_answers(decoys, plan.config.dedup), DEEP_THRESHOLDS)
    if counted is not None and plan.canaries is not None:
        planned = planned_of(plan, plan.canaries, risk_of_row(audit) / 2)
        rows += judge_canaries(audit, counted, planned, plan.config.false_positive_rate)
    framing, unproved = _framing(plan, audit, traffic, rows), traffic.unproved + traffic.unproved_accounts
    return ScanAudit(
        state=_state(rows, tested=len(fresh) > 0, framing=bool(framing), unproved=unproved),
        rows=tuple(rows),
        traffic=traffic,
        unadmitted=tuple(key.key_id for key in plan.keys if key.admitted_by is None),
        framing=framing,
        canaries=counted,
    )
