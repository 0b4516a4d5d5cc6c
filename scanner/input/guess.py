"""Guesses which columns of a user's own file are to be scanned, for people to check."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from scanner.errors import Refused, in_a_line
from scanner.input.columns import is_text, plain_type
from scanner.input.named_parquet import open_parquet
from scanner.input.times import times

ROWS = 1000
"""Most rows that are looked at."""

_TEXT = r"text|body|content|message|comment|post|document"
_ID = r"(doc(ument)?|post|message|comment|item)?_?(id|uuid|key)"
_ACCOUNT = r"(account|user|author|sender|poster|owner|member)(_?(id|name|uuid))?"
_TIME = r"(created|posted|received|written|published)(_?(at|on|time|date))?|timestamp|time|date(time)?"


class Guess(NamedTuple):
    """Names of the columns, and why, in words; None: no column looks like it."""

    text: str
    id: str | None
    account: str | None
    time: str | None
    why: tuple[str, ...]


def guess_columns(file: Path) -> Guess:
    """Guess from a file's names, types and first rows which columns hold what.

    Raises:
        Refused: it is no Parquet file, is empty, or has no column of texts.
    """
    try:
        with open_parquet(file, str(file)) as parquet:
            batch = next(parquet.iter_batches(ROWS), None)
    except (OSError, pa.ArrowException) as error:
        raise Refused(
            f"{file}: cannot be read as Parquet ({in_a_line(error)}); give a Parquet file of your own"
        ) from None
    if batch is None or not len(batch):
        raise Refused(f"{file}: has no rows; give a file with texts in it")
    text, longest = _text(file, batch)
    taken = {text}
    why = [f"text     {text!r}: texts of {longest:,.0f} bytes on average"]

    def named(role: str, pattern: str, fits: Callable[[pa.Array], bool]) -> str | None:
        names = [
            name for name in batch.schema.names if name not in taken and re.fullmatch(pattern, name, re.IGNORECASE)
        ]
        found = next((name for name in names if fits(batch.column(name))), None)
        none = f"none: {names[0]!r} holds no {role}" if names else "none: no column is named like one"
        why.append(f"{role:<8} {found!r}: by its name" if found else f"{role:<8} {none}")
        taken.add(found or text)
        return found

    account = named("account", _ACCOUNT, _is_plain)
    identity = named("id", _ID, _is_plain)
    time = named("time", _TIME, _holds_times)
    if None in (account, identity, time):
        why.append("columns  of the file: " + ", ".join(repr(name) for name in batch.schema.names))
    return Guess(text, identity, account, time, tuple(why))


def _is_plain(column: pa.Array) -> bool:
    return not pa.types.is_nested(plain_type(column.type))


def _holds_times(column: pa.Array) -> bool:
    """Whether a column is of a type of times, or all of its texts are times that a scan can read."""
    kind = plain_type(column.type)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    if not is_text(column.type) or pa.types.is_null(kind) or column.null_count == len(column):
        return False
    return not times(column, "UTC").unread.any()


def _text(file: Path, batch: pa.RecordBatch) -> tuple[str, float]:
    """The column named like a text, else the column of the longest texts, with their mean length in bytes."""
    sizes = {
        name: pc.mean(pc.binary_length(batch.column(name).cast(pa.large_binary()))).as_py() or 0.0
        for name in batch.schema.names
        if is_text(batch.schema.field(name).type) and not pa.types.is_null(batch.schema.field(name).type)
    }
    if not sizes:
        columns = ", ".join(repr(name) for name in batch.schema.names)
        raise Refused(f"{file}: has no column of texts (string or binary); it has {columns}")
    named = [name for name in sizes if re.fullmatch(_TEXT, name, re.IGNORECASE)]
    best = max(named or sizes, key=lambda name: sizes[name])
    return best, sizes[best]


def input_path(file: Path) -> str:
    """The guess for `input.paths`: the file's folder, with {date} for a date in its name."""
    folder = file.absolute().parent
    dated = re.sub(r"\d{4}-\d{2}-\d{2}", "{date}", folder.name)
    return str(folder.with_name(dated)) if folder.name else str(folder)
