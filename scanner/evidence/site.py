"""The report of a night: one page for the night and one a flag, each with a JSON twin, in a folder of their own.

Links are relative and stable: the page of a flag is named by a digest of its file and row. Pages load nothing and run
nothing (scanner.evidence.page). Beyond MOST_FLAGS flags pages of the others are made when somebody asks
(`brickscan explain --html`).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scanner.errors import Refused
from scanner.evidence.charts import bars_chart, rates_chart
from scanner.evidence.explanation import Explainer
from scanner.evidence.one_night import MOST_ROWS, Night, night_of
from scanner.evidence.page import environment, page, write_private
from scanner.evidence.records import record_of
from scanner.evidence.sentences import seldom
from scanner.printable import printable
from scanner.storage.permissions import make_private

MOST_FLAGS = 5_000
"""Pages of flags that are written, those of the smallest p-values."""

_MARKER = "brickscan-report"
_LONGEST = 60
_OF_SCAN = ("scan_id", "audit", "exit_code", "documents", "flagged", "false_positive_rate")


class Line(NamedTuple):
    """A flag in the list of its night."""

    name: str
    document: str
    user: str
    account: str
    key: str
    chance: str


def write_report(explainer: Explainer, night: Night, out: Path, told: Callable[[], object] = lambda: None) -> int:
    """Write the report of a night. Returns how many pages of flags it has.

    Args:
        explainer: of the results.
        night: of `night_of` of these.
        out: folder; new, or one that holds an earlier report, which is replaced as a whole.
        told: is called whenever the pages of a flag are written.

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
        write_private(unfinished / "index.html", _index(night))
        write_private(unfinished / "index.json", json.dumps(_record(night), indent=1))
        shutil.rmtree(out, ignore_errors=True)
        unfinished.rename(out)
    except OSError as error:
        raise Refused(f"--out {out}: cannot be written ({error.strerror}); name another folder") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return len(cases)


def name_of(row: Mapping[str, Any]) -> str:
    """The name of a flag's pages: the same in every report."""
    return hashlib.sha256(f"{row['path']}\n{row['row']}".encode(errors="surrogateescape")).hexdigest()[:16]


def _index(night: Night) -> str:
    def most(name: str) -> list[tuple[str, int]]:
        nobody = "nobody is named" if name == "user_id" else "unknown"
        return [(nobody if value is None else _shown(value), count) for value, count in _first(night, name)]

    return (
        environment()
        .get_template("night.html.j2")
        .render(
            night=night,
            speed=night.documents / max(night.seconds, 1e-9),
            lines=list(_lines(night)),
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


def _lines(night: Night) -> Iterator[Line]:
    for row in night.flags[:MOST_FLAGS]:
        yield Line(
            name_of(row),
            _shown(row["doc_id"] or f"row {row['row']} of {row['path']}"),
            _shown(row["user_id"]) if row["naming"] == "named" else f"nobody: {row['naming']}",
            _shown(row["account_id"]),
            row["key_id"],
            "not known" if row["basis"] == "assumed" else f"1 in {seldom(row)}",
        )


def _shown(value: str | None) -> str:
    return "unknown" if value is None else printable(value, _LONGEST)


def _record(night: Night) -> dict[str, Any]:
    return {
        "night": night.day.isoformat(),
        "light": night.light,
        "why": night.why,
        "documents": night.documents,
        "flagged": len(night.flags),
        "false_flags_expected": night.expected,
        "quarantined": night.quarantined,
        "seconds": night.seconds,
        "scans": [
            {
                name: scan[name]
                for name in ("scan_id", "audit", "exit_code", "documents", "flagged", "false_positive_rate")
            }
            for scan in night.scans
        ],
        "by": {name: [{"value": value, "count": count} for value, count in rows] for name, rows in night.by.items()},
        "flags": [f"flags/{name_of(row)}.json" for row in night.flags[:MOST_FLAGS]],
    }


__all__ = ["MOST_FLAGS", "night_of", "write_report"]
