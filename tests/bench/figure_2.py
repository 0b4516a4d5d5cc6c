"""Figure 2 of the paper: how many unmarked texts reach a p-value, drawn, as numbers and in words."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scanner.audit.statistics.judgement import binomial_limits, few_clusters
from scanner.research.report import table
from scanner.research.scores import LIMIT_RISK
from scanner.watermark.formats import FORMATS

Kept = Mapping[str, Any]

PANELS = (("z", "none", "z-test"), ("exact", "none", "exact"), ("exact", "ngram", "exact, repeats left out"))


def limits(row: Kept) -> tuple[float, float]:
    """Limits of the hits of a row of AUDITS, with keys as clusters: 95 %, of this row alone."""
    effect = row["design_effect"] * few_clusters(row["clusters"], LIMIT_RISK)
    low, high = binomial_limits(row["hits"] / effect, row["tests"] / effect, LIMIT_RISK)
    return low * row["tests"], high * row["tests"]


def show_figure(kept: Kept, folder: Path, which: str) -> dict[str, Any]:
    """Write the drawings and the numbers of Figure 2 to a folder, and return what the page says of them.

    which: what is added to the names of its files; a figure with such an addition is not drawn.
    """
    rows = kept["rows"]
    for scheme in () if which else ("light", "dark"):
        (folder / f"false-positives-{scheme}.svg").write_text(draw(rows, scheme), encoding="utf-8")
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0], "low", "high"], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        low, high = limits(row)
        writer.writerow(row | {"low": f"{low:.6g}", "high": f"{high:.6g}"})
    (folder / f"false-positives{which}.csv").write_text(text.getvalue(), encoding="utf-8")
    ratios = [(f"{threshold:g}", _ratios(rows, threshold)) for threshold in (1e-3, 1e-5)]
    left_out = [row for row in rows if (row["test"], row["dedup"]) == PANELS[-1][:2]]
    telling = [row for row in left_out if tells(row)]
    between = [limits(row)[0] <= row["expected"] <= limits(row)[1] for row in telling]
    counts = {"pieces": kept["pieces"], "tests": rows[0]["tests"], "clusters": rows[0]["clusters"]}
    counts |= {"between": sum(between), "telling": len(telling), "mute": len(left_out) - len(telling)}
    return counts | {"ratios": ratios, "told": TOLD_APART}


TOLD_APART = 3
"""Times of the expected count, or parts of it, that a cell must tell from the expected one to be counted."""


def tells(row: Kept) -> bool:
    """Whether limits would leave out TOLD_APART times, and one in TOLD_APART, of a count that is as expected."""
    low, high = limits(row | {"hits": row["expected"]})
    return bool(row["expected"] <= TOLD_APART * low and high <= TOLD_APART * row["expected"])


def _ratios(rows: Sequence[Kept], threshold: float) -> str:
    cells = {
        (row["method"], row["window"], row["test"], row["dedup"]): row
        for row in rows
        if np.isclose(row["threshold"], threshold, rtol=1e-6, atol=0.0)
    }
    lines = [["method", "window", *(words for *_, words in PANELS)]]
    for method, window in dict.fromkeys((row["method"], row["window"]) for row in rows):
        times = [_times(cells[method, window, test, dedup]) for test, dedup, _ in PANELS]
        lines.append([FORMATS[method].title, str(window), *times])
    return table(lines)


def _times(row: Kept) -> str:
    low, high = limits(row)
    shown = (f"{count / row['expected']:,.0f}" if count >= 10 * row["expected"] else f"{count / row['expected']:.2g}" for count in (row["hits"], low, high))  # fmt: skip # noqa: E501
    mute = ": cannot tell" if low <= row["expected"] <= high and not tells(row) else ""
    return "{} ({} to {}{})".format(*shown, mute) + f", {row['hits']:,} hits"


def draw(rows: Sequence[Mapping[str, Any]], scheme: str) -> str:
    """The figure as SVG: a row a method, a panel a test, a line a window; scheme: light or dark."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    ink, ground = ("#1c1c1a", "#ffffff") if scheme == "light" else ("#ebe9e4", "#171715")
    style = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), ink)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    with mpl.rc_context(style | {"svg.hashsalt": "paper", "svg.fonttype": "none", "axes.facecolor": ground}):
        drawing = Drawing(figsize=(11, 3.6 * len(methods)), layout="constrained", facecolor=ground)
        axes = drawing.subplots(len(methods), len(PANELS), squeeze=False, sharex=True, sharey=True)
        for method, panels in zip(methods, axes, strict=True):
            for (test, dedup, words), ax in zip(PANELS, panels, strict=True):
                mine = [row for row in rows if (row["method"], row["test"], row["dedup"]) == (method, test, dedup)]
                for i, window in enumerate(sorted({row["window"] for row in mine})):
                    line = [row for row in mine if row["window"] == window and row["hits"]]
                    x = np.array([row["threshold"] for row in line])
                    y = np.array([row["hits"] / row["tests"] for row in line])
                    low, high = (
                        np.array([limits(row) for row in line]).reshape(-1, 2).T / line[0]["tests"]
                        if line
                        else ((), ())
                    )
                    colour = mpl.colormaps["viridis"](0.15 + 0.8 * i / 4)
                    ax.plot(x, y, color=colour, marker="o", markersize=3, label=f"h = {window}")
                    ax.fill_between(x, np.maximum(low, 1e-7), high, color=colour, alpha=0.15)
                ax.plot([1e-6, 0.1], [1e-6, 0.1], color=ink, linestyle="--", linewidth=1)
                ax.set(xscale="log", yscale="log", title=f"{FORMATS[method].title}\n{words}", ylim=(5e-7, 1))
        axes[0, 0].legend(fontsize=8, labelcolor=ink, facecolor=ground)
        drawing.supxlabel("stated false-positive rate")
        drawing.supylabel("observed")
        buffer = io.StringIO()
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
