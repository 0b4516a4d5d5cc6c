"""Search Gumbel keys of version 3 with groups on a device, with verdicts as on the CPU, and make vectors that mark.

The device counts rough scores of all groups, and of the users of the groups that are looked into. It also makes the few
full draws. The CPU computes the score of one message, because one block a token costs less than reading and tokenising
the text. It also computes steps, their hashes and their keys, and the best groups of windows, which share their steps.
All messages of green lists, of version 1 (the paper's own mark) and of keys without groups are scored on the CPU too.
"""

import json
import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu import runs
from scanner.gpu.runs import Batch, Runs
from scanner.gpu.vectors import GreenRule, SeededVectors, SeedSource, Vectors
from scanner.watermark import Watermark, batch_tokens
from scanner.watermark.format import format_name
from scanner.watermark.formats import GroupResult
from scanner.watermark.native import secret
from scanner.watermark.native.gumbel import sum_scores
from scanner.watermark.native.keyed import GreenListMark
from scanner.watermark.native.known_answers import method_of
from scanner.watermark.native.steps import Steps
from scanner.watermark.native.version1 import Version1Mark
from scanner.watermark.native.version3_marks import BestRough, Version3Gumbel, Version3Mark
from scanner.watermark.positions import consecutive_positions, positions_where
from scanner.watermark.rule import candidates


def rule_of(mark: GreenListMark) -> GreenRule:
    """Return γ in the form that kernels need."""
    return GreenRule(*secret.rule_of(mark.gamma))


def source_of(mark: Version3Mark) -> SeedSource:
    """Return the source of the keys of a mark's steps, in the form that kernels need."""
    keys = mark.seed_keys
    return SeedSource(keys.words[0], mark.beacon, secret.window_key(mark.window, mark.seeds), mark.seeds, mark.groups)


def vectors_of(mark: Version1Mark | Version3Mark, device: torch.device) -> Vectors | SeededVectors:
    """Return a mark's vectors on a device."""
    if isinstance(mark, Version3Mark):
        return SeededVectors(source_of(mark), device)
    return Vectors(mark.sub_keys.chacha, mark.sub_keys.sip, device)


def _best_rough_on(device: torch.device) -> BestRough:
    """Return a function that finds the numbers of largest rough score on a device, as `rough_runs.best_rough` does."""

    def best_rough(
        steps: Steps,
        documents: NDArray[np.int64],
        first: NDArray[np.int64],
        length: int,
        most: int,
        rule: tuple[int, int, int],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        del rule  # of Gumbel marks, which alone are searched here
        batch = Batch.put(steps.ids, steps.nonces, steps.keys, device)
        found = Runs(steps.offsets[documents], steps.offsets[documents + 1], first, length)
        return runs.best_rough(batch, found, most)

    return best_rough


def exact_scores_on(
    device: torch.device, steps: Steps, begin: NDArray[np.int64], end: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the result of `scanner.watermark.native.exact_scores`: drawn on a device, added on the CPU in order."""
    is_number = numbers >= 0
    rows, _ = np.nonzero(is_number)
    places = consecutive_positions(begin[rows], (end - begin)[rows])
    batch = Batch.put(steps.ids, steps.nonces, steps.keys, device)
    draws = runs.draws_of(batch, places.index, np.repeat(numbers[is_number], places.scored))
    scores = np.zeros(numbers.shape)
    scores[is_number] = sum_scores(draws, places.offsets)
    return scores


def on_device(mark: Watermark, device: torch.device) -> Watermark:
    """Return the watermark, searched on a device if it is a Gumbel mark with groups; any other watermark unchanged."""
    if isinstance(mark, Version3Gumbel) and mark.groups is not None:
        exact = partial(exact_scores_on, device)
        return mark.searched_by(_best_rough_on(device), f"on {device}", exact)
    return mark


Case = dict[str, Any]


def check_device(text: str, device: torch.device) -> list[GroupResult]:
    """Run the known answers that a device computes: words of streams of version 1, and searches of version 3.

    text: the argument of scanner.watermark.formats.check, which has checked it.
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
    return isinstance(method_of(case), Version3Gumbel)


def _stream(case: Case, device: torch.device) -> bool:
    keys = secret.derive(bytes.fromhex(case["secret"]), case["label"])
    words = [(word["i"], word["word"]) for word in case["words"] if word["planes"] == 1]
    window = torch.tensor([case["window"]], dtype=torch.int64, device=device)
    vectors = Vectors(keys.chacha, keys.sip, device)
    start = torch.zeros(1, dtype=torch.int64, device=device)
    found = [int(vectors.draws(window, start + i, 1)[0, 0]) & 0xFFFFFFFF for i, _ in words]
    return found == [word for _, word in words]


def _search(case: Case, device: torch.device) -> bool:
    mark, tokens = method_of(case), batch_tokens([case["tokens"]])
    positions = mark.rule.positions(tokens, case["dedup"])
    if isinstance(mark, Version3Mark):
        is_shown = np.isin(mark.buckets(tokens, positions), np.array(case["shown"], np.int64))
        positions = positions_where(positions, ~is_shown)
    found = candidates(on_device(mark, device), tokens, positions, case["groups"] ** 2)
    is_candidate = found.message[0] >= 0
    best = list(zip(found.message[0][is_candidate].tolist(), found.score[0][is_candidate].tolist(), strict=True))
    wanted = [(one["message"], one["score"]) for one in case["candidates"]]
    return len(best) == len(wanted) and all(
        a == b and math.isclose(x, y, rel_tol=1e-9) for (a, x), (b, y) in zip(best, wanted, strict=True)
    )
