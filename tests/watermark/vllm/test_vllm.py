"""vLLM's marks: every known answer, the slow reference on any text, and the side on which scores err."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner.watermark import Positions, Tokens, batch_tokens, select_positions
from scanner.watermark.stacks.vllm.draws import sum_terms, words_of_positions
from scanner.watermark.stacks.vllm.format import (
    ResponsePositions,
    VllmDualKeyFormat,
    VllmGumbelFormat,
    key_of,
    stack_terms,
    sub_keys,
)
from tests.watermark.known import cases, wrong
from tests.watermark.vllm import reference

KEYS = st.sampled_from([0, 1, 42, 2**32 - 1, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
WIDTHS = st.integers(1, 9) | st.sampled_from([16, 17, 64])
# few different tokens repeat contexts, many never do
TOKENS = st.lists(st.integers(0, 3), max_size=40) | st.lists(st.integers(0, 2**31), max_size=40)


@pytest.mark.parametrize("form", [VllmGumbelFormat, VllmDualKeyFormat])
def test_known_answers(form):
    assert [line for group, some in cases(form).items() for case in some for line in wrong(form, group, case)] == []


def test_all_released_answers_are_there():
    """90 released vectors: words and single keys, sub-keys and two keys."""
    formats = VllmGumbelFormat, VllmDualKeyFormat
    counts = [{group: len(some) for group, some in cases(form).items()} for form in formats]
    assert counts == [{"vllm_words": 19, "vllm_gumbel": 46}, {"vllm_sub_keys": 4, "vllm_dual_key": 21}]


def test_a_wrong_answer_is_noticed():
    case = cases(VllmGumbelFormat)["vllm_gumbel"][0]
    assert wrong(VllmGumbelFormat, "vllm_gumbel", case | {"score": case["score"] * (1 + 1e-11)})
    assert wrong(VllmGumbelFormat, "vllm_gumbel", case | {"p_value": case["p_value"] * (1 + 1e-7)})


@settings(max_examples=60, deadline=None)
@given(key=KEYS, width=WIDTHS, documents=st.lists(TOKENS, min_size=1, max_size=4), opening=st.booleans())
def test_words_positions_and_scores(key, width, documents, opening):
    tokens = batch_tokens(documents)
    mark = VllmGumbelFormat(context_width=width, partial_contexts="scored" if opening else "dropped").open(
        key.to_bytes(8, "big")
    )
    positions = mark.rule.positions(tokens, "context")
    score = mark.score(tokens, positions, 0)
    words = words_of_positions(np.uint64(key), tokens.ids, tokens.offsets, positions.index, width)
    for d, document in enumerate(documents):
        kept = [(i, c) for i, c in reference.scored(document, width, dedup=True) if opening or i >= width]
        mine = slice(positions.offsets[d], positions.offsets[d + 1])
        assert (positions.index[mine] - tokens.offsets[d]).tolist() == [i for i, _ in kept]
        assert words[mine].tolist() == [reference.word(key, context, document[i]) for i, context in kept]
        wanted = reference.safe_score(document, [i for i, _ in kept], key, width)
        assert math.isclose(score[d], wanted, rel_tol=1e-13)


@given(width=st.integers(1, 5), document=TOKENS, dedup=st.sampled_from(["ngram", "none"]))
def test_other_choices_of_repeats(width, document, dedup):
    """`ngram`: each (context, token) once; `none`: every position."""
    got = ResponsePositions(width, opening=True).positions(batch_tokens([document]), dedup).index.tolist()
    seen, wanted = set(), []
    for i, context in reference.scored(document, width, dedup=False):
        if dedup == "none" or (context, document[i]) not in seen:
            wanted.append(i)
        seen.add((context, document[i]))
    assert got == wanted


@pytest.mark.seconds
@given(documents=st.lists(TOKENS, min_size=2, max_size=5), alpha=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
def test_two_keys(documents, alpha):
    tokens, key = batch_tokens(documents), 0x0123456789ABCDEF
    mark = VllmDualKeyFormat(context_width=2, alpha=alpha).open(key.to_bytes(8, "big"))
    positions = mark.rule.positions(tokens, "context")
    for d, document in enumerate(documents):
        at = [i for i, _ in reference.scored(document, 2, dedup=True)]
        a, b = (reference.safe_score(document, at, reference.derive(key, name), 2) for name in ("key_a", "key_b"))
        wanted = reference.best_of_weights(a, b, len(at), alpha)
        assert math.isclose(mark.score(tokens, positions, 0)[d], wanted, rel_tol=1e-10, abs_tol=1e-12)


def test_a_score_depends_on_its_document_alone():
    """A score is the same in any batch, for any choice of its documents, and position by position."""
    documents = [[1, 2, 3] * 5, [], list(range(700)), [9], list(range(40, 90))]
    tokens, mark = batch_tokens(documents), VllmGumbelFormat().open(bytes(range(8)))
    positions = mark.rule.positions(tokens, "ngram")
    all_of_them = mark.score(tokens, positions, 0)
    for d, document in enumerate(documents):
        alone = batch_tokens([document])
        assert mark.score(alone, mark.rule.positions(alone, "ngram"), 0)[0] == all_of_them[d]
    assert mark.score(tokens, select_positions(positions, [4, 2]), 0).tolist() == all_of_them[[4, 2]].tolist()
    each = Positions(positions.index, np.arange(len(positions.index) + 1))
    terms = mark.score(tokens, each, 0)
    assert np.allclose(np.add.reduceat(terms, positions.offsets[[2, 3]])[0], all_of_them[2], rtol=1e-13)


@pytest.mark.costly
@pytest.mark.seconds
def test_no_cell_scores_too_high():
    """All 2^24 cells: P(term ≥ x) is at most e^-x, as of an exponential variable; vLLM's own terms exceed that."""
    k = np.arange(2**24, dtype=np.uint32)
    terms = np.empty(2**24)
    terms[:] = sum_terms(k << 8, np.arange(2**24 + 1))
    share_of_higher = 1.0 - k / 2.0**24
    assert (np.exp(-terms) >= share_of_higher * (1 - 1e-15)).all()
    theirs = stack_terms(k << 8)
    over = theirs + np.log(share_of_higher)
    assert 0.4 < (over > 1e-9).mean() < 0.6
    assert 5e-8 < over.max() < 6e-8


def test_sub_keys():
    assert sub_keys(42) == (37150756557148556, 15826636237805488045)


def test_the_ngram_of_a_position_stops_at_its_document():
    tokens = batch_tokens([[5, 6, 7], [8, 9]])
    rule = ResponsePositions(2, opening=True)
    assert [rule.ngram(tokens, place) for place in range(5)] == [
        (-1, -1, 5), (-1, 5, 6), (5, 6, 7), (-1, -1, 8), (-1, 8, 9),
    ]  # fmt: skip


def test_no_documents():
    mark, none = VllmDualKeyFormat().open(bytes(8)), Tokens(np.empty(0, np.uint32), np.zeros(1, np.int64))
    assert len(mark.score(none, mark.rule.positions(none, "ngram"), 0)) == 0


def test_what_is_refused():
    for secret in (bytes(7), bytes(9), bytes(16)):
        with pytest.raises(ValueError, match=f"8 bytes; this secret has {len(secret)}"):
            key_of(secret)
    for parameters in ({"context_width": 0}, {"context_width": 65}, {"partial_contexts": "no"}, {"alpha": 0.1}):
        with pytest.raises(ValueError, match=next(iter(parameters))):
            VllmGumbelFormat.model_validate(parameters)
    for alpha in (-0.1, 0.005, 0.995, 1.1, math.nan):
        with pytest.raises(ValueError, match="alpha"):
            VllmDualKeyFormat(alpha=alpha)
    mark, tokens = VllmGumbelFormat().open(bytes(8)), batch_tokens([[1, 2]])
    for message in (1, -1):
        with pytest.raises(ValueError, match="carries no message"):
            mark.score(tokens, mark.rule.positions(tokens, "ngram"), message)
