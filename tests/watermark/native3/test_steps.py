"""Steps of version 3: nonces, buckets, keys and group steps, held to the reference; and what may be done with steps."""

import numpy as np
import pytest

from scanner.watermark import scored_positions
from scanner.watermark.native import secret
from scanner.watermark.native.steps import (
    SeedKeys,
    Steps,
    buckets_of,
    hash_positions,
    hash_windows,
    in_two,
    is_group_step,
    step_keys,
    steps_by_kind,
)
from scanner.watermark.positions import Ranges
from tests import reference3
from tests.watermark.pairs import SECRET, batch_tokens

LABEL = "greenlist-v3;h=4;gamma=1/4;groups=5;seeds=12"


def seed_keys(seeds: int, secrets=(SECRET,), beacons=(bytes(range(32)),)) -> SeedKeys:
    words = np.stack([secret.derive_seed_key(one, LABEL).words for one in secrets])
    return SeedKeys(words, np.stack([np.frombuffer(one, "<u4") for one in beacons]), seeds)


def random_texts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 2**32, length, np.uint32).tolist() for length in lengths]


def steps_of(texts: list[list[int]], window: int, keys: SeedKeys, whose: list[int]) -> Steps:
    tokens = batch_tokens(texts)
    positions = scored_positions(tokens, window, "ngram")
    hashes = hash_positions(secret.window_key(window, keys.seeds), tokens.ids, positions.index, window)
    words = step_keys(keys, np.array(whose), positions.offsets, hashes)
    return Steps(tokens.ids[positions.index], hashes.nonces, words, positions.offsets)


def rows(steps: Steps) -> list[tuple]:
    """Each step as (token, N, key)."""
    return [(int(t), int(n), tuple(k)) for t, n, k in zip(steps.ids, steps.nonces, steps.keys.T.tolist(), strict=True)]


def test_group_steps_stand_before_user_steps():
    """More steps than a chunk, under two keys."""
    keys = seed_keys(12, (SECRET, bytes(32)), (bytes(range(32)), bytes(32)))
    tokens, whose = batch_tokens(random_texts([50, 0, 600, 70])), np.array([0, 0, 1, 1])
    positions = scored_positions(tokens, 4, "ngram")
    ids, hashes = tokens.ids[positions.index], hash_positions(secret.window_key(4, 12), tokens.ids, positions.index, 4)
    steps, before = steps_by_kind(keys, whose, positions.offsets, hashes, ids)
    plain = Steps(ids, hashes.nonces, step_keys(keys, whose, positions.offsets, hashes), positions.offsets)
    is_shared, all_rows, ordered = is_group_step(plain.keys), rows(plain), rows(steps)
    shared, users = ([all_rows[p] for p in np.flatnonzero(kind)] for kind in (is_shared, ~is_shared))
    assert len(users) > len(shared) > 100
    assert before.tolist() == [0, *np.cumsum(is_shared)]
    assert steps.offsets.tolist() == before[positions.offsets].tolist()
    assert ordered[: len(shared)] == shared
    assert ordered[len(ids) : len(ids) + len(users)] == users


@pytest.mark.parametrize("seeds", [4, 12, 24, 28])
@pytest.mark.parametrize("window", [0, 1, 4, 16])
def test_steps_are_those_of_the_reference_under_keys_of_their_own(seeds, window):
    texts, whose = random_texts([0, 3, 300, 20, 40]), [1, 1, 0, 0, 1]
    secrets, beacons = (SECRET, bytes(40)), (bytes(range(32)), bytes(range(100, 132)))
    steps = steps_of(texts, window, seed_keys(seeds, secrets, beacons), whose)
    expected = []
    for text, key in zip(texts, whose, strict=True):
        seed_key = reference3.seed_key(secrets[key], LABEL)
        for place in range(window, len(text)):
            nonce, second = reference3.window_nonces(text[place - window : place], seeds)
            bucket = reference3.bucket_of(nonce, seeds)
            seed = reference3.seed_of(seed_key, bucket)
            expected.append((text[place], nonce, reference3.step_key(seed, beacons[key], second)))
    assert rows(steps) == expected
    assert buckets_of(steps.nonces, seeds).tolist() == [nonce >> (64 - seeds) for _, nonce, _ in expected]
    assert is_group_step(steps.keys).tolist() == [reference3.is_group_step(key) for _, _, key in expected]


@pytest.mark.parametrize("window", [0, 1, 4, 16])
def test_windows_that_stand_alone_are_hashed_as_those_of_texts(window):
    windows = np.random.default_rng(1).integers(0, 2**32, (300, window), np.uint32)
    hashes = hash_windows(secret.window_key(window, 24), windows)
    for row in (0, 255, 256, 299):
        expected = reference3.window_nonces(windows[row].tolist(), 24)
        assert (int(hashes.nonces[row]), int(hashes.seconds[row])) == expected


@pytest.mark.parametrize("last", [2**32 // 3, 2**32 // 3 + 1, 0, 2**32 - 1])
def test_group_steps_end_where_three_times_the_word_overflows(last):
    keys = np.full((8, 1), 5, np.uint32)
    keys[7] = last
    assert is_group_step(keys).tolist() == [(last * 3) >> 32 == 0]


def test_group_steps_and_user_steps_are_all_steps_by_document():
    steps = steps_of(random_texts([50, 0, 4, 70]), 4, seed_keys(12), [0, 0, 0, 0])
    shared, users = in_two(steps)
    all_rows, is_shared = rows(steps), is_group_step(steps.keys)
    assert 0 < len(shared.ids) < len(users.ids)
    for part, wanted in ((shared, True), (users, False)):
        for d in range(4):
            expected = [all_rows[p] for p in range(*steps.offsets[d : d + 2]) if is_shared[p] == wanted]
            assert rows(part)[part.offsets[d] : part.offsets[d + 1]] == expected


def test_ranges_become_documents():
    steps = steps_of(random_texts([30, 25]), 4, seed_keys(12), [0, 0])
    ranges = Ranges(np.array([0, 3, 4]), np.array([0, 5, 7, 30]), np.array([26, 5, 12, 47]))
    parts = steps.of_ranges(ranges)
    assert parts.scored.tolist() == [26, 0, 5, 17]
    assert rows(parts) == [rows(steps)[p] for b, e in zip(ranges.begin, ranges.end, strict=True) for p in range(b, e)]


def test_no_repr_shows_a_key():
    keys = seed_keys(12)
    steps = steps_of(random_texts([30]), 4, keys, [0])
    secrets = {str(word) for word in (*keys.words.ravel().tolist(), *steps.keys.ravel().tolist()) if word > 9999}
    for shown in (repr(keys), repr(steps), repr(secret.derive_seed_key(SECRET, LABEL)), str(steps), f"{keys}"):
        assert not any(word in shown for word in secrets)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_repeated_steps_stand_one_after_the_other(dtype):
    ids, offsets = np.arange(5, dtype=np.uint32), np.array([0, 2, 2, 5])
    keys = np.arange(40, dtype=np.uint32).reshape(8, 5)
    steps = Steps(ids, ids.astype(np.uint64) + 7, keys, offsets).repeated(np.array([2, 0, 1, 0, 3], dtype))
    wanted = [0, 0, 2, 4, 4, 4]
    assert steps.ids.tolist() == wanted
    assert steps.nonces.tolist() == [7 + i for i in wanted]
    assert steps.keys.tolist() == keys[:, wanted].tolist()
    assert steps.offsets.tolist() == [0, 2, 2, 6]
    assert steps.offsets.dtype == np.int64
