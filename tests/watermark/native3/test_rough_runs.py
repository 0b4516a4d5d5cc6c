"""Rough scores of runs, and exact ones, against sums over every step and number in whole arrays and the reference."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from scanner.watermark.native.exact_scores import bounds_of_scores, exact_scores
from scanner.watermark.native.rough_runs import EIGHT_DIGITS, best_rough
from scanner.watermark.native.steps import Steps
from scanner.watermark.positions import Ranges
from tests import reference3
from tests.watermark.native3.plain_steps import best_of, digits_of, document, plain_blocks, random_steps, repeated

RULES = {
    "gumbel": EIGHT_DIGITS,
    "a quarter": (1, 2, 2),
    "a half": (1, 1, 1),
    "three eighths": (3, 3, 4),
    "five eighths": (5, 3, 4),
    "three quarters": (3, 2, 2),
    "77 of 256": (77, 8, 8),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
two_rules = pytest.mark.parametrize("rule", [EIGHT_DIGITS, (1, 2, 2)], ids=["gumbel", "a quarter"])


def assert_best(steps: Steps, documents: list[int], first: list[int], length: int, most: int, rule):
    numbers, scores = best_rough(steps, np.array(documents, np.int64), np.array(first, np.int64), length, most, rule)
    assert numbers.shape == scores.shape == (len(documents), most)
    for r, (d, number) in enumerate(zip(documents, first, strict=True)):
        wanted = best_of(digits_of(document(steps, d), number, length, rule).sum(axis=0), most)
        assert (numbers[r].tolist(), scores[r].tolist()) == wanted, (r, d, number)


def test_the_plain_blocks_are_those_of_the_reference():
    steps = random_steps(np.random.default_rng(1), [20])
    counters = np.array([2**63 + 5, 2**64 - 1, *range(18)], np.uint64)
    blocks = plain_blocks(steps.keys, counters, steps.nonces)
    for i in range(20):
        key = tuple(steps.keys[:, i].tolist())
        assert tuple(blocks[:, i].tolist()) == reference3.chacha8(key, int(counters[i]), int(steps.nonces[i]))


def test_leading_ones_are_those_of_the_reference():
    steps = random_steps(np.random.default_rng(2), [3])
    digits = digits_of(steps, 2**16, 200, EIGHT_DIGITS)
    for i in range(3):
        key, nonce, token = tuple(steps.keys[:, i].tolist()), int(steps.nonces[i]), int(steps.ids[i])
        for number in (0, 1, 63, 64, 199):
            draw = reference3.draw(key, nonce, reference3.entry(token, 2**16 + number), in_groups=True)
            assert digits[i, number] == reference3.leading_ones(draw)


@every_rule
@pytest.mark.parametrize("length", [1, 32, 33, 325])
def test_runs_of_documents_of_many_lengths_stand_side_by_side(rule, length):
    """Steps of several runs share lanes and chunks; runs begin and end within them; some documents have no step."""
    sizes = [57, 0, 1, 7, 0, 254, 255, 3, 300, 16, 32, 256, 19, 0]
    steps = random_steps(np.random.default_rng(length), sizes)
    documents = [*range(len(sizes)), 8, 8, 0, 5]
    first = [0] * len(sizes) + [2**16, 70 * 2**16, 2**32 - 2**16, 5 * 2**16]
    assert_best(steps, documents, first, length, 8, rule)


@two_rules
@pytest.mark.parametrize("size", [0, 1, 7, 15, 16, 17, 31, 64, 254, 255, 300, 1500])
def test_runs_of_one_document(rule, size):
    assert_best(random_steps(np.random.default_rng(size), [size]), [0, 0], [0, 2**16], 150, 3, rule)


@two_rules
@pytest.mark.parametrize("length", [1026, 1984, 1985, 4097, 7936, 7937, 16_128])
def test_long_runs_have_their_blocks_side_by_side(rule, length):
    """Gumbel runs of more than 1,984 numbers and a quarter's of more than 7,936 have 32 blocks or more."""
    assert_best(
        random_steps(np.random.default_rng(length), [5, 0, 9, 1]), [0, 1, 2, 3, 2], [0] * 4 + [2**18], length, 8, rule
    )


@two_rules
def test_the_longest_runs(rule):
    assert_best(random_steps(np.random.default_rng(5), [4, 8]), [0, 1], [0, 2**17], 70_000, 8, rule)


@two_rules
@pytest.mark.parametrize("length", [1, 3, 7, 5000])
def test_what_a_run_lacks_is_no_number(rule, length):
    numbers, scores = best_rough(
        random_steps(np.random.default_rng(1), [3, 0]), np.arange(2), np.zeros(2, np.int64), length, 5002, rule
    )
    assert (np.sort(numbers[:, :length]) == np.arange(length)).all()
    assert (numbers[:, length:] == -1).all()
    assert (scores[:, length:] == 0).all()
    assert numbers[1, :length].tolist() == list(range(length))


@two_rules
@pytest.mark.parametrize("times", [30, 31, 32, 33, 254, 255, 256, 2000])
@pytest.mark.parametrize("length", [300, 20_000])
def test_counts_that_no_byte_holds(rule, times, length):
    """One step again and again: numbers have all counts there can be, up to 8 times as many as there are steps."""
    one = random_steps(np.random.default_rng(4), [1])
    digits = digits_of(one, 0, length, rule)[0]
    assert digits.max() == (8 if rule == EIGHT_DIGITS else 1) or length == 300
    numbers, scores = best_rough(repeated(one, times), np.zeros(1, np.int64), np.zeros(1, np.int64), length, 40, rule)
    assert (numbers[0].tolist(), scores[0].tolist()) == best_of(times * digits, 40)


@two_rules
def test_counts_around_what_a_byte_holds(rule):
    """Steps that give the first number one more each, up to 300."""
    generator = np.random.default_rng(6)
    many = random_steps(generator, [20_000])
    adds = digits_of(many, 0, 1, rule)[:, 0] == 1
    ones = Steps(*(values[..., adds] for values in many[:3]), np.array([0, adds.sum()]))
    sizes = [252, 253, 254, 255, 256, 257, 300]
    places = np.concatenate([np.arange(size) for size in sizes])
    steps = Steps(*(values[..., places].copy() for values in ones[:3]), np.cumsum([0, *sizes]))
    assert_best(steps, list(range(len(sizes))), [0] * len(sizes), 64, 4, rule)
    _, scores = best_rough(steps, np.arange(len(sizes)), np.zeros(len(sizes), np.int64), 1, 1, rule)
    assert scores[:, 0].tolist() == sizes


@two_rules
@pytest.mark.parametrize("length", [325, 20_000])
def test_only_the_best_of_each_run_is_listed_below_its_floor(rule, length):
    steps, runs = random_steps(np.random.default_rng(8), [40, 60, 40]), (np.arange(3), np.zeros(3, np.int64))
    numbers, scores = best_rough(steps, *runs, length, 8, rule)
    floors = np.array([scores[0, 3], np.inf, -np.inf])
    some_numbers, some_scores = best_rough(steps, *runs, length, 8, rule, floors)
    kept = (scores >= floors[:, None]) | (np.arange(8) == 0)
    assert kept.sum(axis=1)[1:].tolist() == [1, 8]
    assert some_numbers.tolist() == np.where(kept, numbers, -1).tolist()
    assert some_scores.tolist() == np.where(kept, scores, 0).tolist()


@two_rules
def test_there_may_be_no_run_and_no_document(rule):
    none = np.zeros(0, np.int64)
    for steps in (random_steps(np.random.default_rng(1), []), random_steps(np.random.default_rng(1), [5])):
        for length in (300, 20_000):
            assert [found.shape for found in best_rough(steps, none, none, length, 8, rule)] == [(0, 8), (0, 8)]
    assert exact_scores(random_steps(np.random.default_rng(1), [5]), none, none, np.zeros((0, 8), np.int64)).shape == (
        0,
        8,
    )


@two_rules
def test_threads_search_at_once(rule):
    """Short and long documents in turn, so that room which one thread shared with another would be too small."""
    requests = [
        (random_steps(np.random.default_rng(i), [(7, 300, 1500)[i % 3], 20]), (300, 5000)[i % 2]) for i in range(24)
    ]

    def search(request):
        steps, length = request
        return [found.tolist() for found in best_rough(steps, np.arange(2), np.zeros(2, np.int64), length, 8, rule)]

    alone = [search(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(search, requests)) == alone


def test_exact_scores_are_sums_of_the_draws_of_the_reference():
    steps = random_steps(np.random.default_rng(9), [7, 0, 3, 12])
    numbers = np.array([[0, 63, 64], [5, -1, 5], [2**16 + 31, 2**32 - 1, 2**31], [-1, 1, 17]])
    documents = np.array([0, 1, 2, 3])
    scores = exact_scores(steps, steps.offsets[documents], steps.offsets[documents + 1], numbers)
    for r, d in enumerate(documents):
        for i, number in enumerate(numbers[r].tolist()):
            wanted = 0.0
            for p in range(steps.offsets[d], steps.offsets[d + 1]) if number >= 0 else ():
                entry = reference3.entry(int(steps.ids[p]), number)
                draw = reference3.draw(tuple(steps.keys[:, p].tolist()), int(steps.nonces[p]), entry, in_groups=True)
                wanted += -math.log((2**32 - draw) / 2**32)
            assert scores[r, i] == wanted


def test_exact_scores_of_long_documents_are_those_of_their_steps():
    """Runs begin and end anywhere in a chunk; each step alone gives its term, and terms are added in order."""
    sizes = [1500, 1, 255, 256, 257, 40]
    steps = random_steps(np.random.default_rng(10), sizes)
    documents, numbers = np.array([5, 0, 1, 0, 4, 2, 3]), np.arange(14).reshape(7, 2) * 9
    each = Steps(*steps[:3], np.arange(sum(sizes) + 1))
    scores = exact_scores(steps, steps.offsets[documents], steps.offsets[documents + 1], numbers)
    for r, d in enumerate(documents):
        places = np.arange(steps.offsets[d], steps.offsets[d + 1])
        terms = exact_scores(each, places, places + 1, np.repeat(numbers[r : r + 1], len(places), axis=0))
        for i in range(2):
            total = 0.0
            for one in terms[:, i].tolist():
                total += one
            assert scores[r, i] == total


def test_rough_scores_are_the_leading_ones_of_exact_draws():
    """A draw of c leading ones scores c · ln 2 or more, and less than one more does; none is cut below eight."""
    steps = random_steps(np.random.default_rng(11), [300])
    each = Steps(*steps[:3], np.arange(301))
    digits = digits_of(steps, 0, 20, EIGHT_DIGITS)
    scores = exact_scores(each, np.arange(300), np.arange(1, 301), np.tile(np.arange(20), (300, 1))) / math.log(2)
    assert (scores >= digits * (1 - 1e-12)).all()
    assert ((scores < digits + 1) | (digits == 8)).all()
    assert (digits == 8).sum() > 3


@pytest.mark.parametrize("sizes", [[1] * 3000, [57, 0, 1, 300, 16, 5000]], ids=["one step each", "many"])
def test_exact_scores_lie_within_their_bounds(sizes):
    """Bounds lie 1 / (256 − c) apart where c is below 254, which is (1/3 + … + 1/256) / 256 = 0.018 on average."""
    generator = np.random.default_rng(12)
    steps, numbers = random_steps(generator, sizes), generator.integers(2**16, size=(len(sizes), 3))
    numbers[::7, 1] = -1
    begin, end = steps.offsets[:-1], steps.offsets[1:]
    ((low, high),) = bounds_of_scores(steps, (Ranges(np.arange(len(sizes) + 1), begin, end), numbers))
    scores, there = exact_scores(steps, begin, end, numbers), numbers >= 0
    assert (low[there] <= scores[there]).all()
    assert (scores[there] <= high[there]).all()
    assert (high[there] - low[there]).sum() < 0.021 * steps.scored.sum() * 3
    assert (low[~there] == -np.inf).all()
    assert (high[~there] == -np.inf).all()


def test_bounds_of_ranges_that_overlap_are_those_of_each_alone():
    """Ranges of one document share what is drawn; they begin and end anywhere in its chunks, and some are empty."""
    generator = np.random.default_rng(13)
    steps = random_steps(generator, [1200, 40, 0])
    begin, end = np.sort(generator.integers(1201, size=(2, 60)), axis=0)
    begin, end = np.append(begin, [1200, 1210, 1240]), np.append(end, [1240, 1210, 1240])
    numbers = generator.integers(200, size=(63, 2))
    numbers[5], numbers[7, 1] = 2**16 - 1, -1
    ranges = Ranges(np.array([0, 60, 62, 63]), begin, end)
    few = Ranges(np.array([0, 0, 1, 1]), begin[61:62], end[61:62])
    together, of_few = bounds_of_scores(steps, (ranges, numbers), (few, numbers[61:62, :1]))
    ((low, high),) = bounds_of_scores(steps, (Ranges(np.arange(64), begin, end), numbers))
    np.testing.assert_array_equal(together, (low, high))
    np.testing.assert_array_equal(of_few, (low[61:62, :1], high[61:62, :1]))
    scores = exact_scores(steps, begin, end, numbers)
    assert ((together[0] <= scores) | (numbers < 0)).all()
    assert ((scores <= together[1]) | (numbers < 0)).all()
