"""Deletion vectors, made by hand, since deltalake reads them and writes none (Delta protocol, "Deletion Vectors")."""

import json
import struct
import uuid
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

_MAGIC, _NO_RUNS, _VERSION = 1681511377, 12346, 1
_FEATURES = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}


def delete_by_vector(table: Path, doc_ids: Collection[str], column: str = "doc_id") -> None:
    """Delete documents of a local table by one commit that leaves every data file as it is.

    column: name of the documents' ids in the files.
    """
    state, actions = _state(table), list[dict[str, Any]]()
    for path, add in state.items():
        names = pq.read_table(table / unquote(path), columns=[column])[column].to_pylist()
        gone = {row for row, name in enumerate(names) if name in doc_ids}
        before = add.get("deletionVector")
        if before is not None:
            gone |= _rows(Path(unquote(before["pathOrInlineDv"].removeprefix("file://"))))
        if gone and (before is None or len(gone) > before["cardinality"]):
            known = ("path", "partitionValues", "size", "deletionVector")  # a file is known by path and vector
            actions.append({"remove": {key: add[key] for key in known if key in add} | _REMOVED})
            actions.append({"add": add | {"dataChange": True, "deletionVector": _vector(table, sorted(gone))}})
    mapped = ["columnMapping"] * ("delta.columnMapping.mode" in DeltaTable(table).metadata().configuration)
    features = {key: [*named, *mapped] for key, named in _FEATURES.items()}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    commit = [{"commitInfo": {"operation": "DELETE"}}, {"protocol": protocol}, *actions]
    file = table / "_delta_log" / f"{DeltaTable(table).version() + 1:020d}.json"
    file.write_text("\n".join(map(json.dumps, commit)) + "\n")


def write_mapped(table: Path, rows: pa.Table, mode: str, partition_by: Sequence[str] = ()) -> None:
    """Write a table whose columns have other names in its files, `column-1` and so on (protocol, "Column Mapping").

    deltalake reads such tables and makes none. mode: whether names or ids tell columns.
    """
    physical = {name: f"column-{number}" for number, name in enumerate(rows.column_names, 1)}
    fields = [
        pa.field(physical[name], kind, metadata={"PARQUET:field_id": str(number)})
        for number, (name, kind) in enumerate(zip(rows.column_names, rows.schema.types, strict=True), 1)
    ]
    written = pa.table(rows.columns, schema=pa.schema(fields))
    write_deltalake(table, written, partition_by=[physical[name] for name in partition_by])
    log = table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (described,) = [action["metaData"] for action in actions if "metaData" in action]
    schema = json.loads(described["schemaString"])
    for number, (field, name) in enumerate(zip(schema["fields"], rows.column_names, strict=True), 1):
        mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        field |= {"name": name, "metadata": mapping}
    described["schemaString"], described["partitionColumns"] = json.dumps(schema), [*partition_by]
    described["configuration"] = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": str(len(fields))}
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")


def change_schema(table: Path, change: Callable[[list[dict[str, Any]]], object], features: Sequence[str] = ()) -> None:
    """Commit a schema whose fields a function changed, and features that readers of it need."""
    described: dict[str, Any] = {}
    for file in sorted((table / "_delta_log").glob("*.json")):
        for line in file.read_text().splitlines():
            described = json.loads(line).get("metaData", described)
    schema = json.loads(described["schemaString"])
    change(schema["fields"])
    named = {"readerFeatures": [*features], "writerFeatures": [*features]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **named} if features else None
    commit = [
        {"metaData": described | {"schemaString": json.dumps(schema)}},
        *([{"protocol": protocol}] if protocol else []),
    ]
    file = table / "_delta_log" / f"{DeltaTable(table).version() + 1:020d}.json"
    file.write_text("\n".join(map(json.dumps, commit)) + "\n")


_REMOVED = {"dataChange": True, "deletionTimestamp": 1, "extendedFileMetadata": True}


def forget_commits(table: Path) -> None:
    """Keep a checkpoint and the newest commit of a table's log alone, as its retention does after weeks."""
    DeltaTable(table).create_checkpoint()
    *old, _ = sorted((table / "_delta_log").glob("*.json"))
    for commit in old:
        commit.unlink()


def _state(table: Path) -> dict[str, Any]:
    """Actions of the files that count, by their paths in the log."""
    state: dict[str, Any] = {}
    for file in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                state.pop(action["remove"]["path"], None)
        for action in actions:
            if "add" in action:
                state[action["add"]["path"]] = action["add"]
    return state


def claim_rows(table: Path, upper: int) -> None:
    """Let every vector of a local table delete the row upper · 2^32 and no other; the log does not say so."""
    for file in table.glob("deletion_vector_*.bin"):
        _write(file, [0], upper)


def lose_rows(table: Path) -> None:
    """Let every vector of a local table delete its first row alone, in a file as large as before."""
    for file in table.glob("deletion_vector_*.bin"):
        rows, size = sorted(_rows(file)), file.stat().st_size
        _write(file, rows[:1], 0, 2 * len(rows[1:]))
        assert file.stat().st_size == size


def _vector(table: Path, rows: list[int]) -> dict[str, Any]:
    """Write a file with one vector, and describe it."""
    file = table / f"deletion_vector_{uuid.uuid4()}.bin"
    body = _write(file, rows, 0)
    where = {"storageType": "p", "pathOrInlineDv": file.absolute().as_uri(), "offset": 1}
    return where | {"sizeInBytes": len(body), "cardinality": len(rows)}


def _write(file: Path, rows: list[int], upper: int, spare: int = 0) -> bytes:
    """Write a file with one vector, whose rows lie upper · 2^32 higher, and spare bytes, and return the vector."""
    body = struct.pack("<iqI", _MAGIC, 1, upper) + _bitmap(rows) + bytes(spare)
    file.write_bytes(bytes([_VERSION]) + struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body)))
    return body


def _bitmap(rows: list[int]) -> bytes:
    """Rows below 2^16 as a Roaring bitmap of one array (RoaringFormatSpec, "General layout")."""
    assert rows[-1] < 2**16
    head = struct.pack("<IIHHI", _NO_RUNS, 1, 0, len(rows) - 1, 16)
    return head + struct.pack(f"<{len(rows)}H", *rows)


def _rows(file: Path) -> set[int]:
    """Rows of a file that `_vector` wrote."""
    body = file.read_bytes()[5 + struct.calcsize("<iqI") : -4]
    (count,) = struct.unpack_from("<H", body, 10)
    return set(struct.unpack_from(f"<{count + 1}H", body, 16))
