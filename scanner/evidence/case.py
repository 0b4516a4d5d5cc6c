"""One flagged document found again: its row, scan and text, texts that were kept, and the filter of its night.

Texts that scans kept of their flags (`[evidence] keep_text`), for flags whose input file is gone or was changed.

The n-grams that a scan left out, for whoever computes its verdicts again.
"""

import hashlib
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from scanner.detection.rows import TextIds
from scanner.detection.rules import NO_FILTER, Filter
from scanner.errors import FileFault, Refused, ScanFailed
from scanner.input.columns import Columns
from scanner.input.documents import Reader, Unreadable
from scanner.input.files import InputFile, find_file
from scanner.input.inspector import Inspector
from scanner.input.shards import MAX_ROWS, key_set
from scanner.printable import printable
from scanner.registry import read_secret
from scanner.results import flagged, scans
from scanner.results.filters import open_filter
from scanner.results.newest import ranges_ever
from scanner.results.queries import ask, verdicts
from scanner.results.scan_list import refuse_impossible_scans
from scanner.results.tables import read_whole
from scanner.storage.delta import table_uri
from schemas.registry import MAX_MESSAGES, Registry

OF_FILE = {"doc_id": "id", "account_id": "account", "created_at": "time"}
"""Columns that stand beside the text, by their name in a configuration."""

_SHOWN = 10
_NUMBERS = ("score", "log10_p", "log10_p_global", "messages_tested", "keys_tested")  # of every flagged row


@dataclass(frozen=True)
class FlagCase:
    """A flagged document: a row of schemas.tables.VERDICTS with `audit`, and its scan's row of SCANS, if that ended."""

    row: Mapping[str, Any]
    scan: Mapping[str, Any] | None

    @property
    def where(self) -> str:
        """File and row, as a document is named to commands."""
        return f"{self.row['path']}:{self.row['row']}"


def find_case(results: str, rate: float, document: str) -> FlagCase:
    """Find a flagged document by `PATH:ROW`, or by its id where no place of that name is flagged.

    Raises:
        Refused: no flagged document has this name, or several have; says which, or whether it was read at all.
    """
    wanted = _named(document)
    rows = ask(results, lambda: flagged(results, rate, wanted, canaries=True).collect())
    if not len(rows):
        read_at_all = ask(results, lambda: verdicts(results).filter(wanted).head(1).collect())
        unread = "no document of that name was read, or its night was dropped"
        why = "it was read and is not flagged" if len(read_at_all) else unread
        raise Refused(
            f"document {document!r}: {why}; name one by its id or as PATH:ROW (`brickscan flagged` lists them)"
        )
    place = rows.filter(pl.concat_str("path", pl.lit(":"), "row") == document)
    rows = place if len(place) else rows  # whoever may choose an id must not keep another's flag from being found
    if len(rows) > 1:
        where = ", ".join(f"{row['path']}:{row['row']}" for row in rows.head(_SHOWN).iter_rows(named=True))
        raise Refused(f"document {document!r}: {len(rows)} flagged documents have this id; choose one: {where}")
    row = rows.row(0, named=True)
    refuse_impossible(row)
    of_scan = ask(results, lambda: scans(results).filter(pl.col("scan_id") == row["scan_id"]).collect())
    refuse_impossible_scans(of_scan.to_dicts())
    return FlagCase(row, _under_its_keys(results, row, of_scan.row(0, named=True)) if len(of_scan) else None)


def refuse_impossible(row: Mapping[str, Any]) -> None:
    """Raise Refused for a flagged row with a value that no scan writes: somebody changed it, and nothing stands by it.

    Its message alone may be missing: it is not shown where naming is undecided.
    """
    wrong = [name for name in _NUMBERS if row[name] is None or not math.isfinite(row[name])]
    wrong += [
        name for name in ("messages_tested", "keys_tested", "tests") if row[name] is not None and not row[name] >= 1
    ]
    wrong += [name for name in ("key_id", "text_sha256") if row[name] is None]
    if not 0 <= (row["message"] or 0) < MAX_MESSAGES:
        wrong.append("message")
    if wrong:
        where = printable(f"{row['path']}:{row['row']}")
        raise Refused(
            f"{where}: its flag has {wrong[0]} = {printable(str(row[wrong[0]]))}, as no scan writes it. Somebody "
            "changed the results: restore the table `flags` from a backup before anything is decided by it"
        )


def _under_its_keys(results: str, row: Mapping[str, Any], scan: dict[str, Any]) -> dict[str, Any]:
    """A scan's row with only the keys that looked at a document: older ones may have done so before."""
    ours = (pl.col("shard_id") == row["shard_id"]) & (pl.col("scan_id") == row["scan_id"])
    digests = ask(results, lambda: ranges_ever(results).filter(ours).select("keys").unique().collect())["keys"]
    keys = scan["keys"]
    for begin, end in combinations(range(len(keys) + 1), 2):
        if key_set(key["key_id"] for key in keys[begin:end]) in digests:
            return scan | {"keys": keys[begin:end]}
    return scan


def _named(document: str) -> pl.Expr:
    path, _, row = document.rpartition(":")
    by_id = pl.col("doc_id") == document
    if not path or not (row.isascii() and row.isdigit()) or len(row) > 18:
        return by_id
    return by_id | ((pl.col("path") == path) & (pl.col("row") == int(row)))


class MovedRow(Refused):
    """A row of a file that is as it was scanned, in which another text stands than the row says."""


class Stored(NamedTuple):
    """A text, byte for byte the one that was scanned.

    row: its row of schemas.tables.DOCUMENTS, as its file holds it today; None if the text is the one that the scan
    kept, for the reason `not_from_file`.
    """

    text: bytes
    row: Mapping[str, Any] | None
    not_from_file: str | None = None


class StoredTexts:
    """Texts of flags as their files hold them today, or as the scan kept them where the file is gone or was changed.

    A file's footer is read by a process of its own first, as in a scan: since then the file may have become one whose
    footer ends the process that reads it. A caller who asks in the order of paths and rows has no file inspected twice,
    and no rows decoded again.

    Args:
        columns: names of the input's columns.
        locations: paths of the input; options in a URI of theirs open a file under it too.
        results: folder or URI, where scans kept texts.
        text_id: keyed digest of a text's SHA-256, for documents that are not flagged; None: there are none.
    """

    def __init__(
        self,
        columns: Columns,
        locations: Sequence[str],
        results: str,
        text_id: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._text_id = text_id
        self._columns, self._locations, self._results, self._kept = columns, locations, results, KeptTexts(results)
        self._reader, self._inspector = Reader(), Inspector()
        self._sound: InputFile | None = None  # the file that was inspected last
        weakref.finalize(self, self._inspector.close)

    def of(self, case: FlagCase) -> Stored:
        """The text of a flag.

        Raises:
            MovedRow: no scan can have read the text there.
            Refused: the file or the row is gone, cannot be read, or holds another text than was scanned, and no scan
                kept the text.
        """
        try:
            row = self._in_its_file(case)
            return Stored(bytes(row["text"]), row)
        except MovedRow:
            raise
        except Refused as error:
            text = self._kept.of(case.row)
            if text is None or not self._is_the_scanned(text, case):
                raise
            return Stored(text, None, str(error))

    def _in_its_file(self, case: FlagCase) -> Mapping[str, Any]:
        try:
            part = self._read(_with_options(case.row["path"], self._locations), case.row["row"])
        except FileFault as fault:
            raise Refused(f"{case.where}: the text cannot be read any more ({fault.detail})") from None
        except (Refused, ScanFailed) as error:
            raise Refused(f"{case.where}: the text cannot be read any more ({error})") from None
        if isinstance(part, Unreadable):
            raise Refused(f"{case.where}: the text cannot be read any more ({part.detail})")
        found: Mapping[str, Any] = part.to_pylist()[0]
        if not self._is_the_scanned(found["text"], case):
            if self._is_as_scanned(case):
                raise MovedRow(
                    f"{case.where}: another text stands there than the row says, in a file of the size and time that "
                    "it had when it was scanned"
                )
            raise Refused(f"{case.where}: another text stands there now than the one that was scanned")
        return found

    def _is_the_scanned(self, text: bytes | None, case: FlagCase) -> bool:
        if text is None:
            return False
        digest = hashlib.sha256(text).digest()
        if self._text_id is not None and case.row["text_sha256"] is None:  # not flagged
            return bool(self._text_id(digest) == case.row["text_id"])
        return bool(digest == case.row["text_sha256"])

    def _is_as_scanned(self, case: FlagCase) -> bool:
        """Whether the file that was read last has the size and time that it had for the row's scan, or for any."""
        of_file = pl.col("path") == case.row["path"]
        read = ask(
            self._results, lambda: ranges_ever(self._results).filter(of_file).select("scan_id", "file").collect()
        )
        of_scan = read.filter(scan_id=case.row["scan_id"])
        mark = self._sound and f"{self._sound.size}:{self._sound.modified}"
        return mark in (read if of_scan.is_empty() else of_scan)["file"].to_list()

    def _read(self, path: str, row: int) -> pa.RecordBatch | Unreadable:
        file = find_file(path)
        if file != self._sound:
            self._inspector.inspect(file, self._columns)
            self._sound = file
        (part,) = self._reader.read(file, self._columns, row, row + 1)
        return part


def _with_options(path: str, locations: Sequence[str]) -> str:
    """A path as tables have it, with the options of the URI that it was found under."""
    for location in locations:
        if "://" in location and path.startswith(urlsplit(location)._replace(query="").geturl()):
            query = urlsplit(location).query
            return f"{path}?{query}" if query else path
    return path


class KeptTexts:
    """Finds kept texts. A caller who asks in the order of paths and rows has the texts of a shard read once.

    Args:
        results: folder or URI.
    """

    def __init__(self, results: str) -> None:
        self._results = results
        self._path, self._rows = "", range(0)  # the shard that was read last
        self._texts: Mapping[bytes, bytes] = {}

    def of(self, row: Mapping[str, Any]) -> bytes | None:
        """The text of a row of FLAGS, as its file held it; None: no scan kept it, or it was erased."""
        if row["path"] != self._path or row["row"] not in self._rows:
            self._path, self._rows = row["path"], range(row["row"], row["row"] + MAX_ROWS)
            self._texts = ask(self._results, self._read)
        return self._texts.get(row["text_sha256"])

    def _read(self) -> Mapping[bytes, bytes]:
        """Texts by their digests, so that the text is the one that was scanned, whichever scan kept it."""
        if not DeltaTable.is_deltatable(table_uri(self._results, "flag_texts")):
            return {}
        near = (pl.col("path") == self._path) & pl.col("row").is_between(self._rows.start, self._rows.stop - 1)
        rows = read_whole(self._results, "flag_texts", pl.Series([self._path])).filter(near)
        return dict(rows.select("text_sha256", "text").collect().iter_rows())


def filter_of(results: str, folder: str, registry: Registry, case: FlagCase) -> Filter:
    """The filter under which a verdict was given; none where its scan did not end, or had none.

    Args:
        results: folder or URI.
        folder: of the registry.
        registry: the registry.
        case: the verdict and its scan.

    Raises:
        Refused: the filter is gone, or the registry has no audit secret, or another; SecretError.
    """
    sha256 = (case.scan or {}).get("filter_sha256")
    if sha256 is None:
        return NO_FILTER
    return open_filter(results, sha256, text_ids_of(folder, registry).ngram_secret())


def text_ids_of(folder: str, registry: Registry) -> TextIds:
    """Digests under the audit secret of a registry. Raises Refused: it has none; SecretError."""
    if registry.audit_secret is None:
        raise Refused(f"registry {folder!r} has no audit secret, which filters and digests of texts need; restore it")
    return TextIds(read_secret(registry.audit_secret, folder))
