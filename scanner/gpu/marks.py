"""A key of version 2 whose messages are all scored on a device, with the integers and the verdicts of the CPU.

The score of one message is computed on the CPU: one block a token costs less than reading and tokenising the text. So
are nonces, at 2 ns a token. All messages of the paper's own mark, version 1, are scored on the CPU too.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu import gumbel, runs
from scanner.gpu.batch import Batch
from scanner.gpu.gamma import Rule
from scanner.watermark import GreenList, Watermark
from scanner.watermark.format import format_name
from scanner.watermark.native.gumbel import sum_scores
from scanner.watermark.native.gumbel_runs import draws_at as draws_of_numbers
from scanner.watermark.native.numbered import Numbered, NumberedGreenList
from scanner.watermark.native.runs import Asked, Steps
from scanner.watermark.native.secret import planes_of
from scanner.watermark.positions import places


def rule_of(mark: GreenList | NumberedGreenList) -> Rule:
    """γ as the kernels need it."""
    gamma = mark.gamma
    return Rule(gamma.numerator, gamma.denominator.bit_length() - 1, planes_of(gamma))


BestOfThese = tuple[NDArray[np.int64], NDArray[np.generic]]
"""Best numbers of runs and their scores, as scanner.watermark.native.numbered.BestOfRuns finds them."""


def _green_runs(
    mark: Any,  # noqa: ANN401 - of the one class that the table names
    batch: Batch,
    steps: Steps,
    asked: Asked,
) -> BestOfThese:
    return runs.best_counts(_runs(batch, steps, asked), rule_of(mark))


def _gumbel_runs(
    mark: Any,  # noqa: ANN401 - of the one class that the table names
    batch: Batch,
    steps: Steps,
    asked: Asked,
) -> BestOfThese:
    begins, lengths = steps.offsets[asked.documents], steps.scored[asked.documents]

    def exact(of_runs: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Published scores of pairs, by the CPU: their draws in one run, summed in order."""
        at = places(begins[of_runs], lengths[of_runs])
        read = np.repeat(asked.first[of_runs] + numbers, lengths[of_runs])
        tokens = steps.ids[at.index].astype(np.int64)
        return sum_scores(draws_of_numbers(mark.sub_keys.chacha, tokens, steps.nonces[at.index], read), at.offsets)

    return runs.best_sums(_runs(batch, steps, asked), exact)


def _runs(batch: Batch, steps: Steps, asked: Asked) -> runs.Runs:
    return runs.Runs(batch.of(asked.documents), steps.scored[asked.documents], *asked[1:])


class BestOfRuns(NamedTuple):
    """How a format's runs are searched on a device, and the most steps of a document whose runs are searched there."""

    best_of_runs: Callable[..., BestOfThese]
    longest: int


BEST_OF_RUNS: Mapping[str, BestOfRuns] = {
    "greenlist-v2": BestOfRuns(_green_runs, runs.LONGEST),
    "gumbel-v2": BestOfRuns(_gumbel_runs, gumbel.LONGEST),
}
"""Formats whose runs, and so all of whose messages, are searched on a device."""


def _runs_on(mark: Numbered, device: torch.device) -> Numbered:
    """The same watermark; runs of documents without steps, or with too many for the device, stay on the CPU."""
    search, keys = BEST_OF_RUNS[format_name(mark.label)], mark.sub_keys

    def best_of_runs(steps: Steps, asked: Asked) -> BestOfThese:
        scored = steps.scored[asked.documents]
        there = (scored > 0) & (scored <= search.longest)
        if there.all():
            batch = Batch.put(keys.chacha, steps.ids, steps.nonces, steps.offsets, device)
            return search.best_of_runs(mark, batch, steps, asked)
        numbers, scores = mark.best_of_runs(steps, _some(asked, ~there))
        out = np.empty((len(there), asked.most), np.int64), np.empty((len(there), asked.most), scores.dtype)
        out[0][~there], out[1][~there] = numbers, scores
        if there.any():
            out[0][there], out[1][there] = best_of_runs(steps, _some(asked, there))
        return out

    return mark.searched_by(best_of_runs, f"on {device}")


def _some(asked: Asked, mask: NDArray[np.bool_]) -> Asked:
    return asked._replace(documents=asked.documents[mask], first=asked.first[mask], floors=asked.floors[mask])


def on_device(mark: Watermark, device: torch.device) -> Watermark:
    """The same watermark, searched on a device if its format can be; any other watermark unchanged."""
    if isinstance(mark, Numbered) and format_name(mark.label) in BEST_OF_RUNS:
        return _runs_on(mark, device)
    return mark
