"""Random histories of a table against a plain model: each live document is scored once, and no erased one ever."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import HealthCheck, given, settings

from scanner import results
from scanner.cluster.commits import Committer
from scanner.cluster.pieces import FinishedShard, Piece
from scanner.cluster.rewritten import leave_out_rewritten
from scanner.cluster.work import find_work, inspect_input
from scanner.cluster.worker import Worker
from scanner.input.files import list_files
from scanner.results.transactions import open_tables, read_whole
from scanner.signing import sign_with
from tests.support.night import Night
from tests.support.without_ray import read_here


def scan_here(night: Night, run: int, shards: int | None = None) -> None:
    """A scan without Ray, in this process; it ends after so many shards, as a killed one does."""
    plan = night.plan()
    sign_with(plan.results, str(plan.registry))
    open_tables(plan.results)
    work = find_work(plan, inspect_input(plan, list_files(plan.locations)))
    live = frozenset(shard.file.path for shard in work.shards)
    committer, worker = Committer(plan, f"run {run}"), Worker(plan, f"run {run}")
    for shard in leave_out_rewritten(plan, work.left, live, read_here)[:shards]:
        *_, report = worker.scan(Piece(shard, shard.rows.start, shard.rows.stop))
        committer.add(FinishedShard(shard, [report], []))
    committer.flush()


class PlainTable:
    """The plain model: documents that are live, whether each was scanned, and what may have been scanned in all."""

    def __init__(self) -> None:
        self.live: dict[str, tuple[str, bool]] = {}  # text, and whether it was scanned, by id
        self.scanned: Counter[tuple[str | None, str]] = Counter()
        self.copies = self.copies_ever = 0

    def append(self, number: int, count: int) -> pa.Table:
        """New documents, as rows."""
        rows = {f"{number}:{i}": f"text of {number}:{i}" for i in range(count)}
        self.live |= {name: (text, False) for name, text in rows.items()}
        return pa.table({"doc_id": [*rows], "text": [*rows.values()]})

    def append_copies(self, count: int) -> pa.Table:
        """Documents without ids and of one text, as rows."""
        self.copies += count
        self.copies_ever += count
        return pa.table({"doc_id": pa.nulls(count, pa.string()), "text": ["a copy"] * count})

    def update(self, names: Sequence[str], text: str) -> None:
        """Give documents a new text."""
        self.live |= dict.fromkeys(names, (text, False))

    def delete(self, names: Sequence[str]) -> None:
        """Erase documents."""
        for name in names:
            del self.live[name]

    def scan(self) -> None:
        """Score what is live and was not scored."""
        for name, (text, known) in self.live.items():
            self.scanned[name, text] += not known
            self.live[name] = (text, True)

    def check(self, night: Night) -> None:
        """Assert that the tables of results have the documents that were scanned, each as often as it was."""
        rows = read_whole(night.results, "verdicts").select("doc_id", "text_id", "path", "row").collect()
        expected = Counter[str | None]()
        for (name, _), times in self.scanned.items():
            expected[name] += times
        assert Counter(rows.filter(rows["doc_id"].is_not_null())["doc_id"]) == +expected
        assert self.copies <= rows["doc_id"].null_count() <= self.copies_ever
        assert results.verdicts(night.results).collect().height == rows.height


Step = Callable[[str, Night, PlainTable, int, st.DataObject], None]
"""One commit to the table of a night, and the same to the model: kind, night, model, number, choices."""


def check_histories(
    examples: int, kinds: Sequence[str], step: Step, paths: str, folders: Iterator[Path], registry: Path
) -> None:
    """Run random histories, each of which begins with an append and ends with a scan.

    Args:
        examples: how many.
        kinds: what a step may be, oftener what stands twice; `scan`, and `forget`, before which a scan comes, among
            them.
        step: function that does a step.
        paths: of the table, as scan.toml names it.
        folders: an empty folder for each history.
        registry: folder of a registry that has the key `gum`.
    """

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.sampled_from(kinds), min_size=3, max_size=12), st.data())
    def check(history: list[str], data: st.DataObject) -> None:
        night, model = Night(next(folders), registry), PlainTable()
        night.configure(paths=[paths], more='keys = ["gum"]')
        for number, kind in enumerate(["append", *history, "scan"]):
            if kind in ("scan", "forget"):
                scan_here(night, number)
                model.scan()
                model.check(night)
            if kind != "scan":
                step(kind, night, model, number, data)

    check()


def some_of(model: PlainTable, data: st.DataObject) -> list[str]:
    """Some live documents, none where there are none."""
    return data.draw(st.lists(st.sampled_from(sorted(model.live)), max_size=3, unique=True)) if model.live else []
