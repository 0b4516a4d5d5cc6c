"""Marks of several documents that are joined score each document as its own mark does, to the last bit."""

from fractions import Fraction

import numpy as np
import pytest

from scanner.looks.parts.search import search_parts
from scanner.watermark.native import rough_runs
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from scanner.watermark.parts import Limit, Parts, Segments
from scanner.watermark.positions import Tokens, select_positions
from scanner.watermark.rule import search

LENGTHS = (300, 3, 0, 140, 31, 400, 5, 500)
WITHOUT, GROUPS = None, 18


def open_mark(method: str, groups: int | None, number: int) -> Version3GreenList | Version3Gumbel:
    secret = bytes([number]) * 32
    return (
        Version3Gumbel(secret, 2, groups)
        if method == "gumbel"
        else Version3GreenList(secret, 2, Fraction(1, 4), groups)
    )


@pytest.mark.seconds
@pytest.mark.parametrize("groups", [WITHOUT, GROUPS])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_joined_marks_score_each_document_as_its_own_mark_does(method, groups):
    """Documents of few different tokens, so that windows come again; some are too short to have positions."""
    ids = np.random.default_rng(1).integers(40, size=sum(LENGTHS), dtype=np.uint32)
    tokens = Tokens(ids, np.cumsum([0, *LENGTHS]))
    marks = [open_mark(method, groups, number) for number in range(len(LENGTHS))]
    joined = marks[0].join_marks(marks, tokens.offsets[:-1])
    assert joined is not None
    positions, messages = joined.rule.positions(tokens, "ngram"), GROUPS**2
    of_document = np.arange(len(LENGTHS)) * 7
    limit, whole = Limit(1.0 - 1e-9, messages, 1), search(joined, tokens, positions, messages)
    score, terms = joined.score(tokens, positions, of_document), joined.terms(tokens, positions, of_document)
    found, spans = search_parts(joined, tokens, positions, messages, 1, limit, Parts(True, Segments.none(len(LENGTHS))))
    assert spans
    assert found.message.tolist() == whole.message.tolist()
    for d, mark in enumerate(marks):
        one = select_positions(positions, [d])
        alone = search(mark, tokens, one, messages)
        width = alone.message.shape[1]
        for name in ("message", "score", "log10_p", "log10_p_own"):
            np.testing.assert_array_equal(getattr(found, name)[d, :width], getattr(alone, name)[0])
        assert (found.message[d, width:] == -1).all()
        assert score[d] == mark.score(tokens, one, int(of_document[d]))[0]
        of_terms = slice(positions.offsets[d], positions.offsets[d + 1])
        np.testing.assert_array_equal(terms[of_terms], mark.terms(tokens, one, int(of_document[d])))
        _, of_one = search_parts(mark, tokens, one, messages, 1, limit, Parts(True, Segments.none(1)))
        assert [span._replace(document=0) for span in spans if span.document == d] == of_one


def test_marks_of_unlike_labels_and_marks_that_a_device_searches_are_not_joined():
    mark, begins = open_mark("gumbel", GROUPS, 0), np.zeros(2, np.int64)
    assert mark.join_marks([mark, open_mark("gumbel", WITHOUT, 1)], begins) is None
    elsewhere = mark.searched_by(rough_runs.best_rough, "elsewhere")
    assert elsewhere.join_marks([elsewhere, elsewhere], begins) is None
