"""Read deletion vectors of a Delta table in another process, because a bad vector can end the process that reads it.

A vector of 40 bytes may claim more rows than fit into memory. deltalake makes a list of so many, and ends its process.
"""

import base64
import io
import json
import os
import posixpath
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from scanner.errors import ScanFailed, in_a_line
from scanner.input.delta_log import actions_of
from scanner.input.inspector import FOOTER_MEMORY, limit_memory
from scanner.input.tables import LOG_OF_DELTA, pack_rows
from scanner.storage.locations import filesystem_of

STALL_SECONDS = 120.0
"""Seconds without CPU time after which the process is taken to wait for ever, for example for a FIFO in a log."""

CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
"""Names of checkpoints: the version, and the number of parts."""

_LEAVES = ("add.path", "add.deletionVector.cardinality", "sidecar.path")


class VectorRows(NamedTuple):
    """Rows that a vector deletes: a set, packed by `pack_rows`, and their number."""

    packed: bytes
    number: int


class DeletionVectors(NamedTuple):
    """Deletion vectors of a table.

    rows: deleted rows, by the URIs of its files.
    checkpoint: version of the checkpoint that was read. −1: none.
    stated: number of rows that each vector deletes according to the checkpoint, by its file's path in the log.
    """

    rows: dict[str, VectorRows]
    checkpoint: int
    stated: dict[str, int]


def read_deletion_vectors(location: str, opened: str, version: int, *, checkpoint: bool) -> DeletionVectors:
    """Read the deleted rows of each file of a table that has any.

    Args:
        location: path or URI of the table.
        opened: the table's folder in the form that deltalake reads.
        version: version of the table.
        checkpoint: whether to read the newest checkpoint too, because the log lacks some of its commits.

    Raises:
        ScanFailed: a vector is damaged, claims more rows than fit into memory, or cannot be read. Or a checkpoint
            cannot be read.
    """
    code, out = _ended(json.dumps([opened, version, checkpoint]).encode())
    if code is None or code:
        how = f"waits for {STALL_SECONDS:g} seconds and reads nothing" if code is None else f"exits {code}"
        how = how if code is None or code > 0 else f"ends by {signal.Signals(-code).name}"
        raise ScanFailed(
            f"input.paths: deletion vectors of Delta table {location!r} cannot be read: the process that reads them "
            f"{how}, with {FOOTER_MEMORY:,} bytes of memory allowed; rewrite these files at the source (REORG TABLE … "
            "APPLY (PURGE)) so that no deleted row is read"
        )
    answer = json.loads(out)
    if isinstance(answer, str):
        raise ScanFailed(f"input.paths: deletion vectors of Delta table {location!r} cannot be read: {answer}")
    rows, *checkpoint_fields = answer
    return DeletionVectors(
        {uri: VectorRows(base64.b64decode(packed), count) for uri, (packed, count) in rows.items()}, *checkpoint_fields
    )


def _ended(request: bytes) -> tuple[int | None, bytes]:
    """Have a process read vectors. Return its exit status and its output.

    The status is None if the process stalled and was ended.
    """
    with subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            last_ticks, waiting = -1, request
            while True:
                try:
                    out, _ = process.communicate(waiting, STALL_SECONDS)
                    return process.returncode, out
                except subprocess.TimeoutExpired:
                    ticks, waiting = _cpu_ticks(process.pid), b""
                    if ticks == last_ticks:
                        return None, b""
                    last_ticks = ticks
        finally:
            process.kill()


def _cpu_ticks(pid: int) -> int:
    """Return the CPU time of a process in ticks of the kernel (proc(5): utime and stime). 0: unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _answer(location: str, version: int, checkpoint: bool) -> list[object] | str:
    """Return the fields of DeletionVectors, each vector as packed rows and their number. Or return a vector's fault."""
    deleted = {}
    try:
        for batch in DeltaTable(location, version=version).deletion_vectors():
            rows = pa.record_batch(batch)
            for uri, selection in zip(rows["filepath"].to_pylist(), rows["selection_vector"], strict=True):
                gone = ~np.asarray(selection.values, np.bool_)
                deleted[uri] = base64.b64encode(pack_rows(gone)).decode(), int(gone.sum())
        return [deleted, *(_stated(location, version) if checkpoint else (-1, {}))]
    except (DeltaError, OSError, pa.ArrowException, ValueError, KeyError, TypeError, AttributeError) as error:
        return in_a_line(error)


def _stated(location: str, version: int) -> tuple[int, dict[str, int]]:
    """Read the newest checkpoint up to a version.

    Returns:
        Its version. −1: there is none.
        The number of rows that vectors delete according to it, by paths in the log.
    """
    # A checkpoint is one file, or several, or names others (Delta protocol, "Checkpoints").
    filesystem, inner = filesystem_of(location)
    log, parts = posixpath.join(inner, LOG_OF_DELTA), dict[tuple[int, int], list[str]]()
    for item in filesystem.get_file_info(fs.FileSelector(log)):
        if (match := CHECKPOINT.fullmatch(item.base_name)) and int(match[1]) <= version:
            parts.setdefault((int(match[1]), int(match[2] or 1)), []).append(item.path)
    whole = [key for key, paths in parts.items() if len(paths) >= key[1]]
    if not whole:
        return -1, {}
    stated, todo = dict[str, int](), [*parts[max(whole)]]
    while todo:
        adds, sidecars = _actions(filesystem, todo.pop())
        stated |= adds
        todo += [posixpath.join(log, "_sidecars", posixpath.basename(path)) for path in sidecars]
    return max(whole)[0], stated


def _actions(filesystem: fs.FileSystem, path: str) -> tuple[dict[str, int], list[str]]:
    """Read the entries of a file of a checkpoint.

    Returns:
        Stated numbers of deleted rows, by paths of files.
        Other files of the checkpoint.
    """
    with filesystem.open_input_file(path) as file:
        if path.endswith(".json"):
            actions = [*actions_of(io.BufferedReader(file), b"add", b"sidecar")]
            adds = [action["add"] for action in actions if "add" in action]
            vectors = {add["path"]: add["deletionVector"] for add in adds if add.get("deletionVector") is not None}
            sidecars = [action["sidecar"]["path"] for action in actions if "sidecar" in action]
            return {path: int(vector["cardinality"]) for path, vector in vectors.items()}, sidecars
        parquet = pq.ParquetFile(file)
        leaves = {parquet.schema.column(i).path for i in range(len(parquet.schema))}
        stated, others = dict[str, int](), list[str]()
        for batch in parquet.iter_batches(columns=[leaf for leaf in _LEAVES if leaf in leaves]):
            for row in batch.to_pylist():
                add, sidecar = row.get("add") or {}, row.get("sidecar") or {}
                if (add.get("deletionVector") or {}).get("cardinality") is not None:
                    stated[add["path"]] = add["deletionVector"]["cardinality"]
                others += [sidecar["path"]] if sidecar.get("path") is not None else []
        return stated, others


if __name__ == "__main__":
    limit_memory()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # a trace may contain text from a log
    sys.stdout.write(json.dumps(_answer(*json.load(sys.stdin))))
