"""`brickscan review CONFIG|RESULTS`: a web app of this machine in which somebody decides on flags."""

import click

from jobs.apps import needs_extra, serve
from jobs.decide import by_option, login_name
from jobs.options import results_argument, results_at, scanned
from jobs.text import tell
from scanner.printable import printable

PORT = 8747


@click.command()
@results_argument
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
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
        from scanner.review.serving import ReviewServer
    from scanner.evidence.explainer import Explainer

    place = results_at(results)
    if not scanned(place):
        return
    server = ReviewServer(Explainer(place.config or place.folder), by or login_name(), port)
    tell(
        f"review: {server.address}",
        f"as {printable(server.by)}; whoever has this address can see all flags and decide; Ctrl-C ends the app",
    )
    serve(server, "review")
