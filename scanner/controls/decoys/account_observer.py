"""Decoys of accounts: how often the pooled score of all posts passes under keys that mark nothing.

A decoy key is made for one account and one set of scans whose posts are tested together, so that a resumed pass makes
the same key again.
"""

from collections.abc import Callable, Sequence

import numpy as np

from scanner.audit.statistics.hits import LOG10_THRESHOLDS, cluster_sums
from scanner.controls.decoys.draws import Decoys
from scanner.controls.decoys.hit_counts import DecoyHits
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.watermark import select_positions
from scanner.watermark.rule import log10_p_best


class AccountDecoyObserver(DecoyHits):
    """Counts the decoys' hits of the accounts of one part of a pass.

    Args:
        origin: of the part, as it stands in every row.
        piece: name of the posts that are tested together.
    """

    def __init__(self, decoys: Decoys, origin: BatchOrigin, piece: bytes) -> None:
        super().__init__(decoys, origin)
        self._piece = piece

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Score those accounts that are drawn. `digests` are SHA-256 of their names."""
        del text_of
        drawn = [(account, kind) for account, kind, _ in self._decoys.drawn(self._piece, digests)]
        for key_positions in scores:
            key_id = key_positions.opened_key.key.key_id
            if key_id in self._decoys.first_keys:
                number = self._decoys.kinds[key_id].number
                accounts = [account for account, kind in drawn if kind == number]
                if accounts:
                    self._score(key_positions, accounts, [self._decoys.seed(self._piece, digests[i]) for i in accounts])

    def _score(self, key_positions: KeyPositions, accounts: Sequence[int], seeds: Sequence[bytes]) -> None:
        """Score accounts, each under the decoy key of its seed, and count the hits of all of them at once."""
        key, kind = key_positions.opened_key.key, self._decoys.kinds[key_positions.opened_key.key.key_id]
        score = []
        for account, seed in zip(accounts, seeds, strict=True):
            mark, message = kind.open(key.messages, seed), int.from_bytes(seed[:8], "little") % key.messages
            score.append(
                mark.score(key_positions.tokens, select_positions(key_positions.positions, [account]), message)
            )
        scored = key_positions.positions.scored[accounts]
        hit = log10_p_best(kind.law, np.concatenate(score), scored, 1)[:, None] <= LOG10_THRESHOLDS
        sums = cluster_sums(hit, np.ones(len(hit)), self._decoys.chances(kind.law, scored, 1))
        self.count("decoy_accounts", key_positions.opened_key, sums, 1)
