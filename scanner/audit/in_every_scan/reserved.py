"""Messages that nobody holds, as workers count them: texts whose best message is reserved, and knockoffs.

Texts whose best message is reserved are noted while they are scored: verdicts do not tell which message was the best.
Each is a row of `audit_counts`, with a keyed digest of the text that stands in no other table, so that copies count
once over all shards and nobody who reads verdicts learns which text it was.

Knockoffs: a test by ranks, without a law, whether users' messages score higher than messages that nobody has.

Each drawn text meets the message of a user who is drawn too, and up to 19 messages that nobody has. Under a key with
groups these are reserved messages of the user's group. Neither choice looks at a score, nor at whose text it is. In
text that was not marked for the user, the rank of the user's own message among them is uniform, whatever the law, the
traffic and other marks are: messages have draws of their own, and all of them have the draws that a group shares. One
text in H, where H users have messages, may be marked for the very user who is drawn. So this much is added to the
expectation, which then bounds the hits of all texts, and no text has to be left out by its score.

All control by reserved messages takes for granted that they show false flags for users; this test shows whether they
do.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.audit.statistics.hits import THRESHOLDS
from scanner.detection.rows import TextIds
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.format import StandsIn
from scanner.watermark.formats import format_of
from schemas.audit import AUDIT_COUNTS, KNOCKOFFS, RESERVED_TEXT
from schemas.registry import MasterKey, is_reserved

_NOTHING = {"expected": 0.0, "hits_squared": 0.0, "hits_times_expected": 0.0, "expected_squared": 0.0}


def reserved_texts(
    exact: Sequence[pa.RecordBatch], keys: Sequence[MasterKey], dedup: str, ids: TextIds, canaries: Collection[str] = ()
) -> list[pa.RecordBatch]:
    """Rows of AUDIT_COUNTS on verdicts whose best message is reserved at p ≤ 0.1: each text of a shard once.

    exact: batches of rows of VERDICTS, as scanner.detection.detector.Detector gives them; dedup: as the verdicts have
    it; canaries: accounts whose texts are no traffic.
    """
    if not exact:
        return []
    every = pa.Table.from_batches([batch.select(_NEEDED) for batch in exact])
    is_small = pc.less_equal(every["log10_p_global"], float(np.log10(THRESHOLDS[0])))
    some = every.filter(pc.and_(pc.fill_null(is_small, False), pc.is_valid(every["message"])))
    if not len(some):
        return []
    texts = ids.for_audit(some["text_sha256"])
    found = [row | {"text": text} for row, text in zip(some.to_pylist(), texts, strict=True)]
    wanted = [row for row in found if is_reserved(row["message"]) and row["account_id"] not in canaries]
    # the first account stands for all that posted a text: a dict keeps what comes last
    wanted.sort(key=lambda row: (row["account_id"] is None, row["account_id"] or ""), reverse=True)
    rows = list(_rows({(row["shard_id"], row["text"]): row for row in wanted}.values(), keys, dedup))
    return [pa.RecordBatch.from_pylist(rows, AUDIT_COUNTS)] if rows else []


_NEEDED = ["scan_id", "shard_id", "path", "text_sha256", "account_id", "key_id", "message", "log10_p_global"]


def _rows(found: Iterable[Mapping[str, Any]], keys: Sequence[MasterKey], dedup: str) -> Iterator[dict[str, Any]]:
    now, of_id = datetime.now(UTC), {key.key_id: key for key in keys}
    for row in sorted(found, key=lambda row: row["text"]):
        key, p = of_id[row["key_id"]], row["log10_p_global"]
        key_format = format_of(key)
        yield {
            **{name: row[name] for name in ("scan_id", "shard_id", "path", "key_id", "message", "text")},
            **key_format.columns()._asdict(),
            **_NOTHING,
            "kind": RESERVED_TEXT,
            "label": key_format.label(),
            "dedup": dedup,
            "messages": key.messages,
            "threshold": min(alpha for alpha in THRESHOLDS if p <= np.log10(alpha)),
            "texts": 1,
            "tests": 1,
            "hits": 1,
            "account_id": row["account_id"] if p <= np.log10(LARGEST_P) else None,
            "scanned_at": now,
        }


LARGEST_P = 1e-3
"""Largest p-value of texts that are looked at: whoever frames wants far smaller ones, and chance gives few of these."""

KNOCKOFFS_A_MESSAGE = 19
"""Messages that nobody has beside each user's own, where there are as many."""

CLUSTERS = 32
"""Parts of the users, by which hits are counted: users of one part may share n-grams of their texts, and stand-ins."""

FIRST_RANKS = 0.1
"""Share of the ranks that counts as a hit: the own message is among the first tenth."""


class RankCounts(NamedTuple):
    """D texts. beaten: messages, of `others` that nobody has, below the user's own; user's cluster: int64[D] each."""

    beaten: NDArray[np.int64]
    others: NDArray[np.int64]
    cluster: NDArray[np.int64]


def rank(
    mark: Watermark,
    how: StandsIn,
    messages: int,
    tokens: Tokens,
    positions: Positions,
    of_users: NDArray[np.int64],
    numbers: NDArray[np.uint64],
) -> RankCounts:
    """Rank users' messages among others.

    Ties are broken by place. The own message has a uniform place, so that ranks are uniform for discrete scores too.
    positions: scored positions of D texts of the batch; of_users: a user's message for each text, int64[D]; numbers:
    two for each text, uniform and blind to all scores: uint64[D, 2].
    """
    stand_ins = [how.stand_ins(message, messages) for message in of_users.tolist()]
    begin, step, size = np.array([(m.start, m.step, len(m)) for _, m in stand_ins], np.int64).reshape(-1, 3).T
    others, size = np.minimum(size, KNOCKOFFS_A_MESSAGE), np.maximum(size, 1)
    first, place = (numbers % np.stack([size, others + 1], axis=1).astype(np.uint64)).astype(np.int64).T
    score, beaten = np.asarray(mark.score(tokens, positions, of_users), np.float64), np.zeros(len(of_users), np.int64)
    for draw in range(int(others.max(initial=0))):
        is_other = draw < others
        other = np.where(is_other, begin + step * ((first + draw) % size), of_users)
        against = np.asarray(mark.score(tokens, positions, other), np.float64)
        beaten += is_other & ((score > against) | ((score == against) & (draw < place)))
    return RankCounts(beaten, others, np.array([one.cluster for one in stand_ins]) % CLUSTERS)


def count_ranks(
    ranked: RankCounts, held: int
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """Hits and tests, int64[D], and the chance of a hit, float64[D], for each kind of row.

    held: H, how many messages users have.
    """
    first = np.floor(FIRST_RANKS * (ranked.others + 1) + 1e-9).astype(np.int64)
    counts = (
        (ranked.beaten, ranked.others, np.full(len(ranked.others), 0.5)),
        (ranked.others - ranked.beaten < first, np.ones_like(first), first / (ranked.others + 1)),
    )
    return {
        kind: (hits.astype(np.int64), tests, chance + (1.0 - chance) / held)
        for kind, (hits, tests, chance) in zip(KNOCKOFFS, counts, strict=True)
    }
