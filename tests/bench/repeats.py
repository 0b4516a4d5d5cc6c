"""Both ways of the paper to leave repeats out, on the texts of Table 2, and an unmarked text that repeats mark.

The paper says of the second way that it counts more n-grams, and so finds more ("Rectifying the Detection Scores").
Its Figure 3 is an unmarked text whose repeats, each counted, give a p of 1e-21.
"""

import collections
from typing import Any

import numpy as np

from scanner.research.plan import EvaluationPlan
from scanner.research.runs import read_cell
from scanner.research.scores import mean, score_each, score_one, share
from scanner.research.units import WrittenTexts
from scanner.text import load_tokenizer
from scanner.watermark import Dedup, select_documents

RATE = 1e-6

WAYS: tuple[Dedup, ...] = ("context", "ngram")
"""The paper's first way, by the window alone, and its second, by window and token."""


def measure_repeats(plan: EvaluationPlan, texts: WrittenTexts) -> dict[str, Any]:
    """Score the texts of Table 2 in both ways, and find the unmarked text of smallest p when all repeats count.

    Returns:
        rows: of each cell and way, tokens scored and texts flagged at RATE, with their limits.
        prompts: prompts of the texts.
        signs: window, prompts of whose texts under it the second way flags more, and fewer, of each window.
        example: that text, its mark, and its log10 p as repeats count and do not; tests: of how many it is the least.
    """
    tokenizer = load_tokenizer(plan.tokenizer, plan.tokenizer_sha256)
    rows: list[dict[str, Any]] = []
    more = collections.Counter[tuple[int, str]]()  # texts, by window and prompt, that the second way alone flags
    for cell in plan.robustness:
        read = read_cell(cell, texts)
        window = cell.setting.columns()["window"]
        marks, tokens = read.watermarks(plan.config.seed), tokenizer.encode(read.texts)
        for sign, way in zip((-1, 1), WAYS, strict=True):
            log10_p, scored = score_each(marks, tokens, 0, 0, way)
            counted = mean(scored.astype(np.float64), *read.clusters)
            is_flagged = log10_p <= np.log10(RATE)
            flagged = share(is_flagged, *read.clusters)
            for prompt, flag in zip(read.prompts, is_flagged.tolist(), strict=True):
                more[window, prompt] += sign * flag
            limits = {"scored_low": counted.low, "scored_high": counted.high}
            rows.append(
                cell.setting.columns()
                | {"way": way, "scored": counted.value, **limits, "hits": flagged.hits, "n": flagged.n}
                | {"value": flagged.value, "low": flagged.low, "high": flagged.high, "clusters": read.units}
            )
    signs = []
    for window in sorted({window for window, _ in more}):
        counts = [count for (other, _), count in more.items() if other == window]
        signs.append((window, sum(count > 0 for count in counts), sum(count < 0 for count in counts)))
    prompts = len({prompt for _, prompt in more})
    return {"rows": rows, "example": _example(plan, texts), "signs": signs, "prompts": prompts}


def _example(plan: EvaluationPlan, texts: WrittenTexts) -> dict[str, Any]:
    """Return the unmarked text of smallest p, all repeats counted, under any key of a cell of green lists."""
    tokenizer = load_tokenizer(plan.tokenizer, plan.tokenizer_sha256)
    unmarked = [text for first, _ in plan.unmarked for text in read_cell(first, texts).texts]
    tokens, tests, least = tokenizer.encode(unmarked), 0, dict[str, Any]()
    window, cell = min(
        ((cell.setting.columns()["window"], cell) for cell in plan.robustness if cell.setting.delta is not None),
        key=lambda both: abs(both[0] - 2),  # type: ignore[operator]  # the paper's has a window of 2
    )
    read = read_cell(cell, texts)
    keys = dict(zip(read.keys, read.watermarks(plan.config.seed), strict=True))
    for key, mark in sorted(keys.items()):
        log10_p, repeated = score_one(mark, tokens, 0, 0, "none")
        tests += len(unmarked)
        at = int(log10_p.argmin())
        if not least or log10_p[at] < least["log10_p"]:
            once, scored = score_one(mark, select_documents(tokens, np.array([at])), 0, 0)
            least = {"text": unmarked[at], "key": key, "log10_p": float(log10_p[at])}
            least |= {
                "log10_p_once": float(once[0]),
                "once": int(scored[0]),
                "window": window,
                "scored": int(repeated[at]),
            }
    return least | {"tests": tests}
