"""False discoveries among flags, estimated by messages that nobody is ever given, without a law of p-values.

In a text that nobody marked, every message is as likely to be the best one, whatever the law says. So a known share of
false flags is for reserved messages, while marked text has a message that is not reserved. Going from the smallest p
on, r flags for reserved messages stand for (r + 1)·(1 − s)/s false ones among the others, where s is the share of
messages that are reserved: Selective SeqStep+ (Barber and Candès 2015), which keeps the expected share of false ones at
q for texts whose best messages are independent. Where a broken law makes p-values too small, Benjamini and Hochberg's
q-values are too small as well; these are not, since p gives the order alone.
"""

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from scanner.errors import Refused
from scanner.results.newest import flags
from scanner.results.pieces import OF, pieces
from scanner.results.queries import scans
from schemas.registry import is_reserved, reserved_count

FEWEST = 380
"""Fewest flags for which q = 0.05 is possible, if one message in 20 is reserved and none of the flags is for one."""

_COLUMNS = (*OF, "log10_p_global", "user_id", "naming")


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
    p-values is broken. Below FEWEST flags no q is so small. Near-duplicates count once, where all are told apart
    (scanner.results.pieces). Left out: flags for reserved messages, of keys without any, and what tells no message.

    Args:
        results: folder or URI.
        scan_id: id of a scan that has ended.

    Raises:
        Refused: there are no results, or the scan has not ended.
    """
    ended = scans(results).filter(pl.col("scan_id") == scan_id).collect()
    if ended.is_empty():
        raise Refused(f"scan {scan_id!r} has no row in `scans`: it has not ended, or its results are elsewhere")
    of_scan = pl.col("scan_id").is_in(ended["audited_scans"][0].to_list())
    flagged = flags(results).filter(of_scan, pl.col("message").is_not_null(), pl.col("log10_p_global").is_not_null())
    shares = reserved_count(pl.col("messages_tested")) / pl.col("messages_tested")
    flagged = flagged.with_columns(share=shares).filter(pl.col("share") > 0)
    piece = pieces(flagged)
    rows = flagged.select(*_COLUMNS, "share").sort("log10_p_global", *OF).unique(OF, keep="first", maintain_order=True)
    best = rows.collect(engine="streaming")
    if not piece["piece"].null_count():  # all or none: reserved ones alone would else be fewer
        best = best.join(piece, on=OF).unique("piece", keep="first", maintain_order=True)
    reserved = best.select(is_reserved(pl.col("message")))["message"].to_numpy()
    share = float(best["share"].min() or 1.0)  # type: ignore[arg-type]
    q = q_by_reserved(best["log10_p_global"].to_numpy(), reserved, share)
    return best.select(_COLUMNS).with_columns(q=pl.Series(q, dtype=pl.Float64)).filter(~is_reserved(pl.col("message")))
