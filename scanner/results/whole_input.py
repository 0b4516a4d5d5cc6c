"""Totals of all shards of an input, whichever scans read them."""

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from scanner.results.newest import flags, ranges_ever
from scanner.results.queries import ask


class WholeInput(NamedTuple):
    """Documents that were read, by result; files at fault as a whole, which are none of these documents.

    too_short: by themselves; filtered: since the filter left too few of their n-grams; canaries: flagged texts of
    canaries that were named right, beside those in `flagged`.
    """

    documents: int = 0
    quarantined: int = 0
    too_short: int = 0
    scored_in_part: int = 0
    flagged: int = 0
    filtered: int = 0
    canaries: int = 0
    files_at_fault: int = 0


NOTHING_READ = WholeInput()

SUMMED = tuple(name for name in WholeInput._fields if name != "files_at_fault")
"""Counts that are sums over shards."""


def whole_input(results: str, shard_ids: Iterable[str], earlier: Iterable[str] = ()) -> WholeInput:
    """Add up the totals of finished shards, in nights that were dropped too; without files at fault.

    earlier: ids of shards of the same rows under other keys, by which documents may be flagged too.

    Raises:
        Refused: there are no results, or no scan of this version has begun.
        ScanFailed: names were erased all the while.
    """
    ours = pl.col("shard_id").is_in(list(shard_ids))
    sums = pl.col(*SUMMED).sum()
    # another driver's row of a shard stands there until somebody settles
    asked = ask(results, lambda: ranges_ever(results).filter(ours).unique("shard_id").select(sums).collect())
    found = WholeInput(*asked.row(0))
    also = [*earlier]
    if not also:
        return found
    of_canary = pl.col("canary").fill_null(value=False)
    rows = flags(results).filter(ours | pl.col("shard_id").is_in(also)).group_by("path", "row").agg(of_canary.all())
    of_all = ask(results, rows.collect)["canary"]
    return found._replace(flagged=int((~of_all).sum()), canaries=int(of_all.sum()))
