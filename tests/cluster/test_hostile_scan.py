"""A night of hostile files, made to end the scan or to lose or double documents: every document is accounted for."""

import os
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.footers import File
from tests.support.hostile_files import (
    CONTRADICTIONS,
    FATAL,
    encrypted,
    fifo,
    table,
    with_short_page,
    with_wrong_text,
    written,
)

pytestmark = pytest.mark.usefixtures("ray_cluster")

WHOLE = {
    **{f"fatal-{number}": make for number, make in enumerate(FATAL.values())},
    "encrypted": lambda path: encrypted(path, "other", footer=True),
    "encrypted-text": lambda path: encrypted(path, "text"),
    "fifo": fifo,
}
"""Files that go to quarantine as a whole; no other file suffers."""


def outcome_of(night) -> dict[str, tuple[list[int], list[int | None]]]:
    """Rows with a verdict and rows in quarantine, by file."""
    found: dict[str, tuple[list[int], list[int | None]]] = {}
    for number, rows in enumerate((night.verdicts(), night.quarantine())):
        for path, row in rows.select("path", "row").rows():
            found.setdefault(Path(path).stem, ([], []))[number].append(row)
    return found


@pytest.mark.costly
def test_no_file_ends_a_night_and_no_document_is_lost_or_doubled(night):
    for name, make in WHOLE.items():
        make(night.input / f"{name}.parquet")
    for number, change in enumerate(CONTRADICTIONS.values()):
        file = File(written(night.input / f"wrong-{number}.parquet"))
        change(file)
        file.write(night.input / f"wrong-{number}.parquet")
    promised = File(written(night.input / "promised.parquet"))
    promised.claim_rows(0, 100, everywhere=True)
    promised.write(night.input / "promised.parquet")
    huge = File(written(night.input / "huge.parquet"))
    huge.claim_rows(0, 2**40, everywhere=True)
    huge.write(night.input / "huge.parquet")
    with_short_page(night.input / "shifted.parquet")
    with_wrong_text(night.input / "checksums.parquet", write_page_checksum=True)
    encrypted(night.input / "beside.parquet", "other")
    encrypted(night.input / "id.parquet", "doc_id")
    pl.DataFrame(
        {"text": ["a"] * 3, "doc_id": ["1", "2", "3"], "big": pl.Series([1, 2, 3], dtype=pl.Int128)}
    ).write_parquet(night.input / "int128.parquet")
    written(night.input / "sound.parquet")
    os.link(night.input / "sound.parquet", night.input / "sound_too.parquet")

    outcome = night.scan()
    assert outcome.exit_code == 4  # whole files cannot be read
    found = outcome_of(night)
    whole = {name for name, rows in found.items() if rows == ([], [None])}
    reasons = night.quarantine().filter(pl.col("reason") == "encrypted")["path"].to_list()
    assert {Path(path).stem for path in reasons} == {"encrypted", "encrypted-text"}
    assert whole == {*WHOLE, "huge", *(f"wrong-{number}" for number in range(len(CONTRADICTIONS)))}
    assert {name: rows for name, rows in found.items() if name not in whole} == {
        "promised": (list(range(100, 106)), list(range(100))),
        "shifted": (list(range(1000, 2000)), list(range(1000))),
        "checksums": (list(range(6)), list(range(6, 12))),
        "beside": (list(range(12)), []),
        "id": (list(range(12)), []),
        "int128": (list(range(3)), []),
        "sound": (list(range(12)), []),
    }
    again = night.scan()
    assert (again.totals.shards, again.work.skipped) == (0, outcome.work.shard_count)
    assert outcome_of(night) == found


@pytest.mark.costly
def test_rows_that_no_page_holds_cost_one_row_for_the_file_and_few_others(night):
    """A footer may promise any number of rows, as long as its numbers agree."""
    file = File(written(night.input / "a.parquet", row_group_size=100))
    file.claim_rows(0, 10**6, everywhere=True)
    file.write(night.input / "a.parquet")
    night.scan()
    assert night.verdicts().height == 0
    assert night.quarantine().height <= 20_001
    assert night.quarantine().filter(pl.col("row").is_null()).height == 1


def test_a_calibration_reads_no_footer_in_its_driver(tmp_path):
    from scanner.cluster.corpus import sources
    from scanner.input.columns import Columns
    from scanner.input.files import FileFault

    FATAL["a histogram of the texts"](tmp_path / "a.parquet")
    with pytest.raises(FileFault, match="the process that read the footer was killed"):
        sources((str(tmp_path),), Columns("text", None, None, None))
    (tmp_path / "a.parquet").unlink()
    encrypted(tmp_path / "b.parquet", "other")
    pq.write_table(pa.concat_tables([table()] * 2), tmp_path / "c.parquet")
    assert [(source.start, source.stop) for source in sources((str(tmp_path),), Columns("text", None, None, None))] == [
        (0, 12),
        (0, 24),
    ]
