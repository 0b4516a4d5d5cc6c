"""SGLang's marks: every known answer, the slow reference on any text, equal keys, and contexts that collide."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner.watermark import Positions, batch_tokens, select_positions
from scanner.watermark.stacks.sglang.format import (
    AnswerPositions,
    SglangOneKeyFormat,
    SglangTwoKeysFormat,
    parse_key,
    seeds_of,
    state_of,
)
from tests.watermark.known import cases, wrong
from tests.watermark.sglang import reference

KEYS = st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
WIDTHS = st.integers(1, 6) | st.just(64)
TOKENS = st.lists(st.integers(0, 3), max_size=40) | st.lists(st.integers(0, 2**32 - 1), max_size=100)
COLLISION = [55826, 167495, 17, 62387, 187178, 18]
"""Tokens of SGLang's known answers: at width 2 two different contexts of one hash, found without a key."""


@pytest.mark.seconds
@pytest.mark.parametrize("form", [SglangOneKeyFormat, SglangTwoKeysFormat])
def test_known_answers(form):
    assert [line for group, some in cases(form).items() for case in some for line in wrong(form, group, case)] == []


def test_all_answers_are_there():
    """67 released vectors; the 11 hashes with two keys stand in both files."""
    formats = SglangOneKeyFormat, SglangTwoKeysFormat
    one, two = ({group: len(some) for group, some in cases(form).items()} for form in formats)
    assert one == {"sglang_hashes": 13, "sglang_one_key": 46}
    assert two == {"sglang_coins": 12, "sglang_two_keys": 8}


def test_a_wrong_answer_is_noticed():
    case = cases(SglangTwoKeysFormat)["sglang_two_keys"][-1]
    assert wrong(SglangTwoKeysFormat, "sglang_two_keys", case | {"score": case["score"] * (1 + 1e-11)})
    assert wrong(SglangTwoKeysFormat, "sglang_two_keys", case | {"log_p_value": case["log_p_value"] * (1 + 1e-7)})


@settings(max_examples=60, deadline=None)
@given(key=KEYS, width=WIDTHS, documents=st.lists(TOKENS, min_size=1, max_size=4))
def test_positions_draws_and_scores(key, width, documents):
    tokens, mark = batch_tokens(documents), SglangOneKeyFormat(context_window=width).open(key.to_bytes(8, "big"))
    positions = mark.rule.positions(tokens, "context")
    score, draws = mark.score(tokens, positions, 0), mark.draws(tokens, positions)
    for d, document in enumerate(documents):
        kept = reference.scored(document, width)
        mine = slice(positions.offsets[d], positions.offsets[d + 1])
        assert (positions.index[mine] - tokens.offsets[d]).tolist() == kept
        seeds = [reference.context_hash(document[i - width : i]) for i in kept]
        assert seeds_of(tokens.ids, tokens.offsets, positions.index[mine], width).tolist() == seeds
        wanted = [reference.token_hash(f"{key:x}", x, document[i]) for x, i in zip(seeds, kept, strict=True)]
        assert draws[mine].tolist() == wanted
        assert math.isclose(score[d], reference.safe_score(document, kept, f"{key:x}", width), rel_tol=1e-13)


@settings(max_examples=60, deadline=None)
@given(a=KEYS, b=KEYS, share=st.sampled_from([0.001, 0.3, 0.5, 0.999]), document=TOKENS)
def test_the_coin_names_the_key(a, b, share, document):
    tokens, form = batch_tokens([document]), SglangTwoKeysFormat(context_window=2, mixing_probability=share)
    mark = form.open(a.to_bytes(8, "big") + b.to_bytes(8, "big"))
    positions = mark.rule.positions(tokens, "context")
    theirs = reference.detect(document, f"{a:x}", 2, key_b=f"{b:x}", mixing=share)
    assert positions.index.tolist() == theirs.positions
    assert np.allclose(mark.stack_terms(tokens, positions), theirs.combined, rtol=1e-12, atol=0)
    # the safe score is below SGLang's, by half a cell of each draw
    assert mark.score(tokens, positions, 0)[0] <= theirs.score * (1 + 1e-13)


@given(width=st.integers(1, 4), document=st.lists(st.integers(0, 2), max_size=60))
def test_each_seed_and_token_once(width, document):
    """`ngram`, which scans use, counts each seed and token once; `none` counts every position."""
    tokens, seen, wanted = batch_tokens([document]), set(), []
    for i in range(width, len(document)):
        pair = reference.context_hash(document[i - width : i]), document[i]
        if pair not in seen:
            wanted.append(i)
        seen.add(pair)
    rule = AnswerPositions(width)
    assert rule.positions(tokens, "ngram").index.tolist() == wanted
    assert rule.positions(tokens, "none").index.tolist() == list(range(width, max(width, len(document))))


def test_contexts_of_one_hash_count_once():
    """Such contexts can be made without the key; the same token after each meets the same draw."""
    a, b = COLLISION[:2], COLLISION[3:5]
    assert reference.context_hash(a) == reference.context_hash(b)
    twice = batch_tokens([[*a, 17, *b, 17]])
    rule = AnswerPositions(2)
    assert rule.positions(twice, "context").index.tolist() == [2, 3, 4]
    assert rule.positions(twice, "ngram").index.tolist() == [2, 3, 4]
    other = batch_tokens([COLLISION])
    assert rule.positions(other, "ngram").index.tolist() == [2, 3, 4, 5]
    assert rule.positions(other, "context").index.tolist() == [2, 3, 4]


def test_a_document_of_repeats_alone_costs_no_more():
    """20,000 equal tokens, or 20,000 different ones: both end at once."""
    for document in ([7] * 20_000, list(range(20_000))):
        got = AnswerPositions(4).positions(batch_tokens([document]), "ngram")
        assert got.scored.tolist() == [1 if document[0] == 7 else len(document) - 4]


def test_keys_of_one_state_are_one_key():
    """Only 32 of a key's 64 bits count."""
    keys = [parse_key("0123456789abcdef"), parse_key("0x1D971A02deadbeef")]
    assert state_of(np.array(keys[:1], np.uint64)) == state_of(np.array(keys[1:], np.uint64))
    tokens = batch_tokens([list(range(100))])
    marks = [SglangOneKeyFormat().open(key.to_bytes(8, "big")) for key in keys]
    positions = marks[0].rule.positions(tokens, "ngram")
    assert marks[0].score(tokens, positions, 0) == marks[1].score(tokens, positions, 0)
    assert marks[0].law.log10_p(1e4, 96) == pytest.approx(-32 * math.log10(2))


def test_a_score_depends_on_its_document_alone():
    documents = [[1, 2, 3] * 5, [], list(range(700)), [9], list(range(40, 90))]
    tokens, mark = batch_tokens(documents), SglangTwoKeysFormat().open(bytes(range(16)))
    positions = mark.rule.positions(tokens, "ngram")
    all_of_them = mark.score(tokens, positions, 0)
    for d, document in enumerate(documents):
        alone = batch_tokens([document])
        assert mark.score(alone, mark.rule.positions(alone, "ngram"), 0)[0] == all_of_them[d]
    assert mark.score(tokens, select_positions(positions, [4, 2]), 0).tolist() == all_of_them[[4, 2]].tolist()
    each = Positions(positions.index, np.arange(len(positions.index) + 1))
    assert math.isclose(mark.score(tokens, each, 0).sum(), all_of_them.sum(), rel_tol=1e-13)


@pytest.mark.parametrize("text", ["", "0x", "12345678901234567", "xyz", "0x0x1", " 1", "1\n", "١"])
def test_what_is_no_key(text):
    with pytest.raises(ValueError, match="1 to 16 hexadecimal digits") as refused:
        parse_key(text)
    assert len(text) < 3 or text not in str(refused.value)


def test_what_is_refused():
    with pytest.raises(ValueError, match="1 keys of SGLang have 8 bytes; this secret has 16"):
        SglangOneKeyFormat().open(bytes(16))
    with pytest.raises(ValueError, match="2 keys of SGLang have 16 bytes; this secret has 8"):
        SglangTwoKeysFormat().open(bytes(8))
    for share in (0, 1, -0.5, math.nan):
        with pytest.raises(ValueError, match="mixing_probability"):
            SglangTwoKeysFormat(mixing_probability=share)
    for window in (0, 65):
        with pytest.raises(ValueError, match="context_window"):
            SglangOneKeyFormat(context_window=window)
