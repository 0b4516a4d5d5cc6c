"""Parquet files that somebody names: opened as the input is, their columns guessed and described, for people to see."""

import atexit
import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scanner.errors import FileFault, Refused, in_a_line
from scanner.input.columns import Columns, is_text, plain_type, times
from scanner.input.files import InputFile, list_files
from scanner.input.inspector import Inspector
from scanner.input.shards import cut, encrypted_columns, footer_of, open_footer, readable_in
from scanner.input.tables import ICEBERG_PREFIX, LOG_OF_DELTA


def open_parquet(path: Path, name: str) -> pq.ParquetFile:
    """A Parquet file whose footer was found sound by a process of its own, since a footer can end its reader.

    name: what the file is called in the error, such as `--file users.parquet`.

    Raises:
        Refused: it cannot be read, is no regular file, or its footer contradicts itself or claims too much.
    """
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
        file = InputFile(real, real, real, status.st_size, status.st_mtime_ns)
        cut(_inspector().inspect(file, Columns(None, None, None, None)))
        return pq.ParquetFile(real)
    except FileFault as fault:
        raise Refused(f"{name}: cannot be read as Parquet ({fault.detail})") from None
    except OSError as error:
        raise Refused(f"{name}: cannot be read as Parquet ({error.strerror or in_a_line(error)})") from None
    except pa.ArrowException as error:
        raise Refused(f"{name}: cannot be read as Parquet ({in_a_line(error)})") from None


@functools.cache
def _inspector() -> Inspector:
    inspector = Inspector()
    atexit.register(inspector.close)
    return inspector


ROWS_OF_A_SAMPLE = 1000
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


class SampleFile(NamedTuple):
    """A file whose columns are guessed: its path, and values of columns beside it.

    table: its table as `input.paths` names it, a folder without what goes before it, None: it is in none; where, date:
    SQL that chooses a night of the table, and the newest night, where it is partitioned by dates.
    """

    file: Path
    values: Mapping[str, str | None] = MappingProxyType({})
    table: str | None = None
    where: str | None = None
    date: str | None = None


def sample_of(path: Path) -> SampleFile:
    """The file of a path; the newest file of a Delta table that the path is or lies in, or of a named Iceberg table.

    Raises:
        Refused: the table cannot be read, or has no files.
    """
    absolute = path.absolute()
    folders = (str(folder) for folder in (absolute, *absolute.parents) if (folder / LOG_OF_DELTA).is_dir())
    table = str(path) if str(path).startswith(ICEBERG_PREFIX) else next(folders, None)
    if table is None:
        return SampleFile(path)
    files = list_files([table])
    if not files:
        raise Refused(f"{path}: the table has no rows; name one with texts in it")
    newest = max(files, key=lambda file: file.entry.since if file.entry else 0)
    for name in newest.values:
        dates = [file.values[name] or "" for file in files]
        if all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", date) for date in dates):
            return SampleFile(Path(newest.path), newest.values, table, f"{name} = '{{date}}'", max(dates))
    return SampleFile(Path(newest.path), newest.values, table)


def guess_columns(sample: SampleFile) -> Guess:
    """Guess from a file's names, types and first rows which columns hold what.

    Raises:
        Refused: it is no Parquet file, is empty, or has no column of texts.
    """
    file = sample.file
    try:
        with open_parquet(file, str(file)) as parquet:
            batch = next(parquet.iter_batches(ROWS_OF_A_SAMPLE), None)
    except (OSError, pa.ArrowException) as error:
        raise Refused(
            f"{file}: cannot be read as Parquet ({in_a_line(error)}); give a Parquet file of your own"
        ) from None
    if batch is None or not len(batch):
        raise Refused(f"{file}: has no rows; give a file with texts in it")
    text, longest = _text(file, batch)
    for name, value in sample.values.items():
        if name not in batch.schema.names:
            batch = batch.append_column(name, pa.array([value] * len(batch), pa.string()))
    used = {text}
    why = [f"text     {text!r}: texts of {longest:,.0f} bytes on average"]

    def named(role: str, pattern: str, fits: Callable[[pa.Array], bool]) -> str | None:
        names = [name for name in batch.schema.names if name not in used and re.fullmatch(pattern, name, re.IGNORECASE)]
        found = next((name for name in names if fits(batch.column(name))), None)
        none = f"none: {names[0]!r} holds no {role}" if names else "none: no column is named like one"
        why.append(f"{role:<8} {found!r}: by its name" if found else f"{role:<8} {none}")
        used.add(found or text)
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
    """The guess for `input.paths` of a file in no table: its folder, with {date} for a date in its name."""
    folder = file.absolute().parent
    dated = re.sub(r"\d{4}-\d{2}-\d{2}", "{date}", folder.name)
    return str(folder.with_name(dated)) if folder.name else str(folder)


class ColumnDescription(NamedTuple):
    """A column: what it holds (text, id, account or time), its name, its Arrow type, and whether its values are read.

    Values of a column that is not read are null in all tables.
    """

    role: str
    name: str
    type: str
    read: bool


def describe(file: InputFile, columns: Columns) -> list[ColumnDescription]:
    """The configured columns of a file that an Inspector found sound. Raises FileFault: it cannot be read any more."""
    with file.open() as opened:
        footer = footer_of(opened)
    parquet = open_footer(footer)
    schema, found = parquet.schema_arrow, readable_in(parquet, footer, file.size, columns).names
    encrypted = encrypted_columns(parquet, footer, file.size, columns.names.values())
    return [
        ColumnDescription(
            role,
            name,
            "encrypted" if name in encrypted else str(schema.field(schema.get_field_index(name)).type),
            found[role] is not None,
        )
        if len(schema.get_all_field_indices(name)) == 1
        else ColumnDescription(role, name, "several columns of one name", read=False)
        for role, name in columns.names.items()
        if name is not None
    ]
