"""Write posts of JSON lines or CSV as Parquet: python docs/examples/to_parquet.py SOURCE TARGET FIELD …

SOURCE: a file of JSON lines, or one that ends in .csv and has a header. TARGET: the Parquet file, which must not exist.
FIELD: the fields that become columns, such as: id account created_at text.
Every value is written as text, as it stands there: 007 and 18446744073709551617 stay what they are. Broken lines are
kept in SOURCE.broken and counted, and the rest is written. Needs Python and pyarrow, which brickscan brings.
"""

import csv
import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_AT_ONCE, BYTES_AT_ONCE = 10_000, 2**24

Row = dict[str, str | None]


class Number(str):
    """A number, true or false, as its line has it."""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object. Raises ValueError: one stands twice, and nobody can say which of them counts."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field stands twice")
    return fields


READER = json.JSONDecoder(
    parse_int=Number, parse_float=Number, parse_constant=Number, object_pairs_hook=unique, strict=False
)


def as_json(value: Any) -> str:  # noqa: ANN401
    """Write a value as JSON again, its numbers digit by digit."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_json(name)}: {as_json(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_json, value)) + "]"
    return str(value) if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)


def of_json(source: TextIO, names: Sequence[str]) -> Iterator[Row | str]:
    """Yield the rows of JSON lines; a broken one as it stands."""
    for line in source:
        if not line.strip():
            continue
        try:
            fields = READER.decode(line)
            if not isinstance(fields, dict):
                raise ValueError("this is no object")
            found = {name: fields[name] for name in names if name in fields}
            yield {
                name: value if value is None or isinstance(value, str) else as_json(value)
                for name, value in found.items()
            }
        except (ValueError, RecursionError):
            yield line


def of_csv(source: TextIO, names: Sequence[str]) -> Iterator[Row | str]:
    """Yield the rows of CSV whose header has the names; one with another number of fields as JSON, which you can mend.

    A quote that does not end would swallow the rows behind it: its line is broken, and the next one is read anew.
    """
    csv.field_size_limit(sys.maxsize)
    header = source.readline()
    split = [(mark, next(csv.reader([header], delimiter=mark), [])) for mark in ",;\t"]
    mark, columns = next((one for one in split if {*names} <= {*one[1]}), split[0])
    ahead, of_row = deque[str](), list[str]()

    def lines() -> Iterator[str]:
        while line := ahead.popleft() if ahead else source.readline():
            of_row.append(line)
            yield line

    reader = csv.reader(lines(), delimiter=mark, strict=True)
    while True:
        of_row.clear()
        try:
            row = next(reader, None)
        except csv.Error:
            yield of_row[0]
            ahead.extendleft(reversed(of_row[1:]))
            reader = csv.reader(lines(), delimiter=mark, strict=True)
            continue
        if row is None:
            return
        if len(row) == len(columns):
            yield {name: value for name, value in zip(columns, row, strict=True) if name in names}
        elif row:
            yield json.dumps(row) + "\n"


def as_bytes(text: str) -> bytes:
    """UTF-8 of a text. Bytes that were none, and lone surrogates, are kept: a scan replaces them by U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        kinds = ("surrogateescape" if "\udc80" <= one <= "\udcff" else "surrogatepass" for one in text)
        return b"".join(one.encode(errors=kind) for one, kind in zip(text, kinds, strict=True))


def convert(source: Path, target: Path, names: Sequence[str]) -> str:
    """Write TARGET, and SOURCE.broken if any line is broken. Returns what was written, in words."""
    columns: dict[str, list[bytes | None]] = {name: [] for name in names}
    schema, found = pa.schema([(name, pa.large_binary()) for name in names]), set[str]()
    rows = size = 0
    broken = list[str]()
    unfinished = target.with_name(f".{target.name}.unfinished")  # no scan reads it
    reader, newline = (of_csv, "") if source.suffix == ".csv" else (of_json, "\n")
    with (
        source.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline) as text,
        pq.ParquetWriter(unfinished, schema) as writer,
    ):

        def write() -> None:
            writer.write_table(pa.table(columns, schema))
            for values in columns.values():
                values.clear()

        for row in reader(text, names):
            if isinstance(row, str):
                broken.append(row)
                continue
            rows += 1
            found |= row.keys()
            for name, values in columns.items():
                values.append(None if (value := row.get(name)) is None else as_bytes(value))
                size += len(values[-1] or b"")
            if rows % ROWS_AT_ONCE == 0 or size > BYTES_AT_ONCE:
                write()
                size = 0
        write()
    os.replace(unfinished, target)
    said = f"{target}: {rows:,} rows"
    if broken:
        kept = source.with_name(f"{source.name}.broken")
        kept.write_text("".join(broken), encoding="utf-8", errors="surrogateescape", newline="")
        said += f"; {len(broken):,} broken lines, kept in {kept}"
    lacking = [name for name in names if name not in found]
    return said + (f"; no line has a field {', '.join(map(repr, lacking))}" if lacking else "")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    if Path(sys.argv[2]).exists():
        sys.exit(f"{sys.argv[2]}: is there already")
    try:
        print(convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
    except OSError as error:
        sys.exit(f"{error.filename}: cannot be read or written ({error.strerror})")
