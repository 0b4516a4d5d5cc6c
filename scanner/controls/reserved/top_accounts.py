"""Count hits of reserved messages without the texts of the accounts that hit most. This reveals possible framing."""

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.audit.statistics.hits import THRESHOLDS

MOST_TOP_ACCOUNTS = 10
"""Largest number of accounts whose texts are left out."""

LARGEST_SHARE_OF_TOP_ACCOUNTS = 0.5
"""Largest share of all scored texts that the left-out accounts may have.

Accounts with more are the traffic itself, not a few among many.
"""


class HitsWithoutTopAccounts(NamedTuple):
    """The hits of a key without the texts of the accounts that hit most.

    accounts: the accounts that are left out. A text without an account counts as an account of its own.
    share: their share of the scored rows.
    hits: int64[R, J], as in scanner.controls.reserved.reserved_counts.ReservedCounts.
    """

    accounts: int
    share: float
    hits: NDArray[np.int64]


def without_top_accounts(
    by_message: pl.DataFrame, suspects: pl.DataFrame, scored: pl.LazyFrame
) -> dict[str, tuple[HitsWithoutTopAccounts, ...]]:
    """Leave out, for each key, the texts of the accounts that have most of its suspects: one, two … MOST_TOP_ACCOUNTS.

    Args:
        by_message: key_id, message, and the hits at each threshold, of reserved messages.
        suspects: a row for each distinct text whose best message is reserved at p ≤ LARGEST_P. Columns: text (a
            digest), account (a digest, null if unknown), key_id, message, and whether it hits, at each threshold.
        scored: rows that were scored, with account.
    """
    texts = suspects.with_columns(owner=pl.coalesce("account", "text"), named=pl.col("account").is_not_null())
    without = {}
    for (key_id,), key_texts in texts.group_by("key_id"):
        owners = (
            key_texts.group_by("owner", "named").len().sort("len", "owner", descending=True).head(MOST_TOP_ACCOUNTS)
        )
        shares = np.cumsum(_shares(scored, owners)).tolist()
        key_hits = by_message.filter(pl.col("key_id") == key_id)
        without[str(key_id)] = tuple(
            HitsWithoutTopAccounts(
                n + 1, share, _left(key_hits, key_texts.join(owners.head(n + 1), on=["owner", "named"], how="semi"))
            )
            for n, share in enumerate(shares)
        )
    return without


def _left(key_hits: pl.DataFrame, account_texts: pl.DataFrame) -> NDArray[np.int64]:
    columns = [str(alpha) for alpha in THRESHOLDS]
    sums = account_texts.group_by("message").agg(pl.col(columns).sum())
    hit_pairs = key_hits.join(sums, on="message", how="left", suffix="_theirs")
    other_hits = hit_pairs.select(pl.col(name) - pl.col(f"{name}_theirs").fill_null(0) for name in columns)
    return other_hits.to_numpy().astype(np.int64)


def _shares(scored: pl.LazyFrame, owners: pl.DataFrame) -> list[float]:
    """Return the share of all rows that each account has. A text without an account has a share of 0."""
    owner_shares = [
        ((pl.col("account") == owner) if named else pl.lit(value=False)).mean().fill_null(0.0).alias(str(i))
        for i, (owner, named) in enumerate(owners.select("owner", "named").iter_rows())
    ]
    return [float(share) for share in scored.select(owner_shares).collect(engine="streaming").row(0)]
