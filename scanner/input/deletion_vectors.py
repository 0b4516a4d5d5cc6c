"""Deletion vectors of a Delta table, read in a process that may end over them.

A vector of 40 bytes may claim more rows than memory holds; deltalake makes a list of as many and ends its process.
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
"""Seconds without CPU time after which the process waits for what never comes, as a FIFO that a log names."""

CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
"""Names of checkpoints: the version, and how many parts there are."""

_LEAVES = ("add.path", "add.deletionVector.cardinality", "sidecar.path")


class VectorRows(NamedTuple):
    """Rows that a vector takes away: a set, as `pack_rows` packs it, and how many."""

    packed: bytes
    number: int


class DeletionVectors(NamedTuple):
    """Deletion vectors of a table.

    rows: rows that are gone, by the URIs of its files.
    checkpoint: version of the checkpoint that was read, -1: none.
    stated: how many rows each vector takes away according to that, by its file's path in the log.
    """

    rows: dict[str, VectorRows]
    checkpoint: int
    stated: dict[str, int]


def read_deletion_vectors(location: str, opened: str, version: int, *, checkpoint: bool) -> DeletionVectors:
    """Read the deleted rows of each file of a table that has any.

    Args:
        location: path or URI of the table.
        opened: the table's folder, as deltalake reads it.
        version: version of the table.
        checkpoint: whether to read the newest checkpoint too, as the log has not all of its commits any more.

    Raises:
        ScanFailed: a vector is damaged, claims rows beyond what fits into memory, or lies where nothing is to be read;
            a checkpoint cannot be read.
    """
    code, out = _ended(json.dumps([opened, version, checkpoint]).encode())
    if code is None or code:
        how = f"waits for {STALL_SECONDS:g} seconds and reads nothing" if code is None else f"exits {code}"
        how = how if code is None or code > 0 else f"ends by {signal.Signals(-code).name}"
        raise ScanFailed(
            f"input.paths: deletion vectors of Delta table {location!r} cannot be read: the process that reads them "
            f"{how}, with {FOOTER_MEMORY:,} bytes of memory allowed; rewrite these files at the source (REORG TABLE … "
            "APPLY (PURGE)), so that no deleted row is read"
        )
    answer = json.loads(out)
    if isinstance(answer, str):
        raise ScanFailed(f"input.paths: deletion vectors of Delta table {location!r} cannot be read: {answer}")
    rows, *checkpoint_fields = answer
    return DeletionVectors(
        {uri: VectorRows(base64.b64decode(packed), count) for uri, (packed, count) in rows.items()}, *checkpoint_fields
    )


def _ended(request: bytes) -> tuple[int | None, bytes]:
    """Have a process read vectors, and return its exit status and what it wrote.

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
    """Return the CPU time of a process in ticks of the kernel (proc(5): utime and stime); 0 where it is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _answer(location: str, version: int, checkpoint: bool) -> list[object] | str:
    """Return the fields of DeletionVectors, each vector as packed rows and their number, or what is wrong with one."""
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
        Its version, -1: there is none; and the rows that vectors take away by it, by paths in the log.
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
    """Read what a file of a checkpoint names.

    Returns:
        Stated rows of vectors by paths of files, and other files of the checkpoint.
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
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # a trace may hold what a log says
    sys.stdout.write(json.dumps(_answer(*json.load(sys.stdin))))
