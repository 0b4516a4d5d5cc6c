"""From sub-keys to one step's secret vector (SPEC §1): nonces of windows, and words of streams computed alone.

Words of version 2 as well (SPEC_2 §1); its nonces are those of version 1.
"""

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_lanes, siphash_lanes
from scanner.watermark.native.lanes import nonces_of_positions
from scanner.watermark.native.secret import SubKeys


def window_nonces(
    sub_keys: SubKeys, ids: NDArray[np.uint32], index: NDArray[np.int64], window: int
) -> NDArray[np.uint64]:
    """Nonce of each position: SipHash-2-4 of the `window` tokens before it (SPEC §1).

    Args:
        sub_keys: of the key and label.
        ids: uint32[N], flat tokens.
        index: int64[P], positions in ids, ascending; each has `window` tokens of its document before it.
        window: h, 0 to 16.

    Returns:
        uint64[P].
    """
    return nonces_of_positions(sub_keys.sip, ids, index, window)


def nonces_of_windows(sub_keys: SubKeys, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Nonces of windows that stand alone: uint64[R] for uint32[R, h] (SPEC §1)."""
    return _nonces_of_columns(sub_keys.sip, np.ascontiguousarray(windows.T, np.uint32))


@kernel
def _nonces_of_columns(key: NDArray[np.uint64], columns: NDArray[np.uint32]) -> NDArray[np.uint64]:
    count, lanes = columns.shape
    nonces = np.empty(lanes, np.uint64)
    scratch = np.empty(5 * CHUNK, np.uint64)
    tokens = columns.ravel()
    for begin in range(0, lanes, CHUNK):
        siphash_lanes(key, tokens[begin:], lanes, count, scratch, nonces[begin : begin + CHUNK])
    return nonces


def stream_word(sub_keys: SubKeys, nonce: int, planes: int, plane: int, i: int, version: int = 1) -> int:
    """Word i of one plane of a stream, computed alone (SPEC §1, SPEC_2 §1)."""
    height = 16 // planes
    if version == 2:
        counter, r = divmod(i, height)
        return int(chacha8_block(sub_keys.chacha, counter, nonce)[plane * height + r])
    group, r = divmod(i, LANES * height)
    counter = LANES * group + r % LANES
    block = chacha8_block(sub_keys.chacha, counter, nonce)
    return int(block[plane * height + r // LANES])


def chacha8_block(key: NDArray[np.uint32], counter: int, nonce: int) -> NDArray[np.uint32]:
    """One ChaCha8 block: uint32[16] for a key of uint32[8], a 64-bit counter and a 64-bit nonce."""
    out, inputs = np.empty(16 * CHUNK, np.uint32), np.zeros(4 * CHUNK, np.uint32)
    inputs[::CHUNK] = np.array([counter, nonce], np.uint64).view(np.uint32)
    chacha8_lanes(key, inputs, 1, out)
    return out[::CHUNK].copy()
