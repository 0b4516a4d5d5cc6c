"""A key's watermark whose messages are all scored on a device, with the integers and the verdicts of the CPU.

One message costs one block a token, less than what reads and tokenises the text, and stays on the CPU. Nonces do as
well: 2 ns a token.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu import greenlist, gumbel
from scanner.gpu.batch import Batch
from scanner.gpu.rule import Rule
from scanner.watermark import Best, Candidates, GreenList, Positions, Tokens, Watermark
from scanner.watermark.format import format_name
from scanner.watermark.native.gumbel import draws_at, sum_scores
from scanner.watermark.native.keyed import Keyed
from scanner.watermark.native.numbered import NumberedGreenList
from scanner.watermark.native.secret import planes_of
from scanner.watermark.native.streams import window_nonces
from scanner.watermark.positions import places


def rule_of(mark: GreenList | NumberedGreenList) -> Rule:
    """What the kernels need to know of γ."""
    gamma = mark.gamma
    return Rule(gamma.numerator, gamma.denominator.bit_length() - 1, planes_of(gamma))


class OnDevice:
    """A watermark whose search runs on a device; everything else is the CPU's.

    Args:
        mark: of a format in BEST_TWO.
        device: where to search.
    """

    def __init__(self, mark: Keyed, device: torch.device) -> None:
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

    def best_two(self, tokens: Tokens, positions: Positions, count: int) -> Best:
        """Best and second best of the messages 0 … count−1; what a device gains nothing by goes to the CPU."""
        search = BEST_TWO[format_name(self.label)]
        if count <= 1 or not len(positions.scored) or positions.scored.max() > search.longest:
            return self._mark.best_two(tokens, positions, count)
        keys, ids = self._mark.sub_keys, tokens.ids[positions.index]
        nonces = window_nonces(keys, tokens.ids, positions.index, self._mark.window)
        batch = Batch.put(keys.chacha, ids, nonces, positions.offsets, self._device)
        return search.best_two(self._mark, batch, ids, nonces, positions, count)


def _greenlist(
    mark: Any,  # noqa: ANN401 - of the one class that the table names
    batch: Batch,
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    positions: Positions,
    count: int,
) -> Best:
    return Best(*greenlist.best_two(batch, positions.offsets, count, rule_of(mark)))


def _gumbel(
    mark: Any,  # noqa: ANN401 - of the one class that the table names
    batch: Batch,
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    positions: Positions,
    count: int,
) -> Best:
    offsets = positions.offsets

    def exact(documents: NDArray[np.int64], messages: NDArray[np.int64]) -> NDArray[np.float64]:
        """Published scores of pairs, by the CPU's one-message path: their draws in one run, summed in order."""
        lengths = positions.scored[documents]
        at = places(offsets[documents], lengths)
        entries = ids[at.index].astype(np.int64) + np.repeat(messages, lengths)
        return sum_scores(draws_at(mark.sub_keys.chacha, nonces[at.index], entries), at.offsets)

    return Best(*gumbel.best_two(batch, offsets, count, exact))


class BestTwo(NamedTuple):
    """How a format is searched on a device, and the most scored positions of a document for which it is."""

    best_two: Callable[..., Best]
    longest: float = math.inf


BEST_TWO: Mapping[str, BestTwo] = {"greenlist": BestTwo(_greenlist), "gumbel": BestTwo(_gumbel, gumbel.LONGEST)}
"""The formats that are searched on a device."""


def on_device(mark: Watermark, device: torch.device) -> Watermark:
    """The same watermark, searched on a device where its format can be; others as they are."""
    return OnDevice(mark, device) if isinstance(mark, Keyed) and format_name(mark.label) in BEST_TWO else mark
