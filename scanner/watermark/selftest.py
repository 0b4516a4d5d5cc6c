"""Known answers against this installation: does this machine compute the watermark of the specification? (SPEC §5)

A case is one entry of a group; it passes when every integer agrees exactly and every real to 1e-9 relative.
"""

import json
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from scanner.watermark.format import Watermark
from scanner.watermark.native import choice, gumbel, secret
from scanner.watermark.native.greenlist import GreenList
from scanner.watermark.positions import ragged, scored_positions
from scanner.watermark.search import log10_p_of

TOLERANCE = 1e-9

Case = dict[str, Any]
Pairs = Iterator[tuple[str, Any, Any]]
"""What is compared: a name, what the file says, what this machine computes."""


class GroupResult(NamedTuple):
    """How one group of known answers went; failures say which case, what was expected and what came out."""

    group: str
    passed: int
    failures: list[str]


def check(text: str) -> list[GroupResult]:
    """Run known answers in the form of known_answers.json; any subset of its groups.

    Raises:
        ValueError: the text is not of that form, or holds no case.
    """
    try:
        groups = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(groups, dict) or not all(isinstance(cases, list) for cases in groups.values()):
        raise ValueError("is not an object of groups, each a list of cases")
    unknown = sorted(set(groups) - set(_GROUPS))
    if unknown:
        raise ValueError(f"has an unknown group {unknown[0]!r}; allowed: {', '.join(_GROUPS)}")
    if not any(groups.values()):
        raise ValueError(f"holds no cases; at least one of these groups is needed: {', '.join(_GROUPS)}")
    return [_check_group(name, cases) for name, cases in groups.items()]


def _check_group(name: str, cases: list[Case]) -> GroupResult:
    failures = []
    for number, case in enumerate(cases):
        try:
            wrong = [f"{what}: expected {a!r}, got {b!r}" for what, a, b in _GROUPS[name](case) if not _agrees(a, b)]
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            wrong = [f"cannot be computed: {type(error).__name__}: {error}"]
        if wrong:
            failures.append(f"{name}[{number}] " + "; ".join(wrong))
    return GroupResult(name, len(cases) - len(failures), failures)


def _agrees(expected: object, computed: object) -> bool:
    """Integers, text and lists exactly; reals to TOLERANCE; null stands for −∞."""
    if isinstance(computed, float):
        if expected is None or not math.isfinite(computed):
            return expected is None and computed == -math.inf
        if not isinstance(expected, int | float) or isinstance(expected, bool):
            return False
        return abs(expected - computed) <= TOLERANCE * abs(computed)
    return type(expected) is type(computed) and bool(expected == computed)


def _chacha8(case: Case) -> Pairs:
    block = secret.chacha8_block(np.array(case["key"], np.uint32), case["counter"], case["nonce"])
    yield "block", case["block"], block.tolist()


def _streams(case: Case) -> Pairs:
    key, label, window = bytes.fromhex(case["secret"]), case["label"], np.array(case["window"], np.uint32)
    sub_keys = secret.derive(key, label)
    nonce = int(secret.nonces_of_windows(sub_keys, window[None, :])[0])
    yield "commitment", case["commitment"], secret.commitment(key, label).hex()
    yield "chacha_key", case["chacha_key"], sub_keys.chacha.tolist()
    yield "sip_key", case["sip_key"], sub_keys.sip.astype("<u8").tobytes().hex()
    yield "nonce", case["nonce"], nonce
    for word in case["words"]:
        where = {name: word[name] for name in ("planes", "plane", "i")}
        yield f"word {where}", word["word"], secret.stream_word(sub_keys, nonce, **where)


def _draws(case: Case) -> Pairs:
    draw, one = np.array([case["word"]], np.uint32), np.array([0, 1], np.int64)
    yield "gumbel", case["gumbel"], float(gumbel.sum_scores(draw, one)[0])
    yield "log", case["log"], float(gumbel.sum_log_scores(draw, one)[0])
    yield "sampling_minus_ln_r", case["sampling_minus_ln_r"], float(choice.minus_ln_r(draw)[0])


def _documents(case: Case) -> Pairs:
    key, window = bytes.fromhex(case["secret"]), case["window"]
    mark = _method(case["method"], key, window, case.get("gamma"))
    tokens = ragged([case["tokens"]])
    positions = scored_positions(tokens, window, case["dedup"])
    score = mark.score(tokens, positions, case["message"])
    yield "scored", case["scored"], int(positions.scored[0])
    # a count may be written as a real number, 5.0, but is compared exactly
    expected = case["score"]
    whole = case["method"] == "greenlist" and isinstance(expected, float) and expected.is_integer()
    yield "score", int(expected) if whole else expected, score[0].item()
    yield "log10_p", case["log10_p"], float(log10_p_of(mark.law, score, positions.scored)[0])


def _method(name: str, key: bytes, window: int, gamma: str | None) -> Watermark:
    if name == "greenlist":
        return GreenList(key, window, Fraction(gamma or ""))
    return {"gumbel": gumbel.Gumbel, "gumbel-log": gumbel.LogGumbel}[name](key, window)


_GROUPS: dict[str, Callable[[Case], Pairs]] = {
    "chacha8": _chacha8,
    "streams": _streams,
    "draws": _draws,
    "documents": _documents,
}
