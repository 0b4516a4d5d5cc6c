"""Make rows of ACCOUNT_POSTS. A worker keeps these posts while it scans, until the window of their accounts is over."""

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from scanner.detection.rows import TextIds
from scanner.scan_plan import Plan
from schemas.tables import ACCOUNT_POSTS

BYTES_OF_A_POST = 2**14
"""Largest number of bytes of a post that are kept, from its beginning.

A longer post is enough to be tested on its own.
"""


class PostKeeper:
    """Keeps the posts of accounts.

    Args:
        night: date of the scan's data, such as 2026-11-21.
        but: accounts whose posts are left out.
        filter_sha256: digest of the filter of the documents' scan. None: no filter.
    """

    table = "account_posts"

    def __init__(
        self, text_ids: TextIds, night: str, but: Collection[str] = (), filter_sha256: str | None = None
    ) -> None:
        self._text_ids, self._night, self._filter_sha256 = text_ids, night, filter_sha256
        self._but = pa.array(list(but), pa.string())

    def rows(self, documents: pa.RecordBatch, verdicts: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of ACCOUNT_POSTS for documents that have a verdict and an account.

        Args:
            documents: documents of the batch.
            verdicts: exact rows of VERDICTS on some of them, in their order.
        """
        texts = documents["text"].filter(pc.is_in(documents["row"], verdicts["row"]))
        is_kept = pc.and_(pc.is_valid(verdicts["account_id"]), pc.invert(pc.is_in(verdicts["account_id"], self._but)))
        rows = verdicts.filter(is_kept)
        columns = {name: rows[name] for name in ACCOUNT_POSTS.names if name in rows.schema.names}
        columns["account"] = self._text_ids.of_accounts(rows["account_id"])
        columns["filter_sha256"] = pa.array([self._filter_sha256] * len(rows), pa.string())
        columns["night"] = pa.array([self._night] * len(rows), pa.string())
        columns["text"] = pc.binary_slice(texts.filter(is_kept), 0, BYTES_OF_A_POST)
        return pa.RecordBatch.from_arrays([columns[name] for name in ACCOUNT_POSTS.names], schema=ACCOUNT_POSTS)

    def in_order(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """See Keeper.in_order. Rows are ordered by account, so that a part of a file has few accounts."""
        return by_account(batches)


def keep_posts(plan: Plan, scan_id: str, text_ids: TextIds) -> PostKeeper | None:
    """Make the keeper of posts. None if no accounts are tested."""
    if plan.config.accounts is None:
        return None
    began = f"{scan_id[:4]}-{scan_id[4:6]}-{scan_id[6:8]}"
    night = began if plan.date is None else plan.date.isoformat()
    return PostKeeper(text_ids, night, plan.canary_accounts, plan.filter_sha256)


def by_account(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows ordered by account, so that a part of a file has few accounts."""
    rows = pa.Table.from_batches(batches, ACCOUNT_POSTS)
    order = [(name, "ascending") for name in ("account", "account_id", "path", "row")]
    return list(rows.sort_by(order).combine_chunks().to_batches())
