"""Write Parquet files of tables durably into a table's folder. They become part of the table when they are committed.

A file's name ends with the SHA-256 of its content, so the name shows what the file must contain. This module does not
use Delta's log. A worker, which commits nothing, therefore loads no library for it.
"""

import hashlib
import json
import re
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scanner.errors import ScanFailed, TableError, in_a_line
from scanner.storage.locations import read_whole_file, table_uri, write_new
from schemas.audit import AUDIT_COUNTS, AUDITS
from schemas.tables import (
    ACCOUNT_POSTS,
    ACCOUNTS,
    DECISIONS,
    FILTER_SKETCHES,
    FILTERS,
    FLAG_LEVELS,
    FLAG_TEXTS,
    FLAGS,
    QUARANTINE,
    SCANS,
    SHARDS,
    SPANS,
    TEXT_COUNTS,
    VERDICTS,
    VERIFIED_USERS,
)

TABLES: Mapping[str, pa.Schema] = {
    "quarantine": QUARANTINE,
    "audit_counts": AUDIT_COUNTS,
    "text_counts": TEXT_COUNTS,
    "flags": FLAGS,
    "spans": SPANS,
    "shards": SHARDS,
    "scans": SCANS,
    "audits": AUDITS,
    "verdicts": VERDICTS,
}
"""Tables of every scan, in the order in which they are made. Verdicts come last: if they exist, all others do."""


SCHEMAS: Mapping[str, pa.Schema] = {
    **TABLES,
    "flag_texts": FLAG_TEXTS,
    "flag_levels": FLAG_LEVELS,
    "decisions": DECISIONS,
    "account_posts": ACCOUNT_POSTS,
    "accounts": ACCOUNTS,
    "filter_sketches": FILTER_SKETCHES,
    "filters": FILTERS,
    "verified_users": VERIFIED_USERS,
}
"""Schemas of all tables that may exist. A scan makes those of TABLES.

Columns decide how a table's rows are treated, so no new table can be forgotten. Rows with a `shard_id` are removed with
their night (OF_A_NIGHT). Rows with a `user_id` or `user_ids` are searched when a name is erased (OF_USERS).
"""

OF_A_NIGHT = tuple(name for name, schema in SCHEMAS.items() if "shard_id" in schema.names)
OF_USERS = tuple(name for name, schema in SCHEMAS.items() if {"user_id", "user_ids"} & {*schema.names})

AFTER_VERDICTS = ("decisions", "accounts")
"""Tables of rows on shards with committed verdicts. Rows of all other tables are committed before the verdicts."""


WITH_BOUNDS = ("path", "row", "log10_p_global", "scan_id")
"""Columns whose least and largest values are recorded for each file."""


_DISTINCT = (
    "row",
    "doc_id",
    "text_sha256",
    "score",
    "log10_p",
    "log10_p_global",
    "runner_up_log10_p",
    "runner_up_log10_p_global",
    "text_id",
    "sketch",
    "text",
    "surprise",
    "cells",
    "common",
)
"""Columns with few repeated values. A dictionary would not help them."""


_ROWS_A_GROUP = {"account_posts": 2048}
"""Rows of a row group, for tables whose files are read in parts."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file in a table's folder that is not part of the table yet.

    name: name of the file in the folder.
    size: in bytes.
    rows: number of rows.
    stats: Delta's statistics, as JSON.
    """

    name: str
    size: int
    rows: int
    stats: str


def write_file(results: str, name: str, batches: Sequence[pa.RecordBatch]) -> DataFile | None:
    """Write rows of a table to a new file in its folder. It is on the disk when this returns. None: there are no rows.

    Raises:
        ScanFailed: the file cannot be written.
    """
    rows = pa.Table.from_batches(batches, SCHEMAS[name])
    if not len(rows):
        return None
    sink = pa.BufferOutputStream()
    dictionaries = [c for c in rows.column_names if c not in _DISTINCT]
    # File names stay in Delta's log after an erasure. Without the salt, their digests could confirm a guessed name.
    salted = rows.replace_schema_metadata({"brickscan.salt": secrets.token_hex(16)})
    pq.write_table(salted, sink, _ROWS_A_GROUP.get(name), compression="zstd", use_dictionary=dictionaries)
    data = sink.getvalue()
    file_name = f"part-{uuid.uuid4().hex}-{hashlib.sha256(data).hexdigest()}.parquet"
    file = DataFile(file_name, len(data), len(rows), _stats(rows))
    location = f"{table_uri(results, name)}/{file.name}"
    try:
        write_new(location, data)
    except OSError as error:
        raise ScanFailed(f"results: {location} cannot be written: {in_a_line(error)}") from None
    return file


_NAME = re.compile(r"part-[0-9a-f]{32}-([0-9a-f]{64})\.parquet")


def sha256_in(file_name: str) -> str | None:
    """Return the SHA-256, in hexadecimal, from the name of a file. None: brickscan did not write the file."""
    match = _NAME.fullmatch(file_name)
    return match and match[1]


def read_file(results: str, name: str, file_name: str) -> pa.Buffer:
    """Read the bytes of a table's file, and compare them with the SHA-256 in its name, if there is one.

    Raises:
        OSError: the file cannot be read.
        TableError: its content is not what was written.
    """
    location = f"{table_uri(results, name)}/{file_name}"
    data = read_whole_file(location)
    if sha256_in(file_name) not in (None, hashlib.sha256(data).hexdigest()):
        raise TableError(
            f"results: {location}: its content is not what brickscan wrote, so somebody changed it. Do not trust it: "
            "restore the file from a copy, or scan its input again into another folder"
        )
    return data


def all_rows(name: str, file: pq.ParquetFile) -> pa.Table:
    """Return the rows of a table's file. Columns that the table got after the file was written are empty."""
    return pa.concat_tables([file.read(), SCHEMAS[name].empty_table()], promote_options="default").cast(SCHEMAS[name])


def _stats(rows: pa.Table) -> str:
    """Return Delta's statistics of a file, by which readers skip it: number of rows, least and largest values."""
    bounds = {column: pc.min_max(rows[column]).as_py() for column in WITH_BOUNDS if column in rows.column_names}
    return json.dumps(
        {
            "numRecords": len(rows),
            "minValues": {column: pair["min"] for column, pair in bounds.items() if pair["min"] is not None},
            "maxValues": {column: pair["max"] for column, pair in bounds.items() if pair["max"] is not None},
            "nullCount": {column: rows[column].null_count for column in bounds},
        },
        ensure_ascii=False,  # deltalake misreads a character beyond U+FFFF that is written as two escapes (1.6.6)
    )
