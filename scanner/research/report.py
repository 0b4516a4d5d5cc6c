"""Write the experiments for readers: tables in Markdown beside the paper's own figures, and plots.

Plots are PNG bytes. They need matplotlib, which the extra `audit` installs.
"""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scanner.research.robustness import NOT_MARKED
from scanner.research.scores import FLAG_RATE, SCORED_CLASSES, Figure
from scanner.watermark.formats import FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_STRENGTHS = {"gumbel": (0.8, 0.9, 1.0, 1.1), "greenlist": (1.0, 2.0, 3.0, 4.0)}
_PUBLISHED_TABLE_2: Mapping[tuple[int, str, str | None], tuple[float, ...]] = {
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
    """Return the paper's mark that a format implements, in its first version or the third."""
    return method.removesuffix("-v3")


def utility(task: str, method: str | None, window: int | None) -> float | None:
    """Return a figure of Table 1 for LLaMA-7B. None: the paper has none.

    task: by its name in lm_eval, or nearly so.
    """
    row, method = _TABLE_1.get(task.replace("_", "")), method and name_of(method)
    return row[_MARKS.index((method, window))] if row is not None and (method, window) in _MARKS else None


def robustness(method: str, strength: float, window: int, measure: str, attack: str | None) -> float | None:
    """Return a figure of Table 2. None: the paper has none."""
    row = _PUBLISHED_TABLE_2.get((window, measure, attack))
    columns = [(name, strength) for name, strengths in _STRENGTHS.items() for strength in strengths]
    mine = (name_of(method), strength)
    return row[columns.index(mine)] if row is not None and mine in columns else None


def identification(method: str, messages: int, false_positive_rate: float) -> float | None:
    """Return a figure of Table 3. None: the paper has none."""
    row = _TABLE_3.get((false_positive_rate, name_of(method)))
    return row[_MESSAGES.index(messages)] if row is not None and messages in _MESSAGES else None


_PAPERS_ATTACK = "substitute:0.3"


def robustness_png(figures: Sequence[Figure]) -> bytes | None:
    """Draw TPR against similarity, or against strength if no similarity was measured.

    There is a panel for each method, and a line for each window. None: there is nothing to draw.
    """
    from matplotlib.figure import Figure as Drawing

    rows = [row for row in figures if row["experiment"] == "robustness" and row["method"]]
    if not rows:
        return None
    drawing = Drawing(figsize=(11, 4.5), layout="constrained")
    axes = drawing.subplots(1, 2, sharey=True)
    similar = any(row["measure"] == "similarity" for row in rows)
    for ax, method in zip(axes, STRENGTHS, strict=True):
        mine = [row for row in rows if name_of(row["method"]) == method]
        for i, window in enumerate(sorted({row["window"] for row in mine})):
            window_rows = [row for row in mine if row["window"] == window]
            for attack, line in ((None, "-"), (_PAPERS_ATTACK, ":")):
                flagged = _by_strength(window_rows, "flagged", attack)
                across = _by_strength(window_rows, "similarity" if similar else "flagged", None)
                strengths = [key for key in flagged if key in across]
                x = [across[key]["value"] if similar else key for key in strengths]
                label = f"h = {window}" + ("" if attack is None else ", 30 % replaced")
                _draw(ax, x, [flagged[key] for key in strengths], f"C{i}", line, label)
        ax.set(title=FORMATS[method].title, xlabel="S-BERT similarity to unmarked text" if similar else "strength")
    axes[0].set(ylabel="share flagged", ylim=(-0.02, 1.02))
    axes[0].legend(fontsize=8)
    return _png(drawing)


def identification_png(figures: Sequence[Figure]) -> bytes | None:
    """Draw the share of texts whose user is named against the number of users, by method and rate.

    None: there is nothing to draw.
    """
    from matplotlib.figure import Figure as Drawing

    rows = [
        row
        for row in figures
        if row["measure"] == "found" and row["least_scored"] is None and row["most_scored"] is None
    ]
    if not rows:
        return None
    drawing = Drawing(figsize=(7, 4.5), layout="constrained")
    ax = drawing.subplots()
    for i, method in enumerate(STRENGTHS):
        for rate, line in zip(
            sorted({row["false_positive_rate"] for row in rows}), ("--", "-", ":", "-."), strict=False
        ):
            mine = [row for row in rows if (name_of(row["method"]), row["false_positive_rate"]) == (method, rate)]
            _draw(ax, [row["messages"] for row in mine], mine, f"C{i}", line, f"{FORMATS[method].title}, FPR {rate:g}")
    ax.set(xscale="log", xlabel="users", ylabel="share of texts whose user is named", ylim=(-0.02, 1.02))
    ax.legend(fontsize=8)
    return _png(drawing)


def _by_strength(rows: Sequence[Figure], measure: str, attack: str | None) -> dict[float, Figure]:
    chosen = [row for row in rows if row["measure"] == measure and row["attack"] == attack]
    return {strength(row): row for row in sorted(chosen, key=strength)}


def _draw(ax: "Axes", x: Sequence[float], rows: Sequence[Figure], colour: str, line: str, label: str) -> None:
    if not rows:
        return
    y = np.array([row["value"] for row in rows])
    limits = np.array([[row["low"], row["high"]] for row in rows]).T
    bars = np.maximum([y - limits[0], limits[1] - y], 0.0)
    ax.errorbar(x, y, yerr=bars, color=colour, linestyle=line, marker="o", markersize=3, capsize=2, label=label)


def _png(drawing: "Drawing") -> bytes:
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


STRENGTHS = {"gumbel": "Gumbel θ", "greenlist": "green list δ"}
"""Parameter that the experiments vary for each of the paper's marks, in the paper's order."""

_TABLE_2 = (
    ("S-BERT similarity", "similarity", None),
    ("TPR", "flagged", None),
    ("TPR, 30 % replaced", "flagged", "substitute:0.3"),
)
"""Rows of the paper's Table 2: name, measure, attack."""

_HOW_TO_READ = (
    "Every figure has its 95 % interval: Clopper and Pearson's at the effective number of texts for a share, "
    "Student's for a mean. Texts of one prompt, one key or one user count as alike. Texts too short for a scan count "
    "as not flagged. The paper's figures are from a different model (Guanaco-7B) and different prompts."
)
_NAMING = (
    "Share of texts whose user is named. `wrong`: somebody else is named. `ambiguous`: the text is flagged but no "
    "user is named, because several messages of version 1 pass, or no message of version 3 passes by its own steps. "
    "Both are counts of texts, with the limits of their share. Under version 3, more than 65,536 messages are "
    "searched in separate texts, under a key with groups."
)

_LONG_MESSAGES = 100_000  # number of messages for which long texts are reported

_PAIRED = (
    "Share of answers that are right. Each mark is compared with unmarked answers of the same decoding, document by"
    " document (McNemar's exact test)."
)


def report(figures: Sequence[Figure], heading: Sequence[str]) -> str:
    """Write the whole report."""
    parts = ["# Evaluation", "\n".join(heading), _HOW_TO_READ]
    robust = _where(figures, experiment="robustness")
    if robust:
        parts += _robustness(robust)
    named = _where(figures, experiment="identification")
    if named:
        parts += _identification(named)
    answered = _where(figures, experiment="utility")
    if answered:
        parts += _utility(answered)
    return "\n\n".join(parts) + "\n"


def _robustness(rows: Sequence[Figure]) -> list[str]:
    marked = [row for row in rows if row["method"]]
    rate = _where(marked, measure="flagged")[0]["false_positive_rate"]
    parts = [f"## Robustness (the paper's Table 2): TPR at a false-positive rate of {rate:g}"]
    for window in sorted({row["window"] for row in marked}):
        cells = _cells(_where(marked, window=window))
        head = ["", *(f"{STRENGTHS[name_of(method)]} {strength:g}" for method, strength in cells)]
        counted = [_where(cell, measure="scored")[0] for cell in cells.values()]
        parts += [f"### Window h = {window}", table([head, *_table_2(window, cells)]), _clusters(counted)]
        attacks = dict.fromkeys(row["attack"] for row in _where(marked, window=window, measure="flagged"))
        in_table_2 = {attack for _, _, attack in _TABLE_2}
        named = [
            (name, "unmarked text, same keys" if name == NOT_MARKED else name)
            for name in attacks
            if name not in in_table_2
        ]
        lines = [
            [first_column, *(show(single_figure(cell, measure="flagged", attack=name)) for cell in cells.values())]
            for name, first_column in named
        ]
        if lines:
            parts.append(table([["share flagged after", *head[1:]], *lines]))
    baseline = [row for row in rows if row["method"] is None]
    if baseline:
        lines = [[f"{row['temperature']:g}", show(row)] for row in baseline]
        parts += ["### Baseline: similarity of two unmarked samples", table([["temperature", "similarity"], *lines])]
        parts.append(_clusters(baseline))
    return parts


def _table_2(window: int, cells: dict[tuple[str, float], list[Figure]]) -> list[list[str]]:
    lines = []
    for name, measure, attack in _TABLE_2:
        row = [single_figure(cell, measure=measure, attack=attack) for cell in cells.values()]
        if any(row):
            theirs = [robustness(*key, window, measure, attack) for key in cells]
            lines += [[name, *map(show, row)], *_paper_row(["*in the paper*"], theirs)]
    for name, measure in (("scored tokens", "scored"), ("written tokens", "tokens")):
        lines.append([name, *(show(single_figure(cell, measure=measure), 0) for cell in cells.values())])
    return lines


def _identification(rows: Sequence[Figure]) -> list[str]:
    every = [row for row in rows if row["least_scored"] is None and row["most_scored"] is None]
    found_rows = _where(every, measure="found")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    counts = sorted({row["messages"] for row in found_rows})
    rates = sorted({row["false_positive_rate"] for row in found_rows}, reverse=True)
    lines = [["FPR", "method", "", *(f"M = {count:,}" for count in counts)]]
    for rate in rates:
        for method in methods:
            mine = _where(every, method=method, false_positive_rate=rate)
            for measure, in_words in (("found", show), ("wrong", show_count), ("ambiguous", show_count)):
                cells = [in_words(single_figure(mine, measure=measure, messages=count)) for count in counts]
                lines.append([f"{rate:g}", FORMATS[method].title, measure, *cells])
            theirs = [identification(method, count, rate) for count in counts]
            lines += _paper_row(["", "", "*found, in the paper*"], theirs)
    parts = ["## Identification (the paper's Table 3)", _NAMING, table(lines)]
    parts += [_clusters(_where(every, measure="flagged")), *_long(rows, methods, counts, rates)]
    for method in methods:
        for rate in rates:
            parts += [f"### By length: {FORMATS[method].title}, FPR {rate:g}"]
            parts += [_by_length(_where(rows, method=method), rate, counts)]
    return parts


def _long(
    rows: Sequence[Figure], methods: Sequence[str], counts: Sequence[int], rates: Sequence[float]
) -> tuple[str, str]:
    """Compare both formats on long texts, which show most, and write how many of these named another user."""
    least, limit = SCORED_CLASSES[-1]
    count = _LONG_MESSAGES if _LONG_MESSAGES in counts else counts[-1]
    named = [f"found, M = {count:,}, FPR {rate:g}" for rate in rates]
    lines = [["method", "texts", f"TPR at {FLAG_RATE:g}, M = 1", *named, "wrong, maximum over M and FPR"]]
    for method in methods:
        mine = _where(rows, method=method, least_scored=least, most_scored=limit)
        flagged = _where(mine, measure="flagged")[0]
        found_row = [single_figure(mine, measure="found", messages=count, false_positive_rate=rate) for rate in rates]
        wrong = max(_where(mine, measure="wrong"), key=lambda row: row["hits"])
        texts = f"{flagged['n']} of {flagged['clusters']}"
        lines.append([FORMATS[method].title, texts, show(flagged), *map(show, found_row), show_count(wrong)])
    return f"### Texts of at least {least} scored tokens", table(lines)


def _by_length(rows: Sequence[Figure], rate: float, counts: Sequence[int]) -> str:
    named = [f"found, M = {count:,}" for count in counts]
    lines = [["scored tokens", "texts", f"flagged at {FLAG_RATE:g}, M = 1", *named, "wrong, maximum over M"]]
    for least, limit in SCORED_CLASSES:
        length_rows = [row for row in rows if (row["least_scored"], row["most_scored"]) == (least, limit)]
        flagged = _where(length_rows, measure="flagged")[0]
        found_row = [
            single_figure(length_rows, measure="found", false_positive_rate=rate, messages=count) for count in counts
        ]
        wrong = max(row["hits"] for row in _where(length_rows, measure="wrong", false_positive_rate=rate))
        label = "all" if least is None else f"{least} or more" if limit is None else f"{least} to {limit}"
        lines.append([label, str(flagged["n"]), show(flagged), *map(show, found_row), str(wrong)])
    return table(lines)


def _utility(rows: Sequence[Figure]) -> list[str]:
    parts = ["## Utility (the paper's Table 1)", _PAIRED]
    lines = [["task", "documents", "method", "h", "decoding", "right", "p of no change", "*in the paper, 7B*"]]
    for row in rows:
        decoding = f"θ = {row['temperature']:g}" if row["temperature"] else "greedy"
        p = "" if row["p_value"] is None else f"{row['p_value']:.2g}"
        name = "not marked" if row["method"] is None else FORMATS[row["method"]].title
        window = "" if row["window"] is None else str(row["window"])
        # the paper does not say how unmarked answers were decoded, and has one row of them
        is_published = row["method"] or not row["temperature"]
        theirs = _in_paper(utility(row["task"], row["method"], row["window"]) if is_published else None, 3)
        lines.append([row["task"], str(row["n"]), name, window, decoding, show(row, 3), p, theirs])
    return [*parts, table(lines)]


def show(row: Figure | None, digits: int = 2) -> str:
    """Write a figure with its limits, for example `0.62 (0.55–0.68)`."""
    if row is None or row["value"] is None:
        return "–"
    low, high = ("?" if limit is None else f"{limit:.{digits}f}" for limit in (row["low"], row["high"]))
    return f"{row['value']:.{digits}f} ({low}–{high})"


def show_count(row: Figure | None) -> str:
    """Write a count, its total, and the limits of the share."""
    if row is None or row["value"] is None:
        return "–"
    return f"{row['hits']}/{row['n']} ({row['low']:.2g}–{row['high']:.2g})"


def table(lines: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table. The first line is its head."""
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


def strength(row: Figure) -> float:
    """Return the parameter that the paper varies: δ of a mark that has one, or else the temperature."""
    value: float = row["temperature"] if row["delta"] is None else row["delta"]
    return value


def single_figure(rows: Sequence[Figure], **values: float | str | None) -> Figure | None:
    """Return the first row with these values."""
    return next(iter(_where(rows, **values)), None)


def _where(rows: Sequence[Figure], **values: float | str | None) -> list[Figure]:
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def _cells(rows: Sequence[Figure]) -> dict[tuple[str, float], list[Figure]]:
    keys = {(row["method"], strength(row)) for row in rows}
    ordered = sorted(keys, key=lambda key: (list(STRENGTHS).index(name_of(key[0])), key[1]))
    return {key: [row for row in rows if (row["method"], strength(row)) == key] for key in ordered}


def _paper_row(head: list[str], values: Sequence[float | None]) -> list[list[str]]:
    """Write the paper's row beside ours: none where the paper has no figure of it."""
    return [[*head, *map(_in_paper, values)]] if any(value is not None for value in values) else []


def _in_paper(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"*{value:.{digits}f}*"


def _clusters(rows: Sequence[Figure]) -> str:
    return "n: " + "; ".join(dict.fromkeys(f"{row['n']} texts of {row['clusters']}" for row in rows)) + "."
