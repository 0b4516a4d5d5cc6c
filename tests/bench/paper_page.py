"""The page of the paper's tables and figures beside ours: Markdown, two drawings, and the figure's numbers as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from scipy import stats

from scanner.audit.statistics.judgement import binomial_limits, few_clusters
from scanner.research.report import STRENGTHS, identification, report, robustness, strength, table, utility
from scanner.research.scores import LIMIT_RISK
from scanner.watermark.formats import FORMATS

Kept = Mapping[str, Any]

TABLES = ("utility", "robustness", "identification")
PANELS = (("z", "none", "z-test"), ("exact", "none", "exact"), ("exact", "ngram", "exact, repeats left out"))


def write_page(path: Path, found: Mapping[str, Kept]) -> Path:
    """Write the page, with drawings and numbers in a folder beside it that is named as the page is.

    Args:
        path: the Markdown file.
        found: what each step kept, by its name; steps that were not run are missing.
    """
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)

    def made(step: str) -> str:
        kept = found[step]
        command = (
            f"python -m tests.bench.paper --steps {step}{kept['options']}"
            if kept["options"]
            else f"make paper STEPS={step}"
        )
        minutes = max(round(kept["minutes"]), 1)
        return f". `{command}`, seed `{kept['seed']}`, {minutes} minute{'s' * (minutes != 1)}."

    def not_run(step: str) -> str:
        return f"**Not run yet**: `make paper STEPS={step}` runs it."

    tables = {step: found[step]["table"] for step in TABLES if step in found}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    text = environment.get_template("paper.md.j2").render(
        folder=folder.name,
        made=made,
        not_run=not_run,
        figure=_figure(found["false-positives"], folder, "") if "false-positives" in found else None,
        native_figure=_figure(found["false-positives-3"], folder, "-3") if "false-positives-3" in found else None,
        utility_of_the_paper=_utility_of_the_paper(),
        robustness_of_the_paper=_robustness_of_the_paper(),
        directions=_directions(found["robustness"]["rows"]) if "robustness" in found else None,
        seven=_with_a_model_of_7b(),
        identification_of_the_paper=_identification_of_the_paper(),
        strengths=found.get("strengths"),
        strength_table=_strengths(found["strengths"]["rows"]) if "strengths" in found else None,
        native_identification=found["identification-3"]["table"] if "identification-3" in found else None,
        scores=found.get("scores"),
        tokens=found.get("tokens"),
        **{step: tables.get(step) for step in TABLES},
    )
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    path.write_text(text.strip() + "\n", encoding="utf-8")
    return path


def limits(row: Kept) -> tuple[float, float]:
    """Limits of the hits of a row of AUDITS, with keys as clusters: 95 %, of this row alone."""
    effect = row["design_effect"] * few_clusters(row["clusters"], LIMIT_RISK)
    low, high = binomial_limits(row["hits"] / effect, row["tests"] / effect, LIMIT_RISK)
    return low * row["tests"], high * row["tests"]


def _figure(kept: Kept, folder: Path, which: str) -> dict[str, Any]:
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
    counts = {"pieces": kept["pieces"], "tests": rows[0]["tests"], "of_keys": rows[0]["clusters"]}
    counts |= {"between": sum(between), "telling": len(telling), "mute": len(left_out) - len(telling)}
    return counts | {"ratios": ratios, "told": TOLD_APART}


TOLD_APART = 3
"""Times of the expected count, or parts of it, that a cell must tell from the expected one to be counted."""


def tells(row: Kept) -> bool:
    """Whether limits would leave out TOLD_APART times, and one in TOLD_APART, of a count that is as expected."""
    low, high = limits(row | {"hits": row["expected"]})
    return bool(row["expected"] <= TOLD_APART * low and high <= TOLD_APART * row["expected"])


def _ratios(rows: Sequence[Kept], threshold: float) -> str:
    of = {
        (row["method"], row["window"], row["test"], row["dedup"]): row
        for row in rows
        if np.isclose(row["threshold"], threshold, rtol=1e-6, atol=0.0)
    }
    lines = [["method", "window", *(words for *_, words in PANELS)]]
    for method, window in dict.fromkeys((row["method"], row["window"]) for row in rows):
        cells = [_times(of[method, window, test, dedup]) for test, dedup, _ in PANELS]
        lines.append([FORMATS[method].title, str(window), *cells])
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
        for method, of_method in zip(methods, axes, strict=True):
            for (test, dedup, words), ax in zip(PANELS, of_method, strict=True):
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


def reported(rows: Sequence[Kept]) -> str:
    """The tables that `brickscan evaluate` reports of a step, without its headings of sections."""
    whole = report(rows, [])
    return whole.split("\n## ", 1)[1].split("\n", 1)[1].strip()


def _directions(rows: Sequence[Kept]) -> str:
    """What the paper's Table 2 shows of the strength, the window and the attack, and whether ours shows it.

    Ours are the shares of all texts of a method at its weakest and strongest setting, or its narrowest and widest
    window, together; `shown` where the exact limits of both are apart.
    """
    lines = [["in the paper", "mark", "ours", ""]]
    for method in STRENGTHS:
        mine = [row for row in rows if row["method"] == method and row["measure"] == "flagged"]
        plain = [row for row in mine if row["attack"] is None]
        replaced = [row for row in mine if row["attack"] == "substitute:0.3"]
        for words, some, key in (
            ("more are found with strength", plain, strength),
            ("more are found with the window", plain, lambda row: row["window"]),
            ("more are found with strength, 30 % replaced", replaced, strength),
        ):
            least, most = (pick(key(row) for row in some) for pick in (min, max))
            ends = [[row for row in some if key(row) == end] for end in (least, most)]
            lines.append([words, FORMATS[method].title, *_compared(*ends)])
        lines.append(["fewer are found with 30 % replaced", FORMATS[method].title, *_compared(replaced, plain)])
    return table(lines)


def _compared(less: Sequence[Kept], more: Sequence[Kept]) -> tuple[str, str]:
    """Shares of two sets of rows in words, and whether the second is larger."""
    counts = [(sum(row["hits"] for row in rows), sum(row["n"] for row in rows)) for rows in (less, more)]
    (low, until), (begin, high) = (binomial_limits(hits, n, LIMIT_RISK) for hits, n in counts)
    shown = "shown" if until < begin else "the other way" if high < low else "not shown"
    return " → ".join(f"{hits} of {n}" for hits, n in counts), shown


def _with_a_model_of_7b() -> str:
    """Hours of one GPU for the paper's completions, computed from what makers state of the GPUs: an estimate.

    A step of decoding reads all weights and the cache of every row, and multiplies; the slower of both, added up,
    bounds it. 7e9 parameters of two bytes; 32 layers of 4,096 keys and values of two bytes a token.
    """
    parameters, rows, context = 7e9, 256, 200
    read = 2 * parameters + rows * context * 2 * 32 * 4096 * 2
    tokens = {"Table 2": 24 * 10_000 * 256, "Table 3": 2 * 100_000 * 149}
    lines = [["GPU", "bytes a second", "flops a second, of which 40 % are reached", "tokens a second", *tokens]]
    for gpu, bandwidth, flops in (("A100, 80 GB", 2.0e12, 312e12), ("H100", 3.35e12, 989e12), ("H200", 4.8e12, 989e12)):
        rate = rows / (read / bandwidth + 2 * parameters * rows / (0.4 * flops))
        hours = (f"{count / rate / 3600:.1f} h" for count in tokens.values())
        lines.append([gpu, f"{bandwidth:.3g}", f"{flops:.3g}", f"{rate:,.0f}", *hours])
    return table(lines)


def _utility_of_the_paper() -> str:
    marks: list[tuple[str, str | None, int | None]] = [("no mark", None, None)]
    marks += [(f"{FORMATS[mark].title}, h = {window}", mark, window) for window in (1, 4) for mark in STRENGTHS]
    tasks = ("gsm8k", "humaneval", "mathqa", "mbpp", "nqopen", "triviaqa")
    return table([["", *tasks], *([words, *(_share(utility(task, *of)) for task in tasks)] for words, *of in marks)])


def _robustness_of_the_paper() -> str:
    settings = [("gumbel", s) for s in (0.8, 0.9, 1.0, 1.1)] + [("greenlist", s) for s in (1.0, 2.0, 3.0, 4.0)]
    measures = (
        ("S-BERT", "similarity", None),
        ("TPR at 1e-5", "flagged", None),
        ("TPR at 1e-5, 30 % replaced", "flagged", "substitute:0.3"),
    )
    return table(
        [
            ["h", "", *(f"{STRENGTHS[method]} {strength:g}" for method, strength in settings)],
            *(
                [str(window), words, *(_share(robustness(*s, window, measure, attack)) for s in settings)]
                for window in (0, 1, 4)
                for words, measure, attack in measures
            ),
        ]
    )


def _identification_of_the_paper() -> str:
    counts = (10, 100, 1000, 10_000)
    return table(
        [
            ["FPR", "method", *(f"M = {count:,}" for count in counts)],
            *(
                [f"{rate:g}", FORMATS[mark].title, *(_share(identification(mark, count, rate)) for count in counts)]
                for rate in (1e-3, 1e-6)
                for mark in STRENGTHS
            ),
        ]
    )


def _strengths(rows: Sequence[Kept]) -> str:
    """Return what each strength flags, and how similar its texts are to unmarked ones."""
    plain = {(row["method"], strength(row), row["measure"]): row for row in rows if row["method"] and not row["attack"]}
    lines = [["mark", "texts", "flagged at 1e-05", "S-BERT similarity"]]
    for method, value in dict.fromkeys((method, value) for method, value, _ in plain):
        flagged, similar = (plain.get((method, value, measure)) for measure in ("flagged", "similarity"))
        if flagged is not None:
            shares = [
                "" if row is None else f"{row['value']:.2f} ({row['low']:.2f}–{row['high']:.2f})"
                for row in (flagged, similar)
            ]
            lines.append([f"{STRENGTHS[method]} {value:g}", str(flagged["n"]), *shares])
    return table(lines)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def tokens_table(rows: Sequence[Kept]) -> str:
    """Tokens that the theory asks for beside those that were needed; rows: as of tests.bench.paper.run_tokens."""
    head = ["θ", "texts", "mean −p ln p, nats", "the theory asks for", "half of the texts first had it after", "never"]
    lines = [head]
    for row in rows:
        needed = np.sort([np.inf if count is None else count for count in row["needed"]])
        low, high = stats.binom.interval(0.95, len(needed), 0.5)
        at = (np.ceil(len(needed) / 2) - 1, max(low - 1, 0), min(high, len(needed) - 1))
        middle, first, last = ("never" if np.isinf(needed[int(i)]) else f"{needed[int(i)]:,.0f}" for i in at)
        about = [f"{row['temperature']:g}", str(len(needed)), f"{row['entropy']:.3f}", f"{row['theory']:,}"]
        lines.append([*about, f"{middle} ({first} to {last})", str(int(np.isinf(needed).sum()))])
    return table(lines)
