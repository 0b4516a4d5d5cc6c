"""Benjamini and Hochberg's q-values of the distinct texts of a scan, in memory that does not grow with their columns.

Only the p-values of all texts are held, 16 bytes a text with their q-values. Texts are told apart a share of their
digests at a time, and the rows are then read again a range of p-values at a time.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from scanner.errors import Refused
from scanner.results.data_files import SCHEMAS
from scanner.results.newest import exact, largest_p
from scanner.results.queries import scans
from scanner.results.tables import read_whole
from schemas.tables import SCORED

AT_A_TIME = 1 << 21
"""Rows that are gone through at a time, about."""

_LN10 = math.log(10.0)
_COLUMNS = ("text_id", "text_sha256", "log10_p_global", "key_id", "message", "user_id", "naming")
_PREFIX_BYTES = 8  # bytes of a digest, by which it falls into a share


class _Texts(NamedTuple):
    """Distinct texts. p: log10, ascending; several: least p of those whose rows differ, with their `text`."""

    p: NDArray[np.float64]
    several: pl.DataFrame


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
    ended = scans(results).filter(pl.col("scan_id") == scan_id).collect()
    if ended.is_empty():
        raise Refused(f"scan {scan_id!r} has no row in `scans`: it has not ended, or its results are elsewhere")
    of_scan = pl.col("scan_id").is_in(ended["audited_scans"][0].to_list())  # and of those that it resumed
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
    return register_io_source(source, schema={name: kinds[name] for name in _COLUMNS} | {"log10_q": pl.Float64()})


def _by_significance(scored: pl.LazyFrame, largest: float) -> Iterator[pl.DataFrame]:
    """The texts with their q-values, a few million at a time, as `q_values` promises them."""
    texts = _distinct(scored)
    q = _log10_q(texts.p)
    end = int(np.searchsorted(q, math.log10(largest), side="right")) if largest > 0 else 0
    begin = 0
    for wanted in _ranges(texts.p[:end]):
        rows = scored.filter(wanted).select(*_COLUMNS, "text", "path", "row")
        least = texts.several.lazy()
        rows = rows.join(least, on="text", how="left").filter(
            pl.col("least").is_null() | (pl.col("least") == pl.col("log10_p_global"))
        )
        # whom a text names may depend on when it was written: take the earliest row
        ordered = rows.sort("log10_p_global", "text", "path", "row")
        found = ordered.unique("text", keep="first", maintain_order=True).select(_COLUMNS)
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
    bound = pl.col("p") + (pl.len().cast(pl.Float64) / rank).log() / _LN10
    q = pl.LazyFrame({"p": p}).select(bound.reverse().cum_min().reverse().clip(upper_bound=0.0))
    return q.collect()["p"].to_numpy()


def _ranges(p: NDArray[np.float64]) -> Iterator[pl.Expr]:
    """Ranges of rows that hold the texts of these p-values, about AT_A_TIME in each, in order of (p, digest)."""
    column = pl.col("log10_p_global")
    begin = 0
    while begin < len(p):
        end = min(begin + AT_A_TIME, len(p))
        if end < len(p):  # texts of one p-value stay together
            end = int(np.searchsorted(p, p[end], side="left"))
        if end > begin:
            yield column.is_between(p[begin], p[end - 1])
        else:  # they are too many, but digests alone order them
            end = int(np.searchsorted(p, p[begin], side="right"))
            yield from ((column == p[begin]) & share for share in _shares(end - begin))
        begin = end


def _shares(count: int) -> Iterator[pl.Expr]:
    """Conditions that part rows by their digests, in order, so that of `count` about AT_A_TIME fulfil each."""
    parts = -(-count // AT_A_TIME) or 1
    bounds = [(part << 8 * _PREFIX_BYTES) // parts for part in range(1, parts)]
    edges = [None, *(bound.to_bytes(_PREFIX_BYTES, "big") for bound in bounds), None]
    digest = pl.col("text")
    for low, high in pairwise(edges):
        above = pl.lit(value=True) if low is None else digest >= low
        yield above if high is None else above & (digest < high)
