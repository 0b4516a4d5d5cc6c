"""Drawings of an audit as PNG bytes. Needs matplotlib, which the extra `audit` installs."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from scanner.audit.calibration.audit_corpus import PANELS, PieceCounts
from scanner.audit.statistics.audit_rows import Row
from scanner.audit.statistics.judgement import TOLERANCE
from scanner.watermark import Format
from scanner.watermark.formats import FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

TITLES = ("Z-test, nothing left out", "exact test, nothing left out", "exact test, repeats left out (ngram)")
BAND = 0.95


def pieces_png(found: Mapping[Format, PieceCounts], thresholds: Sequence[float]) -> bytes:
    """The paper's figure: empirical against theoretical rate, one row a format, one panel a test, all keys visible.

    Thin lines are keys, thick ones their mean; the band is Student's 95 % interval of the mean over keys.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure as Drawing

    by_method: dict[str, dict[int, PieceCounts]] = {}
    for how, counts in found.items():
        _, window, gamma = how.columns()
        by_method.setdefault(how.title + (f", γ = {gamma}" if gamma else ""), {})[window] = counts
    windows = sorted({window for of_method in by_method.values() for window in of_method})
    drawing = Drawing(figsize=(15, 5 * len(by_method)), layout="constrained")
    axes = drawing.subplots(len(by_method), len(PANELS), squeeze=False, sharex=True, sharey=True)
    for row, (name, of_method) in enumerate(by_method.items()):
        for panel in range(len(PANELS)):
            ax = axes[row, panel]
            for i, window in enumerate(windows):
                colour = colormaps["viridis"](i / max(len(windows) - 1, 1))
                _draw(ax, of_method[window], panel, thresholds, colour, f"h = {window}")
            ax.set_title(f"{name}\n{TITLES[panel]}", fontsize=10)
            ax.plot([1e-7, 1], [1e-7, 1], color="black", linestyle="--", linewidth=1)
    axes[0, 0].legend(fontsize=8)
    tests = next(iter(found.values()))
    drawing.suptitle(
        f"{len(tests.hits)} keys × {tests.tests:,} pieces of unmarked text, each test\n"
        "How often p is at or below a rate. Thin: a key. Thick: the mean of all, with its 95 % interval. Dashed: as "
        "stated; above it, p is too small",
        fontsize=11,
    )
    return _finish(drawing, axes.ravel().tolist(), 1e-7)


def _draw(
    ax: "Axes", found: PieceCounts, panel: int, thresholds: Sequence[float], colour: Sequence[float], name: str
) -> None:
    rates = found.hits[:, panel] / found.tests
    shown = np.where(rates > 0, rates, np.nan)
    for key in shown:
        ax.plot(thresholds, key, color=colour, linewidth=0.5, alpha=0.35)
    mean = rates.mean(axis=0)
    half = special.stdtrit(len(rates) - 1, (1 + BAND) / 2) * rates.std(axis=0, ddof=1) / np.sqrt(len(rates))
    mean, floor = np.where(mean > 0, mean, np.nan), 0.1 / (found.tests * len(rates))
    ax.plot(thresholds, mean, color=colour, linewidth=1.8, label=name)
    ax.fill_between(thresholds, np.maximum(mean - half, floor), mean + half, color=colour, alpha=0.15)


def law_png(rows: Sequence[Row]) -> bytes:
    """Observed over expected hits for every power of ten, with simultaneous limits, one colour a format."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(9, 5), layout="constrained")
    ax = drawing.subplots()
    totals = [row for row in rows if row["kind"] == "law_total" and row["expected"]]
    for i, method in enumerate(dict.fromkeys(row["method"] for row in totals)):
        mine = [row for row in totals if row["method"] == method]
        at = np.array([row["threshold"] for row in mine]) * (0.93 + 0.14 * i)
        ratio = np.array([row["hits"] / row["expected"] for row in mine])
        low = ratio - np.array([row["low"] / row["expected"] for row in mine])
        high = np.array([row["high"] / row["expected"] for row in mine]) - ratio
        label = f"{FORMATS[method].title}, {mine[0]['tests']:.3g} null p-values"
        ax.errorbar(at, ratio, yerr=[low, high], fmt="o", capsize=3, label=label)
    ax.axhline(1.0, color="black", linestyle="--", linewidth=1, label="as stated")
    ax.axhline(
        TOLERANCE, color="grey", linestyle=":", linewidth=1, label="a key is admitted while the limits are below"
    )
    ax.set_title(
        "How many unmarked texts reach a p-value, over how many the law expects\n"
        "Keys drawn for each text; the limits of all points hold together",
        fontsize=11,
    )
    ax.set(xscale="log", xlabel="threshold of p", ylabel="counted / expected", ylim=(0, 2.5))
    ax.legend(fontsize=9)
    return _png(drawing)


def _finish(drawing: "Drawing", axes: Sequence["Axes"], least: float) -> bytes:
    for ax in axes:
        ax.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
        ax.set(xlabel="theoretical false-positive rate", ylabel="empirical false-positive rate")
        ax.grid(alpha=0.2)
    return _png(drawing)


def _png(drawing: "Drawing") -> bytes:
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
