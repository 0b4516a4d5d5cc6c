"""Run `brickscan users …`: show and change from the command line who holds which message."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import polars as pl
import pyarrow as pa

from jobs.options import (
    Folder,
    Form,
    NamedPath,
    Whole,
    confirm,
    dry_run_option,
    form_option,
    key_ids_option,
    refuse_wrong_clock,
    show_footer,
    show_records,
    sign_results,
    time_of,
    yes_option,
)
from jobs.text import StepProgress, columns, complain, tell
from scanner.errors import Refused, in_a_line
from scanner.printable import counted, printable, safe
from scanner.registry import (
    Verification,
    WantedUsers,
    add_users,
    erase_users,
    find_key,
    load_registry,
    look_alikes,
    pages,
    remove_users,
    unknown_users,
    users_of,
    verified_rows,
    verify_users,
)
from scanner.registry.clock import SeenHead
from scanner.results.queries import exist
from scanner.storage.locations import MOST_LIST, read_named
from schemas.registry import MAX_MESSAGES, is_reserved

if TYPE_CHECKING:
    from scanner.registry.users_snapshot import UsersSnapshot

LINES_OF_ONE_WIDTH = 1000
"""Number of lines of `users list` whose columns have the same widths."""

registry_option = click.option("--registry", required=True, type=Folder(), help="Folder or URI of the registry")
_time = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"])
_RECORD = ("user_id", "key_id", "message", "allocated_at", "removed_at")
_HEAD = ("user", "key", "message", "allocated", "removed")


@click.command("list", short_help="List who holds which message.")
@registry_option
@key_ids_option
@click.option("--begins", metavar="TEXT", help="Only users whose id begins with this")
@click.option("--held/--removed", default=None, help="Only messages that are held, or only those that were removed")
@click.option("--since", type=_time, help="Only messages given at this time (UTC) or later")
@click.option("--until", type=_time, help="Only messages given before this time (UTC)")
@click.option("--after", metavar="KEY_ID:MESSAGE", help="Only messages after this one, for example the last of a list")
@click.option(
    "--limit",
    type=Whole(1),
    default=LINES_OF_ONE_WIDTH,
    show_default=True,
    help="Number of rows",
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

    A removed user's message is never given again. The list shows the table as it is now; `users verify` tells whether
    that is how it was written.

    \b
    Example:
      brickscan users list --registry registry --key summer-2026 --held --begins acme-
      brickscan users list --registry registry --after summer-2026:73311 --limit 10000
    """
    query = WantedUsers(
        key_ids=key_ids or None,
        after=None if after is None else _message_after(after),
        removed=None if held is None else not held,
        begins=begins,
        since=since and since.replace(tzinfo=UTC),
        until=until and until.replace(tzinfo=UTC),
    )
    rows = (row for page in pages(registry, query) for row in page.iter_rows())
    if form != "table":
        listed = list(islice(rows, limit))
        more = len(listed) == limit and next(rows, None) is not None
        show_records(form, [*map(_record, listed)], {"more": more}, _RECORD)
        complain(*([_after(listed[-1])] if more else []))
        return
    left, last, head = limit, None, [_HEAD]
    while left and (page := list(islice(rows, min(LINES_OF_ONE_WIDTH, left)))):
        tell(*columns([*head, *map(_line, page)]))
        left, last, head = left - len(page), page[-1], []
    if head:
        tell(*columns(head))
    if last is not None and not left and next(rows, None) is not None:
        complain(_after(last))


def _after(row: tuple[Any, ...]) -> str:
    return f"there are more: --after {row[1]}:{row[2]} shows the next ones"


@click.command("show", short_help="Show users' messages.")
@click.argument("user_ids", nargs=-1, required=True, metavar="USER_ID...")
@registry_option
@form_option
def show(user_ids: tuple[str, ...], registry: Path | str, form: Form) -> None:
    """Show all messages that users were ever given.

    What you see is checked against the hash chain of the users' events.

    \b
    Example:
      brickscan users show alice --registry registry
      brickscan users show alice bob --registry registry --format json
    """
    rows = _verified(registry, lambda users: users.rows_of_users(user_ids))
    unknown = sorted(set(user_ids) - set(rows["user_id"]))
    if unknown:
        raise Refused(f"user {unknown[0]!r} holds no message in this registry; see `brickscan users list`")
    _table(rows, form)


@click.command("who", short_help="Show the user of a message.")
@click.argument("key_id")
@click.argument("message", type=Whole(0, MAX_MESSAGES - 1))
@registry_option
@form_option
def who(key_id: str, message: int, registry: Path | str, form: Form) -> None:
    """Show the user a message of a key was given to.

    What you see is checked against the hash chain of the users' events.

    \b
    Example:
      brickscan users who summer-2026 73311 --registry registry
    """
    limit = find_key(load_registry(registry), key_id).messages
    if message >= limit:
        raise Refused(f"message {message}: key {key_id!r} has messages 0 to {limit - 1}; name one of these")
    rows = _verified(registry, lambda users: users.rows_of_messages(key_id, np.array([message])))
    if rows.height or form != "table":
        _table(rows, form)
    if rows.height:
        return
    why = "is reserved and never given to a user" if is_reserved(message) else "was never given to a user"
    show_footer(form, [f"message {message} of key {key_id} {why}"])


@click.command("verify", short_help="Check that nobody changed the users.")
@registry_option
@click.option(
    "--results",
    multiple=True,
    metavar="FOLDER",
    help="Results whose scans recorded heads of this registry (folder or URI)",
)
@click.option("--head", "heads", multiple=True, metavar="HEX", help="Head that you wrote down elsewhere")
def verify(registry: Path | str, results: tuple[str, ...], heads: tuple[str, ...]) -> int:
    """Check that nobody changed the table of users: anyone who can write it could accuse any user.

    Its events form a hash chain, and every scan writes the chain's head into its results. The check covers the chain,
    those heads, and times that cannot be right. Exit code 3: something does not fit.

    \b
    Example:
      brickscan users verify --registry registry --results results
    """
    seen, without = _heads(results)
    for head in heads:
        if len(head) != 64 or not set(head.lower()) <= set("0123456789abcdef"):
            raise Refused(
                f"--head {head!r}: is not a head; 64 hexadecimal digits are needed, as this command shows them"
            )
    verification = verify_users(registry, {head.lower() for head in heads}, seen)
    tell(*_in_words(verification, len({scan.head for scan in seen}), without))
    complain(*verification.faults, *(f"head {head}: was never in the history" for head in verification.lost))
    if verification.clocks:
        complain("a machine's clock was wrong, or users were restored from a copy:", *_first(verification.clocks))
    return 0 if verification.holds else 3


def _in_words(verification: Verification, heads: int, without: int) -> Iterator[str]:
    yield f"{counted(verification.events, 'event')}, head {verification.head or '-'}"
    if heads:
        yield f"{counted(heads, 'head')} that scans recorded"
    if without:
        yield f"{counted(without, 'scan')} recorded no head: there were no users then"
    if verification.holds:
        yield "each event is as it was written, and the index agrees"


def _heads(results: Sequence[str]) -> tuple[list[SeenHead], int]:
    """Return the heads that scans recorded in results, and the number of scans that recorded none."""
    from scanner.results.queries import ask, exist, scans

    columns_of_scan = ("users_head", "started_at", "finished_at")
    seen, without = list[SeenHead](), 0
    for folder in results:
        if not exist(folder):
            raise Refused(f"--results {folder}: has no results; give the folder named in the scan's configuration")
        heads = ask(folder, lambda place=folder: scans(place).select(columns_of_scan).collect())  # type: ignore[misc]
        seen += map(SeenHead._make, heads.drop_nulls("users_head").iter_rows())
        without += heads["users_head"].null_count()
    return seen, without


def _verified(registry: Path | str, find: Callable[["UsersSnapshot"], pl.DataFrame]) -> pl.DataFrame:
    from scanner.results.registry_record import users_beside

    load_registry(registry)
    return verified_rows(registry, users_beside(registry), find)


def _message_after(key_and_message: str) -> tuple[str, int]:
    key_id, _, message = key_and_message.rpartition(":")
    if not key_id or not message.isdecimal():
        raise Refused(f"--after {key_and_message!r}: give a key and a message separated by a colon, such as summer:73")
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


USERS_WARNED = 10
"""Most users of one command who are named in warnings."""


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


@users.command("add", short_help="Give users messages.")
@click.argument("user_ids", nargs=-1, metavar="[USER_ID]...")
@registry_option
@key_ids_option
@click.option("--file", type=NamedPath(path_type=Path), help="File of users (.csv, .tsv or .parquet)")
@click.option("--column", default="user_id", show_default=True, help="Column of the file")
@yes_option
def _add(
    user_ids: tuple[str, ...], registry: Path | str, key_ids: tuple[str, ...], file: Path | None, column: str, yes: bool
) -> int:
    """Give each user a random message under each key, one that no user has ever had.

    Without --key, that is every key with several messages that is not retired. A user who has a message keeps it, so
    you can repeat the call, also from several machines at once. A message is given for good: an id that begins or ends
    with a blank, or has invisible characters, is asked about first, and an id that looks like another user's is warned
    of. An id that was removed may come back with a new message; its old message still names nobody.

    \b
    Example:
      brickscan users add alice bob --registry registry --key summer-2026
      brickscan users add --file users.csv --column user_id --registry registry
    """
    if bool(user_ids) == (file is not None):
        raise click.UsageError("Either name the users or give --file.")
    names = _column(file, column).to_list() if file is not None else list(user_ids)
    refuse_wrong_clock(registry)
    alike = look_alikes(registry, names)  # first, because it refuses invalid ids
    new = unknown_users(registry, [name for name in names if name is not None])
    mistakes = [*_blank_edges(new), *_invisible(new)]
    if mistakes and not confirm(_first(mistakes), yes, dry_run=False):
        return 1
    warnings = [*(mistakes if yes else []), *_returned(registry, names)]
    warnings += [f"user {name!r} looks like user {other!r}, but they are different users" for name, other in alike]
    complain(*_first(warnings))
    for done in add_users(registry, key_ids or None, names):
        note = f", {done.kept:,} had a message and keep it" if done.kept else ""
        left = "1 message is left" if done.left == 1 else f"{done.left:,} messages are left"
        tell(f"{done.key_id}: {counted(done.added, 'user')} added{note}; {left}")
    return 0


def _first(warnings: Sequence[str]) -> list[str]:
    """Return the first USERS_WARNED lines of a list, and the number of other lines."""
    more = len(warnings) - USERS_WARNED
    return [*warnings[:USERS_WARNED], *([f"and {more:,} more such users"] if more > 0 else [])]


def _returned(registry: Path | str, names: Sequence[str | None]) -> list[str]:
    """Write a warning for each id that was removed and is added again, perhaps for another person."""
    rows = users_of(registry, [name for name in names if name is not None])
    held = rows.filter(pl.col("removed_at").is_null())
    gone = rows.join(held, on=["user_id", "key_id"], how="anti").group_by("user_id", maintain_order=True)
    return [
        f"user {name!r} was removed {removed:%Y-%m-%d} and is added again: earlier text marked for this id names "
        "nobody, since the id may belong to another person now; text marked from now on names the user"
        for name, removed in gone.agg(pl.col("removed_at").max()).iter_rows()
    ]


def _blank_edges(names: Sequence[str]) -> list[str]:
    return [
        f"user {name!r} begins or ends with a space, and is a different user from {name.strip()!r}"
        for name in names
        if name != name.strip()
    ]


def _invisible(names: Sequence[str]) -> list[str]:
    return [
        f"user {name!r} has characters that are invisible or control terminals; lists show {safe(name)}"
        for name in names
        if safe(name) != name
    ]


for _command in (list_, show, who, verify):
    users.add_command(_command)


@users.command("remove", short_help="Withdraw or erase users.")
@click.argument("user_ids", nargs=-1, required=True, metavar="USER_ID...")
@registry_option
@click.option("--erase", is_flag=True, help="Permanently remove the names from the registry too")
@click.option("--results", metavar="FOLDER", help="With --erase: results to remove them from too (folder or URI)")
@click.option("--accounts", is_flag=True, help="With --results: also erase accounts that have these users' names")
@yes_option
@dry_run_option
def _remove(
    user_ids: tuple[str, ...],
    registry: Path | str,
    erase: bool,
    results: str | None,
    accounts: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Permanently withdraw the messages of users: from now on these messages name no user.

    You are asked first. A running scan may still write a name that it read before, so repeat --erase --results when it
    has ended, and after any interruption. Texts that scans kept of flags naming these users are deleted too.

    \b
    Example:
      brickscan users remove bob --registry registry --dry-run
      brickscan users remove bob --registry registry --yes
      brickscan users remove bob --registry registry --erase --results results
    """
    if results is not None and not erase:
        raise click.UsageError("--results goes with --erase.")
    if accounts and results is None:
        raise click.UsageError("--accounts goes with --results.")
    if results is not None and not exist(results):
        raise Refused(f"--results {results}: has no results; give the folder named in the scan's configuration")
    if results is not None:
        from scanner.results.transactions import refuse_changed_tables

        sign_results(results, registry)
        refuse_changed_tables(results)
    refuse_wrong_clock(registry)
    names = list(dict.fromkeys(user_ids))
    unknown = unknown_users(registry, names)
    if unknown and not erase:
        raise Refused(f"user {unknown[0]!r} holds no message in this registry; see `brickscan users list`")
    stays = _claims_of(registry, _texts_of(results, names), results) if erase else []
    if not confirm([*_what_goes(registry, names, erase, results, accounts=accounts), *stays], yes, dry_run):
        return
    if erase:
        texts = _texts_of(results, names)  # once the names are gone, nobody can tell whose texts these are
        if yes:
            complain(*stays)
        _erase(registry, names, unknown, results, accounts=accounts)
        tell(*_claims_of(registry, texts, results))  # again, because the answer and the erasure can take hours
    else:
        _withdraw(registry, names)


def _what_goes(
    registry: Path | str, names: Sequence[str], erase: bool, results: str | None, *, accounts: bool
) -> list[str]:
    held = users_of(registry, names).filter(pl.col("removed_at").is_null())
    listed = ", ".join(printable(name, 60) for name in names[:USERS_WARNED]) + (
        ", …" if len(names) > USERS_WARNED else ""
    )
    lines = [f"permanently withdraws {counted(held.height, 'message')} from {counted(len(names), 'user')}: {listed}"]
    if erase:
        lines.append(f"permanently erases the names from the registry{f' and from {results}' if results else ''}")
        if results:
            lines.append("deletes the texts that scans kept for flags that name them")
        if results and accounts:
            lines.append("erases accounts with the same names, and deletes the rows about them")
    return lines


def _texts_of(results: str | None, names: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return the flagged texts of users, as `flagged_texts_of` does. Without results, none is known."""
    from scanner.results.retention import flagged_texts_of

    return [] if results is None else flagged_texts_of(results, names)


def _claims_of(registry: Path | str, texts: Sequence[tuple[str, int, str]], results: str | None) -> list[str]:
    """Write which claims were made about texts, as `_texts_of` returns them. No erasure takes them back (SPEC_3 §5)."""
    from scanner.registry.shown_seeds import claims_by_text

    claims = claims_by_text(registry, load_registry(registry).keys)
    if not claims:
        return []
    if results is None:
        number = counted(sum(map(len, claims.values())), "claim")
        return [f"{number} showed seeds of this registry's keys: --results shows which are about texts of these users"]
    return [
        f"remains: the claim about {printable(path)}:{row} (event {claim.number:,} of key {claim.key_id}, "
        f"{claim.at:%Y-%m-%d}), with everyone who received it: the text, the user it is marked for, and the name; ask "
        "them to delete the folder"
        for path, row, sha256 in texts
        for claim in claims.get(sha256, ())
    ]


def _withdraw(registry: Path | str, names: Sequence[str]) -> None:
    removed = remove_users(registry, names)
    tell(
        f"{counted(removed, 'message')} withdrawn"
        if removed
        else "no message was withdrawn: these users no longer hold any"
    )


def _erase(
    registry: Path | str, names: Sequence[str], unknown: Sequence[str], results: str | None, *, accounts: bool
) -> None:
    from scanner.results.retention import count_accounts, erase_accounts, erase_user

    # 1. finish an erasure that died before it deleted the files with their names
    in_results, watch = 0, StepProgress("erase")
    if unknown:
        erase_users(registry, unknown)
    if results is not None:
        in_results = erase_user(results, unknown, watch)
        if accounts:
            in_results += erase_accounts(results, unknown, watch)
    if unknown and not in_results:
        if results is None:
            raise Refused(f"user {unknown[0]!r} holds no message in this registry; see `brickscan users list`")
        raise Refused(
            f"user {unknown[0]!r} is neither in the registry nor in the results; if an earlier erasure was killed, the "
            "files that it left are deleted now, except for those of the last hour: repeat this in an hour"
        )
    # 2. withdraw the messages, then erase names in results, and last in the registry, which must know them until then
    recorded = [name for name in names if name not in unknown]
    _withdraw(registry, recorded)
    if results is not None:
        in_results += erase_user(results, recorded, watch)
        if accounts:
            in_results += erase_accounts(results, recorded, watch)
        tell(f"names erased from {counted(in_results, 'row')} of the results")
    tell(f"names erased from {counted(erase_users(registry, recorded), 'row')} of the registry")
    # 3. report the data that stays
    if results is None:
        tell("the names may still be in results of scans: run this again with --results FOLDER for each")
    elif left := count_accounts(results, names):
        tell(
            f"the same names remain as posting accounts in {_in_tables(left)}, until their nights are dropped "
            "(`brickscan retain`): run this again with --accounts to erase them now"
        )
    tell("the names may still be in the input, in backups, and in data exported from tables")


def _in_tables(rows: Mapping[str, int]) -> str:
    """Count rows by table in words, for example `12 rows of verdicts, 1 row of flags`."""
    return ", ".join(f"{counted(number, 'row')} of {name}" for name, number in rows.items())


def _column(file: Path, column: str) -> pl.Series:
    separator = {".csv": ",", ".tsv": "\t", ".parquet": None}
    if file.suffix not in separator:
        raise Refused(f"--file {file}: must end in one of {', '.join(separator)}; rename it or give another file")
    try:
        between = separator[file.suffix]
        if between is None:
            from scanner.input.named_files import open_parquet

            parquet = open_parquet(file, f"--file {file}")
            names = parquet.schema_arrow.names
            frame = pl.DataFrame(parquet.read(columns=[column] if column in names else []))
        else:  # pass the bytes, because polars takes a file's name for a pattern of names
            data = io.BytesIO(read_named(file, MOST_LIST))
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
    """Return the columns of a file, and how it was written, from its name."""
    columns = ", ".join(repr(name) for name in names[:20])
    if suffix == ".parquet" or len(names) > 1:
        return columns
    for mark, name in ((";", "semicolons"), ("\t", "tabs"), (",", "commas")):
        if mark in names[0]:
            separator = "tabs" if suffix == ".tsv" else "commas"
            return f"{columns}: its columns are separated by {name}, but a {suffix} file needs {separator}"
    return columns
