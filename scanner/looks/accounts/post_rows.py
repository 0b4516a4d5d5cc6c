"""Rows of ACCOUNT_POSTS: the posts that a worker keeps while it scans, until the window of their accounts is over."""

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from scanner.detection.rows import TextIds
from schemas.tables import ACCOUNT_POSTS

BYTES_OF_A_POST = 2**14
"""Most bytes of a post that are kept, from its beginning; a longer post has enough to be tested by itself."""


def posts_of(
    documents: pa.RecordBatch,
    verdicts: pa.RecordBatch,
    ids: TextIds,
    but: Collection[str] = (),
    filter_sha256: str | None = None,
    night: str | None = None,
) -> pa.RecordBatch:
    """Rows of ACCOUNT_POSTS for documents that have a verdict and an account.

    verdicts: exact rows of VERDICTS on some of them, in their order; but: accounts whose posts are left out;
    filter_sha256: digest of the filter of the documents' scan, None: no filter.
    """
    texts = documents["text"].filter(pc.is_in(documents["row"], verdicts["row"]))
    wanted = pc.and_(pc.is_valid(verdicts["account_id"]), pc.invert(pc.is_in(verdicts["account_id"], _strings(but))))
    rows = verdicts.filter(wanted)
    columns = {name: rows[name] for name in ACCOUNT_POSTS.names if name in rows.schema.names}
    columns["account"] = ids.of_accounts(rows["account_id"])
    columns["filter_sha256"] = pa.array([filter_sha256] * len(rows), pa.string())
    columns["night"] = pa.array([night] * len(rows), pa.string())
    columns["text"] = pc.binary_slice(texts.filter(wanted), 0, BYTES_OF_A_POST)
    return pa.RecordBatch.from_arrays([columns[name] for name in ACCOUNT_POSTS.names], schema=ACCOUNT_POSTS)


def by_account(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows ordered by account, so that a part of a file holds few accounts."""
    rows = pa.Table.from_batches(batches, ACCOUNT_POSTS)
    order = [(name, "ascending") for name in ("account", "account_id", "path", "row")]
    return list(rows.sort_by(order).combine_chunks().to_batches())


def _strings(values: Collection[str]) -> pa.Array:
    return pa.array(list(values), pa.string())
