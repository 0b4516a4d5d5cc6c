"""Best numbers of ranges of documents, against sums over their steps and against a search of their steps alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from scanner.watermark.native.rough_runs import EIGHT_DIGITS, best_rough
from scanner.watermark.native.rough_windows import best_of_ranges
from scanner.watermark.native.steps import Steps
from scanner.watermark.positions import Ranges, offsets_of
from tests.watermark.native3.plain_steps import best_of, digits_of, document, random_steps, repeated

RULES = {
    "gumbel": EIGHT_DIGITS,
    "a quarter": (1, 2, 2),
    "a half": (1, 1, 1),
    "three eighths": (3, 3, 4),
    "77 of 256": (77, 8, 8),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
two_rules = pytest.mark.parametrize("rule", [EIGHT_DIGITS, (1, 2, 2)], ids=["gumbel", "a quarter"])


def ranges_of(steps: Steps, each: list[list[tuple[int, int]]]) -> Ranges:
    """Ranges of each document, counted from its first step."""
    places = [
        (begin + first, end + first) for first, own in zip(steps.offsets, each, strict=False) for begin, end in own
    ]
    begin, end = np.array(places, np.int64).reshape(-1, 2).T.copy()
    return Ranges(offsets_of(np.array([len(own) for own in each], np.int64)), begin, end)


def random_ranges(generator: np.random.Generator, steps: Steps, most: int) -> Ranges:
    """Up to so many ranges of each document, some without a step; some documents have none."""
    sizes = steps.scored.tolist()
    each = [generator.integers(0, size + 1, (generator.integers(0, most + 1), 2)) for size in sizes]
    return ranges_of(steps, [[tuple(sorted(pair)) for pair in pairs.tolist()] for pairs in each])


def of_each_alone(steps: Steps, ranges: Ranges, count: int, most: int, rule, floors=None):
    """What a search of the steps of each range says."""
    runs = np.arange(len(ranges.begin)), np.zeros(len(ranges.begin), np.int64)
    return best_rough(steps.of_ranges(ranges), *runs, count, most, rule, floors)


def assert_as_alone(steps: Steps, windows: Ranges, parts: Ranges, count: int, most: int, rule, floors=None):
    number, score, part_numbers, part_scores = best_of_ranges(steps, windows, parts, count, most, rule, floors)
    numbers, scores = of_each_alone(steps, windows, count, 1, rule)
    assert (number.tolist(), score.tolist()) == (numbers[:, 0].tolist(), scores[:, 0].tolist())
    wanted_numbers, wanted_scores = of_each_alone(steps, parts, count, most, rule, floors)
    assert (part_numbers.tolist(), part_scores.tolist()) == (wanted_numbers.tolist(), wanted_scores.tolist())


@every_rule
@pytest.mark.parametrize("count", [1, 31, 32, 300, 511, 512, 513, 1026])
def test_ranges_have_the_best_of_the_sums_over_their_steps(rule, count):
    generator = np.random.default_rng(count)
    steps = random_steps(generator, [40, 0, 9, 300, 1])
    windows, parts = random_ranges(generator, steps, 6), random_ranges(generator, steps, 3)
    number, score, part_numbers, part_scores = best_of_ranges(steps, windows, parts, count, 8, rule)
    assert len(windows.begin) > 5
    digits = np.concatenate([digits_of(document(steps, d), 0, count, rule) for d in range(5)])
    for w, (begin, end) in enumerate(zip(windows.begin, windows.end, strict=True)):
        totals = digits[begin:end].sum(axis=0)
        assert (number[w], score[w]) == (totals.argmax(), totals.max())
    for p, (begin, end) in enumerate(zip(parts.begin, parts.end, strict=True)):
        wanted = best_of(digits[begin:end].sum(axis=0), 8)
        assert (part_numbers[p].tolist(), part_scores[p].tolist()) == wanted


@two_rules
@pytest.mark.parametrize("sizes", [[30, 31, 32, 33], [254, 255, 256, 257, 7, 8], [700, 0, 20, 1500], [513, 3]])
def test_ranges_have_the_best_of_a_search_of_each_alone(rule, sizes):
    """Sums of each width, chunks of steps that end within a range, and many more edges than steps."""
    generator = np.random.default_rng(sizes[0])
    steps = random_steps(generator, sizes)
    windows, parts = random_ranges(generator, steps, 120), random_ranges(generator, steps, 9)
    assert_as_alone(steps, windows, parts, 325, 8, rule)


@two_rules
def test_sums_of_long_documents(rule):
    """8,192 steps of Gumbel marks and 65,536 of a green list need sums of 32 bits."""
    generator = np.random.default_rng(3)
    steps = random_steps(generator, [8191, 8192, 10] if rule == EIGHT_DIGITS else [65_534, 65_536, 10])
    assert_as_alone(steps, random_ranges(generator, steps, 9), random_ranges(generator, steps, 4), 40, 3, rule)


@two_rules
@pytest.mark.parametrize("times", [7, 8, 31, 32, 63, 64, 254, 255, 256, 8191, 8192])
def test_the_largest_sums_that_there_can_be(rule, times):
    """One step again and again: some numbers get 8 for each, or 1 of a green list."""
    one = random_steps(np.random.default_rng(4), [1])
    digits = digits_of(one, 0, 2000, rule)[0]
    assert digits.max() == (8 if rule == EIGHT_DIGITS else 1)
    steps = repeated(one, times)
    windows = ranges_of(steps, [[(0, times), (1, times), (0, times - 1), (3, 3), (5, 6)]])
    number, score, part_numbers, part_scores = best_of_ranges(steps, windows, windows, 2000, 40, rule)
    for w, length in enumerate(windows.length.tolist()):
        totals = length * digits
        assert (number[w], score[w]) == (totals.argmax(), totals.max())
        assert (part_numbers[w].tolist(), part_scores[w].tolist()) == best_of(totals, 40)


@two_rules
@pytest.mark.parametrize("most", [1, 8, 700])
def test_parts_list_the_best_and_what_reaches_their_floors(rule, most):
    """Floors that leave some, all or none of the others; more numbers wanted than there are; a best below its floor."""
    generator = np.random.default_rng(most)
    steps = random_steps(generator, [60, 300])
    parts = random_ranges(generator, steps, 40)
    _, scores = of_each_alone(steps, parts, 600, 8, rule)
    choices = np.stack([scores[:, 5], scores[:, 0] + 1, np.full(len(scores), -np.inf), scores[:, 0]])
    floors = choices[generator.integers(0, 4, len(scores)), np.arange(len(scores))]
    assert_as_alone(steps, ranges_of(steps, [[], []]), parts, 600, most, rule, floors)


@two_rules
def test_there_may_be_no_ranges_and_no_documents(rule):
    for sizes in ([], [5], [5, 0, 9]):
        steps = random_steps(np.random.default_rng(1), sizes)
        none = ranges_of(steps, [[] for _ in sizes])
        shapes = [found.shape for found in best_of_ranges(steps, none, none, 300, 8, rule)]
        assert shapes == [(0,), (0,), (0, 8), (0, 8)]


@two_rules
def test_threads_search_at_once(rule):
    """Short and long documents in turn, so that room which one thread shared with another would be too small."""
    requests = []
    for i in range(24):
        generator = np.random.default_rng(i)
        steps = random_steps(generator, [(20, 400, 1500)[i % 3]])
        requests.append((steps, random_ranges(generator, steps, 30), random_ranges(generator, steps, 5)))

    def search(request):
        return [found.tolist() for found in best_of_ranges(*request, 400, 8, rule)]

    alone = [search(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(search, requests)) == alone
