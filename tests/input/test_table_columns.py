"""Columns of tables that older files have otherwise, or not at all: rows are those that the table's schema gives."""

import datetime
import hashlib
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table import Table
from pyiceberg.types import DateType, DoubleType, FloatType, LongType, StringType, TimestamptzType, UUIDType

from scanner.errors import FileFault, Refused
from scanner.evidence.case import FlagCase
from scanner.evidence.stored_texts import StoredTexts
from scanner.input.columns import Columns
from scanner.input.documents import identities, read
from scanner.input.files import InputTables, list_files
from scanner.input.named_files import describe, guess_columns, sample_of
from scanner.input.shards import cut, shard_id
from scanner.input.tables import NEWEST_TABLES, TableReading
from tests.support.deltas import change_schema, delete_by_vector, write_mapped
from tests.support.icebergs import (
    NAME,
    commit_deletes,
    give_defaults,
    make_table,
    name_catalog,
    puffin_file,
    shared_puffin_file,
)
from tests.support.inspection import INSPECTOR, inspect

COLUMNS = Columns("text", "doc_id", "account", "created_at")
DAY = datetime.datetime(2026, 8, 31, tzinfo=datetime.UTC)


def posts(names: str, **more: pa.Array | list) -> pa.Table:
    return pa.table({"text": [f"text of {name}" for name in names], "doc_id": list(names), **more})


def documents(
    location: Path | str, columns: Columns = COLUMNS, reading: TableReading = NEWEST_TABLES
) -> dict[str, dict]:
    """All documents that would be scanned, by their ids."""
    found = {}
    for file in list_files([str(location)], reading=reading):
        for rows in cut(inspect(file, columns)):
            for part in read(file, columns, rows.start, rows.stop):
                found |= {row["doc_id"]: row for row in part.to_pylist()}
    return found


def values(found: dict[str, dict], name: str) -> dict[str, object]:
    assert not any(row["unread"] for row in found.values())
    return {key: row[name] for key, row in sorted(found.items())}


@pytest.mark.parametrize("name", ["account", "created_at", "text"])
def test_delta_column_added_later(tmp_path, name):
    """Rows of older files have no value in it."""
    new = {"text": ["text of b"], "doc_id": ["b"], "account": ["ann"], "created_at": [DAY]}
    old = {column: value for column, value in new.items() if column != name} | {"doc_id": ["a"]}
    write_deltalake(tmp_path, pa.table(old))
    write_deltalake(tmp_path, pa.table(new), mode="append", schema_mode="merge")
    shown = {"account": "account_id"}.get(name, name)
    found = values(documents(tmp_path), shown)
    assert found["a"] is None
    assert found["b"] is not None
    for file in list_files([str(tmp_path)]):  # also where only ids of rows are read
        assert len(identities(file, COLUMNS, 0, 1)) == 1


def test_delta_column_of_no_schema_is_missing(tmp_path):
    """It is looked at again when the table has it, though its files stay the same."""
    write_deltalake(tmp_path, posts("a"))
    (file,) = list_files([str(tmp_path)])
    with pytest.raises(FileFault, match=r"column 'account' .account. is missing; there are: text, doc_id"):
        inspect(file, COLUMNS)
    before = shard_id(file, None, "{}")
    change_schema(tmp_path, lambda fields: fields.append(fields[0] | {"name": "account"}))
    (file,) = list_files([str(tmp_path)])
    assert shard_id(file, None, "{}") != before
    assert values(documents(tmp_path, COLUMNS._replace(time=None)), "account_id") == {"a": None}


@pytest.mark.parametrize("mode", ["name", "id"])
def test_delta_column_mapping(tmp_path, mode):
    """Columns were renamed, dropped and added; values of partitions and deleted rows are found too."""
    columns = Columns("text", "doc_id", "account", None)
    write_mapped(tmp_path, posts("abc", account=["ann", "ben", "ben"]), mode, ["account"])
    assert values(documents(tmp_path, columns), "account_id") == {"a": "ann", "b": "ben", "c": "ben"}
    only_ben = documents(tmp_path, columns, TableReading(where="account = 'ben'"))
    assert sorted(only_ben) == ["b", "c"]
    version = DeltaTable(tmp_path).version()

    def rename(fields: list) -> None:
        fields[0]["name"] = "body"
        added = {"delta.columnMapping.id": 4, "delta.columnMapping.physicalName": "column-4"}
        fields.append(fields[0] | {"name": "text", "metadata": added})

    change_schema(tmp_path, rename)
    found = documents(tmp_path, columns._replace(text="body"))
    assert {row["text"] for row in found.values()} == {b"text of a", b"text of b", b"text of c"}
    assert {row["text"] for row in documents(tmp_path, columns).values()} == {None}
    assert documents(tmp_path, columns, TableReading(version=version))["a"]["text"] == b"text of a"
    delete_by_vector(tmp_path, ["b"], column="column-2")
    assert sorted(documents(tmp_path, columns)) == ["a", "c"]


def test_delta_values_of_partitions_are_those_of_the_log(tmp_path):
    """A file may hold the column too, and anything in it."""
    write_deltalake(tmp_path, posts("ab", account=["ann", None]), partition_by=["account"])
    for file in tmp_path.rglob("*.parquet"):
        rows = pq.read_table(file)
        pq.write_table(rows.append_column("account", pa.array(["eve"])), file)
        log = tmp_path / "_delta_log" / f"{0:020d}.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if "add" in action and action["add"]["path"].endswith(file.name):
                action["add"]["size"] = file.stat().st_size
        log.write_text("\n".join(map(json.dumps, actions)) + "\n")
    assert values(documents(tmp_path, COLUMNS._replace(time=None)), "account_id") == {"a": "ann", "b": None}


@pytest.mark.parametrize(("old", "new", "kind"), [("int32", "int64", "long"), ("float32", "float64", "double")])
def test_delta_type_widening(tmp_path, old, new, kind):
    """One account is written alike, whatever type its file has."""
    write_deltalake(tmp_path, posts("a", account=pa.array([7], old)))
    change_schema(tmp_path, lambda fields: fields[2].update(type=kind), ["typeWidening"])
    write_deltalake_file(tmp_path, posts("b", account=pa.array([7], new)))
    found = values(documents(tmp_path, COLUMNS._replace(time=None)), "account_id")
    assert found["a"] == found["b"]


def write_deltalake_file(
    table: Path, rows: pa.Table, name: str = "more.parquet", milliseconds: int = 1, **partition: str
) -> None:
    """Append a file by hand, where deltalake writes no table of these features."""
    (table / name).parent.mkdir(exist_ok=True)
    pq.write_table(rows, table / name)
    add = {"path": name, "partitionValues": partition, "size": (table / name).stat().st_size}
    log = table / "_delta_log" / f"{DeltaTable(table).version() + 1:020d}.json"
    log.write_text(json.dumps({"add": add | {"modificationTime": milliseconds, "dataChange": True}}) + "\n")


def test_delta_widened_decimals_are_one_account(tmp_path):
    write_deltalake(tmp_path, posts("a", account=pa.array(["1.50"]).cast(pa.decimal128(5, 2))))
    change_schema(tmp_path, lambda fields: fields[2].update(type="decimal(10,4)"), ["typeWidening"])
    write_deltalake_file(tmp_path, posts("b", account=pa.array(["1.50"]).cast(pa.decimal128(10, 4))))
    found = values(documents(tmp_path, COLUMNS._replace(time=None)), "account_id")
    assert found == {"a": "1.5000", "b": "1.5000"}


@pytest.mark.parametrize("name", ["a.parquet", "z.parquet"])
def test_init_guesses_by_the_newest_file_and_the_tables_schema(tmp_path, name):
    """Its name says nothing of its age, and an older file lacks columns."""
    write_deltalake(tmp_path, posts("a"))
    change_schema(tmp_path, lambda fields: fields.append(fields[0] | {"name": "account"}))
    later = posts("b", account=["ann"]).set_column(0, "text", [["a longer text of b"]])
    write_deltalake_file(tmp_path, later, name, 2 * 10**12)
    guess = guess_columns(sample_of(tmp_path))
    assert guess[:4] == ("text", "doc_id", "account", None)
    assert "texts of 18 bytes" in guess.why[0]
    change_schema(tmp_path, lambda fields: fields.append(fields[0] | {"name": "created_at", "type": "timestamp"}))
    assert guess_columns(sample_of(tmp_path)).time == "created_at"


@pytest.mark.parametrize("mode", ["name", "id"])
def test_init_guesses_names_of_the_table(tmp_path, mode):
    """Files have others, which no configuration can name."""
    write_mapped(
        tmp_path / "posts", posts("ab", account=["ann", "ben"], day=[DAY.date()] * 2), mode, ["account", "day"]
    )
    sample = sample_of(tmp_path / "posts")
    assert guess_columns(sample)[:3] == ("text", "doc_id", "account")
    assert sample.where == "day = '{date}'"
    described = describe(list_files([str(tmp_path / "posts")])[0], Columns("text", "doc_id", "account", "day"))
    assert [(column.name, column.read) for column in described] == [
        (n, True) for n in ("text", "doc_id", "account", "day")
    ]
    chats = pa.table({"id": ["1"], "chat": [["a text that is longer than an id"]]})
    write_mapped(tmp_path / "chats", chats, mode)
    with pytest.raises(Refused, match=r"the texts seem to be in 'chat', a list\. .* FROM delta_scan"):
        guess_columns(sample_of(tmp_path / "chats"))


def test_columns_that_a_file_lacks_are_described(tmp_path):
    """They are read: as null, or from the log; the check said that they stand several times and are not."""
    write_deltalake(tmp_path, posts("a", day=[DAY.date()]), partition_by=["day"])
    change_schema(tmp_path, lambda fields: fields.append(fields[0] | {"name": "account"}))
    (file,) = list_files([str(tmp_path)])
    described = {column.role: column for column in describe(file, Columns("text", "doc_id", "account", "day"))}
    assert all(column.read for column in described.values())
    assert described["account"].type == "string, which is missing in older files of the table"
    assert described["time"].type == "of a partition"


def test_init_guesses_names_of_an_iceberg_table(iceberg):
    with iceberg.update_schema() as schema:
        schema.rename_column("text", "body")
        schema.add_column("author", StringType())
        schema.add_column("posted", TimestamptzType())
    assert guess_columns(sample_of(Path(NAME)))[:4] == ("body", "doc_id", "author", "posted")


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview", "variantType", "geospatial"])
def test_delta_features_that_are_not_read_are_refused(tmp_path, feature):
    write_deltalake(tmp_path, posts("a"))
    change_schema(tmp_path, lambda fields: None, [feature])
    named = "catalogManaged" if "catalog" in feature else feature
    with pytest.raises(Refused, match=f"{named}.*write the current rows into Parquet files"):
        list_files([str(tmp_path)])


def test_delta_log_with_a_gap(tmp_path):
    for name in "abcd":
        write_deltalake(tmp_path, posts(name), mode="append")
    log = tmp_path / "_delta_log"
    (log / f"{2:020d}.json").unlink()
    with pytest.raises(Refused, match=r"lacks the commit 0{19}2.json; restore .* before it: version = 1$"):
        list_files([str(tmp_path)])
    columns = COLUMNS._replace(account=None, time=None)
    assert sorted(documents(tmp_path, columns, TableReading(version=1))) == ["a", "b"]
    with pytest.raises(Refused, match="its newest version is 3"):
        list_files([str(tmp_path)], reading=TableReading(version=7))
    (log / f"{2:020d}.json").write_text("{")
    with pytest.raises(Refused, match=r"its commit 0{19}2.json is damaged; restore .* version = 1$"):
        list_files([str(tmp_path)])
    DeltaTable(tmp_path, version=1).create_checkpoint()
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"PAR1")
    with pytest.raises(Refused, match="restore the files of its _delta_log"):
        list_files([str(tmp_path)], reading=TableReading(version=1))


def test_delta_file_of_another_size(tmp_path):
    """It was never listed with another size: the log has it."""
    write_deltalake(tmp_path, posts("a"))
    (path,) = tmp_path.glob("*.parquet")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-10])
    (file,) = list_files([str(tmp_path)])
    with pytest.raises(FileFault, match=f"has {size - 10:,} bytes, but its table states {size:,}"):
        file.check_unchanged()


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_delta_link_out_of_the_table_is_not_followed(tmp_path, linked):
    """Whoever may write into a table's folder need not be one who may read what the link leads to."""
    table, outside = tmp_path / "table", tmp_path / "outside"
    write_deltalake(table, posts("ab", account=["ann", "ben"]), partition_by=["account"])
    outside.mkdir()
    moved = table / "account=ann"
    if linked == "file":
        (moved,) = moved.iterdir()
    moved.rename(outside / moved.name)
    moved.symlink_to(outside / moved.name)
    answers = [answer for _, answer in INSPECTOR.inspect_all(list_files([str(table)]), COLUMNS._replace(time=None))]
    (fault,) = [answer for answer in answers if isinstance(answer, FileFault)]
    assert " out of its table's folder" in fault.detail
    link = tmp_path / "link"
    link.symlink_to(table)  # to the table itself
    (sound,) = [file for file in list_files([str(link)]) if "account=ben" in file.path]
    sound.check_unchanged()


@pytest.mark.parametrize("name", [f"{1:020d}.json", "_sidecars"])
def test_delta_log_that_links_out_of_the_table_is_refused(tmp_path, name):
    table = tmp_path / "table"
    write_deltalake(table, posts("a"))
    (tmp_path / "secret").write_text("{}")
    os.symlink(tmp_path / "secret", table / "_delta_log" / name)
    with pytest.raises(Refused, match="is a link out of the table's folder"):
        list_files([str(table)])


@pytest.mark.parametrize("mode", ["name", "id"])
def test_texts_of_flags_are_read_by_the_tables_columns(tmp_path, mode):
    """Files of a table name columns as they like; rows that were deleted since, and files, can still be read."""
    table, columns = tmp_path / "table", Columns("text", "doc_id", "account", None)
    write_mapped(table, posts("abc", account=["ann", "ben", "ben"]), mode, ["account"])
    (ann, ben) = list_files([str(table)])
    stored = StoredTexts(columns, [str(table)], str(tmp_path / "results"))

    def row_of(path: str, row: int, name: str) -> tuple[bytes, dict]:
        digest = hashlib.sha256(f"text of {name}".encode()).digest()
        found = stored.of(FlagCase({"path": path, "row": row, "text_sha256": digest, "scan_id": "1"}, None))
        assert found.row is not None
        return found.text, dict(found.row)

    assert row_of(ann.path, 0, "a")[1]["account_id"] == "ann"
    delete_by_vector(table, ["b"], column="column-2")
    stored = StoredTexts(columns, [str(table)], str(tmp_path / "results"))
    text, row = row_of(ben.path, 0, "b")
    assert (text, row["doc_id"], row["account_id"]) == (b"text of b", "b", "ben")
    write_deltalake_file(
        table, posts("d").rename_columns(["column-1", "column-2"]), "x/later.parquet", **{"column-3": "eve"}
    )
    text, row = row_of(str(table / "x/later.parquet"), 0, "d")  # the table was listed before
    assert (text, row["doc_id"], row["account_id"]) == (b"text of d", "d", "eve")
    with pytest.raises(FileFault, match="a partition column, but"):  # of a file that its table names no more
        stored_file_of(table, "column-3=ann", columns)


def stored_file_of(table: Path, folder: str, columns: Columns) -> list[dict]:
    """Rows of the file of a folder, read as explain reads it, after the table's commit that removed it."""
    (path,) = (table / folder).iterdir()
    commit = table / "_delta_log" / f"{DeltaTable(table).version() + 1:020d}.json"
    removed = {"path": f"{folder}/{path.name}", "dataChange": True, "deletionTimestamp": 1}
    commit.write_text(json.dumps({"remove": removed}) + "\n")
    file = InputTables([str(table)]).find(str(path))
    return [row for part in read(file, columns, 0, 1) for row in part.to_pylist()]


def test_texts_of_files_that_a_table_names_no_more(tmp_path):
    """Their columns are the table's, and values of partitions those of their folders' names."""
    write_deltalake(tmp_path, posts("ab", account=["ann", "ben"]), partition_by=["account"])
    (row,) = stored_file_of(tmp_path, "account=ann", COLUMNS._replace(time=None))
    assert (row["text"], row["account_id"]) == (b"text of a", "ann")


@pytest.fixture
def iceberg(tmp_path, monkeypatch) -> Table:
    """A table of one file with two posts."""
    name_catalog(tmp_path, monkeypatch)
    made = make_table(posts("a").schema)
    made.append(posts("ab"))
    return made


def test_iceberg_columns_added_and_renamed(iceberg):
    """Ids tell columns in files, whatever their names were."""
    with iceberg.update_schema() as schema:
        schema.add_column("account", StringType())
        schema.add_column("created_at", TimestamptzType())
    iceberg.append(posts("c", account=["ann"], created_at=pa.array([DAY], pa.timestamp("us", "UTC"))))
    added = iceberg.current_snapshot()
    assert added is not None
    assert values(documents(NAME), "account_id") == {"a": None, "b": None, "c": "ann"}
    assert values(documents(NAME), "created_at") == {"a": None, "b": None, "c": DAY}
    with iceberg.update_schema() as schema:
        schema.rename_column("text", "body")
        schema.rename_column("doc_id", "account2")
        schema.rename_column("account", "doc_id")  # a name that another column had
    renamed = Columns("body", "account2", "doc_id", None)
    assert values(documents(NAME, renamed), "account_id") == {"a": None, "b": None, "c": "ann"}
    assert values(documents(NAME, renamed), "text")["a"] == b"text of a"
    with pytest.raises(
        FileFault, match=r"column 'text' .text. is missing; there are: body, account2, doc_id, created_at"
    ):
        documents(NAME, renamed._replace(text="text"))
    assert sorted(documents(NAME, COLUMNS, TableReading(version=added.snapshot_id))) == ["a", "b", "c"]


def test_iceberg_column_with_the_name_of_a_dropped_one(iceberg):
    """Old files hold the other's values under it, and these are not its."""
    with iceberg.update_schema() as schema:
        schema.delete_column("text")
    with iceberg.update_schema() as schema:
        schema.add_column("text", StringType())
    assert {row["text"] for row in documents(NAME, COLUMNS._replace(account=None, time=None)).values()} == {None}


def test_iceberg_initial_defaults(iceberg):
    """Rows that are older than a column have its default, not null."""
    uuid = "f79c3e09-677c-4bbd-a479-3f349cb785e7"
    kinds = {
        "account": (StringType(), "nobody", "nobody"),
        "created_at": (TimestamptzType(), "2026-08-31T00:00:00+00:00", "2026-08-31 00:00:00.000000Z"),
        "number": (LongType(), 7, "7"),
        "day": (DateType(), "2026-08-31", "2026-08-31"),
        "uuid": (UUIDType(), uuid, uuid.replace("-", "")),
    }
    with iceberg.update_schema() as schema:
        for name, (kind, _, _) in kinds.items():
            schema.add_column(name, kind)
    give_defaults(iceberg, {name: default for name, (_, default, _) in kinds.items()})
    assert values(documents(NAME), "account_id") == {"a": "nobody", "b": "nobody"}
    assert values(documents(NAME), "created_at") == {"a": DAY, "b": DAY}
    for name, (_, _, written) in kinds.items():
        found = documents(NAME, Columns("text", "doc_id", name, None))
        assert values(found, "account_id") == {"a": written, "b": written}
    assert {row["text"] for row in documents(NAME, Columns("account", "doc_id", None, None)).values()} == {b"nobody"}


def test_iceberg_numbers_that_were_widened_are_one_account(tmp_path, monkeypatch):
    name_catalog(tmp_path, monkeypatch)
    made = make_table(posts("a", account=pa.array([0.1], "float32")).schema)
    made.append(posts("a", account=pa.array([0.1], "float32")))
    with made.update_schema() as schema:
        schema.update_column("account", DoubleType())
    made.append(posts("b", account=pa.array([0.1], "float32").cast("float64")))
    assert FloatType() != DoubleType()
    found = values(documents(NAME, COLUMNS._replace(time=None)), "account_id")
    assert found["a"] == found["b"]


def test_iceberg_files_without_ids_are_read_by_the_tables_mapping(tmp_path, monkeypatch):
    """Other writers' files have names alone. Without a mapping nobody knows which column a name means."""
    name_catalog(tmp_path, monkeypatch)
    made = make_table(posts("a").schema)
    pq.write_table(posts("ab"), tmp_path / "plain.parquet")
    made.add_files([f"file://{tmp_path}/plain.parquet"])
    with made.update_schema() as schema:
        schema.rename_column("text", "body")
    columns = Columns("body", "doc_id", None, None)
    assert values(documents(NAME, columns), "text") == {"a": b"text of a", "b": b"text of b"}
    with made.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    with pytest.raises(FileFault, match="no field ids"):
        documents(NAME, columns)


def test_iceberg_values_of_partitions_that_files_lack(tmp_path, monkeypatch):
    """They stand in the manifest; a date is a number there."""
    name_catalog(tmp_path, monkeypatch)
    rows = posts("a", created_at=pa.array([DAY.date()]))
    made = make_table(rows.schema)
    with made.update_spec() as spec:
        spec.add_identity("created_at")
    made.append(rows)
    (path,) = tmp_path.rglob("data/**/*.parquet")
    lacking = pq.read_table(path).drop_columns(["created_at"])
    pq.write_table(lacking, path)
    (file,) = list_files([NAME])
    changed = type(file)(file.path, file.location, file.inner, path.stat().st_size, 0, file.entry)
    columns = COLUMNS._replace(account=None)
    (part,) = read(changed, columns, 0, len(inspect(changed, columns)))
    assert part["created_at"].to_pylist() == [DAY]


@pytest.mark.parametrize("told", [True, False])
def test_iceberg_vectors_of_one_file(iceberg, told):
    """Several data files have their vectors in one Puffin file, and some of these are older than others elsewhere."""
    iceberg.append(posts("cde"))
    path_of = {task.file.record_count: task.file.file_path for task in iceberg.scan().plan_files()}
    both = {path_of[2]: [0], path_of[3]: [0, 2]}
    commit_deletes(iceberg, shared_puffin_file(iceberg, both, live=[path_of[3]], told=told))
    commit_deletes(iceberg, [puffin_file(iceberg, path_of[2], [0, 1])])
    assert sorted(documents(NAME, COLUMNS._replace(account=None, time=None))) == ["d"]


@pytest.mark.parametrize("told", [True, False])
def test_iceberg_vectors_of_removed_files(iceberg, told):
    """Writers may leave them in the table: they take nothing away. Other spellings of a file's scheme mean the file."""
    (task,) = iceberg.scan().plan_files()
    commit_deletes(iceberg, shared_puffin_file(iceberg, {task.file.file_path: [0]}, told=told))
    iceberg.overwrite(posts("cde"))
    columns = COLUMNS._replace(account=None, time=None)
    assert sorted(documents(NAME, columns)) == ["c", "d", "e"]
    (task,) = iceberg.scan().plan_files()
    other = task.file.file_path.replace("file://", "hdfs://host")
    commit_deletes(iceberg, shared_puffin_file(iceberg, {other: [1]}, told=told))
    assert sorted(documents(NAME, columns)) == ["c", "e"]


@pytest.mark.parametrize("other", ["/elsewhere.parquet", None])
def test_iceberg_vectors_that_lack_are_refused(iceberg, other):
    """Rows that were deleted would be read: a vector is of another file, or of fewer rows than the table says."""
    iceberg.append(posts("cde"))
    path_of = {task.file.record_count: task.file.file_path for task in iceberg.scan().plan_files()}
    both = {other or path_of[2]: [0], path_of[3]: [0, 2] if other else [0]}
    entries = shared_puffin_file(iceberg, both)
    if other is None:
        entries = shared_puffin_file(iceberg, {path_of[2]: [0], path_of[3]: [0, 2]})
        written, fewer = (
            {entry.file_path.removeprefix("file://") for entry in some}
            for some in (entries, shared_puffin_file(iceberg, both))
        )
        Path(*written).write_bytes(Path(*fewer).read_bytes())
    commit_deletes(iceberg, entries)
    with pytest.raises(
        Refused, match="do not belong to any file of the table" if other else "removes 2 rows, but the table says 3"
    ):
        list_files([NAME])


def test_iceberg_vectors_by_partitions(tmp_path, monkeypatch):
    name_catalog(tmp_path, monkeypatch)
    made = make_table(posts("a", account=["x"]).schema)
    with made.update_spec() as spec:
        spec.add_identity("account")
    made.append(posts("abcd", account=["x", "x", "y", "y"]))
    entries = []
    for task in made.scan().plan_files():
        entries.append(puffin_file(made, task.file.file_path, [0] if task.file.partition[0] == "x" else [1]))
        entries[-1][3], entries[-1].spec_id = task.file.partition, made.spec().spec_id
    commit_deletes(made, entries)
    columns = COLUMNS._replace(time=None)
    assert sorted(documents(NAME, columns)) == ["b", "c"]
    assert sorted(documents(NAME, columns, TableReading(where="account = 'y'"))) == ["c"]
