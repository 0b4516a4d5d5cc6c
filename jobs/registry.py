"""`brickscan keys …`: the master keys of a registry from the command line."""

from datetime import UTC, datetime
from pathlib import Path

import click

from jobs.admission import admit, audit_secret
from jobs.options import Place, dry_run_option, sure, time_of, yes_option
from jobs.text import tell
from scanner.registry import find_key, load_registry, new_key, retire_key, suggested_parameters
from scanner.registry.files import local_folder
from schemas.registry import MasterKey

_registry = click.option("--registry", required=True, type=Place(), help="Folder of the registry.")
_registry_or_uri = click.option("--registry", required=True, type=Place(), help="Folder or URI of the registry.")
_DATE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])


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
@click.option("--method", default="greenlist", show_default=True, help="greenlist or gumbel.")
@click.option("--window", type=int, help="How many tokens before a token decide its mark: 0 to 16.  [default: 4]")
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
def new(
    key_id: str,
    registry: Path | str,
    method: str,
    window: int | None,
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
    given = {name: value for name, value in (("window", window), ("gamma", gamma)) if value is not None}
    key = new_key(
        registry,
        key_id,
        format=method,
        **{**suggested_parameters(method), **given},
        messages=messages,
        tokenizer=tokenizer,
        secret=secret,
        active_from=active_from and active_from.replace(tzinfo=UTC),
        active_until=active_until and active_until.replace(tzinfo=UTC),
    )
    tell(f"key         {key.key_id}: {_what(key)}")
    tell(f"tokenizer   {key.tokenizer.file}, SHA-256 {key.tokenizer.sha256}")
    tell(f"secret      {key.secret}")
    tell(f"decoys      {load_registry(registry).audit_secret or 'none: see `brickscan keys audit-secret`'}")
    tell(f"commitment  {key.commitment or 'none: keys of this format are too short to be committed to'}")
    tell(f"made        {time_of(key.created_at)}")
    tell(
        "",
        "Publish the commitment today: it gives nothing of the secret away, and whoever is shown the secret later",
        "can check with it that this key was not chosen after the text. Back the secret up: without it, nothing that",
        "was marked with this key can be recognised again.",
    )


@keys.command("list")
@_registry_or_uri
def _list_keys(registry: Path | str) -> None:
    """Show the keys of a registry, their parameters, when they mark, and their commitments.

    \b
    Example:
      brickscan keys list --registry registry
    """
    for key in load_registry(registry).keys:
        tell(*_lines(key))


def _what(key: MasterKey) -> str:
    """Its format, parameters and messages, in words."""
    parameters = "".join(f", {name} {value}" for name, value in key.parameters.items())
    return f"{key.format}{parameters}, {key.messages:,} messages"


def _lines(key: MasterKey) -> list[str]:
    """A key in lines of at most 100 columns."""
    admitted = f"to p = {key.admission.holds_down_to:g}" if key.admission and key.admitted_by else "never"
    return [
        key.key_id,
        f"  {_what(key)}, tokenizer {key.tokenizer.sha256[:12]}",
        f"  made {time_of(key.created_at)}, {_marks(key)}",
        f"  admitted by an audit: {admitted}",
        f"  commitment {key.commitment or 'none'}",
    ]


def _marks(key: MasterKey) -> str:
    """When text is marked with a key."""
    if key.retired_at is not None:
        return f"retired {time_of(key.retired_at)}"
    times = [
        f"{word} {time_of(time)}" for word, time in (("from", key.active_from), ("until", key.active_until)) if time
    ]
    return "marks " + (" ".join(times) or "until it is retired")


@keys.command("retire")
@click.argument("key_id")
@_registry
@yes_option
@dry_run_option
def _retire(key_id: str, registry: Path | str, yes: bool, dry_run: bool) -> None:
    """Retire a key: nothing is marked with it any more, and what was marked is still found.

    This cannot be undone, so it asks first. A key that is retired stays as it is.

    \b
    Example:
      brickscan keys retire summer-2026 --registry registry --dry-run
      brickscan keys retire summer-2026 --registry registry --yes
    """
    key = find_key(load_registry(local_folder(registry)), key_id)
    if key.retired_at is not None:
        tell(f"{key_id} was retired {time_of(key.retired_at)}; nothing changed")
    elif sure([f"retires {key_id}, for good: nothing is marked with it, users get no message of it"], yes, dry_run):
        retire_key(registry, key_id)
        tell(f"{key_id} is retired: scans still test it, nothing is marked with it, users get no message of it.")


keys.add_command(admit)
keys.add_command(audit_secret)
