"""`brickscan users list`, `show`, `who`, `verify`: what the registry says of its users, from the command line."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click
import polars as pl

from jobs.options import Folder, Form, form_option, key_ids_option, show_footer, show_records, time_of
from jobs.text import columns, complain, counted, tell
from scanner.errors import Refused
from scanner.printable import printable
from scanner.registry import Verified, WantedUsers, holder_of, pages, users_of, verify_users
from schemas.registry import is_reserved

PAGE = 1000
"""Lines of `users list` whose columns have the same widths."""

registry_option = click.option("--registry", required=True, type=Folder(), help="Folder or URI of the registry.")
_time = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"])
_RECORD = ("user_id", "key_id", "message", "allocated_at", "removed_at")
_HEAD = ("user", "key", "message", "allocated", "removed")


@click.command("list")
@registry_option
@key_ids_option
@click.option("--begins", metavar="TEXT", help="Only users whose id begins so.")
@click.option("--held/--removed", default=None, help="Only messages that are held, or that were removed.")
@click.option("--since", type=_time, help="Only messages that were given at this time (UTC) or later.")
@click.option("--until", type=_time, help="Only messages that were given before this time (UTC).")
@click.option("--after", metavar="KEY_ID:MESSAGE", help="Go on after this one, the last line of a list.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=PAGE, show_default=True, help="How many to show; more are told of."
)
@form_option
def list_(
    registry: Path | str,
    key_ids: tuple[str, ...],
    begins: str | None,
    held: bool | None,
    since: datetime | None,
    until: datetime | None,
    after: str | None,
    limit: int,
    form: Form,
) -> None:
    """Show who holds which message since when, in order of keys and messages.

    A removed user's message is never given again.

    \b
    Example:
      brickscan users list --registry registry --key summer-2026 --held --begins acme-
      brickscan users list --registry registry --after summer-2026:73311 --limit 10000
    """
    wanted = WantedUsers(
        key_ids=key_ids or None,
        after=None if after is None else _place(after),
        removed=None if held is None else not held,
        begins=begins,
        since=since and since.replace(tzinfo=UTC),
        until=until and until.replace(tzinfo=UTC),
    )
    rows = (row for page in pages(registry, wanted) for row in page.iter_rows())
    if form != "table":
        shown = list(islice(rows, limit))
        more = len(shown) == limit and next(rows, None) is not None
        show_records(form, [*map(_record, shown)], {"more": more}, _RECORD)
        complain(*([_after(shown[-1])] if more else []))
        return
    left, last, head = limit, None, [_HEAD]
    while left and (page := list(islice(rows, min(PAGE, left)))):
        tell(*columns([*head, *map(_line, page)]))
        left, last, head = left - len(page), page[-1], []
    if head:
        tell(*columns(head))
    if last is not None and not left and next(rows, None) is not None:
        complain(_after(last))


def _after(row: tuple[Any, ...]) -> str:
    return f"there are more: --after {row[1]}:{row[2]} shows what follows"


@click.command("show")
@click.argument("user_ids", nargs=-1, required=True, metavar="USER_ID...")
@registry_option
@form_option
def show(user_ids: tuple[str, ...], registry: Path | str, form: Form) -> None:
    """Show all messages that users were ever given, in a registry of any size.

    \b
    Example:
      brickscan users show alice --registry registry
    """
    rows = users_of(registry, user_ids)
    unknown = sorted(set(user_ids) - set(rows["user_id"]))
    if unknown:
        raise Refused(f"user {unknown[0]!r} holds no message in this registry; see `brickscan users list`")
    _table(rows, form)


@click.command("who")
@click.argument("key_id")
@click.argument("message", type=int)
@registry_option
@form_option
def who(key_id: str, message: int, registry: Path | str, form: Form) -> None:
    """Show whom a message of a key was given to, in a registry of any size.

    \b
    Example:
      brickscan users who summer-2026 73311 --registry registry
    """
    rows = holder_of(registry, key_id, message)
    if rows.height or form != "table":
        _table(rows, form)
    if rows.height:
        return
    why = "is reserved, and never given to anybody" if is_reserved(message) else "was never given to anybody"
    show_footer(form, [f"message {message} of key {key_id} {why}"])


@click.command("verify")
@registry_option
@click.option(
    "--results",
    multiple=True,
    metavar="FOLDER",
    help="Folder or URI of results, whose scans (all with this registry) wrote heads down.",
)
@click.option("--head", "heads", multiple=True, metavar="HEX", help="A head that was written down elsewhere.")
def verify(registry: Path | str, results: tuple[str, ...], heads: tuple[str, ...]) -> int:
    """Tell whether the users are as they were written: who can write the table could accuse anybody.

    Its events form a hash chain, whose head every scan writes into its results (column users_head of `scans`). A chain
    that holds has no changed event; one that has all those heads is the chain that the scans saw. Exit code 3: it is
    not.

    \b
    Example:
      brickscan users verify --registry registry --results results
    """
    scanned, without = _heads(results)
    for head in heads:
        if len(head) != 64 or not set(head.lower()) <= set("0123456789abcdef"):
            raise Refused(f"--head {head!r}: is no head; 64 hexadecimal digits are needed, as this command shows them")
    found = verify_users(registry, {*scanned, *(head.lower() for head in heads)})
    tell(*_in_words(found, len(scanned), without))
    complain(*found.faults, *(f"head {head}: the chain never had it" for head in found.lost))
    return 0 if found.holds else 3


def _in_words(found: Verified, heads: int, without: int) -> Iterator[str]:
    yield f"{counted(found.events, 'event')}, head {found.head or '-'}"
    if heads:
        yield f"{counted(heads, 'head')} that scans wrote down"
    if without:
        yield f"{counted(without, 'scan')} wrote no head down: there were no users then"
    if found.holds:
        yield "each event is as it was written, and the index says the same"


def _heads(results: Sequence[str]) -> tuple[set[str], int]:
    """Heads that scans wrote into results, and how many scans wrote none."""
    from scanner.results import exist, scans

    heads, without = set[str](), 0
    for place in results:
        if not exist(place):
            raise Refused(f"--results {place}: holds no results; give the folder named in the scan's configuration")
        found = scans(place).select("users_head").collect()["users_head"]
        heads |= set(found.drop_nulls())
        without += found.null_count()
    return heads, without


def _place(after: str) -> tuple[str, int]:
    key_id, _, message = after.rpartition(":")
    if not key_id or not message.isdecimal():
        raise Refused(f"--after {after!r}: a key and a message with a colon between them are needed, such as summer:73")
    return key_id, int(message)


def _table(rows: pl.DataFrame, form: Form) -> None:
    if form != "table":
        show_records(form, [*map(_record, rows.iter_rows())], {}, _RECORD)
        return
    tell(*columns([_HEAD, *map(_line, rows.iter_rows())]))


def _record(row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(_RECORD, row, strict=True))


def _line(row: tuple[str | None, str, int, datetime, datetime | None]) -> tuple[str, ...]:
    user_id, key_id, message, allocated, removed = row
    name = "-" if user_id is None else printable(user_id)
    return name, key_id, str(message), time_of(allocated), time_of(removed)
