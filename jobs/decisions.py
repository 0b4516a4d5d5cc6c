"""`brickscan review`, `webhook`, `decide`: where people decide on flags."""

import contextlib
import getpass
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.options import NamedPath, results_argument, results_at, scanned
from jobs.text import complain, tell
from scanner.errors import Refused
from scanner.interrupts import Terminated
from scanner.printable import printable
from schemas.words import ReviewDecision

if TYPE_CHECKING:
    from scanner.service.serving import Server


@contextlib.contextmanager
def needs_extra(command: str, extra: str = "review") -> Iterator[None]:
    """Context for imports of packages that only an extra installs.

    Raises:
        Refused: the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise Refused(f"{command} needs {error.name}; install it with `pip install 'brickscan[{extra}]'`") from None


def run_until_ended(server: "Server", command: str) -> None:
    """Serve until Ctrl-C, or SIGTERM, which is raised again."""
    try:
        server.run()
    except Terminated:
        raise
    except KeyboardInterrupt:
        tell(f"{command}: ended")


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
@click.argument("decision", type=click.Choice([one.value for one in ReviewDecision]))
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
    from scanner.results.decision_log import NewDecision, decide, new_id, on_documents

    place = results_at(results)
    made = NewDecision(new_id(), by or login_name(), "command", decision, note)
    case = find_case(place.folder, place.false_positive_rate, document)
    decide(place.folder, case.row, made)
    ((_, decisions),) = on_documents(place.folder, [case.row]).items()
    tell(f"{printable(case.where)}: {decision}, by {printable(made.decided_by)}")
    others = [one for one in decisions if one["decided_by"] != made.decided_by]
    tell(*(f"  {printable(one['decided_by'])} decided: {one['decision']}" for one in others))


REVIEW_PORT = 8747


@click.command()
@results_argument
@click.option(
    "--port", default=REVIEW_PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free."
)
@by_option
def review(results: str, port: int, by: str | None) -> None:
    """Look at flags in a browser, one after the other, and decide on each of them.

    Decisions are confirmed, quoted, dismissed, unclear and allowed.

    CONFIG: the file of the scan; or RESULTS: its folder or URI of results, with which no text is shown. The app listens
    on 127.0.0.1 alone, for whoever has the address that it prints; it works by keyboard, and without scripts. Decisions
    are recorded as by `brickscan decide`. Several reviewers each run their own, on any machine that has the results.
    Ctrl-C ends it; recorded decisions stay.

    \b
    Example:
      brickscan review scan.toml --by ruth
    """
    with needs_extra("review"):
        from scanner.service.review_app import ReviewServer
    from scanner.evidence.explainer import Explainer

    place = results_at(results)
    if not scanned(place):
        return
    server = ReviewServer(Explainer(place.config or place.folder), by or login_name(), port)
    tell(
        f"review: {server.address}",
        f"as {printable(server.by)}; whoever has this address can see all flags and decide; Ctrl-C ends the app",
    )
    run_until_ended(server, "review")


WEBHOOK_PORT = 8748


@click.command()
@click.argument("config", type=NamedPath(path_type=Path, dir_okay=False, exists=True))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of this machine to listen on.")
@click.option(
    "--port", default=WEBHOOK_PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free."
)
def webhook(config: Path, host: str, port: int) -> None:
    """Take the decisions that moderators made in ROOST Coop on flags that `brickscan export` sent there.

    CONFIG: the file of the scan, with a section [export.coop.webhook] that names Coop's key and its actions. Coop posts
    an action to the address that this prints, usually by way of a server that ends TLS. A post that Coop did not sign
    is refused; one that comes again is one decision. Each signed post is printed as a line. Ctrl-C ends it; recorded
    decisions stay.

    \b
    Example:
      brickscan webhook scan.toml
    """
    with needs_extra("webhook"):
        from scanner.service.webhook import WebhookServer
    if not scanned(results_at(str(config))):
        return
    server = WebhookServer(config, host, port, complain)
    tell(f"webhook: {server.address}", "decisions of Coop are recorded; Ctrl-C ends the app")
    try:
        run_until_ended(server, "webhook")
    finally:
        tell(f"webhook: {server.summary()}")
