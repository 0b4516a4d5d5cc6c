"""Texts that scans kept of their flags (`[evidence] keep_text`), for flags whose input file is gone or was changed."""

from collections.abc import Mapping
from typing import Any

import polars as pl
from deltalake import DeltaTable

from scanner.input.shards import MAX_ROWS
from scanner.results.queries import ask
from scanner.results.tables import read_whole
from scanner.storage.delta import table_uri


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
