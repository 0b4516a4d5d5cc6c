"""Searches of version 2: without groups against scores message by message, with groups against the reference."""

from fractions import Fraction
from itertools import chain

import numpy as np
import pytest

from scanner.watermark import scored_positions
from scanner.watermark.native import version2_marks
from scanner.watermark.native.green_runs import BLOCKS_ASIDE, FEWEST_BLOCKS_ASIDE, bit_length, count_run, words_of
from scanner.watermark.native.gumbel_runs import STEPS_A_PRODUCT
from scanner.watermark.native.secret import planes_of
from scanner.watermark.native.streams import RunRequest, in_two, is_group_step, steps_of
from scanner.watermark.positions import positions_where
from tests.watermark.native2.known2 import SECRET, marked, pair
from tests.watermark.pairs import batch_tokens
from tests.watermark.strategies import random_documents

LENGTHS = (0, 1, 3, 15, 16, 17, 63, 64, 65, 70, 257, 300)
GREEN = [Fraction(1, 2), Fraction(1, 4), Fraction(77, 256)]


def candidates_by_hand(mark, tokens, positions, count):
    """Messages and scores that each document's search must give, best first: two, or all whose p is 1/count or less."""
    scores = np.stack([mark.score(tokens, positions, message) for message in range(count)], axis=1)
    log10_p = mark.law.log10_p(scores, positions.scored[:, None])
    for d in range(len(scores)):
        order = np.lexsort((np.arange(count), -scores[d]))
        told = max(2, int((log10_p[d] <= -np.log10(count)).sum())) if count > 1 else 1
        yield order[:told].tolist(), scores[d, order[:told]].tolist()


def assert_found(mark, tokens, positions, count):
    found = mark.search(tokens, positions, count)
    assert found.independent
    assert found.user_evidence is None
    for d, (messages, scores) in enumerate(candidates_by_hand(mark, tokens, positions, count)):
        there = int((found.message[d] >= 0).sum())
        assert there == min(len(messages), count)
        assert found.message[d, : len(messages)].tolist() == messages
        assert found.score[d, : len(messages)].tolist() == scores
        assert (found.message[d, there:] == -1).all()
        assert (found.score[d, there:] == 0).all()


@pytest.mark.parametrize("count", [1, 2, 3, 255, 256, 257, 1000])
@pytest.mark.parametrize("gamma", [*GREEN, None], ids=str)
def test_without_groups(gamma, count):
    mark = pair("gumbel", 1).fast if gamma is None else pair("greenlist", 1, gamma=gamma).fast
    tokens = batch_tokens(
        [*random_documents(1, LENGTHS), marked(mark, count - 1, 60, 4), marked(mark, count // 2, 60, 2)]
    )
    assert_found(mark, tokens, scored_positions(tokens, 1, "ngram"), count)


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_more_numbers_than_stay_in_the_cache_and_more_positions_than_are_multiplied_at_once(method):
    mark = pair(method, 0).fast
    tokens = batch_tokens(random_documents(2, (STEPS_A_PRODUCT + 300, STEPS_A_PRODUCT, 40), 2**32))
    positions = scored_positions(tokens, 0, "none")
    assert_found(mark, tokens, positions, 40)
    short = batch_tokens(random_documents(3, (30, 5)))
    assert_found(mark, short, scored_positions(short, 0, "ngram"), 9000)


@pytest.mark.parametrize("gamma", GREEN, ids=str)
@pytest.mark.parametrize(
    "blocks",
    [FEWEST_BLOCKS_ASIDE - 1, FEWEST_BLOCKS_ASIDE, FEWEST_BLOCKS_ASIDE + 1, BLOCKS_ASIDE, 2 * BLOCKS_ASIDE + 3],
)
def test_long_runs_count_as_each_number_alone(gamma, blocks):
    """Numbers of blocks around those at which blocks stand side by side, and numbers of steps that fill no vector."""
    mark, planes = pair("greenlist", 1, gamma=gamma).fast, planes_of(gamma)
    count = blocks * 32 * (16 // planes) - 5
    first = 5 << 16  # the sixth group's run
    for length in (1, 8, 43):
        tokens = batch_tokens(random_documents(length, (length + 1,)))
        positions = scored_positions(tokens, 1, "ngram")
        steps = steps_of(tokens, positions, mark._nonces(tokens, positions))
        rule = (gamma.numerator, gamma.denominator.bit_length() - 1, planes)
        counters = np.empty((bit_length(len(steps.ids)), words_of(count, rule)), np.uint32)
        count_run(mark._keys.chacha, steps.ids, steps.nonces, first, rule, counters)
        bits = np.unpackbits(counters.view(np.uint8), axis=1, bitorder="little")[:, :count]
        found = (bits.astype(np.int64) << np.arange(len(counters))[:, None]).sum(axis=0)
        drawn = np.unique([*range(300), *np.random.default_rng(blocks).integers(0, count, 700), count - 1])
        copies = batch_tokens([tokens.ids] * len(drawn))
        alone = mark.score(copies, scored_positions(copies, 1, "ngram"), first + drawn)
        np.testing.assert_array_equal(found[drawn], alone)


def test_group_steps_and_user_steps_are_parted_in_one_pass():
    mark = pair("greenlist", 2, groups=7).fast
    tokens = batch_tokens(random_documents(6, (0, 5, 90, 2, 40)))
    positions = scored_positions(tokens, 2, "ngram")
    nonces = mark._nonces(tokens, positions)
    masks = [is_group_step(nonces), ~is_group_step(nonces)]
    for part, mask in zip(in_two(tokens, positions, nonces), masks, strict=True):
        wanted = steps_of(tokens, positions_where(positions, mask), nonces[mask])
        for found, column in zip(part, wanted, strict=True):
            assert found.dtype == column.dtype
            np.testing.assert_array_equal(found, column)
        assert len(part.ids) > 20


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_ties_go_to_the_smaller_message(method):
    """All messages tie where nothing is scored; under a green list with one position nearly all do."""
    mark = pair(method, 2).fast
    tokens = batch_tokens([[], [1], [1, 2], [5, 6, 7]])
    positions = scored_positions(tokens, 2, "ngram")
    found = mark.search(tokens, positions, 500)
    assert found.message[:3].tolist() == [[0, 1]] * 3
    assert_found(mark, tokens, positions, 500)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_everybody_whose_text_a_document_holds_is_a_candidate(method):
    """Forty users in one document are more than the search looks for at first."""
    mark = pair(method, 1).fast
    users = list(range(3, 123, 3))
    pieces = [marked(mark, user, 300, 12, seed=user) for user in users]
    tokens = batch_tokens([list(chain(*pieces)), *random_documents(4, (50, 60))])
    positions = scored_positions(tokens, 1, "ngram")
    found = mark.search(tokens, positions, 130)
    assert set(users) <= set(found.message[0].tolist())
    assert found.message.shape[1] >= 40
    assert_found(mark, tokens, positions, 130)


@pytest.mark.seconds
@pytest.mark.parametrize("groups", [2, 7, 31])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_with_groups(method, groups):
    """Unmarked texts, and texts marked for one, two and three users, of one group and of several."""
    one = pair(method, 1, groups)
    last = groups**2 - 1
    pieces = [marked(one.fast, user, 60, 8, seed=user) for user in (last, last - 1, 0)]
    docs = [*random_documents(5, (0, 1, 9, 40), 60), pieces[0], pieces[0] + pieces[1], list(chain(*pieces))]
    tokens = batch_tokens(docs)
    found = one.fast.search(tokens, scored_positions(tokens, 1, "ngram"), groups**2)
    assert found.independent
    assert found.user_evidence.messages == groups
    for d, doc in enumerate(docs):
        wanted = one.plain.search(doc)
        there = found.message[d] >= 0
        assert found.message[d][there].tolist() == [candidate.message for candidate in wanted]
        assert found.score[d][there].tolist() == pytest.approx([candidate.score for candidate in wanted], rel=1e-12)
        own = [candidate.score - candidate.score_group for candidate in wanted]
        assert found.user_evidence.score[d][there].tolist() == pytest.approx(own, rel=1e-12)
        assert found.user_evidence.scored[d] == sum(not step.of_group for step in one.plain.steps(doc))
    if groups > 2:
        assert found.message[4, 0] == last


def test_a_key_with_groups_is_searched_for_all_its_messages():
    with pytest.raises(ValueError, match="360 messages cannot be searched; this key has 361"):
        pair("gumbel", 1, 19).fast.search(
            batch_tokens([[1, 2]]), scored_positions(batch_tokens([[1, 2]]), 1, "ngram"), 360
        )


def test_no_key_of_a_law_searches_for_a_floor_again(monkeypatch):
    """Each decoy is a key of its own, which searches one text; keys differ in which steps are group steps."""
    found, plain = [], version2_marks.least_score
    monkeypatch.setattr(version2_marks, "least_score", lambda *given: found.append(given) or plain(*given))
    tokens = batch_tokens([*random_documents(1, LENGTHS)])
    positions = scored_positions(tokens, 4, "ngram")
    first, second = (version2_marks.Version2GreenList(bytes([i]) * 32, 4, Fraction(1, 8), 23) for i in range(2))
    for mark in (first, second, first):
        mark.search(tokens, positions, 23**2)
    lengths = np.concatenate([scored for _, scored, _ in found])
    assert len(np.unique(lengths)) == len(lengths) > 0


def test_the_secret_of_these_tests_shows_in_no_repr():
    assert SECRET.hex() not in repr(pair("greenlist", 4, 19).fast)


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_a_run_of_which_none_needs_be_returned_has_its_best_number_if_that_scores_enough(method):
    mark, count = pair(method, 1).fast, 300
    tokens = batch_tokens(random_documents(11, (41, 5, 120)))
    positions = scored_positions(tokens, 1, "ngram")
    scores = np.stack([mark.score(tokens, positions, message) for message in range(count)], axis=1).astype(np.float64)
    best = scores.max(axis=1)
    steps, documents = steps_of(tokens, positions, mark._nonces(tokens, positions)), np.arange(3)
    for floors in (best, np.nextafter(best, np.inf), best / 2, np.full(3, -1.0), np.full(3, np.inf)):
        request = RunRequest(documents, np.zeros(3, np.int64), count, 0, 1, floors)
        number, score = mark.best_of_runs(steps, request)
        enough = best >= floors
        assert number[:, 0].tolist() == np.where(enough, scores.argmax(axis=1), -1).tolist()
        assert score[:, 0].tolist() == np.where(enough, best, 0.0).tolist()
