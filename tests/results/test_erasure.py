"""Names are erased beside a scan that commits all the time, file by file, and by the same command after a kill."""

import ast
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.results import upkeep
from scanner.results.current_rows import flags
from scanner.results.queries import ask
from scanner.results.retention import _without_names, count_accounts, erase_accounts, erase_user
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.results.upkeep import delete_unneeded, rewrite
from scanner.storage.data_files import write_file
from scanner.storage.locations import table_uri
from schemas.tables import FLAGS
from tests.support.rows import add, rows_of, verdict
from tests.support.syntax_trees import tree_of

FILES = 12


@pytest.fixture
def named(folder) -> str:
    """A table whose files have two rows each, one of alice and one of bob."""
    for i in range(FILES):
        add(folder, f"t{i}", [verdict(2 * i, user="alice", message=1), verdict(2 * i + 1, user="bob", message=2)])
    return folder


def names_in(folder: str) -> list[str | None]:
    return pl.read_delta(table_uri(folder, "verdicts"))["user_id"].to_list()


def holding(folder: str) -> int:
    """Number of files on the disk that hold the name alice."""
    files = Path(table_uri(folder, "verdicts")).glob("*.parquet")
    return sum("alice" in pq.read_table(file)["user_id"].to_pylist() for file in files)


def test_a_name_among_others_is_erased_too(folder):
    """Rows with a list of names, and rows without one; other names of a list stay."""
    entry = {"key_id": "key", "message": 1, "user_id": "alice", "naming": "named", "log10_p_global": -9.0}
    bob = entry | {"message": 2, "user_id": "bob"}
    again = entry | {"key_id": "late"}
    more = {"named": [bob, entry], "further_messages": [again]}
    add(folder, "new", [verdict(0, user="bob", message=2, **more), verdict(1, user="bob", named=[bob])])
    add(folder, "old", [verdict(2, user="alice"), verdict(3)])
    assert erase_user(folder, ["alice", "carol"]) == 2
    rows = pl.read_delta(table_uri(folder, "verdicts")).sort("row")
    assert rows["user_id"].to_list() == ["bob", "bob", None, None]
    assert rows["naming"].to_list() == ["named", "named", "removed", "none"]
    assert rows["named"].to_list() == [[bob, entry | {"user_id": None, "naming": "removed"}], [bob], None, None]
    assert rows["further_messages"].to_list() == [[again | {"user_id": None, "naming": "removed"}], None, None, None]
    assert all(b"alice" not in file.read_bytes() for file in Path(table_uri(folder, "verdicts")).glob("*.parquet"))


@pytest.mark.seconds
def test_it_gets_its_turn_beside_a_scan_that_is_first_each_time(named, monkeypatch):
    """A rewritten file is offered again and not written again; rows of the scan that name alice are erased too."""
    written = []
    others = iter(range(100, 110))

    def busy(results, table, name, actions, transactions, real=upkeep.try_to_commit):
        if (number := next(others, None)) is not None:
            add(named, f"late {number}", [verdict(number, user="alice", message=1)])
        return real(results, table, name, actions, transactions)

    def writes(folder, name, batches, real=upkeep.write_file):
        written.append(name)
        return real(folder, name, batches)

    monkeypatch.setattr(upkeep, "try_to_commit", busy)
    monkeypatch.setattr(upkeep, "write_file", writes)
    assert erase_user(named, ["alice"]) == FILES + 10
    assert len(written) == FILES + 10
    assert rows_of(named) == [*range(2 * FILES), *range(100, 110)]
    assert set(names_in(named)) == {"bob", None}
    assert holding(named) == 0


def test_what_is_interrupted_goes_on_where_it_was(named, monkeypatch):
    monkeypatch.setattr(upkeep, "FILES_A_COMMIT", 3)
    seen: list[tuple[int, int]] = []

    def interrupted(_, done: int, files: int) -> None:
        seen.append((done, files))
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        erase_user(named, ["alice"], interrupted)
    assert seen == [(3, FILES), (6, FILES)]
    assert names_in(named).count("alice") == FILES - 6
    assert erase_user(named, ["alice"]) == FILES - 6
    assert rows_of(named) == list(range(2 * FILES))
    assert holding(named) == 0


def test_one_who_gives_up_leaves_no_name_behind(named, monkeypatch):
    there = {path.name for path in Path(table_uri(named, "verdicts")).glob("*.parquet")}
    monkeypatch.setattr("scanner.storage.delta.COMMIT_ATTEMPTS", 2)
    monkeypatch.setattr(upkeep, "try_to_commit", lambda *_: False)
    with pytest.raises(upkeep.ScanFailed, match="other processes committed first"):
        erase_user(named, ["alice"])
    assert {path.name for path in Path(table_uri(named, "verdicts")).glob("*.parquet")} == there


def test_a_query_of_flags_is_asked_again_when_an_erasure_that_was_through_with_verdicts_took_their_files(folder):
    open_tables(folder)
    flag = verdict(0, user="alice") | {"keys": "set"}
    file = write_file(folder, "flags", [pa.RecordBatch.from_pylist([flag], FLAGS)])
    commit(folder, "flags", [TableEntry("a", (file,))])
    erase_user(folder, ["nobody"])
    asked: list[str] = []

    def question() -> pl.DataFrame:
        rows = flags(folder)
        if not asked:
            asked.append("alice")
            rewrite(folder, "flags", partial(_without_names, "flags", asked))
            delete_unneeded(folder, "flags", 0, 24)
        return rows.collect()

    assert ask(folder, question)["user_id"].to_list() == [None]


@pytest.mark.seconds
def test_whatever_is_asked_is_made_anew_each_time():
    """A query that was made before it is asked names the files of then, and asked again finds them gone again."""
    made_before = []
    for path in Path("scanner").absolute().rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ask":
                question = node.args[1]
                root = question.body if isinstance(question, ast.Lambda) else question
                while isinstance(root, ast.Attribute) or isinstance(getattr(root, "func", None), ast.Attribute):
                    root = root.value if isinstance(root, ast.Attribute) else root.func.value
                bound = isinstance(question, ast.Attribute) and question.attr == "collect"
                if bound or (isinstance(question, ast.Lambda) and isinstance(root, ast.Name)):
                    made_before.append(f"{path}:{node.lineno}")
    assert made_before == []


def test_accounts_called_like_the_user_stay_until_they_are_erased_too(folder):
    """A user's name is erased where a mark names the user; an account of the same name is counted, then erased."""
    rows = [verdict(0, user="alice", message=1) | {"account_id": "alice"}, verdict(1) | {"account_id": "alice"}]
    add(folder, "new", [*rows, verdict(2) | {"account_id": "bob"}])
    assert erase_user(folder, ["alice"]) == 1
    assert count_accounts(folder, ["alice"]) == {"verdicts": 2}
    assert erase_accounts(folder, ["alice"]) == 2
    assert count_accounts(folder, ["alice"]) == {}
    left = pl.read_delta(table_uri(folder, "verdicts")).sort("row")
    assert left["account_id"].to_list() == [None, None, "bob"]
    assert all(b"alice" not in file.read_bytes() for file in Path(table_uri(folder, "verdicts")).glob("*.parquet"))
    assert erase_accounts(folder, ["alice"]) == 0
