"""Query the tables of results with lazy frames of polars."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime
from functools import reduce
from operator import and_
from typing import TypeVar

import polars as pl

from scanner.errors import ScanFailed
from scanner.results.canary_flags import of_canary
from scanner.results.current_rows import (
    EVERY_ROW,
    current_flags,
    exact,
    flags,
    newest_flags,
    newest_verdicts,
    ranges_ever,
    shards,
)
from scanner.results.names_of_registry import without_foreign_names
from scanner.results.transactions import faults_named, has_table, open_results_table, read_whole
from scanner.storage.data_files import OF_USERS
from schemas.words import AuditState

_ATTEMPTS = 10

Answer = TypeVar("Answer")


def exist(results: str) -> bool:
    """Return whether results exist. They exist once a scan has made the tables.

    Raises:
        TableError: the table of verdicts was signed, and is gone.
    """
    return has_table(results, "verdicts")


def ask(results: str, question: Callable[[], Answer]) -> Answer:
    """Return the result of queries that a function makes and collects. Repeat them while names are being erased.

    An erasure deletes the files with the names at once, and a query may be about to read them.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased at every attempt, or a table or one of its files cannot be read.
    """
    with faults_named(results):
        for _ in range(_ATTEMPTS):
            versions = _versions(results)
            try:
                return question()
            except (ScanFailed, OSError, pl.exceptions.PolarsError):
                if _versions(results) == versions:
                    raise
    raise ScanFailed(f"results: {results} cannot be read while names are erased from it; run again later")


_ERASED = ("account_posts", *(name for name in OF_USERS if name != "verdicts"))
"""Tables from which an erasure removes names, besides `verdicts`."""


def _versions(results: str) -> list[int]:
    """Return the versions of the tables from which names are erased. The first, of `verdicts`, must exist."""
    names = ["verdicts", *(name for name in _ERASED if has_table(results, name))]
    return [open_results_table(results, name).version() for name in names]


def scanned_and_one_of(
    since: datetime | None, before: datetime | None, values: Mapping[str, Collection[str]]
) -> pl.Expr:
    """Return a filter for rows scanned since and before these times, with one of the values of each column.

    Columns without values filter nothing.
    """
    filters = [pl.col(column).is_in(list(allowed)) for column, allowed in values.items() if allowed]
    if since is not None:
        filters.append(pl.col("scanned_at") >= since)
    if before is not None:
        filters.append(pl.col("scanned_at") < before)
    return reduce(and_, filters, EVERY_ROW)


def verdicts(results: str, paths: Collection[str] | None = None) -> pl.LazyFrame:
    """Return the verdicts on all documents, one per (path, row), in any order. Columns as in schemas.tables.VERDICTS.

    If a document was scanned more than once, the newest row under each set of keys counts. Of these, the row with the
    smallest corrected p-value is returned. A key that is added later and scanned by itself therefore hides no older
    flag. Only `flagged` has scores and p-values. Rows here have `p_class`.

    Rows that a file no longer has, because a shorter file replaced it, stay. A flag does not disappear because its file
    was cut short.

    Args:
        results: folder or URI.
        paths: only rows of these input files. Files of the table without such rows are not opened. None: all files.

    Raises:
        Refused: there are no results.
    """
    if paths is None:
        return newest_verdicts(results, read_whole(results, "verdicts"))
    path_values = pl.Series(list(paths), dtype=pl.String)
    return newest_verdicts(
        results, read_whole(results, "verdicts", path_values).filter(pl.col("path").is_in(path_values.implode()))
    )


def verdicts_of(results: str, shard_ids: Iterable[str], judged: pl.LazyFrame) -> pl.LazyFrame:
    """Return all rows of some shards, and of all shards of their scans that were not judged.

    Flagged rows are as in `flags`, with their p-values. Files of the table without a path of these shards are not
    opened.

    Args:
        results: folder or URI.
        shard_ids: ids of the shards.
        judged: the judged scans, column scan_id.

    Raises:
        Refused: there are no results.
    """
    ranges = shards(results).select("shard_id", "scan_id", "path")
    shard_ranges = ranges.join(
        pl.LazyFrame({"shard_id": list(shard_ids)}, {"shard_id": pl.String}), on="shard_id", how="semi"
    )
    begun = shard_ranges.select("scan_id").unique().join(judged, on="scan_id", how="anti")
    all_ranges = (
        pl.concat([shard_ranges, ranges.join(begun, on="scan_id", how="semi")]).unique().collect(engine="streaming")
    )
    rows = read_whole(results, "verdicts", all_ranges["path"])
    return exact(results, rows.join(all_ranges.lazy().select("shard_id").unique(), on="shard_id", how="semi"))


def flagged(
    results: str, false_positive_rate: float = 1.0, wanted: pl.Expr = EVERY_ROW, *, canaries: bool = False
) -> pl.LazyFrame:
    """Return the verdicts on flagged documents, newest first, each with the state of its audit.

    The column `audit` is one of schemas.words.AuditState. It is null until a scan that covers the row has ended. It is
    `alarm` if any audit with verdicts of the row's scan, or a part of them, ended in an alarm. Otherwise, it is
    `canaries lost` or `possible framing` if any such audit ended so. Otherwise, it is the result of the newest such
    audit. Raises as `verdicts`.

    Args:
        results: folder or URI.
        false_positive_rate: a rate stricter than the scan's leaves out rows that would not have been flagged under it.
            The column `flagged` is by the rate of the scan that wrote it.
        wanted: expression on columns of schemas.tables.VERDICTS that selects rows. It is applied when `flags` is read,
            so other rows take no memory.
        canaries: whether to include texts of canaries that were found and named correctly. They are no flags. The
            column `canary` tells them apart.
    """
    rows = flags_at_rate(results, false_positive_rate, wanted)
    if not canaries:
        rows = rows.filter(~of_canary())
    return with_audit(results, rows.sort("scanned_at", "scan_id", descending=True))


def flags_at_rate(results: str, false_positive_rate: float, wanted: pl.Expr = EVERY_ROW) -> pl.LazyFrame:
    """Return the flags at a rate, including those of canaries, in any order, without the state of their audit."""
    strict = pl.col("log10_p_global") <= math.log10(false_positive_rate)
    rows = without_foreign_names(results, "flags", flags(results).filter(strict))
    return newest_flags(results, rows, wanted)


def spans(results: str, false_positive_rate: float = 1.0) -> pl.LazyFrame:
    """Return the marked parts of all flagged documents, including canaries', as in schemas.tables.SPANS.

    If several sets of keys have the same span, the newest is returned. Raises as `verdicts`.
    """
    flag_columns = ["scan_id", "shard_id", "path", "row"]
    strict = pl.col("log10_p_global") <= math.log10(false_positive_rate)
    rows = read_whole(results, "spans")
    standing_flags = current_flags(results, flags(results).filter(strict)).select(flag_columns)
    by_age = rows.filter(strict).join(standing_flags, on=flag_columns, how="semi").sort("scanned_at", "scan_id")
    part = ["path", "row", "key_id", "message", "char_from", "char_to"]
    return without_foreign_names(results, "spans", by_age.unique(part, keep="last", maintain_order=True))


def accounts(results: str, false_positive_rate: float = 1.0, night: date | None = None) -> pl.LazyFrame:
    """Return accounts whose posts together are marked, as in schemas.tables.ACCOUNTS: the newest row of each, by keys.

    Args:
        results: folder or URI.
        false_positive_rate: a rate stricter than the scan's leaves out accounts that would not have been flagged under
            it.
        night: date of the data. Rows of other nights are left out. None: all nights.

    Raises:
        Refused: no scan tested accounts.
    """
    rows = read_whole(results, "accounts").filter(pl.col("log10_p_global") <= math.log10(false_positive_rate))
    if night is not None:
        rows = rows.filter(pl.col("night") == night.isoformat())
    newest = rows.sort("scanned_at", "scan_id").unique(["account_id", "keys"], keep="last", maintain_order=True)
    return without_foreign_names(results, "accounts", newest)


def with_audit(results: str, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows of VERDICTS, in their order, each with the state of its audit, as in `flagged`."""
    return rows.join(_audit_states(results), on="scan_id", how="left", maintain_order="left")


def nights(results: str) -> pl.LazyFrame:
    """Return totals by the date of the data, newest first. Raises as `verdicts`.

    Columns: night, shards, documents, flagged, canaries (texts of canaries that were named correctly, which are not in
    `flagged`), quarantined, too_short, filtered, scored_in_part, tokens. A document that was scanned again counts in
    both nights.
    """
    sums = pl.col(
        "documents", "flagged", "canaries", "quarantined", "too_short", "filtered", "scored_in_part", "tokens"
    ).sum()
    return shards(results).group_by("night").agg(pl.len().alias("shards"), sums).sort("night", descending=True)


def _audit_states(results: str) -> pl.LazyFrame:
    worst = (AuditState.ALARM, AuditState.CANARIES_LOST, AuditState.POSSIBLE_FRAMING)
    states = [pl.when((pl.col("audit") == state).any()).then(pl.lit(state)) for state in worst]
    judged = scans(results).select("audit", scan_id="audited_scans").explode("scan_id").drop_nulls("scan_id")
    return judged.group_by("scan_id").agg(audit=pl.coalesce(*states, pl.col("audit").last()))


def quarantine(results: str) -> pl.LazyFrame:
    """Return the rows that could not be scored, with reasons, as in schemas.tables.QUARANTINE. Raises as `verdicts`."""
    return read_whole(results, "quarantine")


def scans(results: str) -> pl.LazyFrame:
    """Return all scans, oldest first, as in schemas.tables.SCANS. Raises as `verdicts` does."""
    return read_whole(results, "scans").sort("started_at")


def rules_ever(results: str) -> set[tuple[str, int]]:
    """Return dedup and min_scored of all scans, and of shards of scans that were killed. Raises as `verdicts` does."""
    stated = (table.select("dedup", "min_scored").unique() for table in (scans(results), ranges_ever(results)))
    return {*pl.concat(stated).drop_nulls().collect(engine="streaming").iter_rows()}


def of_trial(results: str) -> bool | None:
    """Return whether scans of a trial wrote these results. None: no scan has ended there."""
    if not exist(results):
        return None
    trials = ask(results, lambda: scans(results).select(pl.col("trial").fill_null(value=False)).collect())["trial"]
    return bool(trials.any()) if len(trials) else None


def keys_of_scans(results: str) -> list[str]:
    """Return the ids of all keys that any scan had, in order. Raises as `verdicts` does."""
    ids = pl.col("keys").explode().struct.field("key_id")
    return sorted(ask(results, lambda: scans(results).select(ids).unique().drop_nulls().collect())["key_id"])


def audits(results: str) -> pl.LazyFrame:
    """Return the audits of the false-positive rate, as in schemas.audit.AUDITS. Raises as `verdicts` does."""
    return read_whole(results, "audits")


def audit_counts(results: str) -> pl.LazyFrame:
    """Return the counts of the decoys of every shard, as in schemas.audit.AUDIT_COUNTS. Raises as `verdicts` does."""
    return read_whole(results, "audit_counts")
