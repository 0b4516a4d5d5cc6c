"""The last scans and how they ended, scans that left no row, and how much each of them finished."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from scanner.results.newest import shards
from scanner.results.queries import ask, scans
from schemas.words import AuditState


class LastScans(NamedTuple):
    """The last scans, newest first.

    ended: rows of schemas.tables.SCANS with `committed`, int64, the shards that each finished itself; number: of all
    scans that ended; silent: scans that finished shards and have no row, nor went another on with them: scan_id,
    began_at, last (when they finished the last one), shards, documents.
    """

    ended: pl.DataFrame
    number: int
    silent: pl.DataFrame


def went_on(later: Mapping[str, Any], scan: Mapping[str, Any]) -> bool:
    """Whether a later scan did and judged what another one left, so that nothing is left to do about the other.

    One that read nothing, since it was killed early, stands in no audit: a later one of its night did all of it. So did
    a later one of the same part and configuration, which is judged with all parts. Nights without a date go on after
    midnight.
    """
    if later["started_at"] < scan["started_at"] or later["part"] != scan["part"]:
        return False
    if later["audit"] != AuditState.NOT_JUDGED and scan["scan_id"] in later["audited_scans"]:
        return True
    undated = all(one["night"] == one["started_at"].date().isoformat() for one in (later, scan))
    did_the_night = later["exit_code"] == 0 and (undated or later["night"] == scan["night"])
    if scan["part"] is not None:
        return did_the_night and bool(later["config_sha256"] == scan["config_sha256"])
    read_nothing = not scan["documents"] and not scan["files_quarantined"]
    return did_the_night and read_nothing and later["audit"] != AuditState.NOT_JUDGED


def last_scans(results: str, limit: int) -> LastScans:
    """The newest scans, so many at most; silent ones all.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased all the while.
    """

    def question() -> LastScans:
        newest = scans(results).sort("started_at", "scan_id", descending=True).head(limit)
        judged = scans(results).select(scan_id="audited_scans").explode("scan_id")
        known = pl.concat([scans(results).select("scan_id"), judged]).unique()
        of_scan = shards(results).group_by("scan_id")
        done = of_scan.agg(committed=pl.col("shard_id").n_unique().cast(pl.Int64))
        begun = of_scan.agg(
            began_at=pl.col("began_at").min(),
            last=pl.col("scanned_at").max(),
            shards=pl.len().cast(pl.Int64),
            documents=pl.col("documents").sum(),
        )
        ended, number, silent = pl.collect_all(
            [
                newest.join(done, on="scan_id", how="left", maintain_order="left").with_columns(
                    pl.col("committed").fill_null(0)
                ),
                scans(results).select(pl.len()),
                begun.join(known, on="scan_id", how="anti").sort("began_at", "scan_id", descending=True),
            ],
            engine="streaming",
        )
        return LastScans(ended, int(number.item()), silent)

    return ask(results, question)
