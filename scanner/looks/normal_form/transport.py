"""Undo changes that mail and web pages make to a text, recognised by signs in the text only.

These are quoted-printable (RFC 2045) whose escapes are all valid, and comments, tags and character references of HTML.
A kernel looks for their signs, and most texts have none. `normal_form.py` handles line ends that a program added.
"""

import html
import quopri
import re

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel

_LONGEST_LINE, _LONG_LINE = 76, 60  # of quoted-printable, and of its lines that are broken
_NO_ESCAPE = re.compile(r"=(?![0-9A-F]{2}|\n|\Z)")
_TAG = re.compile(
    r"<(?:(?P<paragraph>/[Pp]>\s*+<[Pp]\b[^<>]*>)|(?P<end>[Bb][Rr]\b[^<>]*>\n?|/(?:[Pp]|[Dd][Ii][Vv]|[Ll][Ii]|[Tt][Rr]|"
    r"[Hh][1-6])\s*+>(?!\s*+\Z))|/?[A-Za-z][^<>]*>)"
)
"""Tags of HTML.

Letters are written in both cases, because `re` finds a pattern's first letter fast only if case matters.
"""

_LONG_REFERENCE = re.compile(r"&#([0-9]{8,})")
"""Numbers of references that Python may refuse to read. 4,301 digits raise ValueError, even if they are zeros."""

_SHOWN = {"paragraph": "\n\n", "end": "\n", None: ""}

HTML, QUOTED_PRINTABLE = 1, 2
"""Signs of changes that mail or a web page may have made to a text, as bits."""


def without_transport(text: str) -> str:
    """Return a text as it was before mail or a web page changed it.

    Without a sign of such a change, it is the same text.
    """
    return arrived_text(text, HTML | QUOTED_PRINTABLE)


def arrived_text(text: str, signs: int) -> str:
    """Return a text as `without_transport` does, for a text that has only these signs."""
    if signs & QUOTED_PRINTABLE:
        text = _without_quoted_printable(text)
    return _without_html(text) if "&" in text or "<" in text else text


def _without_quoted_printable(text: str) -> str:
    """Return the text that quoted-printable encodes, if all of it can be that and the encoding broke its lines."""
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
    """Return the text as a browser shows it, with line ends for ends of blocks and characters for references.

    A tag ends before the next `<`, so `a < b` stays. References are read once: `&amp;lt;` becomes `&lt;`.
    """
    if "<" in text:
        text = _TAG.sub(lambda tag: _SHOWN[tag.lastgroup], _without_comments(text))
    if "&" not in text:
        return text
    # eight digits after the zeros are beyond all characters, and so are more
    return html.unescape(_LONG_REFERENCE.sub(lambda number: f"&#{number[1].lstrip('0')[:8] or 0}", text))


def _without_comments(text: str) -> str:
    begin, behind = text.find("<!--"), 0
    parts: list[str] = []
    while begin >= 0 and (end := text.find("-->", begin + 4)) >= 0:
        parts.append(text[behind:begin])
        behind = end + 3
        begin = text.find("<!--", behind)
    return "".join(parts) + text[behind:]


@kernel
def transport_signs(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the signs by which `without_transport` may change texts, uint8[D]. It never changes a text without signs.

    HTML: a reference, a tag or a comment may begin.
    QUOTED_PRINTABLE: a line ends in `=`.
    """
    signs = np.zeros(len(offsets) - 1, np.uint8)
    for d in range(len(signs)):
        text = data[offsets[d] : offsets[d + 1]]
        html, quoted = np.uint8(0), np.uint8(0)
        for i in range(1, len(text)):  # bytes without a branch, so that a processor compares many of them at once
            byte, last = text[i], text[i - 1]
            letter = np.uint8(np.uint8((byte | np.uint8(32)) - np.uint8(97)) < 26)
            tag = np.uint8((byte == 47) | (byte == 33))
            html |= np.uint8(last == 38) & (letter | np.uint8(byte == 35))
            html |= np.uint8(last == 60) & (letter | tag)
            quoted |= np.uint8(last == 61) & np.uint8(byte == 10)
        signs[d] = HTML * html | QUOTED_PRINTABLE * quoted
    return signs
