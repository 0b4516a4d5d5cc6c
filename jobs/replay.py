"""`brickscan replay CONFIG DOC`: one verdict computed again, and whether it comes out equal, field by field."""

import json
import math
from datetime import datetime
from pathlib import Path

import click

from jobs.options import NamedPath
from jobs.text import columns, tell
from scanner.printable import printable


@click.command()
@click.argument("config", type=NamedPath(path_type=Path, dir_okay=False, exists=True))
@click.argument("document", metavar="DOC")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--proof", "folder", type=NamedPath(path_type=Path), help="A new folder for whoever checks the flag.")
def replay(config: Path, document: str, as_json: bool, folder: Path | None) -> int:
    """Compute one verdict again and compare it with the recorded one, field by field.

    CONFIG: the file of the scan. DOC: the id of a flagged document, or PATH:ROW. The text is read again from its file,
    or from what the scan kept ([evidence] keep_text), and must be the one that was scanned; keys are those that the
    scan recorded. Score and p-value of the message come from a slow path that shares no code with the scan. Exit code
    3: something comes out differently.

    --proof writes what a third party needs: the claim, the text, its tokens, and the tokenizer. No file of it
    holds anything of the key. Once the key is revealed to them, check_claim.py checks the claim without brickscan, and
    says what it does not check. Where the evidence comes out differently, nothing is written.

    \b
    Example:
      brickscan replay scan.toml post-4711
      brickscan replay scan.toml post-4711 --proof case-17
    """
    from scanner.evidence.replaying import replay as replayed

    found = replayed(config, document)
    if folder is not None and found.evidence_equal:
        from scanner.evidence.claim import write_claim
        from scanner.evidence.explainer import Explainer

        write_claim(Explainer(config), found.case, folder)
    if as_json:
        fields = [
            one._asdict() | {"recorded": _plain(one.recorded), "again": _plain(one.again)} for one in found.fields
        ]
        record = {"document": found.case.where, "equal": found.equal, "text_not_from_file": found.not_from_file}
        record["fields"] = fields
        tell(*json.dumps(record, indent=1).splitlines())
        return 0 if found.equal else 3
    rows = [
        (one.field, _shown(one.recorded), _shown(one.again), "equal" if one.equal else "DIFFERS", one.why or "")
        for one in found.fields
    ]
    tell(*columns([("field", "recorded", "computed again", "", ""), *rows]))
    if found.not_from_file is not None:
        tell(f"The text is the one that the scan kept ({found.not_from_file}); what stood beside it is not compared.")
    if folder is not None and not found.evidence_equal:
        tell(f"no claim is written to {folder}: a verdict that comes out differently is none to prove")
    elif folder is not None:
        from scanner.evidence import check_claim

        tell(f"claim: {folder}; python -I check_claim.py {folder} SECRET_FILE LIST HEAD checks it")
        tell(f"The script is {check_claim.__file__}; whoever checks takes it from a copy of brickscan that they trust.")
    if found.equal:
        tell("The verdict comes out equal.")
    elif found.evidence_equal:
        why = "" if found.registry.agrees is not False else f" {found.registry.sentence}."
        tell(f"The evidence comes out equal; whose the message is does not: look at `brickscan users verify`.{why}")
    else:
        tell("The verdict comes out DIFFERENTLY: do not use this flag.")
    return 0 if found.equal else 3


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.10g}"
    return printable(str(_plain(value)), 60)
