"""Report a calibration: counts judged as rows of audits, numbers for JSON, and drawings.

N-grams behind small p-values are shown as counts, and their text only on request (SPEC §4). Only the configuration
fixes the families of tests. Each gets an even share of the family-wise error: the law's methods, the best of all
messages, the law's cases, their uniformity, disjoint fragments, the keys.

Drawings are PNG bytes. They need matplotlib, which the extra `audit` installs.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from scipy import special  # type: ignore[import-untyped]

from scanner.audit.calibration.calibration_plan import PANELS, CalibrationPlan, FragmentCounts, repeated_ngrams
from scanner.audit.calibration.law_counts import LawCase, LawCounts
from scanner.audit.calibration.one_key import KeyCounts
from scanner.audit.statistics.audit_rows import Audit, Question, Row, rate_rows, uniformity_rows
from scanner.audit.statistics.hits import THRESHOLDS, ClusterSums, cluster_sums
from scanner.audit.statistics.judgement import KEY_BOUND, RATIO_THAT_HOLDS
from scanner.registry import tokenizer_path
from scanner.watermark import Format
from scanner.watermark.formats import FORMATS, format_of
from scanner.watermark.positions import PositionRule
from schemas.registry import AuditedFilter, MasterKey

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

NGRAMS_LISTED = 20
"""Largest number of n-grams that are listed, of the text of smallest p and of each key."""


def details(
    plan: CalibrationPlan,
    fragments: Mapping[Format, FragmentCounts],
    keys: Mapping[str, KeyCounts],
    show_text: bool,
) -> dict[str, Any]:
    """Return numbers to be written as JSON.

    Args:
        plan: plan of the audit.
        fragments: counts of disjoint fragments, by format.
        keys: counts of each key, by key id.
        show_text: whether to decode the n-grams and the text of smallest p. Otherwise only counts are given.
    """
    reader = _Reader(plan.tokenizer) if show_text else None
    numbers: dict[str, Any] = {"figure": [], "keys": {}}
    for form, counts in fragments.items():
        numbers["figure"].append(
            {
                "method": form.name,
                "label": form.label(),
                "pieces": counts.tests,
                "thresholds": list(FRAGMENT_THRESHOLDS),
                "panels": [
                    {"test": test, "dedup": dedup, "hits": counts.hits[:, i].tolist()}
                    for i, (test, dedup) in enumerate(PANELS)
                ],
                "smallest_p": _smallest_p(counts, form.rule(), reader),
            }
        )
    if plan.audited is not None:
        for key in plan.audited.keys:
            text_reader = _Reader(str(tokenizer_path(plan.audited.registry, key))) if show_text else None
            numbers["keys"][key.key_id] = _top_ngrams(keys[key.key_id], text_reader)
    return numbers


class _Reader:
    def __init__(self, path: str) -> None:
        self._inner = tokenizers.Tokenizer.from_file(path)

    def __call__(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=False))


def _smallest_p(counts: FragmentCounts, rule: PositionRule, reader: _Reader | None) -> dict[str, Any]:
    worst = counts.extreme
    columns: dict[str, Any] = {
        "key": worst.key,
        "log10_p_none": worst.log10_p,
        "log10_p_ngram": worst.log10_p_ngram,
        "scored_none": worst.scored,
        "scored_ngram": worst.scored_ngram,
        "repeated": [
            {"times": times} | ({} if reader is None else {"text": reader(gram)})
            for times, gram in repeated_ngrams(worst.ids, rule, NGRAMS_LISTED)
        ],
    }
    return columns | ({} if reader is None else {"text": reader(worst.ids.tolist())})


def _top_ngrams(counts: KeyCounts, reader: _Reader | None) -> list[dict[str, Any]]:
    top = sorted(counts.ngrams.items(), key=lambda item: -item[1].excess)[:NGRAMS_LISTED]
    return [
        {"hits": ngram.hits, "excess": ngram.excess} | ({} if reader is None else {"text": reader(gram)})
        for gram, ngram in top
    ]


FRAGMENT_THRESHOLDS = tuple(10.0 ** (-k / 4) for k in range(29))
"""Thresholds of disjoint fragments: quarters of a power of ten, from 1 down to 1e-7."""

DECADES_JUDGED = 6
"""Number of powers of ten at which disjoint fragments are judged, from 1e-1 down.

Below them, a million tests decide nothing.
"""


def all_rows(
    audit: Audit,
    plan: CalibrationPlan,
    law: Mapping[LawCase, LawCounts],
    fragments: Mapping[Format, FragmentCounts],
    keys: Mapping[str, KeyCounts],
    filters: Mapping[str, AuditedFilter],
) -> list[Row]:
    """Judge all counts.

    Args:
        audit: the run.
        plan: plan of the audit.
        law: counts of each case of the law.
        fragments: counts of disjoint fragments, by format.
        keys: counts of each key, by key id.
        filters: filters of keys that were audited without common n-grams, by key id.
    """
    families = 4 * bool(law) + bool(fragments) + bool(keys)
    share = replace(audit, family_error=audit.family_error / max(families, 1))
    rows: list[Row] = []
    if law:
        rows += _law_rows(share, law)
    if fragments:
        rows += _fragment_rows(share, fragments)
    if plan.audited is not None:
        cluster = "account, piece" if plan.columns.account else "piece"
        dedup = plan.audited.config.dedup
        answers = [
            answer
            for key in plan.audited.keys
            for answer in _key_answers(key, keys[key.key_id], filters.get(key.key_id), dedup, cluster)
        ]
        rows += rate_rows(share, answers, THRESHOLDS, KEY_BOUND)
    return rows


def _law_rows(audit: Audit, law: Mapping[LawCase, LawCounts]) -> list[Row]:
    questions = [Question.about("law", "exact", "document", case.format, case.dedup) for case in law]
    message_answers = list(zip(questions, (counts.sums for counts in law.values()), strict=True))
    best_answers = [
        (replace(question, kind="law_best", messages=case.messages), counts.best)
        for question, (case, counts) in zip(questions, law.items(), strict=True)
    ]
    return (
        rate_rows(audit, _by_method(message_answers), THRESHOLDS)
        + rate_rows(audit, _by_method(best_answers), THRESHOLDS)
        + rate_rows(audit, message_answers, THRESHOLDS)
        + uniformity_rows(audit, list(zip(questions, (counts.uniform for counts in law.values()), strict=True)))
    )


def _by_method(answers: Sequence[tuple[Question, ClusterSums]]) -> list[tuple[Question, ClusterSums]]:
    """Add up the cases of each method. Their documents have keys of their own, so they are further clusters."""
    totals: dict[Question, ClusterSums] = {}
    for question, sums in answers:
        total_question = replace(question, kind=f"{question.kind}_total", dedup=None, label=None)
        totals[total_question] = totals[total_question].plus(sums) if total_question in totals else sums
    return list(totals.items())


def _fragment_rows(audit: Audit, fragments: Mapping[Format, FragmentCounts]) -> list[Row]:
    columns = [int(np.argmin(np.abs(np.log10(FRAGMENT_THRESHOLDS) + k))) for k in range(1, DECADES_JUDGED + 1)]
    answers = []
    for form, counts in fragments.items():
        for i, (test, dedup) in enumerate(PANELS):
            hits = counts.hits[:, i][:, columns]
            chance = np.broadcast_to(counts.expected[i][columns] / counts.tests, hits.shape)
            question = Question.about("figure", test, "key", form, dedup)
            answers.append((question, cluster_sums(hits, np.full(len(hits), counts.tests), chance)))
    return rate_rows(audit, answers, THRESHOLDS[:DECADES_JUDGED])


def _key_answers(
    key: MasterKey, counts: KeyCounts, key_filter: AuditedFilter | None, dedup: str, cluster: str
) -> list[tuple[Question, ClusterSums]]:
    key_fields = {"messages": key.messages, "key_id": key.key_id, "commitment": key.commitment}
    filter_fields = (
        {} if key_filter is None else {f"filter_{name}": value for name, value in key_filter.model_dump().items()}
    )
    best_question = Question.about("key", "exact", cluster, format_of(key), dedup, **key_fields, **filter_fields)
    message_question = replace(best_question, kind="key_messages", cluster="message", messages=1)
    return [(best_question, counts.by_cluster()), (message_question, counts.by_message())]


PANEL_TITLES = ("Z-test, nothing left out", "exact test, nothing left out", "exact test, repeats left out (ngram)")
BAND_PROBABILITY = 0.95


def fragments_png(found: Mapping[Format, FragmentCounts], thresholds: Sequence[float]) -> bytes:
    """Draw the paper's figure: empirical against theoretical rate, one row a format, one panel a test, all keys.

    Thin lines are keys, thick lines their mean. The band is Student's 95 % interval of the mean over keys.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure as Drawing

    by_method: dict[str, dict[int, FragmentCounts]] = {}
    for form, counts in found.items():
        gamma = form.model_dump(mode="json").get("gamma")
        by_method.setdefault(form.title + (f", γ = {gamma}" if gamma else ""), {})[form.rule().context] = counts
    windows = sorted({window for method_counts in by_method.values() for window in method_counts})
    drawing = Drawing(figsize=(15, 5 * len(by_method)), layout="constrained")
    axes = drawing.subplots(len(by_method), len(PANELS), squeeze=False, sharex=True, sharey=True)
    for row, (name, method_counts) in enumerate(by_method.items()):
        for panel in range(len(PANELS)):
            ax = axes[row, panel]
            for i, window in enumerate(windows):
                colour = colormaps["viridis"](i / max(len(windows) - 1, 1))
                _draw(ax, method_counts[window], panel, thresholds, colour, f"h = {window}")
            ax.set_title(f"{name}\n{PANEL_TITLES[panel]}", fontsize=10)
            ax.plot([1e-7, 1], [1e-7, 1], color="black", linestyle="--", linewidth=1)
    axes[0, 0].legend(fontsize=8)
    tests = next(iter(found.values()))
    drawing.suptitle(
        f"{len(tests.hits)} keys × {tests.tests:,} pieces of unmarked text, each test\n"
        "How often p is at or below a rate. Thin: a key. Thick: the mean of all, with its 95 % interval. Dashed: as "
        "stated; above it, p is too small",
        fontsize=11,
    )
    for ax in axes.ravel().tolist():
        ax.set(xscale="log", yscale="log", xlim=(1e-7, 1), ylim=(1e-7, 1))
        ax.set(xlabel="theoretical false-positive rate", ylabel="empirical false-positive rate")
        ax.grid(alpha=0.2)
    return _png(drawing)


def _draw(
    ax: "Axes", counts: FragmentCounts, panel: int, thresholds: Sequence[float], colour: Sequence[float], name: str
) -> None:
    rates = counts.hits[:, panel] / counts.tests
    positive = np.where(rates > 0, rates, np.nan)
    for key in positive:
        ax.plot(thresholds, key, color=colour, linewidth=0.5, alpha=0.35)
    mean = rates.mean(axis=0)
    half = special.stdtrit(len(rates) - 1, (1 + BAND_PROBABILITY) / 2) * rates.std(axis=0, ddof=1) / np.sqrt(len(rates))
    mean, floor = np.where(mean > 0, mean, np.nan), 0.1 / (counts.tests * len(rates))
    ax.plot(thresholds, mean, color=colour, linewidth=1.8, label=name)
    ax.fill_between(thresholds, np.maximum(mean - half, floor), mean + half, color=colour, alpha=0.15)


def law_png(rows: Sequence[Row]) -> bytes:
    """Draw observed over expected hits for every power of ten, with simultaneous limits, one colour a format."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(9, 5), layout="constrained")
    ax = drawing.subplots()
    totals = [row for row in rows if row["kind"] == "law_total" and row["expected"]]
    for i, method in enumerate(dict.fromkeys(row["method"] for row in totals)):
        method_rows = [row for row in totals if row["method"] == method]
        thresholds = np.array([row["threshold"] for row in method_rows]) * (0.93 + 0.14 * i)
        ratio = np.array([row["hits"] / row["expected"] for row in method_rows])
        low = ratio - np.array([row["low"] / row["expected"] for row in method_rows])
        high = np.array([row["high"] / row["expected"] for row in method_rows]) - ratio
        label = f"{FORMATS[method].title}, {method_rows[0]['tests']:.3g} null p-values"
        ax.errorbar(thresholds, ratio, yerr=[low, high], fmt="o", capsize=3, label=label)
    ax.axhline(1.0, color="black", linestyle="--", linewidth=1, label="as stated")
    ax.axhline(
        RATIO_THAT_HOLDS, color="grey", linestyle=":", linewidth=1, label="a key is admitted while the limits are below"
    )
    ax.set_title(
        "How many unmarked texts reach a p-value, over how many the law expects\n"
        "Keys drawn for each text; the limits of all points hold together",
        fontsize=11,
    )
    ax.set(xscale="log", xlabel="threshold of p", ylabel="counted / expected", ylim=(0, 2.5))
    ax.legend(fontsize=9)
    return _png(drawing)


def _png(drawing: "Drawing") -> bytes:
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
