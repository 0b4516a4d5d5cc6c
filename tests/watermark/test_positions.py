"""Which positions are scored (SPEC §3), against tuples in Python sets, which need no hash of ours."""

import time

import numpy as np
import pytest
from hypothesis import given

from scanner.watermark import Tokens, scored_positions
from scanner.watermark import positions as module
from tests import reference
from tests.watermark.pairs import batch_tokens, split
from tests.watermark.strategies import DEDUPS, documents, many, random_documents, windows


def wanted(batch, window, dedup):
    return [reference.scored_positions([int(token) for token in tokens], window, dedup) for tokens in batch]


def got(batch, window, dedup):
    tokens = batch_tokens(batch)
    return split(scored_positions(tokens, window, dedup), tokens)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("dedup", DEDUPS)
@many
@given(documents, windows)
def test_they_are_those_of_the_reference(dedup, batch, window):
    positions = scored_positions(batch_tokens(batch), window, dedup)
    assert (positions.index.dtype, positions.offsets.dtype) == (np.int64, np.int64)
    assert len(positions.offsets) == len(batch) + 1
    assert got(batch, window, dedup) == wanted(batch, window, dedup)


@pytest.mark.parametrize("dedup", DEDUPS)
@pytest.mark.parametrize("window", [0, 1, 2, 4, 16])
def test_larger_batches(dedup, window):
    batch = random_documents(window, [0, 1, window, window + 1, 3000, 0, 700, 1500, 0], vocabulary=5)
    batch += random_documents(window, [2000, 300, 20], vocabulary=2**32 - 1)
    assert got(batch, window, dedup) == wanted(batch, window, dedup)


def test_no_documents():
    positions = scored_positions(Tokens(np.empty(0, np.uint32), np.zeros(1, np.int64)), 4, "ngram")
    assert (positions.index.tolist(), positions.offsets.tolist()) == ([], [0])


def test_what_each_choice_leaves_out():
    tokens = [7, 8, 9, 7, 8, 9, 7, 8, 5]
    assert got([tokens], 2, "ngram") == [[2, 3, 4, 8]]  # (7, 8, 9) and (8, 9, 7) come again; (7, 8, 5) is new
    assert got([tokens], 2, "context") == [[2, 3, 4]]
    assert got([tokens], 2, "none") == [[2, 3, 4, 5, 6, 7, 8]]
    assert got([[5, 5, 6, 5]], 0, "ngram") == [[0, 2]]
    assert got([[5, 5, 6, 5]], 0, "context") == [[0]]  # every window is empty


def test_documents_do_not_see_each_other():
    one = [1, 2, 3, 4, 5]
    assert got([one, one, [], one], 1, "ngram") == [[1, 2, 3, 4], [1, 2, 3, 4], [], [1, 2, 3, 4]]


def test_an_unknown_choice_is_refused():
    with pytest.raises(ValueError, match=r"'twice'.*ngram, context, none"):
        scored_positions(batch_tokens([[1, 2]]), 0, "twice")


KEYS = {
    "all tuples in one place": [0] * 17,
    "two places": [2**63] * 17,
    "sums of tokens": [1] * 17,
    "the first token alone": [1] + [0] * 16,
    "another key": list(range(2**62 + 1, 2**62 + 35, 2)),
}


@pytest.mark.seconds
@pytest.mark.parametrize("dedup", ["ngram", "context"])
@pytest.mark.parametrize("name", KEYS)
def test_the_hash_never_decides(monkeypatch, name, dedup):
    batch = random_documents(3, [400, 0, 300, 16, 250], vocabulary=6)
    monkeypatch.setattr(module, "_PLACE_KEY", np.array(KEYS[name], np.uint64))
    for window in (0, 1, 3):
        assert got(batch, window, dedup) == wanted(batch, window, dedup)


def test_many_documents_in_one_table():
    """Entries that an earlier document left in the table are never taken for entries of a later one."""
    lengths = np.random.default_rng(4).integers(0, 60, 500)
    batch = random_documents(4, lengths, vocabulary=3)
    for window in (0, 2, 16):
        assert got(batch, window, "ngram") == wanted(batch, window, "ngram")


def adversarial_texts(length: int) -> dict[str, np.ndarray]:
    """Texts whose windows look alike to a hash that keeps only some bits, sums, or is known to the attacker."""
    count = np.arange(length, dtype=np.uint32)
    generator = np.random.default_rng(5)
    return {
        "one repeated token": np.zeros(length, np.uint32),
        "equal low bits": (count % 2**14) << np.uint32(18),
        "equal high bits": count % 2**12,
        "equal sums": np.where(count % 2 == 0, count, -count.astype(np.int64)).astype(np.uint32),
        "two tokens": generator.integers(0, 2, length, dtype=np.uint32),
        "strides of powers of two": (count * np.uint32(2**16)) ^ (count >> np.uint32(16)),
    }


def seconds(tokens: Tokens, dedup: str) -> float:
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        scored_positions(tokens, 4, dedup)
        times.append(time.perf_counter() - begin)
    return min(times)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("dedup", ["ngram", "context"])
@pytest.mark.parametrize("name", adversarial_texts(1))
def test_no_text_makes_it_slow(name, dedup):
    """A quadratic search would take a hundred thousand times as long; other processes on the machine take a few."""
    text = adversarial_texts(200_000)[name]
    usual = seconds(batch_tokens(random_documents(0, [200_000])), dedup)
    assert seconds(batch_tokens([text]), dedup) < 20 * usual + 0.05
    assert got([text], 4, dedup) == wanted([text], 4, dedup)


def test_many_short_documents_take_no_longer_than_one_long_one():
    """The table is as long as the document in hand needs, not as long as the longest of the batch needs."""
    long, short = random_documents(0, [200_000])[0], random_documents(1, [10] * 20_000)
    usual = seconds(batch_tokens([long]), "ngram")
    assert seconds(batch_tokens([long, *short]), "ngram") < 20 * usual + 0.05
