"""`brickscan decide CONFIG|RESULTS DOC DECISION`: a decision on a flag, recorded for good."""

import getpass

import click

from jobs.options import results_argument, results_at
from jobs.text import tell
from scanner.printable import printable
from schemas.words import Decision

by_option = click.option("--by", metavar="NAME", help="Who decides.  [default: your login name]")


def login_name() -> str:
    """Name of the user who runs this; `unknown` where the machine has no name for them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have a user who is in no list
        return "unknown"


@click.command()
@results_argument
@click.argument("document", metavar="DOC")
@click.argument("decision", type=click.Choice([one.value for one in Decision]))
@click.option("--note", default="", help="Why, in words.")
@by_option
def decide(results: str, document: str, decision: str, note: str, by: str | None) -> None:
    """Record what was decided on a flag: confirmed, quoted, dismissed, unclear or allowed.

    CONFIG: the file of the scan; or RESULTS: its folder or URI of results. DOC: the id of a flagged document, or
    PATH:ROW. No decision is ever changed: each decider's newest decision stands, and decisions of deciders who differ
    are both shown. `flagged --open` lists flags without a decision, and `report` tells how often flags were right.

    \b
    Example:
      brickscan decide scan.toml post-4711 quoted --note "the first comment quotes it"
    """
    from scanner.evidence.case import find_case
    from scanner.results.decided import Made, decide, new_id, on_documents

    place = results_at(results)
    made = Made(new_id(), by or login_name(), "command", decision, note)
    case = find_case(place.folder, place.false_positive_rate, document)
    decide(place.folder, case.row, made)
    ((_, standing),) = on_documents(place.folder, [case.row]).items()
    tell(f"{printable(case.where)}: {decision}, by {printable(made.decided_by)}")
    others = [one for one in standing if one["decided_by"] != made.decided_by]
    tell(*(f"  {printable(one['decided_by'])} decided: {one['decision']}" for one in others))
