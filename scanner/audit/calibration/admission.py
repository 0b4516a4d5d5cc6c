"""Admit keys: a key may be used if its audit found no p-value too small, and enough data show that rates hold."""

import math
from collections.abc import Iterator, Sequence

import polars as pl

from scanner.audit.statistics.audit_rows import Row, failing
from scanner.audit.statistics.judgement import RATIO_THAT_HOLDS, binomial_limits, few_clusters, poisson_limits
from scanner.errors import Refused
from scanner.printable import counted
from scanner.watermark.formats import format_of
from schemas.registry import Admission, AuditedFilter, MasterKey

_OF_KEYS = pl.col("kind").is_in(["key", "key_messages"])
_HOLD = ("holds", "conservative")

QUESTION_WORDS = {
    "law_total": "fresh keys, one message",
    "law_best_total": "fresh keys, all messages",
    "key": "your key, all messages",
    "key_messages": "your key, each message",
}
"""Words for the questions about whole formats and keys."""

ALARM_WORDS = QUESTION_WORDS | {
    "law": "fresh keys",
    "figure": "the ten keys of the figure",
    "key": "all messages",
    "key_messages": "each message",
}
"""Words for what a calibration found wrong."""

USUAL_RATE = 1e-6
"""p-value down to which admissions are stated by default. Most scans flag at this rate."""


def admission_of(
    key: MasterKey, audits: pl.DataFrame, candidates: int | None = None, down_to: float = 1.0
) -> Admission:
    """Return the admission of a key that passed. Its newest audit decides.

    Args:
        key: a key of the registry. Its commitment tells its rows from those of another key of that name. The commitment
            does not cover the number of messages, so only audits of as many messages count. A format of short keys has
            no commitment. Then the key's name, its parameters and the time when it was made identify it.
        audits: rows of schemas.audit.AUDITS.
        candidates: number of keys that were tried, including this one, if more than the table shows. The best of many
            keys on a corpus looks better than it is.
        down_to: the p-value down to which the rate must be known to hold.

    Raises:
        Refused: there is no audit of this key. Or the newest one was of another number of messages, failed, decides
            nothing, or does not decide down to `down_to`. Or there are fewer candidates than the table shows.
    """
    audits_of_keys = audits.filter(_OF_KEYS)
    audits_of_key = audits_of_keys.filter(_of(key)).sort("at")
    if audits_of_key.is_empty():
        raise Refused(
            f"key {key.key_id!r} has not been audited there; run `brickscan calibrate` with a section [keys] for this "
            "registry"
        )
    newest = audits_of_key.filter(pl.col("audit_id") == audits_of_key["audit_id"][-1])
    message_counts = set(newest.filter(pl.col("kind") == "key")["messages"])
    if message_counts != {key.messages}:
        raise Refused(
            f"key {key.key_id!r} has {key.messages} messages; audit {newest['audit_id'][0]} covered "
            f"{', '.join(map(str, sorted(message_counts)))}; run `brickscan calibrate` again"
        )
    failures = list(failing(newest.to_dicts(), ALARM_WORDS))
    if failures:
        raise Refused(f"key {key.key_id!r} failed audit {newest['audit_id'][0]}: {failures[0]}; {_OR_MARKED}")
    holds = newest.filter(pl.col("kind") == "key", pl.col("verdict").is_in(_HOLD))
    if holds.is_empty():
        raise Refused(
            f"key {key.key_id!r}: audit {newest['audit_id'][0]} is undecided at every "
            f"threshold{_worth(newest.to_dicts()[0])}; audit it on a larger corpus of different texts"
        )
    threshold = float(holds["threshold"].to_numpy().min())
    if threshold > down_to:
        raise Refused(f"key {key.key_id!r} {_sentence(newest.to_dicts(), threshold, down_to)}; it is not admitted")
    key_count = audits_of_keys.select(pl.coalesce("commitment", "key_id")).n_unique()
    if candidates is not None and candidates < key_count:
        raise Refused(
            f"--candidates {candidates}: the audits there show that {key_count} keys were tried; give at least that "
            "many"
        )
    return Admission(
        audit_id=newest["audit_id"][0],
        audited_at=newest["at"][0],
        holds_down_to=threshold,
        candidates=candidates or key_count,
        messages=key.messages,
        filter=_filter_of(newest.to_dicts()[0]),
        dedup=newest.filter(pl.col("kind") == "key")["dedup"][0],
    )


def _filter_of(row: Row) -> AuditedFilter | None:
    if row["filter_sha256"] is None:
        return None
    return AuditedFilter(texts=row["filter_texts"], learnt=row["filter_learnt"], sha256=row["filter_sha256"])


def _of(key: MasterKey) -> pl.Expr:
    if key.commitment is not None:
        return pl.col("commitment") == key.commitment
    condition = (pl.col("key_id") == key.key_id) & (pl.col("label") == format_of(key).label())
    return pl.col("commitment").is_null() & condition & (pl.col("at") >= key.created_at)


_OR_MARKED = (
    "or many texts share n-grams that happen to score well, as texts filled in from one template do (a section "
    "[keys.filter] leaves these out), or texts of the corpus carry its mark. Before you make another key, audit this "
    "one on texts that are older than it and so cannot carry its mark; do not drop texts because of their score, "
    "which would hide the cause"
)


def admissions(rows: Sequence[Row], down_to: float) -> Iterator[str]:
    """Yield a sentence for each key of an audit: down to which p-value it can be admitted, and how to go further."""
    for key_id in dict.fromkeys(row["key_id"] for row in rows if row["kind"] == "key"):
        key_rows = [row for row in rows if row["key_id"] == key_id]
        if any(row["verdict"] == "too small" for row in key_rows):
            yield f"{key_id} cannot be admitted: its p-values are too small, {_OR_MARKED}"
            continue
        threshold = min(
            (row["threshold"] for row in key_rows if row["kind"] == "key" and row["verdict"] in _HOLD), default=None
        )
        key_filter = _filter_of(key_rows[0])
        condition = "" if key_filter is None else f", {in_words(key_filter)},"
        yield f"{key_id}{condition} {_sentence(key_rows, threshold, down_to)}"


SIGNED_AT = 1e-2
"""The rate of the sentences that an auditor signs. Enough texts for it are usually available."""

_SIGNED_RISK = 0.01 / 2  # risk that one of the two limits of a sentence misses


def signable(rows: Sequence[Row], down_to: float) -> Iterator[str]:
    """Yield a sentence for each key of an audit that an auditor can sign.

    It states the counts, and the claims that hold only by law.

    Limits are Clopper and Pearson's of the one rate, 99 % together, for the number of independent texts that the
    clusters are worth. If these are too few, the sentence states no rate. Without keys of a registry, the sentence
    tells that keys were drawn for each text, which make each text a test of its own.
    """
    kind = "key" if any(row["kind"] == "key" for row in rows) else "law_best_total"
    rate_rows = [row for row in rows if row["kind"] == kind and row["measure"] == "rate"]
    for subject in dict.fromkeys((row["key_id"], row["method"]) for row in rate_rows):
        method_rows = [row for row in rate_rows if (row["key_id"], row["method"]) == subject]
        row = min(method_rows, key=lambda row: abs(math.log10(row["threshold"] / SIGNED_AT)))
        effect = row["design_effect"] * few_clusters(row["clusters"], _SIGNED_RISK)
        tests, hits = row["tests"], row["hits"]
        low, high = binomial_limits(hits / effect, tests / effect, _SIGNED_RISK)
        is_doubted = any(method_row["verdict"] == "too small" for method_row in method_rows)
        corpus_texts = "texts that were given as unmarked" if is_doubted else "unmarked texts"
        texts = corpus_texts if kind == "key" else f"scores of unmarked texts under {subject[1]} keys drawn for each"
        prefix = f"{subject[0]}: of" if kind == "key" else "of"
        threshold = min(
            (method_row["threshold"] for method_row in method_rows if method_row["verdict"] in _HOLD), default=None
        )
        by_law = (
            ""
            if threshold is not None and threshold <= down_to
            else f"; {down_to:g} follows from theory and was not measured"
        )
        rate = f"the rate is between {low:.2g} and {high:.2g} with 99 % confidence"
        if kind == "key" and binomial_limits(0, tests / effect, _SIGNED_RISK).high > LARGEST_SIGNED:
            rate = "too few independent texts to tell the rate"
        pieces = f", {_pieces(row)}," if kind == "key" and row["clusters"] < tests else ""
        yield f"{prefix} {tests:,} {texts}{pieces} {hits:,} were flagged at {row['threshold']:g}; {rate}{by_law}"


FEW_PIECES = 100
"""Number of independent pieces below which a corpus tells little. Limits are then wider by a fifth or more."""

LARGEST_SIGNED = 10 * SIGNED_AT
"""Largest upper limit of the rate, if no text were flagged, at which texts suffice for a statement about the rate."""

_TEMPLATES = (
    "texts of one template or account count as one. Add texts from other sources, or leave out the n-grams that many "
    "of them share with a section [keys.filter], as scans do with `filter`"
)


def _pieces(row: Row) -> str:
    """Write how many independent pieces the texts of a corpus are worth."""
    return counted(row["clusters"], "independent piece")


def _worth(row: Row) -> str:
    """Return a clause if the texts of a corpus are worth few independent texts."""
    few = row["clusters"] < min(FEW_PIECES, row["tests"])
    return f"; its {row['tests']:,} texts are worth {_pieces(row)}: {_TEMPLATES}" if few else ""


def in_words(without: AuditedFilter) -> str:
    """Write what an audit left out, and so for which scans it holds."""
    return f"without n-grams that {without.texts} of {without.learnt:,} other texts hold (filter {without.sha256[:12]})"


def _sentence(rows: Sequence[Row], threshold: float | None, down_to: float) -> str:
    """Write down to which p-value a key can be admitted, and how many documents would admit it down to `down_to`."""
    sentence = "can be admitted at no rate" if threshold is None else f"can be admitted down to {threshold:g}"
    if threshold is not None and threshold <= down_to:
        return sentence
    key_rows = [row for row in rows if row["kind"] == "key"]
    document_count = _documents_needed(key_rows, down_to)
    quantity = (
        "more documents than can be estimated are"
        if document_count is None
        else f"about {_round(document_count):,} documents are"
    )
    return f"{sentence}; for {down_to:g} {quantity} needed{_worth(key_rows[0])}"


def _documents_needed(rows: Sequence[Row], down_to: float) -> float | None:
    """Estimate how many documents show that a key holds down to a p-value. None: the rows do not tell."""
    # With as many hits as expected, the upper limit must be RATIO_THAT_HOLDS times the expectation. The row of the
    # nearest threshold shows how many hits a document gives and how they cluster.
    row = min((row for row in rows if row["threshold"] >= down_to * 0.999), key=_threshold, default=None)
    if row is None or not row["expected"]:
        return None
    risk = row["family_error"] / row["family"] / 2  # a one-sided limit, as in `judge`
    effect, hits = row["design_effect"] * few_clusters(row["clusters"], risk), 1.0
    if not math.isfinite(effect):
        return None
    while poisson_limits(hits / effect, risk).high * effect > RATIO_THAT_HOLDS * hits:
        hits *= 1.02
    return float(hits * row["tests"] / row["expected"] * row["threshold"] / down_to)


def _threshold(row: Row) -> float:
    return float(row["threshold"])


def _round(number: float) -> int:
    unit: int = 10 ** max(math.floor(math.log10(number)) - 1, 0)
    return math.ceil(number / unit) * unit
