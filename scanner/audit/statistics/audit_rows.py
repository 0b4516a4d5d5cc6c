"""Make rows of the audits table: families of counts, judged together, with everything needed to repeat them."""

import importlib.metadata
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import numpy as np

from scanner.audit.statistics.hits import ClusterSums
from scanner.audit.statistics.judgement import Count, Judgement, counts, holm, judge, uniformity
from scanner.printable import counted
from scanner.watermark import Format
from schemas.words import AuditVerdict

Row = dict[str, Any]

_VERSION = importlib.metadata.version("brickscan")  # once: each call reads the package's description anew


@dataclass(frozen=True)
class Audit:
    """One run of an audit.

    corpus: paths of the corpus.
    seed: the seed of the drawn keys.
    """

    audit_id: str
    at: datetime
    config_sha256: str
    corpus: str
    seed: str
    family_error: float

    @classmethod
    def begin(cls, config_sha256: str, corpus: str, seed: str, family_error: float) -> "Audit":
        """Begin an audit now."""
        now = datetime.now(UTC)
        return cls(f"{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}", now, config_sha256, corpus, seed, family_error)


@dataclass(frozen=True)
class Question:
    """The common part of the rows of one set of hits. Columns are as in schemas.audit.AUDITS."""

    kind: str
    test: str
    method: str
    cluster: str
    messages: int = 1
    key_id: str | None = None
    commitment: str | None = None
    dedup: str | None = None
    label: str | None = None
    stratum: str | None = None
    filter_sha256: str | None = None
    filter_texts: int | None = None
    filter_learnt: int | None = None

    @classmethod
    def about(cls, kind: str, test: str, cluster: str, how: Format, dedup: str, **more: Any) -> "Question":  # noqa: ANN401
        """Return a question about marks of one format."""
        return cls(kind, test, cluster=cluster, dedup=dedup, label=how.label(), method=how.name, **more)


def rate_rows(
    audit: Audit, answers: Sequence[tuple[Question, ClusterSums]], thresholds: Sequence[float], bound: float = 1.0
) -> list[Row]:
    """Judge hits at all thresholds of all questions as one family.

    Args:
        audit: the run.
        answers: sums over clusters for every question, each [J].
        thresholds: α, from large to small. A question uses the first J.
        bound: see judgement.judge.
    """
    family: list[tuple[Question, float, Count]] = [
        (question, threshold, count)
        for question, sums in answers
        for threshold, count in zip(thresholds[: len(sums.hits)], counts(sums), strict=True)
    ]
    judgements = judge([count for _, _, count in family], audit.family_error, bound)
    return [
        _shared(audit, question, len(family))
        | {
            "measure": "rate",
            "threshold": threshold,
            "tests": int(count.tests),
            "clusters": int(count.clusters),
            "hits": int(count.hits),
            "expected": count.expected,
            "low": judgement.low,
            "high": judgement.high,
            "design_effect": count.design_effect,
            "bound": bound,
            "p_value": judgement.p_value,
            "verdict": judgement.verdict,
        }
        for (question, threshold, count), judgement in zip(family, judgements, strict=True)
    ]


def row_of(
    audit: Audit, question: Question, family: int, tests: int, hits: int, chance: float, judged: Judgement
) -> Row:
    """Return a row on independent tests that were judged elsewhere.

    Args:
        audit: the run.
        question: the question that the tests answer.
        family: number of rows that share the run's family error.
        tests: number of tests.
        hits: number of hits among the tests.
        chance: expected or planned chance of a hit in a test.
        judged: the judgement. Its p-value is that of hits as far from the plan.
    """
    return _shared(audit, question, family) | {
        "measure": "rate",
        "tests": tests,
        "clusters": tests,
        "hits": hits,
        "expected": tests * chance,
        "low": judged.low,
        "high": judged.high,
        "design_effect": 1.0,
        "p_value": judged.p_value,
        "verdict": judged.verdict,
    }


def uniformity_rows(audit: Audit, answers: Sequence[tuple[Question, Any]]) -> list[Row]:
    """Test whether independent p-values (float64[D] of each question) are too small, as one family.

    A row reads `too small` or `undecided`, because a test that finds nothing proves no law.
    """
    p_values = np.array([uniformity(p)[1] for _, p in answers])
    return [
        _shared(audit, question, len(answers))
        | {
            "measure": "uniformity",
            "tests": len(p),
            "clusters": len(p),
            "p_value": float(p_value),
            "verdict": AuditVerdict.TOO_SMALL if too_small else AuditVerdict.UNDECIDED,
        }
        for (question, p), p_value, too_small in zip(answers, p_values, holm(p_values, audit.family_error), strict=True)
    ]


def _shared(audit: Audit, question: Question, family: int) -> Row:
    return {
        "audit_id": audit.audit_id,
        "at": audit.at,
        "version": _VERSION,
        "config_sha256": audit.config_sha256,
        "corpus": audit.corpus,
        "seed": audit.seed,
        "family": family,
        "family_error": audit.family_error,
        **vars(question),
    }


HOLDING_VERDICTS = (AuditVerdict.HOLDS, AuditVerdict.CONSERVATIVE)
"""Verdicts on a rate that is known to be not too high."""


def holds_down_to(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the smallest threshold at and above which a question's rates are known to hold. None: at no threshold."""
    by_size = sorted(rows, key=lambda row: -row["threshold"])
    holding = [row["threshold"] for row in takewhile(lambda row: row["verdict"] in HOLDING_VERDICTS, by_size)]
    return min(holding) if holding else None


def wrong_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose verdict is that p-values are too small."""
    return [row for row in rows if row["verdict"] == AuditVerdict.TOO_SMALL]


_QUESTION = tuple(field.name for field in fields(Question))


def failing(rows: Sequence[Row], words: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for people on each question whose p-values are too small, about its largest wrong threshold.

    For example: "p-values are too small for decoys, all messages: 300 of 5,000 tests reached p = 0.01, where 50 were
    expected (after allowing for chance, still 260). Test: decoy_all gumbel;h=2 ngram".

    Args:
        rows: judged rows. Only those that are too small count.
        words: what each kind of row tests, for people.
    """
    wrong_by_question: dict[tuple[object, ...], list[Row]] = {}
    for row in wrong_rows(rows):
        wrong_by_question.setdefault((row["measure"], *(row[name] for name in _QUESTION)), []).append(row)
    for wrong in wrong_by_question.values():
        row = max(wrong, key=lambda row: row.get("threshold") or 0.0)
        subject = " ".join(filter(None, (words.get(row["kind"], row["kind"]), row["stratum"])))
        if row["key_id"]:
            subject += f" of key {row['key_id']}"
        test = " ".join(filter(None, (row["kind"], row["label"] or row["method"], row["dedup"])))
        if row["measure"] == "uniformity":
            yield f"p-values of {row['tests']:,} documents are too small to be uniform, for {subject}. Test: {test}"
            continue
        more = f", and too many at {counted(len(wrong) - 1, 'smaller threshold')}" if len(wrong) > 1 else ""
        yield (
            f"p-values are too small for {subject}: {row['hits']:,} of {row['tests']:,} tests reached p = "
            f"{row['threshold']:g}, where {number(row['expected'])} were expected (after allowing for chance, still "
            f"{number(row['low'])}){more}. Test: {test}"
        )


def number(count: float) -> str:
    """Write a count, which need not be whole, in few digits."""
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"
