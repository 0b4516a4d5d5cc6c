"""Possible framing: reserved messages that hit too often in the texts of a few accounts only, while the law holds.

Where messages share draws, or a key can be searched for, whoever holds marked text can write text that carries another
message, which nobody may hold. Two such texts are more than chance allows, so without this anybody could raise the
alarm of every night. A key that fits the traffic badly hits in the texts of all accounts, not of a few.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.audit.statistics.audit_rows import rate_rows, wrong_rows
from scanner.audit.statistics.hits import THRESHOLDS
from scanner.audit.statistics.judgement import KEY_BOUND
from scanner.controls.control import JudgedScan
from scanner.controls.reserved.expectation import reserved_answers
from scanner.watermark.formats import format_of

MOST_TOP_ACCOUNTS = 10
"""Most accounts whose texts are left out."""

LARGEST_SHARE_OF_TOP_ACCOUNTS = 0.5
"""Largest share of all scored texts that the accounts left out may have: accounts with more are the traffic itself, not
a few among many.
"""


class HitsWithoutTopAccounts(NamedTuple):
    """The hits of a key without the texts of the accounts that hit most.

    accounts: the accounts left out; a text without an account stands for an account of its own.
    share: their share of the scored rows.
    hits: int64[R, J], as scanner.controls.reserved.reserved_counts.ReservedCounts has them.
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
        suspects: a row for each distinct text whose best message is reserved at p ≤ LARGEST_P, with its
            text (a digest), account (a digest; null: unknown), key_id, message, and whether it hits, at each threshold.
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


def framing_accounts(
    scan: JudgedScan,
    hits: Mapping[str, NDArray[np.int64]],
    without: Mapping[str, Sequence[HitsWithoutTopAccounts]],
) -> dict[str, int]:
    """Return how many accounts, by key, raise the alarm by their texts only; empty unless they explain all of it.

    Args:
        scan: its rows, of all controls.
        hits: by key, of reserved messages, int64[R, J].
        without: by key, these hits without the texts of accounts, as `without_top_accounts` gives them.
    """
    wrong = {row["key_id"] for row in wrong_rows(scan.rows)}
    if not wrong or not scan.law_holds or not wrong <= set(without):  # a decoy's row names no key
        return {}
    suspected = [key for key in scan.plan.keys if key.key_id in wrong]
    if not all(format_of(key).can_be_framed() for key in suspected):
        return {}
    fewest = {key.key_id: _fewest_accounts(scan, hits, without[key.key_id], key.key_id) for key in suspected}
    explained = {key_id: accounts for key_id, accounts in fewest.items() if accounts is not None}
    return explained if len(explained) == len(fewest) else {}


def _fewest_accounts(
    scan: JudgedScan,
    hits: Mapping[str, NDArray[np.int64]],
    without: Sequence[HitsWithoutTopAccounts],
    key_id: str,
) -> int | None:
    """Count the accounts without whose texts no count is too small under a key; None: no few accounts explain it."""
    for remainder in without:
        if remainder.share > LARGEST_SHARE_OF_TOP_ACCOUNTS:
            return None
        answers = reserved_answers(scan.plan, scan.traffic, {**hits, key_id: remainder.hits})
        rows = rate_rows(scan.audit, answers, THRESHOLDS, KEY_BOUND)
        if key_id not in {row["key_id"] for row in wrong_rows(rows)}:
            return remainder.accounts
    return None


def framing_warnings(accounts: Mapping[str, int]) -> list[str]:
    """Return a sentence on each key with which so many accounts, or more, may be framing others, with advice."""
    return [
        f"key {key_id}: messages that nobody holds hit too often, but as often as they should without the texts of "
        f"{number} account{'s' * (number != 1)}, and so do decoy keys. So the law holds, and somebody may be writing "
        "text that carries messages of others. Name nobody by this key for a text of theirs (they posted what is "
        "flagged as `reserved`), and find out who they are."
        for key_id, number in accounts.items()
    ]
