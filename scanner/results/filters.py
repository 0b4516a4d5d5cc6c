"""Filters of nights in the results: learnt from sketches of earlier nights, fixed by the first scan of a night.

A night is the date of its input. Its filter never knows its own texts, whenever a scan of it is resumed or repeated: it
is read from the table once it is there, and made from earlier dates alone. Sketches are merged by OR, so that two scans
of a night, or two drivers, learn no text twice.
"""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from numpy.typing import NDArray

from scanner.detection.filtering import NO_FILTER, Filter
from scanner.detection.scan_plan import Plan, open_text_ids
from scanner.errors import Refused
from scanner.results.rewriting import Anew, rewrite, whole
from scanner.results.tables import SCHEMAS, DataFile, Entry, commit, open_tables, read_whole, write_file
from scanner.storage.canonical import digest
from scanner.storage.delta import table_uri
from scanner.watermark.common_ngrams import ROWS, CommonNgrams, Sketch, hash_key
from schemas.config import FilterConfig
from schemas.filter_tables import FILTER_SKETCHES, FILTERS

SKETCHES_TABLE, FILTERS_TABLE = "filter_sketches", "filters"

CELLS_A_ROW = 1 << 16
"""Cells of a row of the table of sketches: half a MiB."""

_OF_A_SKETCH = ("unit", "tokenizer_sha256", "reach", "hashed_under", "texts")


def with_filter(plan: Plan, scan_id: str | None) -> Plan:
    """The plan with the filter of its night, where it asks for one.

    scan_id: of a scan, which makes and keeps the filter if the night has none; None: of no scan, and nothing is
    written.

    Raises:
        Refused: the tables cannot be opened or made; SecretError.
        ScanFailed: they cannot be written.
    """
    config, night = plan.config.filter, plan.date
    if config is None or night is None:
        return plan
    found = fixed(plan.results, night)
    if found is None:
        rows = list(_made(plan, config, night, scan_id or ""))
        found = str(rows[0]["filter_sha256"])
        if scan_id is not None:
            open_tables(plan.results, [FILTERS_TABLE])
            file = write_file(plan.results, FILTERS_TABLE, [pa.RecordBatch.from_pylist(rows, FILTERS)])
            commit(plan.results, FILTERS_TABLE, [Entry(night.isoformat(), (file,) if file else ())])
            found = fixed(plan.results, night) or found
    return replace(plan, filter_sha256=found)


def fixed(results: str, night: date) -> str | None:
    """Digest of the filter that the first scan of a night fixed; None: no scan did."""
    if not DeltaTable.is_deltatable(table_uri(results, FILTERS_TABLE)):
        return None
    rows = read_whole(results, FILTERS_TABLE).filter(pl.col("night") == night.isoformat())
    found = rows.select("filter_sha256").unique().collect()
    return None if found.is_empty() else str(found.item())


def open_filter(results: str, sha256: str | None, secret: bytes) -> Filter:
    """The filter of this digest; None: no filter.

    secret: the secret under which n-grams are hashed (TextIds.ngram_secret).

    Raises:
        Refused: the filter is gone, is not the one that was recorded, or was made under another audit secret.
    """
    if sha256 is None:
        return NO_FILTER
    rows: list[dict[str, object]] = []
    if DeltaTable.is_deltatable(table_uri(results, FILTERS_TABLE)):
        of_it = read_whole(results, FILTERS_TABLE).filter(pl.col("filter_sha256") == sha256)
        rows = of_it.select("night", "tokenizer_sha256", "reach", "hashed_under", "common").collect().to_dicts()
    if not rows or _sha256(str(rows[0]["night"]), rows) != sha256:
        raise Refused(
            f"results: table {table_uri(results, FILTERS_TABLE)} lacks the filter {sha256}, so that which n-grams were "
            "left out is not known; restore the table, from a backup or an older version of it"
        )
    key = hash_key(secret)
    if any(row["hashed_under"] not in (None, hashed_under(key)) for row in rows):
        raise Refused(
            f"results: the filter {sha256} was made under another audit secret; restore the registry's audit secret"
        )
    return Filter(
        {
            (str(row["tokenizer_sha256"]), int(str(row["reach"]))): CommonNgrams(
                int(str(row["reach"])), key, np.frombuffer(_bytes(row), np.uint8).reshape(ROWS, -1)
            )
            for row in rows
            if row["tokenizer_sha256"] is not None
        }
    )


def hashed_under(key: NDArray[np.uint64]) -> str:
    """Digest of the key of the hash of n-grams, which does not show the key."""
    return hashlib.sha256(b"ngram-filter-v1" + key.tobytes()).hexdigest()[:32]


def write_sketches(
    results: str, sketches: Sequence[tuple[str, Sketch]], key: NDArray[np.uint64], **about: object
) -> DataFile | None:
    """Write sketches, each with the SHA-256 of its tokenizer, to a file that is in no table yet; None: there are none.

    about: the columns scan_id, unit, night, texts and ngrams of FILTER_SKETCHES.

    Raises:
        ScanFailed: the file cannot be written.
    """
    same = about | {"hashed_under": hashed_under(key), "learnt_at": datetime.now(UTC)}
    batches = []
    for tokenizer, sketch in sketches:
        parts = sketch.cells.reshape(-1, CELLS_A_ROW)
        own = same | {"tokenizer_sha256": tokenizer, "reach": sketch.reach}
        rows = [own | {"part": i, "cells": part.astype("<u8").tobytes()} for i, part in enumerate(parts)]
        batches.append(pa.RecordBatch.from_pylist(rows, FILTER_SKETCHES))
    return write_file(results, SKETCHES_TABLE, batches)


def drop_sketches(results: str, before: date) -> int:
    """Take out the sketches of nights before this date. Returns how many rows; their files go with `vacuum`.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be read or written.
    """
    return rewrite(results, SKETCHES_TABLE, partial(_younger, before.isoformat()))


def _younger(before: str, file: pq.ParquetFile) -> Anew | None:
    stays = pl.Series(file.read(["night"])["night"]) >= before
    if stays.all():
        return None
    left = whole(file.read(), SCHEMAS[SKETCHES_TABLE]).filter(stays.to_arrow()) if stays.any() else pa.table({})
    return Anew(int((~stays).sum()), left)


def _made(plan: Plan, config: FilterConfig, night: date, scan_id: str) -> Iterator[dict[str, object]]:
    """Rows of FILTERS of a night, one at least, by the sketches of the nights before it."""
    key = hash_key(open_text_ids(plan).ngram_secret())
    found: list[dict[str, object]] = []
    for (tokenizer, reach), of_kind in _sketches_before(plan.results, config, night, hashed_under(key)):
        each = (_read_sketch(plan.results, unit, tokenizer, reach) for unit, _ in of_kind)
        common = functools.reduce(Sketch.merged, each).common(config.texts)
        texts = sum(learnt for _, learnt in of_kind)
        share = float(np.unpackbits(common).mean())
        about = {"tokenizer_sha256": tokenizer, "reach": reach, "hashed_under": hashed_under(key)}
        found.append(about | {"learnt_texts": texts, "common_share": share, "common": common.tobytes()})
    same: dict[str, object] = {"scan_id": scan_id, "night": night.isoformat(), "made_at": datetime.now(UTC)}
    same |= {"filter_sha256": _sha256(night.isoformat(), found), "texts": config.texts, "nights": config.nights}
    yield from ({**same, **row} for row in found or [{}])


def _sketches_before(
    results: str, config: FilterConfig, night: date, key: str
) -> Iterator[tuple[tuple[str, int], list[tuple[str, int]]]]:
    """Sketches of the nights before one, by tokenizer and reach: units, and how many texts each was learnt from."""
    if not DeltaTable.is_deltatable(table_uri(results, SKETCHES_TABLE)):
        return
    first = (night - timedelta(days=config.nights)).isoformat()
    earlier = (pl.col("night") >= first) & (pl.col("night") < night.isoformat()) & (pl.col("hashed_under") == key)
    rows = read_whole(results, SKETCHES_TABLE).filter(earlier).select(_OF_A_SKETCH).unique().sort(_OF_A_SKETCH)
    for (tokenizer, reach), units in rows.collect().group_by("tokenizer_sha256", "reach", maintain_order=True):
        yield (str(tokenizer), int(str(reach))), units.select("unit", "texts").rows()


def _read_sketch(results: str, unit: str, tokenizer: str, reach: int) -> Sketch:
    one = (pl.col("unit") == unit) & (pl.col("tokenizer_sha256") == tokenizer) & (pl.col("reach") == reach)
    parts = read_whole(results, SKETCHES_TABLE).filter(one).select("part", "cells").collect().sort("part")["cells"]
    return Sketch(reach, np.frombuffer(b"".join(parts), "<u8").reshape(ROWS, -1).astype(np.uint64, copy=False))


def _sha256(night: str, rows: Sequence[dict[str, object]]) -> str:
    common = [
        [row["tokenizer_sha256"], row["reach"], row["hashed_under"], hashlib.sha256(_bytes(row)).hexdigest()]
        for row in rows
        if row["tokenizer_sha256"] is not None
    ]
    return digest({"night": night, "common": sorted(common, key=str)})


def _bytes(row: dict[str, object]) -> bytes:
    common = row["common"]
    return common if isinstance(common, bytes) else b""
