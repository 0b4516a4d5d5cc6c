"""Commits of a Delta table's log, read in blocks, against a plain reading of whole files."""

import json
import posixpath
import random
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyarrow import fs

from scanner.input import delta_log
from scanner.input.delta_log import CommitLog
from scanner.input.tables import Commit


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
