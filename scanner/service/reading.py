"""Texts of files, read by a process of the pool, so that a hostile file ends no more than the request that sent it.

PDF and DOCX are read where the extra `files` is installed. What a file can take is bounded: its pages, its bytes when
unpacked, memory, and time.
"""

import contextlib
import importlib.util
import io
import re
import resource
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

MOST_PAGES = 500
"""Most pages of a PDF."""

UNPACKED = 2**26
"""Bytes to which a DOCX may unpack."""

MEMORY = 2**30
"""Bytes that reading a file may take."""

SECONDS = 10.0
"""Longest time of reading a file."""

AGAIN = 0.05
"""Seconds until a file that goes on is interrupted once more: Python drops what is raised while it frees memory."""

_UNSEEN = {"script", "style", "template", "head", "noscript"}
_BLOCKS = {"p", "div", "li", "br", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "section", "article"}


def read_file(kind: str, raw: bytes, most: int) -> bytes | None:
    """The text of a file, UTF-8; None: none can be read, it has more than `most` bytes, or reading takes too much."""
    with contextlib.suppress(BaseException), _bounded():  # whatever it is, and a traceback could hold a part of it
        found = _READERS[kind](raw, most).encode()
        return found if len(found) <= most else None
    return None


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Bound memory and, in the main thread of a process, time: what exceeds them raises."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, before[1]))
    timed = threading.current_thread() is threading.main_thread()
    if timed:
        signal.signal(signal.SIGALRM, _too_slow)
        signal.setitimer(signal.ITIMER_REAL, SECONDS, AGAIN)
    try:
        yield
    finally:
        for _ in range(2 * timed):  # the first may be interrupted once more
            with contextlib.suppress(TimeoutError):
                signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _too_slow(*_: object) -> None:
    raise TimeoutError


def _of_pdf(raw: bytes, most: int) -> str:
    """The text of each page, a line between them."""
    from pypdf import PdfReader

    reader, pages, length = PdfReader(io.BytesIO(raw)), list[str](), 0
    if len(reader.pages) > MOST_PAGES:
        raise ValueError("too many pages")
    for page in reader.pages:
        pages.append(page.extract_text().strip("\n"))
        length += len(pages[-1])
        if length > most:
            raise ValueError("too much text")
    return "\n".join(pages)


def _of_docx(raw: bytes, _most: int) -> str:
    """The text of the body as it would be if all changes were accepted, a line a paragraph."""
    from docx import Document
    from docx.oxml.ns import qn

    with zipfile.ZipFile(io.BytesIO(raw)) as packed:  # which reads no more of an entry than it says it has
        if sum(entry.file_size for entry in packed.infolist()) > UNPACKED:
            raise ValueError("too much is packed")
    body, parts = Document(io.BytesIO(raw)).element.body, list[str]()
    characters = {qn("w:p"): "\n", qn("w:br"): "\n", qn("w:tab"): "\t"}
    for copy in list(body.iter(_FALLBACK)):  # what older programs show of what stands beside it
        copy.getparent().remove(copy)
    for element in body.iter(qn("w:t"), *characters):
        parts.append(characters.get(element.tag, element.text or ""))
    return "".join(parts).strip("\n")


_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"


def _of_plain(raw: bytes, _most: int) -> str:
    return raw.removeprefix(b"\xef\xbb\xbf").decode()


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
    visible, *parts = page.split("<!--")
    ends = ((part, _END_OF_COMMENT.search(part)) for part in parts)
    return visible + "".join(part[end.end() :] for part, end in ends if end)


def _of_html(raw: bytes, most: int) -> str:
    """What a browser shows of a page, a line a block."""
    parser = _Text()
    parser.feed(_NO_TAG.sub("&lt;", _without_comments(_of_plain(raw, most))))
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


_READERS: dict[str, Callable[[bytes, int], str]] = {
    "text/plain": _of_plain,
    "text/markdown": _of_plain,
    "text/html": _of_html,
    "application/pdf": _of_pdf,
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": _of_docx,
}

_ENDS = ((".txt",), (".md", ".markdown"), (".html", ".htm"), (".pdf",), (".docx",))
_NEEDS = {".pdf": "pypdf", ".docx": "docx"}

KINDS = {
    kind: ends
    for kind, ends in zip(_READERS, _ENDS, strict=True)
    if ends[0] not in _NEEDS or importlib.util.find_spec(_NEEDS[ends[0]])
}
"""Media types of files that are read here, and the ends of their names."""
