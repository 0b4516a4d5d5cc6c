"""Read the text of a flag again, from its input file or from the texts that a scan kept of its flags.

If the input file is gone or was changed, the kept text is read (`[evidence] keep_text`).
"""

import functools
import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import polars as pl
import pyarrow as pa

from scanner.errors import FileFault, Refused, ScanFailed
from scanner.evidence.case import FlagCase
from scanner.input.columns import Columns
from scanner.input.documents import Reader, Unreadable
from scanner.input.files import InputFile, InputTables
from scanner.input.inspector import Inspector
from scanner.input.shards import MAX_ROWS
from scanner.results.queries import ask
from scanner.results.transactions import has_table, read_whole

OF_FILE = {"doc_id": "id", "account_id": "account", "created_at": "time"}
"""Columns beside the text, each with its name in a configuration."""


class StoredText(NamedTuple):
    """A text, byte for byte the one that was scanned.

    row: its row of schemas.tables.DOCUMENTS, as its file holds it today. None: the text is the one that the scan kept.
    not_from_file: why the text is the one that the scan kept. None: it is from the file.
    """

    text: bytes
    row: Mapping[str, Any] | None
    not_from_file: str | None = None


class StoredTexts:
    """Reads texts of flags from their files, or as the scan kept them if the file is gone or was changed.

    As in a scan, a separate process reads a file's footer first, because the file may have changed into one whose
    footer crashes its reader. If texts are requested in the order of paths and rows, no file is inspected twice, and no
    rows are decoded twice.

    Args:
        columns: columns of the input.
        locations: paths of the input. The options of a URI apply to the files under it too.
        results: folder or URI of the results.
        text_id: makes the keyed digest of a text's SHA-256, for documents that are not flagged. None: all are flagged.
    """

    def __init__(
        self, columns: Columns, locations: Sequence[str], results: str, text_id: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._text_id = text_id
        self._columns, self._locations, self._results, self._kept = columns, locations, results, KeptTexts(results)
        self._tables = InputTables(locations)
        self._reader, self._inspector = Reader(), Inspector()
        self._sound: InputFile | None = None  # the file that was inspected last
        weakref.finalize(self, self._inspector.close)

    def of(self, case: FlagCase) -> StoredText:
        """Return the text of a flag.

        Raises:
            Refused: the file or the row is gone, cannot be read, or has another text than was scanned, and no scan kept
                the text.
        """
        try:
            row = self._in_its_file(case)
            return StoredText(bytes(row["text"]), row)
        except Refused as error:
            text = self._kept.of(case.row)
            if text is None or not self._is_the_scanned(text, case):
                raise
            return StoredText(text, None, str(error))

    def _in_its_file(self, case: FlagCase) -> Mapping[str, Any]:
        try:
            part = self._read(_with_options(case.row["path"], self._locations), case.row["row"])
        except FileFault as fault:
            raise Refused(f"{case.where}: the text can no longer be read ({fault.detail})") from None
        except (Refused, ScanFailed) as error:
            raise Refused(f"{case.where}: the text can no longer be read ({error})") from None
        if isinstance(part, Unreadable):
            raise Refused(f"{case.where}: the text can no longer be read ({part.detail})")
        row: Mapping[str, Any] = part.to_pylist()[0]
        if not self._is_the_scanned(row["text"], case):
            raise Refused(f"{case.where}: the text there now is not the one that was scanned")
        return row

    def _is_the_scanned(self, text: bytes | None, case: FlagCase) -> bool:
        if text is None:
            return False
        digest = hashlib.sha256(text).digest()
        if self._text_id is not None and case.row["text_sha256"] is None:  # not flagged
            return bool(self._text_id(digest) == case.row["text_id"])
        return bool(digest == case.row["text_sha256"])

    def _read(self, path: str, row: int) -> pa.RecordBatch | Unreadable:
        file = self._tables.find(path)
        if file != self._sound:
            self._inspector.inspect(file, self._columns)
            self._sound = file
        (part,) = self._reader.read(file, self._columns, row, row + 1)
        return part


def _with_options(path: str, locations: Sequence[str]) -> str:
    """Return a path from a table with the options of the URI that it was found under."""
    for location in locations:
        if "://" in location and path.startswith(urlsplit(location)._replace(query="").geturl()):
            query = urlsplit(location).query
            return f"{path}?{query}" if query else path
    return path


class KeptTexts:
    """Finds kept texts. If they are requested in the order of paths and rows, a shard's texts are read once."""

    def __init__(self, results: str) -> None:
        self._results = results
        self._path, self._rows = "", range(0)  # the shard that was read last
        self._texts: Mapping[bytes, bytes] = {}

    def of(self, row: Mapping[str, Any]) -> bytes | None:
        """Return the text of a row of FLAGS, as its file held it. None: no scan kept it, or it was erased."""
        if row["path"] != self._path or row["row"] not in self._rows:
            rows = range(row["row"], row["row"] + MAX_ROWS)
            self._texts = ask(self._results, functools.partial(self._read, row["path"], rows))
            self._path, self._rows = row["path"], rows
        return self._texts.get(row["text_sha256"])

    def _read(self, path: str, rows: range) -> Mapping[bytes, bytes]:
        """Read texts by their digests. So the text is the one that was scanned, whichever scan kept it."""
        if not has_table(self._results, "flag_texts"):
            return {}
        row_filter = (pl.col("path") == path) & pl.col("row").is_between(rows.start, rows.stop - 1)
        texts = read_whole(self._results, "flag_texts", pl.Series([path])).filter(row_filter)
        return dict(texts.select("text_sha256", "text").collect().iter_rows())
