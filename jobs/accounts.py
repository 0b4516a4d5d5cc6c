"""`brickscan accounts CONFIG|RESULTS`: accounts whose posts together are marked."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from jobs.flagged import LONGEST, marked_for
from jobs.options import (
    Day,
    Form,
    form_option,
    results_argument,
    results_at,
    scanned,
    show_footer,
    show_records,
    show_table,
)
from jobs.text import counted
from scanner.printable import one_in, printable
from schemas.words import Naming

_NEWEST = 20
_HEAD = ("night", "account", "contains text marked for", "key", "p-value", "posts", "texts", "quoted")
_RECORD = (
    *("night", "nights", "account_id", "user_id", "naming", "key_id", "message", "posts", "texts", "tokens", "scored"),
    *("quoted_share", "first_post", "last_post", "log10_p_global", "log10_p", "log10_e", "first_look", "scan_id"),
    *("scanned_at", "audit"),
)


@click.command()
@results_argument
@click.option("--limit", type=click.IntRange(min=1), help=f"How many to show.  [default: {_NEWEST}]")
@click.option("--all", "everything", is_flag=True, help="Show all.")
@click.option("--date", "night", type=Day(), help="Of this night alone.")
@click.option("--account", "account_ids", multiple=True, metavar="ID", help="Of this account; several times: of any.")
@form_option
def accounts(
    results: str, limit: int | None, everything: bool, night: datetime | None, account_ids: tuple[str, ...], form: Form
) -> None:
    """Show the accounts whose posts together are marked, the smallest p-value first (`[accounts]` in scan.toml).

    CONFIG: the file of the scan; or RESULTS: its folder or URI of results. `quoted` is the share of the scored words
    that stands in quoted lines alone. An account is named for a user only where its own words name the user too: one
    that only quotes is told apart.

    \b
    Example:
      brickscan accounts scan.toml
      brickscan accounts scan.toml --date 2026-11-20 --all --format csv > accounts.csv
    """
    if everything and limit is not None:
        raise click.UsageError("Give --limit or --all; one of the two.")
    from scanner.evidence.accounts import marked_accounts, none_tested
    from scanner.evidence.explainer import Explainer
    from scanner.results.queries import count_of_no_scan

    place = results_at(results)
    if not scanned(place):
        return
    found = marked_accounts(Explainer(place.config or place.folder), night.date() if night else None, account_ids)
    shown = found if everything else found[: limit or _NEWEST]
    if form != "table":
        show_records(form, shown, {"accounts": len({row["account_id"] for row in found})}, _RECORD)
    elif shown:
        show_table(_HEAD, [_line(row) for row in shown], {"account": 8})
    named = len({row["account_id"] for row in found if row["naming"] == Naming.NAMED})
    lines = [
        f"{len(shown):,} of {counted(len(found), 'marked account')} shown; {named:,} named for a user. A mark says "
        "that posts contain marked text, not who wrote it. `brickscan explain` with an account's name says why."
    ]
    if not none_tested(place.folder) and (wrong := count_of_no_scan(place.folder, "accounts")):
        why = "left out, as no scan writes them: somebody changed the table"
        lines.append(f"{counted(wrong, 'row')} of the table `accounts` {why}")
    if none_tested(place.folder):
        lines = ["No scan tested accounts: `accounts = { nights = 1 }` in the scan's configuration turns them on."]
    show_footer(form, lines)


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    share = row["quoted_share"]
    return (
        row["night"],
        printable(row["account_id"], LONGEST),
        marked_for({"first_seen_at": row["last_post"], "held_since": row["last_post"], **row}),
        row["key_id"],
        one_in(row["log10_p_global"]),
        f"{row['posts']:,}",
        f"{row['texts']:,}",
        "-" if share is None else f"{share:.0%}",
    )
