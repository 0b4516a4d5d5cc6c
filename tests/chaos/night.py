"""A night for chaos: many small shards of real text, and the comparison with an undisturbed night's tables."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from scanner import results
from scanner.registry import add_users, new_key
from scanner.storage.delta import KeptTable
from scanner.storage.locations import table_uri
from tests.chaos.processes import command_of, output_of
from tests.chaos.worker import PIDS, PLAN
from tests.fixed import fix_secrets
from tests.support.two_keys import marked_text, message_of, plain_text, words_of_one_token

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "jobs" / "demo"
FILES, ROWS, SMALL_FILES, SMALL_ROWS = 16, 20, 16, 3
CONFIG = """\
version = 2
registry = "{registry}"
results = "{results}"
false_positive_rate = 1e-6
max_lost_files = 1000
[input]
paths = ["{input}"]
id = "doc_id"
[spans]
windows = true
segments = true
[audit]
family_error = 1e-6
[cluster]
workers = {workers}
worker_memory_mb = 1200
stall_seconds = {stall_seconds}
{more}
"""


def make_registry(folder: Path) -> Path:
    fix_secrets(folder, "green", "gum")
    new_key(folder, "green", format="greenlist", window=2, gamma="1/4", messages=200, tokenizer=DEMO / "tokenizer.json")
    new_key(folder, "gum", format="gumbel", window=4, messages=50, tokenizer=DEMO / "tokenizer.json")
    # a scan's id has its start to the second alone: a user added in that second would not be named
    add_users(folder, None, ["alice", "bob"], datetime.now(UTC) - timedelta(minutes=1))
    return folder


def make_input(folder: Path, registry: Path) -> Path:
    """Files big-NN and small-NN with documents of the demo's sample; some rows cannot be scored.

    Row 1 of each file is a text with a marked paragraph, which is alice's in one file and bob's in the next.
    """
    folder.mkdir()
    samples = sorted(DEMO.glob("sample-?.parquet"))
    documents = pa.concat_tables([pq.read_table(sample, columns=["doc_id", "text"]) for sample in samples])
    texts = documents["text"].cast(pa.binary()).to_pylist()
    # bytes, since some texts of the sample are not UTF-8
    texts = [text and (text.decode(errors="ignore")[:600].encode() if _is_text(text) else text) for text in texts]
    names = [*(f"big-{i:02}" for i in range(FILES)), *(f"small-{i:02}" for i in range(SMALL_FILES))]
    rows = [ROWS if name.startswith("big") else SMALL_ROWS for name in names]
    begins = [0, *itertools.accumulate(rows)]
    for begin, text in zip(begins, _with_a_marked_paragraph(registry, len(names)), strict=False):
        texts[begin + 1] = text.encode()
    documents = documents.set_column(1, "text", pa.array(texts, pa.binary()))
    for name, begin, count in zip(names, begins, rows, strict=False):
        pq.write_table(documents.slice(begin, count), folder / f"{name}.parquet")
    return folder


def _with_a_marked_paragraph(registry: Path, count: int) -> list[str]:
    words = words_of_one_token()
    plain, marked = plain_text(words), marked_text(registry, words)
    holders = itertools.cycle([message_of(registry, "green", user) for user in ("alice", "bob")])
    return [
        "\n\n".join([plain(150, seed), marked(holder, 100, seed), plain(150, seed + count)])
        for seed, holder in zip(range(count), holders, strict=False)
    ]


def _is_text(raw: bytes) -> bool:
    return raw.decode(errors="ignore").encode() == raw


def start_driver(config: Path, **fault: Any) -> "subprocess.Popen[str]":
    """Start a driver in a process and session of its own, whose home is the folder of its configuration."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.driver", str(config), json.dumps(fault)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env={**os.environ, "HOME": str(config.parent), "PYTHONPATH": str(ROOT)},
    )


class Difference(NamedTuple):
    """Numbers of documents that are in no table, that are there twice, and whose rows differ from the expected ones."""

    lost: int
    doubled: int
    different: int


class Night:
    """A folder with a configuration, faults and results; registry and input may be shared."""

    def __init__(self, folder: Path, registry: Path, data: Path, *, results: Path | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.registry, self.input = folder, registry, data
        self.results = results or folder / "results"
        self.configure()

    def configure(self, stall_seconds: float = 60, workers: int = 2, more: str = "") -> Path:
        self.config = self.folder / "scan.toml"
        fields = {"registry": self.registry, "results": self.results, "input": self.input}
        self.config.write_text(CONFIG.format(**fields, stall_seconds=stall_seconds, workers=workers, more=more))
        return self.config

    def plan_faults(self, seconds: float = 0.0, documents: Mapping[str, str] = {}) -> None:
        """Set the seconds that a worker waits before each batch, and the fault of each document `file.parquet:row`."""
        beside = self.results.parent / PLAN
        beside.write_text(json.dumps({"seconds": seconds, "documents": dict(documents)}))

    def start(self, **fault: Any) -> "subprocess.Popen[str]":
        """As `start_driver`."""
        return start_driver(self.config, **fault)

    def run(self, **fault: Any) -> "subprocess.CompletedProcess[str]":
        """Run a driver, and wait until it and its cluster have ended."""
        process = self.start(**fault)
        out = output_of(process)
        return subprocess.CompletedProcess(process.args, process.returncode, out)

    def done(self) -> bool:
        """Whether every file has verdicts; each is one shard."""
        return results.exist(str(self.results)) and self.verdicts()["file"].n_unique() == FILES + SMALL_FILES

    def verdicts(self) -> pl.DataFrame:
        """All rows of verdicts, with the file's name and the document's name."""
        return self._table("verdicts")

    def quarantine(self) -> pl.DataFrame:
        return self._table("quarantine")

    def documents(self) -> Counter[tuple[Any, ...]]:
        """How often each document is in a table, with what was found, whatever file it is in."""
        scored = self.verdicts().select("doc_id", "status", "tokens", "flagged", "key_id", "user_id", "look")
        return Counter(scored.rows()) + Counter(self.quarantine().select("doc_id", "reason").rows())

    def worker_pids(self) -> list[int]:
        """Process ids of this night's living workers."""
        folder = self.results.parent / PIDS
        pids = [int(path.name) for path in folder.iterdir()] if folder.exists() else []
        return [pid for pid in pids if b"FaultyWorker" in command_of(pid)]

    def compare(self, other: "Night", bad: Mapping[str, str] = {}, files: Mapping[str, str] = {}) -> Difference:
        """Compare this night's tables with an undisturbed night's.

        bad: documents, by `file.parquet:row`, with their expected reason in quarantine; files: files that may
        be in quarantine as a whole, with their reason.
        """
        expected = {name: row for name, row in _rows(other.verdicts()) if name not in bad}
        reasons = {row["name"]: row["reason"] for row in other.quarantine().iter_rows(named=True)} | bad
        found = list(_rows(self.verdicts()))
        refused = self.quarantine()
        documents, whole = refused.filter(pl.col("row").is_not_null()), refused.filter(pl.col("row").is_null())
        seen = Counter([name for name, _ in found]) + Counter(documents["name"].to_list())
        wrong = {name for name, row in found if expected.get(name) != row}
        wrong |= {row["name"] for row in documents.iter_rows(named=True) if reasons.get(row["name"]) != row["reason"]}
        wrong |= {row["file"] for row in whole.iter_rows(named=True) if files.get(row["file"]) != row["reason"]}
        wrong |= self._wrong_beside(refused) | self._wrong_spans(other, bad)
        lost = (expected.keys() | reasons.keys()) - seen.keys()
        return Difference(len(lost), sum(count > 1 for count in seen.values()), len(wrong))

    def _wrong_beside(self, refused: pl.DataFrame) -> set[str]:
        """Documents that are flagged in one table alone, and files whose documents `shards` counts wrongly."""
        verdicts, flags, shards = self.verdicts(), self._table("flags"), self._table("shards")
        told = [Counter(rows.select("name", "scan_id").rows()) for rows in (verdicts.filter("flagged"), flags)]
        there = Counter([*verdicts["file"], *refused.drop_nulls("row")["file"]])
        counted = dict(shards.group_by("file").agg(pl.col("documents").sum()).rows())
        wrong = {name for (name, _), _ in (told[0] - told[1]).items() | (told[1] - told[0]).items()}
        return wrong | {file for file in there.keys() | counted.keys() if there[file] != counted.get(file, 0)}

    def _wrong_spans(self, other: "Night", bad: Mapping[str, str]) -> set[str]:
        """Documents whose spans are not once each what an undisturbed night has; bad documents have none."""
        here = Counter(_rows(self.spans()))
        expected = Counter((name, row) for name, row in _rows(other.spans()) if name not in bad)
        return {name for name, _ in (here - expected) + (expected - here)}

    def spans(self) -> pl.DataFrame:
        """All rows of spans, with names as in `verdicts`."""
        return self._table("spans")

    def _table(self, name: str) -> pl.DataFrame:
        return _named(KeptTable(table_uri(str(self.results), name)).now(), "first_row" if name == "shards" else "row")


def _named(table: Any, row: str = "row") -> pl.DataFrame:
    rows = pl.from_arrow(table.to_pyarrow_table())
    assert isinstance(rows, pl.DataFrame)
    file = pl.col("path").str.split("/").list.last()
    return rows.with_columns(file.alias("file"), (file + ":" + pl.col(row).cast(pl.String)).alias("name"))


def _rows(table: pl.DataFrame) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Each document's name and the values that must be equal; a shard's id depends on the input's folder."""
    for row in table.drop("scan_id", "scanned_at", "path", "shard_id").iter_rows(named=True):
        yield row["name"], tuple(row.values())
