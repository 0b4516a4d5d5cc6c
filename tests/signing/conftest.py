"""Results of three commits, and the registry that keeps their signatures."""

import shutil
from pathlib import Path

import pytest

from scanner.results.transactions import open_tables
from scanner.signing import keep_signatures, sign_with
from tests.support.rows import add_scanned as add
from tests.support.rows import verdict
from tests.support.signed_results import forget_within, new_registry


@pytest.fixture(scope="session")
def signed_once(tmp_path_factory) -> tuple[Path, Path]:
    """A folder of results of three commits and their registry, and a copy to put in its place: a signature names it.

    Making them takes as long as most tests do.
    """
    place, kept = tmp_path_factory.mktemp("signed") / "place", tmp_path_factory.mktemp("kept") / "kept"
    place.mkdir()
    folder = str(place / "results")
    sign_with(folder, str(new_registry(place / "registry")))
    open_tables(folder)
    for number in range(3):
        add(folder, f"t{number}", [verdict(2 * number, user="alice", message=1), verdict(2 * number + 1)])
    assert keep_signatures(folder) is None
    return place, Path(shutil.copytree(place, kept))


@pytest.fixture
def own_secret(request, tmp_path) -> Path:
    """The registry of `signed`, where a test asks for it, or one that signed nothing."""
    if "signed" in request.fixturenames:
        return request.getfixturevalue("signed_once")[0] / "registry"
    return new_registry(tmp_path / "registry")


@pytest.fixture
def signed(signed_once) -> str:
    """Results of three commits, whose registry keeps the signatures, as they were made."""
    place, kept = signed_once
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    forget_within(place)
    folder = str(place / "results")
    sign_with(folder, str(place / "registry"))
    return folder
