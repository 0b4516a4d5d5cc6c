"""Memory stays within the configured bound: a row group of a gigabyte whose texts are 10 MB each."""

import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

DOCUMENTS, TEXT_BYTES = 100, 10**7
MOST_MB = 3072
"""A worker has 400 of its own; Arrow maps a data page twice, and all texts are in one, as pyarrow writes them."""

DRIVER = r"""
import re, sys
from pathlib import Path
from jobs.cli import run
from jobs.scan import module

code = run(module, ["--config", sys.argv[1]])
print("driver", re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""
"""Tells its own peak: what the kernel tells its parent includes the parent's memory, of which it is a fork."""


@pytest.fixture
def gigabyte(night, plain):
    """One row group of 100 texts, no two of them alike."""
    night.configure(more='keys = ["green"]')
    night.config.write_text(f"{night.config.read_text()}worker_memory_mb = {MOST_MB}\n")
    words = plain(20_000, 1)
    long = words * (TEXT_BYTES // len(words) + 1)
    texts = pa.array([long[i : i + TEXT_BYTES] for i in range(DOCUMENTS)], pa.large_string())
    table = pa.table({"text": texts, "doc_id": [str(i) for i in range(DOCUMENTS)]})
    pq.write_table(table, night.input / "big.parquet", compression="zstd", use_dictionary=False)
    group = pq.read_metadata(night.input / "big.parquet")
    assert group.num_row_groups == 1
    assert group.row_group(0).total_byte_size >= 10**9
    return night


@pytest.mark.long
def test_ten_megabyte_texts_in_a_gigabyte(gigabyte):
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(gigabyte.config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert gigabyte.verdicts().height == DOCUMENTS, gigabyte.quarantine()
    peak = int(re.search(r"a worker needed at most ([\d,]+) MiB", done.stdout)[1].replace(",", ""))
    driver = int(re.search(r"driver (\d+)", done.stdout)[1]) // 1024
    print(f"peak of a worker {peak} MiB, of the driver {driver} MiB, bound {MOST_MB} MiB")
    assert peak <= MOST_MB
    assert driver <= MOST_MB
