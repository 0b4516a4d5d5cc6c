"""Report the part of the input that a scan did not read: skipped files, quarantine, and the limits for these."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import polars as pl

from scanner.cluster.work import ScanWork
from scanner.printable import counted, printable
from scanner.results import quarantine
from scanner.results.scan_list import EXAMPLES_TOLD, NOTHING_READ, Reason, WholeInput, in_words, reasons, whole_input
from scanner.scan_plan import Plan

if TYPE_CHECKING:
    from scanner.cluster.commits import ScanTotals

_ENDINGS_TOLD = 5


@dataclass(frozen=True)
class UnreadInput:
    """The part of the input that a scan did not read.

    passed_over: paths of files in the input's folders that do not end in .parquet, or are hidden.
    reasons: why documents and files of the input are in quarantine.
    nothing: a sentence if no document of the input has a verdict, by this scan or an earlier one. Otherwise empty.
    allowed: whether reading nothing is no fault, because there was nothing and the configuration says `allow_empty`.
    whole: totals of the input.
    too_much: a sentence for each limit of the configuration that unread documents and files exceed.
    """

    passed_over: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    nothing: str = ""
    allowed: bool = False
    whole: WholeInput = NOTHING_READ
    too_much: tuple[str, ...] = ()


ALL_READ = UnreadInput()


def find_unread(
    plan: Plan, scan_id: str, work: ScanWork, totals: "ScanTotals", files: int, passed_over: Sequence[str]
) -> UnreadInput:
    """Report the part of the input that a scan did not read, once its work is done.

    files: number of files of the input that were checked.
    """
    paths, whole = tuple(passed_over), _whole(plan, work, totals)
    why, lost_files = tuple[Reason, ...](), list[str]()
    if whole.quarantined or whole.files_at_fault:
        ids = [*(shard.shard_id for shard in work.shards), *work.at_fault]
        of_input = (pl.col("scan_id") == scan_id) | pl.col("shard_id").is_in(ids)
        rows = quarantine(plan.results).filter(of_input).unique(["path", "row"])
        why = reasons(rows)
        lost_files = rows.filter(pl.col("row").is_null()).select("path").collect()["path"].sort().to_list()
    too_much = tuple(_too_much(plan, work, totals, whole.files_at_fault, lost_files))
    # rows that a table's commits moved have their verdicts under earlier files, which may be gone
    moved = any(shard.file.entry is not None and shard.file.entry.parents for shard in work.shards)
    if whole.documents > whole.quarantined or moved:
        return UnreadInput(paths, why, whole=whole, too_much=too_much)
    allowed = not why and not paths and plan.config.allow_empty
    advice = " Set allow_empty = true if a night may be empty." * (not why and not paths and not allowed)
    return UnreadInput(paths, why, _nothing(plan, files, why) + advice, allowed, whole, too_much)


def _whole(plan: Plan, work: ScanWork, totals: "ScanTotals") -> WholeInput:
    if totals.shards == work.shard_count and not work.earlier:
        sums = WholeInput.of(totals.counts)
    else:  # other scans did a part, before or at the same time
        ids, earlier = ([shard.shard_id for shard in shards] for shards in (work.shards, work.earlier))
        sums = whole_input(plan.results, ids, earlier)
    return sums._replace(files_at_fault=totals.files_quarantined + len(work.at_fault) - len(work.faults))


def reasons_of(plan: Plan, scan_id: str) -> tuple[Reason, ...]:
    """Return why documents and files that one scan read are in quarantine."""
    return reasons(quarantine(plan.results).filter(pl.col("scan_id") == scan_id))


def _too_much(
    plan: Plan, work: ScanWork, totals: "ScanTotals", files_at_fault: int, lost: Sequence[str] = ()
) -> Iterator[str]:
    """Write a sentence for each limit that unread documents and files exceed.

    lost: paths of files to name.
    """
    config, see = plan.config, f"`brickscan quarantine {shlex.quote(plan.results)} --group-by document`"
    named = ": " + ", ".join(map(printable, lost[:EXAMPLES_TOLD])) + " …" * (len(lost) > EXAMPLES_TOLD) if lost else ""
    if files_at_fault > config.max_lost_files:
        yield (
            f"{files_at_fault:,} of the input's files cannot be read, and max_lost_files allows "
            f"{config.max_lost_files:,}{named}. {see} says why; write these files again and rerun the scan, or raise "
            "max_lost_files."
        )
    allowed_share, counts = config.max_quarantined_share, totals.counts
    documents_share = (counts.quarantined + totals.rows_lost) / max(counts.documents + totals.rows_lost, 1)
    files_share = totals.files_quarantined / max(work.files, 1)
    if allowed_share is not None and max(documents_share, files_share) > allowed_share:
        yield (
            f"{documents_share:.3%} of the documents and {files_share:.3%} of the files are in quarantine, and "
            f"max_quarantined_share allows {allowed_share:.3%}{named}. {see} lists them."
        )


def _nothing(plan: Plan, files: int, why: Sequence[Reason]) -> str:
    if why:
        sentence = f"the whole input is in quarantine ({in_words(why)}): see `brickscan quarantine`"
    elif files:
        sentence = f"the input's Parquet files ({files:,}) contain no documents"
    else:
        sentence = f"no Parquet file is in {', '.join(map(printable, plan.locations))}"
    return f"Nothing was read: {sentence}."


def other_names(paths: Iterable[str]) -> str:
    """Count the endings of files that are passed over, for example `.csv 12, .PARQUET 1`. Empty: there are none."""
    counts = Counter(PurePosixPath(path).suffix or "no ending" for path in paths)
    endings = [f"{ending} {number:,}" for ending, number in counts.most_common(_ENDINGS_TOLD)]
    return ", ".join([*endings, *(["…"] if len(counts) > _ENDINGS_TOLD else [])])


def passed_over_in_words(paths: Sequence[str]) -> Iterator[str]:
    """Yield sentences on files in the input's folders that are not read: first other endings, then hidden files."""
    others = [path for path in paths if not path.endswith(".parquet")]
    hidden = [path for path in paths if path.endswith(".parquet")]
    if others:
        yield (
            f"{counted(len(others), 'file')} skipped, not ending in .parquet ({printable(other_names(others))}), for "
            f"example {printable(others[0])}"
        )
    if hidden:
        yield (
            f"{counted(len(hidden), 'Parquet file')} skipped because the name begins with _ or . as unfinished files "
            f"do, for example {printable(hidden[0])}; rename files that should be read"
        )
