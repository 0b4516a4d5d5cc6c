"""Deletion vectors of a Delta table, read in a process that may end over them.

A vector of 40 bytes may claim more rows than memory holds; deltalake makes a list of as many and ends its process.
"""

import base64
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from scanner.errors import ScanFailed, in_a_line
from scanner.input.inspecting import MEMORY, limit
from scanner.input.tables import pack_rows


def read_deletion_vectors(location: str, version: int) -> dict[str, bytes]:
    """Deleted rows of each file of a table that has any, by the file's URI, as `pack_rows` packs them.

    Args:
        location: of the table, a folder or URI.
        version: of the table.

    Raises:
        ScanFailed: a vector is damaged or claims rows beyond what fits into memory.
    """
    request = json.dumps([location, version]).encode()
    done = subprocess.run(
        [sys.executable, "-m", "scanner.input.deletion_vectors"], input=request, capture_output=True, check=False
    )
    if done.returncode:
        how = f"ends by {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"exits {done.returncode}"
        raise ScanFailed(
            f"input.paths: deletion vectors of Delta table {location!r} cannot be read: the process that reads them "
            f"{how}, with {MEMORY:,} bytes of memory allowed; rewrite these files at the source (REORG TABLE … APPLY "
            "(PURGE)), so that no deleted row is read"
        )
    answer = json.loads(done.stdout)
    if isinstance(answer, str):
        raise ScanFailed(f"input.paths: deletion vectors of Delta table {location!r} cannot be read: {answer}")
    return {uri: base64.b64decode(rows) for uri, rows in answer.items()}


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
    limit()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # a trace may hold what a log says
    sys.stdout.write(json.dumps(_answer(*json.load(sys.stdin))))
