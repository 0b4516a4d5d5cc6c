"""Define parts that several commands share: arguments, confirmations, and lists."""

import csv
import io
import json
import math
import os
import shutil
import stat
import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from jobs.text import columns, complain, fit_rows, tell
from scanner.errors import BrickscanError, Refused
from scanner.printable import cell, cut, printable
from scanner.storage.locations import absolute, is_uri, refuse_password, refuse_special
from schemas.registry import MOST_NUMBERS

if TYPE_CHECKING:
    from scanner.input.shards import DriverShare
    from schemas.registry import Canary

Form = Literal["table", "json", "csv"]
MOST_COLUMNS = 120
"""Most columns of a table on a terminal, even on a wider one."""

form_option = click.option(
    "--format", "form", type=click.Choice(("table", "json", "csv")), default="table", show_default=True
)


def on_terminal() -> bool:
    """Return whether a person reads the output on a terminal, where lines must not be long."""
    return sys.stdout.isatty()


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], narrowest: Mapping[str, int]) -> None:
    """Print a table of printable cells. On a terminal some columns are cut, each to its limit, until the table fits."""
    lines: Sequence[Sequence[str]] = [head, *rows]
    if on_terminal():
        max_width = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
        lines = fit_rows(lines, max_width, {head.index(name): least for name, least in narrowest.items()})
    tell(*columns(lines))


def show_records(
    form: Form, rows: Sequence[Mapping[str, Any]], totals: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Print rows for programs: as one JSON object with the totals, or as CSV.

    Times are ISO 8601 in UTC, digests are hexadecimal, and missing numbers are null. In CSV, text that a spreadsheet
    would take for a formula gets an apostrophe, and invisible characters are escaped. JSON has exactly the values of
    the table.
    """
    records = [{name: _plain(row[name]) for name in names} for row in rows]
    if form == "json":
        tell(*(visible(line) for line in json.dumps({"rows": records, **totals}, indent=1).splitlines()))
        return
    for line in ([*names], *([cell(record[name]) for name in names] for record in records)):
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(line)
        tell(out.getvalue())


def show_footer(form: Form, lines: Sequence[str]) -> None:
    """Show the totals: below a table, or otherwise on stderr."""
    (tell if form == "table" else complain)(*lines)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def visible(line: str) -> str:
    """Escape the invisible ASCII characters of JSON that json.dumps leaves."""
    return line.replace("\x7f", "\\u007f")


class NamedPath(click.Path):
    """A path, for reading or writing, to a file, to a folder or to nothing yet. It is no FIFO, socket or device."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Convert as click does, after checking the kind of file."""
        _refuse_special(str(value))
        return super().convert(value, param, ctx)


def _refuse_special(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISDIR(mode):
            refuse_special(mode, path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "this cannot be a path"
        raise Refused(f"{printable(path)}: {why}") from None


class Folder(click.ParamType[Path | str]):
    """A folder, or a URI."""

    name = "folder"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Return a URI unchanged, and anything else as a path."""
        if is_uri(str(value)):
            return str(value).rstrip("/")
        _refuse_special(str(value))
        return Path(str(value))


class Moment(click.ParamType[datetime]):
    """A time in UTC, or a date for its first moment. With `through`, the first moment after the date."""

    name = "time"

    def __init__(self, *, through: bool = False) -> None:
        self._through = through

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read ISO 8601."""
        text = str(value)
        try:
            moment = datetime.fromisoformat(text)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
            return moment + timedelta(days=1) if self._through and len(text) <= len("2026-11-20") else moment
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no time; allowed: 2026-11-20, or 2026-11-20T03:00 for UTC", param, ctx)


MOST_WHOLE = 10**9
"""Largest whole number of an option that counts something. Larger numbers are no counts, and fit into no table."""


MOST_SEEDS = 2**32 - 1
"""Largest seed of an option."""


class Whole(click.IntRange):
    """A whole number from one to another."""

    def __init__(self, least: int, limit: int = MOST_WHOLE) -> None:
        super().__init__(least, limit)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        """Read the number. In an error, a very long number is shortened."""
        if len(str(value)) > len(str(-(2**64))):
            self.fail(f"{cut(str(value), 20)!r} is not in the range {self._describe_range()}.", param, ctx)
        return int(super().convert(value, param, ctx))

    def _describe_range(self) -> str:
        return f"x>={self.min}" if self.max == MOST_WHOLE else super()._describe_range()


class Real(click.FloatRange):
    """A number, within the range if there is one. It is neither infinite nor NaN."""

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Read it."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is no number.", param, ctx)
        return number


class PartOfInput(click.ParamType["DriverShare"]):
    """A part of the input, such as 1/3."""

    name = "i/n"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> "DriverShare":
        """Read the part's number and the number of parts."""
        from scanner.input.shards import DriverShare

        try:
            return DriverShare.read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


_FIRST_DAY = date(1970, 1, 1)


class Day(click.DateTime):
    """A date that has begun somewhere on Earth. A later date is a mistake.

    `yesterday` is the day before today in UTC, for schedulers that cannot insert a date.
    """

    name = "date"

    def __init__(self) -> None:
        super().__init__(["%Y-%m-%d"])

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read a date as its first moment."""
        if value == "yesterday":
            return datetime.combine(datetime.now(UTC).date() - timedelta(days=1), time())
        day = super().convert(value, param, ctx)
        assert isinstance(day, datetime)  # noqa: S101
        last = datetime.now(UTC).date() + timedelta(days=1)  # in some zones a day begins before it does in UTC
        if not _FIRST_DAY <= day.date() <= last:
            self.fail(f"{str(value)!r} is no date of data; allowed: {_FIRST_DAY} to {last}", param, ctx)
        return day


class Results(NamedTuple):
    """A place of results, the rate above which no flag is shown, and the file that states it, with its registry."""

    folder: str
    false_positive_rate: float
    config: Path | None
    registry: str | None


def groups_of(users: float) -> int:
    """Return the number of groups of a key with room for so many users.

    Raises:
        Refused: a key has no room for them.
    """
    from scanner.watermark.native.format import groups_for, users_of

    max_users = users_of(MOST_NUMBERS)
    if not 1 <= users <= max_users:
        raise Refused(f"--users {users:g} is not allowed; a key has 1 to {max_users:,.0f}")
    return groups_for(users)


TRIAL_LINE = "TRIAL: its key and users are dated back. What is shown here is evidence against nobody."
"""Line above all output of a trial."""


def results_at(path: str) -> Results:
    """Return the results of CONFIG|RESULTS: the configuration of a scan, or a folder or URI of results.

    Raises:
        Refused: there is neither.
    """
    if Path(path).is_file():
        from scanner.scan_plan import read_config, results_of

        if is_calibration(Path(path)):
            return _results_of_calibration(Path(path))
        settings, base = read_config(Path(path)), Path(path).absolute().parent
        folder, registry = results_of(settings, Path(path)), absolute("registry", settings.registry, base)
        sign_results(folder, registry)
        return Results(folder, settings.false_positive_rate, Path(path), registry)
    refuse_password("results", path)
    if not is_uri(path) and not Path(path).is_dir():
        raise Refused(f"results: {path!r} is no folder, nor the file of a scan's configuration; name one of them")
    return Results(path, 1.0, None, None)


def is_calibration(path: Path) -> bool:
    """Return whether a TOML file configures a calibration. A scan's configuration names a registry at the top."""
    try:
        names = tomllib.loads(path.read_text(encoding="utf-8")).keys()
        return "registry" not in names and bool({"law", "figure", "keys"} & names)
    except (OSError, ValueError):  # the code that reads it will report the fault
        return False


def _results_of_calibration(path: Path) -> Results:
    """Return the results that the configuration of a calibration names. Raises Refused: it names no registry."""
    from scanner.storage.toml import read_toml
    from schemas.audit import CalibrationConfig

    config, base = read_toml(path, CalibrationConfig), path.absolute().parent
    if config.keys is None:
        raise Refused(f"{path}: a calibration without [keys] names no registry, and its audits are not signed")
    folder, registry = absolute("results", config.results, base), absolute("registry", config.keys.registry, base)
    sign_results(folder, registry)
    return Results(folder, 1.0, path, registry)


def sign_results(folder: str, registry: Path | str) -> None:
    """Sign and check results under a registry's audit secret until the command ends, if it keeps signatures."""
    from scanner.signing import keep_signatures, sign_with

    def keep() -> None:
        if (why := keep_signatures(folder)) is not None:
            complain(f"brickscan: {why}")

    sign_with(folder, str(registry))
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(keep)


def canaries_of(location: Results) -> "Sequence[Canary] | None":
    """Return the canaries of the registry. None: there is no configuration, or its registry cannot be read."""
    from scanner.registry import load_registry

    try:
        registry = None if location.registry is None else load_registry(location.registry)
    except Refused:
        return None
    if registry is None:
        return None
    return registry.canaries.made if registry.canaries else ()


def scanned(location: Results) -> bool:
    """Return whether a scan made tables there. If not, advise the user.

    Raises:
        Refused: the user named a folder without tables of a scan.
    """
    advice = _no_results_yet(location)
    if advice is not None:
        tell(advice)
    return advice is None


def refuse_unscanned(location: Results) -> None:
    """Refuse a command that names a result of a scan if no scan made tables. An empty list would be no answer.

    Raises:
        Refused: no scan made tables there.
    """
    advice = _no_results_yet(location)
    if advice is not None:
        raise Refused(advice)


def _no_results_yet(location: Results) -> str | None:
    """Return advice for the owner of a configuration whose scan made no tables yet. None: it made them."""
    from scanner.results import exist
    from scanner.results.queries import of_trial

    if exist(location.folder):
        if of_trial(location.folder):
            complain(TRIAL_LINE)
        return None
    if location.config is None:
        raise Refused(
            f"results: there are no tables of a scan in {location.folder}; name the folder of a scan's results"
        )
    from scanner.input.files import newest_date
    from scanner.scan_plan import read_config
    from scanner.signing import signer_of

    paths = read_config(location.config).input.paths
    dated = next((path for path in paths if "{date}" in path), None)
    date = f" --date {newest_date(dated, location.config.absolute().parent)}" if dated else ""
    signer = signer_of(location.folder)
    others = "" if signer is None else ", ".join(signer.record.locations())
    known = f" The registry knows signed results in {others}." if others else ""
    return f"There are no results in {location.folder} yet: run `brickscan scan {location.config}{date}` first.{known}"


def refuse_wrong_clock(registry: Path | str) -> None:
    """Refuse to write if this machine's time is far from the newest scan's, if scan.toml is beside a registry.

    `init` puts it there.

    Raises:
        Refused: this machine's clock is wrong.
    """
    from scanner.scan_plan import results_beside

    results = results_beside(registry)
    if results is None:
        return
    from scanner.registry.clock import refuse_clock_far_from
    from scanner.results.queries import ask, exist, scans

    newest = None
    sign_results(results, registry)  # checked, so a time that somebody else wrote there does not count
    try:
        if exist(results):
            newest = ask(results, lambda: scans(results).select("started_at").max().collect()).item()
    except BrickscanError as error:  # users may be added all the same
        complain(f"brickscan: this machine's clock is not held against the newest scan: {error}")
    if newest is not None:
        refuse_clock_far_from(newest, results)


results_argument = click.argument("results", metavar="CONFIG|RESULTS")
since_option = click.option(
    "--since", type=Moment(), help="Only documents scanned at this time (UTC) or date, or later"
)
until_option = click.option(
    "--until", type=Moment(through=True), help="Only documents scanned before this time (UTC), or up to this date"
)
key_ids_option = click.option("--key", "key_ids", multiple=True, metavar="KEY_ID", help="Only this key (repeatable)")
yes_option = click.option("--yes", is_flag=True, help="No question before it is done")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing")
held_by_option = click.option(
    "--held-by",
    metavar="WHO",
    help=(
        "Others who have the secret, such as a site that serves the model: they can mark text for"
        " anybody, and flags say so"
    ),
)
DATE_OR_MINUTE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])
"""Kind of argument: a date, or a minute, in UTC."""


def refuse_output(out: Path) -> None:
    """Raise Refused if the file of `--out` cannot be written as a new Parquet file."""
    if out.suffix != ".parquet":
        raise Refused(f"--out {out}: Parquet is written, so the name must end in .parquet")
    if out.exists():
        raise Refused(f"--out {out}: exists already; name a file that does not")
    if not out.absolute().parent.is_dir():
        raise Refused(f"--out {out}: there is no folder {out.parent}; make it first")


def confirm(changes: Sequence[str], yes: bool, dry_run: bool) -> bool:
    """Return whether to continue with a change that cannot be undone, by --yes or by the answer at the terminal.

    Raises:
        Refused: neither option was given, and there is no terminal for a question.
    """
    if dry_run:
        tell(*changes, "nothing was done (--dry-run)")
        return False
    if yes:
        return True
    complain(*changes)
    if not sys.stdin.isatty():
        raise Refused("this cannot be undone, and nobody is there to ask: give --yes, or --dry-run to see it first")
    if click.confirm("This cannot be undone. Go on?", err=True):
        return True
    complain("nothing was done")
    return False


def time_of(time: datetime | None) -> str:
    """Write a time in UTC to the second. `-`: there is none."""
    return "-" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
