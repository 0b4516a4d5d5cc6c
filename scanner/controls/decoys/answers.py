"""Counts of decoys over all shards of a scan, and the questions that they answer.

Each text that is scored under a decoy, with one message or with all of them one by one, falls into a stratum of both
kinds: by scored length, and by host.
"""

import polars as pl

from scanner.audit.statistics.audit_rows import Question
from scanner.audit.statistics.hits import ClusterSums
from scanner.controls.control import ScanRows
from scanner.controls.decoys.text_observer import STRATA
from scanner.controls.decoys.whole_texts import DECISION, DECISION_WHOLE

KEY_COLUMNS = ("kind", "method", "dedup", "messages", "label")
COUNT_KEY_COLUMNS = (*KEY_COLUMNS, "stratum", "threshold")

SUMMED_COLUMNS = ("texts", "tests", "hits", "expected", "hits_squared", "hits_times_expected", "expected_squared")
"""Columns of AUDIT_COUNTS that add up."""


def sum_counts(rows: ScanRows, kinds: frozenset[str]) -> pl.DataFrame:
    """Add up the counts of some kinds, over all shards: texts under other keys have the same decoys, and count once."""
    counts = rows.counts.filter(pl.col("kind").is_in(sorted(kinds)) & ~pl.col("shard_id").is_in(list(rows.earlier)))
    # sorted, so that a sum is the same to its last digit in whatever order the rows are read
    sums = counts.group_by(COUNT_KEY_COLUMNS).agg(pl.col(SUMMED_COLUMNS).sort().sum())
    return sums.collect(engine="streaming")


def law_answers(counts: pl.DataFrame, kinds: frozenset[str]) -> list[tuple[Question, ClusterSums]]:
    """Return the sums of each question on the law, of decoys with a key for each document.

    The document is the cluster. For whole decisions, the decoys of some documents together are the cluster.
    """
    answers, law_counts = [], counts.filter(pl.col("kind").is_in(sorted(kinds)))
    for values, part in law_counts.sort(*KEY_COLUMNS, "threshold", descending=True).group_by(
        KEY_COLUMNS, maintain_order=True
    ):
        columns = dict(zip(KEY_COLUMNS, values, strict=True))
        cluster = "key" if columns["kind"] in (DECISION, DECISION_WHOLE) else "document"
        answers.append((Question(test="exact", cluster=cluster, **columns), ClusterSums.of_columns(part.to_dict())))
    return answers


def strata_answers(counts: pl.DataFrame, dedup: str) -> list[tuple[Question, ClusterSums]]:
    """Return the sums of each part of the traffic, whatever the keys. The document is the cluster."""
    groups = counts.filter(pl.col("kind").is_in(STRATA)).group_by("kind", "stratum", "threshold")
    sums = groups.agg(pl.col(SUMMED_COLUMNS).sort().sum()).sort(
        "kind", "stratum", "threshold", descending=[False, False, True]
    )
    return [
        (
            Question(str(kind), "exact", "all", "document", dedup=dedup, stratum=str(stratum)),
            ClusterSums.of_columns(part.to_dict()),
        )
        for (kind, stratum), part in sums.group_by("kind", "stratum", maintain_order=True)
    ]
