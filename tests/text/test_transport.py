"""What mail and web pages add to texts, and what stays."""

import html
import quopri
import re
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.text.normal_form import normalise
from scanner.text.transport import (
    BROKEN_LINES,
    HTML,
    NO_PROSE,
    QUOTED_PRINTABLE,
    arrived_text,
    transport_signs,
    without_transport,
)
from tests.support.evasions import PLATFORMS, wrapped

PROSE = (
    'The river was high that spring, & nobody in the village would say "it is over" before the water had gone back '
    "behind the mill. We waited. Some of us had seen it come twice in one year, and others only knew it from what "
    "their parents told them in the evenings.\n\n"
    "Then the rain stopped, the fields began to dry, and the children went out again to look for what the flood had "
    "left behind: bottles, boards, half a boat, and once a clock that still showed the hour at which it had drowned."
)
UNDONE = [*PLATFORMS][:6]
CODE = "\n".join(
    f"    if value_{i} < limit and other_{i} & 0x{i:02x}: return compute(value_{i}, {i})" for i in range(9)
)
VERSE = "\n".join(["The rose is red, the violet blue, and sugar is sweet as honey too,", "and so are you,"] * 6)
LISTED = "\n".join(f"- item {i}: " + "a few words more, so that the line is long enough here" for i in range(8))
SOURCE = "<table class='x'>" + "<tr><td>one</td><td>two &amp; three</td></tr>" * 9 + "</table> && <b>" + "so " * 40


@pytest.mark.parametrize("name", UNDONE)
def test_what_a_platform_added_is_taken_off(name):
    text = PROSE.replace("&", "and") if "no-break" in name else PROSE  # an ampersand by itself shows no HTML
    changed = PLATFORMS[name](text)
    assert changed != text
    assert without_transport(changed) == text
    assert normalise(changed) == text


@pytest.mark.parametrize(
    "text", [PROSE, CODE, VERSE, LISTED, SOURCE, PROSE.replace("\n\n", "\n"), "a=\nb", "&amp;" + PROSE]
)
def test_what_shows_no_platform_stays(text):
    assert without_transport(text) == text


@pytest.mark.parametrize("name", [*PLATFORMS][6:])
def test_what_people_write_themselves_stays(name):
    changed = PLATFORMS[name](PROSE)
    assert without_transport(changed) == changed


@given(st.text(alphabet="abc =&;é\u2019x", min_size=80, max_size=400))
def test_quoted_printable_is_decoded_to_the_last_byte(text):
    sent = quopri.encodestring(text.encode()).decode()
    assert "=\n" in sent
    assert without_transport(sent) == without_transport(text)


@given(st.lists(st.text(alphabet='ab"<>&', min_size=1, max_size=12), min_size=20, max_size=60))
def test_entities_are_undone_once(words):
    text = " ".join(words)
    escaped = html.escape(text)
    plain = without_transport(escaped)
    assert plain in (text, escaped)
    assert plain == text or len(escaped) - len(text) < len(escaped) / 100 or "<br" in text


@pytest.mark.costly
@pytest.mark.seconds
@given(st.lists(st.text(alphabet="abcdefg", min_size=1, max_size=9), min_size=250, max_size=400), st.integers(60, 78))
def test_broken_lines_are_joined(words, width):
    text = " ".join(words)
    lines = textwrap.wrap(text, width)
    assert without_transport("\n".join(lines)) == text
    assert without_transport(" \n".join(lines)) == text
    assert wrapped(text, "\n").replace("\n", " ") == text


def breaks_of(text):
    """Which lines end where the next word would not have fitted, line by line, and whether nearly all do."""
    lines = text.split("\n")
    trimmed = [line.removesuffix(" ") for line in lines]
    if len(lines) < 4 or not 50 <= max(map(len, lines)) <= 80:
        return []
    breaks, could = [], 0
    for line, following in zip(trimmed, lines[1:], strict=False):
        inside = line != "" and following != "" and following[0] not in " \t>*#|+-0123456789"
        could += inside
        breaks.append(inside and len(line) + 1 + len(following.split(" ")[0]) > max(map(len, trimmed)))
    return breaks if sum(breaks) >= 3 and sum(breaks) >= 0.8 * could else []


@given(
    st.integers(48, 82).flatmap(
        lambda width: st.lists(
            st.tuples(st.text("ab é日-1", max_size=6), st.integers(width - 8, width), st.sampled_from(["", " "])),
            min_size=1,
            max_size=9,
        )
    )
)
def test_breaks_are_those_of_a_plain_reading(lines):
    text = "\n".join((begin + "words é " * 11)[:width] + end for begin, width, end in lines)
    breaks, parts = breaks_of(text), text.split("\n")
    joined = "".join(
        part.removesuffix(" ") + " " if here else part + "\n" for part, here in zip(parts, breaks, strict=False)
    )
    assert without_transport(text) == (joined + parts[-1] if breaks else text)
    data = np.frombuffer(f"x{text}".encode(), np.uint8)
    signs = transport_signs(data, np.array([0, 1, len(data)]), NO_PROSE)
    assert (signs & BROKEN_LINES > 0).tolist() == [False, bool(breaks)]


@given(st.lists(st.text("&<>=/;\n#pbrZ1 ~é", max_size=9), min_size=1))
def test_signs_of_html_and_quoted_printable_are_seen_in_the_bytes(texts):
    stored = [text.encode() for text in texts]
    data, offsets = np.frombuffer(b"".join(stored), np.uint8), np.cumsum([0, *map(len, stored)])
    signs = transport_signs(data, offsets, NO_PROSE)
    assert (signs & QUOTED_PRINTABLE > 0).tolist() == ["=\n" in text for text in texts]
    begins, bare = re.compile("&[A-Za-z#]|<[/bp]"), re.compile("&(?![A-Za-z#])")
    plain = [bool(begins.search(text)) and not bare.search(text) for text in texts]
    assert (signs & HTML > 0).tolist() == plain


_PIECES = (
    "&",
    "<p>",
    "</p>",
    "<br>",
    "&amp;",
    "&nbsp;",
    "&#39;",
    "&x",
    "=\n",
    "=C3=A9",
    "a",
    "é",
    " ",
    "\n",
    "word " * 14,
)


@given(st.lists(st.lists(st.sampled_from(_PIECES), max_size=30).map("".join), min_size=1, max_size=4))
def test_what_a_text_has_no_sign_of_need_not_be_looked_for(texts):
    stored = [text.encode() for text in texts]
    signs = transport_signs(np.frombuffer(b"".join(stored), np.uint8), np.cumsum([0, *map(len, stored)]), NO_PROSE)
    for text, sign in zip(texts, signs.tolist(), strict=True):
        assert arrived_text(text, sign) == without_transport(text)
