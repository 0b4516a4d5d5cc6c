"""The experiments as Markdown: the paper's tables, each figure with its 95 % interval, beside the paper's own."""

from collections.abc import Sequence

from scanner.evaluation import paper
from scanner.evaluation.identification import FLAG_RATE, LENGTHS
from scanner.evaluation.means import Figure
from scanner.evaluation.robustness import NOT_MARKED
from scanner.watermark.formats import FORMATS

STRENGTHS = {"gumbel": "Gumbel θ", "greenlist": "green list δ"}
"""Parameter that is varied for each of the paper's marks, in its order."""

_TABLE_2 = (
    ("S-BERT similarity", "similarity", None),
    ("TPR", "flagged", None),
    ("TPR, 30 % replaced", "flagged", "substitute:0.3"),
)
"""Rows of the paper's Table 2: name, measure, attack."""

_HOW_TO_READ = (
    "Every figure stands with its 95 % interval: of a share, Clopper and Pearson's at the effective number of texts; of"
    " a mean, Student's; texts of one prompt, one key or one user count as alike. Texts too short for a scan count, as"
    " not flagged. The paper's figures are of another model (Guanaco-7B) on other prompts."
)
_NAMING = (
    "Share of texts whose user is named. `wrong`: somebody else is named; `ambiguous`: the text is flagged, and nobody"
    " is: several messages of version 1 pass, or none of version 2 does by the steps that are its own. Both as counts"
    " of texts, with the limits of their share. Under version 2 more than 65,536 messages are searched in texts of"
    " their own, under a key with groups."
)

_LONG_MESSAGES = 100_000
"""Number of messages for which long texts are reported."""

_PAIRED = (
    "Share of answers that are right. Each mark is compared with unmarked answers of the same decoding, document by"
    " document (McNemar's exact test)."
)


def report(figures: Sequence[Figure], heading: Sequence[str]) -> str:
    """The whole report.

    Args:
        figures: rows of schemas.evaluation.FIGURES.
        heading: sentences on what was run.
    """
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
        head = ["", *(f"{STRENGTHS[paper.name_of(method)]} {strength:g}" for method, strength in cells)]
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
            [told, *(show(one(cell, measure="flagged", attack=name)) for cell in cells.values())]
            for name, told in named
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
        found = [one(cell, measure=measure, attack=attack) for cell in cells.values()]
        if any(found):
            theirs = (paper.robustness(*key, window, measure, attack) for key in cells)
            lines += [[name, *map(show, found)], ["*in the paper*", *map(_beside, theirs)]]
    for name, measure in (("scored tokens", "scored"), ("written tokens", "tokens")):
        lines.append([name, *(show(one(cell, measure=measure), 0) for cell in cells.values())])
    return lines


def _identification(rows: Sequence[Figure]) -> list[str]:
    every = [row for row in rows if row["least_scored"] is None and row["most_scored"] is None]
    found = _where(every, measure="found")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    counts = sorted({row["messages"] for row in found})
    rates = sorted({row["false_positive_rate"] for row in found}, reverse=True)
    lines = [["FPR", "method", "", *(f"M = {count:,}" for count in counts)]]
    for rate in rates:
        for method in methods:
            mine = _where(every, method=method, false_positive_rate=rate)
            for measure, shown in (("found", show), ("wrong", show_count), ("ambiguous", show_count)):
                cells = [shown(one(mine, measure=measure, messages=count)) for count in counts]
                lines.append([f"{rate:g}", FORMATS[method].title, measure, *cells])
            theirs = (paper.identification(method, count, rate) for count in counts)
            lines.append(["", "", "*found, in the paper*", *map(_beside, theirs)])
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
    """Both formats on long texts, which tell much, and how many of these named somebody else."""
    least, most = LENGTHS[-1]
    count = _LONG_MESSAGES if _LONG_MESSAGES in counts else counts[-1]
    named = [f"found, M = {count:,}, FPR {rate:g}" for rate in rates]
    lines = [["method", "texts", f"TPR at {FLAG_RATE:g}, M = 1", *named, "wrong, the most of any M and FPR"]]
    for method in methods:
        mine = _where(rows, method=method, least_scored=least, most_scored=most)
        flagged = _where(mine, measure="flagged")[0]
        found = [one(mine, measure="found", messages=count, false_positive_rate=rate) for rate in rates]
        wrong = max(_where(mine, measure="wrong"), key=lambda row: row["hits"])
        texts = f"{flagged['n']} of {flagged['clusters']}"
        lines.append([FORMATS[method].title, texts, show(flagged), *map(show, found), show_count(wrong)])
    return f"### Texts of at least {least} scored tokens", table(lines)


def _by_length(rows: Sequence[Figure], rate: float, counts: Sequence[int]) -> str:
    named = [f"found, M = {count:,}" for count in counts]
    lines = [["scored tokens", "texts", f"flagged at {FLAG_RATE:g}, M = 1", *named, "wrong, most of any M"]]
    for least, most in LENGTHS:
        here = [row for row in rows if (row["least_scored"], row["most_scored"]) == (least, most)]
        flagged = _where(here, measure="flagged")[0]
        found = [one(here, measure="found", false_positive_rate=rate, messages=count) for count in counts]
        wrong = max(row["hits"] for row in _where(here, measure="wrong", false_positive_rate=rate))
        label = "all" if least is None else f"{least} or more" if most is None else f"{least} to {most}"
        lines.append([label, str(flagged["n"]), show(flagged), *map(show, found), str(wrong)])
    return table(lines)


def _utility(rows: Sequence[Figure]) -> list[str]:
    parts = ["## Utility (the paper's Table 1)", _PAIRED]
    lines = [["task", "documents", "method", "h", "decoding", "right", "p of no change", "*in the paper, 7B*"]]
    for row in rows:
        decoding = f"θ = {row['temperature']:g}" if row["temperature"] else "greedy"
        p = "" if row["p_value"] is None else f"{row['p_value']:.2g}"
        name = "not marked" if row["method"] is None else FORMATS[row["method"]].title
        window = "" if row["window"] is None else str(row["window"])
        theirs = _beside(paper.utility(row["task"], row["method"], row["window"]), 3)
        lines.append([row["task"], str(row["n"]), name, window, decoding, show(row, 3), p, theirs])
    return [*parts, table(lines)]


def show(row: Figure | None, digits: int = 2) -> str:
    """A figure with its limits, such as `0.62 (0.55–0.68)`."""
    if row is None or row["value"] is None:
        return "–"
    low, high = ("?" if limit is None else f"{limit:.{digits}f}" for limit in (row["low"], row["high"]))
    return f"{row['value']:.{digits}f} ({low}–{high})"


def show_count(row: Figure | None) -> str:
    """How many of how many, and the limits of the share."""
    if row is None or row["value"] is None:
        return "–"
    return f"{row['hits']}/{row['n']} ({row['low']:.2g}–{row['high']:.2g})"


def table(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first line is its head."""
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


def strength(row: Figure) -> float:
    """The parameter that the paper varies: δ of a mark that has one, else the temperature."""
    found: float = row["temperature"] if row["delta"] is None else row["delta"]
    return found


def one(rows: Sequence[Figure], **wanted: float | str | None) -> Figure | None:
    """The first row with these values."""
    return next(iter(_where(rows, **wanted)), None)


def _where(rows: Sequence[Figure], **wanted: float | str | None) -> list[Figure]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _cells(rows: Sequence[Figure]) -> dict[tuple[str, float], list[Figure]]:
    """The rows of each method and strength, in the order of the paper's columns."""
    keys = {(row["method"], strength(row)) for row in rows}
    ordered = sorted(keys, key=lambda key: (list(STRENGTHS).index(paper.name_of(key[0])), key[1]))
    return {key: [row for row in rows if (row["method"], strength(row)) == key] for key in ordered}


def _beside(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"*{value:.{digits}f}*"


def _clusters(rows: Sequence[Figure]) -> str:
    return "n: " + "; ".join(dict.fromkeys(f"{row['n']} texts of {row['clusters']}" for row in rows)) + "."
