"""Tables are read from folders of any name, empty ones too."""

import json

import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from scanner.errors import ScanFailed, TableError
from scanner.storage.delta import KeptTable, LoggedTransaction, make_table, open_table, read


@pytest.mark.parametrize("name", ["plain", "a b", "é", "#1?", "a+b=c&d"])
def test_a_folder_of_any_name(tmp_path, name):
    folder = str(tmp_path / name / "table")
    DeltaTable.create(folder, pa.schema([("n", pa.int64())]))
    assert read(DeltaTable(folder)).collect().equals(pl.DataFrame(schema={"n": pl.Int64}))
    for n in (1, 2):
        write_deltalake(folder, pa.table({"n": [n]}), mode="append")
    assert sorted(read(DeltaTable(folder)).filter(pl.col("n") > 0).collect()["n"]) == [1, 2]


def test_a_log_that_contradicts_itself_is_refused_by_name(tmp_path):
    """Columns that partition the table, say, of which its files know nothing."""
    folder, schema = str(tmp_path / "table"), pa.schema([pa.field("n", pa.int64(), nullable=False)])
    make_table(folder, schema, {})
    write_deltalake(folder, pa.table({"n": [1]}, schema), mode="append")
    log = tmp_path / "table" / "_delta_log"
    lines = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    edited = next(line for line in lines if "metaData" in line)
    edited["metaData"]["partitionColumns"] = ["n"]
    (log / f"{2:020}.json").write_text(json.dumps(edited))
    with pytest.raises(TableError, match=f"table {folder}: its log contradicts itself"):
        open_table(folder)
    with pytest.raises(ScanFailed, match=f"table {folder} cannot be read"):
        KeptTable(folder).now()


@pytest.mark.seconds
@pytest.mark.parametrize(
    "keep", ["all commits", "a checkpoint", "no commit before the checkpoint", "a checkpoint of another form"]
)
def test_many_transactions_are_read_at_once(tmp_path, keep):
    folder, schema = str(tmp_path / "a b"), pa.schema([("n", pa.int64())])
    make_table(folder, schema, {})
    for commit in range(30):
        if commit == 20 and keep != "all commits":
            DeltaTable(folder).create_checkpoint()
        versions = [Transaction(f"shard-{commit}", commit), Transaction("again", commit)]
        properties = CommitProperties(app_transactions=versions)
        DeltaTable(folder).create_write_transaction([], "append", schema, commit_properties=properties)
    log = tmp_path / "a b" / "_delta_log"
    if keep in ("no commit before the checkpoint", "a checkpoint of another form"):
        for commit in range(20):
            (log / f"{commit:020d}.json").unlink()
    if keep == "a checkpoint of another form":  # deltalake might read it and we another one
        checkpoint = log / "00000000000000000020.checkpoint.parquet"
        checkpoint.rename(log / "00000000000000000020.checkpoint.0000000001.0000000001.parquet")
        (log / "_last_checkpoint").unlink()
        with pytest.raises(TableError, match="a checkpoint in parts"):
            KeptTable(folder).logged()
        return
    table = DeltaTable(folder)
    wanted = [*(f"shard-{n}" for n in range(60)), "again"]
    expected = {name: table.transaction_version(name) for name in wanted}
    found = versions_of(KeptTable(folder))
    assert found == {name: version for name, version in expected.items() if version is not None}
    assert len(found) == 31
    assert found["again"] == 29


def versions_of(table: KeptTable) -> dict[str, int]:
    return {name: transaction.version for name, transaction in table.logged().items()}


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_kept_table_learns_what_others_committed(tmp_path, cleaned):
    folder, schema = str(tmp_path / "table"), pa.schema([("n", pa.int64())])
    make_table(folder, schema, {})
    kept, observed = KeptTable(folder), dict[str, int]()

    def observe(name: str, earlier: LoggedTransaction | None, later: LoggedTransaction | None) -> None:
        assert observed.pop(name, None) == (earlier and earlier.version)
        if later is not None:
            observed[name] = later.version

    kept.watch(observe)
    assert kept.logged() == {}
    for n in range(40):
        properties = CommitProperties(app_transactions=[Transaction(f"t{n}", n), Transaction("last", n)])
        DeltaTable(folder).create_write_transaction([], "append", schema, commit_properties=properties)
        if n % 7 == 0:
            assert kept.now().version() == n + 1
            assert versions_of(kept) == observed == {f"t{m}": m for m in range(n + 1)} | {"last": n}
        if cleaned and n == 33:
            DeltaTable(folder).create_checkpoint()
            for commit in range(30, 34):  # `kept` has read one of these commits, not the others
                (tmp_path / "table" / "_delta_log" / f"{commit:020d}.json").unlink()
    assert "t39" not in kept.logged()  # `kept` looked at an earlier snapshot
    kept.now()
    assert versions_of(kept) == observed == {f"t{m}": m for m in range(40)} | {"last": 39}


@pytest.mark.parametrize("other_was_faster", [True, False])
def test_a_table_that_two_make_at_once(tmp_path, monkeypatch, other_was_faster):
    folder, schema, real = str(tmp_path / "table"), pa.schema([("n", pa.int64())]), DeltaTable.create

    def beaten(*arguments, **options):
        if other_was_faster:
            real(*arguments, **options)
        raise CommitFailedError("Failed to commit transaction: Protocol changed since last commit: protocol changed")

    monkeypatch.setattr(DeltaTable, "create", beaten)
    if other_was_faster:
        make_table(folder, schema, {})
        assert read(DeltaTable(folder)).collect().is_empty()
    else:
        with pytest.raises(CommitFailedError):
            make_table(folder, schema, {})
