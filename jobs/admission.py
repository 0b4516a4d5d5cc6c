"""`brickscan keys admit` and `brickscan keys audit-secret`: what makes a key's false-positive rate reliable."""

from pathlib import Path

import click

from jobs.options import NamedPath
from jobs.text import tell
from scanner.registry import admit_key, find_key, load_registry, set_audit_secret

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
