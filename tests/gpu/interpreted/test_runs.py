"""Searches of version 3 on the interpreted kernels agree with the CPU's bit for bit, and with the reference."""

import numpy as np
import pytest
import torch

from scanner.gpu import runs as device_runs
from scanner.gpu.marks import exact_scores_on, on_device
from scanner.gpu.runs import Batch, Runs
from scanner.watermark.native.exact_scores import exact_scores
from scanner.watermark.native.rough_runs import EIGHT_DIGITS, best_rough
from scanner.watermark.native.steps import Steps
from tests import reference3
from tests.gpu.interpreted.sides import CPU
from tests.watermark.native3.known3 import Pair, marked, pair
from tests.watermark.pairs import SECRET, batch_tokens, greenlist, gumbel
from tests.watermark.strategies import random_documents

SECOND = 1 << 16
"""The first number of group 1's users."""


def steps_of(lengths: list[int], seed: int = 1) -> Steps:
    """Documents of random steps, each under its own random key."""
    generator, total = np.random.default_rng(seed), sum(lengths)
    return Steps(
        generator.integers(0, 2**32, total, dtype=np.uint32),
        generator.integers(0, 2**64, total, dtype=np.uint64),
        generator.integers(0, 2**32, (8, total), dtype=np.uint32),
        np.cumsum([0, *lengths]).astype(np.int64),
    )


def plain_scores(steps: Steps, document: int, first: int, length: int) -> list[int]:
    """Rough scores of the numbers of a run, by the reference."""
    method = reference3.Method("gumbel", SECRET, 1, None, 2)
    places = range(steps.offsets[document], steps.offsets[document + 1])
    plain = [
        reference3.Step(0, int(steps.ids[p]), int(steps.nonces[p]), 0, 0, tuple(steps.keys[:, p].tolist()), False)
        for p in places
    ]
    return [method.rough_sum_of(plain, number) for number in range(first, first + length)]


def on_both(steps: Steps, documents: list[int], first: list[int], length: int, most: int):
    """Numbers and scores on the device and on the CPU, which agree."""
    rows, firsts = np.array(documents, np.int64), np.array(first, np.int64)
    batch = Batch.put(steps.ids, steps.nonces, steps.keys, CPU)
    asked = Runs(steps.offsets[rows], steps.offsets[rows + 1], firsts, length)
    found = device_runs.best_rough(batch, asked, most)
    for ours, wanted in zip(found, best_rough(steps, rows, firsts, length, most, EIGHT_DIGITS), strict=True):
        np.testing.assert_array_equal(ours, wanted)
        assert ours.dtype == wanted.dtype
    return found


def test_scores_are_those_of_the_reference():
    """Documents with no step, with one, and with more than go side by side; runs of users begin far on."""
    steps, length = steps_of([5, 0, 1, 9]), 70
    rows, firsts = np.array([0, 3, 1, 2, 3]), np.array([0, SECOND, 0, 0, 65_535 * SECOND])
    batch = Batch.put(steps.ids, steps.nonces, steps.keys, CPU)
    asked = Runs(steps.offsets[rows], steps.offsets[rows + 1], firsts, length)
    found = device_runs.rough_scores(batch, asked)
    for row, (document, first) in enumerate(zip(rows.tolist(), firsts.tolist(), strict=True)):
        assert found[row].tolist() == plain_scores(steps, document, first, length)


def test_the_best_numbers_and_ties_to_the_smaller():
    steps = steps_of([3, 0, 12, 40], 2)
    numbers, scores = on_both(steps, [3, 2, 1, 0, 2], [0, SECOND, 0, 0, 5 * SECOND], 101, 8)
    assert numbers[2].tolist() == list(range(8))  # nothing tells them apart
    assert not scores[2].any()
    assert (np.diff(scores, axis=1) <= 0).all()
    assert scores[0, 0] > scores[0, 7]


def test_fewer_numbers_than_are_asked_for_and_no_runs():
    numbers, scores = on_both(steps_of([4, 6], 3), [0, 1], [0, SECOND], 5, 8)
    assert (numbers[:, 5:] == -1).all()
    assert not scores[:, 5:].any()
    empty, _ = on_both(steps_of([4]), [], [], 5, 8)
    assert empty.shape == (0, 8)
    nothing, _ = on_both(steps_of([0, 0]), [1, 0], [0, 0], 5, 2)
    assert nothing.tolist() == [[0, 1], [0, 1]]


def test_scores_of_many_digits():
    """More than 2^8, of a text whose steps all add 8 to one number: the counters carry over many levels."""
    one = steps_of([1], 4)
    steps = Steps(*(np.repeat(values, 70, axis=-1) for values in one[:3]), np.array([0, 70], np.int64))
    _, scores = on_both(steps, [0], [0], 600, 3)
    assert scores[0, 0] == 70 * max(plain_scores(one, 0, 0, 600)) > 256


def test_more_blocks_than_a_program_has(monkeypatch):
    monkeypatch.setattr(device_runs, "MOST_BLOCKS", 2)
    on_both(steps_of([6, 1], 5), [0, 1], [0, SECOND], 4 * 64 + 3, 8)


def test_runs_are_taken_in_as_many_parts_as_there_is_memory_for(monkeypatch):
    monkeypatch.setattr(device_runs, "SUMS_BYTES", 2 * device_runs.BYTES_A_NUMBER * 50)
    on_both(steps_of([2, 3, 5, 1, 4], 6), [0, 1, 2, 3, 4], [0] * 5, 50, 2)


def test_exact_scores_are_the_published_ones():
    """Drawn by the kernel, added up in order; −1 is no number."""
    steps, begin, end = steps_of([30, 0, 12], 7), np.array([0, 30, 30, 4]), np.array([30, 30, 42, 20])
    numbers = np.array([[0, 5, 2**32 - 1], [3, -1, -1], [SECOND + 63, 64, -1], [-1, 31, 32]])
    found = exact_scores_on(CPU, steps, begin, end, numbers)
    np.testing.assert_array_equal(found, exact_scores(steps, begin, end, numbers))
    draws = [
        reference3.draw(tuple(steps.keys[:, p].tolist()), int(steps.nonces[p]), int(steps.ids[p]) * 2**32 + 5, True)
        for p in range(30)
    ]
    assert found[0, 1] == pytest.approx(-np.log1p(-np.array(draws) / 2**32).sum(), rel=1e-12)
    assert not exact_scores_on(CPU, steps, begin[:0], end[:0], numbers[:0]).size


def assert_searched_alike(one: Pair, documents, count: int, dedup: str = "ngram") -> None:
    tokens = batch_tokens(documents)
    positions = one.fast.rule.positions(tokens, dedup)
    found = on_device(one.fast, CPU).search(tokens, positions, count)
    wanted = one.fast.search(tokens, positions, count)
    for name in ("message", "score"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
        assert getattr(found, name).dtype == getattr(wanted, name).dtype
    assert (found.user_evidence is None) == (wanted.user_evidence is None)
    if wanted.user_evidence is not None:
        np.testing.assert_array_equal(found.user_evidence.score, wanted.user_evidence.score)
        assert found.user_evidence.scored.tolist() == wanted.user_evidence.scored.tolist()


@pytest.mark.parametrize("groups", [2, 19])
def test_searches_with_groups(groups):
    """A text spliced from users of several groups makes the search look into more than one group."""
    one = pair("gumbel", 2, groups, seeds=12)
    three = [0, min(1, groups - 1), groups**2 - 1]
    spliced = [token for message in three for token in marked(one.fast, message, 40, 8, seed=message)]
    assert_searched_alike(one, [*random_documents(groups, [3, 0]), spliced], groups**2)


def test_the_plain_reference_finds_the_same():
    one = pair("gumbel", 2, 19, seeds=12)
    document = [int(token) for token in marked(one.fast, 200, 40, 5)]
    tokens = batch_tokens([document])
    found = on_device(one.fast, CPU).search(tokens, one.fast.rule.positions(tokens, "ngram"), 19**2)
    wanted = one.plain.search(document)
    there = found.message[0] >= 0
    assert found.message[0][there].tolist() == [candidate.message for candidate in wanted]
    assert found.score[0][there] == pytest.approx([candidate.score for candidate in wanted], rel=1e-12)


@pytest.mark.parametrize(
    "one", [greenlist(1), gumbel(1), pair("gumbel", 1), pair("greenlist", 1, 9)], ids=lambda one: one.fast.label
)
def test_all_but_gumbel_marks_with_groups_are_left_to_the_cpu(one):
    """Nothing is refused: `on_device` gives the very same watermark back."""
    mark = one.fast
    assert on_device(mark, CPU) is mark


def test_its_repr_says_where_and_it_is_never_pickled():
    one = pair("gumbel", 1, 19)
    mark = on_device(one.fast, CPU)
    assert repr(mark) == f"{one.fast!r} on cpu"
    assert SECRET.hex() not in repr(mark)
    with pytest.raises(TypeError, match="never pickled"):
        mark.__reduce__()
    steps = steps_of([2])
    assert repr(Batch.put(steps.ids, steps.nonces, steps.keys, CPU)) == "Batch(2 steps)"


def test_too_many_steps_for_31_bits():
    steps = steps_of([1])
    with pytest.raises(ValueError, match="268435456 steps are too many for one batch"):
        Batch.put(np.broadcast_to(steps.ids, 2**28), steps.nonces, steps.keys, torch.device("cpu"))
