"""Prompts that commands are given in files: a line each, or Parquet, which may name the user of each."""

import io
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from jobs.text import complain
from scanner.errors import Refused, in_a_line
from scanner.input.named_parquet import open_parquet
from scanner.storage.named import MOST_ROWS, read_named

if TYPE_CHECKING:
    import polars as pl

TOLD = 10
"""Most left-out prompts whose numbers are shown."""


class Asked(NamedTuple):
    """Prompts, and the user of each: ids, or None where a file has no column `user_id`."""

    prompts: list[str]
    users: list[Any] | None


def read_marked(path: Path) -> "pl.DataFrame":
    """Columns key_id, message and text of texts that `brickscan mark` wrote, which --from named.

    Raises:
        Refused: the file cannot be read as such, or holds no text.
    """
    import polars as pl

    names = ["key_id", "message", "text"]
    try:
        texts = pl.DataFrame(open_parquet(path, f"--from {path}").read(columns=names)).select(names).drop_nulls()
    except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise Refused(f"--from {path}: cannot be read as what `brickscan mark` writes ({in_a_line(error)})") from None
    if texts.is_empty():
        raise Refused(f"--from {path}: holds no text; give texts that `brickscan mark` wrote")
    return texts


def read_prompts(path: Path, field: str = "--prompts") -> list[str]:
    """The prompts of a file alone; see `read_asked`."""
    return read_asked(path, field).prompts


def read_asked(path: Path, field: str = "--prompts") -> Asked:
    """The prompts of a file: the lines of a text file, or the column `prompt` of a Parquet file, and its `user_id`s.

    Blank prompts and nulls are left out; stderr shows how many, and where the first of them are.

    Args:
        path: the file's path.
        field: the option that named it, for the error.

    Raises:
        Refused: the file cannot be read, or holds no prompt.
    """
    rows = path.suffix == ".parquet"
    try:
        parquet = open_parquet(path, f"{field} {path}") if rows else None
        names = parquet.schema_arrow.names if parquet else []
        if rows and "prompt" not in names:
            raise Refused(f"{field} {path}: has no column 'prompt'; it has {', '.join(map(repr, names))}")
        users = None
        if parquet:
            columns = parquet.read(columns=[name for name in ("prompt", "user_id") if name in names])
            found = columns.column("prompt").to_pylist()
            users = columns.column("user_id").to_pylist() if "user_id" in names else None
        else:
            with io.TextIOWrapper(io.BytesIO(read_named(path, MOST_ROWS)), encoding="utf-8") as lines:
                found = [line.removesuffix("\n") for line in lines]
    except (OSError, UnicodeDecodeError, KeyError, pa.ArrowException) as error:
        raise Refused(f"{field} {path}: cannot be read as prompts: {in_a_line(error)}") from None
    written = [isinstance(prompt, str) and bool(prompt.strip()) for prompt in found]
    prompts = list(compress(found, written))
    if not prompts:
        raise Refused(f"{field} {path}: holds no prompt; write one a line, or a Parquet column 'prompt' of strings")
    blank = [number for number, prompt in enumerate(written, 0 if rows else 1) if not prompt]
    if blank:
        what = "null or blank rows (counted from 0)" if rows else "blank lines (counted from 1)"
        first = ", ".join(map(str, blank[:TOLD])) + (", …" if len(blank) > TOLD else "")
        complain(f"prompts {path}: {len(blank)} of {len(found)} left out, {what}: {first}")
    return Asked(prompts, None if users is None else list(compress(users, written)))
