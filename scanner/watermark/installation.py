"""Known answers against this installation: does this machine compute each format as its makers do? (SPEC §5)

A case is one entry of a group; it passes when every integer agrees exactly and every real to 1e-9 relative.
"""

import json
import math
from collections.abc import Callable
from importlib.resources.abc import Traversable
from typing import NamedTuple

from scanner.watermark.format import Case, Pairs
from scanner.watermark.formats import FORMATS

TOLERANCE = 1e-9


class GroupResult(NamedTuple):
    """How one group of known answers went; failures say which case, what was expected and what came out."""

    group: str
    passed: int
    failures: list[str]


def shipped() -> list[Traversable]:
    """Every file of known answers that ships with the code, for all formats."""
    return list(dict.fromkeys(entry.answers.shipped for entry in FORMATS.values()))


def check(text: str) -> list[GroupResult]:
    """Run known answers in the form of the shipped files, any groups of them.

    Raises:
        ValueError: the text is not of that form, or holds no case.
    """
    try:
        groups = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(groups, dict) or not all(isinstance(cases, list) for cases in groups.values()):
        raise ValueError("is not an object of groups, each a list of cases")
    known = {name: compare for entry in FORMATS.values() for name, compare in entry.answers.groups.items()}
    unknown = sorted(set(groups) - set(known))
    if unknown:
        raise ValueError(f"has an unknown group {unknown[0]!r}; allowed: {', '.join(known)}")
    if not any(groups.values()):
        raise ValueError(f"holds no cases; at least one of these groups is needed: {', '.join(known)}")
    return [_check_group(name, known[name], cases) for name, cases in groups.items()]


def _check_group(name: str, compare: Callable[[Case], Pairs], cases: list[Case]) -> GroupResult:
    failures = []
    for number, case in enumerate(cases):
        try:
            wrong = [f"{what}: expected {a!r}, got {b!r}" for what, a, b in compare(case) if not _agrees(a, b)]
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
