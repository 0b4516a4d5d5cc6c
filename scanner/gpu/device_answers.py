"""Known answers of the specification on a device: streams (SPEC §5) and searches of version 2 (SPEC_2 §5)."""

import json
import math
from typing import Any

import torch

from scanner.gpu.marks import on_device
from scanner.gpu.vectors import Vectors
from scanner.watermark import ragged
from scanner.watermark.installation import GroupResult
from scanner.watermark.native import secret
from scanner.watermark.native.known_answers import method_of
from scanner.watermark.rule import candidates

Case = dict[str, Any]


def check_device(text: str, device: torch.device) -> list[GroupResult]:
    """Run the known answers that a device computes: words of streams of version 1, searches of version 2.

    Args:
        text: as scanner.watermark.installation.check takes it, and has checked it.
        device: where to compute.
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
    """The candidates, best first, and their scores."""
    mark, tokens = on_device(method_of(case), device), ragged([case["tokens"]])
    found = candidates(mark, tokens, mark.rule.positions(tokens, case["dedup"]), case["groups"] ** 2)
    there = found.message[0] >= 0
    told = list(zip(found.message[0][there].tolist(), found.score[0][there].tolist(), strict=True))
    wanted = [(one["message"], one["score"]) for one in case["candidates"]]
    return len(told) == len(wanted) and all(
        a == b and math.isclose(x, y, rel_tol=1e-9) for (a, x), (b, y) in zip(told, wanted, strict=True)
    )
