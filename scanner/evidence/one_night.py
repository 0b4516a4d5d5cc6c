"""Totals of a night's scans for a report: what they read, flagged and could not read.

A night is a date of the data, as in schemas.tables.SCANS, whenever its scans ran.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

import polars as pl

from scanner.audit.statistics.audit_rows import holds_down_to
from scanner.errors import Refused
from scanner.evidence.case import Case
from scanner.evidence.precision import Precision, precision
from scanner.results import audits, flagged, scans, shards, standing_decisions
from scanner.results.flag_list import of_canary
from scanner.results.flag_queue import FlagCount
from scanner.results.in_quarantine import Unscored, in_quarantine
from scanner.results.last_scans import went_on
from scanner.results.newest import flags as flags_of_all
from scanner.results.queries import ask
from schemas.registry import Canary
from schemas.words import AuditState, Naming, Proof

Row = Mapping[str, Any]
Light = Literal["green", "amber", "red"]

MOST_ROWS = 10
"""Most rows of a table on the page of a night."""

_BAD = (AuditState.CANARIES_LOST, AuditState.POSSIBLE_FRAMING, AuditState.NO_DECOYS, AuditState.NOT_JUDGED)


@dataclass(frozen=True)
class Night:
    """A night.

    scans: rows of schemas.tables.SCANS, oldest first; flags: rows of VERDICTS with `audit`, smallest p first, without
    canaries' own; canaries: how many these are; expected: how many flags chance alone makes; light, why: whether its
    flags can be used; rates: of AUDITS, those that count single messages under decoy keys in the last scan that was
    audited; by: flags added up by key, user, account and hour of the day (UTC; of posting, where that is known),
    quarantine by reason and account, most first; seconds: in which any scan ran; decided: how often flags were right,
    of this night and of all nights.
    """

    day: date
    scans: Sequence[Mapping[str, Any]]
    flags: Sequence[Mapping[str, Any]]
    expected: float
    light: Light
    why: list[str]
    rates: Sequence[Mapping[str, Any]]
    by: Mapping[str, list[tuple[str | None, int]]]
    seconds: float
    decided: Mapping[str, Precision]
    canaries: int = 0

    @property
    def counted(self) -> FlagCount:
        """Its flags, and beside them those of canaries."""
        return FlagCount(len(self.flags), self.canaries)

    @property
    def holds_down_to(self) -> float | None:
        """Down to which p every kind of decoy shows the rates to hold; None: there are too few to tell."""
        of_labels: dict[str | None, list[Mapping[str, Any]]] = {}
        for row in self.rates:
            of_labels.setdefault(row["label"], []).append(row)
        known = [holds_down_to(rows) for rows in of_labels.values()]
        least = [down_to for down_to in known if down_to is not None]
        return max(least) if least and len(least) == len(known) else None

    @property
    def trial(self) -> bool:
        """Whether it is a night of a trial."""
        return any(scan["trial"] for scan in self.scans)

    @property
    def stated(self) -> list[str]:
        """Dates that scans of this night stated before they were corrected."""
        return sorted({scan["night_stated"] for scan in self.scans} - {None})

    @property
    def documents(self) -> int:
        """Documents that were read, in quarantine or not."""
        return sum(scan["documents"] for scan in self.scans)

    @property
    def filtered(self) -> int:
        """Documents of which the filter left too few n-grams to be scored."""
        return sum(scan["filtered"] or 0 for scan in self.scans)

    @property
    def quarantined(self) -> int:
        """Documents that could not be scored, and files."""
        return sum(scan["quarantined"] + scan["files_quarantined"] for scan in self.scans)

    @property
    def cases(self) -> list[Case]:
        """The night's flags, each with its scan."""
        of_id = {scan["scan_id"]: scan for scan in self.scans}
        return [Case(row, of_id[row["scan_id"]]) for row in self.flags]


def night_of(
    results: str,
    rate: float,
    day: date | None,
    checked: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows,
    canaries: Collection[Canary] | None = (),
) -> Night:
    """Add a night up.

    Args:
        results: folder or URI.
        rate: a rate stricter than a scan's leaves out flags that it would not have made.
        day: the date of its data; None: that of the newest scan.
        checked: gives its flags as the registry says them (`Explainer.as_the_registry_says`).
        canaries: as `of_canary`; their own texts that were named right are counted apart.

    Raises:
        Refused: there are no results, or no scan of that night ended.
    """
    known = ask(results, scans(results).collect).to_dicts()
    nights = [scan["night"] for scan in known]
    night = f"{day}" if day else (nights[-1] if nights else "")
    of_night = [scan for scan in known if scan["night"] == night]
    if not of_night:
        others = ", ".join(sorted(set(nights), reverse=True)[:5]) or "none"
        raise Refused(f"results: no scan of the night {night} ended; nights of which some did, newest first: {others}")
    ids = [scan["scan_id"] for scan in of_night]
    of_scans = flagged(results, rate, pl.col("scan_id").is_in(ids), canaries=True)
    as_known = of_scans.with_columns(canary=of_canary(canaries))
    found = ask(results, as_known.sort("log10_p_global", "path", "row").collect)
    everything = checked(found.drop("canary").to_dicts())
    light, why = _light(of_night, everything)
    rows = [row for row, canary in zip(everything, found["canary"], strict=True) if not canary]
    flags = found.filter(~pl.col("canary")).with_columns(
        pl.Series("user_id", [row["user_id"] for row in rows], pl.String)
    )
    unlike = _unlike_shards(results, ids)
    if unlike:
        light, why = "red", [unlike, *why]
    standing = ask(results, lambda: standing_decisions(results).collect())
    return Night(
        day=date.fromisoformat(night),
        scans=of_night,
        flags=rows,
        expected=sum(scan["documents"] * min(rate, scan["false_positive_rate"]) for scan in of_night),
        light=light,
        why=why,
        rates=_rates(results, ids),
        by=_added_up(flags) | _unscored(results, ids),
        seconds=seconds_covered((scan["started_at"], scan["finished_at"]) for scan in of_night),
        decided={"this night": precision(standing, [dict(row) for row in rows]), "all nights": precision(standing)},
        canaries=len(everything) - len(rows),
    )


def _unlike_shards(results: str, ids: list[str]) -> str | None:
    """A sentence where some scans have more or fewer rows of `flags` than `shards` counted when they were written."""
    of_scans, of_shard = pl.col("scan_id").is_in(ids), ["shard_id", "scan_id"]

    def differences() -> pl.DataFrame:
        held = flags_of_all(results).filter(of_scans).group_by(of_shard).agg(held=pl.len().cast(pl.Int64))
        counted = shards(results).filter(of_scans).group_by(of_shard).agg(pl.col("flagged", "canaries").sum())
        more = pl.col("held").fill_null(0) - pl.col("flagged") - pl.col("canaries")
        both = counted.join(held, on=of_shard, how="left").select(more=more)
        return both.select(gone=-pl.col("more").clip(upper_bound=0).sum(), new=pl.col("more").clip(0).sum()).collect()

    ((gone, new),) = ask(results, differences).rows()
    if not gone and not new:
        return None
    return f"{gone:,} flags that its scans wrote are gone, and {new:,} were added: somebody changed the table `flags`"


def seconds_covered(spans: Iterable[tuple[datetime, datetime]]) -> float:
    """Seconds that any of the spans covers; what several cover, as drivers at the same time do, counts once."""
    seconds, reached = 0.0, datetime.min.replace(tzinfo=UTC)
    for began, ended in sorted(spans):
        seconds += max((ended - max(began, reached)).total_seconds(), 0.0)
        reached = max(reached, ended)
    return seconds


def _light(of_night: list[dict[str, Any]], flags: Sequence[Row]) -> tuple[Light, list[str]]:
    """Red: its flags must not be used; amber: something needs a hand; each with its reasons."""
    red, amber = [], []
    for number, scan in enumerate(of_night):
        if scan["audit"] == AuditState.ALARM:
            red.append(f"the audit of scan {scan['scan_id']} alarmed")
            continue
        if any(went_on(later, scan) for later in of_night[number + 1 :]):
            continue
        if scan["audit"] in _BAD:
            amber.append(f"the audit of scan {scan['scan_id']} says: {scan['audit']}")
        amber += [f"scan {scan['scan_id']} scored no text under key {key_id}" for key_id in scan["keys_left_out"] or ()]
        if scan["exit_code"] != 0:
            amber.append(f"scan {scan['scan_id']} ended with exit code {scan['exit_code']}")
    unproved = sum(row["proof"] == Proof.DIFFERS for row in flags)
    if unproved:
        red.append(f"{unproved:,} flags came out differently when they were computed again")
    contradicted = sum(row["naming"] == Naming.CONTRADICTED for row in flags)
    if contradicted:
        red.append(f"{contradicted:,} flags name users of whom the registry says otherwise")
    lost = sum(scan["quarantined"] for scan in of_night)
    read = sum(scan["documents"] for scan in of_night)
    if read and lost > read / 100:
        amber.append(f"{lost:,} of {read:,} documents could not be scored")
    return ("red", red + amber) if red else ("amber", amber) if amber else ("green", [])


def _rates(results: str, ids: list[str]) -> Sequence[Mapping[str, Any]]:
    about = (pl.col("kind") == "decoy") & (pl.col("measure") == "rate") & pl.col("audit_id").is_in(ids)
    rows = ask(results, audits(results).filter(about).sort("audit_id", "label", "threshold").collect)
    return rows.filter(pl.col("audit_id") == rows["audit_id"].last()).to_dicts() if len(rows) else []


def _added_up(flags: pl.DataFrame) -> dict[str, list[tuple[str | None, int]]]:
    hour = pl.coalesce("created_at", "scanned_at").dt.strftime("%H:00").alias("hour")
    asked = flags.with_columns(hour)
    most = {
        name: [
            (row[0], row[1]) for row in asked.group_by(name).len().sort("len", name, descending=[True, False]).rows()
        ]
        for name in ("key_id", "user_id", "account_id", "hour")
    }
    return most | {"hour": sorted(most["hour"], key=lambda row: str(row[0]))}


def _unscored(results: str, ids: list[str]) -> dict[str, list[tuple[str | None, int]]]:
    wanted = Unscored(scans=tuple(ids))
    reasons = in_quarantine(results, wanted, None, "reason").rows
    accounts = in_quarantine(results, wanted, None, "account").rows
    return {
        "reason": [(row["reason"], row["documents"] + row["files"]) for row in reasons.to_dicts()],
        "quarantined_account": [
            (row["account_id"], row["documents"]) for row in accounts.to_dicts() if row["documents"]
        ],
    }
