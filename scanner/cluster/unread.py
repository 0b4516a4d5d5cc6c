"""What a scan did not read: files of other names, what went to quarantine, and that it read nothing at all."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import polars as pl

from scanner.detection.scan_plan import Plan
from scanner.results import quarantine
from scanner.results.reasons import Reason, anything_read, in_words, reasons

if TYPE_CHECKING:
    from scanner.cluster.commits import Totals
    from scanner.cluster.work import Work

_ENDINGS_TOLD = 5


@dataclass(frozen=True)
class Unread:
    """What a scan did not read.

    passed_over: paths of files in the input's folders that do not end in .parquet; reasons: why documents and files are
    in quarantine, of this scan, or of whichever scanned the same where nothing was read; nothing: a sentence when no
    document of the input has a verdict, by this scan or one before, else empty; allowed: that is no fault, since
    nothing was there and the configuration says `allow_empty`.
    """

    passed_over: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    nothing: str = ""
    allowed: bool = False


ALL_READ = Unread()


def what_was_not_read(
    plan: Plan, scan_id: str, work: "Work", totals: "Totals", files: int, passed_over: Sequence[str]
) -> Unread:
    """Look back at a scan whose work is done: `files` of the input were looked at."""
    counts, over, shards = totals.counts, tuple(passed_over), [shard.shard_id for shard in work.found]
    rows, ours = quarantine(plan.results), pl.col("scan_id") == scan_id
    if counts.documents > counts.quarantined or anything_read(plan.results, shards):
        return Unread(over, reasons(rows.filter(ours)) if counts.quarantined or totals.files_quarantined else ())
    found = reasons(rows.filter(ours | pl.col("shard_id").is_in([*shards, *work.at_fault])))
    quiet = not found and not over
    return Unread(over, found, _sentence(files, found, quiet), allowed=quiet and plan.config.allow_empty)


def _sentence(files: int, found: Sequence[Reason], quiet: bool) -> str:
    if found:
        what = f"all that the input holds is in quarantine ({in_words(found)}): see the table `quarantine`"
    elif files:
        what = f"the input's Parquet files ({files:,}) hold no documents"
    else:
        what = "the input holds no Parquet file"
    return f"Nothing was read: {what}." + " Set allow_empty = true if nights may be quiet." * quiet


def other_names(paths: Iterable[str]) -> str:
    """Endings of files that are passed over, with counts, such as `.csv 12, .PARQUET 1`; empty: there are none."""
    counts = Counter(PurePosixPath(path).suffix or "no ending" for path in paths)
    told = [f"{ending} {number:,}" for ending, number in counts.most_common(_ENDINGS_TOLD)]
    return ", ".join([*told, *(["…"] if len(counts) > _ENDINGS_TOLD else [])])
