"""Tell people what to do after an alarm: use no flag of the scan, with the reason and advice.

Every summary, list and page says the same sentences first. `alarm_advice` makes them from the rows of `audits`.
"""

from collections.abc import Sequence

import polars as pl

from scanner.audit.statistics.audit_rows import HOLDING_VERDICTS, Row
from scanner.controls.controls import CONTROLS
from scanner.printable import counted
from scanner.results.queries import ask, audits, flagged, scans
from scanner.results.transactions import has_table, read_whole
from schemas.words import AuditState, AuditVerdict, Proof

USE_NO_FLAG = "Use no flag of this scan."


def law_holds(rows: Sequence[Row]) -> bool:
    """Return whether rows that test the law find that it holds, and none finds otherwise."""
    kinds = {kind for control in CONTROLS for kind in control.law_kinds}
    law_verdicts = [row["verdict"] for row in rows if row["kind"] in kinds]
    return AuditVerdict.TOO_SMALL not in law_verdicts and any(verdict in HOLDING_VERDICTS for verdict in law_verdicts)


def alarm_advice(rows: Sequence[Row], unproved: int = 0, unproved_accounts: int = 0) -> str:
    """Return what to do after an alarm, and why, in a few sentences that begin with USE_NO_FLAG.

    Args:
        rows: rows of AUDITS of the scan whose audit alarmed.
        unproved: number of flags of the scan whose proof differs.
        unproved_accounts: number of marked accounts whose proof differs.
    """
    return f"{USE_NO_FLAG} {_cause_and_remedy(rows, unproved, unproved_accounts)}"


def _cause_and_remedy(rows: Sequence[Row], unproved: int, unproved_accounts: int) -> str:
    if unproved or unproved_accounts:
        kinds = ((unproved, "flag"), (unproved_accounts, "marked account"))
        differing = " and ".join(counted(number, kind) for number, kind in kinds if number)
        return (
            f"A slower method computed {differing} again and got a different result. Something is wrong in this "
            "version or on this machine. Run `brickscan selftest` on the machine, and report it."
        )
    advice = (control.advise(rows, law_holds=law_holds(rows)) for control in CONTROLS)
    changed = (
        "The registry was changed while the scan ran, so its flags may name the wrong users. Scan the input again "
        "into another folder."
    )
    return next(filter(None, advice), changed)


def advise_on_scan(results: str, scan_id: str) -> str:
    """Return `alarm_advice` on a scan's flags, from the tables: of the newest audit that included them and alarmed.

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
    if has_table(results, "accounts"):
        accounts = ask(
            results, lambda: read_whole(results, "accounts").filter(differing).select(pl.len()).collect().item()
        )
    return alarm_advice(rows, int(unproved), int(accounts))
