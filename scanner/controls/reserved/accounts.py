"""Count accounts whose best message is reserved, on workers as for texts, and bound how many are expected.

An account is tested as one text of all its posts, so the bound for texts holds for it too: the chance that one message
of an unmarked account has a small corrected p is at most that of its own p (scanner.controls.reserved.expectation).
Workers sum it over the accounts that they test. Flags for other messages are left out, because the best message of text
marked for them is its own. The number of tests is computed as in proofs (scanner.detection.stated_shares), so a
correction that the look at accounts drops shows.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.audit.statistics.audit_rows import Question
from scanner.audit.statistics.hits import LOG10_THRESHOLDS, THRESHOLDS, ClusterSums
from scanner.controls.control import DecidedAccounts
from scanner.controls.reserved.expectation import columns_of, single_p
from scanner.controls.reserved.texts import LARGEST_P
from scanner.detection.attribution import BatchOrigin
from scanner.detection.rows import TextIds
from scanner.detection.stated_shares import StatedShares, account_correction
from scanner.scan_plan import Plan
from scanner.watermark.formats import format_of
from schemas.audit import AUDIT_COUNTS, RESERVED_ACCOUNT, SCORED_ACCOUNTS
from schemas.registry import MasterKey, is_reserved, reserved_count


class AccountHits(NamedTuple):
    """Accounts of one key whose best message is reserved.

    message: int64[H].
    log10_p: float64[H], log10 of the threshold that each is at or below.
    accounts: number of accounts scored under the key, without those that are flagged for other messages.
    expected: expected hits of each message, float64[J].
    """

    message: NDArray[np.int64]
    log10_p: NDArray[np.float64]
    accounts: int
    expected: NDArray[np.float64]

    def without(self, number: int) -> "AccountHits":
        """Return the hits without `number` accounts, those of the smallest p."""
        others = np.sort(np.argsort(self.log10_p, kind="stable")[number:])
        return self._replace(message=self.message[others], log10_p=self.log10_p[others])

    def sums(self, messages: int) -> ClusterSums:
        """Sum the hits and the largest expectation. The reserved messages among `messages` are the clusters."""
        _, whose = np.unique(self.message, return_inverse=True)
        hits = np.zeros((int(whose.max(initial=-1)) + 1, len(THRESHOLDS)))
        np.add.at(hits, whose, self.log10_p[:, None] <= LOG10_THRESHOLDS[None, :] + _ROUNDING)
        count = np.full(len(THRESHOLDS), float(reserved_count(messages)))
        return ClusterSums(
            tests=count * self.accounts,
            hits=hits.sum(axis=0),
            expected=count * self.expected,
            hh=(hits * hits).sum(axis=0),
            he=hits.sum(axis=0) * self.expected,
            ee=count * self.expected * self.expected,
            clusters=count,
        )


_ROUNDING = 1e-9  # in the logarithm of a threshold


def account_answers(plan: Plan, hits: Mapping[str, AccountHits]) -> list[tuple[Question, ClusterSums]]:
    """Return the hits of reserved messages of each key under which accounts were scored."""
    answers = []
    for key in plan.keys:
        if reserved_count(key.messages) and key.key_id in hits and hits[key.key_id].accounts:
            question = Question.about(
                "reserved_accounts", "exact", "message", format_of(key), plan.config.dedup, **columns_of(key)
            )
            answers.append((question, hits[key.key_id].sums(key.messages)))
    return answers


def reserved_accounts(plan: Plan, origin: BatchOrigin, decided: DecidedAccounts, ids: TextIds) -> list[pa.RecordBatch]:
    """Return rows of AUDIT_COUNTS on some accounts: those whose best message is reserved at p ≤ 0.1, and all.

    Args:
        plan: plan of the scan.
        origin: as in each row.
        decided: decisions on the accounts.
        ids: returns keyed digests of their names.
    """
    rows = [
        row
        for key in plan.keys
        if key.key_id in decided.scored and reserved_count(key.messages)
        for row in (*_hit_rows(key, decided, ids), *_scored_rows(plan, key, decided))
    ]
    shared = origin._asdict() | {"dedup": plan.config.dedup, "scanned_at": datetime.now(UTC)}
    return [pa.RecordBatch.from_pylist([shared | row for row in rows], AUDIT_COUNTS)] if rows else []


def _hit_rows(key: MasterKey, decided: DecidedAccounts, ids: TextIds) -> Iterator[dict[str, Any]]:
    is_hit = np.array(
        [
            key_id == key.key_id and message >= 0 and is_reserved(message)
            for key_id, message in zip(decided.key_ids, decided.message.tolist(), strict=True)
        ],
        np.bool_,
    )
    places = np.flatnonzero(is_hit & (decided.log10_p <= LOG10_THRESHOLDS[0])).tolist()
    digests = ids.for_audit(pa.array([decided.digests[place] for place in places], pa.binary()))
    for place, digest in zip(places, digests, strict=True):
        log10_p = float(decided.log10_p[place])
        yield _columns(key) | {
            "kind": RESERVED_ACCOUNT,
            "threshold": min(alpha for alpha in THRESHOLDS if log10_p <= np.log10(alpha)),
            **dict.fromkeys(("texts", "tests", "hits"), 1),
            "expected": 0.0,
            "message": int(decided.message[place]),
            "text": digest,
            "account_id": decided.account_ids[place] if log10_p <= np.log10(LARGEST_P) else None,
        }


def _scored_rows(plan: Plan, key: MasterKey, decided: DecidedAccounts) -> Iterator[dict[str, Any]]:
    """Yield how many accounts were scored under a key, and the sum of one message's chance at each threshold."""
    correction = account_correction(StatedShares.of_config(plan.config), key, plan.keys_tested)
    is_for_another = decided.flagged & np.array([not is_reserved(message) for message in decided.message.tolist()])
    scored = decided.scored[key.key_id]
    scored = scored[(scored >= max(plan.config.min_scored, 1)) & ~is_for_another]
    if correction is None or not len(scored):
        return
    lengths, accounts = np.unique(scored, return_counts=True)
    levels = single_p(THRESHOLDS, key.messages, correction)
    expected = accounts @ format_of(key).found_chance(lengths, levels)
    for alpha, chance in zip(THRESHOLDS, expected.tolist(), strict=True):
        number = dict.fromkeys(("texts", "tests"), len(scored))
        yield _columns(key) | number | {"kind": SCORED_ACCOUNTS, "threshold": alpha, "hits": 0, "expected": chance}


def _columns(key: MasterKey) -> dict[str, Any]:
    key_format = format_of(key)
    return {
        "method": key_format.name,
        "label": key_format.label(),
        "messages": key.messages,
        "key_id": key.key_id,
        **dict.fromkeys(("hits_squared", "hits_times_expected", "expected_squared"), 0.0),
    }


def count_accounts(rows: Sequence[Mapping[str, Any]]) -> dict[str, AccountHits]:
    """Count accounts by key, from rows of AUDIT_COUNTS whose kind is RESERVED_ACCOUNT or SCORED_ACCOUNTS."""
    counted = {}
    for key_id in sorted({row["key_id"] for row in rows}):
        of_key = [row for row in rows if row["key_id"] == key_id]
        hits = [row for row in of_key if row["kind"] == RESERVED_ACCOUNT]
        scored = [row for row in of_key if row["kind"] == SCORED_ACCOUNTS]
        expected = [sum(row["expected"] for row in scored if row["threshold"] == alpha) for alpha in THRESHOLDS]
        counted[key_id] = AccountHits(
            np.array([row["message"] for row in hits], np.int64),
            np.log10(np.array([row["threshold"] for row in hits], np.float64)),
            sum(row["tests"] for row in scored if row["threshold"] == THRESHOLDS[0]),
            np.array(expected),
        )
    return counted
