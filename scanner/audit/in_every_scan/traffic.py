"""What verdicts say about themselves: counts over distinct texts, and flags that are known to be false.

A document whose best message is reserved names nobody, and for text that nobody marked it is as likely as its share of
the messages. P(best message reserved and p ≤ α) ≤ Σ over reserved messages of P(that message's own p ≤ a), where the
corrections for messages and keys take a to α: so many are expected at most, whatever the messages share. A marked text
has its own message as the best, so it adds nothing here and hides nothing.

A text posted a million times is one piece of evidence: rows are joined by the digest of their text, over all shards.
Memory stays flat: digests are taken a share at a time.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.audit.in_every_scan.framing import AT_MOST, WithoutFew, without_few
from scanner.audit.statistics.expectation import THRESHOLDS
from scanner.audit.statistics.intervals import Moments
from schemas.registry import MasterKey, is_reserved, reserved_count
from schemas.tables import SCORED
from schemas.words import Naming

AT_A_TIME = 1 << 23
"""Rows of verdicts that are joined at a time, about."""


class Traffic(NamedTuple):
    """Distinct texts: that were scored, that are flagged, and of these whose message is reserved; held by nobody.

    hits: by key, int64[R, J]: for each reserved message that is the best of a text at p ≤ 0.1, of how many at the J
    thresholds; scans: ids of the scans that wrote the verdicts; without_few: by key, what is left of its hits without
    the texts of one account, of two, and so on to a few; unproved: rows whose proof came out differently.
    """

    texts: int
    flagged: int
    reserved: int
    unheld: int
    hits: Mapping[str, NDArray[np.int64]]
    scans: tuple[str, ...]
    without_few: Mapping[str, tuple[WithoutFew, ...]] = MappingProxyType({})
    unproved: int = 0


def measure(verdicts: pl.LazyFrame, log10_rate: float) -> Traffic:
    """Count over distinct texts that have a p-value: what formats without a law score was not tested.

    Args:
        verdicts: rows of schemas.tables.VERDICTS, of one list of keys.
        log10_rate: log10 of the false-positive rate: at or below it, what is flagged counts.
    """
    scored = verdicts.filter(pl.col("status").is_in(SCORED), pl.col("log10_p_global").is_not_null())
    rows, scans, unproved = pl.collect_all(
        [
            scored.select(pl.len()),
            verdicts.select(pl.col("scan_id").unique().sort()),
            verdicts.select((pl.col("naming") == Naming.UNPROVED).sum()),
        ],
        engine="streaming",
    )
    parts = -(-int(rows.item()) // AT_A_TIME)
    # copies of a text have one p-value and one message; who holds that may depend on when a copy was written
    texts = scored.select(
        "key_id",
        "message",
        text=pl.col("text_sha256").hash(0),
        p="log10_p_global",
        flagged=pl.col("flagged") & (pl.col("log10_p_global") <= log10_rate),
        reserved=is_reserved(pl.col("message")),
        # a key of one message marks for everybody alike: that nobody holds it says nothing
        unheld=pl.col("naming").is_in([Naming.RESERVED, Naming.UNALLOCATED, Naming.HELD_LATER])
        & (pl.col("messages_tested") > 1),
        account=pl.when(pl.col("account_id").is_not_null()).then(pl.col("account_id").hash(0)),
    )
    totals, hits, suspects = np.zeros(4, np.int64), [], []
    for part in range(parts):
        distinct = (
            texts.filter(pl.col("text") % parts == part)
            .group_by("text")
            .agg(
                pl.col("key_id", "message", "p", "flagged", "reserved").first(),
                pl.col("unheld").all(),
                pl.col("account").min(),
            )
        )
        flagged = pl.col("flagged")
        hit = [(pl.col("p") <= np.log10(alpha)).alias(str(alpha)) for alpha in THRESHOLDS]
        sums, best, small = pl.collect_all(
            [
                distinct.select(
                    pl.len(),
                    flagged.sum(),
                    reserved=(flagged & pl.col("reserved")).sum(),
                    unheld=(flagged & pl.col("unheld")).sum(),
                ),
                distinct.filter("reserved", pl.col("p") <= np.log10(THRESHOLDS[0]))
                .group_by("key_id", "message")
                .agg(of_alpha.sum().cast(pl.Int64) for of_alpha in hit),
                distinct.filter("reserved", pl.col("p") <= np.log10(AT_MOST)).select(
                    "key_id", "message", "text", "account", *(of_alpha.cast(pl.Int64) for of_alpha in hit)
                ),
            ],
            engine="streaming",
        )
        totals += np.array(sums.row(0), np.int64)
        hits.append(best)
        suspects.append(small)
    by_message = pl.concat(hits).group_by("key_id", "message").sum() if hits else pl.DataFrame({"key_id": []})
    by_key = {
        str(key_id): part.drop("key_id", "message").to_numpy().astype(np.int64)
        for (key_id,), part in by_message.group_by("key_id")
    }
    count, flags, reserved, unheld = map(int, totals)
    few = without_few(by_message, pl.concat(suspects), texts) if suspects else {}
    return Traffic(count, flags, reserved, unheld, by_key, tuple(scans["scan_id"]), few, int(unproved.item()))


def own_p(alpha: Sequence[float], messages: int, keys: int) -> NDArray[np.float64]:
    """The one message's p that the corrections for M messages and K keys take to α: float64[J]."""
    return np.asarray(-np.expm1(np.log1p(-np.asarray(alpha)) / (messages * keys)), np.float64)


def unmarked(traffic: Traffic, false_positive_rate: float) -> float:
    """Texts that may meet a reserved message by chance: all but flags for other messages that chance does not explain.

    A marked text has its own message as the best, and with it in the expectation a key that hits too often among the
    others would hide behind it.
    """
    for_others = traffic.flagged - traffic.reserved
    return traffic.texts - max(0.0, for_others - traffic.texts * false_positive_rate)


def reserved_moments(
    traffic: Traffic,
    texts: float,
    key: MasterKey,
    keys_tested: int,
    looks: int = 1,
    instead: NDArray[np.int64] | None = None,
) -> Moments:
    """Hits of a key's reserved messages against what is expected at most; the messages are the clusters.

    One key meets the same n-grams in many texts; each message meets them with other draws.

    Args:
        traffic: counts over distinct texts.
        texts: that may meet a reserved message by chance, above 0.
        key: whose messages they are.
        keys_tested: K of SPEC §3.
        looks: how many variants of each text the key scores, of all those that keys_tested counts.
        instead: of the hits of the traffic, if given: int64[R, J].
    """
    counted = traffic.hits.get(key.key_id, np.zeros((0, len(THRESHOLDS)), np.int64)) if instead is None else instead
    hits = counted.astype(np.float64)
    count = np.full(len(THRESHOLDS), float(reserved_count(key.messages)))
    each = looks * texts * own_p(THRESHOLDS, key.messages, keys_tested)
    return Moments(
        tests=count * texts,
        hits=hits.sum(axis=0),
        expected=count * each,
        hh=(hits * hits).sum(axis=0),
        he=hits.sum(axis=0) * each,
        ee=count * each * each,
        clusters=count,
    )
