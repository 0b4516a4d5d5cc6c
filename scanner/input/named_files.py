"""Open Parquet files that a user names as the input is opened. Guess and describe their columns."""

import atexit
import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scanner.errors import FileFault, Refused, in_a_line
from scanner.input.columns import NO_COLUMNS, Columns, is_text, plain_type
from scanner.input.documents import Unreadable, read
from scanner.input.files import InputFile, list_files
from scanner.input.footers import (
    INT96_UNIT,
    bytes_of,
    encrypted_columns,
    footer_of,
    has_encrypted_columns,
    open_footer,
    readable_in,
)
from scanner.input.inspector import Inspector
from scanner.input.shards import cut
from scanner.input.tables import ICEBERG_PREFIX, LOG_OF_DELTA

_GUIDE = "; the guide “Where text lives” writes JSON lines, CSV and others as Parquet"


def open_parquet(path: Path, name: str) -> pq.ParquetFile:
    """Open a Parquet file, after a separate process has checked its footer.

    A bad footer can end the process that reads it.

    Args:
        path: the file.
        name: name of the file in the error, such as `--file users.parquet`.

    Raises:
        Refused: it cannot be read, is no regular file, or its footer contradicts itself or claims too much.
    """
    with _faults_in(name):
        return pq.ParquetFile(_sound_file(path).inner, coerce_int96_timestamp_unit=INT96_UNIT)


def _sound_file(path: Path) -> InputFile:
    """Return a file with a sound footer.

    Raises:
        FileFault: its footer is not sound.
        OSError: it cannot be read.
    """
    real = os.path.realpath(path)
    status = os.stat(real)
    file = InputFile(real, real, real, status.st_size, status.st_mtime_ns)
    cut(_inspector().inspect(file, NO_COLUMNS))
    return file


@contextlib.contextmanager
def _faults_in(name: str) -> Iterator[None]:
    """Turn errors about a file's content into Refused. `name` is the file's name in the message."""
    try:
        yield
    except FileFault as fault:
        more = _GUIDE if fault.reason == "not_parquet" else ""
        raise Refused(f"{name}: cannot be read as Parquet ({fault.detail}){more}") from None
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
"""Most rows that are sampled."""

BYTES_OF_A_SAMPLE = 16 * 2**20
"""Bytes of a column after which no more of its rows are sampled."""

COLUMNS_OF_A_SAMPLE = 100
"""Most columns that are searched for texts."""

_TEXT = r"text|body|content|message|comment|post|document"
_ID = r"(doc(ument)?|post|message|comment|item)?_?(id|uuid|key)"
_ACCOUNT = r"(account|user|author|sender|poster|owner|member)(_?(id|name|uuid))?"
_NO_TEXT = r"role|from|type|name|lang(uage)?"
_TIME = r"(created|posted|received|written|published)(_?(at|on|time|date))?|timestamp|time|date(time)?"


class Guess(NamedTuple):
    """Names of the columns. None: no column looks like it.

    why: reasons in words.
    """

    text: str
    id: str | None
    account: str | None
    time: str | None
    why: tuple[str, ...]


class SampleFile(NamedTuple):
    """A file whose columns are guessed.

    listed: the file as its table has it. None: it is in no table.
    table: its table, as `input.paths` names it, a folder without the folders before it. None: it is in no table.
    where: SQL that selects a night of the table, if it is partitioned by dates.
    date: the newest night, if it is partitioned by dates.
    folder: the folder of files that the user named. It is no table.
    """

    file: Path
    listed: InputFile | None = None
    table: str | None = None
    where: str | None = None
    date: str | None = None
    folder: Path | None = None


def sample_of(path: Path) -> SampleFile:
    """Find the file whose columns are guessed for a path.

    It is the file itself, the newest file of a folder, or the newest file of a table. The path may be a Delta table or
    a file in it, or name an Iceberg table.

    Raises:
        Refused: the table cannot be read, or has no files.
    """
    absolute = path.absolute()
    folders = (str(folder) for folder in (absolute, *absolute.parents) if (folder / LOG_OF_DELTA).is_dir())
    table = str(path) if str(path).startswith(ICEBERG_PREFIX) else next(folders, None)
    if table is None and not path.is_dir():
        return SampleFile(path)
    if table is None:
        files = list_files([str(absolute)])
        if not files:
            raise Refused(f"{path}: has no Parquet file; the guide “Where text lives” writes other formats as Parquet")
        return SampleFile(Path(max(files, key=lambda file: file.modified).path), folder=absolute)
    files = list_files([table])
    if not files:
        raise Refused(f"{path}: the table has no rows; name a table with texts in it")
    newest = max(files, key=lambda file: (file.entry and file.entry.since) or file.modified)
    for name in newest.values:
        dates = [file.values.get(name) or "" for file in files]
        if all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", date) for date in dates):
            column = name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else _quoted(name)
            return SampleFile(path, newest, table, f"{column} = '{{date}}'", max(dates))
    return SampleFile(path, newest, table)


def guess_columns(sample: SampleFile) -> Guess:
    """Guess the columns from names, types and first rows. Only columns that a scan can read count.

    If the file is in a table, names and types are the table's. The file may have older ones.

    Raises:
        Refused: it is no Parquet file, is empty, or has no column of texts.
    """
    path, name = sample.file, str(sample.file)
    with _faults_in(name):
        file = sample.listed or _sound_file(path)
        if sample.listed is not None:
            _inspector().inspect(file, NO_COLUMNS)
        with file.open() as opened:
            footer = footer_of(opened)
        parquet = open_footer(footer)
    if not parquet.metadata.num_rows:
        raise Refused(f"{path}: has no rows; give a file with texts in it")
    schema = parquet.schema_arrow
    if sample.listed is not None and sample.listed.entry is not None:
        kinds = {name: plain_type(column.type) for name, column in sample.listed.entry.columns.items()}
        places = {name: file.sources(NO_COLUMNS._replace(id=name))["id"].indices(schema) for name in kinds}
    else:
        places = {name: schema.get_all_field_indices(name) for name in schema.names}
        kinds = {name: plain_type(schema.field(i[0]).type) for name, i in places.items() if len(i) == 1}
    names_there = {name: schema.field(i[0]).name for name, i in places.items() if i}
    nested = _nested_texts(parquet, kinds, names_there, ask=not has_encrypted_columns(parquet.metadata, footer))
    text, longest = _text(path, file, kinds, nested)
    used = {text}
    why = [f"text     {text!r}: texts of {longest:,.0f} bytes on average"]

    def named(role: str, pattern: str, fits: Callable[[str], bool]) -> str | None:
        names = [name for name in kinds if name not in used and _matches(pattern, name)]
        column = next((name for name in names if fits(name)), None)
        none = f"none: {names[0]!r} holds no {role}" if names else "none: no column has a name like it"
        why.append(f"{role:<8} {column!r}: by its name" if column else f"{role:<8} {none}")
        used.add(column or text)
        return column

    def is_plain(name: str) -> bool:
        return _can_be_read(file, NO_COLUMNS._replace(id=name))

    def holds_times(name: str) -> bool:
        return _holds_times(file, name, kinds[name])

    account = named("account", _ACCOUNT, is_plain)
    identity = named("id", _ID, is_plain)
    time = named("time", _TIME, holds_times)
    if None in (account, identity, time):
        why.append(
            "columns  of the file: " + ", ".join(repr(name) for name in (kinds if sample.listed else schema.names))
        )
    return Guess(text, identity, account, time, tuple(why))


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name, re.IGNORECASE) is not None


def _can_be_read(file: InputFile, columns: Columns) -> bool:
    """Return whether a scan reads all of some columns of a sound file."""
    try:
        _inspector().inspect(file, columns)
        return all(column.read for column in describe(file, columns))
    except FileFault:
        return False


def _sampled(file: InputFile, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yield the first documents of a file with these columns, as a scan reads them, without corrupt ones."""
    _inspector().inspect(file, columns)
    rows = 0
    with file.open() as opened:
        rows = min(open_footer(footer_of(opened)).metadata.num_rows, ROWS_OF_A_SAMPLE)
    size = 0
    for part in read(file, columns, 0, rows):
        if not isinstance(part, Unreadable):
            yield part
            size += part.nbytes
        if size > BYTES_OF_A_SAMPLE:
            return


def _holds_times(file: InputFile, name: str, kind: pa.DataType) -> bool:
    """Return whether a column has a type of times, or only texts that a scan can read as times."""
    columns = NO_COLUMNS._replace(time=name)
    if not _can_be_read(file, columns):
        return False
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    if not is_text(kind) or pa.types.is_null(kind):
        return False
    has_times = False
    with contextlib.suppress(FileFault):
        for batch in _sampled(file, columns):
            if pc.any(batch["unread"]).as_py():
                return False
            has_times |= batch["created_at"].null_count < len(batch)
    return has_times


def _text(
    path: Path, file: InputFile, kinds: Mapping[str, pa.DataType], nested: Mapping[str, float]
) -> tuple[str, float]:
    """Find the column named like a text, or otherwise the column of the longest texts.

    Return its mean length in bytes too.

    nested: result of `_nested_texts`.
    """
    strings = [name for name, kind in kinds.items() if is_text(kind) and not pa.types.is_null(kind)]
    named = [name for name in strings if _matches(_TEXT, name)]
    others = [name for name in strings if not _matches(f"{_TEXT}|{_ID}|{_ACCOUNT}|{_TIME}", name)]
    for candidates, least in ((named, 0.0), (others, max(nested.values(), default=0.0))):
        sizes = {
            name: size for name in candidates[:COLUMNS_OF_A_SAMPLE] if (size := _mean_bytes(file, name)) is not None
        }
        if sizes and (longest := max(sizes.values())) >= least:
            return next(name for name, size in sizes.items() if size == longest), longest
    none = f"{path}: has no column of texts (string or binary)"
    if not nested:
        raise Refused(f"{none} that can be read; it has {', '.join(map(repr, kinds))}")
    name = max(nested, key=lambda name: nested[name])
    sql, source = _flat(name, kinds[name]), _quoted(str(path), "'")
    if file.entry is not None:
        sql, source = sql if file.entry.snapshot.kind == "Delta" else "", f"delta_scan({source})"
    raise Refused(
        f"{none}; the texts seem to be in {name!r}, {_article(kinds[name])}. Write each text into its own row"
        + (f", as DuckDB does: COPY ({sql} FROM {source}) TO 'texts.parquet'" if sql else "")
    )


def _article(kind: pa.DataType) -> str:
    """Describe a nested type in words."""
    return "a struct" if pa.types.is_struct(kind) else "a map" if pa.types.is_map(kind) else "a list"


def _mean_bytes(file: InputFile, name: str) -> float | None:
    """Compute the mean length of the first texts of a column, in bytes. None: it cannot be read."""
    rows = size = 0
    try:
        for batch in _sampled(file, NO_COLUMNS._replace(text=name)):
            rows += len(batch) - batch["text"].null_count
            size += pc.sum(pc.binary_length(batch["text"])).as_py() or 0
    except FileFault:
        return None
    return size / max(rows, 1)


def _nested_texts(
    parquet: pq.ParquetFile, kinds: Mapping[str, pa.DataType], names: Mapping[str, str], *, ask: bool
) -> dict[str, float]:
    """Compute the bytes per row of nested columns with strings, by their names.

    names: the columns' names in the file.
    ask: whether sizes can be read. If not, they are 0.
    """
    metadata = parquet.metadata
    top_columns = [metadata.schema.column(number).path.partition(".")[0] for number in range(len(metadata.schema))]
    sizes = dict[str, float]()
    for name, kind in kinds.items():
        if pa.types.is_nested(kind) and _strings_in(kind):
            group, there = metadata.row_group(0), names.get(name)
            numbers = [number for number, column in enumerate(top_columns) if column == there]
            sizes[name] = bytes_of(group, numbers) / max(group.num_rows, 1) if ask else 0.0
    return sizes


def _strings_in(kind: pa.DataType) -> bool:
    """Return whether a type is a string type, or contains one."""
    if not pa.types.is_nested(kind):
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    return any(_strings_in(kind.field(number).type) for number in range(kind.num_fields))


def _quoted(name: str, mark: str = '"') -> str:
    """Quote a column's name for SQL, or a text with another quotation mark."""
    return mark + name.replace(mark, 2 * mark) + mark


def _flat(column: str, kind: pa.DataType) -> str:
    """Return DuckDB's SELECT for the texts of a nested column. Empty: it has none.

    The texts are those of a field named like one, or otherwise of the first field.
    """
    sql, lists = _quoted(column), 0
    while pa.types.is_nested(kind):
        if pa.types.is_struct(kind):
            fields = [kind.field(number) for number in range(kind.num_fields)]
            fields = [field for field in fields if _strings_in(field.type)]
            field = min(fields, key=lambda field: (not _matches(_TEXT, field.name), _matches(_NO_TEXT, field.name)))
            sql, kind = f"{sql}.{_quoted(field.name)}", field.type
            continue
        lists += 1
        if pa.types.is_map(kind):
            is_value = _strings_in(kind.item_type)
            sql = f"unnest(map_{'values' if is_value else 'keys'}({sql}))"
            kind = kind.item_type if is_value else kind.key_type
        else:
            sql, kind = f"unnest({sql})", kind.value_type
    return f"SELECT * EXCLUDE ({_quoted(column)}), {sql} AS text" if lists <= 1 else ""  # SQL cannot nest unnest


def input_path(file: Path) -> str:
    """Guess `input.paths` for a file in no table: its folder, with {date} for a date in its name."""
    folder = file.absolute().parent
    dated = re.sub(r"\d{4}-\d{2}-\d{2}", "{date}", folder.name)
    return str(folder.with_name(dated)) if folder.name else str(folder)


def _type_beside(file: InputFile, name: str) -> str:
    """Return the type of a column that a file lacks, in words."""
    column = None if file.entry is None or name in file.values else file.entry.columns.get(name)
    return "of a partition" if column is None else f"{column.type}, which is missing in older files of the table"


class ColumnDescription(NamedTuple):
    """A column: its role (text, id, account or time), its name, its Arrow type, and whether its values are read.

    Values of a column that is not read are null in all tables.
    """

    role: str
    name: str
    type: str
    read: bool


def describe(file: InputFile, columns: Columns) -> list[ColumnDescription]:
    """Describe the configured columns of a file that an Inspector has checked.

    Raises:
        FileFault: the file cannot be read any more.
    """
    with file.open() as opened:
        footer = footer_of(opened)
    parquet, sources = open_footer(footer), file.sources(columns)
    schema, readable_names = parquet.schema_arrow, readable_in(parquet, footer, file.size, columns, sources).names
    there = [schema.field(i).name for source in sources.values() for i in source.indices(schema)]
    encrypted = encrypted_columns(parquet, footer, file.size, there)
    described = []
    for role, source in sources.items():
        name, indices = columns.names[role] or "", source.indices(schema)
        kind = _type_beside(file, name) if not indices else str(schema.field(indices[0]).type)
        if len(indices) > 1:
            kind = "several columns with the same name"
        elif indices and schema.field(indices[0]).name in encrypted:
            kind = "encrypted"
        described.append(ColumnDescription(role, name, kind, readable_names[role] is not None or not indices))
    return described
