"""`brickscan report CONFIG|RESULTS --out DIR`: a night and its flags as pages for a browser."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from jobs.options import NamedPath, results_argument, results_at, scanned
from jobs.text import counted, tell
from scanner.printable import amount, printable
from schemas.words import Naming


@click.command()
@results_argument
@click.option("--date", "day", type=click.DateTime(["%Y-%m-%d"]), help="Date of its data.  [of the newest scan]")
@click.option("--out", required=True, type=NamedPath(path_type=Path, file_okay=False), help="A new folder.")
def report(results: str, day: datetime | None, out: Path) -> None:
    """Write a night as pages: one for the night, one a flag, one a marked account, each with a JSON twin.

    Open DIR/index.html in a browser.

    CONFIG: the file of the scan; or RESULTS: its folder or URI of results, with which no text is shown. Pages need no
    network, no script and no other file, and print as they look. They hold people's texts: only you can read them. A
    folder that holds an earlier report is replaced.

    \b
    Example:
      brickscan report scan.toml --out report
      brickscan report scan.toml --date 2026-11-20 --out reports/2026-11-20
    """
    from scanner.evidence.explainer import Explainer
    from scanner.evidence.marked_accounts import marked_accounts
    from scanner.evidence.site import night_of, write_report

    place = results_at(results)
    if not scanned(place):
        return
    explainer = Explainer(place.config or place.folder)
    night = night_of(
        explainer.results,
        explainer.rate,
        day.date() if day else None,
        explainer.as_the_registry_says,
        explainer.canaries,
    )
    with tqdm(total=len(night.flags), unit=" flags", disable=None, dynamic_ncols=True) as shown:
        marked = marked_accounts(explainer, night.day)
        pages = write_report(explainer, night, out, lambda: shown.update(), marked)
    decided = [(which, found) for which, found in night.decided.items() if found.texts]
    tell(
        f"night of {night.day}: {night.light}; {night.documents:,} documents read, {night.counted.in_words()}; "
        f"{amount(night.expected)} false flags at most to expect",
        *(f"- {reason}" for reason in night.why),
        *(
            f"decided on, {which}: {found.texts:,} texts, precision {found.in_words()}: {found.counts_in_words()}"
            for which, found in decided
        ),
        *([f"{counted(len(marked), 'marked account')}; {_named(marked):,} named for a user"] if marked else []),
        f"{pages:,} pages of flags: {printable(str(out / 'index.html'))}",
    )


def _named(marked: Sequence[Mapping[str, Any]]) -> int:
    return len({row["account_id"] for row in marked if row["naming"] == Naming.NAMED})
