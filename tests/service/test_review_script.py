"""The review app's script without a browser: it is JavaScript, and what it looks for stands on a page."""

import re
import subprocess
from pathlib import Path

import pytest

from scanner.service import review_app

FOLDER = Path(review_app.__file__).parent
SCRIPT = FOLDER / "review.js"


def test_it_is_javascript():
    driver = pytest.importorskip("playwright._impl._driver")
    node, _ = driver.compute_driver_executable()
    done = subprocess.run([node, "--check", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_it_looks_for_stands_on_a_page():
    script = SCRIPT.read_text(encoding="utf-8")
    pages = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("review_*.html.j2"))
    looked_for = re.findall(r"""querySelector\(["`](.)([a-z-]+)""", script)
    assert sorted(looked_for) == [("#", "said"), (".", "decide"), ("[", "data-key")]
    for kind, name in looked_for:
        place = {"#": rf'id="{name}"', ".": rf'class="(?:[^"]* )?{name}(?: [^"]*)?"', "[": rf'{name}="'}[kind]
        assert re.search(place, pages), name
