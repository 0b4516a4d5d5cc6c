"""Output to a terminal or a log: everything goes through here, printable (scanner.printable)."""

import contextlib
import logging
import sys
import textwrap
import traceback
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

import click

from scanner.printable import cut, safe


def width(text: str) -> int:
    """Columns that a terminal needs for printable text: two for a wide letter, none for a combining one."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.category(character) in ("Mn", "Me") for character in text)


def columns(rows: Sequence[Sequence[str]], gap: int = 2) -> Iterator[str]:
    """Lines of a table whose cells are printable values, each column as wide as its widest cell."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (most + gap - width(cell)) for cell, most in zip(row, widths, strict=True))
        yield "".join(cells).rstrip()


def fitted(rows: Sequence[Sequence[str]], most: int, narrowest: Mapping[int, int]) -> list[list[str]]:
    """Cells of a table cut until its lines take so many columns of a terminal, or all that may be cut is cut.

    Args:
        rows: of printable cells.
        most: columns of the terminal.
        narrowest: fewest columns for each place that may be cut; the widest is cut first.
    """
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > most:
        widest = max(narrowest, key=lambda place: widths[place] - narrowest[place])
        if widths[widest] <= narrowest[widest]:
            break
        widths[widest] -= 1
    return [[_cut_to(cell, room) for cell, room in zip(row, widths, strict=True)] for row in rows]


def _cut_to(text: str, room: int) -> str:
    """Text cut by … in its middle where it needs more columns of a terminal than there are."""
    longest = len(text)
    while width(shown := text if longest == len(text) else cut(text, longest)) > room:
        longest -= 1
    return shown


def wrapped(line: str, most: int, indent: str) -> list[str]:
    """A line in lines of so many columns, the second and later ones indented; paths and ids stay whole."""
    return textwrap.wrap(line, most, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def counted(number: int, noun: str) -> str:
    """A number of things, such as `1 file` and `1,200 files`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def tell(*lines: str) -> None:
    """Say something on stdout, each argument a line."""
    _say(lines, err=False)


def complain(*lines: str) -> None:
    """Say something on stderr, each argument a line."""
    _say(lines, err=True)


def _say(lines: Iterable[str], *, err: bool) -> None:
    for line in lines:
        click.echo(safe(line), err=err)


def show_usage_error(error: click.ClickException) -> None:
    """Show what was wrong with a command line; part of it may have come out of somebody's file."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        complain(*error.ctx.get_usage().splitlines(), f"Try '{error.ctx.command_path} --help' for help.", "")
    complain(f"Error: {error.format_message()}")


def show_failure(error: BaseException) -> None:
    """Show where an unforeseen error came from, as Python does, and no more lines than that."""
    for block in traceback.format_exception(error):
        of_code = block.startswith("  File ")
        complain(*(block.splitlines() if of_code else [block.strip("\n")]))  # a message is one line, whatever is in it


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    complain(f"{filename}:{lineno}: {category.__name__}: {message}")


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record))


@contextlib.contextmanager
def logs_printable() -> Iterator[None]:
    """Send logs and Python's warnings to stderr meanwhile, each in a line, unless other handlers take them."""
    before, handler = (logging.lastResort, warnings.showwarning), logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLine())
    logging.lastResort, warnings.showwarning = handler, _show_warning
    try:
        yield
    finally:
        logging.lastResort, warnings.showwarning = before
