"""Known answers of the formats, as they ship: every case through the code that selftest runs, every value compared."""

import json
import math

from scanner.watermark import Format


def cases(form: type[Format]) -> dict[str, list[dict]]:
    return json.loads(form.answers.shipped.read_text(encoding="utf-8"))


def wrong(form: type[Format], group: str, case: dict) -> list[str]:
    """Values that disagree: integers, lists and texts at all, scores by over 1e-12, p-values by over 1e-8 relative."""
    compared = list(form.answers.groups[group](case))
    assert compared
    return [f"{case['id']} {what}: expected {a}, got {b}" for what, a, b in compared if not _agree(what, a, b)]


def _agree(what: str, expected, computed) -> bool:
    if isinstance(computed, float):
        tolerance = 1e-8 if what.endswith("p_value") else 1e-12
        near_one = 1e-14 if what == "log_p_value" else 0.0  # the logarithm of a p-value near 1 has no digits left
        return math.isclose(computed, expected, rel_tol=tolerance, abs_tol=near_one)
    return type(expected) is type(computed) and expected == computed
