"""What mail and web pages add to a text on its way, undone where the text shows that it was added.

Quoted-printable (RFC 2045), entities and paragraphs of HTML, and lines that a program broke at a width change the
tokens of a text that nobody meant to change. Each is undone by signs in the text itself: escapes that are all valid,
ampersands that all begin an entity, breaks that all come where the next word would not have fitted.
"""

import quopri
import re

import numpy as np
from numpy.typing import NDArray

from scanner.text.quoting import Utf8
from scanner.watermark.kernel import kernel

LEAST_REMOVED = 100
"""Characters of a text for each that is taken off with entities and tags, at most; fewer leave nearly all of a mark."""

LEAST_BREAKS = 3
"""Fewest lines that end where the next word would not have fitted."""

LEAST_WIDTH, MOST_WIDTH = 50, 80
"""Characters of the longest line of a text that a program broke; longer lines are paragraphs, shorter ones verse."""

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
_NO_PROSE = np.isin(np.arange(256), [ord(sign) for sign in " \t\n>*#|+-0123456789"])
"""First bytes of lines that stand by themselves: indented and empty ones, quotations, items of lists, headings."""


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
    data = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    broken = _broken_lines(data, 0, len(data), _NO_PROSE)
    if not len(broken):
        return text
    lines = text.split("\n")
    joined = (line.removesuffix(" ") + " " if here else line + "\n" for line, here in zip(lines, broken, strict=False))
    return "".join(joined) + lines[-1]


def broken_at_a_width(texts: Utf8) -> NDArray[np.bool_]:
    """Which texts have lines that a program broke at a width, bool[D], by one look at their bytes."""
    return np.asarray(_broken_texts(texts.data, texts.offsets, _NO_PROSE), np.bool_)


@kernel
def _broken_texts(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], no_prose: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    broken = np.zeros(len(offsets) - 1, np.bool_)
    for d in range(len(broken)):
        broken[d] = len(_broken_lines(data, offsets[d], offsets[d + 1], no_prose)) > 0
    return broken


@kernel
def _broken_lines(data: NDArray[np.uint8], begin: int, end: int, no_prose: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which lines but the last end where the next word would not have fitted; bool[0] if too few of them do.

    Lengths are counted in characters; a blank at the end of a line counts as the break, as RFC 3676 leaves one.
    """
    count, length, longest = 1, 0, 0
    for i in range(begin, end):
        if data[i] == 10:
            count, length = count + 1, 0
        elif data[i] & 0xC0 != 0x80:
            length += 1
            longest = max(longest, length)
            if length > MOST_WIDTH:
                return np.zeros(0, np.bool_)
    if count <= LEAST_BREAKS or longest < LEAST_WIDTH:
        return np.zeros(0, np.bool_)
    lengths, first_words, prose = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.bool_)
    line, in_first_word = 0, True
    for i in range(begin, end):
        if data[i] == 10:
            lengths[line] -= lengths[line] > 0 and data[i - 1] == 32
            line, in_first_word = line + 1, True
            prose[line] = i + 1 < end and not no_prose[data[i + 1]]
        elif data[i] & 0xC0 != 0x80:
            lengths[line] += 1
            in_first_word &= data[i] != 32
            first_words[line] += in_first_word
    lengths[line] -= lengths[line] > 0 and data[end - 1] == 32
    inside = (lengths[:-1] > 0) & prose[1:]
    full = inside & (lengths[:-1] + 1 + first_words[1:] > lengths.max())
    if full.sum() < LEAST_BREAKS or 5 * full.sum() < 4 * inside.sum():
        return np.zeros(0, np.bool_)
    return np.asarray(full, np.bool_)
