"""The report of a night: one page for it, one a flag and one a marked account, each with a JSON twin, in a folder.

Links are relative and stable: the page of a flag is named by a digest of its file and row. Pages load nothing and run
nothing (scanner.evidence.page). Pages of flags beyond MOST_FLAGS are made on request (`brickscan explain --html`).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scanner.errors import Refused
from scanner.evidence.account_page import account_page, line_of_account, record_of_account
from scanner.evidence.charts import bars_chart, rates_chart
from scanner.evidence.explainer import Explainer
from scanner.evidence.marked_accounts import explain_account
from scanner.evidence.one_night import MOST_ROWS, Night, night_of
from scanner.evidence.page import environment, page, write_private
from scanner.evidence.records import record_of
from scanner.evidence.sentences import WHY_NOBODY
from scanner.printable import one_in, printable
from scanner.results.strength import log10_p_shown
from scanner.storage.permissions import make_private
from scanner.storage.whole import exchange
from schemas.words import Naming

MOST_FLAGS = 5_000
"""Most pages of flags that are written, for the smallest p-values."""

MOST_ACCOUNTS = 100
"""Most marked accounts that are listed, and have a page: those first that are named for a user."""

LINES_A_PAGE = 100
"""Flags that a page lists: with the longest and worst ids it stays below 200 kB."""

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
    told: Callable[[], object] = lambda: None,
    marked: Sequence[Mapping[str, Any]] = (),
) -> int:
    """Write the report of a night. Returns how many pages of flags it has.

    Args:
        explainer: explainer of the results.
        night: the result of `night_of`.
        out: folder; new, or one that holds an earlier report, which is replaced as a whole.
        told: called whenever the pages of a flag are written.
        marked: the night's marked accounts, the result of `marked_accounts`.

    Raises:
        Refused: the folder holds something else or cannot be written; and as `Explainer.explain`.
    """
    out = Path(os.path.abspath(out))  # "." has no name
    if out.exists() and not (out / _MARKER).is_file():
        raise Refused(f"--out {out}: is there and holds no report; name a folder that is new or holds one")
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        make_private(unfinished)
        (unfinished / _MARKER).touch()
        make_private(unfinished / "flags")
        cases = night.cases[:MOST_FLAGS]
        in_order = sorted(cases, key=lambda case: (case.row["path"], case.row["row"]))  # as their texts can be read
        for explained in explainer.explain_cases(in_order):
            path = unfinished / "flags" / name_of(explained.row)
            write_private(path.with_suffix(".html"), page(explained, back="../index.html"))
            write_private(path.with_suffix(".json"), json.dumps(record_of(explained), indent=1))
            told()
        listed = sorted(marked, key=lambda row: row["naming"] != Naming.NAMED)
        for account_id in dict.fromkeys(row["account_id"] for row in listed[:MOST_ACCOUNTS]):
            found = explain_account(explainer, account_id, night.day)
            path = unfinished / name_of_account(account_id)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(path, account_page(found, "../index.html"))
            record = {"accounts": [record_of_account(one) for one in found]}
            write_private(path.with_suffix(".json"), json.dumps(record, indent=1))
        for name, html in _lists(night, listed):
            write_private(unfinished / name, html)
        write_private(unfinished / "index.json", json.dumps(_record(night, listed), indent=1))
        _put_in_place(unfinished, out)
    except OSError as error:
        raise Refused(f"--out {out}: cannot be written ({error.strerror}); name another folder") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return len(cases)


def _put_in_place(new: Path, out: Path) -> None:
    """Whatever interrupts this, `out` is the old report or the new one, whole; then `new` is the old one, or is gone.

    Where the system cannot exchange two folders, both are whole beside `out` for the moment between two renames.
    """
    if not out.exists():
        new.rename(out)
        return
    try:
        exchange(new, out)
    except OSError:
        before = out.with_name(f"{new.name}.before")
        out.rename(before)
        new.rename(out)
        before.rename(new)


def name_of(row: Mapping[str, Any]) -> str:
    """The name of a flag's pages: the same in every report."""
    return hashlib.sha256(f"{row['path']}\n{row['row']}".encode(errors="surrogateescape")).hexdigest()[:16]


def name_of_account(account_id: str) -> str:
    """The name of an account's page, the same in every report."""
    return f"accounts/{hashlib.sha256(account_id.encode(errors='surrogateescape')).hexdigest()[:16]}.html"


def _lists(night: Night, marked: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Names and pages: the night's page with its first flags, and lists of further flags."""
    lines = [line_of(row) for row in night.flags[:MOST_FLAGS]]
    firsts = range(0, max(len(lines), 1), LINES_A_PAGE)
    names = ["index.html", *(f"flags-{number}.html" for number in range(2, len(firsts) + 1))]
    words = [f"Flags {first + 1:,} to {min(first + LINES_A_PAGE, len(lines)):,}" for first in firsts]
    about: dict[str, Any] = {"lists": list(zip(names, words, strict=True))}
    for name, heading, first in zip(names, words, firsts, strict=True):
        shown = about | {"here": name, "lines": lines[first : first + LINES_A_PAGE]}
        if first:
            title = f"{heading} of the night of {night.day}"
            yield name, environment().get_template("list.html.j2").render(title=title, **shown)
        else:
            yield name, _index(night, shown, marked)


def _index(night: Night, shown: Mapping[str, Any], marked: Sequence[Mapping[str, Any]]) -> str:
    def most(name: str) -> list[tuple[str, int]]:
        nobody = "nobody is named" if name == "user_id" else "unknown"
        rows = _first(night, name)
        return [(nobody if value is None else _shown(value, _LONGEST_LABEL), count) for value, count in rows]

    return (
        environment()
        .get_template("night.html.j2")
        .render(
            **shown,
            title=f"Night of {night.day}",
            night=night,
            accounts=[
                line_of_account(row, name_of_account(row["account_id"]), trial=night.trial)
                for row in marked[:MOST_ACCOUNTS]
            ],
            more_accounts=max(0, len(marked) - MOST_ACCOUNTS),
            decided=night.decided,
            speed=night.documents / max(night.seconds, 1e-9),
            left_out=max(0, len(night.flags) - MOST_FLAGS),
            rates=rates_chart(night.rates) if night.rates else None,
            charts=[
                (heading, bars_chart(most(name), heading), len(night.by[name]) - len(_first(night, name)))
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
    return night.by[name] if name == "hour" else night.by[name][:MOST_ROWS]


def line_of(row: Mapping[str, Any]) -> Line:
    """A row of VERDICTS in a list of flags."""
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
        "documents": night.documents,
        "flagged": len(night.flags),
        "canaries": night.canaries,
        "false_flags_expected_at_most": night.expected,
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
            which: found._asdict() | {"precision": found.share, "limits": found.limits and list(found.limits)}
            for which, found in night.decided.items()
        },
        "by": {name: [{"value": value, "count": count} for value, count in rows] for name, rows in night.by.items()},
        "flags": [f"flags/{name_of(row)}.json" for row in night.flags[:MOST_FLAGS]],
        "accounts": [
            {"account_id": row["account_id"], "naming": row["naming"], "user_id": row["user_id"]}
            for row in marked[:MOST_ACCOUNTS]
        ],
    }


__all__ = ["MOST_FLAGS", "night_of", "write_report"]
