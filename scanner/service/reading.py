"""Texts of files, read by a process of the pool, so that a hostile file ends no more than the request that sent it."""

import contextlib
import re
from html.parser import HTMLParser

KINDS = {
    "text/plain": (".txt",),
    "text/markdown": (".md", ".markdown"),
    "text/html": (".html", ".htm"),
}
"""Media types of files that are read, and the ends of their names."""

_UNSEEN = {"script", "style", "template", "head", "noscript"}
_BLOCKS = {"p", "div", "li", "br", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "section", "article"}


def read_file(kind: str, raw: bytes, most: int) -> bytes | None:
    """The text of a file, UTF-8; None: it has none that can be read, or more than `most` bytes."""
    with contextlib.suppress(Exception):  # whatever the file is, and a traceback could hold a part of it
        text = raw.removeprefix(b"\xef\xbb\xbf").decode()
        found = (_of_html(text) if kind == "text/html" else text).encode()
        return found if len(found) <= most else None
    return None


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unseen += tag in _UNSEEN
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._unseen -= tag in _UNSEEN and self._unseen > 0
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.parts.append(data)


_END_OF_COMMENT = re.compile(r"\A-?>|--!?>")
_NO_TAG = re.compile(r"<(?=[^<>]*(?:<|\Z))")
"""A sign after which no tag ends before the next one begins: the library's parser reads on to the end for each."""


def _without_comments(page: str) -> str:
    """A page without its comments: one that does not end goes on to the end of the page."""
    shown, *parts = page.split("<!--")
    ends = ((part, _END_OF_COMMENT.search(part)) for part in parts)
    return shown + "".join(part[end.end() :] for part, end in ends if end)


def _of_html(text: str) -> str:
    """What a browser shows of a page, a line a block."""
    parser = _Text()
    parser.feed(_NO_TAG.sub("&lt;", _without_comments(text)))
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)
