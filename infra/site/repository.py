"""Pages of the site that stand outside of docs/, for mkdocs: README.md in front, links that lead as in the repository.

A page's address in the site is its path in the repository without `docs/`, so one rule turns every link.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OUTSIDE = (
    "README.md",
    "SECURITY.md",
    "infra/README.md",
    "infra/vllm/README.md",
    "jobs/demo/NOTICE",
    "scanner/evidence/check_claim.py",
    "scanner/generation/processor.py",
    "scanner/watermark/SPEC.md",
    "scanner/watermark/SPEC_3.md",
    "schemas/evaluation.py",
)
"""Files of the repository that pages link to and docs/ has not."""

_LINK = re.compile(r"(\]\(\s*)((?!\w+:|#|/)[^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that stand outside."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(Path(config.config_file_path).parent / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of a page, which are relative to its place in the repository, to places in the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(here if here in OUTSIDE else f"docs/{here}")

    def turn(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[2])).removeprefix("docs/")
        return found[1] + posixpath.relpath(target, posixpath.dirname(here) or ".")

    return _LINK.sub(turn, markdown)
