"""What several commands share: kinds of arguments, and the question before what cannot be undone."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from jobs.text import complain, tell
from scanner.errors import Refused
from scanner.storage.locations import is_uri


class Place(click.ParamType[Path | str]):
    """A folder, or a URI."""

    name = "folder"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Take a URI as it is, and anything else for a path."""
        return str(value).rstrip("/") if is_uri(str(value)) else Path(str(value))


key_ids_option = click.option(
    "--key", "key_ids", multiple=True, metavar="KEY_ID", help="A key; may be given several times."
)
yes_option = click.option("--yes", is_flag=True, help="Do it without asking.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")


def sure(what: Sequence[str], yes: bool, dry_run: bool) -> bool:
    """Whether to go on with what cannot be undone: told by --yes, or by somebody at the terminal.

    Args:
        what: is done, a line each.
        yes: as given.
        dry_run: as given.

    Raises:
        Refused: neither was given, and nobody can be asked.
    """
    if dry_run:
        tell(*what, "nothing was done (--dry-run)")
        return False
    if yes:
        return True
    complain(*what)
    if not sys.stdin.isatty():
        raise Refused("this cannot be undone, and nobody is there to ask: give --yes, or --dry-run to see it first")
    if click.confirm("This cannot be undone. Go on?", err=True):
        return True
    complain("nothing was done")
    return False


def time_of(time: datetime | None) -> str:
    """A time in UTC to the second, `-` where there is none."""
    return "-" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
