"""A mark on the CPU, on the interpreted device and by the plain reference, over the same documents."""

from collections.abc import Sequence

import numpy as np
import torch

from scanner.gpu.batch import Batch
from scanner.gpu.marks import OnDevice
from scanner.watermark import Best, Positions, Tokens
from scanner.watermark.native.streams import window_nonces
from tests.watermark.pairs import Pair, ragged

CPU = torch.device("cpu")


def laid_out(pair: Pair, documents: Sequence[Sequence[int]]) -> tuple[Tokens, Positions, Batch]:
    tokens = ragged(documents)
    positions = pair.positions(tokens)
    keys = pair.fast.sub_keys
    nonces = window_nonces(keys, tokens.ids, positions.index, pair.fast.window)
    return tokens, positions, Batch.put(keys.chacha, tokens.ids[positions.index], nonces, positions.offsets, CPU)


def on_device(pair: Pair, documents: Sequence[Sequence[int]], count: int) -> Best:
    tokens, positions, _ = laid_out(pair, documents)
    return OnDevice(pair.fast, CPU).best_two(tokens, positions, count)


def assert_same(found: Best, wanted: Best) -> None:
    """Both results are equal bit for bit, types included."""
    for name, a, b in zip(Best._fields, found, wanted, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        assert np.asarray(a).dtype == np.asarray(b).dtype
