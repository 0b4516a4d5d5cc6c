"""Deletion vectors of a Delta table, read in a process that may end over them.

A vector of 40 bytes may claim more rows than memory holds; deltalake makes a list of as many and ends its process.
"""

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from scanner.errors import ScanFailed, in_a_line
from scanner.input.inspector import MEMORY, limit_memory
from scanner.input.tables import pack_rows

STALL_SECONDS = 120.0
"""Seconds without CPU time after which the process waits for what never comes, as a FIFO that a log names."""


def read_deletion_vectors(location: str, version: int) -> dict[str, bytes]:
    """Deleted rows of each file of a table that has any, by the file's URI, as `pack_rows` packs them.

    Args:
        location: of the table, a folder or URI.
        version: of the table.

    Raises:
        ScanFailed: a vector is damaged, claims rows beyond what fits into memory, or lies where nothing is to be read.
    """
    code, out = _ended(json.dumps([location, version]).encode())
    if code is None or code:
        how = f"waits for {STALL_SECONDS:g} seconds and reads nothing" if code is None else f"exits {code}"
        how = how if code is None or code > 0 else f"ends by {signal.Signals(-code).name}"
        raise ScanFailed(
            f"input.paths: deletion vectors of Delta table {location!r} cannot be read: the process that reads them "
            f"{how}, with {MEMORY:,} bytes of memory allowed; rewrite these files at the source (REORG TABLE … APPLY "
            "(PURGE)), so that no deleted row is read"
        )
    answer = json.loads(out)
    if isinstance(answer, str):
        raise ScanFailed(f"input.paths: deletion vectors of Delta table {location!r} cannot be read: {answer}")
    return {uri: base64.b64decode(rows) for uri, rows in answer.items()}


def _ended(request: bytes) -> tuple[int | None, bytes]:
    """How a process that reads vectors ended, None: it stalled and was ended, and what it wrote."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            before, waiting = -1, request
            while True:
                try:
                    out, _ = process.communicate(waiting, STALL_SECONDS)
                    return process.returncode, out
                except subprocess.TimeoutExpired:
                    now, waiting = _cpu_ticks(process.pid), b""
                    if now == before:
                        return None, b""
                    before = now
        finally:
            process.kill()


def _cpu_ticks(pid: int) -> int:
    """CPU time of a process in ticks of the kernel (proc(5): utime and stime); 0 where nobody tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _answer(location: str, version: int) -> dict[str, str] | str:
    """Packed rows by the URIs of files, or what is wrong with a vector."""
    deleted = {}
    try:
        for batch in DeltaTable(location, version=version).deletion_vectors():
            rows = pa.record_batch(batch)
            for uri, kept in zip(rows["filepath"].to_pylist(), rows["selection_vector"], strict=True):
                deleted[uri] = base64.b64encode(pack_rows(~np.asarray(kept.values, np.bool_))).decode()
    except DeltaError as error:
        return in_a_line(error)
    return deleted


if __name__ == "__main__":
    limit_memory()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # a trace may hold what a log says
    sys.stdout.write(json.dumps(_answer(*json.load(sys.stdin))))
