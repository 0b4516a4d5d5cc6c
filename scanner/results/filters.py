"""Filters of nights in the results, and the sketches that they are learnt from.

Sketches of several nights are merged by OR. Where a night has several, the one that learnt most counts: each scan
samples the whole input anew, and together they would hold more n-grams than a sketch has room for. Sketches that count
accounts, and those that count texts, are never merged: their units tell them apart by their names.

A night is the date of its input. Its filter never knows its texts, whenever a scan of it is resumed or repeated: it
is read from the table once it is there, and made from earlier dates alone.
"""

import functools
import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from numpy.typing import NDArray

from scanner.detection.open_plan import open_text_ids
from scanner.detection.rows import TextIds
from scanner.detection.rules import NO_FILTER, Filter
from scanner.errors import Refused
from scanner.registry import load_registry, read_secret
from scanner.results.transactions import TableEntry, commit, faults_named, open_tables, read_whole
from scanner.results.upkeep import RewrittenFile, keep_rows, rewrite
from scanner.scan_plan import Plan, ScanFilter, UnsupportedKey, audit_secret_of, read_config, results_of, supported_keys
from scanner.storage.data_files import DataFile, write_file
from scanner.storage.locations import absolute, table_uri
from scanner.storage.toml import digest
from scanner.watermark import positions
from scanner.watermark.positions import CELLS_AN_NGRAM, CommonNgrams, Sketch, hash_key
from schemas.config import ScanConfig
from schemas.registry import MasterKey
from schemas.tables import FILTER_SKETCHES, FILTERS

SKETCHES_TABLE = "filter_sketches"

CELLS_A_ROW = 1 << 16
"""Cells of a row of the table of sketches: half a MiB."""

_OF_A_SKETCH = ("ngrams", "unit", "tokenizer_sha256", "reach", "night", "texts")


def hashed_under(key: NDArray[np.uint64]) -> str:
    """Digest of the key of the hash of n-grams, which does not show the key."""
    return hashlib.sha256(b"ngram-filter-v1" + key.tobytes()).hexdigest()[:32]


def write_sketches(
    results: str, sketches: Sequence[tuple[str, Sketch]], texts: Sequence[int], key: NDArray[np.uint64], **about: object
) -> DataFile | None:
    """Write sketches, each with the SHA-256 of its tokenizer, to a file that is in no table yet; None: there are none.

    texts: how many each was learnt from; about: the columns scan_id, unit, night and ngrams of FILTER_SKETCHES.

    Raises:
        ScanFailed: the file cannot be written.
    """
    same = {"hashed_under": hashed_under(key), "learnt_at": datetime.now(UTC), **about}
    batches = []
    for (tokenizer, sketch), learnt in zip(sketches, texts, strict=True):
        parts = sketch.cells.reshape(-1, CELLS_A_ROW)
        of_learner = same | {"tokenizer_sha256": tokenizer, "reach": sketch.reach, "texts": learnt}
        rows = [of_learner | {"part": i, "cells": part.astype("<u8").tobytes()} for i, part in enumerate(parts)]
        signed = [row | {"signed": _signature(row, key)} for row in rows]
        batches.append(pa.RecordBatch.from_pylist(signed, FILTER_SKETCHES))
    return write_file(results, SKETCHES_TABLE, batches)


_SIGNED = ("unit", "night", "tokenizer_sha256", "reach", "texts", "ngrams", "part")
"""Columns of a part of a sketch that its signature holds, beside its cells: what no editor of tables can write."""


def _signature(row: Mapping[str, Any], key: NDArray[np.uint64]) -> bytes:
    cells = hashlib.sha256(row["cells"]).hexdigest()
    return _keyed_digest(key, digest([*(row[name] for name in _SIGNED), cells]))


def _keyed_digest(key: NDArray[np.uint64], digest_of_rows: str) -> bytes:
    """A digest under the key of the hash of n-grams, by which rows are known to be a scan's (HMAC, SHA-256)."""
    return hmac.digest(key.tobytes(), digest_of_rows.encode(), "sha256")


_OF_ACCOUNTS = "accounts:"


def unit_name(by_account: bool, digest_of_rows: str) -> str:
    """Name of the unit that a sketch was learnt from, which is signed; by_account: each account counts once."""
    return f"{_OF_ACCOUNTS}{digest_of_rows}" if by_account else digest_of_rows


def drop_sketches(results: str, before: date) -> int:
    """Take out the sketches of nights before this date. Returns how many rows; their files go with `vacuum`.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be read or written.
    """
    return rewrite(results, SKETCHES_TABLE, partial(_younger, before.isoformat()))


def _younger(before: str, file: pq.ParquetFile) -> RewrittenFile | None:
    return keep_rows(SKETCHES_TABLE, file, pl.Series(file.read(["night"])["night"]) >= before)


def sketches_before(
    results: str, config: ScanConfig, night: date, key: str
) -> Iterator[tuple[tuple[str, int], list[tuple[str, int]]]]:
    """Sketches of the nights before one, by tokenizer and reach: units, and how many texts each was learnt from.

    A night has one unit at most for a tokenizer and reach, and of units that count what the configuration counts alone.
    """
    if config.filter is None or not DeltaTable.is_deltatable(table_uri(results, SKETCHES_TABLE)):
        return
    first = (night - timedelta(days=config.filter.nights)).isoformat()
    same_unit = pl.col("unit").str.starts_with(_OF_ACCOUNTS) == (config.input.account is not None)
    earlier = pl.col("night").is_between(pl.lit(first), pl.lit(night.isoformat()), closed="left")
    earlier &= (pl.col("hashed_under") == key) & same_unit
    rows = read_whole(results, SKETCHES_TABLE).filter(earlier).select(_OF_A_SKETCH).unique().sort(_OF_A_SKETCH)
    most = rows.unique(["tokenizer_sha256", "reach", "night"], keep="last", maintain_order=True).sort("night")
    with faults_named(results):
        found = most.collect()
    for (tokenizer, reach), units in found.group_by("tokenizer_sha256", "reach", maintain_order=True):
        yield (str(tokenizer), int(str(reach))), units.select("unit", "texts").rows()


def read_sketch(results: str, unit: str, tokenizer: str, reach: int, key: NDArray[np.uint64]) -> Sketch:
    """What was learnt from the texts of a unit; key: of the hash of n-grams.

    Raises:
        Refused: the table lacks a part of it, or has one twice, or one that no scan wrote.
    """
    of_sketch = (pl.col("unit") == unit) & (pl.col("tokenizer_sha256") == tokenizer) & (pl.col("reach") == reach)
    with faults_named(results):
        parts = read_whole(results, SKETCHES_TABLE).filter(of_sketch).collect().sort("part")
    if any(row["signed"] != _signature(row, key) for row in parts.iter_rows(named=True)):
        raise Refused(
            f"results: table {table_uri(results, SKETCHES_TABLE)} has a part of unit {unit} that was changed after a "
            "scan wrote it; restore the table from a backup or an older version of it, or take that unit out"
        )
    cells = np.frombuffer(b"".join(parts["cells"]), "<u8")
    number = CELLS_AN_NGRAM * positions.CELLS_OF_A_ROW
    if len(cells) != number or parts["part"].to_list() != [*range(len(parts))]:
        raise Refused(
            f"results: table {table_uri(results, SKETCHES_TABLE)} has {len(cells):,} of {number:,} "
            f"cells of unit {unit}; restore the table from a backup or an older version of it, or take that unit out"
        )
    return Sketch(reach, cells.reshape(CELLS_AN_NGRAM, -1).astype(np.uint64, copy=False))


FILTERS_TABLE = "filters"

_OF_WHAT_IS_LEARNT = ("tokenizer_sha256", "reach", "hashed_under", "learnt_texts", "common_share", "common")


def with_filter(plan: Plan, scan_id: str | None) -> Plan:
    """The plan with the filter of its night, where it asks for one.

    scan_id: of a scan, which makes and keeps the filter if the night has none; None: of no scan, and nothing is
    written.

    Raises:
        Refused: the tables cannot be opened or made, the night's filter is lost, or a key was admitted with a filter
            that leaves out more; SecretError.
        ScanFailed: they cannot be written.
    """
    config, night = plan.config, plan.date
    if config.filter is None or night is None:
        return plan
    secret = open_text_ids(plan).ngram_secret()
    found = filter_of(plan.results, config, night, secret)
    keys, unsupported = _supported(plan, found)
    if not found.is_fixed:
        _refuse_another(plan.results, night, found.sha256)
    if scan_id is not None and not found.is_fixed:
        open_tables(plan.results, [FILTERS_TABLE])
        rows = [{**row, "scan_id": scan_id, "made_at": datetime.now(UTC)} for row in found.rows]
        file = write_file(plan.results, FILTERS_TABLE, [pa.RecordBatch.from_pylist(rows, FILTERS)])
        commit(plan.results, FILTERS_TABLE, [TableEntry(night.isoformat(), (file,) if file else ())])
        found = filter_of(plan.results, config, night, secret)
        keys, unsupported = _supported(plan, found)  # another driver may have been first, with a filter of fewer texts
    return replace(plan, keys=keys, unsupported_keys=plan.unsupported_keys + unsupported, filter_sha256=found.sha256)


@dataclass(frozen=True)
class NightFilter:
    """The filter of a night: as a scan fixed it, or as one would make it now.

    rows: of FILTERS, less what tells of the scan; key: as hash_key makes it, shown in no repr.
    """

    rows: tuple[Mapping[str, Any], ...]
    key: NDArray[np.uint64] = field(repr=False)

    @property
    def sha256(self) -> str:
        """Its digest."""
        return str(self.rows[0]["filter_sha256"])

    @property
    def night(self) -> str:
        """Its night, such as 2026-11-22."""
        return str(self.rows[0]["night"])

    @property
    def is_fixed(self) -> bool:
        """Whether the first scan of its night has fixed it."""
        return "scan_id" in self.rows[0]

    @property
    def is_empty(self) -> bool:
        """Whether it leaves out nothing, since no earlier night was learnt."""
        return not self._learnt

    @property
    def scan_filter(self) -> ScanFilter:
        """What it leaves out, for keys that were admitted with a filter."""
        learnt = {(row["tokenizer_sha256"], row["reach"]): row["learnt_texts"] for row in self._learnt}
        return ScanFilter(self.rows[0]["texts"], learnt)

    def open(self) -> Filter:
        """The n-grams that it leaves out."""
        return Filter({(row["tokenizer_sha256"], row["reach"]): self._common(row) for row in self._learnt})

    def _common(self, row: Mapping[str, Any]) -> CommonNgrams:
        return CommonNgrams(row["reach"], self.key, np.frombuffer(row["common"], np.uint8).reshape(CELLS_AN_NGRAM, -1))

    @property
    def _learnt(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["tokenizer_sha256"] is not None]


def filter_of(results: str, config: ScanConfig, night: date, secret: bytes) -> NightFilter:
    """The filter of a night; nothing is written.

    secret: the secret under which n-grams are hashed (TextIds.ngram_secret).

    Raises:
        Refused: a table cannot be read, or the night's filter was changed.
    """
    key, rows = hash_key(secret), _rows(results, pl.col("night") == night.isoformat())
    _refuse_another_secret(rows, key)
    if rows and _sha256(rows, key) != rows[0]["filter_sha256"]:
        raise Refused(
            f"results: the filter of {night} in table {table_uri(results, FILTERS_TABLE)} is not the one that its "
            "digest names: a row was changed, added or taken out; restore the table, from a backup or an older version"
        )
    return NightFilter(tuple(rows or _filter_rows(results, config, night, key)), key)


def filter_of_config(config_file: Path, night: date) -> NightFilter | None:
    """The filter that scans of a configuration use on a night; None: the configuration asks for none. Writes nothing.

    Raises:
        Refused: the configuration or its registry cannot be right, or a table cannot be read; SecretError.
    """
    config = read_config(config_file)
    if config.filter is None:
        return None
    folder = absolute("registry", config.registry, config_file.absolute().parent)
    secret = TextIds(read_secret(audit_secret_of(folder, load_registry(folder)), folder)).ngram_secret()
    return filter_of(results_of(config, config_file), config, night, secret)


def fixed_filter(results: str, night: date) -> str | None:
    """Digest of the filter that the first scan of a night fixed; None: no scan did."""
    found = {row["filter_sha256"] for row in _rows(results, pl.col("night") == night.isoformat(), "filter_sha256")}
    return str(found.pop()) if found else None


def filters_used(results: str, night: date) -> set[str]:
    """Digests of the filters under which scans of a night left n-grams out."""
    if not DeltaTable.is_deltatable(table_uri(results, "scans")):
        return set()
    of_night = read_whole(results, "scans").filter(pl.col("night") == night.isoformat())
    return set(of_night.select("filter_sha256").drop_nulls().unique().collect()["filter_sha256"])


def _supported(plan: Plan, found: NightFilter) -> tuple[tuple[MasterKey, ...], tuple[UnsupportedKey, ...]]:
    of_night = found.scan_filter._replace(by_account=plan.config.input.account is not None)
    return supported_keys(plan.keys, plan.config, plan.keys_tested, of_night)


def _refuse_another(results: str, night: date, sha256: str) -> None:
    """Refuse to make a night's filter anew where it comes out otherwise than the one that scans of it had."""
    digests = filters_used(results, night)
    if digests and sha256 not in digests:
        raise Refused(
            f"results: scans of {night} left n-grams out by the filter {', '.join(sorted(digests))}, which table "
            f"{table_uri(results, FILTERS_TABLE)} lacks, and what is left of table {SKETCHES_TABLE} makes another; "
            "restore one of the two, from a backup or an older version of it"
        )


def open_filter(results: str, sha256: str | None, secret: bytes) -> Filter:
    """The filter of this digest; None: no filter.

    secret: the secret under which n-grams are hashed (TextIds.ngram_secret).

    Raises:
        Refused: the filter is gone, is not the one that was recorded, or was made under another audit secret.
    """
    if sha256 is None:
        return NO_FILTER
    rows, key = _rows(results, pl.col("filter_sha256") == sha256), hash_key(secret)
    _refuse_another_secret(rows, key)
    if not rows or _sha256(rows, key) != sha256:
        raise Refused(
            f"results: table {table_uri(results, FILTERS_TABLE)} lacks the filter {sha256}, so that which n-grams were "
            "left out is not known; restore the table, from a backup or an older version of it"
        )
    return NightFilter(tuple(rows), key).open()


def _refuse_another_secret(rows: Sequence[Mapping[str, Any]], key: NDArray[np.uint64]) -> None:
    """Raise Refused for rows of FILTERS whose n-grams are hashed under another key."""
    if {row["hashed_under"] for row in rows} - {None, hashed_under(key)}:
        raise Refused(
            f"results: the filter {rows[0]['filter_sha256']} was made under another audit secret; restore the "
            "registry's audit secret"
        )


def _rows(results: str, wanted: pl.Expr, *columns: str) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(table_uri(results, FILTERS_TABLE)):
        return []
    with faults_named(results):
        rows = read_whole(results, FILTERS_TABLE).filter(wanted)
        return rows.select(columns or pl.all()).collect().to_dicts()


def _filter_rows(results: str, config: ScanConfig, night: date, key: NDArray[np.uint64]) -> Iterator[dict[str, Any]]:
    """Rows of FILTERS of a night, one at least, by the sketches of the nights before it."""
    found: list[dict[str, Any]] = []
    if config.filter is None:
        raise ValueError("the configuration has no section [filter]")
    for (tokenizer, reach), of_kind in sketches_before(results, config, night, hashed_under(key)):
        each = (read_sketch(results, unit, tokenizer, reach, key) for unit, _ in of_kind)
        common = functools.reduce(Sketch.merge, each).common(config.filter.texts)
        texts = sum(learnt for _, learnt in of_kind)
        share = float(np.unpackbits(common).mean())
        of_sketch = {"tokenizer_sha256": tokenizer, "reach": reach, "hashed_under": hashed_under(key)}
        found.append(of_sketch | {"learnt_texts": texts, "common_share": share, "common": common.tobytes()})
    same = {"night": night.isoformat()} | config.filter.model_dump()
    rows = [same | row for row in found or [dict.fromkeys(_OF_WHAT_IS_LEARNT)]]
    yield from ({**row, "filter_sha256": _sha256(rows, key)} for row in rows)


def _sha256(rows: Sequence[Mapping[str, Any]], key: NDArray[np.uint64]) -> str:
    """Digest of a filter, of what it leaves out and what admissions ask of it, under the key of its n-grams."""
    # So nobody who may write tables makes a filter that hides texts.
    names = ("texts", "tokenizer_sha256", "reach", "hashed_under", "learnt_texts")
    of_rows = [[row[name] for name in names] + [hashlib.sha256(row["common"] or b"").hexdigest()] for row in rows]
    return _keyed_digest(key, digest({"night": rows[0]["night"], "rows": sorted(of_rows, key=str)})).hex()
