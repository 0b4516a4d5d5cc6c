"""Run the pass in which a model reads texts after all were scored, and tokens count by how much they surprised it.

Each shard is worked through once more, under another id, which also hashes the model. It uses the same pool and the
same commits as before. Rows of flags, texts, readings and decoys are committed first, and the shard's transaction in
`verdicts` last, without a row. So a pass that was killed continues with the shards that are left. If two drivers work
on a shard, only one of their commits counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from scanner import results
from scanner.follow_up import CommittedScan, OnActors
from scanner.input.shards import Shard, shard_id
from scanner.input.tables import pack_rows
from scanner.looks.levels.model_scoring import FlaggedRows, ModelScoring, reading_cost, reading_seconds
from scanner.looks.levels.token_levels import reader_config
from scanner.looks.look import NO_RESULT, LookEstimate, LookResult, ReadAgain, SecondPass, SecondPassTotals
from scanner.printable import counted, in_hours
from scanner.results.current_rows import flags
from scanner.results.queries import ask
from scanner.results.retention import done_in_frozen_nights
from scanner.results.transactions import Tables, find_committed, read_whole
from scanner.scan_plan import Plan
from schemas.words import Naming


class ModelPass:
    """Has a model read the shards that it has not read.

    plan: plan of the pass, which names the model by its digest.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ids: list[str] = []
        self._totals: SecondPassTotals | None = None  # it has not begun

    @property
    def result(self) -> LookResult:
        """Return how much the model read, and how much is left."""
        if self._totals is None:
            return NO_RESULT
        totals, reader = self._totals, {"reader_sha256": self._plan.reader_sha256}
        columns = {"level_texts": totals.texts, "level_flags": totals.flagged, "level_shards_left": totals.left}
        return LookResult(
            counts={**reader, **totals._asdict()},
            columns={**reader, **columns},
            audited=self._ids,
            summary=list(_summary(totals)),
            hands=[
                f"NOT FINAL: the model has not read {counted(totals.left, 'shard')}; run the same command again to "
                "continue"
            ]
            * bool(totals.left),
        )

    def run(self, scan: CommittedScan, on_actors: OnActors, read_again: ReadAgain) -> None:
        """Have the model read the shards that are left.

        A shard whose file cannot be read now is left for a later run.
        """
        del on_actors
        plan = replace(
            self._plan,
            filter_sha256=scan.plan.filter_sha256,
            documents=sum(shard.rows.documents for shard in scan.shards),
        )
        shards = shards_of_pass(plan, scan.shards)
        self._ids = [shard.shard_id for shard in shards]
        left = shards_not_read(plan, shards, scan.shards)
        self._totals = SecondPassTotals(left=len(left))  # as an interrupted scan records it
        if not left:
            return
        flagged, by = _flagged_rows(plan, scan.shards), reader_config(plan)
        again = SecondPass(
            plan,
            left,
            ["flag_levels", *["flag_texts"] * plan.config.evidence.keep_text],
            partial(ModelScoring, plan, flagged),
            reading_seconds(Path(by.model)),
            by.gpus,
            "levels.gpus",
        )
        self._totals = read_again(scan, again)


def _summary(totals: SecondPassTotals) -> Iterator[tuple[str, str]]:
    more = counted(totals.flagged, "more document")
    yield "levels", f"{counted(totals.texts, 'text')} read by the model; {more} flagged by their levels"
    if totals.given_up:
        yield "", f"{counted(totals.given_up, 'document')} that the model cannot read (see the scan's log)"


MARKED_SHARE = 0.1
"""Share of a night's texts that is assumed to be marked. Nearly all of these pass the cut of a model."""


def estimate_reading(pinned: Plan, plan: Plan, shards: Sequence[Shard]) -> LookEstimate:
    """Estimate at most how much of the rest the model reads, and how long one core takes for it.

    Args:
        pinned: plan of the pass.
        plan: plan of the scan, with its filter.
        shards: shards of the input, under whichever keys they are scanned.
    """
    of_pass = replace(pinned, filter_sha256=plan.filter_sha256)
    to_read = shards_of_pass(of_pass, shards)
    left = shards_not_read(of_pass, to_read, shards) if results.exist(of_pass.results) else to_read
    seconds, share = reading_cost(of_pass)
    share_read = share + MARKED_SHARE * (reader_config(of_pass).share - share)
    hours = share_read * seconds * sum(shard.rows.text_bytes for shard in left) / 3600
    sentence = (
        f"{len(to_read) - len(left):,} of {counted(len(to_read), 'shard')} read; of the others at most {share:.3g} of "
        f"the unmarked texts, and marked ones: where one text in {1 / MARKED_SHARE:g} is marked, about "
        f"{in_hours(hours)} core-hours more on CPUs, on GPUs less"
    )
    return LookEstimate("model", (sentence,), {"reader_sha256": of_pass.reader_sha256, "core_hours": hours})


def shards_of_pass(plan: Plan, shards: Sequence[Shard]) -> list[Shard]:
    """Return the shards of a pass for those of a scan, under whichever keys these were scanned."""
    ranges = {(shard.file.path, shard.rows): shard for shard in shards}.values()
    return [
        replace(shard, shard_id=shard_id(shard.file, shard.rows, plan.verdict_settings), keys=()) for shard in ranges
    ]


def shards_not_read(plan: Plan, shards: Sequence[Shard], scanned: Sequence[Shard]) -> list[Shard]:
    """Return the shards of a pass that no scan has committed, without those of tables' rows that a commit only moved.

    The verdicts on moved rows stay with their old place, and so do the findings of a model there. Rows on which the
    scan's own shards have verdicts were not moved (scanner.cluster.rewritten).
    """
    tables = Tables(plan.results)
    done = find_committed(tables, "verdicts", [shard.shard_id for shard in shards]) | done_in_frozen_nights(
        tables, shards
    )
    left = [shard for shard in shards if shard.shard_id not in done]
    paths = {shard.file.path for shard in left if shard.file.entry is not None and shard.file.entry.parents}
    if not paths:
        return left
    ids = [shard.shard_id for shard in scanned if shard.file.path in paths]
    verdicts = read_whole(plan.results, "verdicts", pl.Series(sorted(paths))).filter(pl.col("shard_id").is_in(ids))
    rows_of = dict(verdicts.group_by("path").agg("row").collect().iter_rows())

    def without_moved(shard: Shard) -> Shard:
        moved, rows = np.ones(shard.rows.stop, np.bool_), np.array(rows_of.get(shard.file.path, []), np.int64)
        moved[rows[rows < shard.rows.stop]] = False
        return replace(shard, file=replace(shard.file, rewritten=pack_rows(moved)))

    return [without_moved(shard) if shard.file.path in paths else shard for shard in left]


def _flagged_rows(plan: Plan, shards: Sequence[Shard]) -> dict[str, FlaggedRows]:
    """Return the rows of each path that are flagged without levels."""
    of_shards = pl.col("shard_id").is_in([shard.shard_id for shard in shards])
    rows = ask(plan.results, lambda: flags(plan.results).filter(of_shards).select("path", "row", "naming").collect())
    found: dict[str, tuple[set[int], set[int]]] = {}
    for path, row, naming in rows.iter_rows():
        found.setdefault(path, (set(), set()))[naming == Naming.UNDECIDED].add(row)
    return {path: FlaggedRows(*map(frozenset, rows)) for path, rows in found.items()}
