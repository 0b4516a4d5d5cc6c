"""Known answers of the specification on a device: streams and scores of documents (SPEC §5), searches (SPEC_2 §5)."""

import json
import math
from fractions import Fraction
from typing import Any

import torch

from scanner.gpu import greenlist, gumbel
from scanner.gpu.batch import Batch
from scanner.gpu.marks import on_device, rule_of
from scanner.gpu.vectors import Vectors
from scanner.watermark import GreenList, Gumbel, ragged, scored_positions
from scanner.watermark.installation import GroupResult
from scanner.watermark.native import secret, streams
from scanner.watermark.native.known_answers import method_of
from scanner.watermark.rule import candidates

Case = dict[str, Any]


def check_device(text: str, device: torch.device) -> list[GroupResult]:
    """Run the known answers that a device computes: words of streams and documents of version 1, searches of version 2.

    Args:
        text: as scanner.watermark.installation.check takes it, and has checked it.
        device: where to compute.
    """
    groups = json.loads(text)
    results = []
    for name, matches in (("streams", _stream), ("documents", _document), ("searches", _search)):
        # version 2's scores of one message are computed on the CPU only
        cases = [
            case
            for case in groups.get(name, [])
            if case.get("method") != "gumbel-log" and (name == "searches" or not _of_version_2(case))
        ]
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


def _document(case: Case, device: torch.device) -> bool:
    """The score of the one message: a count exactly, a Gumbel score within its bound."""
    key, window = bytes.fromhex(case["secret"]), case["window"]
    green = case["method"] == "greenlist"
    mark = GreenList(key, window, Fraction(case["gamma"])) if green else Gumbel(key, window)
    tokens = ragged([case["tokens"]])
    positions = scored_positions(tokens, window, case["dedup"])
    keys, offsets = mark.sub_keys, positions.offsets
    nonces = streams.window_nonces(keys, tokens.ids, positions.index, window)
    batch = Batch.put(keys.chacha, tokens.ids[positions.index], nonces, offsets, device)
    if isinstance(mark, GreenList):
        found = greenlist.best_two(batch, offsets, 1, rule_of(mark), case["message"])[1]
        return bool(found[0] == case["score"])
    sums = gumbel.all_sums(batch, 1, case["message"]).cpu().numpy()[:, 0]
    room = float(gumbel.bound(sums, positions.scored)[0]) - case["score"]
    room_at_most = math.log(2.0) * (0.0861 + 2.0**-gumbel.FRACTION + 0.0015 * case["scored"])
    return bool(-1e-9 * case["score"] <= room <= room_at_most)
