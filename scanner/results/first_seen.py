"""Sightings by earlier scans: the files that a scan is about to scan, and the texts that they flagged.

It is asked once a scan, of all flags and of all ranges of rows that were scanned.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import polars as pl

from scanner.detection.existence import Sightings, moment, written
from scanner.detection.scan_plan import Plan
from scanner.input.files import InputFile
from scanner.registry import given_at
from scanner.results.newest import flags, ranges_ever
from scanner.results.queries import ask, quarantine
from schemas.words import Naming

_BEGAN = pl.col("scan_id").str.head(16).str.to_datetime("%Y%m%dT%H%M%SZ", time_zone="UTC", strict=False)
_FIRST = pl.min_horizontal("first", _BEGAN).alias("first")
"""Beginning of the scan of a row, by its id: its input was there then, whenever the scan came to this row."""

_OTHERS = pl.concat_list(pl.col(column).fill_null([]) for column in ("named", "named_again"))
"""All messages that the rules of naming let through; the first is the row's own."""


def first_seen(plan: Plan, files: Iterable[InputFile], began: datetime) -> Sightings:
    """A scan's knowledge of earlier scans of its files, when it begins.

    Raises:
        Refused: there are no results.
        ScanFailed: names were erased all the while.
    """
    modified = {file.path: written(file) for file in files}
    if not modified:
        return Sightings(began, {}, {})
    return ask(plan.results, lambda: Sightings(began, _files(plan.results, modified, began), _texts(plan)))


def _files(
    results: str, modified: dict[str, datetime | None], began: datetime, *, only_before: bool = False
) -> dict[str, datetime]:
    """When files were first scanned, by path, if they were; only_before: by scans that were done when this one began.

    A scan after a file was last modified had this very file, whatever it made of it. Where that time is not known, or
    is still to come, any scan of the path may have had it.
    """
    wanted = pl.LazyFrame(
        {
            "path": list(modified),
            "modified": [time if time and time <= began else None for time in modified.values()],
        },
        schema={"path": pl.String, "modified": pl.Datetime("us", "UTC")},
    )
    lost = quarantine(results).select("path", "scan_id", "scanned_at", began_at="scanned_at")
    ranges = ranges_ever(results).select("path", "scan_id", "scanned_at", "began_at")
    tables = [
        rows.filter(pl.col("path").is_between(pl.lit(min(modified)), pl.lit(max(modified))))
        .filter((pl.col("scanned_at") < began) | (not only_before))
        .join(wanted, on="path")
        .group_by("path", "modified", "scan_id")
        .agg(first=pl.col("began_at").min(), last=pl.col("scanned_at").max())
        for rows in (ranges, lost)
    ]
    same_file = pl.col("modified").is_null() | (pl.col("last") >= pl.col("modified"))
    seen = pl.concat(tables).filter(same_file).select("path", _FIRST).group_by("path").agg(pl.col("first").min())
    return dict(seen.collect(engine="streaming").iter_rows())


class Before(NamedTuple):
    """A scan's knowledge of a flagged document when it began, without the document's own time.

    written: when its file had been modified; file, text: when a scan before had the same file, or flagged the text;
    dropped: whether nights have been dropped since, with what they knew.
    """

    written: datetime | None
    file: datetime | None
    text: datetime | None
    dropped: bool


def seen_before(results: str, row: Mapping[str, Any], began: datetime) -> Before:
    """Knowledge of the scan of a row of FLAGS, which began then, as far as the tables still have it.

    Raises:
        Refused: there are no results.
    """
    ranges = ranges_ever(results)
    own = ranges.filter((pl.col("scan_id") == row["scan_id"]) & (pl.col("shard_id") == row["shard_id"]))
    marks = [file.rpartition(":")[2] for (file,) in own.select("file").drop_nulls().collect().iter_rows()]
    modified = next((moment(int(mark)) for mark in marks if mark.isdigit() and int(mark)), None)
    files = _files(results, {row["path"]: modified}, began, only_before=True)
    texts = flags(results).filter((pl.col("text_sha256") == row["text_sha256"]) & (pl.col("scanned_at") < began))
    text = texts.with_columns(first="scanned_at").select(_FIRST).min().collect().item()
    dropped = not ranges.filter(pl.col("dropped_at").is_not_null()).head(1).collect().is_empty()
    return Before(modified, files.get(row["path"]), text, dropped)


def _texts(plan: Plan) -> dict[bytes, datetime]:
    """When texts were first flagged, by SHA-256, where that can change whom they name: few, however many were flagged.

    A text that passes again has its messages again, or another one passes too and nobody is named. So it can where one
    of these was given since; where the flag would not pass now, or under keys that are not under test; and where
    several messages passed, none by what is its user's alone, or what passed came out differently.
    """
    more_tests = (_tests_now(plan) / pl.coalesce("tests", "keys_tested")).clip(lower_bound=1).log10()
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
    others = pl.col("others").struct
    more = (
        flagged.filter(pl.col("others").list.len() > 0)
        .explode("others")
        .with_columns(key_id=others.field("key_id"), message=others.field("message"))
    )
    flagged = pl.concat([flagged.drop("others"), more.drop("others")])
    rows = (
        flagged.join(_given_since(plan, flagged.filter("same")), on=["key_id", "message"], how="left")
        .filter(~pl.col("same") | (pl.col("allocated_at") > pl.col("first")))
        .group_by("text_sha256")
        .agg(pl.col("first").min())
    )
    return dict(rows.collect(engine="streaming").iter_rows())


def _tests_now(plan: Plan) -> pl.Expr:
    """K of a row's key and variant, for today's correction; keys not under test count as keys without weights."""
    of_keys = {key.key_id: plan.tested_among(key) for key in plan.keys}

    def now(variant: int) -> pl.Expr:
        among = {key_id: tests[min(variant, len(tests) - 1)] for key_id, tests in of_keys.items()}
        return pl.col("key_id").replace_strict(among, default=float(plan.keys_tested), return_dtype=pl.Float64)

    return pl.when(pl.col("variant").is_null()).then(now(0)).otherwise(now(1))


def _given_since(plan: Plan, flagged: pl.LazyFrame) -> pl.LazyFrame:
    """Messages that were given after a text was flagged for them, with allocated_at."""
    seen = flagged.drop_nulls("message").group_by("key_id", "message").agg(pl.col("first").min())
    messages = seen.collect(engine="streaming")
    given = given_at(plan.registry, messages).join(messages, on=["key_id", "message"])
    return given.filter(pl.col("allocated_at") > pl.col("first")).drop("first").lazy()
