"""A folder of results whose tables are empty."""

import shutil
from pathlib import Path

import pytest

from scanner.results.transactions import open_tables


@pytest.fixture(scope="session")
def empty_results(tmp_path_factory) -> Path:
    """Results whose tables are empty, to be copied: making a folder of them takes ten times as long."""
    folder = tmp_path_factory.mktemp("empty") / "results"
    open_tables(str(folder))
    return folder


@pytest.fixture
def folder(tmp_path, empty_results) -> str:
    return str(shutil.copytree(empty_results, tmp_path / "some" / "results"))
