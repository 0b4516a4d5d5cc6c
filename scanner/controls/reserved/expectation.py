"""Bound how often reserved messages hit by chance.

A document whose best message is reserved is named for no user. For unmarked text, the probability of this is the share
of reserved messages. P(best message reserved and p ≤ α) ≤ Σ over reserved messages of P(that message's own p ≤ a, and
the search finds it). The corrections for messages and keys turn a into α. This bounds the expected number, whatever the
messages share. A search of groups finds a third to two thirds of these messages, depending on the length of the text.
The best message of a marked text is its own, so it adds nothing here and hides nothing.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.audit_rows import Question
from scanner.audit.statistics.hits import THRESHOLDS, ClusterSums
from scanner.controls.traffic import Traffic
from scanner.scan_plan import Plan
from scanner.watermark.formats import format_of
from schemas.registry import MasterKey, reserved_count


def single_p(alpha: Sequence[float], messages: int, correction: float) -> NDArray[np.float64]:
    """Return the p of a single message that the corrections for M messages and K keys turn into α: float64[J]."""
    return np.asarray(-np.expm1(np.log1p(-np.asarray(alpha)) / (messages * correction)), np.float64)


def unmarked(traffic: Traffic, false_positive_rate: float) -> float:
    """Return the number of texts that may have a reserved message as the best by chance.

    It counts all texts except flags for other messages that chance cannot explain. The best message of a marked text is
    its own. If such texts counted in the expectation, they would hide a key that hits too often among the others.
    """
    for_others = traffic.flagged - traffic.reserved
    return traffic.texts - max(0.0, for_others - traffic.texts * false_positive_rate)


def _found(traffic: Traffic, key: MasterKey, correction: float) -> NDArray[np.float64]:
    """Return the chance that one message of a text is found at each corrected p, the mean over texts: float64[J]."""
    # The number of scored positions is that under the key of the row, and may differ under another tokenizer.
    levels = single_p(THRESHOLDS, key.messages, correction)
    if not traffic.lengths:
        return levels
    scored, texts = np.array(sorted((t, n) for t, n in traffic.lengths.items() if t > 0), np.int64).T
    return np.asarray(texts @ format_of(key).found_chance(scored, levels) / texts.sum(), np.float64)


def reserved_moments(
    traffic: Traffic,
    texts: float,
    key: MasterKey,
    tested: NDArray[np.float64],
    hits: NDArray[np.int64],
    of_spans: NDArray[np.float64] | float = 0.0,
) -> ClusterSums:
    """Sum hits of a key's reserved messages and the largest expectation, with the messages as clusters.

    One key reads the same n-grams in many texts, and each message reads them with other draws.

    Args:
        traffic: counts over distinct texts.
        texts: number of texts that may have a reserved message as the best by chance, above 0.
        key: the key of the messages.
        tested: K of SPEC §3, float64[variant, has_normal_form, has_parts] (ErrorShares.corrections). The kind of text
            with the largest expectation counts for all.
        hits: hits of each message at each threshold, int64[R, J].
        of_spans: chance that a text has a message in another way, for example by a flagged span: float64[J].
    """
    message_hits = hits.astype(np.float64)
    count = np.full(len(THRESHOLDS), float(reserved_count(key.messages)))
    kinds = []
    for has_normal_form, has_parts in product((0, 1), repeat=2):
        tests_of_looks = tested[: 1 + has_normal_form, has_normal_form, has_parts].tolist()
        look_chances = [_found(traffic, key, tests) for tests in tests_of_looks]
        kinds.append(np.sum([*look_chances, np.broadcast_to(of_spans, len(THRESHOLDS)) * has_parts], axis=0))
    expected_hits = texts * np.max(kinds, axis=0)
    return ClusterSums(
        tests=count * texts,
        hits=message_hits.sum(axis=0),
        expected=count * expected_hits,
        hh=(message_hits * message_hits).sum(axis=0),
        he=message_hits.sum(axis=0) * expected_hits,
        ee=count * expected_hits * expected_hits,
        clusters=count,
    )


def reserved_answers(
    plan: Plan, traffic: Traffic, hits: Mapping[str, NDArray[np.int64]]
) -> list[tuple[Question, ClusterSums]]:
    """Return the hits of reserved messages of each key that has any.

    Args:
        plan: plan of the scan.
        traffic: counts over distinct texts.
        hits: int64[R, J], by key. Other keys have none.
    """
    texts, none = unmarked(traffic, plan.config.false_positive_rate), np.zeros((0, len(THRESHOLDS)), np.int64)
    return [
        (
            Question.about("reserved", "exact", "message", how, plan.config.dedup, **columns_of(key)),
            reserved_moments(
                traffic,
                texts,
                key,
                plan.corrections_of(key),
                hits.get(key.key_id, none),
                _by_spans(plan, key),
            ),
        )
        for key, how in ((key, format_of(key)) for key in plan.keys)
        if reserved_count(key.messages) and traffic.texts and how.law() is not None
    ]


def _by_spans(plan: Plan, key: MasterKey) -> NDArray[np.float64] | float:
    """Return the chance that a flagged span of a text has a reserved message, by threshold.

    Only flagged spans are written.
    """
    correction = plan.weights.correction_of_spans(key, plan.keys_tested)
    if correction is None:
        return 0.0
    return single_p(np.minimum(THRESHOLDS, plan.config.false_positive_rate).tolist(), key.messages, correction)


def columns_of(key: MasterKey) -> dict[str, object]:
    """Return columns of AUDITS that describe a key."""
    return {"messages": key.messages, "key_id": key.key_id, "commitment": key.commitment}
