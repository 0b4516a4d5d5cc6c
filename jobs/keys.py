"""`brickscan keys …`: the master keys of a registry from the command line."""

from pathlib import Path

import click

from jobs.admission import admit, audit_secret
from jobs.commitments import publish_, verify
from jobs.key_words import cautions, strength, what
from jobs.new_key import new
from jobs.options import Folder, dry_run_option, sure, time_of, yes_option
from jobs.stack_key import add
from jobs.text import tell, wrapped
from scanner.printable import printable
from scanner.registry import find_key, load_registry, retire_key
from scanner.registry.locked_files import local_folder
from schemas.registry import MasterKey


@click.group()
def keys() -> None:
    """Make, list, publish and retire master keys.

    \b
    Example:
      brickscan keys new summer-2026 --registry registry --tokenizer tokenizer.json
      brickscan keys list --registry registry
      brickscan keys publish commitments.txt --registry registry
      brickscan keys retire summer-2026 --registry registry
    """


@keys.command("list")
@click.option("--registry", required=True, type=Folder(), help="Folder or URI of the registry.")
def _list_keys(registry: Path | str) -> None:
    """Show the keys of a registry, their parameters, when they mark, and their commitments.

    \b
    Example:
      brickscan keys list --registry registry
    """
    for key in load_registry(registry).keys:
        tell(*_lines(key))


def _lines(key: MasterKey) -> list[str]:
    """A key in lines of at most 100 columns."""
    admitted = "never"
    if key.admission and key.admitted_by:
        admitted = f"to p = {key.admission.holds_down_to:g}{', with a filter' if key.admission.filter else ''}"
    return [
        key.key_id,
        *wrapped(f"  {what(key)}, tokenizer {key.tokenizer.sha256[:12]}", 100, "    "),
        f"  made {time_of(key.created_at)}, {_marks(key)}",
        f"  admitted by an audit: {admitted}",
        f"  commitment {key.commitment or 'none'}",
        *([] if key.held_by is None else wrapped(f"  held by {printable(key.held_by)}", 100, "    ")),
        *strength(key),
        *([] if key.one_of is None else [f"  weight 1/{key.one_of:,} of a false-positive rate"]),
        *(line for caution in cautions(key) for line in wrapped(f"  careful: {caution}", 100, "    ")),
    ]


def _marks(key: MasterKey) -> str:
    """The time in which text is marked with a key."""
    if key.retired_at is not None:
        return f"retired {time_of(key.retired_at)}"
    times = [
        f"{word} {time_of(time)}" for word, time in (("from", key.active_from), ("until", key.active_until)) if time
    ]
    return "marks " + (" ".join(times) or "until it is retired")


@keys.command("retire")
@click.argument("key_id")
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry.")
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


for _command in (new, add, admit, audit_secret, publish_, verify):
    keys.add_command(_command)
