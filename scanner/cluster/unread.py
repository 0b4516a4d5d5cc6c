"""What a scan did not read: files of other names, quarantine, and whether it read nothing at all.

It counts all of the scan's input, whichever scans read it: after a resume, the whole night.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import polars as pl

from scanner.detection.scan_plan import Plan
from scanner.printable import printable
from scanner.results import quarantine
from scanner.results.reasons import MOST_TOLD, Reason, in_words, reasons
from scanner.results.whole_input import NOTHING_READ, WholeInput, whole_input

if TYPE_CHECKING:
    from scanner.cluster.commits import Totals
    from scanner.cluster.work import Work

_ENDINGS_TOLD = 5


@dataclass(frozen=True)
class Unread:
    """What a scan did not read.

    passed_over: paths of files in the input's folders that do not end in .parquet; reasons: why documents and files of
    the input are in quarantine; nothing: a sentence when no document of the input has a verdict, by this scan or one
    before, else empty; allowed: reading nothing is no fault, since nothing was there and the configuration says
    `allow_empty`; whole: totals of the input; too_much: a sentence for each limit of the configuration that what could
    not be read exceeds.
    """

    passed_over: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    nothing: str = ""
    allowed: bool = False
    whole: WholeInput = NOTHING_READ
    too_much: tuple[str, ...] = ()


ALL_READ = Unread()


def what_was_not_read(
    plan: Plan, scan_id: str, work: "Work", totals: "Totals", files: int, passed_over: Sequence[str]
) -> Unread:
    """Look back at a scan whose work is done: `files` of the input were looked at."""
    over, whole = tuple(passed_over), _whole(plan, work, totals)
    found, lost = tuple[Reason, ...](), list[str]()
    if whole.quarantined or whole.files_at_fault:
        ids = [*(shard.shard_id for shard in work.found), *work.at_fault]
        ours = (pl.col("scan_id") == scan_id) | pl.col("shard_id").is_in(ids)
        rows = quarantine(plan.results).filter(ours).unique(["path", "row"])
        found = reasons(rows)
        lost = rows.filter(pl.col("row").is_null()).select("path").collect()["path"].sort().to_list()
    beyond = tuple(_too_much(plan, work, totals, whole.files_at_fault, lost))
    if whole.documents > whole.quarantined:
        return Unread(over, found, whole=whole, too_much=beyond)
    quiet = not found and not over
    return Unread(over, found, _sentence(files, found, quiet), quiet and plan.config.allow_empty, whole, beyond)


def _whole(plan: Plan, work: "Work", totals: "Totals") -> WholeInput:
    done = totals.counts
    if totals.shards == work.shards and not work.earlier:
        sums = done.whole_input()
    else:  # other scans did a part, before or meanwhile
        found, earlier = ([shard.shard_id for shard in shards] for shards in (work.found, work.earlier))
        sums = whole_input(plan.results, found, earlier)
    return sums._replace(files_at_fault=totals.files_quarantined + len(work.at_fault) - len(work.faults))


def reasons_of(plan: Plan, scan_id: str) -> tuple[Reason, ...]:
    """Why documents and files that one scan read are in quarantine."""
    return reasons(quarantine(plan.results).filter(pl.col("scan_id") == scan_id))


def _too_much(
    plan: Plan, work: "Work", totals: "Totals", files_at_fault: int, lost: Sequence[str] = ()
) -> Iterator[str]:
    """A sentence for each limit that what could not be read exceeds; lost: paths of the files, which it names."""
    config, see = plan.config, f"`brickscan quarantine {shlex.quote(plan.results)} --group-by document`"
    named = ": " + ", ".join(map(printable, lost[:MOST_TOLD])) + " …" * (len(lost) > MOST_TOLD) if lost else ""
    if files_at_fault > config.max_lost_files:
        yield (
            f"{files_at_fault:,} of the input's files cannot be read, and max_lost_files allows "
            f"{config.max_lost_files:,}{named}. {see} says why; write them anew and scan again, or raise "
            "max_lost_files."
        )
    most, counts = config.max_quarantined_share, totals.counts
    of_documents = (counts.quarantined + totals.rows_lost) / max(counts.documents + totals.rows_lost, 1)
    of_files = totals.files_quarantined / max(work.files, 1)
    if most is not None and max(of_documents, of_files) > most:
        yield (
            f"{of_documents:.3%} of the documents and {of_files:.3%} of the files are in quarantine, and "
            f"max_quarantined_share allows {most:.3%}{named}. {see} lists them."
        )


def _sentence(files: int, found: Sequence[Reason], quiet: bool) -> str:
    if found:
        what = f"all that the input holds is in quarantine ({in_words(found)}): see `brickscan quarantine`"
    elif files:
        what = f"the input's Parquet files ({files:,}) hold no documents"
    else:
        what = "the input holds no Parquet file"
    return f"Nothing was read: {what}." + " Set allow_empty = true if nights may be quiet." * quiet


def other_names(paths: Iterable[str]) -> str:
    """Endings of files that are passed over, with counts, such as `.csv 12, .PARQUET 1`; empty: there are none."""
    counts = Counter(PurePosixPath(path).suffix or "no ending" for path in paths)
    endings = [f"{ending} {number:,}" for ending, number in counts.most_common(_ENDINGS_TOLD)]
    return ", ".join([*endings, *(["…"] if len(counts) > _ENDINGS_TOLD else [])])
