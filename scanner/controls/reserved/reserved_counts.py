"""Count hits of reserved messages in the texts of a scan, each text once over all shards."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.audit.statistics.hits import THRESHOLDS
from scanner.controls.reserved.accounts import AccountHits
from scanner.controls.reserved.texts import LARGEST_P
from scanner.controls.reserved.top_accounts import HitsWithoutTopAccounts, without_top_accounts
from scanner.controls.traffic import scored_rows

_ROUNDING = 1e-9  # in the logarithm of a threshold


class ReservedCounts(NamedTuple):
    """Texts whose best message is reserved.

    hits: by key, int64[R, J]: for each reserved message that is the best of a text at p ≤ 0.1, the number of texts at
        each of J thresholds.
    without_top_accounts: by key, its hits without the texts of the account that hits most, of the two that hit most,
        and so on.
    accounts: by key, accounts whose best message is reserved, if accounts are tested.
    """

    hits: Mapping[str, NDArray[np.int64]]
    without_top_accounts: Mapping[str, tuple[HitsWithoutTopAccounts, ...]]
    accounts: Mapping[str, AccountHits] = MappingProxyType({})


def count_reserved(reserved: pl.LazyFrame, verdicts: pl.LazyFrame) -> ReservedCounts:
    """Count hits by key and message.

    Args:
        reserved: rows of schemas.audit.AUDIT_COUNTS whose kind is RESERVED_TEXT.
        verdicts: rows of schemas.tables.VERDICTS on traffic.
    """
    hits = _hits(reserved)
    thresholds = [str(alpha) for alpha in THRESHOLDS]
    by_message = hits.group_by("key_id", "message").agg(pl.col(thresholds).sum())
    by_key = {
        str(key_id): part.select(thresholds).to_numpy().astype(np.int64)
        for (key_id,), part in by_message.group_by("key_id")
    }
    suspects = hits.filter(pl.col("p") <= np.log10(LARGEST_P) + _ROUNDING)
    accounts = scored_rows(verdicts).select(account=_account())
    return ReservedCounts(by_key, without_top_accounts(by_message, suspects, accounts))


def _account() -> pl.Expr:
    return pl.when(pl.col("account_id").is_not_null()).then(pl.col("account_id").hash(0))


def _hits(reserved: pl.LazyFrame) -> pl.DataFrame:
    """Return the distinct texts whose best message is reserved at p ≤ 0.1. There are few.

    The columns are key_id, message, text, account, log10 p and hits.
    """
    text_rows = reserved.select(
        "key_id", "message", text=pl.col("text").hash(0), account=_account(), p=pl.col("threshold").log10()
    )
    by_account = text_rows.collect(engine="streaming").sort("account", "key_id", "message", "p", nulls_last=True)
    hits = by_account.unique("text", keep="first")
    return hits.with_columns((pl.col("p") <= np.log10(a) + _ROUNDING).cast(pl.Int64).alias(str(a)) for a in THRESHOLDS)
