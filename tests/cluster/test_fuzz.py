"""A night of mutated files: each document has a verdict or is in quarantine, whatever is wrong in its file.

The default suite scans 100 mutants; `make fuzz` scans 5,000 and prints how they ended. FUZZ_SEED makes other ones.
"""

import os
from collections import Counter
from hashlib import sha256
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.detection.open_plan import open_text_ids
from scanner.errors import FileFault
from scanner.input.files import list_files
from scanner.input.shards import cut
from tests.support.inspection import inspect
from tests.support.mutants import KINDS, mutate, sound_files

MUTANTS, SEED = int(os.environ.get("FUZZ_MUTANTS", "100")), int(os.environ.get("FUZZ_SEED", "0"))

pytestmark = pytest.mark.usefixtures("ray_cluster")


def promised(path: Path, columns) -> int | None:
    """Rows that a file's footer promises; None where the file is refused."""
    (file,) = list_files([str(path)])
    try:
        return sum(rows.stop - rows.start for rows in cut(inspect(file, columns)))
    except FileFault:
        return None


def ending(rows: int | None, verdicts: list[tuple[int, bytes]], refused: list[int | None], texts: list[bytes]) -> str:
    """How a mutant ended, in words. Fails when a document is missing or doubled."""
    if not verdicts and refused == [None]:
        return "refused as a whole"
    assert rows is not None, "a file that is refused has no other rows"
    assert None not in refused
    assert sorted([*(row for row, _ in verdicts), *refused]) == list(range(rows))
    other = sum(row >= len(texts) or digest != texts[row] for row, digest in verdicts)
    if rows < len(texts):
        return "fewer rows than were written"
    if refused:
        return "rows in quarantine" + (", others with another text" if other else "")
    return "scanned, with another text" if other else "scanned as it was"


@pytest.mark.costly
def test_every_mutant_ends_in_verdicts_or_in_quarantine(night, tmp_path):
    night.configure(columns='account = "account"', more="allow_empty = true\nmax_lost_files = 1_000_000")
    sources = sound_files(tmp_path)
    digests = [sha256(text.encode()).digest() for text in pq.read_table(sources[0])["text"].to_pylist()]
    texts = open_text_ids(night.plan()).of(pa.array(digests)).to_pylist()
    kinds = {}
    for number in range(MUTANTS):
        path = night.input / f"{number:05}.parquet"
        kinds[str(path)] = mutate(sources[number % len(sources)], path, SEED * 10**6 + number)

    assert night.scan().exit_code == 0
    said = {path: ([], []) for path in kinds}
    for path, row, digest in night.verdicts().select("path", "row", "text_id").iter_rows():
        said[path][0].append((row, digest))
    for path, row in night.quarantine().select("path", "row").iter_rows():
        said[path][1].append(row)
    columns = night.plan().columns
    ends = Counter((kind, ending(promised(Path(path), columns), *said[path], texts)) for path, kind in kinds.items())
    table = pl.DataFrame([(*key, count) for key, count in ends.items()], ["mutant", "ended", "files"], orient="row")
    with pl.Config(tbl_rows=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, fmt_str_lengths=60):
        print(f"{MUTANTS} mutants, seed {SEED}", table.sort("mutant", "ended"), reasons(night), sep="\n")
    assert {kind for kind, _ in ends} == set(KINDS)
    assert sum(ends.values()) == MUTANTS
    assert "fewer rows than were written" not in {end for kind, end in ends if "three" not in kind}


def reasons(night) -> pl.DataFrame:
    """Counts of rows and files in quarantine by reason."""
    return night.quarantine().group_by("reason", whole=pl.col("row").is_null()).len().sort("reason", "whole")
