"""Run `brickscan serve`: the detector for others, its signing keys, and tokens of experts."""

import datetime
import gc
import resource
import sys
from pathlib import Path

import click

from jobs.decisions import needs_extra, run_until_ended
from jobs.options import DATE_OR_MINUTE, NamedPath, Whole
from jobs.text import columns, complain, tell
from scanner.printable import printable
from scanner.storage.toml import read_toml
from schemas.service import DetectorConfig

DETECTOR_PORT = 8000
"""Port of vLLM's example server. Its clients then ask the detector without a change."""

_CONFIG = NamedPath(path_type=Path, dir_okay=False, exists=True)


class _ServeGroup(click.Group):
    """A group that serves if its first argument is no command's name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["run", *args])


@click.group(cls=_ServeGroup)
def serve() -> None:
    """Answer over HTTP whether texts carry a mark, signed, without giving the mark away.

    `brickscan serve CONFIG` runs the detector of that file; `brickscan serve run --help` lists its options, and
    `brickscan schema serve` the fields of CONFIG.

    \b
    Example:
      brickscan serve detector.toml
      curl http://localhost:8000/detect -H 'Content-Type: application/json' -d '{"text":"Text to inspect"}'
    """


@serve.command(hidden=True)
@click.argument("config", type=_CONFIG)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; use a proxy in front for TLS"
)
@click.option("--port", default=DETECTOR_PORT, show_default=True, type=Whole(0, 65535), help="Port; 0: any free one")
def run(config: Path, host: str, port: int) -> None:
    """Run the detector until Ctrl-C. The word `run` may be left out.

    \b
    Example:
      brickscan serve run detector.toml --host 0.0.0.0
    """
    with needs_extra("serve", "serve"):
        from scanner.service.detector_app import DetectorServer
        from scanner.service.processes import forbid_core_dumps
        from scanner.service.signing import new_signing_key, signing_keys
    read = read_toml(config, DetectorConfig)
    forbid_core_dumps()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    state = config.absolute().parent / read.state
    if not signing_keys(state):
        tell(f"signing key: {new_signing_key(state).key_id} was made")
    server = DetectorServer(read, config.absolute().parent, host, port, complain)
    first = server.answers.first
    common = "left out" if first.night else "scored, too"
    rate, factor = first.check.rules.false_positive_rate, first.factor
    withheld = f"; not served: {', '.join(first.withheld)}" if first.withheld else ""
    tell(
        f"detector: {server.address}/ (ready when {server.address}/ready says so); Ctrl-C ends it",
        f"serves {', '.join(key.key_id for key in first.check.keys)}{withheld}",
        f"says “found” where p is {first.false_positive_rate:g} or less, “not found” where it is "
        f"{min(1.0, rate * factor):g} or more; common n-grams are {common}",
    )
    gc.freeze()  # otherwise the collector would go through all imports while answers wait
    sys.setswitchinterval(0.001)  # with the default, a thread beside the loop could delay an answer five times as long
    run_until_ended(server, "serve")


def _state(config: Path) -> Path:
    return config.absolute().parent / read_toml(config, DetectorConfig).state


@serve.group()
def key() -> None:
    """Make and end the keys that sign reports; each stays published, with its dates.

    \b
    Example:
      brickscan serve key rotate detector.toml
    """


@key.command(name="new")
@click.argument("config", type=_CONFIG)
def _new_key(config: Path) -> None:
    """Make the first signing key. The detector makes it by itself where there is none.

    \b
    Example:
      brickscan serve key new detector.toml
    """
    with needs_extra("serve", "serve"):
        from scanner.service.signing import new_signing_key, signing_keys
    current = [key for key in signing_keys(_state(config)) if key.signs_until is None]
    if current:
        raise click.UsageError(f"{current[-1].key_id} signs; `brickscan serve key rotate` replaces it.")
    tell(f"{new_signing_key(_state(config)).key_id} signs from now on")


@key.command(name="rotate")
@click.argument("config", type=_CONFIG)
def _rotate_key(config: Path) -> None:
    """Replace the signing key with a new one; earlier reports stay valid.

    \b
    Example:
      brickscan serve key rotate detector.toml
    """
    with needs_extra("serve", "serve"):
        from scanner.service.signing import new_signing_key
    tell(f"{new_signing_key(_state(config)).key_id} signs from now on")


@key.command(name="revoke")
@click.argument("key_id")
@click.argument("config", type=_CONFIG)
def _revoke_key(key_id: str, config: Path) -> None:
    """Revoke a key that somebody else may have: its reports are no longer valid.

    \b
    Example:
      brickscan serve key revoke 0123456789abcdef0123456789abcdef detector.toml
    """
    with needs_extra("serve", "serve"):
        from scanner.service.signing import revoke_signing_key, signing_keys
    tell(f"{revoke_signing_key(_state(config), key_id).key_id} is revoked")
    if all(key.signs_until for key in signing_keys(_state(config))):
        tell("no key signs now, so the detector cannot answer: run `brickscan serve key new`")


@serve.group()
def token() -> None:
    """Let experts learn more than anybody does, until a day.

    \b
    Example:
      brickscan serve token new detector.toml --for "Agency, Ms Roth" --until 2027-06-30
    """


@token.command(name="new")
@click.argument("config", type=_CONFIG)
@click.option("--for", "expert", required=True, metavar="NAME", help="Name of the expert")
@click.option("--until", required=True, type=DATE_OR_MINUTE, help="Day (UTC) on which it expires")
def _new_token(config: Path, expert: str, until: datetime.datetime) -> None:
    """Issue a token and print it; only its digest is kept. It is sent as `Authorization: Bearer TOKEN`.

    \b
    Example:
      brickscan serve token new detector.toml --for "Agency, Ms Roth" --until 2027-06-30
    """
    from scanner.service.signing import issue_token

    issued, record = issue_token(_state(config), expert, until.replace(tzinfo=datetime.UTC))
    complain(
        f"token {record.token_id} of {printable(record.expert)}, until {record.until:%Y-%m-%d}; it is shown only once:"
    )
    tell(issued)


@token.command(name="list")
@click.argument("config", type=_CONFIG)
def _list_tokens(config: Path) -> None:
    """List tokens: whose they are, and until when.

    \b
    Example:
      brickscan serve token list detector.toml
    """
    from scanner.service.signing import tokens

    rows = [
        (
            entry.token_id,
            printable(entry.expert),
            f"{entry.until:%Y-%m-%d}",
            f"{entry.revoked_at:%Y-%m-%d}" if entry.revoked_at else "-",
        )
        for entry in tokens(_state(config))
    ]
    tell(*columns([("token", "for", "until", "revoked"), *rows]))


@token.command(name="revoke")
@click.argument("token_id")
@click.argument("config", type=_CONFIG)
def _revoke_token(token_id: str, config: Path) -> None:
    """End a token at once.

    \b
    Example:
      brickscan serve token revoke 01234567 detector.toml
    """
    from scanner.service.signing import revoke_token

    tell(f"{token_id} of {printable(revoke_token(_state(config), token_id).expert)} is revoked")
