"""Parquet files of tables: written durably into a table's folder, and part of the table once they are committed.

A file's name ends with the SHA-256 of its content, so that whoever knows the name knows what the file must hold.
Nothing here knows Delta's log, so that a worker, which commits nothing, holds no library that does.
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

from scanner.errors import Refused, ScanFailed, in_a_line
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
"""Tables of every scan, in the order in which they are made: where verdicts are, all others are."""


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
"""Schemas of all tables that may exist; a scan makes those of TABLES.

Columns decide what becomes of a table's rows, so that a new table is never forgotten: rows with a `shard_id` leave with
their night (OF_A_NIGHT), and rows with a `user_id` or `user_ids` are looked through when a name is erased (OF_USERS).
"""

OF_A_NIGHT = tuple(name for name, schema in SCHEMAS.items() if "shard_id" in schema.names)
OF_USERS = tuple(name for name, schema in SCHEMAS.items() if {"user_id", "user_ids"} & {*schema.names})

AFTER_VERDICTS = ("decisions", "accounts")
"""Tables of rows on shards whose verdicts are committed; those of all others are committed before the verdicts."""


WITH_BOUNDS = ("path", "row", "log10_p_global", "scan_id")
"""Columns whose least and largest values a file has on record."""


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
"""Columns with few repeated values, for which a dictionary is of no use."""


_ROWS_A_GROUP = {"account_posts": 2048}
"""Rows of a row group, for tables of which parts of a file are read."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file that lies in a table's folder and is not part of the table yet.

    name: of the file, in the folder.
    size: bytes.
    rows: how many it has.
    stats: Delta's JSON.
    """

    name: str
    size: int
    rows: int
    stats: str


def write_file(results: str, name: str, batches: Sequence[pa.RecordBatch]) -> DataFile | None:
    """Write rows of a table to a new file in its folder, on the disk when this returns. Return None if there are none.

    Raises:
        ScanFailed: the file cannot be written.
    """
    rows = pa.Table.from_batches(batches, SCHEMAS[name])
    if not len(rows):
        return None
    sink = pa.BufferOutputStream()
    dictionaries = [c for c in rows.column_names if c not in _DISTINCT]
    # names stay in Delta's log after an erasure: without the salt, a digest would show whether a guessed name was there
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
    """Return the SHA-256, in hexadecimal, that the name of a file states; None: brickscan did not write it."""
    match = _NAME.fullmatch(file_name)
    return match and match[1]


def read_file(results: str, name: str, file_name: str) -> pa.Buffer:
    """Read the bytes of a file of a table, and hold them against the SHA-256 that its name states, if it states any.

    Raises:
        OSError: it cannot be read.
        Refused: its content is not what was written.
    """
    location = f"{table_uri(results, name)}/{file_name}"
    data = read_whole_file(location)
    if sha256_in(file_name) not in (None, hashlib.sha256(data).hexdigest()):
        raise Refused(
            f"results: {location}: its content is not what brickscan wrote, so somebody changed it. Believe "
            "nothing of it: put the file back from a copy, or scan its input again into another folder"
        )
    return data


def all_rows(name: str, file: pq.ParquetFile) -> pa.Table:
    """Return the rows of a table's file; columns that the table got after it was written are empty."""
    return pa.concat_tables([file.read(), SCHEMAS[name].empty_table()], promote_options="default").cast(SCHEMAS[name])


def _stats(rows: pa.Table) -> str:
    """Return Delta's statistics of a file, by which a reader skips it: number of rows; least and largest values."""
    bounds = {column: pc.min_max(rows[column]).as_py() for column in WITH_BOUNDS if column in rows.column_names}
    return json.dumps(
        {
            "numRecords": len(rows),
            "minValues": {column: pair["min"] for column, pair in bounds.items() if pair["min"] is not None},
            "maxValues": {column: pair["max"] for column, pair in bounds.items() if pair["max"] is not None},
            "nullCount": {column: rows[column].null_count for column in bounds},
        },
        ensure_ascii=False,  # deltalake reads a character beyond U+FFFF wrong that is written as two escapes (1.6.6)
    )
