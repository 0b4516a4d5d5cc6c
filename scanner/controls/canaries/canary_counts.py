"""Count canaries: texts marked for users who do not exist. A scan must find and name them.

A wrong tokenizer, key, window or table of users makes a quiet night. Decoys cannot tell it from a night without marked
text. The serving side marks canaries on its real path, and their accounts post them. This file counts how many came,
were found, and were named for the right user (scanner.registry.users makes them).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from scanner.audit.statistics.audit_rows import Audit, Question, Row, number, row_of
from scanner.audit.statistics.judgement import Judgement, binomial_limits, binomial_tail
from scanner.error_shares import AS_WRITTEN
from scanner.scan_plan import Plan
from scanner.watermark.rule import corrected, passes
from schemas.registry import Canaries, Canary
from schemas.words import AuditVerdict, Naming

_TOO_FEW = (AuditVerdict.TOO_FEW, AuditVerdict.TOO_MANY)

CANARY_WORDS = {"canary_found": "found", "canary_right": "named right", "canary_wrong": "named for another user"}
"""Kinds of the rows, each with words for people."""

KINDS = tuple(CANARY_WORDS)


class CanaryCounts(NamedTuple):
    """Counts over distinct texts of canaries' accounts.

    due: texts that should have come, at least as many as came.
    came: texts that were scanned.
    found: texts flagged with the key and message of their canary.
    right: texts found and, if their key names users, named for their canary.
    wrong: texts named for another user.
    """

    due: int
    came: int
    found: int
    right: int
    wrong: int


def count_canaries(verdicts: pl.LazyFrame, canaries: Sequence[Canary], due: int) -> CanaryCounts:
    """Count how many canaries came and were found.

    Args:
        verdicts: rows of schemas.tables.VERDICTS.
        canaries: all that the registry ever made.
        due: smallest number of texts that should have come.
    """
    held = pl.LazyFrame(
        [(canary.account_id, canary.key_id, canary.message, canary.names) for canary in canaries],
        {"account_id": pl.String, "key_id": pl.String, "message": pl.Int64, "names": pl.Boolean},
        orient="row",
    )
    ids = list({canary.account_id for canary in canaries})
    texts = verdicts.filter(pl.col("account_id").is_in(ids))
    # under keys other than its own a canary is not flagged, in separate rows
    first = ["flagged", "account_id", "path", "row", "key_id"]  # whatever was committed first
    texts = texts.sort(first, descending=[True, *[False] * 4]).unique("text_id", keep="first")
    named, by_itself = pl.col("naming") == Naming.NAMED, pl.col("user_id") == pl.col("account_id")
    is_found = (pl.col("flagged") & pl.col("names").is_not_null()).fill_null(value=False)
    sums = (
        texts.join(held, on=["account_id", "key_id", "message"], how="left")
        .select(
            came=pl.len(),
            found=is_found.sum(),
            right=(is_found & (~pl.col("names") | (named & by_itself))).sum(),
            wrong=(named & ~by_itself).sum(),
        )
        .collect(engine="streaming")
    )
    came, *rest = map(int, sums.row(0))
    return CanaryCounts(max(due, came), came, *rest)


class CanaryTargets(NamedTuple):
    """Smallest shares of canaries' texts that a scan should find, and name right.

    estimated: whether they are limits of a sample.
    """

    found: float
    right: float
    estimated: bool = False


def risk_of_row(audit: Audit) -> float:
    """Return the probability that a row is wrong.

    If its plan is an estimate, the row has half of the probability, and the estimate has the other half.
    """
    return audit.family_error / len(KINDS)


def planned_of(plan: Plan, canaries: Canaries, risk: float) -> CanaryTargets:
    """Return the planned shares under the keys, looks and rates of a scan, from the texts measured for canaries.

    A share of the measured texts is an estimate, so its lower limit is planned. For several keys, it is the least
    limit. Only the look at whole documents as written counts. Its weight is the one in texts that are their own normal
    form, as texts written by a model are. Other looks find some more.

    Args:
        plan: plan of the scan.
        canaries: with the texts that were measured for them.
        risk: probability that the limits of a share are wrong.
    """
    config, shares = plan.config, []
    rate_of_names = config.misnaming_rate or config.false_positive_rate
    keys = {key.key_id: key for key in plan.keys}
    for strength in canaries.measured:
        if key := keys.get(strength.key_id):
            correction = plan.corrections_of(key)[AS_WRITTEN, 0, 1]
            hits = passes(corrected(strength.log10_p, key.messages, correction), config.false_positive_rate)
            hits &= np.array(strength.scored) >= config.min_scored
            named = hits & passes(corrected(strength.log10_p_own, 1, correction), rate_of_names)
            shares.append([binomial_limits(int(mask.sum()), len(mask), risk).low for mask in (hits, named)])
    if not shares:
        return CanaryTargets(canaries.power, canaries.power)
    found_share, right_share = np.min(shares, axis=0).tolist()
    return CanaryTargets(found_share, right_share, estimated=True)


def judge_canaries(
    audit: Audit, counted: CanaryCounts, planned: CanaryTargets, false_positive_rate: float
) -> list[Row]:
    """Return rows of AUDITS on canaries, which share the family error. Empty if no canary was due.

    Texts found or named right are `too few` if the upper limit of their share is below the planned one. Texts named for
    others are `too many` if the lower limit of their share is above the false-positive rate.

    Args:
        audit: the run, with the probability that any row is wrong although marks are found as planned.
        counted: counts of the canaries' texts.
        planned: planned shares of texts found, and named right.
        false_positive_rate: of the scan.
    """
    if not counted.due:
        return []
    rows = list[Row]()
    shares = (planned.found, planned.right, false_positive_rate)
    for kind, hits, share in zip(KINDS, (counted.found, counted.right, counted.wrong), shares, strict=True):
        wrong = kind == "canary_wrong"
        risk = risk_of_row(audit) / (2 if planned.estimated and not wrong else 1)
        low, high = binomial_limits(hits, counted.due, risk)
        above = binomial_tail(hits, counted.due, share)  # at least so many
        below = 1.0 - binomial_tail(hits + 1, counted.due, share) if hits < counted.due else 1.0
        verdict = AuditVerdict.UNDECIDED
        if wrong and low > share:
            verdict = AuditVerdict.TOO_MANY
        elif not wrong and high < share:
            verdict = AuditVerdict.TOO_FEW
        question = Question(kind, "exact", "all", "document")
        p_value = above if wrong else below
        judged = Judgement(p_value, low * counted.due, high * counted.due, verdict)
        rows.append(row_of(audit, question, len(KINDS), counted.due, hits, share, judged))
    return rows


def canaries_lost(rows: Sequence[Mapping[str, object]]) -> bool:
    """Return whether any row on canaries raises the alarm."""
    return any(row["kind"] in KINDS and row["verdict"] in _TOO_FEW for row in rows)


def canary_alarms(rows: Sequence[Row], came: int) -> list[str]:
    """Return a sentence for each row that raises the alarm, with advice."""
    rows_by_kind = {row["kind"]: row for row in rows if row["kind"] in KINDS and row["verdict"] in _TOO_FEW}
    if not rows_by_kind:
        return []
    sentences = [
        f"{row['hits']:,} of {row['tests']:,} canaries were {CANARY_WORDS[kind]}, where "
        f"{number(row['expected'])} were {'expected' if kind == 'canary_wrong' else 'planned'}"
        for kind, row in rows_by_kind.items()
    ]
    due = next(iter(rows_by_kind.values()))["tests"]
    if came < due / 2:
        advice = "Most did not arrive: check that the serving side marked them and that the export contains them."
    elif "canary_found" in rows_by_kind:
        advice = (
            "They arrived and were not found, so other marked text is missed as well: check that the serving side "
            "marks with the keys, windows, tokenizers and users of this registry, and that the texts arrive unchanged."
        )
    elif "canary_wrong" in rows_by_kind:
        advice = (
            "They were found, and named for others: the users of this registry are not those of the serving side. Name "
            "nobody by this scan; see `brickscan users verify`."
        )
    else:
        advice = "They were found, and too few were named. `brickscan flagged` lists the others, with the reason."
    return [*sentences, advice]


def canaries_in_words(rows: Sequence[Row], counted: CanaryCounts) -> list[str]:
    """Return a line on canaries, with limits and the plan. Empty if none were due."""
    sentences = [
        f"{CANARY_WORDS[row['kind']]} {row['hits']:,} ({number(row['low'])} to {number(row['high'])}"
        + (")" if row["kind"] == "canary_wrong" else f"; planned {number(row['expected'])})")
        for row in rows
        if row["kind"] in KINDS
    ]
    return [f"{counted.came:,} of {counted.due:,} texts arrived: {', '.join(sentences)}"] if sentences else []
