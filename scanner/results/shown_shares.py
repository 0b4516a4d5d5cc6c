"""Compute the share of positions that scans leave out because claims showed their seeds, for each key.

A key with too large a share needs a successor.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import polars as pl

from scanner.results.queries import ask, exist, scans

MOST_SHOWN = 0.05
"""Share of positions with shown seeds from which a new key is advised (SPEC_3 §5)."""


class ShownShare(NamedTuple):
    """Numbers of positions of scans under a key.

    event: number of the last event that the scans read.
    shown: number of positions that they left out because claims showed their seeds.
    positions: number of all positions, left out or scored.
    """

    event: int
    shown: int
    positions: int


def shown_in_words(key_id: str, shown: int, positions: int) -> str:
    """Write which share of the positions was left out under a key, and whether it is time for a new one."""
    share = shown / max(positions, 1)
    said = f"under {key_id}, {share:.1%} of the positions were left out because claims showed their seeds"
    return f"{said}; make a new key, and retire this one" if share >= MOST_SHOWN else said


def used_up(keys: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield sentences on the keys of a scan (column `keys` of SCANS) that need new ones in their place."""
    for key in keys:
        shown = key["positions_shown"] or 0
        positions = shown + (key["positions"] or 0)
        if shown and shown >= MOST_SHOWN * positions:
            yield shown_in_words(key["key_id"], shown, positions)


def shown_shares(results: str) -> Mapping[str, ShownShare]:
    """Return the numbers for each key, by its id, from the scans that read the latest event of the key.

    Keys without shown seeds are left out.

    Raises:
        ScanFailed: names were erased at every attempt.
    """
    if not exist(results):
        return {}
    rows = ask(results, lambda: _sums(scans(results)).collect())
    return {key_id: ShownShare(*counts) for key_id, *counts in rows.iter_rows()}


def _sums(ended: pl.LazyFrame) -> pl.LazyFrame:
    fields = pl.col("keys").struct.field("key_id", "event", "positions", "positions_shown")
    of_scans = ended.select("keys").explode("keys").select(fields).drop_nulls(["event", "positions_shown"])
    newest = of_scans.filter(pl.col("event") == pl.col("event").max().over("key_id"))
    shown = pl.col("positions_shown").sum()
    return newest.group_by("key_id").agg(pl.col("event").first(), shown, positions=pl.col("positions").sum() + shown)
