"""What the documentation says of the code is so: the floors, the sizes, the files and names it points to."""

import importlib
import re
from pathlib import Path

from tests.support.floors import FLOORS

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}


def test_the_floors_are_those_that_are_checked():
    block = re.search(r"<!-- floors -->\n```\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert [line.split()[0] for line in block[1].splitlines()] == FLOORS[::-1]


def test_the_sizes_are_those_of_the_code():
    rows = re.findall(r"^\| `(scanner[\w.]+)\.(\w+)` \| ([\d.]+) \|", ARCHITECTURE, re.MULTILINE)
    assert len(rows) >= 10
    for module, name, value in rows:
        assert str(getattr(importlib.import_module(module), name)) == value, name


def test_every_module_and_file_that_is_named_is_there():
    for page, text in PAGES.items():
        for path in re.findall(r"`((?:scanner|tests|schemas|jobs)/[\w./*]+)`", text):
            assert list(ROOT.glob(path)), f"{page}: {path}"
        for name in re.findall(r"`(scanner(?:\.\w+)+)`", text):
            package, _, last = name.rpartition(".")
            found = list(ROOT.glob(name.replace(".", "/") + "*"))
            assert found or hasattr(importlib.import_module(package), last), f"{page}: {name}"
        for target in re.findall(r"\]\(([\w.]+\.md)\)", text):
            assert (ROOT / "docs" / target).is_file(), f"{page}: {target}"
