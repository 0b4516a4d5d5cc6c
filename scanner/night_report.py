"""Write the report of a night: its totals, and pages for it, its flags and its accounts.

A night is a date of the data, as in schemas.tables.SCANS, whenever its scans ran.

Links are relative and stable: the page of a flag is named by a digest of its file and row. Pages load nothing and run
nothing (scanner.evidence.page). Pages of flags beyond MOST_FLAGS are made on request (`brickscan explain --html`).
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import polars as pl

from scanner.audit.statistics.audit_rows import holds_down_to
from scanner.comparing import ComparedNight, compare_nights
from scanner.controls.alarms import advise_on_scan
from scanner.errors import Refused
from scanner.evidence.advice import Precision, precision
from scanner.evidence.case import FlagCase
from scanner.evidence.charts import bars_chart, rates_chart
from scanner.evidence.explainer import Explainer
from scanner.evidence.page import environment, page, write_private
from scanner.evidence.sentences import record_of
from scanner.looks.marked_accounts import account_look
from scanner.printable import one_in, printable
from scanner.results import audits, current_decisions, flagged, scans
from scanner.results.canary_flags import of_canary
from scanner.results.expected_false_flags import ExpectedFalseFlags, expected_false_flags
from scanner.results.flags import FlagCount
from scanner.results.queries import ask
from scanner.results.scan_list import (
    QuarantineFilter,
    in_quarantine,
    reasons_of_silent,
    resumed_by,
    silent_scans,
)
from scanner.results.shown_p_values import log10_p_shown
from scanner.results.shown_shares import used_up
from scanner.signing import unchecked
from scanner.storage.locations import exchange, make_private
from schemas.registry import Canary
from schemas.words import WHY_NOBODY, AuditState, Naming, Proof

Row = Mapping[str, Any]
Light = Literal["green", "amber", "red"]

ROWS_A_TABLE = 10
"""Largest number of rows in a table on the page of a night."""

_BAD = (AuditState.CANARIES_LOST, AuditState.POSSIBLE_FRAMING, AuditState.NO_DECOYS, AuditState.NOT_JUDGED)


@dataclass(frozen=True)
class Night:
    """A night.

    scans: rows of schemas.tables.SCANS, oldest first.
    flags: rows of VERDICTS with `audit`, smallest p first, without canaries' own.
    false_flags: expected number of false flags. None after an alarm.
    misnamed: expected number, at most, of flags that name a further user, if each text is marked for one user.
    light, why: whether its flags can be used, and the reasons.
    rates: rows of AUDITS that count single messages under decoy keys in the last audited scan.
    by: flags added up by key, user, account and hour of the day (UTC, of posting where that is known), quarantine by
        reason and account, largest first.
    seconds: seconds in which any scan ran.
    decided: how often flags were right, in this night and in all nights.
    canaries: number of canaries' own flags.
    silent: scans that wrote no end, the result of `silent_scans`.
    not_checked: reason why the tables were not checked to be as brickscan wrote them. None: they were.
    compared: the comparison of the night with the nights before it. None: it may still grow, or nights are not
        compared.
    """

    day: date
    scans: Sequence[Mapping[str, Any]]
    flags: Sequence[Mapping[str, Any]]
    false_flags: ExpectedFalseFlags | None
    misnamed: float
    light: Light
    why: list[str]
    rates: Sequence[Mapping[str, Any]]
    by: Mapping[str, list[tuple[str | None, int]]]
    seconds: float
    decided: Mapping[str, Precision]
    canaries: int = 0
    silent: Sequence[Mapping[str, Any]] = ()
    not_checked: str | None = None
    compared: ComparedNight | None = None

    @property
    def counted(self) -> FlagCount:
        """Return the number of its flags, with that of canaries beside it."""
        return FlagCount(len(self.flags), self.canaries)

    @property
    def holds_down_to(self) -> float | None:
        """Return the smallest p down to which every kind of decoy shows the rates to hold.

        None: there are too few decoys to tell.
        """
        rows_by_kind: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
        for row in self.rates:
            rows_by_kind.setdefault((row["kind"], row["label"]), []).append(row)
        levels = [holds_down_to(rows) for rows in rows_by_kind.values()]
        known_levels = [down_to for down_to in levels if down_to is not None]
        # the weakest kind of decoy decides, and a kind that tells nothing leaves all unknown
        return max(known_levels) if known_levels and len(known_levels) == len(levels) else None

    @property
    def alarmed(self) -> bool:
        """Return whether the audit of a scan alarmed, so that no number based on p-values has a meaning."""
        return any(scan["audit"] == AuditState.ALARM for scan in self.scans)

    @property
    def trial(self) -> bool:
        """Return whether it is a night of a trial."""
        return any(scan["trial"] for scan in self.scans)

    @property
    def stated(self) -> list[str]:
        """Return the dates that scans of this night stated before they were corrected."""
        return sorted({scan["night_stated"] for scan in self.scans} - {None})

    @property
    def documents(self) -> int:
        """Return the number of documents that were read, in quarantine or not."""
        return sum(scan["documents"] for scan in (*self.scans, *self.silent))

    @property
    def filtered(self) -> int:
        """Return the number of documents in which the filter left too few n-grams to score."""
        return sum(scan["filtered"] or 0 for scan in (*self.scans, *self.silent))

    @property
    def quarantined(self) -> int:
        """Return the number of documents that could not be scored, and of such files."""
        files = sum(scan["files_quarantined"] for scan in self.scans)
        return int(files + sum(scan["quarantined"] for scan in (*self.scans, *self.silent)))

    @property
    def cases(self) -> list[FlagCase]:
        """Return the night's flags, each with its scan."""
        scans_by_id = {scan["scan_id"]: scan for scan in self.scans}
        return [FlagCase(row, scans_by_id.get(row["scan_id"])) for row in self.flags]


def night_of(
    results: str,
    rate: float,
    day: date | None,
    canaries: Collection[Canary] | None = (),
) -> Night:
    """Add a night up.

    Args:
        results: folder or URI of the results.
        rate: a rate stricter than a scan's leaves out flags that the scan would not have made under it.
        day: the night. None: that of the newest scan.
        canaries: as for `of_canary`. Their own texts that were named right are counted separately.

    Raises:
        Refused: there are no results, or no scan of that night ended.
    """
    recorded_scans = ask(results, lambda: scans(results).sort("started_at", "scan_id").collect()).to_dicts()
    nights = [scan["night"] for scan in recorded_scans]
    night = f"{day}" if day else (nights[-1] if nights else "")
    night_scans = [scan for scan in recorded_scans if scan["night"] == night]
    silent = silent_scans(results, night, {scan["scan_id"] for scan in night_scans})
    if not night_scans and not silent:
        others = ", ".join(sorted(set(nights), reverse=True)[:5]) or "none"
        raise Refused(
            f"results: no scan of the night {night} finished; nights with finished scans, newest first: {others}"
        )
    scans_with_silent = [*night_scans, *silent]
    ids = [scan["scan_id"] for scan in scans_with_silent]
    scan_filter = pl.col("scan_id").is_in(ids)
    flag_rows = ask(results, lambda: flagged(results, rate, scan_filter, canaries=True).collect())
    flag_rows = flag_rows.with_columns(canary=of_canary(canaries)).sort("log10_p_global", "path", "row")
    red, amber = reasons_of_silent(silent, recorded_scans)
    compared = next(iter(compare_nights(results, [date.fromisoformat(night)])), None)
    if compared is not None and compared.moved:
        amber.append(compared.moved)
    light, why = _light(night_scans, flag_rows.to_dicts(), (red, amber), partial(advise_on_scan, results))
    flags = flag_rows.filter(~pl.col("canary"))
    rows = flags.drop("canary").to_dicts()
    chance_flags = sum(
        scan["documents"] * min(rate, scan.get("false_positive_rate", rate)) for scan in scans_with_silent
    )
    alarmed = any(scan["audit"] == AuditState.ALARM for scan in night_scans)
    limits = {
        scan["scan_id"]: scan.get("misnaming_rate") or scan.get("false_positive_rate", rate)
        for scan in scans_with_silent
    }
    decisions = ask(results, lambda: current_decisions(results).collect())
    return Night(
        day=date.fromisoformat(night),
        scans=night_scans,
        flags=rows,
        false_flags=None if alarmed else expected_false_flags(flags.lazy(), chance_flags),
        misnamed=sum(limits[row["scan_id"]] for row in rows),
        light=light,
        why=why,
        rates=_rates(results, ids),
        by=_added_up(flags) | _unscored(results, ids),
        seconds=seconds_covered((scan["started_at"], scan["finished_at"]) for scan in scans_with_silent),
        decided={"this night": precision(decisions, [dict(row) for row in rows]), "all nights": precision(decisions)},
        canaries=len(flag_rows) - len(rows),
        silent=silent,
        not_checked=unchecked(results),
        compared=compared,
    )


def seconds_covered(spans: Iterable[tuple[datetime, datetime]]) -> float:
    """Count the seconds that any of the spans covers. Overlaps, of drivers at the same time, count once."""
    seconds, reached = 0.0, datetime.min.replace(tzinfo=UTC)
    for began, ended in sorted(spans):
        seconds += max((ended - max(began, reached)).total_seconds(), 0.0)
        reached = max(reached, ended)
    return seconds


def _light(
    night_scans: list[dict[str, Any]],
    flags: Sequence[Row],
    reasons: tuple[list[str], list[str]],
    advise: Callable[[str], str],
) -> tuple[Light, list[str]]:
    """Return the light and its reasons. Red: its flags must not be used. Amber: something needs attention.

    reasons: reasons for red and for amber. Others are added to them.
    """
    red, amber = reasons
    for number, scan in enumerate(night_scans):
        if scan["audit"] == AuditState.ALARM:
            red.append(f"scan {scan['scan_id']}: {advise(scan['scan_id'])}")
            continue
        if any(resumed_by(scan, later) for later in night_scans[number + 1 :]):
            continue
        if scan["audit"] in _BAD:
            amber.append(f"the audit of scan {scan['scan_id']} says: {scan['audit']}")
        amber += [f"scan {scan['scan_id']} scored no text under key {key_id}" for key_id in scan["keys_left_out"] or ()]
        amber += [f"scan {scan['scan_id']}: {sentence}" for sentence in used_up(scan["keys"])]
        amber += [f"the model has not read everything that scan {scan['scan_id']} scored"] * bool(
            scan["level_shards_left"]
        )
        if scan["exit_code"] != 0:
            amber.append(f"scan {scan['scan_id']} ended with exit code {scan['exit_code']}")
    unproved = sum(row["proof"] == Proof.DIFFERS for row in flags)
    if unproved:
        red.append(f"{unproved:,} flags gave different results when they were computed again")
    lost = sum(scan["quarantined"] for scan in night_scans)
    read = sum(scan["documents"] for scan in night_scans)
    if read and lost > read / 100:
        amber.append(f"{lost:,} of {read:,} documents could not be scored")
    return ("red", red + amber) if red else ("amber", amber) if amber else ("green", [])


def _rates(results: str, ids: list[str]) -> Sequence[Mapping[str, Any]]:
    kind_filter = pl.col("kind").is_in(["decoy", "decoy_all"])
    rate_filter = kind_filter & (pl.col("measure") == "rate") & pl.col("audit_id").is_in(ids)
    order = ("audit_id", "kind", "label", "threshold")
    rows = ask(results, lambda: audits(results).filter(rate_filter).sort(order).collect())
    return rows.filter(pl.col("audit_id") == rows["audit_id"].last()).to_dicts() if len(rows) else []


def _added_up(flags: pl.DataFrame) -> dict[str, list[tuple[str | None, int]]]:
    hour = pl.coalesce("created_at", "scanned_at").dt.strftime("%H:00").alias("hour")
    by_hour = flags.with_columns(hour)
    counts = {
        name: [
            (row[0], row[1]) for row in by_hour.group_by(name).len().sort("len", name, descending=[True, False]).rows()
        ]
        for name in ("key_id", "user_id", "account_id", "hour")
    }
    return counts | {"hour": sorted(counts["hour"], key=lambda row: str(row[0]))}


def _unscored(results: str, ids: list[str]) -> dict[str, list[tuple[str | None, int]]]:
    quarantine_filter = QuarantineFilter(scans=tuple(ids))
    reasons = in_quarantine(results, quarantine_filter, None, "reason").rows
    accounts = in_quarantine(results, quarantine_filter, None, "account").rows
    return {
        "reason": [(row["reason"], row["documents"] + row["files"]) for row in reasons.to_dicts()],
        "quarantined_account": [
            (row["account_id"], row["documents"]) for row in accounts.to_dicts() if row["documents"]
        ],
    }


MOST_FLAGS = 5_000
"""Largest number of pages of flags that are written, those with the smallest p-values."""

MOST_ACCOUNTS = 100
"""Largest number of marked accounts that are listed and have a page. Accounts that are named for a user come first."""

LINES_A_PAGE = 100
"""Number of flags that a page lists. With the longest and worst ids it stays below 200 kB."""

_MARKER = "brickscan-report"
_LONGEST = 60
_LONGEST_LABEL = 40


class Line(NamedTuple):
    """A flag in the list of its night."""

    name: str
    document: str
    user: str
    account: str
    posted: str
    key: str
    chance: str


def write_report(
    explainer: Explainer,
    night: Night,
    out: Path,
    progress: Callable[[], object] = lambda: None,
    marked: Sequence[Mapping[str, Any]] = (),
) -> int:
    """Write the report of a night. Return the number of its pages of flags.

    Args:
        explainer: explains the flags.
        night: the night.
        out: a folder that is new or holds an earlier report. An earlier report is replaced as a whole.
        progress: called after the pages of each flag are written.
        marked: the result of `marked_accounts`.

    Raises:
        Refused: the folder holds something else or cannot be written, or as `Explainer.explain`.
    """
    out = Path(os.path.abspath(out))  # "." has no name
    if out.exists() and not (out / _MARKER).is_file():
        raise Refused(f"--out {out}: exists and is not a report; name a new folder, or one with a report")
    unfinished = out.with_name(f".{out.name}.{secrets.token_hex(8)}.unfinished")  # a link there would lead elsewhere
    try:
        unfinished.mkdir(mode=0o770, parents=True)
        (unfinished / _MARKER).touch()
        make_private(unfinished / "flags")
        cases = night.cases[:MOST_FLAGS]
        in_order = sorted(cases, key=lambda case: (case.row["path"], case.row["row"]))  # as their texts can be read
        for explained in explainer.explain_cases(in_order):
            path = unfinished / "flags" / name_of(explained.row)
            write_private(path.with_suffix(".html"), page(explained, back="../index.html"))
            write_private(path.with_suffix(".json"), json.dumps(record_of(explained), indent=1))
            progress()
        account_rows = sorted(marked, key=lambda row: row["naming"] != Naming.NAMED)
        for account_id in dict.fromkeys(row["account_id"] for row in account_rows[:MOST_ACCOUNTS]):
            explanations = account_look().explain_account(explainer, account_id, night.day)
            path = unfinished / name_of_account(account_id)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(path, account_look().account_page(explanations, "../index.html"))
            record = {"accounts": [account_look().record_of_account(explained) for explained in explanations]}
            write_private(path.with_suffix(".json"), json.dumps(record, indent=1))
        night = replace(night, not_checked=unchecked(explainer.results))  # accounts were read since then
        for name, html in _lists(night, account_rows):
            write_private(unfinished / name, html)
        write_private(unfinished / "index.json", json.dumps(_record(night, account_rows), indent=1))
        _put_in_place(unfinished, out)
    except OSError as error:
        raise Refused(f"--out {out}: cannot be written ({error.strerror}); name another folder") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return len(cases)


def _put_in_place(new: Path, out: Path) -> None:
    """Put a report in the place of the old one.

    If this is interrupted, `out` is either the old report or the new one, whole. In the end `new` is the old report, or
    gone.
    """
    # If the system cannot exchange two folders, there is a moment between two renames when both are whole beside `out`.
    if not out.exists():
        new.rename(out)
        return
    try:
        exchange(new, out)
    except OSError:
        old_report = out.with_name(f"{new.name}.before")
        out.rename(old_report)
        new.rename(out)
        old_report.rename(new)


def name_of(row: Mapping[str, Any]) -> str:
    """Return the name of a flag's pages, the same in every report."""
    return hashlib.sha256(f"{row['path']}\n{row['row']}".encode(errors="surrogateescape")).hexdigest()[:16]


def name_of_account(account_id: str) -> str:
    """Return the name of an account's page, the same in every report."""
    return f"accounts/{hashlib.sha256(account_id.encode(errors='surrogateescape')).hexdigest()[:16]}.html"


def _lists(night: Night, marked: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield names and pages: the night's page with its first flags, and lists of further flags."""
    lines = [line_of(row) for row in night.flags[:MOST_FLAGS]]
    firsts = range(0, max(len(lines), 1), LINES_A_PAGE)
    names = ["index.html", *(f"flags-{number}.html" for number in range(2, len(firsts) + 1))]
    words = [f"Flags {first + 1:,} to {min(first + LINES_A_PAGE, len(lines)):,}" for first in firsts]
    shared: dict[str, Any] = {"lists": list(zip(names, words, strict=True))}
    for name, heading, first in zip(names, words, firsts, strict=True):
        page = shared | {"here": name, "lines": lines[first : first + LINES_A_PAGE]}
        if first:
            title, red = f"{heading} of the night of {night.day}", night.why if night.light == "red" else []
            yield name, environment().get_template("list.html.j2").render(title=title, red=red, **page)
        else:
            yield name, _index(night, page, marked)


def _index(night: Night, values: Mapping[str, Any], marked: Sequence[Mapping[str, Any]]) -> str:
    def label_counts(name: str) -> list[tuple[str, int]]:
        nobody = "no user is named" if name == "user_id" else "unknown"
        rows = _first(night, name)
        return [(nobody if value is None else _shown(value, _LONGEST_LABEL), count) for value, count in rows]

    return (
        environment()
        .get_template("night.html.j2")
        .render(
            **values,
            title=f"Night of {night.day}",
            night=night,
            accounts=[
                account_look().line_of_account(row, name_of_account(row["account_id"]), trial=night.trial)
                for row in marked[:MOST_ACCOUNTS]
            ],
            more_accounts=max(0, len(marked) - MOST_ACCOUNTS),
            decided=night.decided,
            speed=night.documents / max(night.seconds, 1e-9),
            more_flags=max(0, len(night.flags) - MOST_FLAGS),
            rates=rates_chart(night.rates) if night.rates else None,
            charts=[
                (heading, bars_chart(label_counts(name), heading), len(night.by[name]) - len(_first(night, name)))
                for heading, name in (
                    ("Flags by key", "key_id"),
                    ("Flags by user", "user_id"),
                    ("Flags by account", "account_id"),
                    ("Flags by hour of the day (UTC)", "hour"),
                    ("Quarantine by reason", "reason"),
                    ("Quarantine by account", "quarantined_account"),
                )
                if night.by[name]
            ],
        )
    )


def _first(night: Night, name: str) -> Sequence[tuple[str | None, int]]:
    return night.by[name] if name == "hour" else night.by[name][:ROWS_A_TABLE]


def line_of(row: Mapping[str, Any]) -> Line:
    """Return a row of VERDICTS as a line in a list of flags."""
    return Line(
        name_of(row),
        _shown(row["doc_id"] or f"row {row['row']} of {row['path']}"),
        _shown(row["user_id"]) if row["naming"] == Naming.NAMED else f"nobody: {WHY_NOBODY[row['naming']]}",
        _shown(row["account_id"]),
        "unknown" if row["created_at"] is None else f"{row['created_at']:%Y-%m-%d}",
        row["key_id"],
        one_in(log10_p_shown(row)),
    )


def _shown(value: str | None, longest: int = _LONGEST) -> str:
    return "unknown" if value is None else printable(value, longest)


def _record(night: Night, marked: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "night": night.day.isoformat(),
        "light": night.light,
        "why": night.why,
        "checked": night.not_checked is None,
        "compared": None if night.compared is None else night.compared.record,
        "documents": night.documents,
        "flagged": len(night.flags),
        "canaries": night.canaries,
        "expected_false_flags": None if night.false_flags is None else night.false_flags._asdict(),
        "misnamed_expected_at_most": None if night.alarmed else night.misnamed,
        "quarantined": night.quarantined,
        "filtered": night.filtered,
        "seconds": night.seconds,
        "scans": [
            {
                name: scan[name]
                for name in ("scan_id", "audit", "exit_code", "documents", "flagged", "false_positive_rate")
            }
            for scan in night.scans
        ],
        "decided": {
            period: counts._asdict() | {"precision": counts.share, "limits": counts.limits and list(counts.limits)}
            for period, counts in night.decided.items()
        },
        "by": {name: [{"value": value, "count": count} for value, count in rows] for name, rows in night.by.items()},
        "flags": [f"flags/{name_of(row)}.json" for row in night.flags[:MOST_FLAGS]],
        "accounts": [
            {"account_id": row["account_id"], "naming": row["naming"], "user_id": row["user_id"]}
            for row in marked[:MOST_ACCOUNTS]
        ],
    }
