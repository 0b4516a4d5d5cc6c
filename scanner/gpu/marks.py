"""A key's watermark whose messages are all scored on a device, with the integers and the verdicts of the CPU.

One message costs one block a token, less than what reads and tokenises the text, and stays on the CPU. Nonces do as
well: 2 ns a token.
"""

from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu import greenlist, gumbel
from scanner.gpu.batch import Batch
from scanner.watermark import Best, Candidates, GreenList, Gumbel, Positions, Tokens, Watermark
from scanner.watermark.native.gumbel import draws_at, sum_scores
from scanner.watermark.native.secret import planes_of, window_nonces


def rule_of(mark: GreenList) -> greenlist.Rule:
    """What the kernels need to know of γ."""
    gamma = mark.gamma
    return greenlist.Rule(gamma.numerator, gamma.denominator.bit_length() - 1, planes_of(gamma))


class OnDevice:
    """A watermark with `best_two` on a device; everything else is the CPU's.

    Args:
        mark: a green list or a Gumbel watermark.
        device: where to score.
    """

    def __init__(self, mark: GreenList | Gumbel, device: torch.device) -> None:
        self._mark, self._device = mark, device
        self.label, self.law, self.basis, self.rule = mark.label, mark.law, mark.basis, mark.rule

    def __repr__(self) -> str:
        return f"{self._mark!r} on {self._device}"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds sub-keys and is never pickled; open the key where it is needed")

    def score(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.generic]:
        """Score of one message a document: int64[D] or float64[D]."""
        return self._mark.score(tokens, positions, messages)

    def search(self, tokens: Tokens, positions: Positions, count: int) -> Candidates:
        """The best two, as every format has them."""
        return self.best_two(tokens, positions, count).candidates()

    def window_nonces(self, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """Nonces of steps to be marked: uint64[R] for windows of uint32[R, h]."""
        return self._mark.window_nonces(windows)

    def best_two(self, tokens: Tokens, positions: Positions, count: int) -> Best:
        """Best and second best of the messages 0 … count−1; a Gumbel document beyond gumbel.LONGEST goes to the CPU."""
        mark, offsets = self._mark, positions.offsets
        too_long = isinstance(mark, Gumbel) and int(positions.scored.max(initial=0)) > gumbel.LONGEST
        if count <= 1 or not len(positions.scored) or too_long:
            return mark.best_two(tokens, positions, count)
        keys, ids = mark.sub_keys, tokens.ids[positions.index]
        nonces = window_nonces(keys, tokens.ids, positions.index, mark.window)
        batch = Batch.put(keys.chacha, ids, nonces, offsets, self._device)
        if isinstance(mark, GreenList):
            return Best(*greenlist.best_two(batch, offsets, count, rule_of(mark)))

        def exact(documents: NDArray[np.int64], messages: NDArray[np.int64]) -> NDArray[np.float64]:
            """Published scores of pairs, by the CPU's one-message path: their draws in one run, summed in order."""
            lengths = positions.scored[documents]
            ends = np.cumsum(np.concatenate([[0], lengths]))
            places = np.arange(ends[-1]) + np.repeat(offsets[documents] - ends[:-1], lengths)
            entries = ids[places].astype(np.int64) + np.repeat(messages, lengths)
            return sum_scores(draws_at(keys.chacha, nonces[places], entries), ends)

        return Best(*gumbel.best_two(batch, offsets, count, exact))


def on_device(mark: Watermark, device: torch.device) -> Watermark:
    """The same watermark, scored on a device where it has all messages to score; others as they are."""
    return OnDevice(mark, device) if isinstance(mark, GreenList | Gumbel) else mark
