"""Blocks of ChaCha with 8 rounds under keys of their own, or one after another, against published and plain ones."""

import numpy as np
import pytest

from scanner.watermark.native.ciphers import CHUNK, FEW_LANES, LANES, chacha8_keyed_lanes, chacha8_run
from tests.watermark.published import BLOCKS

QUARTERS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
DIAGONALS = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]


def plain_block(words: list[int]) -> list[int]:
    """The block of twelve words: key, counter and nonce; as RFC 8439 §2.3 has it, in 8 rounds."""
    start = [int.from_bytes(b"expand 32-byte k"[i : i + 4], "little") for i in range(0, 16, 4)] + words
    x = list(start)
    for a, b, c, d in 4 * (QUARTERS + DIAGONALS):
        for first, second, third, left in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[first] = (x[first] + x[second]) % 2**32
            turned = x[third] ^ x[first]
            x[third] = (turned << left | turned >> (32 - left)) % 2**32
    return [(one + other) % 2**32 for one, other in zip(x, start, strict=True)]


@pytest.mark.parametrize("lanes", [1, LANES, LANES + 1, FEW_LANES, FEW_LANES + 1, 100, CHUNK - 1, CHUNK])
def test_each_lane_has_the_block_of_its_own_key_counter_and_nonce(lanes):
    inputs = np.random.default_rng(lanes).integers(0, 2**32, 12 * CHUNK, dtype=np.uint32)
    out = np.zeros(16 * CHUNK, np.uint32)
    chacha8_keyed_lanes(inputs, lanes, out)
    words, blocks = inputs.reshape(12, CHUNK).T.tolist(), out.reshape(16, CHUNK).T.tolist()
    assert blocks[:lanes] == [plain_block(words[lane]) for lane in range(lanes)]


def test_published_blocks_stand_side_by_side():
    inputs, out, wanted = np.zeros((12, CHUNK), np.uint32), np.zeros((16, CHUNK), np.uint32), []
    for lane, (key, counter, iv, block) in enumerate(BLOCKS):
        inputs[:8, lane] = np.frombuffer(bytes.fromhex(key), "<u4")
        inputs[8:10, lane] = counter % 2**32, counter >> 32
        inputs[10:, lane] = np.frombuffer(bytes.fromhex(iv), "<u4")
        wanted.append(np.frombuffer(bytes.fromhex(block), "<u4").tolist())
    chacha8_keyed_lanes(inputs.reshape(-1), len(wanted), out.reshape(-1))
    assert out.T[: len(wanted)].tolist() == wanted


@pytest.mark.parametrize("blocks", [1, LANES, LANES + 1, 100, CHUNK])
def test_a_run_has_blocks_of_consecutive_counters(blocks):
    """Up to the last low word that does not overflow."""
    words = np.random.default_rng(blocks).integers(0, 2**32, 12, dtype=np.uint32)
    nonce, out = np.uint64(int(words[11]) << 32 | int(words[10])), np.zeros(16 * CHUNK, np.uint32)
    for low in (words[8] % 2**31, np.uint32(2**32 - blocks)):
        chacha8_run(words[:8].copy(), low, words[9], nonce, blocks, out)
        counters = [[*words[:8].tolist(), int(low) + i, *words[9:].tolist()] for i in range(blocks)]
        assert out.reshape(16, CHUNK).T.tolist()[:blocks] == [plain_block(twelve) for twelve in counters]
