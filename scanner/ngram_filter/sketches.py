"""Sketches of n-grams in the results: the table `filter_sketches`.

Sketches of several nights are merged by OR. Where a night has several, the one that learnt most counts: each scan
samples the whole input anew, and together they would hold more n-grams than a sketch has room for. Sketches that count
accounts, and those that count texts, are never merged: their samples tell them apart by their names.
"""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from scanner.errors import Refused
from scanner.ngram_filter import common_ngrams
from scanner.ngram_filter.common_ngrams import CELLS_AN_NGRAM, Sketch
from scanner.results.transactions import faults_named, has_table, read_whole
from scanner.results.upkeep import RewrittenFile, keep_rows, rewrite
from scanner.storage.data_files import DataFile, write_file
from scanner.storage.locations import table_uri
from schemas.config import ScanConfig
from schemas.tables import FILTER_SKETCHES

SKETCHES_TABLE = "filter_sketches"

CELLS_A_ROW = 1 << 16
"""Cells of a row of the table of sketches: half a MiB."""

_OF_A_SKETCH = ("ngrams", "sample", "tokenizer_sha256", "reach", "night", "texts")


def hashed_under(key: NDArray[np.uint64]) -> str:
    """Return a digest of the key of the hash of n-grams, which does not show the key."""
    return hashlib.sha256(b"ngram-filter-v1" + key.tobytes()).hexdigest()[:32]


def write_sketches(
    results: str, sketches: Sequence[tuple[str, Sketch]], texts: Sequence[int], key: NDArray[np.uint64], **about: object
) -> DataFile | None:
    """Write sketches, each with the SHA-256 of its tokenizer, to a file that is in no table yet; None: there are none.

    Args:
        results: folder or URI.
        sketches: pairs of the tokenizer's SHA-256 and its sketch.
        texts: how many each was learnt from.
        key: of the hash of n-grams.
        about: the columns scan_id, sample, night and ngrams of FILTER_SKETCHES.

    Raises:
        ScanFailed: the file cannot be written.
    """
    same = {"hashed_under": hashed_under(key), "learnt_at": datetime.now(UTC), **about}
    batches = []
    for (tokenizer, sketch), learnt in zip(sketches, texts, strict=True):
        parts = sketch.cells.reshape(-1, CELLS_A_ROW)
        of_learner = same | {"tokenizer_sha256": tokenizer, "reach": sketch.reach, "texts": learnt}
        rows = [of_learner | {"part": i, "cells": part.astype("<u8").tobytes()} for i, part in enumerate(parts)]
        batches.append(pa.RecordBatch.from_pylist(rows, FILTER_SKETCHES))
    return write_file(results, SKETCHES_TABLE, batches)


def keyed_digest(key: NDArray[np.uint64], digest_of_rows: str) -> bytes:
    """Compute a digest under the key of the hash of n-grams, by which rows are known to be a scan's (HMAC, SHA-256)."""
    return hmac.digest(key.tobytes(), digest_of_rows.encode(), "sha256")


_OF_ACCOUNTS = "accounts:"


def sample_name(by_account: bool, digest_of_rows: str) -> str:
    """Name the sample that a sketch was learnt from. `by_account`: each account counts once."""
    return f"{_OF_ACCOUNTS}{digest_of_rows}" if by_account else digest_of_rows


def drop_sketches(results: str, before: date) -> int:
    """Take out the sketches of nights before this date. Their files go with `vacuum`.

    Returns:
        The number of rows taken out.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be read or written.
    """
    return rewrite(results, SKETCHES_TABLE, partial(_younger, before.isoformat()))


def _younger(before: str, file: pq.ParquetFile) -> RewrittenFile | None:
    return keep_rows(SKETCHES_TABLE, file, pl.Series(file.read(["night"])["night"]) >= before)


def sketches_before(
    results: str, config: ScanConfig, night: date, key: str
) -> Iterator[tuple[tuple[str, int], list[tuple[str, int]]]]:
    """Yield sketches of earlier nights, by tokenizer and reach: samples, and how many texts each was learnt from.

    A night has one sample at most for a tokenizer and reach, of those that count what the configuration counts.
    """
    if config.filter is None or not has_table(results, SKETCHES_TABLE):
        return
    first = (night - timedelta(days=config.filter.nights)).isoformat()
    same_kind = pl.col("sample").str.starts_with(_OF_ACCOUNTS) == (config.input.account is not None)
    earlier = pl.col("night").is_between(pl.lit(first), pl.lit(night.isoformat()), closed="left")
    earlier &= (pl.col("hashed_under") == key) & same_kind
    rows = read_whole(results, SKETCHES_TABLE).filter(earlier).select(_OF_A_SKETCH).unique().sort(_OF_A_SKETCH)
    most = rows.unique(["tokenizer_sha256", "reach", "night"], keep="last", maintain_order=True).sort("night")
    with faults_named(results):
        found = most.collect()
    for (tokenizer, reach), samples in found.group_by("tokenizer_sha256", "reach", maintain_order=True):
        yield (str(tokenizer), int(str(reach))), samples.select("sample", "texts").rows()


def read_sketch(results: str, sample: str, tokenizer: str, reach: int) -> Sketch:
    """Read what was learnt from the texts of a sample.

    Args:
        results: folder or URI.
        sample: its name.
        tokenizer: SHA-256.
        reach: how many previous tokens an n-gram has.

    Raises:
        Refused: the table lacks a part of it, or has one twice.
    """
    of_sketch = (pl.col("sample") == sample) & (pl.col("tokenizer_sha256") == tokenizer) & (pl.col("reach") == reach)
    with faults_named(results):
        parts = read_whole(results, SKETCHES_TABLE).filter(of_sketch).collect().sort("part")
    cells = np.frombuffer(b"".join(parts["cells"]), "<u8")
    number = CELLS_AN_NGRAM * common_ngrams.CELLS_OF_A_ROW
    if len(cells) != number or parts["part"].to_list() != [*range(len(parts))]:
        raise Refused(
            f"results: table {table_uri(results, SKETCHES_TABLE)} has {len(cells):,} of {number:,} cells of sample "
            f"{sample}; restore the table from a backup or an older version, or delete that sample"
        )
    return Sketch(reach, cells.reshape(CELLS_AN_NGRAM, -1).astype(np.uint64, copy=False))
