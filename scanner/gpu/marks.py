"""Keys of version 2 whose messages are all scored on a device, with the CPU's integers and verdicts.

The score of one message is computed on the CPU: one block a token costs less than reading and tokenising the text. So
are nonces, at 2 ns a token. All messages of the paper's own mark, version 1, are scored on the CPU too.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu import runs
from scanner.gpu.runs import Batch
from scanner.gpu.vectors import GreenRule, Vectors
from scanner.watermark import Watermark, batch_tokens
from scanner.watermark.format import format_name
from scanner.watermark.formats import GroupResult
from scanner.watermark.native import secret
from scanner.watermark.native.gumbel import sum_scores
from scanner.watermark.native.gumbel_runs import draws_at as draws_of_numbers
from scanner.watermark.native.keyed import GreenListMark
from scanner.watermark.native.known_answers import method_of
from scanner.watermark.native.streams import RunRequest, ScoredSteps
from scanner.watermark.native.version2_marks import Version2Mark
from scanner.watermark.positions import consecutive_positions
from scanner.watermark.rule import candidates


def rule_of(mark: GreenListMark) -> GreenRule:
    """γ as the kernels need it."""
    return GreenRule(*secret.rule_of(mark.gamma))


BestNumbers = tuple[NDArray[np.int64], NDArray[np.generic]]
"""Best numbers of runs and their scores, as scanner.watermark.native.version2_marks.BestOfRuns finds them."""


def _green_runs(
    mark: Any,  # noqa: ANN401 - of the one class that the table names
    batch: Batch,
    steps: ScoredSteps,
    request: RunRequest,
) -> BestNumbers:
    return runs.best_counts(_runs(batch, steps, request), rule_of(mark))


def _gumbel_runs(
    mark: Any,  # noqa: ANN401 - of the one class that the table names
    batch: Batch,
    steps: ScoredSteps,
    request: RunRequest,
) -> BestNumbers:
    begins, lengths = steps.offsets[request.documents], steps.scored[request.documents]

    def exact(of_runs: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Published scores of pairs, by the CPU: their draws in one run, summed in order."""
        at = consecutive_positions(begins[of_runs], lengths[of_runs])
        read = np.repeat(request.first[of_runs] + numbers, lengths[of_runs])
        tokens = steps.ids[at.index].astype(np.int64)
        return sum_scores(draws_of_numbers(mark.sub_keys.chacha, tokens, steps.nonces[at.index], read), at.offsets)

    return runs.best_sums(_runs(batch, steps, request), exact)


def _runs(batch: Batch, steps: ScoredSteps, request: RunRequest) -> runs.Runs:
    return runs.Runs(batch.of(request.documents), steps.scored[request.documents], *request[1:])


class BestOfRuns(NamedTuple):
    """How a format's runs are searched on a device, and the most steps of a document whose runs are searched there."""

    best_of_runs: Callable[..., BestNumbers]
    longest: int


BEST_OF_RUNS: Mapping[str, BestOfRuns] = {
    "greenlist-v2": BestOfRuns(_green_runs, runs.LONGEST_COUNT),
    "gumbel-v2": BestOfRuns(_gumbel_runs, runs.LONGEST_SUM),
}
"""Formats whose runs, and so all of whose messages, are searched on a device."""


def _runs_on(mark: Version2Mark, device: torch.device) -> Version2Mark:
    """The same watermark; runs of documents without steps, or with too many for the device, stay on the CPU."""
    search, keys = BEST_OF_RUNS[format_name(mark.label)], mark.sub_keys

    def best_of_runs(steps: ScoredSteps, request: RunRequest) -> BestNumbers:
        scored = steps.scored[request.documents]
        fits = (scored > 0) & (scored <= search.longest)
        if fits.all():
            batch = Batch.put(keys.chacha, steps.ids, steps.nonces, steps.offsets, device)
            return search.best_of_runs(mark, batch, steps, request)
        numbers, scores = mark.best_of_runs(steps, _some(request, ~fits))
        out = np.empty((len(fits), request.most), np.int64), np.empty((len(fits), request.most), scores.dtype)
        out[0][~fits], out[1][~fits] = numbers, scores
        if fits.any():
            out[0][fits], out[1][fits] = best_of_runs(steps, _some(request, fits))
        return out

    return mark.searched_by(best_of_runs, f"on {device}")


def _some(request: RunRequest, mask: NDArray[np.bool_]) -> RunRequest:
    return request._replace(documents=request.documents[mask], first=request.first[mask], floors=request.floors[mask])


def on_device(mark: Watermark, device: torch.device) -> Watermark:
    """The same watermark, searched on a device if its format can be; any other watermark unchanged."""
    if isinstance(mark, Version2Mark) and format_name(mark.label) in BEST_OF_RUNS:
        return _runs_on(mark, device)
    return mark


Case = dict[str, Any]


def check_device(text: str, device: torch.device) -> list[GroupResult]:
    """Run the known answers that a device computes: words of streams of version 1, searches of version 2.

    text: as scanner.watermark.formats.check takes it, and has checked it.
    """
    groups = json.loads(text)
    results = []
    for name, matches in (("streams", _stream), ("searches", _search)):
        # scores of one message, and all of version 1, are computed on the CPU only
        cases = [case for case in groups.get(name, []) if name == "searches" or not _of_version_2(case)]
        wrong = [
            f"{name}[{number}] differs on {device}" for number, case in enumerate(cases) if not matches(case, device)
        ]
        if cases:
            results.append(GroupResult(f"{device} {name}", len(cases) - len(wrong), wrong))
    return results


def _of_version_2(case: Case) -> bool:
    return case.get("version") == 2 or "-v2;" in case.get("label", "")


def _stream(case: Case, device: torch.device) -> bool:
    keys = secret.derive(bytes.fromhex(case["secret"]), case["label"])
    words = [(word["i"], word["word"]) for word in case["words"] if word["planes"] == 1]
    window = torch.tensor([case["window"]], dtype=torch.int64, device=device)
    vectors = Vectors(keys.chacha, keys.sip, device)
    start = torch.zeros(1, dtype=torch.int64, device=device)
    found = [int(vectors.draws(window, start + i, 1)[0, 0]) & 0xFFFFFFFF for i, _ in words]
    return found == [word for _, word in words]


def _search(case: Case, device: torch.device) -> bool:
    mark, tokens = on_device(method_of(case), device), batch_tokens([case["tokens"]])
    found = candidates(mark, tokens, mark.rule.positions(tokens, case["dedup"]), case["groups"] ** 2)
    is_candidate = found.message[0] >= 0
    best = list(zip(found.message[0][is_candidate].tolist(), found.score[0][is_candidate].tolist(), strict=True))
    wanted = [(one["message"], one["score"]) for one in case["candidates"]]
    return len(best) == len(wanted) and all(
        a == b and math.isclose(x, y, rel_tol=1e-9) for (a, x), (b, y) in zip(best, wanted, strict=True)
    )
