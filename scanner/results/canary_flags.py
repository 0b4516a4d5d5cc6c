"""Which flags are canaries' own: found and named right, so that nobody has to decide on them.

All that reads flags leaves them out, or counts them apart, by this one filter. A canary's text that is named for
somebody else is a flag as any.
"""

from collections.abc import Collection

import polars as pl

from schemas.registry import Canary
from schemas.words import Naming


def of_canary(canaries: Collection[Canary] | None = None) -> pl.Expr:
    """Filter rows of VERDICTS for a canary's text as intended: under its own account, and named right.

    Args:
        canaries: of the registry; None: no registry is known, and the column `canary` says what the row's scan knew.
    """
    if canaries is None:
        return pl.col("canary").fill_null(value=False)
    identities = {f"{canary.key_id}\n{canary.message}\n{canary.account_id}" for canary in canaries}
    flag = pl.concat_str("key_id", pl.col("message").cast(pl.String), "user_id", separator="\n")
    named = (pl.col("naming") == Naming.NAMED) & (pl.col("account_id") == pl.col("user_id"))
    return (named & flag.is_in(sorted(identities))).fill_null(value=False)
