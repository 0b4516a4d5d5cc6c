"""What the paper says, sentence by sentence, and whether our texts show it.

A direction is shown where the limits of both figures are apart, which happens by chance in about 1 of 180 cells. Limits
are 95 %, each by itself.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from scanner.research.report import STRENGTHS, strength, table
from tests.bench.figure_2 import TOLD_APART, limits, tells

Row = Mapping[str, Any]

REFUTED = "**refuted**"
CONTRARY = "**the other way in part**"
OPEN = "**cannot be told**"
PARTLY = "shown in part"
SHOWN = "shown"
GIVEN = "follows from the method"
VERDICTS = (REFUTED, CONTRARY, OPEN, PARTLY, SHOWN, GIVEN)

SHARE = "{value:.2f} ({low:.2f} to {high:.2f})"
COUNT = "{value:,.0f} ({low:,.0f} to {high:,.0f})"
LOG_P = "{value:.1f} ({low:.1f} to {high:.1f})"

TITLES = {"gumbel": "Gumbel", "greenlist": "Green list"}

FLOOR, CEILING = 0.05, 0.95
"""Two shares below the one, or above the other, are not compared: no effect could show there."""

MOST_PAIRS = 4
"""Most comparisons of a sentence whose figures are named each."""

REPLACED = "substitute:0.3"


class Sentence(NamedTuple):
    """A sentence of the paper, its section, what we measured, and whether that shows it."""

    words: str
    section: str
    ours: str
    verdict: str


class Pair(NamedTuple):
    """Two figures of which the paper says that the second is larger: rows with `value`, `low` and `high`."""

    name: str
    first_name: str
    first: Row
    second_name: str
    second: Row


def judge(found: Mapping[str, Row]) -> list[Sentence]:
    """Judge the sentences that the steps which were run can speak to, in the order of VERDICTS.

    found: what each step kept, by its name.
    """
    steps: Mapping[str, Callable[[Row], Iterator[Sentence]]] = {
        "false-positives": _judge_false_positives,
        "repeats": _judge_repeats,
        "utility": _judge_utility,
        "robustness": _judge_robustness,
        "scores": _judge_scores,
        "identification": _judge_identification,
    }
    judged = [sentence for step, judge_step in steps.items() if step in found for sentence in judge_step(found[step])]
    return sorted(judged, key=lambda one: VERDICTS.index(one.verdict))


def sentences_table(judged: Sequence[Sentence]) -> str:
    """Write the sentences as a table."""
    return table([["the paper says", "in", "ours", ""], *map(list, judged)])


def compare(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Tell whether the second figure of each pair is larger than the first."""
    more, less = apart(pairs)
    if less:
        return REFUTED if less == len(pairs) else CONTRARY
    return OPEN if not more else SHOWN if more == len(pairs) else PARTLY


def apart(pairs: Sequence[tuple[Row, Row]]) -> tuple[int, int]:
    """Count the pairs whose limits are apart: the second above the first, and below it."""
    return (
        sum(first["high"] < second["low"] for first, second in pairs),
        sum(first["low"] > second["high"] for first, second in pairs),
    )


def _compare(words: str, section: str, pairs: Sequence[Pair], form: str = SHARE) -> Sentence:
    if form == SHARE:
        telling = [pair for pair in pairs if not _at_an_end(pair)]
    else:
        telling = list(pairs)
    both = [(pair.first, pair.second) for pair in telling]
    if len(telling) > MOST_PAIRS:
        more, less = apart(both)
        ours = f"limits are apart so in {more} of {len(telling)} cells, and the other way in {less}"
    else:
        ours = "; ".join(
            f"{pair.name}{pair.first_name}: {form.format(**pair.first)}, "
            f"{pair.second_name}: {form.format(**pair.second)}"
            for pair in telling
        )
    if len(telling) < len(pairs):
        ends = f"near 0 or 1: {len(pairs) - len(telling)} of {len(pairs)} cells"
        ours = f"{ours}; {ends}" if ours else ends
    return Sentence(words, section, ours, compare(both))


def _at_an_end(pair: Pair) -> bool:
    values = pair.first["value"], pair.second["value"]
    return max(values) <= FLOOR or min(values) >= CEILING


def _judge_false_positives(kept: Row) -> Iterator[Sentence]:
    rows = [row for row in kept["rows"] if _is(row["threshold"], 1e-5)]
    z_rows = [row for row in rows if row["test"] == "z"]
    above = sum(limits(row)[0] > row["threshold"] * row["tests"] for row in z_rows)
    yield Sentence(
        "Z-tests flag more unmarked text than they state",
        "III-A",
        f"at 1e-5, limits are above the stated rate in {above} of {len(z_rows)} marks and windows",
        SHOWN if above == len(z_rows) else OPEN,
    )
    pairs = []
    for method in STRENGTHS:
        mine = [row for row in z_rows if row["method"] == method and row["window"]]
        if len(mine) > 1:
            narrow, *_, wide = sorted(mine, key=lambda row: int(row["window"]))
            names = f"h = {wide['window']}", f"h = {narrow['window']}"
            name = f"{TITLES[method]}, times the stated 1e-5, "
            pairs.append(Pair(name, names[0], _times(wide), names[1], _times(narrow)))
    words = "The wider the window, the nearer z-tests come to what they state"
    yield _compare(words, "III-A", pairs, COUNT)
    counted = [row for row in rows if (row["test"], row["dedup"]) == ("exact", "none")]
    exact = {(row["method"], row["window"]): row["hits"] for row in counted}
    shares = [exact[row["method"], row["window"]] / row["hits"] for row in z_rows]
    yield Sentence(
        "Exact tests come nearer to the stated rate, most at low rates",
        "III-B",
        f"they have fewer hits: at 1e-5, {min(shares):.2f} to {max(shares):.2f} of the z-test's, by mark and window",
        PARTLY if max(shares) < 1 else OPEN,
    )
    once = [row for row in kept["rows"] if (row["test"], row["dedup"]) == ("exact", "ngram")]
    yield _judge_rates([row for row in once if row["window"]])
    telling = [row for row in once if row["window"] == 0 and tells(row)]
    ratios = [row["hits"] / row["expected"] for row in telling]
    above = sum(limits(row)[0] > row["expected"] for row in telling)
    below = sum(limits(row)[1] < row["expected"] for row in telling)
    yield Sentence(
        "With repeats scored once, a window of 0 still flags slightly too many",
        "III-C",
        f"{len(telling)} cells tell a factor of {TOLD_APART}: {min(ratios):.2f} to {max(ratios):.2f} times the law, "
        f"limits above it in {above} and below it in {below}"
        if telling
        else "no cell tells",
        SHOWN if above else REFUTED if below else OPEN,
    )


def _judge_rates(rows: Sequence[Row]) -> Sentence:
    """Judge whether rates are as stated: shown only where limits leave out a factor of TOLD_APART, down to 1e-6."""
    telling = [row for row in rows if tells(row)]
    outside = sum(not limits(row)[0] <= row["expected"] <= limits(row)[1] for row in telling)
    near = [row for row in telling if TOLD_APART * limits(row)[0] >= row["expected"] >= limits(row)[1] / TOLD_APART]
    counts = []
    for threshold in sorted({row["threshold"] for row in rows}, reverse=True):
        cells = [row for row in rows if row["threshold"] == threshold]
        counts.append(f"{sum(row in near for row in cells)} of {len(cells)} at {threshold:g}")
    # of limits that cover 95 %, some leave out the law by chance
    is_refuted = bool(telling) and stats.binomtest(outside, len(telling), 0.05, alternative="greater").pvalue <= 0.05
    return Sentence(
        "With exact tests and repeats scored once, rates are as stated (h ≥ 1)",
        "III-C",
        f"limits lie within a third and three times the law in {', '.join(counts)}; of {len(telling)} cells that "
        f"could tell a factor of {TOLD_APART}, limits leave out the law in {outside}",
        REFUTED if is_refuted else SHOWN if len(near) == len(rows) else PARTLY if near else OPEN,
    )


def _is(value: float, other: float) -> bool:
    return abs(value / other - 1) < 1e-6


def _times(row: Row) -> Row:
    """Return how many times as many texts as stated are flagged, with limits."""
    stated = row["threshold"] * row["tests"]
    low, high = limits(row)
    return {"value": row["hits"] / stated, "low": low / stated, "high": high / stated}


def _judge_repeats(kept: Row) -> Iterator[Sentence]:
    rows = kept["rows"]
    both = [(one, two) for one, two in zip(rows[::2], rows[1::2], strict=True) if one["window"]]
    ratios = [by_ngram["scored"] / by_window["scored"] for by_window, by_ngram in both]
    yield Sentence(
        "Leaving out repeated windows with their token counts more tokens than leaving out repeated windows",
        "III-C",
        f"{min(ratios):.2f} to {max(ratios):.2f} times as many (h ≥ 1)" if ratios else "",
        GIVEN,
    )
    tests = [(window, *signs) for window, *signs in kept["signs"] if window]
    p_values = [stats.binomtest(more, more + less).pvalue if more + less else 1.0 for _, more, less in tests]
    ours = "; ".join(
        f"h = {window}: more texts of {more} prompts, fewer of {less} (sign test, p = {p:.2g})"
        for (window, more, less), p in zip(tests, p_values, strict=True)
    )
    telling = [gained - lost for (_, gained, lost), p in zip(tests, p_values, strict=True) if p <= 0.05 / len(tests)]
    yield Sentence(
        "Leaving out repeated windows with their token finds more texts",
        "III-C",
        f"at 1e-6, of {kept['prompts']} prompts: {ours}. At h = 0 the other way scores a single token",
        OPEN if not telling else CONTRARY if min(telling) < 0 else SHOWN if len(telling) == len(tests) else PARTLY,
    )
    example = kept["example"]
    chance, once = example["tests"] * 10 ** example["log10_p"], example["tests"] * 10 ** example["log10_p_once"]
    yield Sentence(
        "Unmarked text has tiny p-values where repeats count (theirs: 1e-21)",
        "Fig. 3",
        f"log₁₀ p of {example['log10_p']:.1f} in the least of {example['tests']:,} tests, and "
        f"{example['log10_p_once']:.1f} with repeats scored once",
        SHOWN if chance <= 1e-6 and once > 0.05 else OPEN,
    )


def _judge_utility(kept: Row) -> Iterator[Sentence]:
    marked = [row for row in kept["rows"] if row["method"]]
    plain = {(row["task"], row["temperature"]): row["value"] for row in kept["rows"] if not row["method"]}
    changed = [row for row in marked if row["p_value"] is not None and row["p_value"] <= 0.05 / len(marked)]
    widest = max(row["high"] - row["low"] for row in kept["rows"])
    yield Sentence(
        "Right answers to free-form tasks are not significantly fewer under a mark",
        "IV-B",
        f"{len(changed)} of {len(marked)} cells change (McNemar, corrected); limits are up to {widest:.2f} wide",
        REFUTED if changed else OPEN,
    )
    changes = []
    for method in STRENGTHS:
        mine = [row for row in marked if row["method"] == method]
        if mine:
            change = sum(row["value"] - plain[row["task"], row["temperature"]] for row in mine) / len(mine)
            changes.append(f"{TITLES[method]} {change:+.3f}")
    yield Sentence(
        "The green list does slightly more harm than Gumbel",
        "IV-B",
        f"mean change of the share of right answers: {', '.join(changes)}",
        OPEN,
    )


def _judge_robustness(kept: Row) -> Iterator[Sentence]:
    for method, parameter in STRENGTHS.items():
        title = TITLES[method]
        mine = [row for row in kept["rows"] if row["method"] == method]
        strengths = sorted({strength(row) for row in mine})
        windows = sorted({row["window"] for row in mine})
        symbol = parameter.split()[-1]
        weak, strong = (f"{symbol} {value:g}" for value in (strengths[0], strengths[-1]))

        def cell(measure: str, attack: str | None, window: int, value: float, mine: Sequence[Row] = mine) -> Row:
            return next(
                row
                for row in mine
                if (row["measure"], row["attack"], row["window"], strength(row)) == (measure, attack, window, value)
            )

        for attack, after in ((None, ""), (REPLACED, ", with 30 % of tokens replaced")):
            pairs = [
                Pair(f"h = {window}, ", weak, cell("flagged", attack, window, strengths[0]),
                     strong, cell("flagged", attack, window, strengths[-1]))
                for window in windows
            ]  # fmt: skip
            yield _compare(f"{title}: more are flagged with a stronger mark{after}", "Table 2", pairs)
        pairs = [
            Pair(f"h = {window}, {symbol} {value:g}, ", "replaced", cell("flagged", REPLACED, window, value),
                 "as written", cell("flagged", None, window, value))
            for window in windows
            for value in strengths
        ]  # fmt: skip
        yield _compare(f"{title}: fewer are flagged with 30 % of tokens replaced", "Table 2", pairs)
        wide = windows[-1]
        for words, narrow, measure, attack, is_more_under_wide, form in (
            ("a narrow window makes it more robust to 30 % of tokens replaced",
             next((window for window in windows if window), wide), "flagged", REPLACED, False, SHARE),
            ("S-BERT falls when the window is narrow", windows[0], "similarity", None, True, SHARE),
            ("more tokens are scored under a wide window", windows[0], "scored", None, True, COUNT),
        ):  # fmt: skip
            if narrow == wide or not any(row["measure"] == measure for row in mine):
                continue
            first, second = (narrow, wide) if is_more_under_wide else (wide, narrow)
            pairs = [
                Pair(f"{symbol} {value:g}, ", f"h = {first}", cell(measure, attack, first, value),
                     f"h = {second}", cell(measure, attack, second, value))
                for value in strengths
            ]  # fmt: skip
            yield _compare(f"{title}: {words}", "IV-A", pairs, form)


def _judge_scores(kept: Row) -> Iterator[Sentence]:
    medians: dict[tuple[str, str], dict[str, float]] = {}
    for line in kept["table"][2:]:
        attack, score, asked, _, median, _ = (cell.strip() for cell in line.strip("|").split("|"))
        value, low, high = map(float, re.findall(r"-?\d+\.\d", median))
        medians[attack, f"{score} {asked}"] = {"value": value, "low": low, "high": high}
    original, ratio = "original -", "Neyman-Pearson with prompt, as sampled"
    for words, attack, first, second, best in (
        ("Neyman and Pearson's score has lower p-values than the original, if the prompt is there",
         "clean", ratio, original, SHOWN),
        ("Any attack raises Neyman and Pearson's p-values to those of the original score, or above",
         "30 % replaced", original, ratio, PARTLY),  # a single attack
        ("The score Σ ln r does not match the original", "clean", original, "ln r -", SHOWN),
    ):  # fmt: skip
        names = {original: "original", ratio: "Neyman and Pearson's", "ln r -": "Σ ln r"}
        pair = Pair("median log₁₀ p, ", names[first], medians[attack, first], names[second], medians[attack, second])
        sentence = _compare(words, "V-A", [pair], LOG_P)
        worse = max(sentence.verdict, best, key=[SHOWN, PARTLY, OPEN, CONTRARY, REFUTED].index)
        yield sentence._replace(verdict=worse)


def _judge_identification(kept: Row) -> Iterator[Sentence]:
    rows = [row for row in kept["rows"] if row["least_scored"] is None and row["most_scored"] is None]
    shares = [row for row in rows if row["measure"] == "found"]
    counts = sorted({row["messages"] for row in shares})
    rate = min(row["false_positive_rate"] for row in shares)

    def cell(measure: str, method: str, count: int) -> Row:
        return next(
            row
            for row in rows
            if (row["measure"], row["method"], row["messages"], row["false_positive_rate"])
            == (measure, method, count, rate)
        )

    few, many = counts[0], counts[-1]
    for method in STRENGTHS:
        ours = ", ".join(f"M = {count:,}: {SHARE.format(**cell('found', method, count))}" for count in (few, many))
        words = f"{TITLES[method]}: fewer users are identified if there are more"
        yield Sentence(words, "V-B", f"FPR {rate:g}, {ours}", GIVEN)  # the same texts, and a threshold that falls
    first, second = (cell("found", method, many) for method in STRENGTHS)
    names = [TITLES[method] for method in STRENGTHS]
    sentence = _compare("More users are identified under the green list than under Gumbel", "Table 3", [
        Pair(f"M = {many:,}, FPR {rate:g}, ", names[0], first, names[1], second)
    ])  # fmt: skip
    yield sentence._replace(
        ours=f"{sentence.ours}, at θ = {kept['theta']} and δ = {kept['delta']}; other strengths could reverse it",
        verdict=OPEN if sentence.verdict == SHOWN else sentence.verdict,
    )
    wrong, flagged = 0, []
    for method in STRENGTHS:
        hits = {measure: cell(measure, method, many)["hits"] for measure in ("found", "wrong", "ambiguous")}
        wrong += hits["wrong"]
        share = stats.binomtest(hits["wrong"], max(sum(hits.values()), 1)).proportion_ci()
        flagged.append(f"{TITLES[method]} {hits['wrong']} of {sum(hits.values())} (at most {share.high:.2g})")
    yield Sentence(
        f"None of the texts flagged at {rate:g} among {many:,} users names a wrong one",
        "V-B",
        ", ".join(flagged),
        OPEN if wrong == 0 else REFUTED,
    )
