"""Answers that the counts of a scan's shards give, question by question: sums over clusters that can be judged."""

import numpy as np
import polars as pl

from scanner.audit.in_every_scan.traffic import Traffic
from scanner.audit.statistics.audit_rows import Question
from scanner.audit.statistics.judgement import Moments
from scanner.detection.scan_plan import Plan
from scanner.watermark.formats import format_of
from schemas.audit_tables import DECISION, DECISION_WHOLE, STRATA
from schemas.registry import MasterKey

ABOUT = ("kind", "method", "gamma", "window", "dedup", "messages", "label")
SAME = (*ABOUT, "decoy", "key_id", "stratum", "threshold")

COUNTED = ("texts", "tests", "hits", "expected", "hits_squared", "hits_times_expected", "expected_squared")
"""Columns of AUDIT_COUNTS that add up."""


def columns_of(key: MasterKey) -> dict[str, object]:
    """Columns of AUDITS that describe a key."""
    return {"messages": key.messages, "key_id": key.key_id, "commitment": key.commitment}


def fresh_answers(decoys: pl.DataFrame) -> list[tuple[Question, Moments]]:
    """One key a document, which is the cluster; of whole decisions, decoys of some documents together."""
    answers = []
    for values, part in decoys.sort(*ABOUT, "threshold", descending=True).group_by(ABOUT, maintain_order=True):
        about = dict(zip(ABOUT, values, strict=True))
        cluster = "key" if about["kind"] in (DECISION, DECISION_WHOLE) else "document"
        answers.append((Question(test="exact", cluster=cluster, **about), Moments.of_columns(part.to_dict())))
    return answers


def strata_answers(decoys: pl.DataFrame, dedup: str) -> list[tuple[Question, Moments]]:
    """Each part of the traffic, whatever the keys: the document is the cluster."""
    of_all = decoys.filter(pl.col("kind").is_in(STRATA)).group_by("kind", "stratum", "threshold")
    sums = of_all.agg(pl.col(COUNTED).sum()).sort("kind", "stratum", "threshold", descending=[False, False, True])
    return [
        (
            Question(str(kind), "exact", "all", "document", dedup=dedup, stratum=str(stratum)),
            Moments.of_columns(part.to_dict()),
        )
        for (kind, stratum), part in sums.group_by("kind", "stratum", maintain_order=True)
    ]


def answers_of_keys(plan: Plan, decoys: pl.DataFrame, kind: str, cluster: str) -> list[tuple[Question, Moments]]:
    """Counts under keys themselves, by clusters that `decoy` numbers.

    For shadows, messages beyond those of keys of one message, the message is the cluster, as it is for reserved
    messages. For knockoffs a part of the users is the cluster.
    """
    answers, counts = [], decoys.filter(pl.col("kind") == kind)
    for key in plan.keys:
        of_key = counts.filter(pl.col("key_id") == key.key_id)
        if len(of_key):
            about = Question.about(kind, "exact", cluster, format_of(key), plan.config.dedup, **columns_of(key))
            answers.append((about, _clustered(of_key)))
    return answers


def _clustered(counts: pl.DataFrame) -> Moments:
    """Sums over clusters, which the column `decoy` names, at each threshold from large to small."""
    by_cluster = counts.group_by("threshold", "decoy").agg(pl.col("tests", "hits").sum(), pl.col("expected").sum())
    sums = (
        by_cluster.group_by("threshold")
        .agg(
            pl.col("tests", "hits", "expected").sum(),
            hh=(pl.col("hits") ** 2).sum(),
            he=(pl.col("hits") * pl.col("expected")).sum(),
            ee=(pl.col("expected") ** 2).sum(),
            clusters=pl.len(),
        )
        .sort("threshold", descending=True)
    )
    return Moments(**{name: sums[name].to_numpy().astype(np.float64) for name in Moments._fields})


def unheld_moments(traffic: Traffic, rate: float) -> Moments:
    """Flags for messages that nobody held, where a text is flagged by chance at the rate."""
    hits, texts, chance = float(traffic.unheld), float(traffic.texts), rate
    sums = {"tests": texts, "hits": hits, "expected": texts * chance, "clusters": texts}
    squares = {"hh": hits, "he": hits * chance, "ee": texts * chance**2}  # a text is one test: its hit is 0 or 1
    return Moments(**{name: np.array([value]) for name, value in (sums | squares).items()})
