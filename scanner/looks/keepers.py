"""Rows that looks keep of documents while these are scanned, for what they do once all are committed."""

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from scanner.detection.rows import TextIds
from scanner.looks.accounts.post_rows import keep_posts
from scanner.scan_plan import Plan


class Keeper(Protocol):
    """Keeps rows of a table. Each worker makes its own."""

    @property
    def table(self) -> str:
        """Name of the table, which is committed beside `verdicts`."""

    def rows(self, documents: pa.RecordBatch, verdicts: pa.RecordBatch) -> pa.RecordBatch:
        """Return what is kept of a batch. verdicts: exact rows of VERDICTS on some of the documents, in their order."""

    def in_order(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return rows in the order in which they are written."""


KEEPERS: tuple[Callable[[Plan, str, TextIds], Keeper | None], ...] = (keep_posts,)
"""What makes the keeper of each look, of a plan, a scan's id and the secret of text ids; None: it keeps nothing."""


def keepers_of(plan: Plan, scan_id: str, text_ids: TextIds) -> list[Keeper]:
    """Make the keepers of the looks that a plan configures."""
    found = (make(plan, scan_id, text_ids) for make in KEEPERS)
    return [keeper for keeper in found if keeper is not None]
