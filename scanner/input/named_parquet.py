"""Parquet files that somebody names on a command line, opened as a scan opens its input."""

import atexit
import functools
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.errors import FileFault, Refused, in_a_line
from scanner.input.columns import Columns
from scanner.input.files import InputFile
from scanner.input.inspector import Inspector
from scanner.input.shards import cut


def open_parquet(path: Path, name: str) -> pq.ParquetFile:
    """A Parquet file whose footer was found sound by a process of its own, since a footer can end its reader.

    Args:
        path: a local path.
        name: what the file is called in the error, such as `--file users.parquet`.

    Raises:
        Refused: it cannot be read, is no regular file, or its footer contradicts itself or claims too much.
    """
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
        file = InputFile(real, real, real, status.st_size, status.st_mtime_ns)
        cut(_inspector().inspect(file, Columns(None, None, None, None)))
        return pq.ParquetFile(real)
    except FileFault as fault:
        raise Refused(f"{name}: cannot be read as Parquet ({fault.detail})") from None
    except OSError as error:
        raise Refused(f"{name}: cannot be read as Parquet ({error.strerror or in_a_line(error)})") from None
    except pa.ArrowException as error:
        raise Refused(f"{name}: cannot be read as Parquet ({in_a_line(error)})") from None


@functools.cache
def _inspector() -> Inspector:
    """One for all files of a command."""
    inspector = Inspector()
    atexit.register(inspector.close)
    return inspector
