"""All-message scores of the interpreted kernels against the plain reference, brute force in numpy, and the CPU."""

from fractions import Fraction

import numpy as np
import pytest

from scanner.gpu import gumbel as device_gumbel
from scanner.gpu.gamma import Rule
from scanner.gpu.greenlist import _launch, best_two
from scanner.gpu.marks import BEST_TWO, rule_of
from tests.gpu.interpreted.sides import assert_same, laid_out, on_device
from tests.watermark import brute_force
from tests.watermark.pairs import greenlist, gumbel, scores_of_all, split, sum_error
from tests.watermark.strategies import random_documents

EXTREME = [2**32 - 1, 0, 31, 2**32 - 1, 255]
GREENS = [Fraction(1, 4), Fraction(3, 8), Fraction(1, 2), Fraction(77, 256)]


@pytest.mark.parametrize(
    "pair", [*(greenlist(1, gamma) for gamma in GREENS), gumbel(1)], ids=lambda pair: pair.fast.label
)
def test_the_plain_reference_finds_the_same(pair):
    documents = [[1, 2], [7, 7, 7, 8, 7], [], EXTREME]
    tokens, positions, _ = laid_out(pair, documents)
    best = on_device(pair, documents, 40)
    for d, document in enumerate(documents):
        wanted = pair.plain.best_two(document, 40)
        assert [best.message[d], best.second_message[d]] == [message for message, _ in wanted]
        exact = pair.plain.method == "greenlist"
        kept = split(positions, tokens)[d]
        for got, (_, score) in zip((best.score[d], best.second_score[d]), wanted, strict=True):
            assert abs(got - score) <= (0 if exact else sum_error(len(kept), score))


@pytest.mark.parametrize("count", [2, 33, 4096, 4097, 30_001])
def test_tiles_of_the_green_list_by_brute_force(count):
    """With two or three tokens very many messages tie, within and across tiles: the smallest two are found."""
    pair = greenlist(0, Fraction(1, 4))
    documents = random_documents(count, [2, 3, 1], vocabulary=2**32 - 1)
    best = on_device(pair, documents, count)
    for d, document in enumerate(documents):
        scores = brute_force.scores(pair.plain, document, count)
        assert [best.message[d], best.second_message[d]] == brute_force.best_two(scores)
        assert [best.score[d], best.second_score[d]] == scores[[best.message[d], best.second_message[d]]].tolist()


@pytest.mark.parametrize("pair", [greenlist(2, Fraction(3, 8)), gumbel(2)], ids=["greenlist", "gumbel"])
def test_the_cpu_finds_the_same_bit_for_bit(pair):
    documents = random_documents(3, [5, 3, 0, 2], vocabulary=2**32 - 1)
    tokens, positions, _ = laid_out(pair, documents)
    assert_same(on_device(pair, documents, 3001), pair.fast.best_two(tokens, positions, 3001))
    assert_same(on_device(pair, [], 3001), pair.fast.best_two(*laid_out(pair, [])[:2], 3001))
    assert_same(on_device(pair, documents, 1), pair.fast.best_two(tokens, positions, 1))


def test_a_message_that_is_last_or_first_of_many_is_found():
    """`first` is the message where the search begins in the same stream."""
    pair = greenlist(0, Fraction(1, 4))
    _, positions, batch = laid_out(pair, [[5, 9, 4]])
    scores = brute_force.scores(pair.plain, [5, 9, 4], 300)
    for first in (0, 1, 31, 32, 200, 299):
        message, score, _, _ = best_two(batch, positions.offsets, 300 - first, rule_of(pair.fast), first)
        assert message.tolist() == [first + int(scores[first:].argmax())]
        assert score.tolist() == [scores[first:].max()]


@pytest.mark.parametrize("levels", [12, 16, 25])
def test_counters_of_more_digits_count_alike(levels):
    pair = greenlist(1, Fraction(1, 4))
    tokens, positions, batch = laid_out(pair, random_documents(8, [9, 6]))
    packed = _launch(batch, 100, Rule(1, 2, 2), 0, levels).numpy()
    assert (packed >> 32)[:, 0].tolist() == pair.fast.best_two(tokens, positions, 100).score.tolist()


@pytest.mark.long
@pytest.mark.parametrize("length", [255, 256, 300])
def test_counters_do_not_overflow(length):
    for pair in (greenlist(0, Fraction(255, 256)), gumbel(0)):
        documents = [np.arange(length, dtype=np.uint32), [3, 4]]
        tokens, positions, _ = laid_out(pair, documents)
        assert_same(on_device(pair, documents, 130), pair.fast.best_two(tokens, positions, 130))


def test_sums_bound_every_score_from_above_and_closely():
    pair, count = gumbel(0), 2100
    tokens, positions, batch = laid_out(pair, random_documents(5, [13, 1, 4], vocabulary=2**32 - 1))
    sums = device_gumbel.all_sums(batch, count).numpy()
    scored = positions.scored[:, None]
    room = device_gumbel.bound(sums, scored) - scores_of_all(pair, tokens, positions, count)
    assert room.min() >= 0
    assert (room <= np.log(2) * (0.0861 + 2**-3 + 0.0015 * scored)).all()


def test_extreme_draws_are_bounded():
    """Every draw near a power of two, the largest and the smallest, taken through the kernel's steps one by one."""
    edges = {0, 1, 2**32 - 1, 2**32 - 2, 2**32 - 3}
    for k in range(1, 32):
        edges |= {2**32 - 2**k + e for e in (-1, 0, 1)} | {2**k + e for e in (-1, 0, 1)}
    w = np.array(sorted(edges), np.uint32)
    v = (~w | np.uint32(1)).astype(np.float32).view(np.uint32)
    cut = ((v - np.uint32(127 << 23)) >> 13).astype(np.uint16)
    read = ((cut.astype(np.uint32) << 13) + np.uint32(127 << 23)).view(np.float32).astype(np.float64)
    exact = 2.0**32 - w.astype(np.float64)
    assert (read <= exact * (1 + 2.0**-24)).all()
    assert (read >= np.maximum(exact - 1, 1) * (1 - 2.0**-10)).all()


def test_the_limit_lets_every_score_pass_that_can_be_as_large():
    generator = np.random.default_rng(1)
    scored = generator.integers(1, 5000, 2000)
    sums = (generator.uniform(20, 31.9, 2000) * scored * 2**device_gumbel.FRACTION).astype(np.int64)
    reached = device_gumbel.bound(sums, scored)
    assert (sums <= device_gumbel.limit(reached, scored)).all()
    assert (sums >= device_gumbel.limit(reached, scored) - 3).all()


def test_sums_are_taken_in_as_many_parts_as_there_is_memory_for(monkeypatch):
    pair, documents = gumbel(1), random_documents(6, [5, 3, 9, 2, 2])
    whole = on_device(pair, documents, 50)
    monkeypatch.setattr(device_gumbel, "SUMS_BYTES", 2 * 4 * 50)
    assert_same(on_device(pair, documents, 50), whole)


def test_a_document_too_long_for_the_bound_is_scored_on_the_cpu(monkeypatch):
    pair, documents = gumbel(0), random_documents(6, [5, 3])
    tokens, positions, _ = laid_out(pair, documents)
    monkeypatch.setitem(BEST_TWO, "gumbel", BEST_TWO["gumbel"]._replace(longest=4))
    monkeypatch.setattr(device_gumbel, "all_sums", None)
    assert_same(on_device(pair, documents, 50), pair.fast.best_two(tokens, positions, 50))
