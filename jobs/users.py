"""`brickscan users …`: who holds which message, from the command line."""

import io
from collections.abc import Sequence
from pathlib import Path

import click
import polars as pl
import pyarrow as pa

from jobs.options import NamedPath, dry_run_option, key_ids_option, sure, yes_option
from jobs.text import complain, counted, tell
from jobs.users_asked import list_, registry_option, show, verify, who
from scanner.errors import Refused, in_a_line
from scanner.input.named_files import open_parquet
from scanner.printable import printable, safe
from scanner.registry import (
    add_users,
    erase_users,
    look_alikes,
    remove_users,
    unknown_users,
    users_of,
)
from scanner.storage.local_files import MOST_ROWS, read_named

WARNED = 10
"""Most users of one command who are warned about by name."""


@click.group()
def users() -> None:
    """Give users messages of the keys, list them, find them, and remove them.

    \b
    Example:
      brickscan users add alice bob --registry registry
      brickscan users list --registry registry
      brickscan users show alice --registry registry
      brickscan users who summer-2026 73311 --registry registry
      brickscan users remove bob --registry registry
      brickscan users verify --registry registry --results results
    """


@users.command("add")
@click.argument("user_ids", nargs=-1, metavar="[USER_ID]...")
@registry_option
@key_ids_option
@click.option("--file", type=NamedPath(path_type=Path), help="Take the users from this .csv, .tsv or .parquet file.")
@click.option("--column", default="user_id", show_default=True, help="The file's column that holds them.")
def _add(
    user_ids: tuple[str, ...], registry: Path | str, key_ids: tuple[str, ...], file: Path | None, column: str
) -> None:
    """Give each user a random message that nobody ever had, under each key.

    By default that is every key of several messages that is not retired; a key of one marks for everybody alike.

    USER_ID: at most 256 characters. A user who has a message keeps it, so the same call can be made again, and from
    several machines at once. A message is given for good: stderr warns of ids that begin or end with a blank, or that
    look like another user's. An id that was removed may come back: it gets a new message, and text that was marked for
    it before still names nobody, since it may be another person's now.

    \b
    Example:
      brickscan users add alice bob --registry registry --key summer-2026
      brickscan users add --file users.csv --column user_id --registry registry
    """
    if bool(user_ids) == (file is not None):
        raise click.UsageError("Name the users, or give --file; one of the two.")
    names = _column(file, column).to_list() if file is not None else list(user_ids)
    alike = _alike(registry, names)  # first, since it refuses what is no id
    warnings = [*_returned(registry, names), *_blank_edges(names), *_unseen(names), *alike]
    complain(*warnings[:WARNED])
    if len(warnings) > WARNED:
        complain(f"and {len(warnings) - WARNED:,} more such users")
    for done in add_users(registry, key_ids or None, names):
        kept = f", {done.kept:,} had a message and keep it" if done.kept else ""
        left = "1 message is left" if done.left == 1 else f"{done.left:,} messages are left"
        tell(f"{done.key_id}: {counted(done.added, 'user')} added{kept}; {left}")


def _returned(registry: Path | str, names: Sequence[str | None]) -> list[str]:
    """A warning for each id that was removed and comes back, perhaps as somebody else's."""
    rows = users_of(registry, [name for name in names if name is not None])
    held = rows.filter(pl.col("removed_at").is_null())
    gone = rows.join(held, on=["user_id", "key_id"], how="anti").group_by("user_id", maintain_order=True)
    return [
        f"user {name!r} was removed {removed:%Y-%m-%d} and comes back: text that was marked for this id before names "
        "nobody, since the id may be another person's now; text that is marked from now on names the user"
        for name, removed in gone.agg(pl.col("removed_at").max()).iter_rows()
    ]


def _blank_edges(names: Sequence[str | None]) -> list[str]:
    """A warning for each id that begins or ends with a blank."""
    return [
        f"user {name!r} begins or ends with a blank, and is another user than {name.strip()!r}"
        for name in names
        if name is not None and name != name.strip() and name.strip()
    ]


def _unseen(names: Sequence[str | None]) -> list[str]:
    """A warning for each id with a character that no list shows as it is."""
    return [
        f"user {name!r} has characters that cannot be seen or that steer terminals; lists show {safe(name)}"
        for name in names
        if name is not None and safe(name) != name
    ]


def _alike(registry: Path | str, names: Sequence[str | None]) -> list[str]:
    """A warning for each id that looks like another one."""
    return [
        f"user {name!r} looks like user {other!r}; they are two users" for name, other in look_alikes(registry, names)
    ]


for _command in (list_, show, who, verify):
    users.add_command(_command)


@users.command("remove")
@click.argument("user_ids", nargs=-1, required=True, metavar="USER_ID...")
@registry_option
@click.option("--erase", is_flag=True, help="Also take the names out of the registry, for good.")
@click.option("--results", metavar="FOLDER", help="With --erase: folder or URI of results to take them out of too.")
@yes_option
@dry_run_option
def _remove(
    user_ids: tuple[str, ...], registry: Path | str, erase: bool, results: str | None, yes: bool, dry_run: bool
) -> None:
    """Withdraw all messages of users: they are never given again, and name nobody in what is scanned from now on.

    This cannot be undone, so it asks first. A scan that is running may still write a name that it read before: repeat
    --erase --results when it has ended. Repeat --erase also when it was interrupted: it deletes what is left, though
    the name may be unknown by then. Texts that scans kept of flags that name them are deleted.

    \b
    Example:
      brickscan users remove bob --registry registry --dry-run
      brickscan users remove bob --registry registry --yes
      brickscan users remove bob --registry registry --erase --results results
    """
    from scanner.results.queries import exist

    if results is not None and not erase:
        raise click.UsageError("--results goes with --erase.")
    if results is not None and not exist(results):
        raise Refused(f"--results {results}: holds no results; give the folder named in the scan's configuration")
    names = list(dict.fromkeys(user_ids))
    unknown = unknown_users(registry, names)
    if unknown and not erase:
        raise Refused(f"user {unknown[0]!r} holds no message in this registry; see `brickscan users list`")
    if not sure(_what_goes(registry, names, erase, results), yes, dry_run):
        return
    if erase:
        _erase(registry, names, unknown, results)
    else:
        _withdraw(registry, names)


def _what_goes(registry: Path | str, names: Sequence[str], erase: bool, results: str | None) -> list[str]:
    """The lasting changes that come with the removal of users."""
    held = users_of(registry, names).filter(pl.col("removed_at").is_null())
    shown = ", ".join(printable(name, 60) for name in names[:WARNED]) + (", …" if len(names) > WARNED else "")
    lines = [f"withdraws {counted(held.height, 'message')}, for good, from {counted(len(names), 'user')}: {shown}"]
    if erase:
        lines.append(f"erases the names, for good, from the registry{f' and from {results}' if results else ''}")
        if results:
            lines.append("deletes the texts that scans kept of flags that name them")
    return lines


def _withdraw(registry: Path | str, names: Sequence[str]) -> None:
    removed = remove_users(registry, names)
    tell(f"{counted(removed, 'message')} withdrawn" if removed else "no message was withdrawn: none is held any more")


def _erase(registry: Path | str, names: Sequence[str], unknown: Sequence[str], results: str | None) -> None:
    from jobs.progress import Steps
    from scanner.results.erasure import erase_user

    in_results, watch = 0, Steps("erase")
    if unknown:
        erase_users(registry, unknown)  # finishes an erasure that died before it deleted the files with their names
    if results is not None:
        in_results = erase_user(results, unknown, watch)
    if unknown and not in_results:
        if results is None:
            raise Refused(f"user {unknown[0]!r} holds no message in this registry; see `brickscan users list`")
        raise Refused(f"user {unknown[0]!r} stands neither in the registry nor in the results; nothing was changed")
    known = [name for name in names if name not in unknown]
    _withdraw(registry, known)
    if results is not None:
        in_results += erase_user(results, known, watch)
        tell(f"names erased from {in_results:,} rows of the results")
    tell(f"names erased from {erase_users(registry, known):,} rows of the registry")
    if results is None:
        tell("the names may still stand in results of scans: run this again with --results FOLDER for each")
    tell("the names may still stand in backups, and in what was exported from tables")


def _column(file: Path, column: str) -> pl.Series:
    """The users in a column of a CSV, TSV or Parquet file, as text."""
    separator = {".csv": ",", ".tsv": "\t", ".parquet": None}
    if file.suffix not in separator:
        raise Refused(f"--file {file}: ends in none of {', '.join(separator)}; one of these is needed")
    try:
        between = separator[file.suffix]
        if between is None:
            parquet = open_parquet(file, f"--file {file}")
            names = parquet.schema_arrow.names
            frame = pl.DataFrame(parquet.read(columns=[column] if column in names else []))
        else:  # the bytes, since polars takes a file's name for a pattern of names
            data = io.BytesIO(read_named(file, MOST_ROWS))
            frame = pl.read_csv(data, separator=between, infer_schema=False)
            names = frame.columns
    except pa.ArrowException as error:
        raise Refused(f"--file {file}: cannot be read as parquet ({in_a_line(error)})") from None
    except OSError as error:
        raise Refused(f"--file {file}: cannot be read ({error.strerror or in_a_line(error)})") from None
    except pl.exceptions.PolarsError as error:
        raise Refused(f"--file {file}: cannot be read as {file.suffix[1:]} ({str(error).splitlines()[0]})") from None
    if column not in names:
        raise Refused(f"--file {file}: has no column {column!r}; it has {_columns_of(names, file.suffix)}")
    users = frame[column]
    if not (users.dtype.is_integer() or users.dtype in (pl.String, pl.Categorical, pl.Enum)):
        raise Refused(f"--file {file}: column {column!r} is of type {users.dtype}; text or whole numbers are needed")
    return users.cast(pl.String)


def _columns_of(names: Sequence[str], suffix: str) -> str:
    """The columns of a file, and how it was written, by its name."""
    shown = ", ".join(repr(name) for name in names[:20])
    if suffix == ".parquet" or len(names) > 1:
        return shown
    for mark, name in ((";", "semicolons"), ("\t", "tabs"), (",", "commas")):
        if mark in names[0]:
            wanted = "tabs" if suffix == ".tsv" else "commas"
            return f"{shown}: its columns are parted by {name}, and {wanted} are needed in a {suffix} file"
    return shown
