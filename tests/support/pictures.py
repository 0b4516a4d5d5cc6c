"""Writes the pictures of docs/pictures: diagrams, and pages of the demo's night in a browser. `make pictures`.

The machine's chromium draws them, as the tests of pages do; `make demo` makes what they show.
"""

import math
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import brickscan as product
import pyarrow.parquet as pq

from scanner.evidence.explanation import Omissions, TextEvidence, evidence_of_text
from scanner.text import HuggingFaceTokenizer
from tests.support import cost_plot, p_value_plots
from tests.support.browser import launched
from tests.support.diagrams import DIAGRAMS, PALETTES, ShownToken, evidence, write_diagrams

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
CONFIG = ROOT / "demo" / "scan.toml"
FLAG = "doc-0676"
"""Document whose page and evidence are shown: the one that docs/guides/what-to-do-with-a-flag.md explains."""


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


def write_evidence(pictures: Path) -> None:
    """Write the text of a flag of the demo with the tokens that its key favours, light and dark."""
    row = product.explain(CONFIG, FLAG).row
    sample = pq.read_table(ROOT / "jobs/demo/sample-2.parquet", columns=["doc_id", "text"])
    text = sample["text"][sample["doc_id"].to_pylist().index(FLAG)].as_py()
    tokenizer = HuggingFaceTokenizer((ROOT / "jobs/demo/tokenizer.json").read_bytes())
    mark = product.open(CONFIG.parent / "registry").mark(row["key_id"])
    found = evidence_of_text(
        mark, tokenizer, text, row["message"], row["messages_tested"], Omissions("ngram"), (), run=1
    )
    favoured = sum(run.log10_p < 0 for run in found.runs)
    summary = (
        f"The key favours {favoured} of the {found.scored} tokens that count (shaded).",
        f"In a text without its mark it would favour about {found.scored / 4:.0f}: one in four.",
        f"Chance does as well for any of {row['messages_tested']:,} messages less than once in "
        f"10^{math.floor(-row['log10_p_global'])} texts.",
    )
    for scheme, palette in PALETTES.items():
        picture = evidence(palette, shown_tokens(text, found), summary)
        (pictures / f"evidence-{scheme}.svg").write_text(picture, encoding="utf-8")


def shown_tokens(text: str, found: TextEvidence) -> list[ShownToken]:
    """Return the whole text in pieces: its scored tokens, and what stands between them."""
    shown, end = list[ShownToken](), 0
    for run in found.runs:
        shown += [ShownToken(text[end : run.begin], None)] if run.begin > end else []
        shown.append(ShownToken(text[run.begin : run.end], run.log10_p < 0))
        end = run.end
    return [*shown, ShownToken(text[end:], None)]


if __name__ == "__main__":
    write_diagrams(PICTURES, DIAGRAMS | p_value_plots.PLOTS | cost_plot.PLOTS)
    write_evidence(PICTURES)
    write_pictures(PICTURES)
