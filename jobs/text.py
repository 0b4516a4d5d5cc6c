"""Write all output to terminals and logs, including progress. Everything passes through here, and is printable."""

import contextlib
import logging
import sys
import textwrap
import threading
import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

import click

from scanner.printable import cut, safe

if TYPE_CHECKING:
    from tqdm import tqdm

    from scanner.cluster.commits import ScanTotals
    from scanner.cluster.scan import ScanOutcome
    from scanner.cluster.work import ScanWork
    from scanner.controls.scan_audit import ScanAudit


def width(text: str) -> int:
    """Return the columns of printable text on a terminal: two for a wide letter, none for a combining one."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.category(character) in ("Mn", "Me") for character in text)


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write lines of a table with printable cells. Each column is as wide as its widest cell."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (widest + 2 - width(cell)) for cell, widest in zip(row, widths, strict=True))
        yield "".join(cells).rstrip()


def numbers(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write lines of a table of numbers, with each column flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield from ("  ".join(map(str.rjust, row, widths)).rstrip() for row in rows)


def fit_rows(rows: Sequence[Sequence[str]], max_width: int, narrowest: Mapping[int, int]) -> list[list[str]]:
    """Cut cells of a table until its lines fit into a terminal, or until no cell may be cut any further.

    Args:
        rows: rows of printable cells.
        max_width: columns of the terminal.
        narrowest: for each place that may be cut, its fewest columns. The widest place is cut first.
    """
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > max_width:
        widest = max(narrowest, key=lambda column: widths[column] - narrowest[column])
        if widths[widest] <= narrowest[widest]:
            break
        widths[widest] -= 1
    return [[_cut_to(cell, room) for cell, room in zip(row, widths, strict=True)] for row in rows]


def _cut_to(text: str, room: int) -> str:
    """Replace the middle of text by … if it needs more columns than a terminal has."""
    longest = len(text)
    while width(out := text if longest == len(text) else cut(text, longest)) > room:
        longest -= 1
    return out


def wrap_line(line: str, max_width: int, indent: str) -> list[str]:
    """Wrap a line to a width. Later lines are indented, and paths and ids stay whole."""
    return textwrap.wrap(line, max_width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def tell(*lines: str) -> None:
    """Print on stdout, each argument as a line."""
    _say(lines, err=False)


def complain(*lines: str) -> None:
    """Print on stderr, each argument as a line."""
    _say(lines, err=True)


def _say(lines: Iterable[str], *, err: bool) -> None:
    for line in lines:
        click.echo(safe(line), err=err)


def show_error(message: str) -> None:
    """Show an error of brickscan on stderr: the fault on one line, and the advice on another.

    Args:
        message: `WHERE: fault; advice`, as all texts of BrickscanError, or two sentences.

    Example:
        `--text post.txt: cannot be read; name a file` becomes
        `error: --text post.txt: cannot be read` and `hint: name a file`.
    """
    what, _, hint = message.partition("; " if "; " in message else ". ")
    complain(f"error: {what}", *([f"hint: {hint}"] if hint else []))


def show_usage_error(error: click.ClickException) -> None:
    """Show the fault of a command line. Part of the command line may come from a file."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        complain(*error.ctx.get_usage().splitlines(), f"Try '{error.ctx.command_path} --help' for help.", "")
    show_error(error.format_message())


def show_failure(error: BaseException) -> None:
    """Show the place of an unforeseen error, as Python does, in no more lines than that."""
    for block in traceback.format_exception(error):
        is_code = block.startswith("  File ")
        complain(*(block.splitlines() if is_code else [block.strip("\n")]))  # any message is printed as one line


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
    """Send logs and Python's warnings to stderr for a time, each as a line, unless other handlers take them."""
    originals, handler = (logging.lastResort, warnings.showwarning), logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLine())
    logging.lastResort, warnings.showwarning = handler, _show_warning
    try:
        yield
    finally:
        logging.lastResort, warnings.showwarning = originals


_STEPS_SECONDS = 5.0
_SIGN_SECONDS = 10.0
_STILL_SECONDS = 30.0

COMPILING = "compiling kernels for this machine (only once): a minute or two"
"""Reason why the first scan after an installation or upgrade begins slowly."""


class ProgressPace:
    """Estimates the remaining time, from the pace since the first item was done.

    clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def left(self, done: int, of: int) -> float | None:
        """Return the seconds until everything is done. None: the pace is unknown."""
        now = self._clock()
        if self._first is None:
            if done:
                self._first = now, done
            return None
        began, first = self._first
        return (of - done) * (now - began) / (done - first) if done > first else None


class Progress:
    """Shows totals as they grow. Call it as run_scan's `watch`, and close it at the end."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._pace, self._scored = ProgressPace(), 0
        self._last_line = 0.0, 0.0  # seconds that had passed at the last line, and that the driver had waited
        self._committed: ScanTotals | None = None
        self._bar: tqdm[None] | None = None
        self._kernels: tqdm[None] | None = None

    def __call__(self, work: "ScanWork", totals: "ScanTotals") -> None:
        """Show how much of the input is scored and committed, in lines after each commit and now and then."""
        # the count never falls, although a worker may lose documents, or a commit may leave some out
        self._scored = scored = max(self._scored, totals.counts.documents + totals.under_way)
        seconds_left = self._pace.left(scored, work.documents)
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = totals.counts.text_bytes / 1e6 / seconds
        if sys.stderr.isatty():
            if self._kernels is not None:
                self._count_kernels(done=scored > 0)
                if not scored:
                    return
            if self._bar is None:
                from tqdm import tqdm

                self._bar = tqdm(total=work.documents, unit=" documents", unit_scale=True, dynamic_ncols=True)
            self._bar.set_postfix_str(f"{rate:.2f} MB/s, {totals.counts.flagged} flagged", refresh=False)
            self._bar.update(scored - self._bar.n)
            self._bar.refresh()
            return
        committed = replace(totals, under_way=0, waited=0.0)
        if committed == self._committed and time.monotonic() - self._last < _SIGN_SECONDS:
            return
        self._committed, self._last = committed, time.monotonic()
        busy = self._busy(seconds, totals.waited)
        pairs = {
            "event": "scan",
            "shards": f"{totals.shards + work.skipped}/{work.shard_count}",
            "documents": f"{totals.counts.documents}/{work.documents}",
            "scored": scored,
            "flagged": totals.counts.flagged,
            "quarantined": totals.counts.quarantined,
            "files_quarantined": totals.files_quarantined,
            "mb_per_s": f"{rate:.2f}",
            "seconds": f"{seconds:.1f}",
        }
        _log(pairs | busy | _eta(seconds_left))

    def _busy(self, seconds: float, waited: float) -> dict[str, str]:
        """Return the share of the time since the last line in which the driver did not wait.

        1: workers wait for the driver.
        """
        (last_seconds, last_waited), self._last_line = self._last_line, (seconds, waited)
        if seconds <= last_seconds or not waited:
            return {}
        return {"driver_busy": f"{1 - (waited - last_waited) / (seconds - last_seconds):.2f}"}

    def show_step(self, step: str) -> None:
        """Show on a terminal what the scan does before the first document is scored."""
        if sys.stderr.isatty():
            if self._bar is not None:
                self._bar.clear()
            complain(f"{step} …")

    def compiling(self) -> None:
        """Explain why the first scan after an installation or upgrade begins slowly."""
        if sys.stderr.isatty():
            complain(COMPILING)
            from tqdm import tqdm

            self._kernels = tqdm(unit=" kernels", dynamic_ncols=True, leave=False)
        else:
            _log({"event": "compile_kernels", "once": "true"})

    def _count_kernels(self, *, done: bool) -> None:
        """Move the bar of kernels. It shows that work continues before the first document is scored."""
        from scanner.watermark.kernel import compiled_count

        if self._kernels is None:
            return
        self._kernels.update(compiled_count() - self._kernels.n)
        self._kernels.refresh()
        if done:
            self._kernels.close()
            self._kernels = None

    def audited(self, audit: "ScanAudit") -> None:
        """Report how the audit ended, if output goes to a log."""
        if not sys.stderr.isatty():
            _log({"event": "audit"} | audit.fields())

    def close(self) -> None:
        """Restore the terminal."""
        for bar in (self._kernels, self._bar):
            if bar is not None:
                bar.close()


@dataclass(frozen=True)
class Sums:
    """Sums over the commits of all scans in a run that follows its input."""

    scans: int = 0
    files: int = 0
    shards: int = 0
    documents: int = 0
    flagged: int = 0
    quarantined: int = 0
    files_quarantined: int = 0
    in_future: int = 0
    older_than_key: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Sums)))


class StatusLine:
    """A line of key=value pairs on stderr at a fixed interval. Call it as Progress is called.

    interval: seconds between two lines.
    """

    def __init__(self, interval: float = 60.0) -> None:
        self._began = time.monotonic()
        self._interval = interval
        self._work: ScanWork | None = None
        self._earlier_sums = self._scan_sums = Sums()
        self._pace, self._scored, self._eta = ProgressPace(), 0, dict[str, str]()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def sums(self) -> Sums:
        """Return sums over all scans so far, including the running one."""
        return self._earlier_sums + self._scan_sums

    def __call__(self, work: "ScanWork", totals: "ScanTotals") -> None:
        """Record the totals of a scan, the same as before or the next one."""
        if work is not self._work:
            self._work, self._earlier_sums = work, self._earlier_sums + self._scan_sums
            self._pace, self._scored = ProgressPace(), 0
        counts = totals.counts
        self._scored = max(self._scored, counts.documents + totals.under_way)
        self._eta = _eta(self._pace.left(self._scored, work.documents))
        self._scan_sums = Sums(
            scans=1,
            files=work.files,
            shards=totals.shards,
            documents=counts.documents,
            flagged=counts.flagged,
            quarantined=counts.quarantined,
            files_quarantined=totals.files_quarantined,
            in_future=counts.in_future,
            older_than_key=counts.older_than_key,
        )

    def trouble(self, outcome: "ScanOutcome") -> None:
        """Report at once a scan whose exit code is not 0."""
        audit = {} if outcome.audit is None else outcome.audit.fields()
        _log({"event": "trouble", "scan_id": outcome.scan_id, "exit_code": outcome.exit_code, **audit})

    def close(self) -> None:
        """Print a last line, and stop."""
        self._closed.set()
        self._thread.join()
        self._print()

    def _run(self) -> None:
        while not self._closed.wait(self._interval):
            self._print()

    def _print(self) -> None:
        sums = {field.name: getattr(self.sums, field.name) for field in fields(Sums)}
        now = {} if self._work is None else {"scored": f"{self._scored}/{self._work.documents}"} | self._eta
        _log({"event": "follow", **sums, "seconds": f"{time.monotonic() - self._began:.0f}"} | now)


class StepProgress:
    """Prints a line of key=value pairs every few seconds, and one at the end of each step. Call it as a `watch`.

    While nothing new is done, it prints a line every half minute.

    Args:
        event: name of the run, for example `evaluate`.
        check: called each time. Its exception ends the command.
        clock: seconds.
    """

    def __init__(
        self, event: str, check: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._event, self._check = event, check
        self._clock = clock
        self._began = self._last = clock()
        self._reported, self._pace = ("", 0), ProgressPace(clock)

    def __call__(self, what: str, done: int, of: int) -> None:
        """Show how many items of a step are done."""
        self._check()
        now = self._clock()
        if what != self._reported[0] or done < self._reported[1]:
            self._reported, self._pace = (what, 0), ProgressPace(self._clock)
        seconds_left = self._pace.left(done, of)
        wait = _STEPS_SECONDS if (what, done) != self._reported else _STILL_SECONDS
        if (done == of and self._reported != (what, of)) or now - self._last >= wait:
            self._last, self._reported = now, (what, done)
            seconds = f"{now - self._began:.1f}"
            _log(
                {"event": self._event, "step": repr(what), "done": f"{done}/{of}", "seconds": seconds}
                | _eta(seconds_left)
            )


class MarkProgress:
    """Shows how many prompts are completed: a bar on a terminal, lines elsewhere. It is a context.

    Args:
        prompts: number of prompts.
        check: called before each token. Its exception ends the command.
    """

    def __init__(self, prompts: int, check: Callable[[], None]) -> None:
        self._check, self._done, self._prompts = check, 0, prompts
        self._steps = None if sys.stderr.isatty() else StepProgress("mark")
        from tqdm import tqdm  # late: a tenth of a CPU second

        self._bar: tqdm[None] = tqdm(total=prompts, unit="prompt", dynamic_ncols=True, disable=self._steps is not None)

    def __enter__(self) -> "MarkProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def __call__(self, done: int) -> None:
        """Show how many prompts are completed."""
        self._done = done
        self._bar.update(done - self._bar.n)
        if self._steps:
            self._steps("complete", done, self._prompts)

    def token(self, written: int) -> None:
        """Show the number of tokens that the current batch has for each prompt."""
        self._check()
        self._bar.set_postfix_str(f"token {written} of this batch")
        if self._steps:
            self._steps("complete", self._done, self._prompts)


def _eta(seconds_left: float | None) -> dict[str, str]:
    """Write the remaining seconds. Empty: they are unknown, or none are left."""
    return {"eta_s": f"{seconds_left:.0f}"} if seconds_left else {}


def _log(fields: Mapping[str, object]) -> None:
    complain(" ".join(f"{name}={value}" for name, value in fields.items()))
