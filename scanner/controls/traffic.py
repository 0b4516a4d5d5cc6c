"""Counts over distinct texts, answers of shards, and parts of the traffic that are judged alone.

Each document that is scored under a decoy, with one message or with all of them one by one, falls into a stratum of
both kinds: by scored length, and by host.

A document whose best message is reserved names nobody. For text that nobody marked, its probability is the share of
reserved messages. P(best message reserved and p ≤ α) ≤ Σ over reserved messages of P(that message's own p ≤ a, and the
search finds it), where the corrections for messages and keys take a to α. This bounds the expected number, whatever the
messages share. A search of groups finds a third to two thirds of these messages, by the length of the text. A
marked text has its own message as the best, so it adds nothing here and hides nothing.

A text posted a million times is one piece of evidence: rows are joined by the digest of their text, over all shards.
Memory stays flat: digests are taken a share at a time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.audit.statistics.audit_rows import Question
from scanner.audit.statistics.hits import THRESHOLDS, ClusterSums
from scanner.controls.reserved.framing import HitsWithoutTopAccounts, without_top_accounts
from scanner.controls.reserved.texts import LARGEST_P
from scanner.results.expected_false_flags import ExpectedFalseFlags
from scanner.watermark.formats import format_of
from schemas.audit import DECISION, DECISION_WHOLE, STRATA
from schemas.registry import MasterKey, is_reserved, reserved_count
from schemas.tables import SCORED
from schemas.words import Naming

ROWS_JOINED_AT_A_TIME = 1 << 23
"""Rows of verdicts that are joined at a time, about."""

_ROOM = 1e-9  # for rounding in the logarithm of a threshold


class Traffic(NamedTuple):
    """Counts of distinct texts.

    texts: scored; flagged, reserved, unheld: flagged at all, for a reserved message, for a message that nobody holds.
    hits: by key, int64[R, J]: for each reserved message that is the best of a text at p ≤ 0.1, the texts at each of J
        thresholds.
    scans: ids of the scans that wrote the verdicts.
    without_top_accounts: by key, its hits without the texts of the account that hits most, of the two that do, and on.
    unproved, unproved_accounts: rows, and accounts, whose proof came out differently.
    lengths: texts by number of scored positions, as rows have it.
    pieces: of evidence that the flagged texts are, as fillings of one template are one (scanner.detection.sketches);
        None: too many to tell.
    false_flags: how many of the flagged texts are expected to be false; None: not counted.
    """

    texts: int
    flagged: int
    reserved: int
    unheld: int
    hits: Mapping[str, NDArray[np.int64]]
    scans: tuple[str, ...]
    without_top_accounts: Mapping[str, tuple[HitsWithoutTopAccounts, ...]] = MappingProxyType({})
    unproved: int = 0
    unproved_accounts: int = 0
    lengths: Mapping[int, int] = MappingProxyType({})
    pieces: int | None = None
    false_flags: ExpectedFalseFlags | None = None


def measure(verdicts: pl.LazyFrame, log10_rate: float, reserved: pl.LazyFrame) -> Traffic:
    """Count distinct texts that have a p-value. Scores of formats without a law test nothing.

    Args:
        verdicts: rows of schemas.tables.VERDICTS, of one list of keys, flagged rows with their p-values.
        log10_rate: log10 of the false-positive rate: flags at or below it count.
        reserved: rows of schemas.audit.AUDIT_COUNTS whose kind is RESERVED_TEXT.
    """
    has_p = pl.col("p_class").is_not_null() | pl.col("log10_p_global").is_not_null()
    scored = verdicts.filter(pl.col("status").is_in(SCORED), has_p)
    rows, scans, unproved = pl.collect_all(
        [
            scored.select(pl.len()),
            verdicts.select(pl.col("scan_id").unique().sort()),
            verdicts.select((pl.col("naming") == Naming.UNPROVED).sum()),
        ],
        engine="streaming",
    )
    # copies of a text have one p-value and one message, whose holder may depend on when a copy was written
    texts = scored.select(
        text=pl.col("text_id").hash(0),
        flagged=(pl.col("flagged") & (pl.col("log10_p_global") <= log10_rate)).fill_null(value=False),
        reserved=is_reserved(pl.col("message")),
        # a key of one message marks for everybody alike, so that nobody holds it
        unheld=pl.col("naming").is_in([Naming.RESERVED, Naming.UNALLOCATED, Naming.HELD_LATER])
        & (pl.col("messages_tested") > 1),
        account=_account(),
        scored="scored",
    )
    totals, lengths = _totals(texts, -(-int(rows.item()) // ROWS_JOINED_AT_A_TIME))
    hits = _hits(reserved)
    thresholds = [str(alpha) for alpha in THRESHOLDS]
    by_message = hits.group_by("key_id", "message").agg(pl.col(thresholds).sum())
    by_key = {
        str(key_id): part.select(thresholds).to_numpy().astype(np.int64)
        for (key_id,), part in by_message.group_by("key_id")
    }
    suspects = hits.filter(pl.col("p") <= np.log10(LARGEST_P) + _ROOM)
    few = without_top_accounts(by_message, suspects, texts)
    return Traffic(*totals, by_key, tuple(scans["scan_id"]), few, int(unproved.item()), lengths=lengths)


def _account() -> pl.Expr:
    return pl.when(pl.col("account_id").is_not_null()).then(pl.col("account_id").hash(0))


def _totals(texts: pl.LazyFrame, parts: int) -> tuple[tuple[int, int, int, int], dict[int, int]]:
    """Distinct texts: all, flagged, flagged for reserved messages, for messages nobody held, by scored positions."""
    totals, flagged, lengths = np.zeros(4, np.int64), pl.col("flagged"), Counter[int]()
    for_nobody = (pl.col("unheld") | ~flagged).all()  # rows of a text under other keys do not count
    for part in range(parts):
        distinct = (
            texts.filter(pl.col("text") % parts == part)
            .group_by("text")
            .agg(
                flagged.any(), pl.col("scored").max(), reserved=(flagged & pl.col("reserved")).any(), unheld=for_nobody
            )
        )
        sums = distinct.select(
            pl.len(), flagged.sum(), pl.col("reserved").sum(), unheld=(flagged & pl.col("unheld")).sum()
        )
        row, by_length = pl.collect_all([sums, distinct.group_by("scored").len()], engine="streaming")
        totals += np.array(row.row(0), np.int64)
        lengths.update(dict(by_length.iter_rows()))
    texts_, flags, for_reserved, unheld = map(int, totals)
    return (texts_, flags, for_reserved, unheld), dict(lengths)


def _hits(reserved: pl.LazyFrame) -> pl.DataFrame:
    """Distinct texts, few, whose best message is reserved at p ≤ 0.1: key_id, message, text, account, log10 p, hits."""
    found = reserved.select(
        "key_id", "message", text=pl.col("text").hash(0), account=_account(), p=pl.col("threshold").log10()
    )
    by_account = found.collect(engine="streaming").sort("account", "key_id", "message", "p", nulls_last=True)
    hits = by_account.unique("text", keep="first")
    return hits.with_columns((pl.col("p") <= np.log10(a) + _ROOM).cast(pl.Int64).alias(str(a)) for a in THRESHOLDS)


def single_p(alpha: Sequence[float], messages: int, correction: float) -> NDArray[np.float64]:
    """The one message's p that the corrections for M messages and K keys take to α: float64[J]."""
    return np.asarray(-np.expm1(np.log1p(-np.asarray(alpha)) / (messages * correction)), np.float64)


def unmarked(traffic: Traffic, false_positive_rate: float) -> float:
    """Number of texts that may meet a reserved message by chance.

    It counts all texts but flags for other messages that chance cannot explain. A marked text has its own message as
    the best, and with it in the expectation a key that hits too often among the others would hide behind it.
    """
    for_others = traffic.flagged - traffic.reserved
    return traffic.texts - max(0.0, for_others - traffic.texts * false_positive_rate)


def _found(traffic: Traffic, key: MasterKey, correction: float) -> NDArray[np.float64]:
    """Chance that one message of a text is found at each corrected p, in the mean of all texts: float64[J]."""
    # Its number of scored positions is that under the key of its row, which may differ under another tokenizer.
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
    replaced: NDArray[np.int64] | None = None,
    of_spans: NDArray[np.float64] | float = 0.0,
) -> ClusterSums:
    """Hits of a key's reserved messages against the most that is expected; the messages are the clusters.

    One key meets the same n-grams in many texts; each message meets them with other draws.

    Args:
        traffic: counts over distinct texts.
        texts: how many may meet a reserved message by chance, above 0.
        key: the key of the messages.
        tested: K of SPEC §3, float64[variant, has_normal_form, has_parts] (scanner.scan_plan.ErrorShares.corrections).
            The kind of text that expects most counts for all.
        replaced: hits in place of the traffic's, if given: int64[R, J].
        of_spans: chance that a text has a message in another way, as by a span that is flagged: float64[J].
    """
    counted = traffic.hits.get(key.key_id, np.zeros((0, len(THRESHOLDS)), np.int64)) if replaced is None else replaced
    hits = counted.astype(np.float64)
    count = np.full(len(THRESHOLDS), float(reserved_count(key.messages)))
    kinds = []
    for has_normal_form, has_parts in product((0, 1), repeat=2):
        tests_of_looks = tested[: 1 + has_normal_form, has_normal_form, has_parts].tolist()
        of_looks = [_found(traffic, key, tests) for tests in tests_of_looks]
        kinds.append(np.sum([*of_looks, np.broadcast_to(of_spans, len(THRESHOLDS)) * has_parts], axis=0))
    each = texts * np.max(kinds, axis=0)
    return ClusterSums(
        tests=count * texts,
        hits=hits.sum(axis=0),
        expected=count * each,
        hh=(hits * hits).sum(axis=0),
        he=hits.sum(axis=0) * each,
        ee=count * each * each,
        clusters=count,
    )


KEY_COLUMNS = ("kind", "method", "dedup", "messages", "label")
COUNT_KEY_COLUMNS = (*KEY_COLUMNS, "stratum", "threshold")

SUMMED_COLUMNS = ("texts", "tests", "hits", "expected", "hits_squared", "hits_times_expected", "expected_squared")
"""Columns of AUDIT_COUNTS that add up."""


def columns_of(key: MasterKey) -> dict[str, object]:
    """Columns of AUDITS that describe a key."""
    return {"messages": key.messages, "key_id": key.key_id, "commitment": key.commitment}


def fresh_answers(decoys: pl.DataFrame) -> list[tuple[Question, ClusterSums]]:
    """One key a document, which is the cluster; of whole decisions, decoys of some documents together."""
    answers = []
    for values, part in decoys.sort(*KEY_COLUMNS, "threshold", descending=True).group_by(
        KEY_COLUMNS, maintain_order=True
    ):
        columns = dict(zip(KEY_COLUMNS, values, strict=True))
        cluster = "key" if columns["kind"] in (DECISION, DECISION_WHOLE) else "document"
        answers.append((Question(test="exact", cluster=cluster, **columns), ClusterSums.of_columns(part.to_dict())))
    return answers


def strata_answers(decoys: pl.DataFrame, dedup: str) -> list[tuple[Question, ClusterSums]]:
    """Each part of the traffic, whatever the keys: the document is the cluster."""
    of_all = decoys.filter(pl.col("kind").is_in(STRATA)).group_by("kind", "stratum", "threshold")
    sums = of_all.agg(pl.col(SUMMED_COLUMNS).sort().sum()).sort(
        "kind", "stratum", "threshold", descending=[False, False, True]
    )
    return [
        (
            Question(str(kind), "exact", "all", "document", dedup=dedup, stratum=str(stratum)),
            ClusterSums.of_columns(part.to_dict()),
        )
        for (kind, stratum), part in sums.group_by("kind", "stratum", maintain_order=True)
    ]
