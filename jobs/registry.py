"""`brickscan keys …` and `brickscan users …`: the registry from the command line."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import polars as pl

from jobs.admission import admit, audit_secret
from jobs.text import printable
from scanner.errors import Refused
from scanner.registry import (
    add_users,
    erase_users,
    list_users,
    load_registry,
    new_key,
    remove_users,
    retire_key,
    unknown_users,
)
from scanner.storage.locations import is_uri


class _Place(click.ParamType[Path | str]):
    """A folder, or a URI."""

    name = "folder"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        return str(value).rstrip("/") if is_uri(str(value)) else Path(str(value))


_registry = click.option("--registry", required=True, type=_Place(), help="Folder of the registry.")
_registry_or_uri = click.option("--registry", required=True, type=_Place(), help="Folder or URI of the registry.")
_DATE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])
_key_ids = click.option("--key", "key_ids", multiple=True, metavar="KEY_ID", help="A key; may be given several times.")


@click.group()
def keys() -> None:
    """Make, list and retire master keys.

    \b
    Example:
      brickscan keys new summer-2026 --registry registry --tokenizer tokenizer.json
      brickscan keys list --registry registry
      brickscan keys retire summer-2026 --registry registry
    """


@keys.command("new")
@click.argument("key_id")
@_registry
@click.option("--method", type=click.Choice(["greenlist", "gumbel"]), default="greenlist", show_default=True)
@click.option("--window", default=4, show_default=True, help="How many tokens before a token decide its mark: 0 to 16.")
@click.option("--gamma", help="Share of green tokens, n/2^b in lowest terms; greenlist only.  [default: 1/4]")
@click.option("--messages", default=100_000, show_default=True, help="How many messages: one a user, 5 % are reserved.")
@click.option("--tokenizer", required=True, metavar="PATH", help="The tokenizer.json of the model that will be marked.")
@click.option(
    "--secret",
    metavar="REFERENCE",
    help="file:PATH (made with a new secret when it is not there; a relative path starts at the registry) or env:NAME; "
    "both hold 16 to 64 bytes as hexadecimal text.  [default: file:secrets/KEY_ID.key]",
)
@click.option("--active-from", type=_DATE, help="Nothing is marked with it before (UTC).  [default: now]")
@click.option("--active-until", type=_DATE, help="Nothing is marked with it from then on (UTC); it is still scanned.")
def _new(
    key_id: str,
    registry: Path | str,
    method: str,
    window: int,
    gamma: str | None,
    messages: int,
    tokenizer: str,
    secret: str | None,
    active_from: datetime | None,
    active_until: datetime | None,
) -> None:
    """Make a master key, and its registry if there is none yet; prints the commitment to publish.

    KEY_ID: lower-case letters, digits, dots, dashes and underscores.

    \b
    Example:
      brickscan keys new summer-2026 --registry registry --method greenlist --window 4 --gamma 1/4 \\
          --messages 100000 --tokenizer tokenizer.json
    """
    if gamma is None and method == "greenlist":
        gamma = "1/4"
    key = new_key(
        registry,
        key_id,
        method=method,
        window=window,
        gamma=gamma,
        messages=messages,
        tokenizer=tokenizer,
        secret=secret,
        active_from=active_from and active_from.replace(tzinfo=UTC),
        active_until=active_until and active_until.replace(tzinfo=UTC),
    )
    of_gamma = f", gamma {key.gamma}" if key.gamma else ""
    click.echo(f"key         {key.key_id}: {key.method}, window {key.window}{of_gamma}, {key.messages:,} messages")
    click.echo(f"tokenizer   {key.tokenizer.file}, SHA-256 {key.tokenizer.sha256}")
    click.echo(f"secret      {key.secret}")
    click.echo(f"decoys      {load_registry(registry).audit_secret or 'none: see `brickscan keys audit-secret`'}")
    click.echo(f"commitment  {key.commitment}")
    click.echo(f"made        {_time(key.created_at)}")
    click.echo(
        "\nPublish the commitment today: it gives nothing of the secret away, and whoever is shown the secret later\n"
        "can check with it that this key was not chosen after the text. Back the secret up: without it, nothing that\n"
        "was marked with this key can be recognised again."
    )


@keys.command("list")
@_registry_or_uri
def _list_keys(registry: Path | str) -> None:
    """Show the keys of a registry, their parameters and their commitments.

    \b
    Example:
      brickscan keys list --registry registry
    """
    rows = [
        (
            key.key_id,
            key.method,
            str(key.window),
            key.gamma or "-",
            f"{key.messages:,}",
            key.tokenizer.sha256[:12],
            _time(key.created_at),
            _time(key.active_from),
            _time(key.active_until),
            _time(key.retired_at),
            f"{key.admission.holds_down_to:g}" if key.admission and key.admitted_by else "-",
            key.commitment,
        )
        for key in load_registry(registry).keys
    ]
    what = ("key", "method", "window", "gamma", "messages", "tokenizer")
    _table((*what, "made", "from", "until", "retired", "admitted", "commitment"), rows)


@keys.command("retire")
@click.argument("key_id")
@_registry
def _retire(key_id: str, registry: Path | str) -> None:
    """Retire a key: nothing is marked with it any more, and what was marked is still found.

    \b
    Example:
      brickscan keys retire summer-2026 --registry registry
    """
    retire_key(registry, key_id)
    click.echo(f"{key_id} is retired: scans still test it, nothing is marked with it, users get no message of it.")


keys.add_command(admit)
keys.add_command(audit_secret)


@click.group()
def users() -> None:
    """Give users messages of the keys, list them, and remove them.

    \b
    Example:
      brickscan users add alice bob --registry registry
      brickscan users list --registry registry
      brickscan users remove bob --registry registry
    """


@users.command("add")
@click.argument("user_ids", nargs=-1, metavar="[USER_ID]...")
@_registry_or_uri
@_key_ids
@click.option("--file", type=click.Path(path_type=Path), help="Take the users from a .csv or .parquet file.")
@click.option("--column", default="user_id", show_default=True, help="The file's column that holds them.")
def _add(
    user_ids: tuple[str, ...], registry: Path | str, key_ids: tuple[str, ...], file: Path | None, column: str
) -> None:
    """Give each user a random message that nobody ever had, under each key (by default every key not retired).

    A user who has a message keeps it, so the same call can be made again, and from several machines at once.

    \b
    Example:
      brickscan users add alice bob --registry registry --key summer-2026
      brickscan users add --file users.csv --column user_id --registry registry
    """
    if bool(user_ids) == (file is not None):
        raise click.UsageError("Name the users, or give --file; one of the two.")
    names = _column(file, column) if file is not None else list(user_ids)
    for done in add_users(registry, key_ids or None, names):
        kept = f", {done.kept:,} had a message and keep it" if done.kept else ""
        click.echo(f"{done.key_id}: {done.added:,} users added{kept}; {done.left:,} messages are left")


@users.command("list")
@_registry_or_uri
@_key_ids
def _list_users(registry: Path, key_ids: tuple[str, ...]) -> None:
    """Show who holds which message since when; a removed user's message is never given again.

    \b
    Example:
      brickscan users list --registry registry --key summer-2026
    """
    rows = [
        ("-" if user_id is None else printable(user_id), key_id, str(message), _time(allocated), _time(removed))
        for user_id, key_id, message, allocated, removed in list_users(registry, key_ids or None).iter_rows()
    ]
    _table(("user", "key", "message", "allocated", "removed"), rows)


@users.command("remove")
@click.argument("user_ids", nargs=-1, required=True, metavar="USER_ID...")
@_registry_or_uri
@click.option("--erase", is_flag=True, help="Also take the names out of the registry, for good.")
@click.option("--results", metavar="FOLDER", help="With --erase: folder or URI of results to take them out of too.")
def _remove(user_ids: tuple[str, ...], registry: Path | str, erase: bool, results: str | None) -> None:
    """Withdraw all messages of users: they are never given again, and name nobody in what is scanned from now on.

    A scan that is running may still write a name that it read before: repeat --erase --results when it has ended.
    Repeat --erase also when it was interrupted: it deletes what is left, though the name may be unknown by then.

    \b
    Example:
      brickscan users remove bob --registry registry
      brickscan users remove bob --registry registry --erase --results results
    """
    from scanner.results.erasure import erase_user
    from scanner.results.queries import exist

    if results is not None and not erase:
        raise click.UsageError("--results goes with --erase.")
    if results is not None and not exist(results):
        raise Refused(f"--results {results}: holds no results; give the folder named in the scan's configuration")
    names, in_results = list(dict.fromkeys(user_ids)), 0
    unknown = unknown_users(registry, names) if erase else []
    if unknown:
        erase_users(registry, unknown)  # deletes files with their names that an erasure left which died
    if results is not None:
        in_results = erase_user(results, unknown)
        if unknown and not in_results:
            raise Refused(f"user {unknown[0]!r} stands neither in the registry nor in the results; nothing was changed")
        names = [name for name in names if name not in unknown]
    removed = remove_users(registry, names)
    click.echo(f"{removed:,} messages withdrawn" if removed else "no message was withdrawn: none is held any more")
    if results is not None:
        in_results += erase_user(results, names)
        click.echo(f"names erased from {in_results:,} rows of the results")
    if erase:
        click.echo(f"names erased from {erase_users(registry, names):,} rows of the registry")


def _column(file: Path, column: str) -> pl.Series:
    """The users in a column of a CSV or Parquet file, as text."""
    if file.suffix not in (".csv", ".parquet"):
        raise Refused(f"--file {file}: is neither .csv nor .parquet; one of the two is needed")
    try:
        frame = pl.read_csv(file, infer_schema=False) if file.suffix == ".csv" else pl.read_parquet(file)
    except OSError as error:
        raise Refused(f"--file {file}: cannot be read ({error.strerror or 'no such file'})") from None
    except pl.exceptions.PolarsError as error:
        raise Refused(f"--file {file}: cannot be read as {file.suffix[1:]} ({str(error).splitlines()[0]})") from None
    if column not in frame.columns:
        raise Refused(f"--file {file}: has no column {column!r}; it has {', '.join(frame.columns)}")
    users = frame[column]
    if not (users.dtype.is_integer() or users.dtype in (pl.String, pl.Categorical, pl.Enum)):
        raise Refused(f"--file {file}: column {column!r} is of type {users.dtype}; text or whole numbers are needed")
    return users.cast(pl.String)


def _time(time: datetime | None) -> str:
    return "-" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows))
    click.echo("\n".join(lines))
