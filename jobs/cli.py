"""The command line: `brickscan COMMAND`. Each command is imported only when it is called, so that help is instant."""

import contextlib
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

import click

from jobs.text import complain, logs_printable, show_failure, show_usage_error
from scanner.errors import BrickscanError, Refused
from scanner.interrupts import Terminated, dropped_interrupts, interrupts_noted, sigterm_interrupts

_COMMANDS = {
    "init": "jobs.init:init",
    "keys": "jobs.keys:keys",
    "formats": "jobs.formats:formats",
    "users": "jobs.users:users",
    "canaries": "jobs.canaries:canaries",
    "scan": "jobs.scan:scan",
    "flagged": "jobs.flagged:flagged",
    "accounts": "jobs.accounts:accounts",
    "explain": "jobs.explain:explain",
    "replay": "jobs.replay:replay",
    "report": "jobs.report:report",
    "review": "jobs.review:review",
    "decide": "jobs.decide:decide",
    "export": "jobs.export:export",
    "webhook": "jobs.webhook:webhook",
    "status": "jobs.status:status",
    "quarantine": "jobs.quarantine:quarantine",
    "check": "jobs.check:check",
    "compact": "jobs.upkeep:compact",
    "vacuum": "jobs.upkeep:vacuum",
    "migrate": "jobs.upkeep:migrate",
    "retain": "jobs.upkeep:retain",
    "redate": "jobs.upkeep:redate",
    "mark": "jobs.mark:mark",
    "plan": "jobs.plan:plan",
    "bench": "jobs.bench:bench",
    "calibrate": "jobs.calibrate:calibrate",
    "evaluate": "jobs.evaluate:evaluate",
    "selftest": "jobs.selftest:selftest",
    "schema": "jobs.schema:schema",
}


class _LazyGroup(click.Group):
    """A group whose commands are named above and imported on demand. Errors of ours become one line on stderr."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].split(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)  # noqa: S101
        return command


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="brickscan")
def brickscan() -> None:
    """Find the text that carries the mark of a watermarked language model, and the user it was marked for.

    \b
    First steps:
      brickscan init incoming/part-0.parquet --tokenizer tokenizer.json
    or one by one:
      brickscan keys new summer --method greenlist --tokenizer tokenizer.json --registry registry
      brickscan users add --registry registry --file users.csv
      brickscan scan scan.toml
      brickscan flagged scan.toml

    Completion for bash, likewise for zsh and fish: eval "$(_BRICKSCAN_COMPLETE=bash_source brickscan)"
    """


def run(command: click.Command, arguments: list[str] | None = None) -> int:
    """Run a command; errors of ours become one line on stderr. Returns the exit code (docs/reference/commands.md)."""
    try:
        with logs_printable(), sigterm_interrupts(), dropped_interrupts() as check:
            try:
                code = command.main(args=arguments, standalone_mode=False)
            except Exception:
                check()  # the failure may come of an interrupt in numba's compiler
                raise
    except BrickscanError as error:
        complain(f"brickscan: {error}")
        return 2 if isinstance(error, Refused) else 1
    except click.exceptions.NoArgsIsHelpError as error:
        complain(*error.format_message().splitlines())
        return error.exit_code
    except click.ClickException as error:
        show_usage_error(error)
        return error.exit_code
    except click.Abort as abort:
        return _interrupted(isinstance(abort.__cause__, Terminated))
    except KeyboardInterrupt as interrupt:  # between two of our own handlers, or in a callback of C
        return _interrupted(isinstance(interrupt, Terminated))
    except Exception as error:
        show_failure(error)
        return 1
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def when_interrupted(sentence: str) -> Iterator[Callable[[], None]]:
    """Tell people what an interrupt leaves.

    Gives a function that raises an interrupt which Python dropped; call it often.
    """
    try:
        with interrupts_noted() as check:
            yield check
    except KeyboardInterrupt:
        complain(f"brickscan: {sentence}")
        raise


def _interrupted(terminated: bool) -> int:
    what, code = ("SIGTERM", 143) if terminated else ("Ctrl-C", 130)
    complain(f"brickscan: interrupted by {what}")
    return code


def end(code: int) -> NoReturn:
    """End this process. SIGTERM and Ctrl-C change nothing meanwhile: its exit code may be on record."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def main() -> None:
    """Entry point of `brickscan`."""
    end(run(brickscan))


if __name__ == "__main__":
    main()
