"""Keys, hashes and streams (SPEC §1): published known answers, then the reference on whatever hypothesis finds."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark.native import secret as fast
from scanner.watermark.native import streams
from tests import reference
from tests.watermark import published
from tests.watermark.pairs import SECRET, greenlist, gumbel
from tests.watermark.strategies import GAMMAS, many, windows

words32, words64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
secrets = st.binary(min_size=16, max_size=64)


def sip_of_tokens(key: bytes, data: bytes) -> int:
    sub_keys = fast.SubKeys(np.zeros(8, np.uint32), np.frombuffer(key, "<u8").astype(np.uint64))
    ids, count = np.frombuffer(data, "<u4").astype(np.uint32), len(data) // 4
    (nonce,) = streams.window_nonces(sub_keys, ids, np.array([count]), count).tolist()
    return nonce


@pytest.mark.parametrize("length", range(64))
def test_siphash_published(length):
    key, data = bytes(range(16)), bytes(range(length))
    wanted = int.from_bytes(published.SIPHASH[8 * length : 8 * length + 8], "little")
    assert reference.siphash24(key, data) == wanted
    if length % 4 == 0:  # the fast path hashes whole tokens only
        assert sip_of_tokens(key, data) == wanted


@pytest.mark.parametrize(("key", "counter", "iv", "block"), published.BLOCKS)
def test_chacha8_published(key, counter, iv, block):
    key_words = np.frombuffer(bytes.fromhex(key), "<u4").astype(np.uint32)
    nonce = int.from_bytes(bytes.fromhex(iv), "little")
    wanted = np.frombuffer(bytes.fromhex(block), "<u4").tolist()
    assert list(reference.chacha8_block(tuple(key_words.tolist()), counter, nonce)) == wanted
    assert streams.chacha8_block(key_words, counter, nonce).tolist() == wanted


@many
@given(st.lists(words32, min_size=8, max_size=8), words64, words64)
def test_chacha8(key, counter, nonce):
    got = streams.chacha8_block(np.array(key, np.uint32), counter, nonce)
    assert got.tolist() == list(reference.chacha8_block(tuple(key), counter, nonce))


@many
@given(secrets, windows, st.one_of(st.none(), st.sampled_from(GAMMAS)))
def test_labels_sub_keys_and_commitments(secret, window, gamma):
    method = "gumbel" if gamma is None else "greenlist"
    label = fast.label(method, window, gamma)
    assert label == reference.label(method, window, gamma)
    keys, wanted = fast.derive(secret, label), reference.sub_keys(secret, label)
    assert (keys.chacha.tolist(), keys.sip.astype("<u8").tobytes()) == (list(wanted.chacha), wanted.sip)
    assert fast.commitment(secret, label) == reference.commitment(secret, label)
    pair = gumbel(window, secret) if gamma is None else greenlist(window, gamma, secret)
    assert (pair.fast.window, pair.fast.label, pair.fast.commitment) == (window, label, pair.plain.commitment)


@pytest.mark.parametrize("length", [0, 15, 65])
def test_a_secret_of_a_wrong_length_is_refused_without_showing_it(length):
    secret = hashlib.sha512(b"secret").digest()[:length] + b"~" * (length - 64)
    with pytest.raises(ValueError, match="16 to 64 bytes") as refused:
        fast.derive(secret, "gumbel;h=4")
    assert not length or repr(secret)[2:20] not in str(refused.value)


@many
@given(words64, st.sampled_from([1, 2, 4, 8]), st.data())
def test_stream_words(nonce, planes, data):
    plane, i = data.draw(st.integers(0, planes - 1)), data.draw(st.one_of(st.integers(0, 600), st.integers(0, 2**33)))
    label = "gumbel;h=4"
    wanted = reference.stream_word(reference.sub_keys(SECRET, label), nonce, planes, plane, i)
    assert streams.stream_word(fast.derive(SECRET, label), nonce, planes, plane, i) == wanted


@pytest.mark.seconds
@many
@given(windows, st.data())
def test_nonces_of_windows(window, data):
    row = st.lists(words32, min_size=window, max_size=window)
    rows = data.draw(st.lists(row, max_size=5))
    pair = gumbel(window)
    got = pair.fast.window_nonces(np.array(rows, np.uint32).reshape(len(rows), window))
    assert got.dtype == np.uint64
    assert got.tolist() == [reference.window_nonce(pair.plain.keys, row) for row in rows]


def test_nonces_of_more_windows_than_fit_a_chunk():
    rows = np.random.default_rng(1).integers(0, 2**32, (1000, 5), dtype=np.uint32)
    pair = greenlist(5)
    assert pair.fast.window_nonces(rows).tolist() == [
        reference.window_nonce(pair.plain.keys, row) for row in rows.tolist()
    ]


starts = st.one_of(st.integers(0, 600), st.integers(2**32 - 300, 2**32 + 1_000_000))


@pytest.mark.seconds
@many
@given(st.sampled_from(GAMMAS), st.lists(st.tuples(words64, starts), max_size=3), st.integers(0, 100))
def test_green_entries(gamma, steps, count):
    pair = greenlist(3, gamma)
    nonces, first = np.array([n for n, _ in steps], np.uint64), np.array([s for _, s in steps], np.int64)
    got = pair.fast.green(nonces, first, count)
    assert (got.dtype, got.shape) == (np.bool_, (len(steps), count))
    for row, (nonce, start) in zip(got.tolist(), steps, strict=True):
        assert row == [reference.is_green(pair.plain.keys, nonce, start + j, gamma) for j in range(count)]


@pytest.mark.seconds
@many
@given(st.lists(st.tuples(words64, starts), max_size=3), st.integers(0, 300))
def test_draws(steps, count):
    pair = gumbel(3)
    nonces, first = np.array([n for n, _ in steps], np.uint64), np.array([s for _, s in steps], np.int64)
    got = pair.fast.draws(nonces, first, count)
    assert (got.dtype, got.shape) == (np.uint32, (len(steps), count))
    for row, (nonce, start) in zip(got.tolist(), steps, strict=True):
        assert row == [reference.draw(pair.plain.keys, nonce, start + j) for j in range(count)]
