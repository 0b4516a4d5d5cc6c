"""The best number of each window against scores of every number in every window, and what a search by it misses."""

from fractions import Fraction

import numpy as np
import pytest

from scanner.watermark.format import SearchesWindows
from scanner.watermark.native import version2_marks
from scanner.watermark.native.gumbel_runs import MOST_OF_A_TERM, PER_LN2
from scanner.watermark.native.streams import steps_of
from scanner.watermark.native.version2_marks import Version2GreenList, Version2Gumbel
from scanner.watermark.native.windows import COLUMNS, PartRequest, _sum_in_bytes, _sum_in_halves
from scanner.watermark.positions import Positions, Ranges, offsets_of, select_positions
from scanner.watermark.text_windows import coarse_of, ranges
from tests.watermark.marked_tokens import marked_tokens, plain_tokens
from tests.watermark.pairs import SECRET, batch_tokens

MARKS = {
    "greenlist-v2": lambda groups, secret=SECRET: Version2GreenList(secret, 2, Fraction(1, 4), groups),
    "greenlist-v2, three bits": lambda groups, secret=SECRET: Version2GreenList(secret, 2, Fraction(3, 8), groups),
    "greenlist-v2, eight bits": lambda groups, secret=SECRET: Version2GreenList(secret, 2, Fraction(77, 256), groups),
    "gumbel-v2": lambda groups, secret=SECRET: Version2Gumbel(secret, 2, groups),
}
UNITS = {"greenlist-v2": 1.0, "gumbel-v2": PER_LN2}
every_mark = pytest.mark.parametrize("name", MARKS)


LONGEST = 10_000


def wholes(positions: Positions) -> Ranges:
    """Each document as one range."""
    return Ranges(np.arange(len(positions.offsets)), positions.offsets[:-1], positions.offsets[1:])


def texts(seed: int, lengths: list[int]):
    generator = np.random.default_rng(seed)
    return batch_tokens([plain_tokens(generator, length) for length in lengths])


def test_windows_are_of_every_other_scale_and_half_a_length_apart():
    tokens = texts(1, [30, 402, 20, 25])
    positions = MARKS["gumbel-v2"](None).rule.positions(tokens, "none")
    wanted = []
    for d, scored in enumerate([28, 400, 18, 23]):
        for length in (24, 48, 96, 192, 384):
            if 30 < length < scored:
                begins = [*range(0, scored - length, length // 2), scored - length]
                wanted += [(d, begin, begin + length) for begin in begins]
    first, begin, end = coarse_of(positions, 60, LONGEST)
    whose = np.repeat(np.arange(4), np.diff(first))
    at = positions.offsets[whose]
    assert np.stack([whose, begin - at, end - at], axis=1).tolist() == [list(one) for one in wanted]


@every_mark
def test_the_best_number_of_each_window_is_that_of_a_plain_search(name):
    """300 numbers leave the last word partly empty; the bound is never below the score."""
    mark, tokens, count = MARKS[name](None), texts(2, [90, 500, 10]), 300
    positions = mark.rule.positions(tokens, "ngram")
    first, begin, end = coarse_of(positions, 0, LONGEST)
    steps = steps_of(tokens, positions, mark._nonces(tokens, positions))
    number, bound, *_ = mark.best_of_windows(steps, Ranges(first, begin, end), PartRequest.none(3), count)
    there = ranges(positions, begin, end)
    scores = np.stack([mark.score(tokens, there, message) for message in range(count)])
    assert len(begin) > 40
    best = scores[number, np.arange(len(begin))]
    if "greenlist" in name:
        assert best.tolist() == bound.tolist() == scores.max(axis=0).tolist()
        assert number.tolist() == scores.argmax(axis=0).tolist()
    else:
        assert (bound >= best).all()
        assert (bound >= scores.max(axis=0)).all()
        assert (best >= scores.max(axis=0) * 0.97).all()


@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
def test_narrow_sums_of_as_many_steps_as_they_hold_carry_nothing_over(density):
    """255 steps that are all green fill each byte, and 65,535 each 16 bits."""
    generator = np.random.default_rng(9)
    for steps, kind in ((255, np.uint8), (65_535, np.uint16)):
        bits = (generator.random((steps, COLUMNS)) < density).astype(np.uint8)
        words = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
        sums = np.full((steps + 1, COLUMNS), 9, kind)
        if kind is np.uint8:
            _sum_in_bytes(words.reshape(-1).view(np.uint8), COLUMNS // 8, steps, sums.reshape(-1).view(np.uint64))
        else:
            _sum_in_halves(words, sums.reshape(-1))
        assert (sums[0] == 0).all()
        np.testing.assert_array_equal(sums[1:], np.cumsum(bits, axis=0, dtype=np.int64))


def bounds_of_steps(mark, tokens, positions, number: int) -> np.ndarray:
    """What each step adds to the bound of a number, int64[P]: 1 where it is green, or bits of a draw's logarithm."""
    if mark.method == "greenlist-v2":
        return mark.terms(tokens, positions, number).astype(np.int64)
    rest = (~mark.draws_of(tokens, positions, number) | np.uint32(1)).astype(np.float32)
    return MOST_OF_A_TERM - (rest.view(np.uint32) >> np.uint32(12)).astype(np.int64)


@every_mark
@pytest.mark.parametrize("count", [1, 2, 16, 17, 63, 64, 65, 127, 128, 129, 256, 257])
def test_bounds_of_windows_are_sums_over_their_steps_to_the_last_bit(name, count):
    """Numbers that fill words, blocks and columns, one more and one fewer; chunks of steps likewise; empty windows."""
    lengths = [3, 60, 2, 257, 258, 259]
    tokens, marks = texts(count, lengths), [MARKS[name](None, bytes([d]) * 32) for d in range(len(lengths))]
    joined = marks[0].join_marks(marks, tokens.offsets[:-1])
    positions = joined.rule.positions(tokens, "none")
    first, begin, end = coarse_of(positions, 0, LONGEST)
    begin, end = (np.insert(places, first[:-1], positions.offsets[:-1]) for places in (begin, end))
    first = first + np.arange(len(first))
    steps = steps_of(tokens, positions, joined._nonces(tokens, positions), joined._whose(positions))
    windows, parts = Ranges(first, begin, end), PartRequest.none(len(lengths))
    number, bound, *_ = joined.best_of_windows(steps, windows, parts, count)
    for d, mark in enumerate(marks):
        each = np.stack([bounds_of_steps(mark, tokens, positions, n) for n in range(count)])
        for w in range(first[d], first[d + 1]):
            sums = each[:, begin[w] : end[w]].sum(axis=1)
            assert (number[w], bound[w]) == (sums.argmax(), sums.max() / UNITS[mark.method])


@every_mark
@pytest.mark.parametrize("groups", [None, 30])
def test_a_marked_window_is_told_with_its_message(name, groups):
    mark, generator = MARKS[name](groups), np.random.default_rng(3)
    count = 900 if groups else 300
    assert isinstance(mark, SearchesWindows)
    text = [*plain_tokens(generator, 300), *marked_tokens(mark, 31, 110, generator), *plain_tokens(generator, 200)]
    tokens = batch_tokens([plain_tokens(generator, 400), text])
    positions = mark.rule.positions(tokens, "ngram")
    windows = coarse_of(positions, 0, LONGEST)
    _, window, message = mark.search_parts(tokens, positions, wholes(positions), windows, count, 0.1)
    first, begin, end = windows
    marked = (message == 31) & (window >= first[1])
    assert marked.any()
    there = ranges(positions, begin[window[marked]], end[window[marked]])
    assert mark.law.log10_p(mark.score(tokens, there, 31), there.scored).min() < -10
    assert len(window) < 0.5 * len(begin)


@every_mark
@pytest.mark.parametrize("groups", [None, 30])
def test_a_document_says_the_same_whatever_stands_beside_it(name, groups, monkeypatch):
    monkeypatch.setattr(version2_marks, "GROUPS_BY_CHANCE", 1.0)
    mark, tokens = MARKS[name](groups), texts(4, [300, 40, 3, 200])
    positions = mark.rule.positions(tokens, "ngram")
    count = 900 if groups else 300
    windows = coarse_of(positions, 0, LONGEST)
    _, window, message = mark.search_parts(tokens, positions, wholes(positions), windows, count, 1.0)
    found = []
    for d in range(4):
        alone = select_positions(positions, [d])
        if len(alone.index) <= 24:
            continue
        _, own, its = mark.search_parts(tokens, alone, wholes(alone), coarse_of(alone, 0, LONGEST), count, 1.0)
        found += [(int(windows[0][d]) + int(w), int(m)) for w, m in zip(own, its, strict=True)]
    assert list(zip(window.tolist(), message.tolist(), strict=True)) == found
    assert found


@every_mark
@pytest.mark.parametrize(
    ("groups", "longest", "most"),
    [(None, 512, 1 << 16), (30, 512, 1 << 16), (30, 20, 1 << 16), (30, 512, 179), (300, 512, 1 << 16)],
)
def test_parts_have_the_candidates_of_a_search_of_each_alone(name, groups, longest, most, monkeypatch):
    """Parts that overlap, without positions, of documents without windows; found with windows, and by themselves."""
    monkeypatch.setattr(version2_marks, "LONGEST_TOGETHER", longest)
    monkeypatch.setattr(version2_marks, "MOST_SUMS", most)
    mark, generator, count = MARKS[name](groups), np.random.default_rng(6), groups**2 if groups else 300
    text = [*plain_tokens(generator, 90), *marked_tokens(mark, 31, 110, generator), *plain_tokens(generator, 50)]
    tokens = batch_tokens([plain_tokens(generator, 260), text, plain_tokens(generator, 20), [], text[100:180]])
    positions = mark.rule.positions(tokens, "ngram")
    shares = np.array([(0.0, 1.0), (0.0, 0.1), (0.1, 0.7), (0.35, 0.8), (0.5, 0.5), (0.8, 1.0)])
    places = positions.offsets[:-1, None, None] + (positions.scored[:, None, None] * shares).astype(np.int64)
    begin, end = places.reshape(-1, 2).T
    parts = Ranges(offsets_of(np.full(5, len(shares))), begin, end)
    found, *_ = mark.search_parts(tokens, positions, parts, coarse_of(positions, 0, LONGEST), count, 0.1)
    alone = mark.search(tokens, ranges(positions, begin, end), count)
    assert (found.message == 31).any()
    assert found.independent == alone.independent
    for one, other in ((found.message, alone.message), (found.score, alone.score)):
        np.testing.assert_array_equal(one, other)
    if groups:
        np.testing.assert_array_equal(found.user_evidence.score, alone.user_evidence.score)
        np.testing.assert_array_equal(found.user_evidence.scored, alone.user_evidence.scored)


@every_mark
@pytest.mark.parametrize("share", [1.0, 30.0, 900.0])
def test_a_floor_of_users_leaves_out_no_window_that_a_search_of_all_finds(name, share, monkeypatch):
    """Shares above 1 let more windows pass, so that scores around the floor come often."""
    monkeypatch.setattr(version2_marks, "GROUPS_BY_CHANCE", 10.0)
    mark, generator, count = MARKS[name](30), np.random.default_rng(8), 900
    text = [*plain_tokens(generator, 90), *marked_tokens(mark, 31, 110, generator), *plain_tokens(generator, 50)]
    tokens = batch_tokens([plain_tokens(generator, 700), text, plain_tokens(generator, 300)])
    positions = mark.rule.positions(tokens, "ngram")
    windows = coarse_of(positions, 0, LONGEST)

    def search_all(steps, request):
        best = type(mark).best_of_runs(mark, steps, request._replace(least=1, floors=np.full_like(request.floors, -1)))
        without.append(int((found_by_floors(steps, request)[0] < 0).sum()))
        return best

    found_by_floors, without = mark.best_of_runs, list[int]()
    _, window, message = mark.search_parts(tokens, positions, wholes(positions), windows, count, share)
    _, all_windows, all_messages = mark.searched_by(search_all, "nowhere").search_parts(
        tokens, positions, wholes(positions), windows, count, share
    )
    assert window.tolist() == all_windows.tolist()
    assert message.tolist() == all_messages.tolist()
    assert len(window) > 0
    assert sum(without) > 0 or share == 900.0
