"""What mail and web pages add to a text on its way, undone where the text shows that it was added.

Quoted-printable (RFC 2045), entities and paragraphs of HTML, and lines that a program broke at a width change the
tokens of a text that nobody meant to change. Each is undone by signs in the text itself: escapes that are all valid,
ampersands that all begin an entity, breaks that all come where the next word would not have fitted.
"""

import quopri
import re

import numpy as np

LEAST_REMOVED = 100
"""Characters of a text for each that is taken off with entities and tags, at most; fewer leave nearly all of a mark."""

LEAST_BREAKS = 3
"""Fewest lines that end where the next word would not have fitted."""

WIDTHS = range(50, 81)
"""Lengths of the longest line of a text that a program broke; longer lines are paragraphs, shorter ones verse."""

_LONGEST_LINE, _LONG_LINE = 76, 60  # of quoted-printable, and of its lines that are broken
_NO_ESCAPE = re.compile(r"=(?![0-9A-F]{2}|\n|\Z)")
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#39|#x27|#34);")
_NO_ENTITY = re.compile(r"&(?![A-Za-z][A-Za-z0-9]{1,9};|#[0-9]{1,7};|#x[0-9A-Fa-f]{1,6};)")
_CHARACTERS = {
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&nbsp;": " ", "&#39;": "'", "&#x27;": "'",
    "&#34;": '"',
}  # fmt: skip
_PARAGRAPHS = re.compile(r"</p>\s*+<p>")
_TAGS = re.compile(r"\A<p>|</p>\s*+\Z")
_BREAK = re.compile(r"<br ?/?>\n?")
_NO_PROSE = np.array([ord(sign) for sign in " \t\n>*#|+-0123456789"], np.uint32)
"""First characters of lines that stand by themselves: indented and empty ones, quotations, items of lists, headings."""


def without_transport(text: str) -> str:
    """A text as it was before mail or a web page changed it; the same text where nothing shows that one did."""
    return _unwrapped(_without_html(_decoded(text)))


def _decoded(text: str) -> str:
    """The text that quoted-printable stands for, if all of it can be that and lines were broken by it."""
    if "=\n" not in text or not text.isascii() or _NO_ESCAPE.search(text):
        return text
    lines = text.split("\n")
    if max(map(len, lines)) > _LONGEST_LINE or min(len(line) for line in lines if line.endswith("=")) < _LONG_LINE:
        return text
    try:
        return quopri.decodestring(text.encode("ascii")).decode()
    except UnicodeDecodeError:
        return text


def _without_html(text: str) -> str:
    """The text without paragraphs, breaks and entities of HTML, where ampersands are nothing else."""
    if ("&" not in text and "<" not in text) or _NO_ENTITY.search(text):
        return text
    plain = _BREAK.sub("\n", _TAGS.sub("", _PARAGRAPHS.sub("\n\n", text)))
    plain = _ENTITY.sub(lambda entity: _CHARACTERS[entity[0]], plain)
    return plain if LEAST_REMOVED * (len(text) - len(plain)) >= len(text) else text


def _unwrapped(text: str) -> str:
    """The text with one blank for each break at which the next word would not have fitted, if nearly all are such."""
    codes = np.frombuffer(f"{text}\n".encode("utf-32-le", errors="surrogatepass"), np.uint32)
    stops = np.flatnonzero(codes == ord("\n"))
    starts = np.append(0, stops[:-1] + 1)
    lengths = stops - starts
    if len(stops) <= LEAST_BREAKS or lengths.max() not in WIDTHS:
        return text
    lengths -= (lengths > 0) & (codes[stops - 1] == ord(" "))  # as RFC 3676 leaves one
    blanks = np.flatnonzero((codes == ord(" ")) | (codes == ord("\n")))
    next_word = blanks[np.searchsorted(blanks, starts[1:])] - starts[1:]
    inside = (lengths[:-1] > 0) & ~np.isin(codes[starts[1:]], _NO_PROSE)
    full = inside & (lengths[:-1] + 1 + next_word > lengths.max())
    if full.sum() < LEAST_BREAKS or 5 * full.sum() < 4 * inside.sum():
        return text
    lines = text.split("\n")
    joined = (line.removesuffix(" ") + " " if here else line + "\n" for line, here in zip(lines, full, strict=False))
    return "".join(joined) + lines[-1]
