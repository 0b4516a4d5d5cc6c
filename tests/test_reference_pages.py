"""The pages of docs/reference say what the code says, and every field and exit code has a meaning there."""

import json
import re
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    # in a process of its own, since a command keeps the help option with which other tests called it first
    told = "import json; from tests.support.reference_pages import pages; print(json.dumps(pages()))"
    found: dict[str, str] = json.loads(subprocess.check_output([sys.executable, "-c", told]))
    return found


def test_pages_are_current(made):
    from tests.support.reference_pages import FOLDER, MADE

    generated = {path.name for path in FOLDER.glob("*.md") if path.read_text(encoding="utf-8").startswith(MADE)}
    assert generated == set(made)
    for name, text in made.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"docs/reference/{name}: run `make reference`"


def test_every_field_has_a_meaning(made):
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", made["configuration.md"], re.MULTILINE)
    assert len(rows) > 100
    assert [name for name, meaning in rows if not meaning] == []
