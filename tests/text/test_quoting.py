"""Quoted lines and own words are told apart by a text's form alone, and together they are the text."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.looks.parts.segments import segments_of
from scanner.text.quoting import parts_of


def told(text: str) -> list[tuple[str, str]]:
    return [(part.kind, text[part.begin : part.end]) for part in parts_of(text)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("mine\n", [("own", "mine\n")]),
        ("> theirs\nmine", [("quoted", "> theirs\n"), ("own", "mine")]),
        ("mine\n  >> twice\n> once\nmine", [("own", "mine\n"), ("quoted", "  >> twice\n> once\n"), ("own", "mine")]),
        ("a > b\n    > code\n", [("own", "a > b\n    > code\n")]),
        ("&gt; theirs\n", [("quoted", "&gt; theirs\n")]),
        (
            "x<blockquote cite='a'>y\nz</blockquote>w",
            [("own", "x<blockquote cite='a'>"), ("quoted", "y\nz"), ("own", "</blockquote>w")],
        ),
        (
            "<BLOCKQUOTE>a<blockquote>b</blockquote>c</BLOCKQUOTE>d",
            [("own", "<BLOCKQUOTE>"), ("quoted", "a<blockquote>b</blockquote>c"), ("own", "</BLOCKQUOTE>d")],
        ),
        ("</blockquote>x<blockquote>never\nends", [("own", "</blockquote>x<blockquote>"), ("quoted", "never\nends")]),
    ],
)
def test_forms(text, parts):
    assert told(text) == parts


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("", []),
        ("one line", [("paragraph", "one line")]),
        ("one\ntwo\n \t\r\n\nthree\n", [("paragraph", "one\ntwo"), ("paragraph", "three\n")]),
        (
            "mine\n> theirs\n>\n> still\n\n> others\nmine\n\nagain",
            [
                ("paragraph", "mine\n"),
                ("quotation", "> theirs\n>\n> still\n"),
                ("paragraph", "\n"),
                ("quotation", "> others\n"),
                ("paragraph", "mine"),
                ("paragraph", "again"),
            ],
        ),
        (
            "a\n\nb<blockquote>x\n\ny</blockquote>\n\nc",
            [
                ("paragraph", "a"),
                ("paragraph", "b<blockquote>"),
                ("quotation", "x\n\ny"),
                ("paragraph", "</blockquote>"),
                ("paragraph", "c"),
            ],
        ),
    ],
)
def test_segments_are_quotations_and_paragraphs_of_own_words(text, segments):
    assert [(segment.form, text[segment.begin : segment.end]) for segment in segments_of(text)] == segments


PIECES = st.sampled_from(["> ", "\n", "<blockquote>", "</blockquote>", "a", " ", "é", "&gt;", "<blockquote x>"])


@given(st.lists(PIECES, max_size=30).map("".join))
def test_parts_are_the_text_and_neighbours_differ(text):
    parts = parts_of(text)
    assert "".join(text[part.begin : part.end] for part in parts) == text
    assert [part.begin for part in parts] == [0, *(part.end for part in parts)][: len(parts)]
    assert all(a.kind != b.kind for a, b in pairwise(parts))


@given(st.lists(PIECES, max_size=30).map("".join))
def test_segments_are_the_text_but_for_blank_lines(text):
    """Segments hold the quotations that `parts_of` finds, also where a text has none."""
    segments = [*segments_of(text)]
    quoted = [(part.begin, part.end) for part in parts_of(text) if part.kind == "quoted"]
    assert [(one.begin, one.end) for one in segments if one.form == "quotation"] == quoted
    edges = [0, *(edge for one in segments for edge in (one.begin, one.end)), len(text)]
    assert all(a <= b for a, b in pairwise(edges))
    assert not any(text[a:b].strip(" \n") for a, b in zip(edges[::2], edges[1::2], strict=True))


def test_tags_that_never_end_take_no_time():
    """A search from every tag to the end of the text took six minutes for 2.4 MB, and would take hours for 10 MB."""
    began = time.process_time()
    assert told("<blockquote " * 200_000) == [("own", "<blockquote " * 200_000)]
    assert time.process_time() - began < 20
