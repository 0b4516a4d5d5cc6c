"""`brickscan keys admit`, `audit-secret`, `publish` and `verify`: what makes keys reliable, and known to others."""

from pathlib import Path

import click

from jobs.options import Folder, NamedPath
from jobs.text import complain, counted, tell
from scanner.registry import admit_key, find_key, load_registry, set_audit_secret
from scanner.registry.commitments import Published, faults, publish, read_published

_registry = click.option("--registry", required=True, type=NamedPath(path_type=Path), help="Folder of the registry.")


@click.command()
@click.argument("key_id")
@_registry
@click.option("--results", required=True, metavar="DIR", help="Results of `brickscan calibrate` on this key.")
@click.option("--candidates", type=click.IntRange(min=1), help="How many keys were tried.  [default: as audited there]")
@click.option(
    "--down-to",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    metavar="P",
    help="Refuse unless the rate is known to hold down to this p-value, such as 1e-6.",
)
def admit(key_id: str, registry: Path, results: str, candidates: int | None, down_to: float) -> None:
    """Record that a key passed its audit, and how many keys were tried to find it.

    Its newest audit decides: nothing too small, and the rate known to hold down to some p-value. A configuration with
    `audit.require_admission` refuses to scan with keys that are not admitted down to its false-positive rate. An audit
    with `keys.filter` admits a key for scans whose `filter` leaves out as much.

    \b
    Example:
      brickscan keys admit summer-2026 --registry registry --results audit --down-to 1e-6
    """
    from scanner.audit.calibration.admission import admission_of, in_words
    from scanner.results.queries import audits

    key = find_key(load_registry(registry), key_id)
    passed = admission_of(key, audits(results).collect(), candidates, down_to)
    admit_key(registry, key_id, passed)
    tell(
        f"{key_id} passed audit {passed.audit_id}: its rate holds down to p = {passed.holds_down_to:g}"
        f"{'' if passed.filter is None else f', {in_words(passed.filter)}'}; "
        f"{passed.candidates} keys were tried"
        + (f", so that its p-values are to be multiplied by {passed.candidates}" if passed.candidates > 1 else "")
    )


@click.command("audit-secret")
@_registry
@click.option("--secret", metavar="REFERENCE", help="As for `keys new`.  [default: file:secrets/decoys.secret]")
def audit_secret(registry: Path, secret: str | None) -> None:
    """Name the secret that scans draw decoy keys from; `keys new` makes one with a registry's first key.

    Decoys test in every scan that p-values are not too small. Who knows the secret could write text that hits them.

    \b
    Example:
      brickscan keys audit-secret --registry registry
    """
    tell(f"audit secret  {set_audit_secret(registry, secret)}")


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
