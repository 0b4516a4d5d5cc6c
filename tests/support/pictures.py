"""Writes the pictures of docs/pictures: pages of the demo's night in a browser, light and dark. `make pictures`.

The machine's chromium draws them, as the tests of pages do; `make demo` makes what they show.
"""

import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.support.browser import launched

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
CONFIG = ROOT / "demo" / "scan.toml"
FLAG = "doc-0671"
"""Document whose page is shown: the one that docs/guides/what-to-do-with-a-flag.md explains."""


def brickscan(*arguments):
    return [sys.executable, "-m", "jobs.cli", *map(str, arguments)]


@contextmanager
def reviewing():
    """Address of the list of the demo's flags, in a review that runs meanwhile."""
    command = brickscan("review", CONFIG, "--by", "ruth", "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as review:
        try:
            yield next(filter(None, (re.search(r"review: (\S+)", line) for line in review.stdout)))[1]
        finally:
            review.terminate()


def write_pictures(pictures: Path) -> None:
    """Write how each page begins, before it names files of this machine, light and dark."""
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, reviewing() as review, launched() as browser:
        report = Path(name) / "report"
        subprocess.run(brickscan("report", CONFIG, "--out", report), check=True, cwd=ROOT)
        (flag,) = (page for page in report.glob("flags/*.html") if FLAG in page.read_text(encoding="utf-8"))
        for scheme in ("light", "dark"):
            with browser.new_context(color_scheme=scheme, viewport={"width": 960, "height": 650}) as context:
                page = context.new_page()
                for what, address in (("flag", flag.as_uri()), ("review", review)):
                    page.goto(address)
                    page.screenshot(path=pictures / f"{what}-{scheme}.png")


if __name__ == "__main__":
    write_pictures(PICTURES)
