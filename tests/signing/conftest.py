"""Results of three commits, and the registry that keeps their signatures."""

from pathlib import Path

import pytest

from scanner.results.transactions import open_tables
from scanner.signing import keep_signatures, sign_with
from tests.support.rows import add_scanned as add
from tests.support.rows import verdict
from tests.support.signed_results import new_registry


@pytest.fixture
def own_secret(tmp_path) -> Path:
    return new_registry(tmp_path / "registry")


@pytest.fixture
def signed(tmp_path, own_secret) -> str:
    """Results of three commits, whose registry keeps the signatures."""
    folder = str(tmp_path / "results")
    sign_with(folder, str(own_secret))
    open_tables(folder)
    for number in range(3):
        add(folder, f"t{number}", [verdict(2 * number, user="alice", message=1), verdict(2 * number + 1)])
    assert keep_signatures(folder) is None
    return folder
