"""Inputs of benchmarks: random documents that repeat themselves as text does, and texts of a corpus."""

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scanner.input.documents import read_text
from scanner.watermark import Tokens

SECRET = bytes(range(32))
WINDOW = 4
VOCABULARY = 32_000


@cache
def documents(length: int, total: int) -> Tokens:
    """About `total` tokens in documents of `length`, drawn by Zipf's law; some 2 % of the windows come again."""
    count = max(total // length, 1)
    ids = np.random.default_rng(length).zipf(1.3, count * length) % VOCABULARY
    return Tokens(ids.astype(np.uint32), np.arange(count + 1, dtype=np.int64) * length)


def texts(corpus: Path, megabytes: float) -> list[str]:
    """The first texts of a Parquet file's row groups, taken evenly, up to so many megabytes."""
    file = pq.ParquetFile(corpus)
    groups = file.metadata.num_row_groups
    chosen: list[str] = []
    for group in range(groups):
        room = megabytes * 2**20 / groups
        for batch in file.iter_batches(64, row_groups=[group], columns=["text"]):
            for raw in batch.column("text").cast(pa.binary()).to_pylist():
                text, reason, _ = read_text(raw)
                if reason or text is None:  # as some of the demo's
                    continue
                chosen.append(text)
                room -= len(raw)
                if room <= 0:
                    break
            if room <= 0:
                break
    return chosen


def size(chosen: list[str]) -> float:
    """Megabytes (10^6 bytes) of UTF-8."""
    return sum(len(text.encode()) for text in chosen) / 1e6
