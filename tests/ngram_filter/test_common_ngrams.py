"""N-grams that many texts hold: counted once a text, merged, left out; the fast path equals a plain one."""

import pickle

import numpy as np
import pytest

from scanner.ngram_filter.common_ngrams import CommonNgrams, Sketch, hash_key, least_bits
from scanner.ngram_filter.proof import find_common_places
from scanner.watermark import Positions, batch_tokens
from scanner.watermark.positions import consecutive_positions

KEY = hash_key(b"a secret of 16 b")
SHARED = list(range(100, 120))
"""Tokens that the texts of `corpus` share."""


def corpus(texts: int, seed: int = 1) -> list[list[int]]:
    """Texts of 60 tokens, of which 20 are shared by all."""
    random = np.random.default_rng(seed)
    return [[*random.integers(200, 50_000, 20).tolist(), *SHARED, *random.integers(200, 50_000, 20).tolist()]
            for _ in range(texts)]  # fmt: skip


def learnt(documents: list[list[int]], bits: np.ndarray, reach: int) -> Sketch:
    sketch = Sketch(reach)
    sketch.learn(KEY, batch_tokens(documents), bits.astype(np.uint8))
    return sketch


def filtered(sketch: Sketch, documents: list[list[int]], texts: int = 16) -> list[list[int]]:
    """Places within each document that stay, of all places."""
    tokens = batch_tokens(documents)
    all_of_them = consecutive_positions(tokens.offsets[:-1], np.diff(tokens.offsets))
    kept = CommonNgrams(sketch.reach, KEY, sketch.common(texts)).without(tokens, all_of_them)
    parts = np.split(kept.index, kept.offsets[1:-1])
    return [(part - begin).tolist() for part, begin in zip(parts, tokens.offsets[:-1], strict=True)]


@pytest.mark.seconds
@pytest.mark.parametrize("reach", [2, 4])
def test_ngrams_of_many_texts_are_left_out_and_no_others(reach):
    texts = corpus(40)
    sketch = learnt(texts, np.arange(40), reach)
    shared = range(20 + reach, 40)
    assert filtered(sketch, texts[:1]) == [[i for i in range(60) if i not in shared]]
    other = corpus(3, seed=2)
    assert filtered(sketch, other) == [[i for i in range(60) if i not in shared]] * 3
    assert filtered(sketch, [SHARED[: reach + 1], SHARED[:reach], []]) == [[*range(reach)], [*range(reach)], []]


@pytest.mark.costly
@pytest.mark.seconds
def test_copies_of_a_text_count_once_and_learning_twice_changes_nothing():
    (text,) = corpus(1)
    copies = learnt([text] * 1000, np.full(1000, 7), 2)
    assert filtered(copies, [text]) == [[*range(60)]]
    first, second = learnt(corpus(20), np.arange(20), 2), learnt(corpus(20, seed=3), np.arange(20, 40), 2)
    again = first.merge(learnt(corpus(20), np.arange(20), 2))
    assert np.array_equal(again.cells, first.cells)
    both = learnt([*corpus(20), *corpus(20, seed=3)], np.arange(40), 2)
    assert np.array_equal(first.merge(second).cells, both.cells)


def test_the_threshold_is_a_number_of_distinct_texts():
    assert [least_bits(texts) for texts in (1, 8, 16, 32)] == [1, 8, 14, 25]
    (text,) = corpus(1)
    for texts, left_out in ((8, False), (40, True)):
        bits = np.random.default_rng(5).integers(0, 64, texts)
        stays = filtered(learnt([text] * texts, bits, 2), [text])[0]
        assert (len(stays) == 2) == left_out


@pytest.mark.parametrize("reach", [2, 5])
def test_the_plain_path_of_proofs_leaves_out_the_same_places(reach):
    random = np.random.default_rng(reach)
    texts = [*random.integers(0, 6, (30, 80)).tolist(), *corpus(30), [2**32 - 1] * 9]
    sketch = learnt(texts, random.integers(0, 64, len(texts)), reach)
    common = CommonNgrams(reach, KEY, sketch.common(8))
    fast = filtered(sketch, texts, 8)
    plain = [find_common_places(text, *common.plain) for text in texts]
    assert [sorted(set(range(len(text))) - left) for text, left in zip(texts, plain, strict=True)] == fast
    assert 400 < sum(map(len, plain)) < 4000  # some stay, some go


@pytest.mark.seconds
def test_no_position_goes_but_the_common_ones():
    texts = corpus(40)
    tokens = batch_tokens(texts)
    scored = Positions(tokens.offsets[:-1] + 25, np.arange(41))
    common = CommonNgrams(2, KEY, learnt(texts, np.arange(40), 2).common(16))
    assert common.without(tokens, scored).scored.sum() == 0
    nothing = CommonNgrams(2, KEY, Sketch(2).common(16))
    assert np.array_equal(nothing.without(tokens, scored).index, scored.index)
    few = common.without(tokens, scored, np.arange(40) % 4 == 0)  # documents that are not looked at keep all positions
    assert few.scored.tolist() == [0, 1, 1, 1] * 10
    assert "key" not in repr(common)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(common)


def test_other_secrets_hash_otherwise():
    texts = corpus(40)
    sketch = learnt(texts, np.arange(40), 2)
    other = CommonNgrams(2, hash_key(b"another secret.."), sketch.common(16))
    tokens = batch_tokens(texts)
    all_of_them = consecutive_positions(tokens.offsets[:-1], np.diff(tokens.offsets))
    assert np.array_equal(other.without(tokens, all_of_them).index, all_of_them.index)
