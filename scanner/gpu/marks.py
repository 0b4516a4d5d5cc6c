"""Gumbel keys of version 2 whose messages are all scored on a device, with the CPU's verdicts.

The score of one message is computed on the CPU: one block a token costs less than reading and tokenising the text. So
are nonces, at 2 ns a token. All messages of green lists, whose blocks hold many numbers each, and of the paper's own
mark, version 1, are scored on the CPU too: with all looks, a device could make a scan of green lists 1.8 times as fast
at most.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu import runs
from scanner.gpu.runs import Batch
from scanner.gpu.vectors import GreenRule, SeededVectors, SeedSource, Vectors
from scanner.watermark import Watermark, batch_tokens
from scanner.watermark.format import format_name
from scanner.watermark.formats import GroupResult
from scanner.watermark.native import secret
from scanner.watermark.native.gumbel import sum_scores
from scanner.watermark.native.gumbel_runs import draws_at as draws_of_numbers
from scanner.watermark.native.keyed import GreenListMark, NativeMark
from scanner.watermark.native.known_answers import method_of
from scanner.watermark.native.streams import RunRequest, ScoredSteps
from scanner.watermark.native.version2_marks import Version2Mark
from scanner.watermark.native.version3_marks import Version3Mark
from scanner.watermark.positions import consecutive_positions
from scanner.watermark.rule import candidates


def rule_of(mark: GreenListMark) -> GreenRule:
    """Return γ as the kernels need it."""
    return GreenRule(*secret.rule_of(mark.gamma))


def source_of(mark: Version3Mark) -> SeedSource:
    """Return what draws the keys of a mark's steps, as kernels need it."""
    keys = mark.seed_keys
    return SeedSource(keys.words[0], mark.beacon, secret.window_key(mark.window, mark.seeds), mark.seeds, mark.groups)


def vectors_of(mark: NativeMark, device: torch.device) -> Vectors | SeededVectors:
    """Return a mark's vectors on a device."""
    if isinstance(mark, Version3Mark):
        return SeededVectors(source_of(mark), device)
    return Vectors(mark.sub_keys.chacha, mark.sub_keys.sip, device)


BestNumbers = tuple[NDArray[np.int64], NDArray[np.generic]]
"""Best numbers of runs and their scores, as scanner.watermark.native.version2_marks.BestOfRuns finds them."""


def _best_of_runs(mark: Version2Mark, steps: ScoredSteps, request: RunRequest, device: torch.device) -> BestNumbers:
    """Search as the mark's `best_of_runs` does, in documents whose steps fit the device."""
    chacha = mark.sub_keys.chacha
    begins, lengths = steps.offsets[request.documents], steps.scored[request.documents]

    def exact(of_runs: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute published scores of pairs on the CPU: their draws in one run, summed in order."""
        at = consecutive_positions(begins[of_runs], lengths[of_runs])
        read = np.repeat(request.first[of_runs] + numbers, lengths[of_runs])
        tokens = steps.ids[at.index].astype(np.int64)
        return sum_scores(draws_of_numbers(chacha, tokens, steps.nonces[at.index], read), at.offsets)

    batch = Batch.put(chacha, steps.ids, steps.nonces, steps.offsets, device)
    return runs.best_sums(runs.Runs(batch.of(request.documents), lengths, *request[1:]), exact)


LONGEST: Mapping[str, int] = {"gumbel-v2": runs.LONGEST_SUM}
"""Most steps of a document that is searched on a device, for each format whose runs, and so all messages, are."""


def _runs_on(mark: Version2Mark, device: torch.device) -> Version2Mark:
    """Return the mark, searched on a device; runs of documents with no or too many steps for it stay on the CPU."""

    def best_of_runs(steps: ScoredSteps, request: RunRequest) -> BestNumbers:
        scored = steps.scored[request.documents]
        fits = (scored > 0) & (scored <= LONGEST[format_name(mark.label)])
        if fits.all():
            return _best_of_runs(mark, steps, request, device)
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
    """Return the watermark, searched on a device if its format can be; any other watermark unchanged."""
    if isinstance(mark, Version2Mark) and format_name(mark.label) in LONGEST:
        return _runs_on(mark, device)
    return mark


Case = dict[str, Any]


def check_device(text: str, device: torch.device) -> list[GroupResult]:
    """Run the known answers that a device computes: words of streams of version 1, Gumbel searches of version 2.

    text: as scanner.watermark.formats.check takes it, and has checked it.
    """
    groups = json.loads(text)
    results = []
    for name, matches, is_computed in (("streams", _stream, _is_of_version_1), ("searches", _search, _is_searched)):
        cases = [case for case in groups.get(name, []) if is_computed(case)]
        wrong = [
            f"{name}[{number}] differs on {device}" for number, case in enumerate(cases) if not matches(case, device)
        ]
        if cases:
            results.append(GroupResult(f"{device} {name}", len(cases) - len(wrong), wrong))
    return results


def _is_of_version_1(case: Case) -> bool:
    return "-v" not in format_name(case["label"])


def _is_searched(case: Case) -> bool:
    return format_name(method_of(case).label) in LONGEST


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
