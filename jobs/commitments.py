"""`brickscan keys publish` and `brickscan keys verify`: the public list of commitments, which is only appended to."""

from pathlib import Path

import click

from jobs.options import Folder, NamedPath
from jobs.text import complain, counted, tell
from scanner.registry import load_registry
from scanner.registry.announced import Published, faults, publish, read_published

_file = click.argument("file", type=NamedPath(path_type=Path))


@click.command("publish")
@_file
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry.")
def publish_(file: Path, registry: Path | str) -> None:
    """Append the commitments of a registry's keys to FILE, a list for the public, each with a running number.

    A line has the key's messages and the SHA-256 of its tokenizer too. FILE is made where it is not there; what it
    holds already stays, and a list whose lines were changed or taken out is refused. Put it where others see and copy
    it. Run it after each `keys new`, before anything is marked.

    \b
    Example:
      brickscan keys publish commitments.txt --registry registry
    """
    lines, new = publish(registry, file)
    tell(*(" ".join(map(str, line[:5])) for line in lines[len(lines) - new :]))
    tell(_in_words(lines) + f"; {new:,} of them new")
    left_out = [key.key_id for key in load_registry(registry).keys if key.commitment is None]
    if left_out:
        why = "a commitment to a key of fewer than 128 bits would give the key away"
        tell(f"left out, for {why}: {', '.join(left_out)}")


@click.command("verify")
@_file
@click.option("--earlier", type=NamedPath(path_type=Path), help="A copy of the list that somebody kept.")
@click.option("--registry", type=Folder(), help="Folder or URI of a registry, whose keys must be in the list.")
def verify(file: Path, earlier: Path | None, registry: Path | str | None) -> int:
    """Tell whether FILE, a list of published commitments, is as it was written, and how many it holds.

    Whoever believes a flag under one of these keys multiplies its p-value by their number, where the scan's own
    correction counted fewer. Exit code 3: lines of the earlier copy are gone, or keys of the registry are missing.

    \b
    Example:
      brickscan keys verify commitments.txt --earlier copy-of-march.txt
    """
    lines = read_published(file)
    found = faults(lines, read_published(earlier) if earlier else [], registry)
    tell(_in_words(lines))
    complain(*found)
    return 3 if found else 0


def _in_words(lines: list[Published]) -> str:
    commitments = len({line.commitment for line in lines})
    return f"{counted(commitments, 'commitment')} published, head {lines[-1].head if lines else '-'}"
