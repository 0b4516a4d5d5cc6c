"""Read texts of files, each in a separate process that holds no key, writes no file, and ends with the file.

So a hostile file harms only its sender. PDF and DOCX are read if the extra `files` is installed. There are limits for
the pages of a file, its unpacked bytes, memory and time.

A file can show another text than is read: letters may be hidden, drawn by a font that swaps them, or pictures. So a
report states nothing about a file, and the answer contains the text that was read.
"""

import asyncio
import contextlib
import importlib.util
import io
import os
import re
import resource
import sys
import time
import unicodedata
import zipfile
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from scanner.service.processes import Unavailable, confine_process

if TYPE_CHECKING:  # a process that reads a file has no use for the budget
    from scanner.service.budget import Caller

MOST_PAGES = 500
"""Largest number of pages of a PDF."""

MOST_UNPACKED_BYTES = 2**26
"""Largest number of bytes of an unpacked DOCX."""

MEMORY_BYTES = 2**30
"""Bytes of memory of a process that reads a file."""

CPU_SECONDS = 10
"""Seconds of a core that reading a file may take."""

MOST_UNREADABLE = 0.01
"""Largest share of a text's characters that stand for nothing, such as a font's own bullets. So few hide no mark."""

_OF_ONE_CALLER = 8
"""Most files of one caller that wait at a time."""

_KEPT = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")
"""Environment variables of a process that reads a file. Python finds its libraries by them, and no program."""

_UNSEEN = {"title", "script", "style", "template", "noscript"}
_BLOCKS = {"p", "div", "li", "br", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "section", "article"}


class Unread(IntEnum):
    """Why a file has no text. Its value is the exit status of the process that read it."""

    NO_TEXT = 1
    NO_LETTERS = 2


WHY_UNREAD = {
    Unread.NO_TEXT: "No text could be read from this file: it is damaged, locked, not UTF-8, or too large.",
    Unread.NO_LETTERS: (
        "The letters in this file do not map to characters, so its text cannot be read as a page shows it. Paste the "
        "text instead."
    ),
}


class FileReader:
    """Reads some files at a time, and one of each caller, because nobody should hold up the files of all others.

    Args:
        processes: number of files that are read at a time.
        seconds: longest time for waiting and reading a file.
        max_bytes: most bytes of a text.
        charge: called with the caller whose file was read, and the seconds of a process.
    """

    def __init__(
        self, processes: int, seconds: float, max_bytes: int, charge: Callable[["Caller", float], None]
    ) -> None:
        self._free = asyncio.Semaphore(processes)
        self._seconds, self._max_bytes, self._charge = seconds, max_bytes, charge
        self._turns = WeakValueDictionary["Caller", asyncio.Lock]()
        self._callers = Counter["Caller"]()

    async def text_of(self, caller: "Caller", kind: str, raw: bytes) -> bytes | Unread:
        """Return the text of a file, UTF-8, or why there is none, as `read_file` does. A file may also take too much.

        Raises:
            Unavailable: too many files wait.
        """
        if self._callers[caller] >= _OF_ONE_CALLER:
            raise Unavailable("Too many requests at a time: wait for answers before you ask again.")
        self._callers[caller] += 1
        turn = self._turns.setdefault(caller, asyncio.Lock())
        try:
            async with asyncio.timeout(self._seconds), turn, self._free:
                began = time.monotonic()
                try:
                    return await _read_apart(kind, raw, self._max_bytes)
                finally:
                    self._charge(caller, time.monotonic() - began)
        except TimeoutError:
            raise Unavailable("The detector is too busy to read files. Ask again in a minute.") from None
        finally:
            self._callers[caller] -= 1
            self._callers += Counter()  # keeps those above 0 alone


async def _read_apart(kind: str, raw: bytes, max_bytes: int) -> bytes | Unread:
    """Call `read_file` in a process, which is killed if this is cancelled."""
    command = ("-P", "-m", __name__, kind, str(max_bytes))
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}  # others may hold keys
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment | {"PATH": ""}
    )
    try:
        text, _ = await process.communicate(raw)
        if process.returncode:
            return Unread.NO_LETTERS if process.returncode == Unread.NO_LETTERS else Unread.NO_TEXT
        return text
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def main(kind: str, max_bytes: int) -> None:
    """Read a file from standard input, and write its text to standard output, within limits.

    If the file has no text, the process ends with an Unread.
    """
    confine_process()
    os.nice(10)  # texts come first
    for bound, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(bound, (value, value))  # the system ends it, whatever it is at
    text = read_file(kind, sys.stdin.buffer.read(), max_bytes)
    if isinstance(text, Unread):
        os._exit(text)
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    os._exit(0)


def read_file(kind: str, raw: bytes, max_bytes: int) -> bytes | Unread:
    """Return the text of a file, UTF-8, or why there is none: it cannot be read, or has more than `max_bytes` bytes."""
    with contextlib.suppress(BaseException):  # whatever it is, and a traceback could hold a part of it
        text = _READERS[kind](raw, max_bytes)
        utf8 = text.encode()
        if len(utf8) <= max_bytes:
            return Unread.NO_LETTERS if _READERS[kind] is not _plain_text and _no_letters(text) else utf8
    return Unread.NO_TEXT


def _no_letters(text: str) -> bool:
    """Return whether fonts of a file draw letters for which its characters do not stand.

    Such characters are private, unassigned, control characters or U+FFFD.
    """
    counts = Counter("".join(text.split()))
    unreadable_signs = {
        sign: n for sign, n in counts.items() if sign == "\ufffd" or unicodedata.category(sign) in ("Co", "Cn", "Cc")
    }
    return sum(unreadable_signs.values()) > MOST_UNREADABLE * counts.total()


def _pdf_text(raw: bytes, max_bytes: int) -> str:
    """Return the texts of the pages, one after the other, each from a new line on."""
    from pypdf import PdfReader

    reader, pages, length = PdfReader(io.BytesIO(raw)), list[str](), 0
    if len(reader.pages) > MOST_PAGES:
        raise ValueError("too many pages")
    for page in reader.pages:
        pages.append(page.extract_text().strip("\n"))
        length += len(pages[-1])
        if length > max_bytes:
            raise ValueError("too much text")
    return "\n".join(pages)


def _docx_text(raw: bytes, _max_bytes: int) -> str:
    """Return the text of the body as it would be if all changes were accepted, one line for each paragraph."""
    from docx import Document
    from docx.oxml.ns import qn

    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MOST_UNPACKED_BYTES:
            raise ValueError("too much compressed data")
        if len(set(archive.namelist())) < len(archive.namelist()):
            raise ValueError("two parts have the same name, and programs differ in which one they show")
    body, parts = Document(io.BytesIO(raw)).element.body, list[str]()
    if body.getroottree().docinfo.internalDTD is not None:
        raise ValueError("entities are not resolved, and no known program writes them")
    characters = {qn("w:p"): "\n", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:tab"): "\t", qn("w:noBreakHyphen"): "-"}
    for copy in list(body.iter(_FALLBACK)):  # what older programs show of what stands beside it
        copy.getparent().remove(copy)
    for element in body.iter(qn("w:t"), *characters):
        parts.append(characters.get(element.tag) or "".join(element.itertext()))  # which goes on after a comment
    return "".join(parts).strip("\n")


_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"


def _plain_text(raw: bytes, _max_bytes: int) -> str:
    if b"\0" in raw:
        raise ValueError("it is not text, or it is UTF-16, which could pass for UTF-8")
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
"""A `<` after which no tag ends before the next one begins. For each of these the library's parser reads to the end."""


def _without_comments(page: str) -> str:
    """Return a page without its comments. A comment without an end extends to the end of the page."""
    visible, *parts = page.split("<!--")
    ends = ((part, _END_OF_COMMENT.search(part)) for part in parts)
    return visible + "".join(part[end.end() :] for part, end in ends if end)


def _html_text(raw: bytes, max_bytes: int) -> str:
    """Return the text of a page, one line for each block."""
    parser = _Text()
    parser.feed(_NO_TAG.sub("&lt;", _without_comments(_plain_text(raw, max_bytes))))
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


_READERS: dict[str, Callable[[bytes, int], str]] = {
    "text/plain": _plain_text,
    "text/markdown": _plain_text,
    "text/html": _html_text,
    "application/pdf": _pdf_text,
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": _docx_text,
}

_ENDS = ((".txt",), (".md", ".markdown"), (".html", ".htm"), (".pdf",), (".docx",))
_NEEDS = {".pdf": "pypdf", ".docx": "docx"}

FILE_ENDS = {
    kind: ends
    for kind, ends in zip(_READERS, _ENDS, strict=True)
    if ends[0] not in _NEEDS or importlib.util.find_spec(_NEEDS[ends[0]])
}
"""Media types of files that are read, each with the endings of their names."""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
