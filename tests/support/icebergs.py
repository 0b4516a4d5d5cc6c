"""Iceberg tables in a catalog of a test's folder, and commits that pyiceberg reads and does not write."""

import json
import struct
import uuid
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.utils.config import Config

NAME = "iceberg:lake.forum.posts"


def name_catalog(folder: Path, patch: pytest.MonkeyPatch, **properties: str) -> None:
    """Let pyiceberg's own configuration name a catalog `lake` in a folder; properties: others of the catalog."""
    usual = {"TYPE": "sql", "URI": f"sqlite:///{folder}/catalog.db", "WAREHOUSE": f"file://{folder}/wh"}
    for name, value in (usual | properties).items():
        patch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    patch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when pyiceberg was imported


def make_table(schema: pa.Schema) -> Table:
    """A table of posts in the catalog `lake`."""
    catalog = load_catalog("lake")
    catalog.create_namespace("forum")
    return catalog.create_table("forum.posts", schema=schema)


class _DeleteManifest(ManifestWriterV2):
    """Writes a manifest of delete files, of which pyiceberg writes none (Iceberg's specification, "Manifests").

    Its entries have the fields of version 3 of the format: of which file a vector is, and where it lies.
    """

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(3)
        return AvroOutputFile[ManifestEntry](self._output_file, schema, "manifest_entry", schema, self._meta)

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return super()._meta | {"content": "deletes"}


class _RowDelta(_FastAppendFiles):
    """A snapshot that adds delete files."""

    def new_manifest_writer(self, spec: Any) -> ManifestWriter:
        return _DeleteManifest(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)


def commit_deletes(table: Table, deletes: Collection[DataFile]) -> None:
    """Commit a snapshot that adds delete files."""
    with table.transaction() as transaction, _RowDelta(Operation.DELETE, transaction, table.io) as update:
        for file in deletes:
            update.append_data_file(file)
    table.refresh()


def delete_by_position(table: Table, doc_ids: Collection[str], puffin: bool = False) -> None:
    """Delete documents of a table without partitions by files of positions, or by deletion vectors."""
    deletes = []
    for task in table.scan().plan_files():
        path = task.file.file_path
        names = pq.read_table(path.removeprefix("file://"), columns=["doc_id"])["doc_id"].to_pylist()
        gone = [row for row, name in enumerate(names) if name in doc_ids]
        if gone:
            deletes.append((puffin_file if puffin else positions_file)(table, path, gone))
    commit_deletes(table, deletes)


def positions_file(table: Table, path: str, rows: Sequence[int]) -> DataFile:
    """A file of positions of one data file."""
    file = _new_file(table, "deletes.parquet")
    pq.write_table(pa.table({"file_path": [path] * len(rows), "pos": [*rows]}), file)
    return delete_file(file, FileFormat.PARQUET, len(rows))


def puffin_file(
    table: Table, path: str, rows: Sequence[int], named: str | None = None, bitmaps: bytes | None = None
) -> DataFile:
    """A Puffin file with one deletion vector (Puffin's specification, "deletion-vector-v1").

    named: in its blob; bitmaps: others than of these rows.
    """
    file = _write_puffin(table, {named or path: rows}, bitmaps)
    bounds = {2147483546: path.encode()}
    return delete_file(file, FileFormat.PUFFIN, len(rows), lower_bounds=bounds, upper_bounds=bounds)


def shared_puffin_file(
    table: Table, rows_of: Mapping[str, Sequence[int]], live: Collection[str] = (), *, told: bool = False
) -> list[DataFile]:
    """A Puffin file with vectors of several data files, and the manifest's entries of those of `live` (all).

    told: whether the entries say of which files they are, as version 3 of the format has it; some writers leave it out.
    """
    file = _write_puffin(table, rows_of)
    places = {blob.properties["referenced-data-file"]: blob for blob in PuffinFile(file.read_bytes()).footer.blobs}
    entries = []
    for path in live or rows_of:
        place = {"content_offset": places[path].offset, "content_size_in_bytes": places[path].length}
        more = {"referenced_data_file": path, **place} if told else {}
        entries.append(delete_file(file, FileFormat.PUFFIN, len(rows_of[path]), **more))
    return entries


def _write_puffin(table: Table, rows_of: Mapping[str, Sequence[int]], bitmaps: bytes | None = None) -> Path:
    magic, blobs, described = b"PFA1", b"", []
    for path, rows in rows_of.items():
        # a 64-bit bitmap of one Roaring bitmap of one array of rows below 2^16
        head = struct.pack("<qI", 1, 0) + struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16)
        body = struct.pack("<I", 1681511377) + (bitmaps or head + struct.pack(f"<{len(rows)}H", *rows))
        blob = struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        described.append({
            "type": "deletion-vector-v1", "fields": [2147483546], "snapshot-id": -1, "sequence-number": -1,
            "offset": 4 + len(blobs), "length": len(blob),
            "properties": {"referenced-data-file": path, "cardinality": str(len(rows))},
        })  # fmt: skip
        blobs += blob
    footer = json.dumps({"blobs": described}).encode()
    file = _new_file(table, "vector.puffin")
    file.write_bytes(magic + blobs + magic + footer + struct.pack("<i", len(footer)) + bytes(4) + magic)
    return file


def give_defaults(table: Table, defaults: Mapping[str, Any]) -> None:
    """Make a table one of version 3 of the format, whose columns have initial defaults; pyiceberg only reads these."""
    file = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    metadata |= {"format-version": 3, "next-row-id": 1000}
    for field in metadata["schemas"][-1]["fields"]:
        if field["name"] in defaults:
            field["initial-default"] = field["write-default"] = defaults[field["name"]]
    file.write_text(json.dumps(metadata))


def _new_file(table: Table, name: str) -> Path:
    return Path(table.location().removeprefix("file://")) / f"{uuid.uuid4()}-{name}"


def delete_file(file: Path, form: FileFormat, rows: int, **more: Any) -> DataFile:
    """A delete file as a manifest describes it."""
    described = DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent.POSITION_DELETES, file_path=f"file://{file}", file_format=form, partition=Record(),
        record_count=rows, file_size_in_bytes=file.stat().st_size, **more,
    )  # fmt: skip
    described.spec_id = 0
    return described


def compact(table: Table) -> None:
    """Write all rows into one file anew, by one snapshot that replaces files."""
    rows, tasks = table.scan().to_arrow(), [*table.scan().plan_files()]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        for task in tasks:
            update.delete_data_file(task.file)
        # pyiceberg divides by the number of rows
        for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io) if len(rows) else ():
            update.append_data_file(file)
    table.refresh()


def forget_snapshots(table: Table) -> None:
    """Expire all snapshots but the current one, and delete the data files that it does not have."""
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots()[:-1]]).commit()
    table.refresh()
    live = {task.file.file_path for task in table.scan().plan_files()}
    for file in Path(table.location().removeprefix("file://"), "data").rglob("*.parquet"):
        if f"file://{file}" not in live:
            file.unlink()
