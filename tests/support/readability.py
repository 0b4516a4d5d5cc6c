"""Reports how long the sentences of each page are: `python -m tests.support.readability [PAGE …]`.

Pages of docs/reference and docs/paper.md are left out. Code, tables and headings are no sentences. With pages as
arguments, it also prints their longest sentences. It is a report for writers, and refuses nothing.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
OUTSIDE = ("README.md", "SECURITY.md", "infra/README.md", "infra/vllm/README.md")
LONG = 25
"""Words above which a sentence is long."""

_END = re.compile(r"(?<=[.!?:])[*\"”)]*\s+(?=[\"“(*]*(?:[A-Z`]|brickscan ))")
"""The space between two sentences; a sentence may begin with code."""


class Page(NamedTuple):
    """Words of a page, code and tables included, and its sentences."""

    name: str
    words: int
    sentences: list[str]

    @property
    def long(self) -> list[str]:
        """Sentences of more than LONG words, the longest first."""
        return sorted((one for one in self.sentences if words_of(one) > LONG), key=words_of, reverse=True)


def main() -> None:
    chosen = [Path(name) for name in sys.argv[1:]]
    pages = [read(path) for path in chosen or all_pages()]
    print(f"{'words':>6} {'sentences':>9} {'words each':>10} {f'over {LONG}':>8}  page")
    for page in sorted(pages, key=lambda page: len(page.long) / max(len(page.sentences), 1), reverse=True):
        count = max(len(page.sentences), 1)
        mean = sum(map(words_of, page.sentences)) / count
        print(f"{page.words:6,} {len(page.sentences):9,} {mean:10.1f} {len(page.long) / count:8.0%}  {page.name}")
        if chosen:
            print(*(f"  {words_of(sentence):3}  {sentence}" for sentence in page.long), sep="\n")
    print(f"{sum(page.words for page in pages):6,} words")


def all_pages() -> list[Path]:
    """Return the pages that people read from beginning to end."""
    docs = ROOT / "docs"
    made = {docs / "paper.md", docs / "measurements.md"}
    read_whole = (path for path in sorted(docs.rglob("*.md")) if path not in made and path.parent.name != "reference")
    return [*(ROOT / name for name in OUTSIDE), *read_whole]


def read(path: Path) -> Page:
    """Return a page."""
    text = path.read_text(encoding="utf-8")
    name = str(path.resolve().relative_to(ROOT)) if path.resolve().is_relative_to(ROOT) else str(path)
    return Page(name, len(text.split()), sentences_of(text))


def sentences_of(text: str) -> list[str]:
    """Return the sentences of Markdown: those of paragraphs, list items and quotes.

    "A [scan](x.md) ends.\\n\\n- It has `0.5 s`." has "A scan ends." and "It has `0.5 s`."
    """
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->", "\n\n", text, flags=re.DOTALL | re.MULTILINE)  # code
    text = re.sub(r"^ *(\||#).*$", "\n", text, flags=re.MULTILINE)  # tables and headings
    text = re.sub(r"<[^>]+>", "", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)  # links and pictures
    blocks = re.split(r"\n\s*\n|^ *(?:[-*>]|\d+\.) +", text, flags=re.MULTILINE)
    return [sentence for block in blocks for sentence in _END.split(" ".join(block.split())) if sentence]


def words_of(sentence: str) -> int:
    """Return the number of words, of which a piece of code is one."""
    return len(re.sub(r"`[^`]*`", "code", sentence).split())


if __name__ == "__main__":
    main()
