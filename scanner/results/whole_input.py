"""What all shards of an input came to, whichever scans read them."""

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from scanner.results.newest import ranges_ever
from scanner.results.queries import ask


class WholeInput(NamedTuple):
    """Documents that were read, and what became of them; files at fault as a whole, which are none of these."""

    documents: int = 0
    quarantined: int = 0
    too_short: int = 0
    scored_in_part: int = 0
    flagged: int = 0
    files_at_fault: int = 0


NOTHING_READ = WholeInput()


def whole_input(results: str, shard_ids: Iterable[str]) -> WholeInput:
    """Add up what shards came to, as far as they are done, in nights that were dropped too; no files at fault.

    Raises:
        Refused: there are no results, or no scan of this version has begun.
        ScanFailed: names were erased all the while.
    """
    ours = pl.col("shard_id").is_in(list(shard_ids))
    sums = pl.col("documents", "quarantined", "too_short", "scored_in_part", "flagged").sum()
    # another driver's row of a shard stands there until somebody settles
    asked = ask(results, lambda: ranges_ever(results).filter(ours).unique("shard_id").select(sums).collect())
    return WholeInput(*asked.row(0))
