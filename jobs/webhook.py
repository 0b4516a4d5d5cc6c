"""`brickscan webhook CONFIG`: decisions that moderators make in ROOST Coop come back as rows of `decisions`."""

from pathlib import Path

import click

from jobs.apps import needs_extra, serve
from jobs.options import NamedPath, results_at, scanned
from jobs.text import complain, tell

PORT = 8748


@click.command()
@click.argument("config", type=NamedPath(path_type=Path, dir_okay=False, exists=True))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of this machine to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
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
        from scanner.review.webhook import WebhookServer
    if not scanned(results_at(str(config))):
        return
    server = WebhookServer(config, host, port, complain)
    tell(f"webhook: {server.address}", "decisions of Coop are recorded; Ctrl-C ends the app")
    try:
        serve(server, "webhook")
    finally:
        tell(f"webhook: {server.summary()}")
