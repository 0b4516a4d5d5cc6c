"""Nights on a Delta table: each live document once, whatever commits did to the files."""

from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings

from scanner import results
from scanner.cluster.commits import Committer
from scanner.cluster.pieces import Finished, Piece
from scanner.cluster.rewritten import leave_out_rewritten, read_documents
from scanner.cluster.work import find_work, inspect_input
from scanner.cluster.worker import Worker
from scanner.input.files import list_files
from scanner.results.tables import open_tables, read_whole
from tests.support.deltas import delete_by_vector, forget_commits
from tests.support.night import Night

WORDS = ["river", "stone", "lamp", "cloud", "paper", "garden", "window", "engine", "letter", "harbour"]


def text_of(number: int) -> str:
    return " ".join(WORDS[(number * 7 + i * i + number // 10 * i) % 10] for i in range(60)) + f" {number}"


def posts(numbers, date: str = "2026-08-31") -> pa.Table:
    return pa.table(
        {
            "doc_id": [f"doc {number}" for number in numbers],
            "text": [text_of(number) for number in numbers],
            "date": [date] * len(numbers),
        }
    )


@pytest.fixture
def table(night) -> Path:
    """A table of thirty documents in three files, which the night's configuration names."""
    folder = night.folder / "lake of posts"
    for begin in (0, 10, 20):
        write_deltalake(folder, posts(range(begin, begin + 10)), mode="append")
    night.configure(paths=["lake of posts"], rate=0.5)
    return folder


def scanned(night) -> list[str]:
    """Ids of all documents that any scan scored, each as often as it was."""
    return sorted(night.verdicts()["doc_id"], key=lambda name: int(name.split()[1]))


def ids(*numbers: int) -> list[str]:
    return [f"doc {number}" for number in numbers]


@pytest.mark.costly
def test_each_live_document_is_scored_once_whatever_commits_did(night, table):
    delete_by_vector(table, ["doc 3"])
    night.scan()
    alive = [number for number in range(30) if number != 3]
    assert scanned(night) == ids(*alive)
    assert night.last_scan()["snapshots"] == [{"table": str(table), "kind": "Delta", "version": 3}]

    write_deltalake(table, posts(range(30, 35)), mode="append")
    DeltaTable(table).delete("doc_id = 'doc 12'")
    DeltaTable(table).update(updates={"text": f"'{text_of(1000)}'"}, predicate="doc_id = 'doc 25'")
    assert night.scan().totals.counts.documents == 6
    assert scanned(night) == sorted(ids(*alive, *range(30, 35), 25), key=lambda name: int(name.split()[1]))

    DeltaTable(table).optimize.compact()
    outcome = night.scan()
    assert outcome.totals.counts.documents == 0
    assert outcome.exit_code == 0
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    delete_by_vector(table, ["doc 4", "doc 31"])
    assert night.scan().totals.counts.documents == 0
    assert night.scan().work.left == ()
    assert len(scanned(night)) == 35
    kept = results.verdicts(night.results).collect()
    assert kept["flagged"].sum() == night.verdicts()["flagged"].sum() > 0
    assert kept.select("path", "row").is_duplicated().sum() == 0
    assert [name for name, times in Counter(scanned(night)).items() if times > 1] == ["doc 25"]  # updated


def test_equal_texts_of_other_accounts_are_other_documents(night):
    """Without ids, in a table that is written anew: the verdict on one account's text is none on another's."""
    table = night.folder / "lake"
    night.configure(paths=["lake"], more='keys = ["gum"]', columns='account = "account"')
    for number, accounts in enumerate((["ann", "ben"], ["cid", "ben", "ann", "ben"])):
        rows = {"doc_id": pa.nulls(len(accounts), pa.string()), "text": ["a text"] * len(accounts)}
        write_deltalake(table, pa.table({**rows, "account": accounts}), mode="overwrite")
        scan_here(night, number)
    assert sorted(night.verdicts()["account_id"]) == ["ann", "ben", "ben", "cid"]


def test_rows_move_again_when_the_table_has_forgotten_that_they_moved(night):
    table = night.folder / "lake"
    night.configure(paths=["lake"], more='keys = ["gum"]')
    for numbers in (range(3), range(3, 6)):
        write_deltalake(table, posts(numbers), mode="append")
    for number in range(4):
        scan_here(night, number)
        if number % 2:
            DeltaTable(table).delete(f"doc_id = 'doc {number}'")
        else:
            DeltaTable(table).optimize.compact()
        scan_here(night, 10 + number)
        forget_commits(table)
    assert sorted(night.verdicts()["doc_id"]) == [f"doc {number}" for number in range(6)]
    moved = [known for known in read_whole(night.results, "shards").collect()["moved_from"].to_list() if known]
    assert {len(known) for known in moved} == {2}


STEPS = st.sampled_from(
    ["append", "append", "copies", "delete", "vector", "update", "compact", "vacuum", "scan", "scan", "forget"]
)


def scan_here(night, run: int) -> None:
    """A scan without Ray, in this process."""
    plan = night.plan()
    open_tables(plan.results)
    work = find_work(plan, inspect_input(plan, list_files(plan.locations)))
    live = frozenset(shard.file.path for shard in work.found)
    committer, worker = Committer(plan, f"run {run}"), Worker(plan, f"run {run}")
    read_here = lambda plan, shards: [read_documents(plan, shard) for shard in shards]  # noqa: E731
    for shard in leave_out_rewritten(plan, work.left, live, read_here):
        *_, report = worker.scan(Piece(shard, shard.rows.start, shard.rows.stop))
        committer.add(Finished(shard, [report], []))
    committer.flush()


class PlainTable:
    """The plain model: documents that are live, whether each was scanned, and what may have been scanned in all."""

    def __init__(self) -> None:
        self.live: dict[str, tuple[str, bool]] = {}  # text, and whether it was scanned, by id
        self.scanned: Counter[tuple[str | None, str]] = Counter()
        self.copies = self.copies_ever = 0

    def scan(self) -> None:
        for name, (text, known) in self.live.items():
            self.scanned[name, text] += not known
            self.live[name] = (text, True)


def step_of(step: str, table: Path, model: PlainTable, number: int, data: st.DataObject) -> None:
    """One commit to the table, and the same to the model."""
    names = [f"{number}:{i}" for i in range(data.draw(st.integers(1, 4)))]
    some = data.draw(st.lists(st.sampled_from(sorted(model.live)), max_size=3, unique=True)) if model.live else []
    chosen = " or ".join(f"doc_id = '{name}'" for name in some)
    if step == "append":
        texts = [f"text of {name}" for name in names]
        write_deltalake(table, pa.table({"doc_id": names, "text": texts}), mode="append")
        model.live |= {name: (text, False) for name, text in zip(names, texts, strict=True)}
    elif step == "copies":
        rows = pa.table({"doc_id": pa.array([None] * len(names), pa.string()), "text": ["a copy"] * len(names)})
        write_deltalake(table, rows, mode="append")
        model.copies += len(names)
        model.copies_ever += len(names)
    elif step == "update" and some:
        DeltaTable(table).update(updates={"text": f"'changed {number}'"}, predicate=chosen)
        model.live |= dict.fromkeys(some, (f"changed {number}", False))
    elif step in ("delete", "vector") and some:
        _ = DeltaTable(table).delete(chosen) if step == "delete" else delete_by_vector(table, some)
        for name in some:
            del model.live[name]
    elif step == "compact":
        DeltaTable(table).optimize.compact()
    elif step == "vacuum":
        DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """New folders, one an example."""
    return (tmp_path_factory.mktemp("history") for _ in iter(int, 1))


def check_histories(examples: int, folders, registry) -> None:
    """Assert of random histories that each live document is scored once, and no erased one ever."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(STEPS, min_size=3, max_size=12), st.data())
    def check(steps: list[str], data: st.DataObject) -> None:
        night = Night(next(folders), registry)
        night.configure(paths=["lake"], more='keys = ["gum"]')
        table, model = night.folder / "lake", PlainTable()
        for number, step in enumerate(["append", *steps, "scan"]):
            step_of(step, table, model, number, data)
            if step in ("scan", "forget"):
                scan_here(night, number)
                model.scan()
                rows = read_whole(night.results, "verdicts").select("doc_id", "text_id", "path", "row").collect()
                found = Counter(rows.filter(rows["doc_id"].is_not_null())["doc_id"])
                expected = Counter[str | None]()
                for (name, _), times in model.scanned.items():
                    expected[name] += times
                assert found == +expected
                assert model.copies <= rows["doc_id"].null_count() <= model.copies_ever
                newest = results.verdicts(night.results).collect()
                assert newest.height == rows.height
                if step == "forget":
                    forget_commits(table)

    check()


@pytest.mark.costly
def test_histories_of_a_table_lose_and_double_nothing(folders, registry):
    check_histories(10, folders, registry)


@pytest.mark.long
def test_a_hundred_histories_of_a_table_lose_and_double_nothing(folders, registry):
    check_histories(100, folders, registry)
