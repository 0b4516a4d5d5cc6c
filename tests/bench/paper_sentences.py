"""What the paper says, sentence by sentence, and whether our texts show it.

A comparison is shown where the limits of both figures are apart. They are 95 %, and count prompts, keys and users, not
texts.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from scanner.research.report import STRENGTHS, strength, table
from scanner.watermark.formats import FORMATS
from tests.bench.figure_2 import limits, tells

Row = Mapping[str, Any]

REFUTED, OPEN, PARTLY, SHOWN = "**refuted**", "**cannot be told** at this n", "shown in part", "shown"
SHARE = "{value:.2f} ({low:.2f} to {high:.2f})"

MOST_PAIRS = 4
"""Most comparisons of a sentence whose figures are named each."""

REPLACED = "substitute:0.3"


class Sentence(NamedTuple):
    """A sentence of the paper, what we measured, and whether that shows it."""

    words: str
    ours: str
    verdict: str


def judge(found: Mapping[str, Row]) -> list[Sentence]:
    """Judge the sentences that the steps which were run can speak to. What is refuted or open comes first.

    found: what each step kept, by its name.
    """
    steps: Mapping[str, Callable[[Row], Iterator[Sentence]]] = {
        "false-positives": _of_false_positives,
        "repeats": _of_repeats,
        "utility": _of_utility,
        "robustness": _of_robustness,
        "scores": _of_scores,
        "identification": _of_identification,
    }
    judged = [sentence for step, of_step in steps.items() if step in found for sentence in of_step(found[step])]
    return sorted(judged, key=lambda one: [REFUTED, OPEN, PARTLY, SHOWN].index(one.verdict))


def sentences_table(judged: Sequence[Sentence]) -> str:
    """Write the sentences as a table."""
    return table([["the paper says", "ours", ""], *map(list, judged)])


def compare(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Tell whether the second figure of each pair is larger than the first.

    pairs: figures with their limits, `low` and `high`.
    """
    more, less = apart(pairs)
    if more and less:
        return OPEN
    return REFUTED if less else SHOWN if more and more == len(pairs) else PARTLY if more else OPEN


def apart(pairs: Sequence[tuple[Row, Row]]) -> tuple[int, int]:
    """Count the pairs whose limits are apart: the second above the first, and below it."""
    return (
        sum(first["high"] < second["low"] for first, second in pairs),
        sum(first["low"] > second["high"] for first, second in pairs),
    )


def _share(row: Row) -> str:
    return SHARE.format(**row)


def _sentence(words: str, named: Sequence[tuple[str, Row, Row]]) -> Sentence:
    pairs = [(first, second) for _, first, second in named]
    if len(pairs) > MOST_PAIRS:
        more, less = apart(pairs)
        ours = f"apart so in {more} of {len(pairs)} cells, and the other way in {less}"
    else:
        ours = "; ".join(f"{name}: {_share(first)} → {_share(second)}" for name, first, second in named)
    return Sentence(words, ours, compare(pairs))


def _of_false_positives(kept: Row) -> Iterator[Sentence]:
    rows = [row for row in kept["rows"] if abs(row["threshold"] / 1e-5 - 1) < 1e-6]
    of_z = [row for row in rows if row["test"] == "z"]
    above = sum(limits(row)[0] > row["threshold"] * row["tests"] for row in of_z)
    yield Sentence(
        "Z-tests flag more unmarked text than they state",
        f"at 1e-5, limits above the stated rate in {above} of {len(of_z)} marks and windows",
        SHOWN if above == len(of_z) else OPEN,
    )
    once = [row for row in kept["rows"] if (row["test"], row["dedup"]) == ("exact", "ngram")]
    for words, is_of_0 in (
        ("With exact tests and repeats scored once, rates are as stated (windows of 1 and more)", False),
        ("For a window of 0, exact tests with repeats scored once still flag slightly too many", True),
    ):
        telling = [row for row in once if (row["window"] == 0) == is_of_0 and tells(row)]
        above = sum(limits(row)[0] > row["expected"] for row in telling)
        below = sum(limits(row)[1] < row["expected"] for row in telling)
        ours = f"of {len(telling)} cells that can tell, limits are above the law in {above}, and below it in {below}"
        if not telling:
            verdict = OPEN
        elif is_of_0:
            verdict = SHOWN if above else REFUTED if below else OPEN
        else:
            verdict = REFUTED if above or below else SHOWN
        yield Sentence(words, ours, verdict)


def _of_repeats(kept: Row) -> Iterator[Sentence]:
    rows = kept["rows"]
    both = [(one, two) for one, two in zip(rows[::2], rows[1::2], strict=True)]
    more = sum(by_ngram["scored"] > by_window["scored"] for by_window, by_ngram in both)
    yield Sentence(
        "Leaving out repeated windows with their token counts more tokens than leaving out repeated windows",
        f"more in {more} of {len(both)} cells",
        SHOWN if more == len(both) else OPEN,
    )
    gained, lost = kept["gained"], kept["lost"]
    p = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    yield Sentence(
        "Leaving out repeated windows with their token finds more texts",
        f"of {kept['prompts']} prompts, more texts are found of {gained} and fewer of {lost} (sign test: p = {p:.2g})",
        OPEN if p > 0.05 else SHOWN if gained > lost else REFUTED,
    )
    example = kept["example"]
    yield Sentence(
        "Unmarked text can have a p of 1e-21 because repeats count",
        f"log10 p of {example['log10_p']:.1f} in the worst of {example['tests']:,} tests, and "
        f"{example['log10_p_once']:.1f} with repeats scored once",
        SHOWN if example["log10_p"] <= -21 and example["log10_p_once"] > -5 else OPEN,
    )


def _of_utility(kept: Row) -> Iterator[Sentence]:
    marked = [row for row in kept["rows"] if row["method"]]
    widest = max(row["high"] - row["low"] for row in marked)
    narrow = all(row["high"] - row["low"] <= 0.1 for row in marked)
    changed = [row for row in marked if row["p_value"] is not None and row["p_value"] <= 0.05 / len(marked)]
    about = f"{len(changed)} of {len(marked)} cells change (McNemar, corrected); limits are up to {widest:.2f} wide"
    words = "Right answers to free-form tasks are not significantly fewer under a mark"
    yield Sentence(words, about, REFUTED if changed else SHOWN if narrow else OPEN)
    shares = {name: [row["hits"] / row["n"] for row in marked if row["method"] == name] for name in STRENGTHS}
    means = " and ".join(f"{FORMATS[method].title} {sum(of) / len(of):.3f}" for method, of in shares.items() if of)
    yield Sentence("The green list does slightly more harm than Gumbel", f"means over tasks: {means}", OPEN)


def _of_robustness(kept: Row) -> Iterator[Sentence]:
    for method, parameter in STRENGTHS.items():
        title = FORMATS[method].title
        mine = [row for row in kept["rows"] if row["method"] == method]
        strengths = sorted({strength(row) for row in mine})
        windows = sorted({row["window"] for row in mine})

        def one(measure: str, attack: str | None, window: int, value: float, mine: Sequence[Row] = mine) -> Row:
            return next(
                row
                for row in mine
                if (row["measure"], row["attack"], row["window"], strength(row)) == (measure, attack, window, value)
            )

        ends = strengths[0], strengths[-1]
        for attack, after in ((None, ""), (REPLACED, ", with 30 % of tokens replaced")):
            pairs = [(f"h = {w}", *(one("flagged", attack, w, value) for value in ends)) for w in windows]
            yield _sentence(f"{title}: more are found with a stronger mark{after}", pairs)
        pairs = [
            (f"h = {w}, {parameter} {value:g}", one("flagged", REPLACED, w, value), one("flagged", None, w, value))
            for w in windows
            for value in strengths
        ]
        yield _sentence(f"{title}: fewer are found with 30 % of tokens replaced", pairs)
        if len(windows) > 1:
            narrow, wide = windows[0], windows[-1]
            for words, attack, first, second in (
                ("a narrow window makes it more robust to 30 % of tokens replaced", REPLACED, wide, narrow),
                ("more tokens are scored under a wide window", None, narrow, wide),
            ):
                measure = "flagged" if attack else "scored"
                pairs = [
                    (f"{parameter} {value:g}, h = {first} → {second}",
                     one(measure, attack, first, value), one(measure, attack, second, value))
                    for value in strengths
                ]  # fmt: skip
                yield _sentence(f"{title}: {words}", pairs)


def _of_scores(kept: Row) -> Iterator[Sentence]:
    medians: dict[tuple[str, str], dict[str, float]] = {}
    for line in kept["table"][2:]:
        attack, score, asked, _, median, _ = (cell.strip() for cell in line.strip("|").split("|"))
        value, low, high = map(float, re.findall(r"-?\d+\.\d", median))
        medians[attack, f"{score} {asked}"] = {"value": value, "low": low, "high": high}
    original, by_ratio = "original -", "Neyman-Pearson with prompt, as sampled"
    for words, first, second in (
        ("Neyman and Pearson's score, with the prompt, has lower p-values than the original",
         ("clean", by_ratio), ("clean", original)),
        ("An attack raises Neyman and Pearson's p-values to those of the original score, or above",
         ("30 % replaced", original), ("30 % replaced", by_ratio)),
        ("The score Σ ln r does not match the original", ("clean", original), ("clean", "ln r -")),
    ):  # fmt: skip
        yield _sentence(words, [("median log10 p", medians[first], medians[second])])


def _of_identification(kept: Row) -> Iterator[Sentence]:
    rows = [row for row in kept["rows"] if row["least_scored"] is None and row["most_scored"] is None]
    of_all = [row for row in rows if row["measure"] == "found"]
    counts = sorted({row["messages"] for row in of_all})
    rates = sorted({row["false_positive_rate"] for row in of_all}, reverse=True)

    def one(method: str, count: int, rate: float) -> Row:
        return next(
            row
            for row in of_all
            if (row["method"], row["messages"], row["false_positive_rate"]) == (method, count, rate)
        )

    for method in STRENGTHS:
        title = FORMATS[method].title
        pairs = [(f"FPR {rate:g}", one(method, counts[-1], rate), one(method, counts[0], rate)) for rate in rates]
        words = f"{title}: fewer users are identified among {counts[-1]:,} than among {counts[0]:,}"
        yield _sentence(words, pairs)
    largest = counts[-1]
    pairs = [(f"M = {largest:,}, FPR {rate:g}", *(one(m, largest, rate) for m in STRENGTHS)) for rate in rates]
    yield _sentence("More users are identified under the green list than under Gumbel", pairs)
    wrong = [row for row in rows if row["measure"] == "wrong" and row["false_positive_rate"] == rates[-1]]
    worst = max(wrong, key=lambda row: row["hits"])
    yield Sentence(
        f"No wrong user is identified at a global FPR of {rates[-1]:g}",
        f"at most {worst['hits']} of {worst['n']} texts in a cell: a share of at most {worst['high']:.2g}",
        SHOWN if worst["hits"] == 0 else REFUTED,
    )
