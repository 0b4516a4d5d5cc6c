"""Searches of version 2 on the interpreted kernels, with and without groups, agree with the CPU's bit for bit."""

import numpy as np
import pytest

from scanner.gpu import runs as device_runs
from scanner.gpu.marks import LONGEST, on_device
from scanner.gpu.runs import FRACTION_BITS, Batch, bound, limit
from scanner.watermark.native.gumbel_runs import score_of_number
from scanner.watermark.native.streams import RunRequest, steps_of
from tests.gpu.interpreted.sides import CPU
from tests.watermark.native2.known2 import SECRET, Pair, marked, pair
from tests.watermark.pairs import batch_tokens, greenlist, gumbel, sum_error
from tests.watermark.strategies import random_documents


def test_the_longest_texts_on_a_device_fit_its_integers():
    """A step adds up to 32 to Gumbel's sum, with FRACTION_BITS binary digits, and sums and limits have 31 bits."""
    longest = LONGEST["gumbel-v2"]
    assert longest * 32 << FRACTION_BITS < 2**31
    assert limit(np.zeros(1), np.array([longest]))[0] < 2**31


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


def test_without_groups():
    """Very short texts, and a marked text."""
    one = pair("gumbel", 1)
    own = marked(one.fast, 32, 20, 4)
    documents = [*random_documents(33, [2, 0, 1], vocabulary=2**32 - 1), own]
    assert_searched_alike(one, documents, 33)


def test_more_steps_than_threads_take_at_a_time():
    assert_searched_alike(pair("gumbel", 1), random_documents(33, [135], vocabulary=2**32 - 1), 5)


@pytest.mark.parametrize("groups", [2, 19])
def test_with_groups(groups):
    """A text spliced from users of several groups makes the search look into more than one group."""
    one = pair("gumbel", 2, groups)
    three = [0, min(1, groups - 1), groups**2 - 1]
    spliced = [token for message in three for token in marked(one.fast, message, 40, 8, seed=message)]
    documents = [*random_documents(groups, [3, 0]), spliced]
    assert_searched_alike(one, documents, groups**2)


def test_the_plain_reference_finds_the_same():
    one = pair("gumbel", 2, 19)
    document = [int(token) for token in marked(one.fast, 200, 40, 5)]
    tokens = batch_tokens([document])
    found = on_device(one.fast, CPU).search(tokens, one.fast.rule.positions(tokens, "ngram"), 19**2)
    wanted = one.plain.search(document)
    there = found.message[0] >= 0
    assert found.message[0][there].tolist() == [candidate.message for candidate in wanted]
    for got, candidate in zip(found.score[0], wanted, strict=False):
        assert abs(got - candidate.score) <= sum_error(len(document), candidate.score)


def test_more_blocks_than_a_program_has(monkeypatch):
    monkeypatch.setattr(device_runs, "MOST_BLOCKS", 2)
    assert_searched_alike(pair("gumbel", 0), random_documents(1, [6, 1], vocabulary=2**32 - 1), 4 * 16 + 3)


@pytest.mark.parametrize(("least", "found_of_each"), [(0, [4, 0]), (1, [4, 1]), (2, [4, 2])])
def test_a_run_that_begins_far_on_and_what_reaches_its_floor(least, found_of_each):
    one = pair("gumbel", 1, 65_536)
    tokens = batch_tokens(random_documents(2, [9]))
    steps = steps_of(tokens, one.fast.rule.positions(tokens, "ngram"), np.arange(8, dtype=np.uint64) << np.uint64(40))
    request = RunRequest(np.zeros(2, np.int64), np.array([0, 65_535 << 16]), 300, least, 5, np.array([16.0, np.inf]))
    numbers, scores = on_device(one.fast, CPU)._best(steps, request)
    for found, wanted in zip((numbers, scores), one.fast.best_of_runs(steps, request), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert (numbers >= 0).sum(axis=1).tolist() == found_of_each


def laid_out(one: Pair, documents, count: int) -> device_runs.Runs:
    tokens = batch_tokens(documents)
    positions = one.fast.rule.positions(tokens, "none")
    steps = steps_of(tokens, positions, one.fast._nonces(tokens, positions))
    batch = Batch.put(one.fast.sub_keys.chacha, steps.ids, steps.nonces, steps.offsets, CPU)
    rows = np.zeros(len(documents), np.int64)
    return device_runs.Runs(batch, steps.scored, rows, count, 2, 4, np.full(len(documents), np.inf))


def test_sums_bound_every_score_from_above_and_closely():
    """Each thread that takes turns cuts off a logarithm of its own, which widens the bound."""
    one, count = pair("gumbel", 0), 40
    runs = laid_out(one, random_documents(5, [90, 1, 4], vocabulary=2**32 - 1), count)
    sums = device_runs.all_sums(runs).numpy()
    key, batch = one.fast.sub_keys.chacha, runs.batch
    for d, scored in enumerate(runs.scored.tolist()):
        begin, end = int(batch.begins[d]), int(batch.ends[d])
        ids, nonces = batch.ids.numpy().view(np.uint32)[begin:end], batch.nonces.numpy()[begin:end]
        flat = np.ascontiguousarray(nonces).view(np.uint64)[:, 0]
        exact = np.array([score_of_number(key, ids, flat, number) for number in range(count)])
        room = bound(sums[d], np.full(count, scored)) - exact
        assert room.min() >= 0
        turns = max(32 // -(-count // 16), 1)
        assert (room <= np.log(2) * (min(2 * turns, scored) * (0.0861 + 2**-3) + 1e-4 * scored + 1e-4)).all()


def test_the_limit_lets_every_score_pass_that_can_be_as_large():
    generator = np.random.default_rng(1)
    scored = generator.integers(1, 5000, 2000)
    sums = (generator.uniform(20, 31.9, 2000) * scored * 2**FRACTION_BITS).astype(np.int64)
    reached = bound(sums, scored)
    assert (sums <= limit(reached, scored)).all()
    assert (sums >= limit(reached, scored) - 3).all()


@pytest.mark.parametrize("one", [greenlist(1), gumbel(1), pair("greenlist", 1, 19)], ids=lambda one: one.fast.label)
def test_green_lists_and_keys_of_version_1_are_searched_on_the_cpu(one):
    """Nothing is refused: `on_device` gives the very same watermark back."""
    mark = one.fast
    assert on_device(mark, CPU) is mark


def test_runs_are_taken_in_as_many_parts_as_there_is_memory_for(monkeypatch):
    monkeypatch.setattr(device_runs, "SUMS_BYTES", 2 * 32 * 50)
    assert_searched_alike(pair("gumbel", 1), random_documents(6, [2, 3, 5, 1]), 50)


def test_documents_too_long_for_the_device_are_searched_on_the_cpu(monkeypatch):
    monkeypatch.setitem(LONGEST, "gumbel-v2", 4)
    assert_searched_alike(pair("gumbel", 0), random_documents(6, [5, 3, 9, 2]), 50)


def test_its_repr_says_where_and_it_is_never_pickled():
    one = pair("gumbel", 1, 19)
    mark = on_device(one.fast, CPU)
    assert repr(mark) == f"{one.fast!r} on cpu"
    assert SECRET.hex() not in repr(mark)
    with pytest.raises(TypeError, match="never pickled"):
        mark.__reduce__()
