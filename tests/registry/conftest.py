"""A registry folder with a small tokenizer file beside it, and the command line as a function."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.cli import brickscan, run
from scanner.registry import index, ledger, new_key, sorted_files


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {}}')
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def make_key(folder: Path, tokenizer: Path) -> Callable[..., object]:
    def make(key_id: str = "k1", **changes: object) -> object:
        values = {"format": "greenlist", "window": 4, "gamma": "1/4", "messages": 1000, "tokenizer": tokenizer}
        return new_key(folder, key_id, **{name: v for name, v in {**values, **changes}.items() if v is not None})

    return make


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Make every change enter the index, with parts of 4 rows and runs that are merged soon."""
    patch.setattr(ledger, "_MOST_NEW_FILES", 2)
    patch.setattr(sorted_files, "PART_ROWS", 4)
    patch.setattr(index, "_LIKE", 2)


@pytest.fixture
def small_index(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: make_small(monkeypatch)


@pytest.fixture
def cli() -> Callable[..., Outcome]:
    def call(*arguments: object) -> Outcome:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run(brickscan, [str(argument) for argument in arguments])
        return Outcome(code, out.getvalue(), err.getvalue())

    return call
