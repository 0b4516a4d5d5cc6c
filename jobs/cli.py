"""Define the command line, `brickscan COMMAND`. A command is imported when it is called, and help imports none."""

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import NoReturn

import click

from jobs.text import complain, logs_printable, show_error, show_failure, show_usage_error
from scanner.errors import BrickscanError
from scanner.interrupts import Terminated, dropped_interrupts, interrupts_noted, sigterm_interrupts
from scanner.printable import printable

_SECTIONS = {
    "Start": {
        "init": ("jobs.init:init", "Make a registry, a first key and a scan.toml."),
        "keys": ("jobs.keys:keys", "Make, list, publish and retire master keys."),
        "users": ("jobs.users:users", "Give users messages, and find or remove them."),
        "scan": ("jobs.scan:scan", "Scan new files, and add verdicts to the tables."),
        "check": ("jobs.check:check", "Look at one text, as a scan would."),
    },
    "Results": {
        "flagged": ("jobs.flagged:flagged", "List flagged documents, and the users named."),
        "explain": ("jobs.evidence:explain", "Explain one flag or account."),
        "report": ("jobs.evidence:report", "Write a night as web pages."),
        "review": ("jobs.decisions:review", "Decide on flags in a browser."),
        "decide": ("jobs.decisions:decide", "Record decisions on flags."),
        "accounts": ("jobs.nights:accounts", "List accounts whose posts together are marked."),
        "export": ("jobs.decisions:export", "Print flags for other systems."),
    },
    "Answer": {
        "claim": ("jobs.claim:claim", "Make a claim that anybody can check without the key."),
        "replay": ("jobs.evidence:replay", "Compute a verdict again, or prove it to an expert."),
        "serve": ("jobs.serve:serve", "Answer over HTTP whether texts are marked."),
    },
    "Operate": {
        "status": ("jobs.nights:status", "Show the last scans, and what needs attention."),
        "quarantine": ("jobs.nights:quarantine", "List what could not be scored, and why."),
        "canaries": ("jobs.init:canaries", "Make prompts whose texts every scan must find."),
        "sign": ("jobs.upkeep:sign", "Check that nobody changed the tables."),
        "compact": ("jobs.upkeep:compact", "Merge small files, for faster queries."),
        "vacuum": ("jobs.upkeep:vacuum", "Delete files that no table needs."),
        "retain": ("jobs.upkeep:retain", "Drop old nights."),
        "redate": ("jobs.upkeep:redate", "Correct the date of a scan's data."),
        "migrate": ("jobs.upkeep:migrate", "Upgrade tables of an earlier version."),
    },
    "Prove": {
        "probe": ("jobs.probe:probe", "Tell whether a server marks, and why not."),
        "plan": ("jobs.plan:plan", "Say how many tokens a marked text needs."),
        "calibrate": ("jobs.calibrate:calibrate", "Measure the false-positive rate."),
        "error-rates": ("jobs.evaluate:error_rates", "Measure error rates, as a page to publish."),
        "evaluate": ("jobs.evaluate:evaluate", "Run the paper's experiments."),
        "selftest": ("jobs.formats:selftest", "Check this installation."),
    },
    "Mark": {
        "mark": ("jobs.mark:mark", "Complete prompts with a local model, marked."),
        "formats": ("jobs.formats:formats", "List the watermark formats."),
        "schema": ("jobs.formats:schema", "Print the JSON Schema of a configuration."),
    },
}
"""Sections of the help, most used first: each command's place in the code, and its purpose in a few words."""

_COMMANDS = {name: command for section in _SECTIONS.values() for name, command in section.items()}


class _LazyGroup(click.Group):
    """A group whose commands are named above and imported on demand. Errors of brickscan become two lines on stderr."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections, by the table above: importing all commands takes seconds."""
        width = max(map(len, _COMMANDS))  # over all sections, so that their columns are aligned
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), words) for name, (_, words) in commands.items()])

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
    """Find text that carries the mark of a watermarked language model, and the user it was marked for.

    \b
    Example:
      brickscan init incoming/part-0.parquet --tokenizer tokenizer.json
      brickscan users add --file users.csv --registry registry
      brickscan scan scan.toml
      brickscan flagged scan.toml

    `brickscan COMMAND --help` explains a command. For completion in bash (or zsh, fish), run
    eval "$(_BRICKSCAN_COMPLETE=bash_source brickscan)"
    """


def run(command: click.Command, arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit code. Errors of brickscan become two lines on stderr."""
    try:
        with logs_printable(), sigterm_interrupts(), dropped_interrupts() as check:
            try:
                code = command.main(args=arguments, standalone_mode=False)
            except Exception as failure:
                check()  # an interrupt in numba's compiler may be the cause of the failure
                interrupt = _interrupt_behind(failure)
                if interrupt is not None:
                    raise interrupt from None
                raise
    except BrickscanError as error:
        show_error(str(error))
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        complain(*error.format_message().splitlines())
        return error.exit_code
    except click.ClickException as error:
        show_usage_error(error)
        return error.exit_code
    except click.Abort as abort:
        return _interrupted(isinstance(abort.__cause__, Terminated))
    except KeyboardInterrupt as interrupt:  # between two handlers of ours, or in a callback of C
        return _interrupted(isinstance(interrupt, Terminated))
    except OSError as error:
        if not _is_named(error.filename, sys.argv[1:] if arguments is None else arguments):
            show_failure(error)
            return 1
        show_error(f"{printable(str(error.filename))}: {error.strerror}; name another path")
        return 2
    except Exception as error:
        show_failure(error)
        return 1
    return code if isinstance(code, int) else 0


def _is_named(path: object, arguments: Sequence[str]) -> bool:
    """Return whether the path of an error is a path of the command line, or lies there."""
    if not isinstance(path, str | os.PathLike):
        return False
    words = (word.partition("=")[2] if word.startswith("--") else word for word in arguments)
    named = {os.path.abspath(word) for word in words if word} - {"/"}
    return any(PurePath(os.path.abspath(path)).is_relative_to(place) for place in named)


@contextlib.contextmanager
def when_interrupted(sentence: str) -> Iterator[Callable[[], None]]:
    """Tell people what remains after an interrupt.

    Yields:
        A function that raises an interrupt which Python dropped. Call it often.
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
    """Return the interrupt that caused a failure.

    For example, C answers an interrupt in a callback by a SystemError.
    """
    while failure is not None and not isinstance(failure, KeyboardInterrupt):
        failure = failure.__cause__
    return failure


def _interrupted(terminated: bool) -> int:
    cause, code = ("SIGTERM", 143) if terminated else ("Ctrl-C", 130)
    complain(f"brickscan: interrupted by {cause}")
    return code


def end(code: int) -> NoReturn:
    """End this process. SIGTERM and Ctrl-C are ignored from here on, because its exit code may be on record."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def main() -> None:
    """Run `brickscan`."""
    end(run(brickscan))


if __name__ == "__main__":
    main()
