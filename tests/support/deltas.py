"""Deletion vectors, made by hand, since deltalake reads them and writes none (Delta protocol, "Deletion Vectors")."""

import json
import struct
import uuid
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable

_MAGIC, _NO_RUNS, _VERSION = 1681511377, 12346, 1
_FEATURES = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}


def delete_by_vector(table: Path, doc_ids: Collection[str]) -> None:
    """Delete documents of a local table by one commit that leaves every data file as it is."""
    state, actions = _state(table), list[dict[str, Any]]()
    for path, add in state.items():
        names = pq.read_table(table / unquote(path), columns=["doc_id"])["doc_id"].to_pylist()
        gone = {row for row, name in enumerate(names) if name in doc_ids}
        before = add.get("deletionVector")
        if before is not None:
            gone |= _rows(Path(unquote(before["pathOrInlineDv"].removeprefix("file://"))))
        if gone and (before is None or len(gone) > before["cardinality"]):
            known = ("path", "partitionValues", "size", "deletionVector")  # a file is known by path and vector
            actions.append({"remove": {key: add[key] for key in known if key in add} | _REMOVED})
            actions.append({"add": add | {"dataChange": True, "deletionVector": _vector(table, sorted(gone))}})
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **_FEATURES}
    commit = [{"commitInfo": {"operation": "DELETE"}}, {"protocol": protocol}, *actions]
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
