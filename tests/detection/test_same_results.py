"""Speed changes no result: tables of real documents, marked and unmarked, are as they were before any speed-up.

The digest was made by the version that scored straightforwardly (commit fa48ae4). Numbers go in to ten digits, so that
another machine's mathematics library may round its own way.
"""

import hashlib
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.demo import SECRETS, TOKENIZER
from scanner.detection.attribution import BatchOrigin, OpenedKey
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_prover
from scanner.detection.rules import Rules
from scanner.input.columns import Columns
from scanner.input.documents import read
from scanner.input.files import list_files
from scanner.registry import Holders, load_registry, new_key, open_key, restore_users, tokenizer_path
from scanner.text import load_tokenizer
from schemas.tables import QUARANTINE, USER_EVENTS, VERDICTS

BEFORE = "4083e892ff49a3327f87d90adfec6c677db16ffcd0ada85ea04e70d3e6c3dd1e"
ROWS = 120
COLUMNS = (
    (
        "shard_id",
        "path",
        "row",
        "doc_id",
        "text_sha256",
        "account_id",
        "created_at",
        "status",
        "tokens",
        "scored",
        "key_id",
        "message",
        "user_id",
        "naming",
        "score",
        "log10_p",
        "log10_p_global",
        "runner_up_log10_p",
        "messages_tested",
        "correction",
        "flagged",
    ),
    ("shard_id", "path", "row", "doc_id", "reason", "detail"),
)
"""Columns of verdicts and quarantine when the digest was made."""

HERE = Path(__file__).parent / "same_results"
"""Texts and users of the demo as it was then, under two keys of version 1."""


def make_registry(folder: Path) -> None:
    (folder / "secrets").mkdir(parents=True)
    for name, parameters in (("greenlist", {"window": 4, "gamma": "1/4"}), ("gumbel", {"window": 4})):
        secret = folder / "secrets" / f"demo-{name}.key"
        secret.touch(0o600)
        secret.write_bytes((SECRETS / secret.name).read_bytes())
        new_key(folder, f"demo-{name}", format=name, messages=100_000, tokenizer=TOKENIZER, **parameters)
    restore_users(folder, pq.read_table(HERE / "users.parquet").cast(USER_EVENTS))


def tables(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    make_registry(folder)
    tests = [
        OpenedKey(key, open_key(folder, key), load_tokenizer(tokenizer_path(folder, key), key.tokenizer.sha256))
        for key in load_registry(folder).keys
    ]
    holders = Holders.load(folder, [test.key.key_id for test in tests])
    rules = Rules(1e-6, 2)
    detector = Detector(tests, holders, rules, open_prover(folder, tests, rules))
    verdicts, quarantine = [], []
    (file,) = list_files((str(HERE / "texts.parquet"),))
    names = pq.read_schema(file.path).names
    columns = Columns("text", "doc_id", *(name if name in names else None for name in ("account_id", "created_at")))
    for batch in read(file, columns, 0, ROWS):
        scored, refused, *_ = detector.score_batch(batch, BatchOrigin("scan", "shard", "sample-1"))
        flagged = scored.filter(scored["flagged"])
        assert flagged["proof"].to_pylist() == ["proved"] * len(flagged)  # a proof changes no other column
        verdicts.append(scored)
        quarantine.append(refused)
    found = (pa.Table.from_batches(verdicts, VERDICTS), pa.Table.from_batches(quarantine, QUARANTINE))
    return tuple(pl.from_arrow(table).select(columns) for table, columns in zip(found, COLUMNS, strict=True))


@pytest.mark.costly
@pytest.mark.seconds
def test_whole_tables_are_what_they_were(tmp_path):
    verdicts, quarantine = tables(tmp_path / "registry")
    # what was a whole number of keys then is a correction now: no key has a weight here
    assert (verdicts["correction"] == verdicts["correction"].cast(pl.Int64)).all()
    verdicts = verdicts.with_columns(pl.col("correction").cast(pl.Int64))
    assert len(verdicts) + len(quarantine) == ROWS
    assert verdicts["flagged"].sum() > 10
    assert (verdicts["status"] == "too_short").any() or len(quarantine)
    numbers = pl.selectors.float()
    told = [
        table.with_columns(numbers.map_elements(lambda value: f"{value:.10g}", return_dtype=pl.String)).rows()
        for table in (verdicts, quarantine)
    ]
    assert hashlib.sha256(repr(told).encode()).hexdigest() == BEFORE
