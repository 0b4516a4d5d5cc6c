"""Counts of an audit as rows of the audits table: the families of tests, fixed by the configuration alone.

Each family gets an even share of the family-wise error: the law's methods, the best of
all messages, the law's cases, their uniformity, disjoint pieces, names in marked text, the keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scanner.audit.calibration.calibration_plan import CalibrationPlan
from scanner.audit.calibration.disjoint_pieces import PANELS, PieceCounts
from scanner.audit.calibration.law import Case, LawCounts
from scanner.audit.calibration.names import DEDUP, NAMES_AT, NamesCase, NamesCounts
from scanner.audit.calibration.one_key import KeyCounts
from scanner.audit.statistics.audit_rows import Audit, Question, Row, rate_rows, uniformity_rows
from scanner.audit.statistics.expectation import THRESHOLDS
from scanner.audit.statistics.judgement import KEY_BOUND, Moments, moments
from scanner.watermark import Format
from scanner.watermark.formats import format_of
from schemas.registry import AuditedFilter, MasterKey

PIECES_JUDGED = 6
"""Powers of ten at which disjoint pieces are judged, from 1e-1 down: below them, a million tests decide nothing."""


def all_rows(
    audit: Audit,
    plan: CalibrationPlan,
    law: Mapping[Case, LawCounts],
    pieces: Mapping[Format, PieceCounts],
    piece_thresholds: tuple[float, ...],
    names: Mapping[NamesCase, NamesCounts],
    keys: Mapping[str, KeyCounts],
    filters: Mapping[str, AuditedFilter],
) -> list[Row]:
    """Judge all counts.

    Args:
        audit: the run.
        plan: the audit's plan.
        law: counts by case.
        pieces: counts by format, at piece_thresholds.
        piece_thresholds: α from large to small.
        names: counts by case.
        keys: counts by key id.
        filters: by key id, of keys that were audited without common n-grams.
    """
    families = 4 * bool(law) + bool(pieces) + bool(names) + bool(keys)
    share = replace(audit, family_error=audit.family_error / max(families, 1))
    rows: list[Row] = []
    if law:
        rows += _law_rows(share, law)
    if pieces:
        rows += _piece_rows(share, pieces, piece_thresholds)
    if names:
        rows += rate_rows(share, _names_answers(names), NAMES_AT)
    if plan.audited is not None:
        cluster = "account" if plan.columns.account else "document"
        dedup = plan.audited.config.dedup
        answers = [
            answer
            for key in plan.audited.keys
            for answer in _key_answers(key, keys[key.key_id], filters.get(key.key_id), dedup, cluster)
        ]
        rows += rate_rows(share, answers, THRESHOLDS, KEY_BOUND)
    return rows


def _law_rows(audit: Audit, law: Mapping[Case, LawCounts]) -> list[Row]:
    questions = [Question.about("law", "exact", "document", case.format, case.dedup) for case in law]
    single = list(zip(questions, (found.sums for found in law.values()), strict=True))
    best = [
        (replace(question, kind="law_best", messages=case.messages), found.best)
        for question, (case, found) in zip(questions, law.items(), strict=True)
    ]
    return (
        rate_rows(audit, _by_method(single), THRESHOLDS)
        + rate_rows(audit, _by_method(best), THRESHOLDS)
        + rate_rows(audit, single, THRESHOLDS)
        + uniformity_rows(audit, list(zip(questions, (found.uniform for found in law.values()), strict=True)))
    )


def _by_method(answers: Sequence[tuple[Question, Moments]]) -> list[tuple[Question, Moments]]:
    """The cases of each method together: their documents have keys of their own, so they are further clusters."""
    totals: dict[Question, Moments] = {}
    for question, sums in answers:
        whole = replace(question, kind=f"{question.kind}_total", gamma=None, window=None, dedup=None, label=None)
        totals[whole] = totals[whole].plus(sums) if whole in totals else sums
    return list(totals.items())


def _piece_rows(audit: Audit, pieces: Mapping[Format, PieceCounts], thresholds: tuple[float, ...]) -> list[Row]:
    at = [int(np.argmin(np.abs(np.log10(thresholds) + k))) for k in range(1, PIECES_JUDGED + 1)]
    answers = []
    for how, found in pieces.items():
        for i, (test, dedup) in enumerate(PANELS):
            hits = found.hits[:, i][:, at]
            chance = np.broadcast_to(found.expected[i][at] / found.tests, hits.shape)
            question = Question.about("figure", test, "key", how, dedup)
            answers.append((question, moments(hits, np.full(len(hits), found.tests), chance)))
    return rate_rows(audit, answers, THRESHOLDS[:PIECES_JUDGED])


def _names_answers(names: Mapping[NamesCase, NamesCounts]) -> list[tuple[Question, Moments]]:
    """Texts of all lengths together: their keys and windows differ, so each is a test of its own."""
    totals: dict[Question, Moments] = {}
    for case, found in names.items():
        users = case.users_in_words
        question = Question.about(case.kind, users, "document", case.format, DEDUP, messages=case.messages)
        totals[question] = totals[question].plus(found.sums) if question in totals else found.sums
    return list(totals.items())


def _key_answers(
    key: MasterKey, found: KeyCounts, without: AuditedFilter | None, dedup: str, cluster: str
) -> list[tuple[Question, Moments]]:
    of_key = {"messages": key.messages, "key_id": key.key_id, "commitment": key.commitment}
    of_filter = {} if without is None else {f"filter_{name}": value for name, value in without.model_dump().items()}
    best = Question.about("key", "exact", cluster, format_of(key), dedup, **of_key, **of_filter)
    single = replace(best, kind="key_messages", cluster="message", messages=1)
    return [(best, found.by_cluster()), (single, found.by_message())]
