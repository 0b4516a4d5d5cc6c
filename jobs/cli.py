"""The command line: `brickscan COMMAND`. A command is imported when it is called; help imports none."""

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import NoReturn

import click

from jobs.text import complain, logs_printable, show_failure, show_usage_error
from scanner.errors import BrickscanError, Refused
from scanner.interrupts import Terminated, dropped_interrupts, interrupts_noted, sigterm_interrupts
from scanner.printable import printable

_COMMANDS = {
    "init": ("jobs.init:init", "Make a registry, a key and a scan.toml for your own texts."),
    "keys": ("jobs.keys:keys", "Make, list, retire and admit master keys."),
    "formats": ("jobs.formats:formats", "List the watermarks that a registry may hold keys of."),
    "users": ("jobs.users:users", "Give users messages of the keys, list, find and remove them."),
    "canaries": ("jobs.init:canaries", "Make prompts for users whose texts every scan must find."),
    "scan": ("jobs.scan:scan", "Scan files that are not scanned yet, and add verdicts."),
    "flagged": ("jobs.flagged:flagged", "List flagged documents, and whom each was marked for."),
    "accounts": ("jobs.nights:accounts", "List accounts whose posts together are marked."),
    "explain": ("jobs.evidence:explain", "Explain a flag or an account: what was found, and where."),
    "replay": ("jobs.evidence:replay", "Score flags anew, and compare them with the record."),
    "claim": ("jobs.claim:claim", "Make a claim about a flag that anybody can check without the key."),
    "report": ("jobs.evidence:report", "Write a night as pages: the night, its flags, its accounts."),
    "review": ("jobs.decisions:review", "Look at flags in a browser, and decide on each of them."),
    "decide": ("jobs.decisions:decide", "Record what was decided on a flag."),
    "export": ("jobs.decisions:export", "Give flags to other systems."),
    "serve": ("jobs.serve:serve", "Answer whether texts carry a mark, over HTTP, signed."),
    "status": ("jobs.nights:status", "Show the last scans, their audits, and what needs a hand."),
    "quarantine": ("jobs.nights:quarantine", "Show what could not be scored, and why."),
    "check": ("jobs.check:check", "Look at one text under each key, as a scan would."),
    "compact": ("jobs.upkeep:compact", "Merge the tables' small files, so that queries are fast."),
    "sign": ("jobs.upkeep:sign", "Check that nobody changed the tables, and sign them anew."),
    "vacuum": ("jobs.upkeep:vacuum", "Delete files that no table needs."),
    "migrate": ("jobs.upkeep:migrate", "Move results of an older version on."),
    "retain": ("jobs.upkeep:retain", "Drop the nights that are older than a number of days."),
    "redate": ("jobs.upkeep:redate", "Correct the date of the data of a scan."),
    "mark": ("jobs.mark:mark", "Complete prompts with a local model, marked for users."),
    "probe": ("jobs.probe:probe", "Say which answers of a server are marked, and if not, why not."),
    "plan": ("jobs.plan:plan", "Say how many tokens a marked text needs to be found."),
    "calibrate": ("jobs.calibrate:calibrate", "Measure the false-positive rate on unmarked text."),
    "evaluate": ("jobs.evaluate:evaluate", "Run the paper's experiments with a local model."),
    "error-rates": ("jobs.evaluate:error_rates", "Measure error rates, as a page to be published."),
    "selftest": ("jobs.formats:selftest", "Check this installation against known answers."),
    "schema": ("jobs.formats:schema", "Print the JSON Schema of a configuration."),
}
"""Commands: where each stands, and what it does in a line of 80 columns."""


class _LazyGroup(click.Group):
    """A group whose commands are named above and imported on demand. Errors of ours become one line on stderr."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands as click does, but by the table above: importing all commands takes seconds."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click knows no name of ours that could be near
            raise click.NoSuchCommand(error.command_name, possibilities=_COMMANDS, ctx=ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name][0].split(":")
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
    """Run a command, and return its exit code. Errors of ours become one line on stderr."""
    try:
        with logs_printable(), sigterm_interrupts(), dropped_interrupts() as check:
            try:
                code = command.main(args=arguments, standalone_mode=False)
            except Exception as failure:
                check()  # the failure may come of an interrupt in numba's compiler
                interrupt = _interrupt_behind(failure)
                if interrupt is not None:
                    raise interrupt from None
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
    except OSError as error:
        if not _is_named(error.filename, sys.argv[1:] if arguments is None else arguments):
            show_failure(error)
            return 1
        complain(f"brickscan: {printable(str(error.filename))}: {error.strerror}; name another path")
        return 2
    except Exception as error:
        show_failure(error)
        return 1
    return code if isinstance(code, int) else 0


def _is_named(path: object, arguments: Sequence[str]) -> bool:
    """Return whether a path that an error is about is one of a command line, or lies there."""
    if not isinstance(path, str | os.PathLike):
        return False
    words = (word.partition("=")[2] if word.startswith("--") else word for word in arguments)
    named = {os.path.abspath(word) for word in words if word} - {"/"}
    return any(PurePath(os.path.abspath(path)).is_relative_to(place) for place in named)


@contextlib.contextmanager
def when_interrupted(sentence: str) -> Iterator[Callable[[], None]]:
    """Tell people what an interrupt leaves.

    Yields:
        A function that raises an interrupt which Python dropped; call it often.
    """
    try:
        with interrupts_noted() as check:
            try:
                yield check
            except KeyboardInterrupt:
                check()  # Ray raises a KeyboardInterrupt of its own for SIGTERM, too
                raise
    except KeyboardInterrupt:
        complain(f"brickscan: {sentence}")
        raise


def _interrupt_behind(failure: BaseException | None) -> KeyboardInterrupt | None:
    """Return the interrupt that a failure comes of, as where C answers an interrupt in a callback by a SystemError."""
    while failure is not None and not isinstance(failure, KeyboardInterrupt):
        failure = failure.__cause__
    return failure


def _interrupted(terminated: bool) -> int:
    cause, code = ("SIGTERM", 143) if terminated else ("Ctrl-C", 130)
    complain(f"brickscan: interrupted by {cause}")
    return code


def end(code: int) -> NoReturn:
    """End this process. SIGTERM and Ctrl-C change nothing meanwhile: its exit code may be on record."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def main() -> None:
    """Run `brickscan`."""
    end(run(brickscan))


if __name__ == "__main__":
    main()
