"""Tables are read from folders of any name, empty ones too."""

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scanner.delta import read


@pytest.mark.parametrize("name", ["plain", "a b", "é", "#1?", "a+b=c&d"])
def test_a_folder_of_any_name(tmp_path, name):
    folder = str(tmp_path / name / "table")
    DeltaTable.create(folder, pa.schema([("n", pa.int64())]))
    assert read(DeltaTable(folder)).collect().equals(pl.DataFrame(schema={"n": pl.Int64}))
    for n in (1, 2):
        write_deltalake(folder, pa.table({"n": [n]}), mode="append")
    assert sorted(read(DeltaTable(folder)).filter(pl.col("n") > 0).collect()["n"]) == [1, 2]
