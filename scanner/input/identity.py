"""Whose document could not be scored: as much of its id, its account and its text as can be read."""

import hashlib
from typing import NamedTuple

import pyarrow as pa

from scanner.errors import FileFault
from scanner.input.columns import Columns
from scanner.input.documents import Unreadable, read
from scanner.input.files import InputFile


class Identity(NamedTuple):
    """Fields that identify a document, null where unreadable. text_sha256: digest of the text as it is stored."""

    doc_id: str | None = None
    account_id: str | None = None
    text_sha256: bytes | None = None


UNKNOWN = Identity()


def identities(file: InputFile, columns: Columns, start: int, stop: int) -> list[Identity]:
    """Ids and accounts of rows start … stop−1, each column read by itself, since others may be corrupt; no text."""
    nothing = Columns(None, None, None, None)
    ids = _strings(file, nothing._replace(id=columns.id), "doc_id", start, stop)
    accounts = _strings(file, nothing._replace(account=columns.account), "account_id", start, stop)
    return [Identity(*both) for both in zip(ids, accounts, strict=True)]


def identify(file: InputFile, columns: Columns, row: int) -> Identity:
    """Ids and account of one row, with its text's digest. It may cost this process as much as reading the text."""
    (found,) = identities(file, columns, row, row + 1)
    try:
        for part in read(file, Columns(columns.text, None, None, None), row, row + 1):
            if not isinstance(part, Unreadable) and part["text"][0].is_valid:
                found = found._replace(text_sha256=hashlib.sha256(part["text"][0].as_buffer()).digest())
    except (FileFault, MemoryError):
        pass
    return found


def _strings(file: InputFile, columns: Columns, field: str, start: int, stop: int) -> list[str | None]:
    """One field of DOCUMENTS; null where it cannot be read."""
    found: list[str | None] = [None] * (stop - start)
    if not any(columns.names.values()):
        return found
    try:
        for part in read(file, columns, start, stop):
            if isinstance(part, Unreadable):
                found[part.start - start : part.stop - start] = [None] * (part.stop - part.start)
            else:
                first = part["row"][0].as_py() - start
                found[first : first + len(part)] = part[field].to_pylist()
    except (FileFault, MemoryError, pa.ArrowException):
        pass
    return found
