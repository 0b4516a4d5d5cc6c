"""The worth of flags: of one p-value, and false discoveries among many, by q-values and by reserved messages.

Evidence is counted once: near-duplicates of one text, marked for the same message of one key, are one piece
(scanner.detection.sketches).

Benjamini and Hochberg's q-values of the distinct texts of a scan, in memory that does not grow with their columns.

Only the p-values of all texts are held, 16 bytes a text with their q-values. Texts are told apart a share of their
digests at a time, and the rows are then read again a range of p-values at a time.

In a text that nobody marked, every message is as likely to be the best one, whatever the law says. So a known share of
false flags is for reserved messages, while marked text has a message that is not reserved. Going from the smallest p
on, r flags for reserved messages stand for (r + 1)·(1 − s)/s false ones among the others, where s is the share of
messages that are reserved: Selective SeqStep+ (Barber and Candès 2015), which keeps the expected share of false ones at
q for texts whose best messages are independent. Where a broken law makes p-values too small, Benjamini and Hochberg's
q-values are too small as well; these are not, since p gives the order alone.

A p-value is no probability that a text is unmarked. At most N·p of N texts reach p by chance. Two more things follow.

Let p be the exact p-value of one message of one key, uncorrected. The likelihood ratio of the score rises with the
score, for binomial scores whose odds a mark tilts and for gamma scores whose rate it lowers. So the factor by which the
score multiplies the odds of "marked for this message" against "not marked" is P(score or more | marked) / p or less
(integrate the ratio over the tail), and 1/p at most. It takes a prior for that very message.

No such bound holds for a p-value that is corrected for messages, keys and looks, or pooled: others of them add to the
factor. It has an e-value: a bet of one against chance, fixed before, whose mean is 1 at most where nothing is marked.
That is the average over κ in (0, 1) of the bets κ·p^(κ-1): (1 - p + p·ln p) / (p·(ln p)²) (Vovk and Wang 2021,
E-values: Calibration, combination and applications, section 2).
"""

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from polars.io.plugins import register_io_source

from scanner.detection.sketches import pieces_of
from scanner.errors import Refused
from scanner.results.current_rows import exact, flags, largest_p, ranges_ever
from scanner.results.queries import scans
from scanner.results.transactions import read_whole
from scanner.storage.data_files import SCHEMAS
from scanner.watermark.pvalues import LN10, log10_any_of
from scanner.watermark.rule import LEAST_RANK
from schemas.registry import is_reserved, reserved_count
from schemas.tables import SCORED

LEAST_LOG10_P = -128 * math.log10(2.0)
"""log10 of the probability of a key of 128 bits: over the draw of a key no p-value is smaller."""

_BEATEN = 1.0 - pl.col("p_rank").fill_nan(None).fill_null(LEAST_RANK)  # chance of a smaller rank, of one test
_CORRECTED_RANK = 1.0 - _BEATEN.pow(pl.coalesce("tests", "keys_tested").fill_null(1.0))

LOG10_P_SHOWN = (
    pl.when(pl.col("basis").fill_null("key") == "key")
    .then("log10_p_global")
    .otherwise(pl.max_horizontal("log10_p_global", _CORRECTED_RANK.log10()))
)
"""log10 of the p-value that people are shown, of rows of schemas.tables.VERDICTS: see `log10_p_shown`."""


def log10_p_shown(row: Mapping[str, Any]) -> float:
    """log10 of a flag's p-value for people: where a hash alone speaks, the larger of it and the rank among decoys.

    The rank is of one key and look, so it is corrected for K as p is: under seven keys, seven texts in 1,000 beat all
    decoys of some key.
    """
    p: float = row["log10_p_global"]
    if row["basis"] in (None, "key"):
        return p
    rank = row.get("p_rank")
    if rank is None or math.isnan(rank):  # as of a flag's further users: nothing is shown beyond the decoys
        rank = LEAST_RANK
    correction = row.get("tests") or row.get("keys_tested") or 1
    return max(p, float(log10_any_of(math.log10(rank), 1, correction)))


def log10_e_value(log10_p: float) -> float:
    """log10 of the e-value of a p-value, corrected or not; p = 1 gives 1/2."""
    x = -log10_p * LN10
    if x < 1e-3:
        return math.log10(0.5 + x / 6.0)
    return (x - 2.0 * math.log(x) + math.log1p(-(1.0 + x) * math.exp(-x))) / LN10


def log10_factor_at_most(row: Mapping[str, Any]) -> float | None:
    """log10 of the most by which a text multiplies the odds that it is marked for the message of its flag.

    None where no exact p-value of the message alone is known: no message is shown, the flag rests on a part that was
    chosen by its score, or the hash alone speaks.
    """
    p, exact = row["log10_p"], row["basis"] in (None, "key")
    if p is None or row["message"] is None or row["unit"] is not None or not exact:
        return None
    return -max(float(p), LEAST_LOG10_P)


def posterior_at_most(log10_factor: float, prior: float) -> float:
    """The bound on the probability that a text is marked for a message.

    prior: the probability that it is marked for this very message before it was looked at, above 0 and below 1.
    """
    log10_odds = math.log10(prior) - math.log1p(-prior) / LN10 + log10_factor
    return 1.0 / (1.0 + 10.0**-log10_odds) if log10_odds > -300.0 else 0.0


def scored_documents(results: str, scan_ids: Collection[str]) -> dict[str, int]:
    """Documents that each of some scans scored, by scan, so that copies count each; scans that have none are left out.

    Raises:
        Refused: there are no results.
    """
    of_scans = ranges_ever(results).filter(pl.col("scan_id").is_in(list(scan_ids)))
    scored = pl.col("documents") - pl.col("quarantined") - pl.col("too_short") - pl.col("filtered").fill_null(0)
    return dict(
        of_scans.group_by("scan_id").agg(scored.sum().clip(lower_bound=0)).collect(engine="streaming").iter_rows()
    )


MOST_SKETCHES = 200_000
"""Texts whose sketches are held at a time."""

MOST_READS = 10
"""Most reads of the flags, of MOST_SKETCHES texts each: for more than two million texts, pieces are not counted."""

EVIDENCE_COLUMNS = ("text_sha256", "key_id", "message")
"""Columns that a piece of evidence shares, with the text."""

_GROUP = EVIDENCE_COLUMNS[1:]  # texts of two groups are never one piece


def pieces_of_evidence(flags: pl.LazyFrame) -> pl.DataFrame:
    """Each flagged text with its piece, a number.

    Columns: those of EVIDENCE_COLUMNS, and piece, int64; null where there are too many texts to tell: of a key and
    message with more than MOST_SKETCHES, or of all where MOST_READS are too few.
    """
    found, first = [_in_memory(flags.head(0).select(*EVIDENCE_COLUMNS, "sketch").collect())], 0
    for groups, tell in _parts(
        flags.select(EVIDENCE_COLUMNS).unique().group_by(_GROUP).len().collect(engine="streaming")
    ):
        these = flags.join(groups.lazy().select(_GROUP), on=_GROUP, how="semi", nulls_equal=True)
        if tell:
            texts = (
                these.select(*EVIDENCE_COLUMNS, "sketch")
                .unique(EVIDENCE_COLUMNS, keep="any")
                .collect(engine="streaming")
            )
            found.append(_in_memory(texts).with_columns(pl.col("piece") + first))
            first += len(texts)
        else:
            untold = these.select(EVIDENCE_COLUMNS).unique().with_columns(piece=pl.lit(None, pl.Int64))
            found.append(untold.collect(engine="streaming"))
    return pl.concat(found)


def sizes_of(flags: pl.LazyFrame, of_flags: pl.DataFrame) -> pl.DataFrame:
    """How many documents, distinct texts and distinct accounts each piece has.

    Columns: piece, and piece_documents, piece_texts and piece_accounts, int64. Texts whose piece is null are left out.

    Args:
        flags: rows of schemas.tables.FLAGS, one a document.
        of_flags: rows of `pieces_of_evidence` of these flags.
    """
    rows = flags.join(of_flags.drop_nulls("piece").lazy(), on=EVIDENCE_COLUMNS, how="inner", nulls_equal=True)
    distinct = {"piece_texts": "text_sha256", "piece_accounts": "account_id"}
    counts = {name: pl.col(column).drop_nulls().n_unique().cast(pl.Int64) for name, column in distinct.items()}
    return rows.group_by("piece").agg(piece_documents=pl.len().cast(pl.Int64), **counts).collect(engine="streaming")


def _parts(sizes: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, bool]]:
    """Groups of so many texts that are read together, MOST_SKETCHES at most, and whether their pieces are counted."""
    numbers, part, size = [], 0, 0
    ordered = sizes.sort("len", *_GROUP)
    for length in ordered["len"].to_list():
        part, size = (part, size + length) if size + length <= MOST_SKETCHES else (part + 1, length)
        numbers.append(part if length <= MOST_SKETCHES else -1)
    numbered = ordered.with_columns(part=pl.Series(numbers, dtype=pl.Int64))
    whole = max(numbers, default=0) < MOST_READS
    numbered = numbered if whole else numbered.with_columns(part=pl.lit(-1, pl.Int64))
    for (number,), groups in numbered.group_by("part", maintain_order=True):
        yield groups, number != -1


def _in_memory(texts: pl.DataFrame) -> pl.DataFrame:
    """As `pieces_of_evidence`, for texts that fit in memory."""
    texts = texts.sort(EVIDENCE_COLUMNS)
    marks = [f"{message} {key_id}" for key_id, message in texts.select("key_id", "message").iter_rows()]
    group = np.unique(np.array(marks, np.str_), return_inverse=True)[1]
    piece = pieces_of(texts["sketch"].to_list(), group)
    return texts.select(EVIDENCE_COLUMNS).with_columns(piece=pl.Series(piece, dtype=pl.Int64))


TEXTS_AT_A_TIME = 1 << 21
"""Rows that are gone through at a time, about."""

_COLUMNS_OF_Q = ("text_id", "text_sha256", "log10_p_global", "key_id", "message", "user_id", "naming")
_PREFIX_BYTES = 8  # bytes of a digest, by which it falls into a share


class _Texts(NamedTuple):
    """Distinct texts. p: log10, ascending; several: least p of those whose rows differ, with their `text`."""

    p: NDArray[np.float64]
    several: pl.DataFrame


def _of_audited(results: str, scan_id: str) -> pl.Expr:
    """Filter for rows of a scan and of those that it went on with. Raises Refused: it has not ended."""
    ended = scans(results).filter(pl.col("scan_id") == scan_id).collect()
    if ended.is_empty():
        raise Refused(f"scan {scan_id!r} has no row in `scans`: it has not ended, or its results are elsewhere")
    return pl.col("scan_id").is_in(ended["audited_scans"][0].to_list())


def q_values(results: str, scan_id: str, largest: float = 1.0) -> pl.LazyFrame:
    """Distinct texts of one scan and of those whose verdicts it took over, with q-values (Benjamini and Hochberg 1995).

    Columns, most significant first: text_id, text_sha256, log10_p_global, key_id, message, user_id, naming, log10_q.
    Texts that are not flagged stand with the largest p of their class, which makes no q-value too small. Rejecting
    all texts with q ≤ 0.05 keeps the expected share of false ones among them at 5 % at most, if the texts' p-values are
    independent or positively regression dependent (Benjamini and Yekutieli 2001); those of one key are associated,
    which comes near to that and is not the same. A q-value depends on what else was scanned, so it is in no table.
    Texts that were scored under formats without a law alone have no p-value, and are left out.

    Args:
        results: folder or URI.
        scan_id: id of a scan that has ended.
        largest: texts of a larger q-value are left out, before they are read.

    Raises:
        Refused: there are no results, or the scan has not ended.
    """
    of_scan = _of_audited(results, scan_id)
    tested = pl.col("status").is_in(SCORED) & pl.col("log10_p_global").is_not_null()
    verdicts = exact(results, read_whole(results, "verdicts").filter(of_scan))
    text = pl.coalesce("text_id", "text_sha256")
    scored = verdicts.with_columns(log10_p_global=largest_p(), text=text).filter(tested)

    def source(
        columns: list[str] | None, predicate: pl.Expr | None, most: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        left = math.inf if most is None else most
        for found in _by_significance(scored, largest):
            part = found.head(int(min(left, found.height)))
            left -= part.height
            part = part if predicate is None else part.filter(predicate)
            yield part if columns is None else part.select(columns)
            if left <= 0:
                return

    kinds = pl.Schema(SCHEMAS["verdicts"])
    return register_io_source(source, schema={name: kinds[name] for name in _COLUMNS_OF_Q} | {"log10_q": pl.Float64()})


def _by_significance(scored: pl.LazyFrame, largest: float) -> Iterator[pl.DataFrame]:
    """The texts with their q-values, a few million at a time, as `q_values` promises them."""
    texts = _distinct(scored)
    q = _log10_q(texts.p)
    end = int(np.searchsorted(q, math.log10(largest), side="right")) if largest > 0 else 0
    begin = 0
    for wanted in _ranges(texts.p[:end]):
        rows = scored.filter(wanted).select(*_COLUMNS_OF_Q, "text", "path", "row")
        least = texts.several.lazy()
        rows = rows.join(least, on="text", how="left").filter(
            pl.col("least").is_null() | (pl.col("least") == pl.col("log10_p_global"))
        )
        # whom a text names may depend on when it was written: take the earliest row
        ordered = rows.sort("log10_p_global", "text", "path", "row")
        found = ordered.unique("text", keep="first", maintain_order=True).select(_COLUMNS_OF_Q)
        frame = found.collect(engine="streaming")
        yield frame.with_columns(log10_q=pl.Series(q[begin : begin + frame.height]))
        begin += frame.height


def _distinct(scored: pl.LazyFrame) -> _Texts:
    count = int(scored.select(pl.len()).collect(engine="streaming").item())
    found, several = [], []
    p = pl.col("log10_p_global")
    for share in _shares(count):
        by_text = scored.filter(share).group_by("text").agg(least=p.min(), most=p.max())
        texts = by_text.collect(engine="streaming")
        found.append(texts["least"].to_numpy())
        several.append(texts.filter(pl.col("least") < pl.col("most")).select("text", "least"))
    values = np.concatenate(found)
    values.sort()
    return _Texts(values, pl.concat(several))


def _log10_q(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """q-values of p-values in ascending order, all log10: float64[m]; those of equal p are equal."""
    rank = pl.int_range(1, pl.len() + 1).cast(pl.Float64)
    bound = pl.col("p") + (pl.len().cast(pl.Float64) / rank).log() / LN10
    q = pl.LazyFrame({"p": p}).select(bound.reverse().cum_min().reverse().clip(upper_bound=0.0))
    return q.collect()["p"].to_numpy()


def _ranges(p: NDArray[np.float64]) -> Iterator[pl.Expr]:
    """Ranges of rows that hold the texts of these p-values, about TEXTS_AT_A_TIME in each, in order of (p, digest)."""
    column = pl.col("log10_p_global")
    begin = 0
    while begin < len(p):
        end = min(begin + TEXTS_AT_A_TIME, len(p))
        if end < len(p):  # texts of one p-value stay together
            end = int(np.searchsorted(p, p[end], side="left"))
        if end > begin:
            yield column.is_between(p[begin], p[end - 1])
        else:  # they are too many, but digests alone order them
            end = int(np.searchsorted(p, p[begin], side="right"))
            yield from ((column == p[begin]) & share for share in _shares(end - begin))
        begin = end


def _shares(count: int) -> Iterator[pl.Expr]:
    """Conditions that part rows by their digests, in order, so that of `count` about TEXTS_AT_A_TIME fulfil each."""
    parts = -(-count // TEXTS_AT_A_TIME) or 1
    bounds = [(part << 8 * _PREFIX_BYTES) // parts for part in range(1, parts)]
    edges = [None, *(bound.to_bytes(_PREFIX_BYTES, "big") for bound in bounds), None]
    digest = pl.col("text")
    for low, high in pairwise(edges):
        above = pl.lit(value=True) if low is None else digest >= low
        yield above if high is None else above & (digest < high)


FEWEST_FLAGS = 380
"""Fewest flags for which q = 0.05 is possible, if one message in 20 is reserved and none of the flags is for one."""

_COLUMNS = (*EVIDENCE_COLUMNS, "log10_p_global", "user_id", "naming")


def q_by_reserved(log10_p: ArrayLike, reserved: ArrayLike, share: float) -> NDArray[np.float64]:
    """q-values of flags for messages that are not reserved.

    Args:
        log10_p: float64[n], log10 p of flags, in any order.
        reserved: bool[n], whether the message is.
        share: reserved share of the messages, above 0; the smallest where keys differ.

    Returns:
        float64[n], at most 1; NaN for reserved messages.
    """
    p, decoy = np.asarray(log10_p, np.float64), np.asarray(reserved, np.bool_)
    order = np.lexsort((~decoy, p))  # of equal p, reserved ones first: never in the flags' favour
    for_decoys, others = np.cumsum(decoy[order]), np.cumsum(~decoy[order])
    bound = (for_decoys + 1) * (1 - share) / share / np.maximum(others, 1)
    q = np.empty(len(p))
    q[order] = np.minimum(np.minimum.accumulate(bound[::-1])[::-1], 1.0)
    q[decoy] = np.nan
    return q


def reserved_q_values(results: str, scan_id: str) -> pl.DataFrame:
    """Flagged texts of one scan and of those whose verdicts it took over, with q-values by reserved messages.

    Columns, most significant first: text_sha256, key_id, message, log10_p_global, user_id, naming, q. Rejecting all
    texts with q ≤ 0.05 keeps the expected share of false ones among them at 5 % at most, also where the law of the
    p-values is broken. Below FEWEST_FLAGS flags no q is so small. Near-duplicates count once, where all are told apart
    (scanner.results.false_discoveries). Left out: flags for reserved messages, of keys without any, and what tells no
    message.

    Args:
        results: folder or URI.
        scan_id: id of a scan that has ended.

    Raises:
        Refused: there are no results, or the scan has not ended.
    """
    of_scan = _of_audited(results, scan_id)
    flagged = flags(results).filter(of_scan, pl.col("message").is_not_null(), pl.col("log10_p_global").is_not_null())
    shares = reserved_count(pl.col("messages_tested")) / pl.col("messages_tested")
    flagged = flagged.with_columns(share=shares).filter(pl.col("share") > 0)
    piece = pieces_of_evidence(flagged)
    rows = (
        flagged.select(*_COLUMNS, "share")
        .sort("log10_p_global", *EVIDENCE_COLUMNS)
        .unique(EVIDENCE_COLUMNS, keep="first", maintain_order=True)
    )
    best = rows.collect(engine="streaming")
    if not piece["piece"].null_count():  # all or none: reserved ones alone would else be fewer
        best = best.join(piece, on=EVIDENCE_COLUMNS).unique("piece", keep="first", maintain_order=True)
    reserved = best.select(is_reserved(pl.col("message")))["message"].to_numpy()
    share = float(best["share"].min() or 1.0)  # type: ignore[arg-type]
    q = q_by_reserved(best["log10_p_global"].to_numpy(), reserved, share)
    return best.select(_COLUMNS).with_columns(q=pl.Series(q, dtype=pl.Float64)).filter(~is_reserved(pl.col("message")))
