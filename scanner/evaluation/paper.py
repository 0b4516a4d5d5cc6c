"""The paper's own figures, beside which ours are shown (three bricks, Tables 1 to 3)."""

from collections.abc import Mapping

_STRENGTHS = {"gumbel": (0.8, 0.9, 1.0, 1.1), "greenlist": (1.0, 2.0, 3.0, 4.0)}
_TABLE_2: Mapping[tuple[int, str, str | None], tuple[float, ...]] = {
    # (window, measure, attack) → θ 0.8 … 1.1 of Gumbel, then δ 1 … 4 of the green list
    (0, "similarity", None): (0.60, 0.56, 0.52, 0.44, 0.63, 0.61, 0.57, 0.50),
    (0, "flagged", None): (0.20, 0.31, 0.42, 0.51, 0.00, 0.16, 0.58, 0.70),
    (0, "flagged", "substitute:0.3"): (0.04, 0.06, 0.09, 0.10, 0.00, 0.02, 0.20, 0.39),
    (1, "similarity", None): (0.62, 0.61, 0.59, 0.55, 0.63, 0.62, 0.60, 0.56),
    (1, "flagged", None): (0.35, 0.51, 0.66, 0.77, 0.02, 0.41, 0.77, 0.88),
    (1, "flagged", "substitute:0.3"): (0.04, 0.10, 0.20, 0.36, 0.00, 0.05, 0.30, 0.58),
    (4, "similarity", None): (0.62, 0.62, 0.61, 0.59, 0.62, 0.62, 0.60, 0.57),
    (4, "flagged", None): (0.43, 0.59, 0.71, 0.80, 0.02, 0.44, 0.76, 0.88),
    (4, "flagged", "substitute:0.3"): (0.01, 0.02, 0.06, 0.18, 0.00, 0.00, 0.03, 0.14),
}
_TABLE_3: Mapping[tuple[float, str], tuple[float, ...]] = {
    # (rate, method) → M = 10, 100, 1,000, 10,000
    (1e-3, "gumbel"): (0.80, 0.72, 0.67, 0.62),
    (1e-3, "greenlist"): (0.84, 0.77, 0.73, 0.68),
    (1e-6, "gumbel"): (0.61, 0.56, 0.51, 0.46),
    (1e-6, "greenlist"): (0.69, 0.64, 0.59, 0.55),
}
_MESSAGES = (10, 100, 1_000, 10_000)


_TABLE_1: Mapping[str, tuple[float, ...]] = {
    # task → accuracy of LLaMA-7B: no mark; h = 1, Gumbel and green list; h = 4, both
    "gsm8k": (0.103, 0.103, 0.111, 0.104, 0.108),
    "humaneval": (0.128, 0.128, 0.098, 0.128, 0.092),
    "mathqa": (0.030, 0.029, 0.028, 0.030, 0.028),
    "mbpp": (0.180, 0.182, 0.160, 0.178, 0.164),
    "nqopen": (0.217, 0.218, 0.195, 0.218, 0.202),
    "triviaqa": (0.569, 0.569, 0.553, 0.569, 0.551),
}
_MARKS = ((None, None), ("gumbel", 1), ("greenlist", 1), ("gumbel", 4), ("greenlist", 4))


def name_of(method: str) -> str:
    """The paper's mark that a format implements, in its first version or the second."""
    return method.removesuffix("-v2")


def utility(task: str, method: str | None, window: int | None) -> float | None:
    """A figure of Table 1 for LLaMA-7B, or None where the paper has none; tasks by lm_eval's names, or nearly so."""
    row, method = _TABLE_1.get(task.replace("_", "")), method and name_of(method)
    return row[_MARKS.index((method, window))] if row is not None and (method, window) in _MARKS else None


def robustness(method: str, strength: float, window: int, measure: str, attack: str | None) -> float | None:
    """A figure of Table 2, or None where the paper has none."""
    row = _TABLE_2.get((window, measure, attack))
    columns = [(name, strength) for name, strengths in _STRENGTHS.items() for strength in strengths]
    mine = (name_of(method), strength)
    return row[columns.index(mine)] if row is not None and mine in columns else None


def identification(method: str, messages: int, false_positive_rate: float) -> float | None:
    """A figure of Table 3, or None where the paper has none."""
    row = _TABLE_3.get((false_positive_rate, name_of(method)))
    return row[_MESSAGES.index(messages)] if row is not None and messages in _MESSAGES else None
