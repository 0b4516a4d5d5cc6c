"""Packs: small shards that a worker takes as one, so that many small files cost no more than a few large ones."""

from collections.abc import Sequence

from scanner.cluster.pieces import Pack
from scanner.input.shards import MAX_ROWS, MAX_TEXT_BYTES, Shard

PACKS_A_WORKER = 8
"""Fewest packs for each worker, where shards are small."""

MOST_IN_A_PACK = 256
"""Most shards of a pack; each opens a file."""


def pack_shards(shards: Sequence[Shard], workers: int) -> list[Shard | Pack]:
    """Return shards in their order, small neighbours as packs that are no larger than a shard may be.

    PACKS_A_WORKER packs for each worker remain, so that no worker waits for the last one.
    """
    most_shards = min(len(shards) // (PACKS_A_WORKER * workers), MOST_IN_A_PACK)
    units: list[Shard | Pack] = []
    waiting: list[Shard] = []
    rows = text_bytes = 0
    for shard in shards:
        size = shard.rows.documents
        if waiting and (
            len(waiting) >= most_shards or rows + size > MAX_ROWS or text_bytes + shard.rows.text_bytes > MAX_TEXT_BYTES
        ):
            units.append(_unit(waiting))
            waiting, rows, text_bytes = [], 0, 0
        waiting.append(shard)
        rows, text_bytes = rows + size, text_bytes + shard.rows.text_bytes
    return [*units, _unit(waiting)] if waiting else units


def _unit(shards: list[Shard]) -> Shard | Pack:
    return Pack(tuple(shards)) if len(shards) > 1 else shards[0]
