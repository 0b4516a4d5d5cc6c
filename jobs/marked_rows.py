"""Rows that `brickscan mark` writes: kept batch by batch while it runs, and one whole Parquet file at the end."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.errors import Refused
from scanner.storage.whole import write_whole

MARKED = pa.schema(
    [
        pa.field("key_id", pa.string(), nullable=False),
        pa.field("user_id", pa.string()),  # null when a message was given that no user holds
        pa.field("message", pa.int64(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),  # the completion alone
        pa.field("tokens", pa.int64(), nullable=False),  # tokens that the model wrote; the text may give others
    ]
)
"""Columns that `brickscan mark` writes: one row a completion, with the truth."""

Row = tuple[Any, ...]


class KeptRows:
    """Rows of MARKED on disk, a batch at a time, beside the Parquet file that they become.

    The file OUT.unfinished has a line of JSON for the call and one for each batch, so that a batch is there whole or
    not at all, and nobody takes the file for Parquet. Made by `kept_rows`.
    """

    def __init__(self, out: Path, file: BinaryIO, batches: list[list[Row]]) -> None:
        self._out, self._file, self._batches = out, file, batches

    @property
    def batches(self) -> int:
        """Number of batches on disk."""
        return len(self._batches)

    @property
    def rows(self) -> list[Row]:
        """Rows of all batches, in order."""
        return [row for batch in self._batches for row in batch]

    def add(self, batch: Sequence[Row]) -> None:
        """Bring a batch to the disk. Raises OSError."""
        self._file.write(json.dumps(batch).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._batches.append(list(batch))

    def finish(self) -> None:
        """Write OUT, which is whole or not there, and remove the file beside it. Raises OSError."""
        columns = [dict(zip(MARKED.names, row, strict=True)) for row in self.rows]
        table = pa.Table.from_pylist(columns, schema=MARKED)
        write_whole(self._out, lambda file: pq.write_table(table, file))
        unfinished(self._out).unlink()


def unfinished(out: Path) -> Path:
    """The file of an output's rows while they are not complete."""
    return out.with_name(f"{out.name}.unfinished")


@contextlib.contextmanager
def kept_rows(out: Path, call: Sequence[Any]) -> Iterator[KeptRows]:
    """Open the rows that an interrupted call has left beside `out`, or begin with none.

    Args:
        out: the Parquet file to be.
        call: all that decides the rows, as JSON values; its digest stands in the file.

    Raises:
        Refused: another call left the rows, or a running one writes them.
    """
    path, begun = unfinished(out), {"call": hashlib.sha256(json.dumps(call).encode()).hexdigest()}
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(
                f"--out {out}: another `brickscan mark` writes it now; wait for it, or name another"
            ) from None
        file.seek(0)
        written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        file.truncate(len(whole))  # a line that was cut off goes
        if not whole:
            file.write(json.dumps(begun).encode() + b"\n")
        head, *batches = [json.loads(line) for line in whole.splitlines()] or [begun]
        if head != begun:
            raise Refused(
                f"--out {out}: {path.name} beside it has the completions of an interrupted call with other options, "
                "prompts, users or model; call it as before to go on, or remove that file to begin anew"
            )
        kept = KeptRows(out, file, [[tuple(row) for row in batch] for batch in batches])
        try:
            yield kept
        finally:
            if not kept.batches:
                path.unlink(missing_ok=True)
