"""Find one flagged document again, with its row, its scan and the filter of that scan."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import polars as pl

from scanner.detection.left_out import NO_FILTER, NgramFilter
from scanner.detection.rows import TextIds
from scanner.errors import Refused
from scanner.filtering import open_filter
from scanner.input.shards import key_set
from scanner.registry import read_lasting_secret
from scanner.registry.shown_seeds import ShownUpTo
from scanner.results import flagged
from scanner.results.current_rows import ranges_ever
from scanner.results.queries import ask, verdicts
from scanner.results.scan_list import recorded_scan

_SHOWN = 10


@dataclass(frozen=True)
class FlagCase:
    """A flagged document.

    row: its row of schemas.tables.VERDICTS with `audit`.
    scan: its scan's row of SCANS. None: that scan did not end.
    """

    row: Mapping[str, Any]
    scan: Mapping[str, Any] | None

    @property
    def where(self) -> str:
        """Return file and row, as commands name a document."""
        return f"{self.row['path']}:{self.row['row']}"

    @property
    def as_written(self) -> "FlagCase":
        """Return the flag as one of its text as written, whatever form of the text was flagged."""
        return FlagCase({**self.row, "variant": None}, self.scan)

    def about(self, user: str | None) -> "FlagCase":
        """Return the flag as one of another user whom it names.

        user: id of a user, or KEY_ID:MESSAGE, because the name may have been erased. None: of the first, as it is.

        Raises:
            Refused: it does not name that user.
        """
        if user is None:
            return self
        named = self.row["named"] or ()
        messages = [f"{one['key_id']}:{one['message']}" for one in named]
        found = [one for one in named if one["user_id"] == user] or [
            one for one, message in zip(named, messages, strict=True) if message == user
        ]
        if not found:
            users = ", ".join(repr(one["user_id"] or message) for one, message in zip(named, messages, strict=True))
            raise Refused(f"{self.where}: does not name user {user!r}; it names {users or 'nobody'}")
        return FlagCase({**self.row, **found[0]}, self.scan)

    @property
    def shown(self) -> tuple[tuple[str, ShownUpTo], ...]:
        """Return the last event whose seeds its scan left out, by the ids of keys. Empty: that scan did not end."""
        return shown_by_scan(self.scan)


def shown_by_scan(scan: Mapping[str, Any] | None) -> tuple[tuple[str, ShownUpTo], ...]:
    """Return the last event whose shown seeds a scan left out, by the ids of keys whose seeds can be shown.

    scan: its row of SCANS. None: it did not end.
    """
    keys = [] if scan is None else scan["keys"]
    return tuple(
        (key["key_id"], ShownUpTo(key["event"], key["events_head"])) for key in keys if key["event"] is not None
    )


def find_case(results: str, rate: float, document: str) -> FlagCase:
    """Find a flagged document by `PATH:ROW`, or by its id if there is no flag at such a place.

    Raises:
        Refused: no flagged document has this name, or several have. The error names them, or says whether the document
            was read.
    """
    document_filter = _named(document)
    rows = ask(results, lambda: flagged(results, rate, document_filter, canaries=True).collect())
    if not len(rows):
        read_at_all = ask(results, lambda: verdicts(results).filter(document_filter).head(1).collect())
        unread = "no scan read a document of that name, or its night was dropped"
        why = "it was scanned and is not flagged" if len(read_at_all) else unread
        raise Refused(
            f"document {document!r}: {why}; name one by its id or as PATH:ROW (`brickscan flagged` lists them)"
        )
    place = rows.filter(pl.concat_str("path", pl.lit(":"), "row") == document)
    rows = place if len(place) else rows  # whoever may choose an id must not keep another's flag from being found
    if len(rows) > 1:
        where = ", ".join(f"{row['path']}:{row['row']}" for row in rows.head(_SHOWN).iter_rows(named=True))
        raise Refused(f"document {document!r}: {len(rows)} flagged documents have this id; choose one: {where}")
    row = rows.row(0, named=True)
    scan = recorded_scan(results, row["scan_id"])
    return FlagCase(row, scan and _under_its_keys(results, row, scan))


def _under_its_keys(results: str, row: Mapping[str, Any], scan: dict[str, Any]) -> dict[str, Any]:
    """Return a scan's row with only the keys that it tested on a document. Earlier scans may have tested the others."""
    shard_filter = (pl.col("shard_id") == row["shard_id"]) & (pl.col("scan_id") == row["scan_id"])
    digests = ask(results, lambda: ranges_ever(results).filter(shard_filter).select("keys").unique().collect())["keys"]
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


def filter_of(results: str, folder: str, case: FlagCase) -> NgramFilter:
    """Open the filter of a verdict's scan, or an empty one if the scan did not end or had none.

    Raises:
        Refused: the filter is gone, or the registry has no audit secret, or another one.
        SecretError: the audit secret cannot be read.
    """
    sha256 = (case.scan or {}).get("filter_sha256")
    if sha256 is None:
        return NO_FILTER
    return open_filter(results, sha256, TextIds(read_lasting_secret(folder)).ngram_secret())
