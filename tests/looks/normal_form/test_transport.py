"""What mail and web pages add to texts, and what stays."""

import html
import quopri
import re
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.looks.normal_form.transport import HTML, QUOTED_PRINTABLE, arrived_text, transport_signs, without_transport
from scanner.looks.normalising import normalise
from tests.support.evasions import PLATFORMS

PROSE = (
    'The river was high that spring, & nobody in the village would say "it is over" before the water had gone back '
    "behind the mill. We waited. Some of us had seen it come twice in one year, and others only knew it from what "
    "their parents told them in the evenings.\n\n"
    "Then the rain stopped, the fields began to dry, and the children went out again to look for what the flood had "
    "left behind: bottles, boards, half a boat, and once a clock that still showed the hour at which it had drowned."
)
UNDONE = [*PLATFORMS][:6]


@pytest.mark.parametrize("name", UNDONE)
def test_what_a_platform_added_is_taken_off(name):
    changed = PLATFORMS[name](PROSE)
    assert changed != PROSE
    assert normalise(changed) == normalise(PROSE)


@pytest.mark.parametrize("text", [PROSE, "a=\nb", "if a < b and c > d: x &= y", "AT&T, R & D", "1 <!-- never ends"])
def test_what_shows_no_platform_stays(text):
    assert without_transport(text) == text


@pytest.mark.parametrize("name", [*PLATFORMS][6:])
def test_what_people_write_themselves_stays(name):
    changed = PLATFORMS[name](PROSE)
    assert without_transport(changed) == changed


@pytest.mark.parametrize(
    "unseen", ["<!-- -->", "<!-- <b> > -->", "&shy;", "&ZeroWidthSpace;", "<wbr>", "<b></b>", "<I x=1>"]
)
def test_unseen_markup(unseen):
    """What a browser shows nothing for stands between words at no cost."""
    assert normalise(PROSE.replace(" ", f" {unseen}")) == normalise(PROSE)


def test_html_is_read_as_a_browser_shows_it():
    assert without_transport("<p>one</p>\n<p class=x>two<br/>three</p>") == "one\n\ntwo\nthree"
    assert without_transport("<ul><li>one</li><li>two</li></ul>") == "one\ntwo\n"
    assert without_transport("&#104;&#x69; &lt;b&gt; &amp;lt; &nosuch;") == "hi <b> &lt; &nosuch;"
    assert without_transport("a<!-- x --><!-- y -->b<!-->c") == "ab<!-->c"


@pytest.mark.parametrize("digits", [7, 8, 5000])
def test_references_of_any_length(digits):
    """Python reads no number of more than 4,300 digits, and a post with one could not be scored."""
    assert without_transport(f"a &#{'0' * digits}65; b") == "a A b"
    assert without_transport(f"a &#{'9' * digits}; b") == "a \ufffd b"


@given(st.text(alphabet="abc =&;é\u2019x", min_size=80, max_size=400))
def test_quoted_printable_is_decoded_to_the_last_byte(text):
    sent = quopri.encodestring(text.encode()).decode()
    assert "=\n" in sent
    assert without_transport(sent) == without_transport(text)


@given(st.lists(st.text(alphabet='ab"<>&', min_size=1, max_size=12), min_size=20, max_size=60))
def test_entities_are_undone_once(words):
    text = " ".join(words)
    assert without_transport(html.escape(text)) == text


@given(st.lists(st.text(alphabet="abcdefg", min_size=1, max_size=9), min_size=250, max_size=400), st.integers(20, 90))
def test_broken_lines_are_joined(words, width):
    text = " ".join(words)
    lines = textwrap.wrap(text, width)
    assert normalise("\n".join(lines)) == text
    assert normalise(" \n".join(lines)) == text


@given(st.lists(st.text("&<>=/;\n#pbrZ1 ~é!", max_size=9), min_size=1))
def test_signs_of_html_and_quoted_printable_are_seen_in_the_bytes(texts):
    stored = [text.encode() for text in texts]
    data, offsets = np.frombuffer(b"".join(stored), np.uint8), np.cumsum([0, *map(len, stored)])
    signs = transport_signs(data, offsets)
    assert (signs & QUOTED_PRINTABLE > 0).tolist() == ["=\n" in text for text in texts]
    assert (signs & HTML > 0).tolist() == [bool(re.search("&[A-Za-z#]|<[/!A-Za-z]", text)) for text in texts]


_PIECES = (
    "&",
    "<p>",
    "</p>",
    "<br>",
    "<!--",
    "-->",
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
    signs = transport_signs(np.frombuffer(b"".join(stored), np.uint8), np.cumsum([0, *map(len, stored)]))
    for text, sign in zip(texts, signs.tolist(), strict=True):
        assert (arrived_text(text, sign) if sign else text) == without_transport(text)
