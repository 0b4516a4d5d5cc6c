"""What mail and web pages add to a text, undone by signs in the text alone.

Quoted-printable (RFC 2045) whose escapes are all valid, HTML whose ampersands all begin an entity, and lines that all
break where the next word would not have fitted. A kernel looks for signs of them, and most texts have none.
"""

import quopri
import re

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel

CHARACTERS_A_TAG = 100
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
_LAST_TAG = re.compile(r"</p>\s*+\Z")
_BREAK = re.compile(r"<br ?/?>\n?")
NO_PROSE = np.isin(np.arange(256), [ord(sign) for sign in " \t\n>*#|+-0123456789"])
"""First bytes of lines that stand by themselves: indented and empty ones, quotations, items of lists, headings."""


HTML, QUOTED_PRINTABLE, BROKEN_LINES = 1, 2, 4
"""Signs of what mail or a web page may have done to a text, as bits."""


def without_transport(text: str) -> str:
    """A text as it was before mail or a web page changed it; the same text where nothing shows that one did."""
    return arrived_text(text, HTML | QUOTED_PRINTABLE | BROKEN_LINES)


def arrived_text(text: str, signs: int) -> str:
    """As `without_transport`, of a text that has no signs but these."""
    plain = _without_html(_without_quoted_printable(text)) if signs & (HTML | QUOTED_PRINTABLE) else text
    return _unwrapped(plain) if signs & BROKEN_LINES or plain != text else text


def _without_quoted_printable(text: str) -> str:
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
    plain = _BREAK.sub("\n", _LAST_TAG.sub("", _PARAGRAPHS.sub("\n\n", text).removeprefix("<p>")))
    plain = _ENTITY.sub(lambda entity: _CHARACTERS[entity[0]], plain)
    return plain if CHARACTERS_A_TAG * (len(text) - len(plain)) >= len(text) else text


def _unwrapped(text: str) -> str:
    """The text with one blank for each break at which the next word would not have fitted, if nearly all are such."""
    data = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    broken = _broken_lines(data, NO_PROSE)
    if not len(broken):
        return text
    lines = text.split("\n")
    joined = (line.removesuffix(" ") + " " if cut else line + "\n" for line, cut in zip(lines, broken, strict=False))
    return "".join(joined) + lines[-1]


@kernel
def transport_signs(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], no_prose: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Signs that `without_transport` may change texts, uint8[D]; it leaves a text as it is that has none.

    HTML: an entity or a tag that is taken off may begin, and each ampersand may begin an entity.
    """
    found, one = np.zeros(len(offsets) - 1, np.uint8), np.uint8(1)
    for d in range(len(found)):
        text = data[offsets[d] : offsets[d + 1]]
        html, plain, quoted = np.uint8(0), np.uint8(len(text) > 0 and text[-1] == 38), np.uint8(0)
        for i in range(1, len(text)):  # bytes without a branch, so that a processor compares many of them at once
            byte, before = text[i], text[i - 1]
            name = np.uint8((np.uint8((byte | np.uint8(32)) - np.uint8(97)) < 26) | (byte == 35))  # a letter or #
            tag = np.uint8((byte == 47) | (byte == 98) | (byte == 112))  # </p> <br> <p>
            ampersand = np.uint8(before == 38)
            html |= (ampersand & name) | (np.uint8(before == 60) & tag)
            plain |= ampersand & (name ^ one)
            quoted |= np.uint8(before == 61) & np.uint8(byte == 10)
        found[d] = HTML * (html & (plain ^ one)) | QUOTED_PRINTABLE * quoted
        if len(_broken_lines(text, no_prose)):
            found[d] |= BROKEN_LINES
    return found


@kernel
def _broken_lines(text: NDArray[np.uint8], no_prose: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which lines but the last end where the next word would not have fitted; bool[0] if too few of them do."""
    # Lengths are counted in characters; a blank at the end of a line counts as the break, as RFC 3676 leaves one.
    count, end, one = 1, np.uint64(len(text)), np.uint64(1)
    for place in range(len(text)):
        count += text[place] == 10
    if count <= LEAST_BREAKS:
        return np.zeros(0, np.bool_)
    lengths, begins, i = np.zeros(count, np.int64), np.zeros(count, np.uint64), np.uint64(0)
    longest = 0
    for line in range(count):
        begins[line], length = i, 0
        while i < end and text[i] != 10 and length <= MOST_WIDTH:
            length += text[i] & 0xC0 != 0x80
            i += one
        if length > MOST_WIDTH:
            return np.zeros(0, np.bool_)
        longest = max(longest, length)
        lengths[line] = length - (length > 0 and text[i - one] == 32)
        i += one
    if longest < LEAST_WIDTH:
        return np.zeros(0, np.bool_)
    full, inside, longest = np.zeros(count - 1, np.bool_), 0, lengths.max()
    for line in range(count - 1):
        i = begins[line + 1]
        if lengths[line] == 0 or i >= end or no_prose[text[i]]:
            continue
        inside, length = inside + 1, lengths[line] + 1
        while i < end and text[i] != 10 and text[i] != 32:
            length += text[i] & 0xC0 != 0x80
            i += one
        full[line] = length > longest
    if full.sum() < LEAST_BREAKS or 5 * full.sum() < 4 * inside:
        return np.zeros(0, np.bool_)
    return full
