"""Memory stays within the configured bound: a row group of a gigabyte whose texts are 10 MB each."""

import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

DOCUMENTS, TEXT_BYTES = 100, 10**7
MOST_MB = 3072
"""Limit of a worker: 400 MB of its own, and twice the file's only data page, which Arrow maps twice."""

DRIVER = r"""
import re, sys
from pathlib import Path
from jobs.cli import run
from jobs.scan import module

code = run(module, ["--config", sys.argv[1], "--verbose"])
print("driver", re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""
"""Program that prints its own peak memory; the peak that its parent would see includes the parent's own memory."""


@pytest.fixture
def gigabyte(night, plain):
    """A night with one row group of 100 texts, all different."""
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
