"""`make demo`, from its command to its tables: nothing unmarked is flagged, nobody is named wrongly, twice in a row."""

import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from jobs.demo import HERE
from jobs.demo.__main__ import REPLIES, compare


@pytest.mark.long
def test_the_demo(tmp_path: Path) -> None:
    results = str(tmp_path / "demo" / "results")
    for _ in range(2):
        command = [sys.executable, "-m", "jobs.demo"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "compared with the truth" in done.stdout
        assert "older than the key" not in done.stdout
        assert re.search(r"^canaries     40 of 40 texts arrived: found 3\d \(", done.stdout, re.MULTILINE)
        assert "named for another user 0 (" in done.stdout
        rows = compare(results)
        assert rows.filter(~pl.col("kind").is_in(["marked", "reply"]), "flagged").is_empty()
        replies = rows.filter(pl.col("kind") == "reply")
        assert replies["flagged"].to_list() == [True] * len(REPLIES)
        marked = rows.filter(pl.col("kind") == "marked")
        assert marked.filter("wrong").is_empty()
        assert marked.filter(~pl.col("right") & pl.col("user_id").is_not_null()).is_empty()
        assert marked.filter("right").height > 0.5 * marked.height
        quarantined = pl.read_delta(f"{results}/quarantine")
        assert rows.height + quarantined.height == len(REPLIES) + sum(
            pl.read_parquet(truth).height for truth in HERE.glob("truth*.parquet")
        )
