"""Sketches of the n-grams of nights in the results, from which filters of later nights are made.

Sketches of several nights are merged by OR. Where a night has several, the one that learnt most counts.
Each scan samples the whole input anew, and together they would hold more n-grams than a sketch has room for.
"""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from numpy.typing import NDArray

from scanner.errors import Refused
from scanner.results.data_files import SCHEMAS, DataFile, write_file
from scanner.results.rewriting import Anew, rewrite
from scanner.results.tables import read_whole
from scanner.storage.delta import table_uri
from scanner.watermark import ngram_filter
from scanner.watermark.ngram_filter import ROWS, Sketch
from schemas.config import FilterConfig
from schemas.filter_tables import FILTER_SKETCHES

SKETCHES_TABLE = "filter_sketches"

CELLS_A_ROW = 1 << 16
"""Cells of a row of the table of sketches: half a MiB."""

_OF_A_SKETCH = ("ngrams", "unit", "tokenizer_sha256", "reach", "night", "texts")


def hashed_under(key: NDArray[np.uint64]) -> str:
    """Digest of the key of the hash of n-grams, which does not show the key."""
    return hashlib.sha256(b"ngram-filter-v1" + key.tobytes()).hexdigest()[:32]


def write_sketches(
    results: str,
    sketches: Sequence[tuple[str, Sketch]],
    texts: Sequence[int],
    key: NDArray[np.uint64],
    **about: object,
) -> DataFile | None:
    """Write sketches, each with the SHA-256 of its tokenizer, to a file that is in no table yet; None: there are none.

    texts: how many each was learnt from; about: the columns scan_id, unit, night and ngrams of FILTER_SKETCHES.

    Raises:
        ScanFailed: the file cannot be written.
    """
    same = about | {"hashed_under": hashed_under(key), "learnt_at": datetime.now(UTC)}
    batches = []
    for (tokenizer, sketch), learnt in zip(sketches, texts, strict=True):
        parts = sketch.cells.reshape(-1, CELLS_A_ROW)
        own = same | {"tokenizer_sha256": tokenizer, "reach": sketch.reach, "texts": learnt}
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
    left = file.read().cast(SCHEMAS[SKETCHES_TABLE]).filter(stays.to_arrow()) if stays.any() else pa.table({})
    return Anew(int((~stays).sum()), left)


def sketches_before(
    results: str, config: FilterConfig, night: date, key: str
) -> Iterator[tuple[tuple[str, int], list[tuple[str, int]]]]:
    """Sketches of the nights before one, by tokenizer and reach: units, and how many texts each was learnt from.

    A night has one unit at most for a tokenizer and reach.
    """
    if not DeltaTable.is_deltatable(table_uri(results, SKETCHES_TABLE)):
        return
    first = (night - timedelta(days=config.nights)).isoformat()
    earlier = (pl.col("night") >= first) & (pl.col("night") < night.isoformat()) & (pl.col("hashed_under") == key)
    rows = read_whole(results, SKETCHES_TABLE).filter(earlier).select(_OF_A_SKETCH).unique().sort(_OF_A_SKETCH)
    most = rows.unique(["tokenizer_sha256", "reach", "night"], keep="last", maintain_order=True).sort("night")
    for (tokenizer, reach), units in most.collect().group_by("tokenizer_sha256", "reach", maintain_order=True):
        yield (str(tokenizer), int(str(reach))), units.select("unit", "texts").rows()


def read_sketch(results: str, unit: str, tokenizer: str, reach: int) -> Sketch:
    """What was learnt from the texts of a unit.

    Raises:
        Refused: the table lacks a part of it, or has one twice.
    """
    one = (pl.col("unit") == unit) & (pl.col("tokenizer_sha256") == tokenizer) & (pl.col("reach") == reach)
    parts = read_whole(results, SKETCHES_TABLE).filter(one).select("part", "cells").collect().sort("part")
    cells = np.frombuffer(b"".join(parts["cells"]), "<u8")
    if len(cells) != ROWS * ngram_filter.CELLS or parts["part"].to_list() != [*range(len(parts))]:
        raise Refused(
            f"results: table {table_uri(results, SKETCHES_TABLE)} has {len(cells):,} of {ROWS * ngram_filter.CELLS:,} "
            f"cells of unit {unit}; restore the table from a backup or an older version of it, or take that unit out"
        )
    return Sketch(reach, cells.reshape(ROWS, -1).astype(np.uint64, copy=False))
