"""Plots of the experiments as PNG bytes. Needs matplotlib, which the extra `audit` installs."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from scanner.evaluation import paper
from scanner.evaluation.means import Figure
from scanner.evaluation.report import STRENGTHS, strength
from scanner.watermark.formats import FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing


_PAPERS_ATTACK = "substitute:0.3"


def robustness_png(figures: Sequence[Figure]) -> bytes | None:
    """TPR against similarity, or against strength where no similarity was measured; a panel a method, a line a window.

    None when there is nothing to draw.
    """
    from matplotlib.figure import Figure as Drawing

    rows = [row for row in figures if row["experiment"] == "robustness" and row["method"]]
    if not rows:
        return None
    drawing = Drawing(figsize=(11, 4.5), layout="constrained")
    axes = drawing.subplots(1, 2, sharey=True)
    similar = any(row["measure"] == "similarity" for row in rows)
    for ax, method in zip(axes, STRENGTHS, strict=True):
        mine = [row for row in rows if paper.name_of(row["method"]) == method]
        for i, window in enumerate(sorted({row["window"] for row in mine})):
            here = [row for row in mine if row["window"] == window]
            for attack, line in ((None, "-"), (_PAPERS_ATTACK, ":")):
                flagged = _by_strength(here, "flagged", attack)
                across = _by_strength(here, "similarity" if similar else "flagged", None)
                at = [key for key in flagged if key in across]
                x = [across[key]["value"] if similar else key for key in at]
                label = f"h = {window}" + ("" if attack is None else ", 30 % replaced")
                _draw(ax, x, [flagged[key] for key in at], f"C{i}", line, label)
        ax.set(title=FORMATS[method].title, xlabel="S-BERT similarity to unmarked text" if similar else "strength")
    axes[0].set(ylabel="share flagged", ylim=(-0.02, 1.02))
    axes[0].legend(fontsize=8)
    return _png(drawing)


def identification_png(figures: Sequence[Figure]) -> bytes | None:
    """Share of texts whose user is named against the number of users, by method and rate; None: nothing to draw."""
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
            mine = [row for row in rows if (paper.name_of(row["method"]), row["false_positive_rate"]) == (method, rate)]
            _draw(ax, [row["messages"] for row in mine], mine, f"C{i}", line, f"{FORMATS[method].title}, FPR {rate:g}")
    ax.set(xscale="log", xlabel="users", ylabel="share of texts whose user is named", ylim=(-0.02, 1.02))
    ax.legend(fontsize=8)
    return _png(drawing)


def _by_strength(rows: Sequence[Figure], measure: str, attack: str | None) -> dict[float, Figure]:
    found = [row for row in rows if row["measure"] == measure and row["attack"] == attack]
    return {strength(row): row for row in sorted(found, key=strength)}


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
