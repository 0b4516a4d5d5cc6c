"""Texts of the demo's sample, the human ones also as tokens, and a tokenizer that workers open once: fixtures."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.text import Tokenizer
from scanner.watermark import Tokens
from tests.support.opened import demo_tokenizer

DEMO = Path(__file__).parents[2] / "jobs" / "demo"
RAW = pa.schema([("doc_id", pa.binary()), ("text", pa.binary())])


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return demo_tokenizer()


def sample_texts(kind: str, key_id: str | None = None) -> list[str]:
    """Distinct texts of the sample of one kind, human or marked, and marked under one key."""
    truth = pq.read_table(DEMO / "truth.parquet", columns=["doc_id", "kind", "key_id"]).to_pylist()
    wanted = {row["doc_id"] for row in truth if row["kind"] == kind and row["key_id"] == key_id}
    # as bytes, since a few rows of the sample are not valid UTF-8
    parts = [
        pq.read_table(path, columns=["doc_id", "text"]).cast(RAW) for path in sorted(DEMO.glob("sample-*.parquet"))
    ]
    rows = pa.concat_tables(parts).to_pylist()
    return list(dict.fromkeys(row["text"].decode() for row in rows if (row["doc_id"] or b"").decode() in wanted))


@pytest.fixture(scope="session")
def human_texts() -> list[str]:
    return sample_texts("human")


@pytest.fixture(scope="session")
def human(human_texts, tokenizer) -> Tokens:
    return tokenizer.encode(human_texts)
