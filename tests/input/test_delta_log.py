"""Commits of a Delta table's log, read in blocks, against a plain reading of whole files."""

import datetime
import json
import os
import posixpath
import random
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.input import delta_log, delta_tables
from scanner.input.delta_log import CommitLog, all_to_nanoseconds, to_nanoseconds
from scanner.input.files import list_files
from scanner.input.tables import Commit, TableReading


def spelled(action: dict[str, Any], rng: random.Random) -> str:
    """A line of a log as some writer may spell it."""
    line = json.dumps(action, ensure_ascii=rng.random() < 0.5, indent=None)
    if rng.random() < 0.3:
        line = line.replace('"remove"', '"r\\u0065move"', 1).replace('"add"', '"\\u0061dd"', 1)
    if rng.random() < 0.3:
        line = line.replace('"deletionVector": {', '"deletionVector"\t:\r {').replace(": ", " :  ", 1)
    return rng.choice(["", " "]) + line + rng.choice(["", "\r"])


def written_log(folder: Path, rng: random.Random) -> None:
    """Commits that add and remove files, some with vectors, and more that says nothing of files."""
    names = ["a.parquet", "ü/b%20c.parquet", "d\U0001f600.parquet", "./e.parquet", 'quo"te.parquet', "remove.parquet"]
    for number in range(rng.randint(1, 6)):
        actions: list[dict[str, Any]] = [{"commitInfo": {"operation": 'a "remove" or an "add", of {'}}]
        for _ in range(rng.randint(0, 8)):
            path = rng.choice(names)
            if rng.random() < 0.3:
                actions.append({"remove": {"path": path, "deletionVector": {"cardinality": 9}}})
                continue
            vector = rng.choice([{}, {"deletionVector": None}, {"deletionVector": {"cardinality": rng.randint(0, 9)}}])
            stats = "x" * rng.choice([1, 10, 3000]) + '"remove" ü'
            actions.append({"add": {"path": path, "modificationTime": rng.randint(0, 99), "stats": stats, **vector}})
        rng.shuffle(actions)
        lines = "\n".join(spelled(action, rng) for action in actions) + rng.choice(["", "\n"])
        (folder / f"{number:020d}.json").write_bytes(lines.encode())


def named(path: str) -> str:
    return posixpath.normpath(unquote(path))


def plainly(folder: Path) -> tuple[list[Commit], bool]:
    """Commits, and whether one adds a vector, by reading each file whole."""
    commits, vectors = list[Commit](), False
    for file in sorted(folder.glob("*.json")):
        actions = [json.loads(line) for line in file.read_bytes().decode().split("\n") if line.strip()]
        adds = [action["add"] for action in actions if "add" in action]
        removes = [named(action["remove"]["path"]) for action in actions if "remove" in action]
        commits.append(Commit({named(add["path"]): add["modificationTime"] * 10**6 for add in adds}, removes))
        vectors = vectors or any(add.get("deletionVector") is not None for add in adds)
    return commits, vectors


@pytest.mark.parametrize("block", [1, 7, 64, 2**20])
def test_a_log_read_in_blocks_is_the_log_read_whole(tmp_path, monkeypatch, block):
    """Blocks end within lines and characters, and lines are longer than blocks."""
    monkeypatch.setattr(delta_log, "_BLOCK", block)
    for seed in range(15):
        folder, rng = tmp_path / f"{seed}", random.Random(seed)
        folder.mkdir()
        written_log(folder, rng)
        log = CommitLog(fs.LocalFileSystem(), str(folder), len([*folder.iterdir()]) - 1, named)
        commits, (expected, vectors) = log.commits(), plainly(folder)
        gone = {name for commit in expected for name in commit.removes}
        assert [commit.removes for commit in commits] == [commit.removes for commit in expected]
        for commit, plain in zip(commits, expected, strict=True):
            kept = {name: at for name, at in plain.adds.items() if plain.removes or name in gone}
            assert commit.adds == kept, seed
        assert log.names_vectors == vectors


def test_stated_rows_of_vectors_are_those_of_the_newest_entries(tmp_path):
    def add(path: str, rows: int | str | None) -> dict[str, Any]:
        vector = None if rows is None else {"cardinality": rows}
        return {"add": {"path": path, "modificationTime": 1, "deletionVector": vector}}

    def remove(path: str) -> dict[str, Any]:
        return {"remove": {"path": path}}

    for number, actions in enumerate(
        [
            [add("a", 1), add("b", None), add("c", 7)],
            [add("a", 2), remove("a"), remove("b"), add("b", 3)],
            [remove("./b"), add("b", None)],
            [add("d", "5")],
        ]
    ):
        (tmp_path / f"{number:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    for version, checkpoint, before, expected in [
        (0, -1, {}, {"a": 1, "c": 7}),
        (1, -1, {}, {"a": 2, "b": 3, "c": 7}),
        (3, -1, {}, {"a": 2, "c": 7, "d": 5}),
        (3, 1, {"a": 2, "b": 3, "%63": 7, "e": 8}, {"a": 2, "c": 7, "d": 5, "e": 8}),
        (1, 1, {"a": 4}, {"a": 4}),
    ]:
        log = CommitLog(fs.LocalFileSystem(), str(tmp_path), version, named)
        assert log.stated_rows(log.commits(), checkpoint, before) == expected


def add(path: str, **fields: object) -> dict[str, Any]:
    plain = {"path": path, "partitionValues": {}, "size": 9, "modificationTime": 1000, "dataChange": True}
    return {"add": plain | fields}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}}


@pytest.fixture
def table(tmp_path) -> Path:
    """A table with one file, and a name for the next commit."""
    write_deltalake(tmp_path / "table", pa.table({"text": ["a"]}))
    return tmp_path / "table"


def commit(table: Path, *lines: dict[str, Any] | str) -> None:
    log = table / "_delta_log"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (log / f"{len([*log.glob('*.json')]):020d}.json").write_text("\n".join(texts) + "\n")


def listed(table: Path) -> set[str]:
    return {file.path.removeprefix(f"{table}/") for file in list_files([str(table)])}


VECTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "sizeInBytes": 1, "cardinality": 1}
NULLS = dict.fromkeys(["add", "remove", "txn", "metaData"])


@pytest.mark.parametrize("application", ["plain", "ü"])  # written as an escape
def test_actions_with_nulls_for_all_others_are_read_as_deltalake_reads_them(table, application):
    """Some writers give every line all fields."""
    commit(table, NULLS | add("b.parquet"), NULLS | add("c.parquet"))
    commit(table, NULLS | remove("b.parquet"), json.dumps(NULLS | {"txn": {"appId": application, "version": 1}}))
    (first, *_) = [action["add"]["path"] for action in actions(table, 0) if "add" in action]
    assert listed(table) == {first, "c.parquet"} == {os.path.basename(uri) for uri in DeltaTable(table).file_uris()}


def actions(table: Path, number: int) -> list[dict[str, Any]]:
    return [*map(json.loads, (table / "_delta_log" / f"{number:020d}.json").read_text().splitlines())]


@pytest.mark.parametrize(
    "lines",
    [
        [json.dumps(add("b.parquet")) + json.dumps(remove("c.parquet"))],
        json.dumps(remove("c.parquet"), indent=1).splitlines(),
        json.dumps(add("b.parquet", deletionVector=VECTOR), indent=1).replace(": {", ":\n{").splitlines(),
        ['{"remove": {"path": "c.parquet", "dataChange": true,}}'],
    ],
)
def test_a_line_that_is_no_object_ends_in_a_sentence(table, lines):
    """deltalake reads some of these; read by lines, they would lose a removal or deleted rows."""
    commit(table, *lines)
    with pytest.raises(ScanFailed, match="a line of its log is not a JSON object, as the protocol requires"):
        list_files([str(table)])


@pytest.mark.parametrize("time", ["123000", 123e3])
def test_a_time_is_read_in_each_spelling_that_deltalake_reads(table, time):
    commit(table, add("b.parquet", modificationTime=time))
    commit(table, remove("b.parquet"), add("c.parquet", modificationTime=124000))
    (file,) = [file for file in list_files([str(table)]) if file.path.endswith("/c.parquet")]
    assert file.entry is not None
    assert repr(file.entry.since) == repr(123000 * 10**6)
    assert file.entry.parents == {f"{table}/b.parquet"}


def test_names_that_are_no_utf8_are_refused_and_not_mixed_up(table):
    """They became one file, and the other one was lost."""
    commit(table, add("x%FFy.parquet"), add("x%FEy.parquet"))
    with pytest.raises(Refused, match=r"refers to a file whose name is not valid UTF-8, 'x%F[EF]y.parquet'"):
        list_files([str(table)])
    commit(table, remove("x%FFy.parquet"))
    with pytest.raises(Refused, match=r"refers to a file whose name is not valid UTF-8, 'x%FEy.parquet'"):
        list_files([str(table)])
    commit(table, remove("x%FEy.parquet"), add("z.parquet"))
    assert "z.parquet" in listed(table)


@pytest.mark.parametrize("path", ["file:/tmp/posts.parquet", "dbfs:/mnt/posts.parquet", "s3://bucket/posts.parquet"])
def test_files_of_a_shallow_clone_are_refused(table, path):
    """Spark writes URIs of a disk with one slash."""
    commit(table, add(path))
    with pytest.raises(Refused, match="refers to files in another folder, as a shallow clone does"):
        list_files([str(table)])


@pytest.mark.costly
def test_paths_are_read_together_as_one_by_one():
    rng = random.Random(0)
    parts = ["a", "b c", "ü", "/", ".", "..", "//", "%2F", "%2e", "%C3%BC", "%ff", ":", "://", "x=1", "\n"]
    refused = 0
    for _ in range(20_000):
        path = "".join(rng.choices(parts, k=rng.randint(1, 5)))
        plain = unquote(path)
        scheme = path.partition(":/")[0]
        leads_out = "://" in path or path.startswith("/") or ".." in plain.split("/") or "\ufffd" in plain
        leads_out = leads_out or (":/" in path and "/" not in scheme and scheme.isascii() and scheme.isalpha())
        try:
            (found,) = delta_tables._names("/lake/", pa.array(["q", path]), lambda p: f"/lake/{named(p)}")[
                1:
            ].to_pylist()
        except Refused:
            refused += 1
            assert leads_out, path
        else:
            assert not leads_out, path
            assert found == f"/lake/{posixpath.normpath(plain)}"
    assert 2_000 < refused < 18_000


def test_times_are_read_together_as_one_by_one():
    times = [-(2**63), -1, 0, 1, 10**12, 2**63 // 10**6, 2**63 // 10**6 + 1, 2**63 - 1]
    found = all_to_nanoseconds(np.array(times, np.int64)).tolist()
    assert found == [to_nanoseconds(time) for time in times]
    assert all(0 <= time < 2**63 for time in found)
    assert found[3:5] == [10**6, 10**18]


def test_a_commit_with_blank_lines_is_read_at_a_time(table):
    first = table / "_delta_log" / f"{0:020d}.json"
    first.write_text("\n" + first.read_text() + "\n\n")
    after = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    assert len(list_files([str(table)], reading=TableReading(timestamp=after))) == 1
    with pytest.raises(Refused, match="had no version at"):
        list_files([str(table)], reading=TableReading(timestamp=datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)))


def test_an_error_shows_no_trace():
    assert in_a_line(ValueError("Kernel error: no\n   0: <unknown>\n   1: <unknown>")) == "Kernel error: no"
    assert in_a_line(ValueError("a\n\n0 rows")) == "a 0 rows"
