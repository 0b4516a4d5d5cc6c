"""Look up when earlier scans first had a scan's files, and flagged its texts.

This is done once in a scan, over all flags and all scanned ranges of rows.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import polars as pl

from scanner.detection.attribution import EarlierScans
from scanner.input.files import InputFile, time_of_ns
from scanner.registry import given_at
from scanner.results.current_rows import flags, ranges_ever
from scanner.results.queries import ask, quarantine
from scanner.scan_plan import Plan
from schemas.words import Naming

SCAN_BEGAN = pl.col("scan_id").str.head(16).str.to_datetime("%Y%m%dT%H%M%SZ", time_zone="UTC", strict=False)
"""Time at which the scan of a row began, from its id. It is known even if the scan has not ended."""

_FIRST = pl.min_horizontal("first", SCAN_BEGAN).alias("first")
"""Earliest known time of a row: its own, or when its scan began, because the scan's input existed then."""

_OF_SHARD = ["shard_id", "scan_id"]
_TIME = pl.Datetime("us", "UTC")
_LAST_MOMENT = 2**63  # nanoseconds; no file can have so late a time

_OTHERS = pl.concat_list(pl.col(column).fill_null([]) for column in ("named", "further_messages"))
"""All messages that the rules of naming let through. The first is the row's own."""


def read_earlier_scans(
    plan: Plan, files: Iterable[InputFile], began: datetime, *, under_way: bool = False
) -> EarlierScans:
    """Return when earlier scans first had a scan's files and flagged its texts.

    Args:
        plan: the scan's plan.
        files: files that the scan is about to read.
        began: time at which the scan began.
        under_way: whether the scan has rows of its own already. They do not count as earlier.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased at every attempt to read.
    """
    modified = {file.path: file.written for file in files}
    if not modified:
        return EarlierScans(began, {}, {})
    requested_files = _requested_files(
        ((path, modified_at, began) for path, modified_at in modified.items()), all_scans=not under_way
    )

    def first_scans() -> EarlierScans:
        files = _files(plan.results, requested_files).select("path", "first")
        return EarlierScans(began, dict(files.iter_rows()), _texts(plan))

    return ask(plan.results, first_scans)


def _files(results: str, requested_files: pl.DataFrame) -> pl.DataFrame:
    """Return when scans first had files at their paths, before given times.

    Args:
        results: folder or URI.
        requested_files: rows of `_requested_files`.

    Returns:
        Columns path, before and first, the earliest time. Files that no scan had are left out.
    """
    # A scan after a file was last modified had this same file, with any result. If the time of modification is unknown,
    # or is in the future, any scan of the path may have had the file.
    quarantine_rows = quarantine(results).select("path", "scan_id", "scanned_at", began_at="scanned_at")
    ranges = ranges_ever(results).select("path", "scan_id", "scanned_at", "began_at")
    tables = [
        rows.filter(
            pl.col("path").is_between(pl.lit(requested_files["path"].min()), pl.lit(requested_files["path"].max()))
        )
        .join(requested_files.lazy(), on="path")
        .filter((pl.col("scanned_at") < pl.col("before")).fill_null(value=True))
        .group_by("path", "before", "modified", "scan_id")
        .agg(first=pl.col("began_at").min(), last=pl.col("scanned_at").max())
        for rows in (ranges, quarantine_rows)
    ]
    same_file = pl.col("modified").is_null() | (pl.col("last") >= pl.col("modified"))
    first_scans = pl.concat(tables).filter(same_file).select("path", "before", _FIRST)
    return first_scans.group_by("path", "before").agg(pl.col("first").min()).collect(engine="streaming")


def _requested_files(files: Iterable[tuple[str, datetime | None, datetime]], *, all_scans: bool) -> pl.DataFrame:
    """Return rows for `_files`: path, modified (time of the file), and before (when the asking scan began).

    Args:
        files: path, time of modification, and beginning of the asking scan.
        all_scans: whether scans of any time count. `before` is then null.
    """
    rows = [
        (path, modified_at if modified_at and modified_at <= began else None, None if all_scans else began)
        for path, modified_at, began in files
    ]
    return pl.DataFrame(rows, {"path": pl.String, "modified": _TIME, "before": _TIME}, orient="row").unique()


class RecordedHistory(NamedTuple):
    """A scan's knowledge of a flagged document at its beginning, without the document's own time.

    written: time at which its file was modified.
    file: time at which an earlier scan had the same file.
    text: time at which an earlier scan flagged the text.
    dropped: whether nights were dropped since, together with their knowledge.
    """

    written: datetime | None
    file: datetime | None
    text: datetime | None
    dropped: bool


def _modified(mark: str | None) -> datetime | None:
    time = (mark or "").rpartition(":")[2]
    return time_of_ns(int(time)) if time.isascii() and time.isdigit() and 0 < int(time) < _LAST_MOMENT else None


def recorded_history(results: str, row: Mapping[str, Any], began: datetime) -> RecordedHistory:
    """Return the knowledge that the scan of a row of FLAGS had, as far as the tables still contain it.

    Args:
        results: folder or URI.
        row: a row of FLAGS.
        began: time at which the scan of the row began.

    Raises:
        Refused: there are no results.
    """
    ranges = ranges_ever(results)
    shard_ranges = ranges.filter((pl.col("scan_id") == row["scan_id"]) & (pl.col("shard_id") == row["shard_id"]))
    marks = shard_ranges.select("file", "since").collect().rows()
    modified = next(
        (modified_at for mark, since in marks if (modified_at := since or _modified(mark)) is not None), None
    )
    files = dict(
        _files(results, _requested_files([(row["path"], modified, began)], all_scans=False))
        .select("path", "first")
        .rows()
    )
    texts = flags(results).filter((pl.col("text_sha256") == row["text_sha256"]) & (pl.col("scanned_at") < began))
    text = texts.with_columns(first="scanned_at").select(_FIRST).min().collect().item()
    has_dropped_nights = not ranges.filter(pl.col("dropped_at").is_not_null()).head(1).collect().is_empty()
    return RecordedHistory(modified, files.get(row["path"]), text, has_dropped_nights)


def _texts(plan: Plan) -> dict[bytes, datetime]:
    """Return when each text was first flagged, by SHA-256, for the few texts for which this can change a name.

    There are three cases:

    - A message of the text was given since.
    - The flag would not pass today, or its key is not tested.
    - The flag named nobody: it was ambiguous, undecided or unproved.

    In all other cases the text has the same messages again, or another message passes too and nobody is named.
    """
    more_tests = (_tests_now(plan) / pl.col("correction")).clip(lower_bound=1).log10()
    passes = pl.col("log10_p_global") + more_tests <= math.log10(plan.config.false_positive_rate)
    keys = [key.key_id for key in plan.keys]
    one_named = ~pl.col("naming").is_in([str(why) for why in (Naming.AMBIGUOUS, Naming.UNDECIDED, Naming.UNPROVED)])
    same_message = pl.col("key_id").is_in(keys) & passes & one_named
    flagged = (
        flags(plan.results)
        .with_columns(first="scanned_at")
        .with_columns(others=_OTHERS)
        .select("text_sha256", "key_id", "message", "others", _FIRST, same=same_message)
    )
    entry = pl.col("others").struct
    entry_rows = (
        flagged.filter(pl.col("others").list.len() > 0)
        .explode("others")
        .with_columns(key_id=entry.field("key_id"), message=entry.field("message"))
    )
    flagged = pl.concat([flagged.drop("others"), entry_rows.drop("others")])
    rows = (
        flagged.join(_given_since(plan, flagged.filter("same")), on=["key_id", "message"], how="left")
        .filter(~pl.col("same") | (pl.col("allocated_at") > pl.col("first")))
        .group_by("text_sha256")
        .agg(pl.col("first").min())
    )
    return dict(rows.collect(engine="streaming").iter_rows())


def _tests_now(plan: Plan) -> pl.Expr:
    """Return K of a row's key and variant, for today's correction. Untested keys count as keys without weights."""
    tests_by_key = {key.key_id: plan.corrections_of(key)[:, 1, 1] for key in plan.keys}

    def now(variant: int) -> pl.Expr:
        tests_of_key = {key_id: tests[min(variant, len(tests) - 1)] for key_id, tests in tests_by_key.items()}
        return pl.col("key_id").replace_strict(tests_of_key, default=float(plan.keys_tested), return_dtype=pl.Float64)

    return pl.when(pl.col("variant").is_null()).then(now(0)).otherwise(now(1))


def _given_since(plan: Plan, flagged: pl.LazyFrame) -> pl.LazyFrame:
    """Return the messages that were given after a text was flagged for them, with allocated_at."""
    first_scans = flagged.drop_nulls("message").group_by("key_id", "message").agg(pl.col("first").min())
    messages = first_scans.collect(engine="streaming")
    given = given_at(plan.registry, messages).join(messages, on=["key_id", "message"])
    return given.filter(pl.col("allocated_at") > pl.col("first")).drop("first").lazy()
