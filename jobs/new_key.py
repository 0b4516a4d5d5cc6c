"""`brickscan keys new`: a master key of the native watermark."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from jobs.key_words import cautions, weight, what
from jobs.options import DATE, Folder, held_by_option, time_of
from jobs.text import complain, tell
from scanner.errors import Refused
from scanner.printable import printable
from scanner.registry import load_registry, new_key, suggested_parameters
from schemas.registry import MOST_NUMBERS

USERS = 100_000
"""Users that a new key has room for by default; messages of a default key of version 1."""


@click.command("new")
@click.argument("key_id")
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry.")
@click.option("--method", default="greenlist", show_default=True, help="greenlist or gumbel.")
@click.option(
    "--version", type=click.IntRange(1, 2), default=2, show_default=True, help="Of the watermark; 1 is the paper's."
)
@click.option(
    "--users", type=float, help="For how many users, up to 4e9, for good: the key is in groups.  [default: 100,000]"
)
@click.option("--window", type=int, help="How many tokens before a token decide its mark: 0 to 16.  [default: 4]")
@click.option("--gamma", help="Share of green tokens, n/2^b in lowest terms; greenlist only.  [default: 1/4]")
@click.option(
    "--messages",
    type=int,
    help="Instead of --users: this many messages without groups, 65,536 at most; of version 1 [default: 100,000].",
)
@click.option("--tokenizer", required=True, metavar="PATH", help="The tokenizer.json of the model that will be marked.")
@click.option(
    "--secret",
    metavar="REFERENCE",
    help="file:PATH (made with a new secret when it is not there; a relative path starts at the registry) or env:NAME; "
    "both hold 16 to 64 bytes as hexadecimal text.  [default: file:secrets/KEY_ID.key]",
)
@click.option("--active-from", type=DATE, help="Nothing is marked with it before (UTC).  [default: now]")
@click.option("--active-until", type=DATE, help="Nothing is marked with it from then on (UTC); it is still scanned.")
@held_by_option
def new(
    key_id: str,
    registry: Path | str,
    method: str,
    version: int,
    users: float | None,
    window: int | None,
    gamma: str | None,
    messages: int | None,
    tokenizer: str,
    secret: str | None,
    active_from: datetime | None,
    active_until: datetime | None,
    held_by: str | None,
) -> None:
    """Make a master key, and its registry if there is none yet; prints the commitment to publish.

    KEY_ID: lower-case letters, digits, dots, dashes and underscores. A user has a message; 5 % of them are reserved.
    With --users a key has B groups of B users: B^2 messages, for about the cost of 1.3 B. In version 2, nobody who
    holds text of their own mark can change it into text of somebody else's; in version 1 they can.

    \b
    Example:
      brickscan keys new summer-2026 --registry registry --method greenlist --users 1e9 --tokenizer tokenizer.json
    """
    form = method if version == 1 else f"{method}-v{version}"
    groups, messages = _messages(version, users, messages, window)
    given: dict[str, Any] = {"window": window, "gamma": gamma, "groups": groups}
    given = {name: value for name, value in given.items() if value is not None}
    key = new_key(
        registry,
        key_id,
        format=form,
        **(suggested_parameters(form) | given),
        messages=messages,
        tokenizer=tokenizer,
        secret=secret,
        active_from=active_from and active_from.replace(tzinfo=UTC),
        active_until=active_until and active_until.replace(tzinfo=UTC),
        held_by=held_by,
    )
    tell(f"key         {key.key_id}: {what(key)}")
    tell(f"tokenizer   {key.tokenizer.file}, SHA-256 {key.tokenizer.sha256}")
    tell(f"secret      {key.secret}")
    tell(f"decoys      {load_registry(registry).audit_secret or 'none: see `brickscan keys audit-secret`'}")
    tell(f"commitment  {key.commitment or 'none: keys of this format are too short to be committed to'}")
    tell(f"made        {time_of(key.created_at)}")
    tell(*([] if key.held_by is None else [f"held by     {printable(key.held_by)}, who can mark for anybody"]))
    tell(*weight(key))
    complain(*(f"key {key.key_id!r}: {caution}" for caution in cautions(key)))
    tell(
        "",
        "Publish the commitment today (`brickscan keys publish`): it gives nothing of the secret away, and whoever is",
        "shown the secret later can check with it that this key was not chosen after the text. Back the secret up:",
        "without it, nothing that was marked with this key can be recognised again.",
    )


def _messages(version: int, users: float | None, messages: int | None, window: int | None) -> tuple[int | None, int]:
    """Groups and messages of a new key; without a window there are no groups."""
    from scanner.watermark.native.version2 import groups_for, users_of

    if users is not None and (messages is not None or version == 1):
        raise Refused("--users makes a key of version 2 with groups; leave out --messages and --version 1")
    if version == 1:
        return None, USERS if messages is None else messages
    if messages is not None and messages > MOST_NUMBERS:
        raise Refused(
            f"--messages {messages} is not allowed: a key without groups has {MOST_NUMBERS} at most. Give --users "
            f"{messages} instead, which costs less; or --version 1, under which users can accuse each other"
        )
    if messages is not None or (users is None and window == 0):
        return None, MOST_NUMBERS if messages is None else messages
    users = USERS if users is None else users
    most = users_of(MOST_NUMBERS)
    if not 1 <= users <= most:
        raise Refused(f"--users {users:g} is not allowed; a key has 1 to {most:,.0f}")
    groups = groups_for(users)
    return groups, groups**2
