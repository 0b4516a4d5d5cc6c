"""A folder with input, configuration and results of scans."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from scanner import results
from scanner.cluster.scan import ScanOutcome, run_scan
from scanner.results import current_rows
from scanner.results.transactions import read_whole
from scanner.scan_plan import Plan, make_plan

CONFIG = """\
version = 2
registry = "{registry}"
results = "results"
false_positive_rate = {rate}
{more}
[input]
paths = {paths}
text = "text"
id = "doc_id"
{columns}
[audit]
family_error = 1e-6
{audit}
[cluster]
workers = {workers}
"""


class Night:
    """A folder with input, configuration and results, and what a test does with them."""

    def __init__(self, folder: Path, registry: Path) -> None:
        self.folder = folder
        self.registry = registry
        self.input = folder / "in"
        self.input.mkdir()
        self.results = str(folder / "results")
        self.configure()

    def configure(
        self,
        rate: float = 1e-6,
        more: str = "",
        columns: str = "",
        audit: str = "",
        paths: Sequence[str] = ("in",),
        workers: int = 1,
    ) -> Path:
        """Write scan.toml. Each worker on Ray takes seconds to start, so tests ask for two only where they matter."""
        quoted = "[" + ", ".join(f'"{path}"' for path in paths) + "]"
        text = CONFIG.format(
            registry=self.registry, rate=rate, more=more, columns=columns, audit=audit, paths=quoted, workers=workers
        )
        self.config = self.folder / "scan.toml"
        self.config.write_text(text)
        return self.config

    def write(self, name: str, texts: Sequence[Any], row_group: int = 1000, **columns: Any) -> Path:
        """Write a file of texts (str or bytes); ids are name:0, name:1, … unless given."""
        raw = [text.encode() if isinstance(text, str) else text for text in texts]
        columns.setdefault("doc_id", [f"{name}:{i}" for i in range(len(raw))])
        stored = pa.Array.from_buffers(pa.string(), len(raw), pa.array(raw, pa.binary()).buffers())
        path = self.input / f"{name}.parquet"
        pq.write_table(pa.table({"text": stored, **columns}), path, row_group_size=row_group)
        return path

    def plan(self) -> Plan:
        return make_plan(self.config)

    def scan(self, **options: Any) -> ScanOutcome:
        return run_scan(self.plan(), lambda work, totals: None, **options)

    def verdicts(self) -> pl.DataFrame:
        """All rows, superseded ones included, so that rows written twice are seen; flags are exact."""
        rows = read_whole(self.results, "verdicts")
        return current_rows.exact(self.results, rows).collect().sort("path", "row")

    def quarantine(self) -> pl.DataFrame:
        return results.quarantine(self.results).collect().sort("path", "row")

    def last_scan(self) -> dict[str, Any]:
        return results.scans(self.results).collect().row(-1, named=True)
