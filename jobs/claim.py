"""Run `brickscan claim`: make a claim about one flag that anybody can check without the key."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.options import NamedPath, confirm, dry_run_option, yes_option
from jobs.text import complain, tell
from scanner.printable import counted, printable

if TYPE_CHECKING:
    from scanner.claims.claim import PreparedClaim


@click.command()
@click.argument("config", type=NamedPath(path_type=Path, dir_okay=False, exists=True))
@click.argument("document", metavar="DOC")
@click.option("--out", required=True, type=NamedPath(path_type=Path), help="New folder for the claim")
@click.option(
    "--list",
    "published",
    type=NamedPath(path_type=Path, dir_okay=False, exists=True),
    help="List of `brickscan keys publish`, to check the claim against first",
)
@click.option(
    "--user",
    metavar="USER",
    help="User whom the flag names, or KEY_ID:MESSAGE, if the name was erased  [default: the first]",
)
@click.option("--wait", is_flag=True, help="Wait for running scans to end")
@yes_option
@dry_run_option
def claim(
    config: Path,
    document: str,
    out: Path,
    published: Path | None,
    user: str | None,
    wait: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Make a claim about one flag that anybody can check without the key (keys of version 3).

    DOC is the id of a flagged document, or PATH:ROW. The claim shows the seeds that the text meets, at most 1,000, and
    nothing else of the key. check_claim.py checks it without brickscan and without a secret.

    What a claim shows stays public for good, and these windows of words are no longer marked or scored. So the command
    checks the claim, says what it shows, and asks first. It writes the claim once every scan that began before has
    ended. Call it again after an interruption. Give the folder to the parties only: it reveals every message that is
    marked in the text.

    \b
    Example:
      brickscan claim scan.toml post-4711 --out case-17 --dry-run
      brickscan claim scan.toml post-4711 --out case-17 --list commitments.txt
    """
    from scanner.claims.claim import prepare, refuse_folder, refuse_if_changed, show, wait_for_readers, write
    from scanner.evidence import check_claim

    refuse_folder(out)
    prepared = prepare(config, document, published, user)
    changes = _changes(prepared)
    if yes and not dry_run:
        complain(*changes)
    if not confirm(changes, yes, dry_run):
        return
    files = show(prepared)
    wait_for_readers(prepared, files, wait=wait, tell=complain)
    refuse_if_changed(prepared, files)
    write(files, out)
    tell(
        f"claim: {out}; python -I check_claim.py {out} LIST HEAD checks it, without a secret",
        "Now publish the head of the key's events (`brickscan keys publish`): it shows that no event was left out.",
        f"The script is {check_claim.__file__}; the person who checks should take it from a copy of brickscan that "
        "they trust.",
    )


def _changes(prepared: "PreparedClaim") -> list[str]:
    """Write what a claim shows, what that costs, and that it cannot be taken back."""
    key, unit, seeds = prepared.key, prepared.unit, counted(len(prepared.seeds), "seed")
    what = f"{unit.variant or 'as written'}, tokens {unit.begin + 1} to {unit.end}"
    name = prepared.user_id
    whose = f"message {prepared.fields['message']}, " + ("no name" if name is None else f"user {printable(name)!r}")
    about = f"claims about {prepared.where}, {what}, {whose}: shows {seeds} of key {key.key_id}"
    before = [f"signatures of tables were not checked: {prepared.not_checked}"] if prepared.not_checked else []
    asked_by = prepared.settings.asked_by
    if asked_by is not None:
        before.append(f"who may ask for it, according to your scan.toml: {printable(asked_by)}")
    if prepared.event is not None and not prepared.newly:
        nothing_new = f"{about}, all shown by earlier claims; nothing new is shown"
        return [*before, nothing_new, *_doubt(prepared), "anyone who has the claim sees every message in the text"]
    return [
        *before,
        f"{about}, {prepared.newly:,} of them for the first time",
        *_doubt(prepared),
        "permanent: anyone who has the claim can mark these windows of words for any user, and sees every message "
        "that is marked in the text, other users' too",
        "so from now on scans under the key leave these positions out, in all texts, and nothing is marked there; "
        "once 5 % of the positions are left out, it is time for a new key",
        "an erasure removes the claim from your records, but not from anyone who has the folder",
    ]


def _doubt(prepared: "PreparedClaim") -> list[str]:
    """Write to whom a claim would prove nothing, because its key could be chosen among many."""
    from scanner.evidence.check_claim import TRIED

    if prepared.log10_p <= TRIED:
        return []
    without = "only to those who trust that you did not try many keys, since the key's record names no beacon"
    after = "only if an auditor or a public log had all your records before the beacon's value was known"
    why = without if prepared.key.beacon_value is None else after
    return [f"log10 p of this claim is {prepared.log10_p:.1f}, above {TRIED:.0f}: it proves something {why}"]
