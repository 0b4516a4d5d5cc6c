"""One flagged document found again: its row, its scan, and its text, which must be what was scanned."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from scanner.errors import FileFault, Refused, ScanFailed
from scanner.input.columns import Columns
from scanner.input.documents import Reader, Unreadable
from scanner.input.files import list_files
from scanner.results import flagged, scans
from scanner.results.queries import ask, verdicts

_SHOWN = 10


@dataclass(frozen=True)
class Case:
    """A flagged document: a row of schemas.tables.VERDICTS with `audit`, and that of its scan in SCANS, if it ended."""

    row: Mapping[str, Any]
    scan: Mapping[str, Any] | None

    @property
    def where(self) -> str:
        """File and row, as a document is named to commands."""
        return f"{self.row['path']}:{self.row['row']}"


def find_case(results: str, rate: float, document: str) -> Case:
    """Find a flagged document by `PATH:ROW`, or by its id where no place of that name is flagged.

    Raises:
        Refused: none is flagged that is named so, or several are; says which, or whether it was read at all.
    """
    wanted = _named(document)
    rows = ask(results, lambda: flagged(results, rate, wanted).collect())
    if not len(rows):
        read_at_all = ask(results, lambda: verdicts(results).filter(wanted).head(1).collect())
        why = "it was read and is not flagged" if len(read_at_all) else "no document of that name was read"
        raise Refused(
            f"document {document!r}: {why}; name one by its id or as PATH:ROW (`brickscan flagged` lists them)"
        )
    place = rows.filter(pl.concat_str("path", pl.lit(":"), "row") == document)
    rows = place if len(place) else rows  # else whoever may choose an id could keep another's flag from being found
    if len(rows) > 1:
        where = ", ".join(f"{row['path']}:{row['row']}" for row in rows.head(_SHOWN).iter_rows(named=True))
        raise Refused(f"document {document!r}: {len(rows)} flagged documents have this id; choose one: {where}")
    row = rows.row(0, named=True)
    of_scan = ask(results, lambda: scans(results).filter(pl.col("scan_id") == row["scan_id"]).collect())
    return Case(row, of_scan.row(0, named=True) if len(of_scan) else None)


def _named(document: str) -> pl.Expr:
    path, _, row = document.rpartition(":")
    by_id = pl.col("doc_id") == document
    if not path or not (row.isascii() and row.isdigit()) or len(row) > 18:
        return by_id
    return by_id | ((pl.col("path") == path) & (pl.col("row") == int(row)))


def stored_text(case: Case, columns: Columns, locations: Sequence[str], reader: Reader) -> bytes:
    """The text as its file holds it today. Arguments and errors: as of `stored_row`."""
    return bytes(stored_row(case, Columns(columns.text, None, None, None), locations, reader)["text"])


def stored_row(case: Case, columns: Columns, locations: Sequence[str], reader: Reader) -> Mapping[str, Any]:
    """The row of schemas.tables.DOCUMENTS as its file holds it today.

    Args:
        case: the document.
        columns: names of the input's columns.
        locations: paths of the input; options in a URI of theirs open a file under it too.
        reader: reads rows that are asked for in their order without decoding what is before them again.

    Raises:
        Refused: the file or the row is gone, cannot be read, or holds another text than was scanned.
    """
    row = case.row["row"]
    try:
        (file,) = list_files([_with_options(case.row["path"], locations)])
        (part,) = reader.read(file, columns, row, row + 1)
    except FileFault as fault:
        raise Refused(f"{case.where}: the text cannot be read any more ({fault.detail})") from None
    except (Refused, ScanFailed) as error:
        raise Refused(f"{case.where}: the text cannot be read any more ({error})") from None
    if isinstance(part, Unreadable):
        raise Refused(f"{case.where}: the text cannot be read any more ({part.detail})")
    found: Mapping[str, Any] = part.to_pylist()[0]
    raw = found["text"]
    if raw is None or hashlib.sha256(raw).digest() != case.row["text_sha256"]:
        raise Refused(f"{case.where}: another text stands there now than the one that was scanned")
    return found


def _with_options(path: str, locations: Sequence[str]) -> str:
    """A path as tables have it, with the options of the URI that it was found under."""
    for location in locations:
        if "://" in location and path.startswith(urlsplit(location)._replace(query="").geturl()):
            query = urlsplit(location).query
            return f"{path}?{query}" if query else path
    return path
