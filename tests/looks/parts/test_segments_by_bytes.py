"""Segments that kernels find in the bytes of a batch are those that scanner.text.quoting finds in each text."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.looks.parts.segments import SHORTEST_SEGMENT, segments_of, segments_of_texts
from scanner.text.utf8 import Utf8
from scanner.watermark.parts import Segments

PIECES = [
    *(
        "> ",
        "&gt;",
        "&gt ",
        "&GT;",
        "\n",
        "\n\n",
        "\r",
        "\t",
        " ",
        "    ",
        "a",
        "é",
        "😀",
        "abcdefg",
        "\f",
        "\x0b",
        "\u2028",
    ),
    *("<blockquote>", "</blockquote>", "<BlockQuote\n", "<blockquote x='y'>", "</blockquote", "<blockquote/>", "<<"),
    *("<blockquotes>", "<blockquote-x>", "<bloc\u212aquote>", "<blockquoteé>", "</ blockquote>", "<"),
]


def utf8(texts: list[str]) -> Utf8:
    raw = [text.encode() for text in texts]
    return Utf8(np.frombuffer(b"".join(raw), np.uint8), np.cumsum([0, *map(len, raw)]))


def plainly(text: str) -> list[tuple[int, int, int]]:
    """Begin, end, number of the segments of a text, by bytes."""
    size = len(text.encode())
    each = ((len(text[: one.begin].encode()), len(text[: one.end].encode())) for one in segments_of(text))
    return [(*edges, number) for number, edges in enumerate(each) if SHORTEST_SEGMENT <= edges[1] - edges[0] < size]


def told(segments: Segments) -> list[list[tuple[int, int, int]]]:
    each = list(zip(segments.begin.tolist(), segments.end.tolist(), segments.number.tolist(), strict=True))
    edges = segments.offsets.tolist()
    return [each[first:last] for first, last in pairwise(edges)]


@pytest.mark.seconds
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), max_size=5))
def test_segments_are_those_that_are_told_of_each_text(texts):
    assert told(segments_of_texts(utf8(texts))) == [plainly(text) for text in texts]


def test_many_texts_at_once():
    random = np.random.default_rng(1)
    texts = ["".join(random.choice(PIECES, size)) for size in random.integers(0, 60, 1_000)]
    found = told(segments_of_texts(utf8(texts)))
    assert found == [plainly(text) for text in texts]
    assert sum(map(len, found)) > 2_000


def test_a_slice_of_a_buffer_is_read_where_it_lies():
    texts = ["one\n\n> two two two\n", "three three\n\nfour four", "", "five five\n\n\nsix six\n"]
    data, offsets = utf8(texts)
    assert told(segments_of_texts(Utf8(data, offsets[1:4]))) == [plainly(text) for text in texts[1:3]]


@pytest.mark.seconds
@pytest.mark.parametrize(
    "piece",
    [
        "word\n\n",
        "\n",
        ">" * 1_000 + "\n",
        "> a\nb\n",
        "<blockquote ",
        "<blockquote>",
        "</blockquote>",
        "<",
        " \n",
        "e\u0301",
    ],
)
def test_hostile_texts_take_no_time(piece):
    """Five million characters of each text; work in proportion to their square would take hours."""
    size = 5_000_000 // len(piece)
    small, large = piece * 300, piece * size
    began = time.process_time()
    found = segments_of_texts(utf8([large]))
    assert time.process_time() - began < 20
    assert told(segments_of_texts(utf8([small]))) == [plainly(small)]
    assert (found.end[:-1] <= found.begin[1:]).all()
    assert (found.end - found.begin).sum() <= len(large.encode())
