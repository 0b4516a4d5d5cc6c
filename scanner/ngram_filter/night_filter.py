"""The filter of a night: made of the sketches of the nights before it, fixed by the night's first scan, and opened.

A night is the date of its input. Its filter never knows its texts, whenever a scan of it is resumed or repeated: it
is read from the table once it is there, and made from earlier dates alone.
"""

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.left_out import NO_FILTER, NgramFilter
from scanner.detection.open_plan import open_text_ids
from scanner.detection.rows import TextIds
from scanner.errors import Refused
from scanner.key_support import ScanFilter, UnsupportedKey, supported_keys
from scanner.ngram_filter.common_ngrams import CELLS_AN_NGRAM, CommonNgrams, Sketch, hash_key
from scanner.ngram_filter.sketches import SKETCHES_TABLE, hashed_under, keyed_digest, read_sketch, sketches_before
from scanner.registry import read_lasting_secret
from scanner.results.transactions import TableEntry, commit, faults_named, has_table, open_tables, read_whole
from scanner.scan_plan import Plan, read_config
from scanner.signing import open_results
from scanner.storage.data_files import write_file
from scanner.storage.locations import absolute, table_uri
from scanner.storage.toml import digest
from scanner.watermark.positions import PositionRule, reach_of
from schemas.config import ScanConfig
from schemas.registry import MasterKey
from schemas.tables import FILTERS


class OpenFilter(NamedTuple):
    """The n-grams that a scan leaves out, by the SHA-256 of their tokenizer and by their tokens before the last."""

    common: Mapping[tuple[str, int], CommonNgrams]

    def of(self, tokenizer: str, rule: PositionRule) -> CommonNgrams | None:
        """See scanner.detection.left_out.NgramFilter."""
        return self.common.get((tokenizer, reach_of(rule)))


FILTERS_TABLE = "filters"

_OF_WHAT_IS_LEARNT = ("tokenizer_sha256", "reach", "hashed_under", "learnt_texts", "common_share", "common")


def with_filter(plan: Plan, scan_id: str | None) -> Plan:
    """Return the plan with the filter of its night, where it asks for a filter.

    Args:
        plan: without a filter yet.
        scan_id: of a scan, which makes and keeps the filter if the night has none; None: of no scan, and nothing is
            written.

    Raises:
        Refused: the tables cannot be opened or made, the night's filter is lost, or a key was admitted with a filter
            that leaves out more.
        SecretError: the audit secret cannot be read.
        ScanFailed: the tables cannot be written.
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

    rows: of FILTERS, less what tells of the scan.
    key: as hash_key makes it, shown in no repr.
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

    def open(self) -> NgramFilter:
        """Open the n-grams that it leaves out."""
        return OpenFilter({(row["tokenizer_sha256"], row["reach"]): self._common(row) for row in self._learnt})

    def _common(self, row: Mapping[str, Any]) -> CommonNgrams:
        return CommonNgrams(row["reach"], self.key, np.frombuffer(row["common"], np.uint8).reshape(CELLS_AN_NGRAM, -1))

    @property
    def _learnt(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["tokenizer_sha256"] is not None]


def filter_of(results: str, config: ScanConfig, night: date, secret: bytes) -> NightFilter:
    """Return the filter of a night. Writes nothing.

    Args:
        results: folder or URI.
        config: of the scan.
        night: date of the data.
        secret: under which n-grams are hashed (TextIds.ngram_secret).

    Raises:
        Refused: a table cannot be read, or the night's filter was changed.
    """
    key, rows = hash_key(secret), _rows(results, pl.col("night") == night.isoformat())
    _refuse_another_secret(rows, key)
    if rows and _sha256(rows, key) != rows[0]["filter_sha256"]:
        raise Refused(
            f"results: the filter of {night} in table {table_uri(results, FILTERS_TABLE)} does not match its digest: "
            "a row was changed, added or removed; restore the table from a backup or an older version"
        )
    return NightFilter(tuple(rows or _filter_rows(results, config, night, key)), key)


def filter_of_config(config_file: Path, night: date) -> NightFilter | None:
    """Return the filter that scans of a configuration use on a night. Writes nothing.

    Returns:
        The filter; None: the configuration asks for none.

    Raises:
        Refused: the configuration or its registry cannot be right, or a table cannot be read.
        SecretError: the audit secret cannot be read.
    """
    config = read_config(config_file)
    if config.filter is None:
        return None
    folder = absolute("registry", config.registry, config_file.absolute().parent)
    secret = TextIds(read_lasting_secret(folder)).ngram_secret()
    return filter_of(open_results(config, config_file), config, night, secret)


def fixed_filter(results: str, night: date) -> str | None:
    """Return the digest of the filter that the first scan of a night fixed; None: no scan did."""
    found = {row["filter_sha256"] for row in _rows(results, pl.col("night") == night.isoformat(), "filter_sha256")}
    return str(found.pop()) if found else None


def filters_used(results: str, night: date) -> set[str]:
    """Return digests of the filters under which scans of a night left n-grams out."""
    if not has_table(results, "scans"):
        return set()
    of_night = read_whole(results, "scans").filter(pl.col("night") == night.isoformat())
    return set(of_night.select("filter_sha256").drop_nulls().unique().collect()["filter_sha256"])


def _supported(plan: Plan, found: NightFilter) -> tuple[tuple[MasterKey, ...], tuple[UnsupportedKey, ...]]:
    of_night = found.scan_filter._replace(by_account=plan.config.input.account is not None)
    return supported_keys(plan.keys, plan.config, plan.keys_tested, of_night)


def _refuse_another(results: str, night: date, sha256: str) -> None:
    """Raise Refused where a night's filter, made anew, is another than the one that its scans had."""
    digests = filters_used(results, night)
    if digests and sha256 not in digests:
        raise Refused(
            f"results: scans of {night} left n-grams out by the filter {', '.join(sorted(digests))}, which table "
            f"{table_uri(results, FILTERS_TABLE)} lacks, and the rest of table {SKETCHES_TABLE} gives a different "
            "filter; restore one of the two tables from a backup or an older version"
        )


def open_filter(results: str, sha256: str | None, secret: bytes) -> NgramFilter:
    """Open the filter of this digest.

    Args:
        results: folder or URI.
        sha256: digest of the filter; None: no filter.
        secret: under which n-grams are hashed (TextIds.ngram_secret).

    Raises:
        Refused: the filter is gone, is not the one that was recorded, or was made under another audit secret.
    """
    if sha256 is None:
        return NO_FILTER
    rows, key = _rows(results, pl.col("filter_sha256") == sha256), hash_key(secret)
    _refuse_another_secret(rows, key)
    if not rows or _sha256(rows, key) != sha256:
        raise Refused(
            f"results: table {table_uri(results, FILTERS_TABLE)} lacks the filter {sha256}, so it is not known which "
            "n-grams were left out; restore the table from a backup or an older version"
        )
    return NightFilter(tuple(rows), key).open()


def _refuse_another_secret(rows: Sequence[Mapping[str, Any]], key: NDArray[np.uint64]) -> None:
    """Raise Refused for rows of FILTERS whose n-grams are hashed under another key."""
    if {row["hashed_under"] for row in rows} - {None, hashed_under(key)}:
        raise Refused(
            f"results: the filter {rows[0]['filter_sha256']} was made under a different audit secret; restore the "
            "registry's audit secret"
        )


def _rows(results: str, wanted: pl.Expr, *columns: str) -> list[dict[str, Any]]:
    if not has_table(results, FILTERS_TABLE):
        return []
    with faults_named(results):
        rows = read_whole(results, FILTERS_TABLE).filter(wanted)
        return rows.select(columns or pl.all()).collect().to_dicts()


def _filter_rows(results: str, config: ScanConfig, night: date, key: NDArray[np.uint64]) -> Iterator[dict[str, Any]]:
    """Yield rows of FILTERS of a night, one at least, by the sketches of the nights before it."""
    found: list[dict[str, Any]] = []
    if config.filter is None:
        raise ValueError("the configuration has no section [filter]")
    for (tokenizer, reach), of_kind in sketches_before(results, config, night, hashed_under(key)):
        each = (read_sketch(results, sample, tokenizer, reach) for sample, _ in of_kind)
        common = functools.reduce(Sketch.merge, each).common(config.filter.texts)
        texts = sum(learnt for _, learnt in of_kind)
        share = float(np.unpackbits(common).mean())
        of_sketch = {"tokenizer_sha256": tokenizer, "reach": reach, "hashed_under": hashed_under(key)}
        found.append(of_sketch | {"learnt_texts": texts, "common_share": share, "common": common.tobytes()})
    same = {"night": night.isoformat()} | config.filter.model_dump()
    rows = [same | row for row in found or [dict.fromkeys(_OF_WHAT_IS_LEARNT)]]
    yield from ({**row, "filter_sha256": _sha256(rows, key)} for row in rows)


def _sha256(rows: Sequence[Mapping[str, Any]], key: NDArray[np.uint64]) -> str:
    """Return a filter's digest, of what it leaves out and what admissions ask of it, under the key of its n-grams."""
    # So nobody who may write tables makes a filter that hides texts.
    names = ("texts", "tokenizer_sha256", "reach", "hashed_under", "learnt_texts")
    of_rows = [[row[name] for name in names] + [hashlib.sha256(row["common"] or b"").hexdigest()] for row in rows]
    return keyed_digest(key, digest({"night": rows[0]["night"], "rows": sorted(of_rows, key=str)})).hex()
