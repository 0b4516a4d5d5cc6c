"""The page of the paper's tables and figures beside ours: Markdown, two drawings, and the figure's numbers as CSV."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from scipy import stats

from scanner.research.report import STRENGTHS, identification, report, robustness, strength, table, utility
from scanner.watermark.formats import FORMATS
from tests.bench.figure_2 import show_figure
from tests.bench.paper_sentences import COUNT, SHARE, judge, sentences_table

Kept = Mapping[str, Any]

TEN_POINTS = 0.2
"""Width of limits that tell a difference of ten points."""

SHOWN_CHARACTERS = 300
"""Of the example of repeats."""


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
        return f". `{command}`, {minutes} minute{'s' * (minutes != 1)}."

    def not_run(step: str) -> str:
        return f"**Not run yet**: `make paper STEPS={step}` runs it."

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    text = environment.get_template("paper.md.j2").render(
        folder=folder.name,
        made=made,
        not_run=not_run,
        figure=show_figure(found["false-positives"], folder, "") if "false-positives" in found else None,
        native_figure=show_figure(found["false-positives-3"], folder, "-3") if "false-positives-3" in found else None,
        utility=_utility(found["utility"]["rows"]) if "utility" in found else None,
        published_utility=_published_utility(),
        robustness=_robustness(found["robustness"]["rows"]) if "robustness" in found else None,
        published_robustness=_published_robustness(),
        identification=_identification(found["identification"]["table"]) if "identification" in found else None,
        published_identification=_published_identification(),
        sentences=sentences_table(judge(found)),
        repeats=_repeats(found["repeats"]["rows"]) if "repeats" in found else None,
        example=_example(found["repeats"]["example"]) if "repeats" in found else None,
        seven=_with_a_model_of_7b(),
        strengths=found.get("strengths"),
        strength_table=_strengths(found["strengths"]["rows"]) if "strengths" in found else None,
        native_identification=(
            found["identification-3"]["table"].split("\n### By length")[0].split("\n\n", 1)[1]  # as read above
            if "identification-3" in found
            else None
        ),
        scores=found.get("scores"),
        tokens=found.get("tokens"),
    )
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    path.write_text(text.strip() + "\n", encoding="utf-8")
    return path


def reported(rows: Sequence[Kept]) -> str:
    """The tables that `brickscan evaluate` reports of a step, without its headings of sections."""
    whole = report(rows, [])
    return whole.split("\n## ", 1)[1].split("\n", 1)[1].strip()


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


def _published_utility() -> str:
    marks: list[tuple[str, str | None, int | None]] = [("no mark", None, None)]
    marks += [(f"{FORMATS[mark].title}, h = {window}", mark, window) for window in (1, 4) for mark in STRENGTHS]
    tasks = ("gsm8k", "humaneval", "mathqa", "mbpp", "nqopen", "triviaqa")
    return table([["", *tasks], *([words, *(_share(utility(task, *of)) for task in tasks)] for words, *of in marks)])


def _published_robustness() -> str:
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


def _published_identification() -> str:
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


def _utility(rows: Sequence[Kept]) -> dict[str, Any]:
    """Return the cells that can show a fall of ten points, as a table, and how many cannot."""
    telling = [row for row in rows if row["high"] - row["low"] <= TEN_POINTS and row["value"] >= TEN_POINTS / 2]
    documents = sorted({row["n"] for row in rows})
    return {
        "table": reported(telling) if telling else "",
        "cells": len(rows),
        "mute": len(rows) - len(telling),
        "documents": " or ".join(map(str, documents)),
        "most": max(row["value"] for row in rows),
        "widest": max(row["high"] - row["low"] for row in rows),
    }


def _robustness(rows: Sequence[Kept]) -> dict[str, Any]:
    """Return each strength and window with what it does: tokens, similarity, and texts flagged after edits."""
    edits = (None, "substitute:0.1", "substitute:0.2", "substitute:0.3")
    measures = [("scored", None), ("similarity", None), *(("flagged", edit) for edit in edits)]
    cells = {
        (row["method"], strength(row), row["window"], row["measure"], row["attack"]): row
        for row in rows
        if row["method"] and (row["measure"], row["attack"]) in measures
    }
    lines = [["mark", "h", "scored tokens", "S-BERT", "flagged", "10 % replaced", "20 % replaced", "30 % replaced"]]
    for method in STRENGTHS:
        for value, window in sorted({key[1:3] for key in cells if key[0] == method}):
            line = [f"{STRENGTHS[method]} {value:g}", str(window)]
            for measure in measures:
                cell = cells.get((method, value, window, *measure))
                form = COUNT if measure[0] == "scored" else SHARE
                line.append(form.format(**cell) if cell else "")
            lines.append(line)
    unmarked = [row for row in rows if row["method"] is None]
    return {
        "two_or_four": _two_or_four(cells),
        "table": table(lines),
        "n": "; ".join(dict.fromkeys(f"{row['n']} texts of {row['clusters']}" for row in cells.values())),
        "unmarked": ", ".join(f"{SHARE.format(**row)} at θ = {row['temperature']:g}" for row in unmarked),
    }


def _two_or_four(cells: Mapping[tuple[str, float, int, str, str | None], Kept]) -> list[dict[str, str]]:
    """Return what windows of 2 and 4 do under the strongest setting of each mark. Empty: one was not run."""
    both = []
    for method in STRENGTHS:
        strengths = [value for name, value, window, *_ in cells if name == method and window in (2, 4)]
        name = f"{STRENGTHS[method]} {max(strengths, default=0):g}"
        pairs = {
            words: [cells.get((method, max(strengths, default=0), window, *what)) for window in (2, 4)]
            for words, what in (
                ("edited", ("flagged", "substitute:0.2")),
                ("plain", ("flagged", None)),
                ("scored", ("scored", None)),
                ("similar", ("similarity", None)),
            )
        }
        if all(pair for whole in pairs.values() for pair in whole):
            in_words = {
                words: "{} and {}".format(
                    *((COUNT if words == "scored" else SHARE).format(**one) for one in pair if one)
                )
                for words, pair in pairs.items()
            }
            both.append({"name": name, **in_words})
    return both


def _identification(report: str) -> str:
    """Return what `brickscan evaluate` reports, with texts by length at the smallest rate alone."""
    whole, *lengths = report.split("\n### By length: ")
    rate = min((part.split("\n")[0].split("FPR ")[1] for part in lengths), key=float, default="")
    return "\n### By length: ".join([whole, *(part for part in lengths if part.split("\n")[0].endswith(f"FPR {rate}"))])


def _repeats(rows: Sequence[Kept]) -> str:
    """Return tokens scored and texts flagged at 1e-6 in both ways, by cell."""
    lines = [
        ["mark", "h", "texts", "scored, windows once", "with their token", "flagged, windows once", "with their token"]
    ]
    for by_window, by_ngram in zip(rows[::2], rows[1::2], strict=True):
        both = by_window, by_ngram
        scored = [f"{row['scored']:.0f} ({row['scored_low']:.0f}–{row['scored_high']:.0f})" for row in both]
        mark = f"{STRENGTHS[by_ngram['method']]} {strength(by_ngram):g}"
        flagged = [SHARE.format(**row) for row in both]
        lines.append([mark, str(by_ngram["window"]), str(by_ngram["n"]), *scored, *flagged])
    return table(lines)


def _example(example: Kept) -> dict[str, Any]:
    """Return an example with the beginning of its text, as a quotation in Markdown."""
    text = example["text"]
    lines = [line.replace("|", "\\|") for line in text[:SHOWN_CHARACTERS].splitlines()]
    return {**example, "quoted": "\n".join(f"    {line}".rstrip() for line in lines)}


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
