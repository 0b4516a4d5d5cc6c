"""A folder of results whose tables are empty."""

import pytest

from scanner.results.transactions import open_tables


@pytest.fixture
def folder(tmp_path) -> str:
    open_tables(str(tmp_path / "some" / "results"))
    return str(tmp_path / "some" / "results")
