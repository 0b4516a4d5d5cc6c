"""What people are told after an alarm: use no flag of the scan, why, and what to do.

Every summary, list and page says the same sentences first, made from the rows of `audits` by `alarm_advice`.
"""

from collections.abc import Sequence

import polars as pl
from deltalake import DeltaTable

from scanner.audit.statistics.audit_rows import HOLDING_VERDICTS, Row
from scanner.printable import counted
from scanner.results.queries import ask, audits, flagged, scans
from scanner.results.transactions import read_whole
from scanner.storage.locations import table_uri
from schemas.audit import DECISION, DECISION_WHOLE, STRATA
from schemas.words import AuditState, AuditVerdict, Proof

DECOY_KINDS = (
    *(DECISION, DECISION_WHOLE),
    *("decoy", "decoy_best", "decoy_all", "decoy_spans", "decoy_accounts", "decoy_weighed"),
)
"""Kinds of rows that count decoy keys, which marked nothing."""

ALARMING = (*DECOY_KINDS, "reserved", *STRATA)
"""Kinds of rows that raise the alarm; rows on canaries end a scan in another way."""

STRATUM_WORDS = dict(zip(STRATA, 2 * ("texts of scored length", "host"), strict=True))

USE_NO_FLAG = "Use no flag of this scan."


def wrong_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that raise the alarm."""
    return [row for row in rows if row["verdict"] == AuditVerdict.TOO_SMALL and row["kind"] in ALARMING]


def law_holds(rows: Sequence[Row]) -> bool:
    """Return whether decoys find that the law holds, and none finds otherwise."""
    of_law = [row["verdict"] for row in rows if row["kind"] in DECOY_KINDS]
    return AuditVerdict.TOO_SMALL not in of_law and any(verdict in HOLDING_VERDICTS for verdict in of_law)


def alarm_advice(rows: Sequence[Row], unproved: int = 0, unproved_accounts: int = 0) -> str:
    """Return what to do after an alarm, and why, in a few sentences that begin with USE_NO_FLAG.

    Args:
        rows: rows of AUDITS of the scan whose audit alarmed.
        unproved: flags of the scan whose proof gave another result.
        unproved_accounts: marked accounts of which this is true.
    """
    return f"{USE_NO_FLAG} {_cause_and_remedy(rows, unproved, unproved_accounts)}"


def _cause_and_remedy(rows: Sequence[Row], unproved: int, unproved_accounts: int) -> str:
    wrong = wrong_rows(rows)
    if unproved or unproved_accounts:
        kinds = ((unproved, "flag"), (unproved_accounts, "marked account"))
        differing = " and ".join(counted(number, kind) for number, kind in kinds if number)
        return (
            f"A slow path computed {differing} again, with another result: something in this version or on this "
            "machine is wrong. Run `brickscan selftest` on the machine, and report it."
        )
    if not wrong:
        return "Its audit alarmed, and the rows that say why are gone from `audits`: restore it, or scan again."
    if all(row["kind"] in STRATA for row in wrong):
        where = ", ".join(sorted({f"{STRATUM_WORDS[row['kind']]} {row['stratum']}" for row in wrong}))
        return (
            f"Of {where} p-values are too small, though of all decoys together they hold. If it is a host, "
            "run `brickscan selftest` there and take it out of the cluster. Report it."
        )
    if any(row["kind"] != "reserved" for row in wrong):
        return (
            "Decoy keys, which marked nothing, hit too often: p-values of this version, machine or configuration are "
            "too small. Run `brickscan selftest`, and report it."
        )
    if law_holds(rows):
        return (
            "Decoy keys hit as often as they should, but text of this traffic meets messages that were never given too "
            "often. See by `brickscan calibrate` whether the key fits common n-grams, and whether its secret got out; "
            "then retire it."
        )
    return (
        "Messages that were never given hit too often, and there are too few decoys to tell a broken law from a bad "
        "key. Run `brickscan selftest`, check that decoys are scored (`brickscan keys audit-secret`, [audit]), and "
        "see by `brickscan calibrate` whether the key fits common n-grams."
    )


def advise_on_scan(results: str, scan_id: str) -> str:
    """Return `alarm_advice` on a scan's flags, from the tables: of the newest audit that took them in and alarmed.

    Raises:
        Refused: there are no results.
    """
    covers = (pl.col("scan_id") == scan_id) | pl.col("audited_scans").list.contains(scan_id)
    alarmed = covers & (pl.col("audit") == AuditState.ALARM)
    audits_of = ask(results, lambda: scans(results).filter(alarmed).select("scan_id", "audited_scans").collect()).rows()
    audit_id, covered = audits_of[-1] if audits_of else (scan_id, [])
    rows = ask(results, lambda: audits(results).filter(pl.col("audit_id") == audit_id).collect()).to_dicts()
    differing = pl.col("scan_id").is_in([audit_id, *covered]) & (pl.col("proof") == Proof.DIFFERS)
    unproved = ask(results, lambda: flagged(results, 1.0, differing, canaries=True).select(pl.len()).collect().item())
    accounts = 0
    if DeltaTable.is_deltatable(table_uri(results, "accounts")):
        accounts = ask(
            results, lambda: read_whole(results, "accounts").filter(differing).select(pl.len()).collect().item()
        )
    return alarm_advice(rows, int(unproved), int(accounts))
