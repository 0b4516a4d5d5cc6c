"""Add up counts of decoys over all shards of a scan, and state the questions that they answer.

Each text that is scored under a decoy, with one message or with all of them one by one, is in a stratum of both kinds:
by scored length, and by host.
"""

import math

import polars as pl

from scanner.audit.statistics.audit_rows import Question
from scanner.audit.statistics.hits import ClusterSums
from scanner.controls.control import ScanRows
from scanner.controls.decoys.distinct import DECOY_KEYS, pair_sums
from scanner.controls.decoys.text_observer import STRATA
from scanner.controls.decoys.whole_texts import DECISIONS
from schemas.audit import AUDIT_COUNTS

KEY_COLUMNS = ("kind", "method", "dedup", "messages", "label")
COUNT_KEY_COLUMNS = (*KEY_COLUMNS, "stratum", "threshold")

SUMMED_COLUMNS = ("texts", "tests", "hits", "expected", "hits_squared", "hits_times_expected", "expected_squared")
"""Columns of AUDIT_COUNTS that add up."""


def sum_counts(rows: ScanRows, kinds: frozenset[str]) -> pl.DataFrame:
    """Add up the counts of some kinds, over all shards. Texts under other keys have the same decoys, and count once."""
    counts = rows.counts.filter(pl.col("kind").is_in(sorted(kinds)) & ~pl.col("shard_id").is_in(list(rows.earlier)))
    # sorted, so that a sum is the same to its last digit in whichever order the rows are read
    sums = counts.group_by(COUNT_KEY_COLUMNS).agg(pl.col(SUMMED_COLUMNS).sort().sum())
    return sums.collect(engine="streaming")


def compare_decoys(rows: ScanRows) -> pl.DataFrame:
    """Count pairs of decoys over all shards, as columns of `sum_counts`: those of a piece, and those of two pieces.

    Pieces are compared by their least draws.
    """
    counts = rows.counts.filter(pl.col("kind") == DECOY_KEYS, ~pl.col("shard_id").is_in(list(rows.earlier)))
    pieces = counts.select(*COUNT_KEY_COLUMNS, "tests", "hits", "text").collect()
    summed = []
    for values, part in pieces.group_by(COUNT_KEY_COLUMNS, maintain_order=True):
        equal_pieces = sum(math.comb(number, 2) for number in part["text"].value_counts()["count"].to_list())
        pairs = int(part["tests"].sum()) + math.comb(len(part), 2)
        if not pairs:  # a single decoy has no other to be compared with
            continue
        alike = int(part["hits"].sum()) + equal_pieces
        columns = dict(zip(COUNT_KEY_COLUMNS, values, strict=True))
        sums = pair_sums(pairs, alike, columns["threshold"]).columns()
        summed.append(columns | {name: sums[name][0].item() for name in SUMMED_COLUMNS})
    schema = pl.DataFrame(AUDIT_COUNTS.empty_table()).select(*COUNT_KEY_COLUMNS, *SUMMED_COLUMNS).schema
    return pl.DataFrame(summed, schema=schema)


def law_answers(counts: pl.DataFrame, kinds: frozenset[str]) -> list[tuple[Question, ClusterSums]]:
    """Return the sums of each question on the law, of decoys with a key for each document, or on decoys themselves.

    The document is the cluster. For whole decisions, the cluster is the decoys of some documents together. For decoys
    themselves it is a pair of keys.
    """
    answers, law_counts = [], counts.filter(pl.col("kind").is_in(sorted(kinds)))
    for values, part in law_counts.sort(*KEY_COLUMNS, "threshold", descending=True).group_by(
        KEY_COLUMNS, maintain_order=True
    ):
        columns = dict(zip(KEY_COLUMNS, values, strict=True))
        cluster = "key" if columns["kind"] in (*DECISIONS, DECOY_KEYS) else "document"
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
