"""Decoys of accounts: how often the pooled score of all posts passes under keys that mark nothing.

A decoy key is made for one account and one set of scans whose posts are tested together, so that a resumed pass makes
the same key again.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from scanner.audit.statistics.hits import cluster_sums
from scanner.controls.decoys.draws import Decoys
from scanner.controls.decoys.observers import LOG10_THRESHOLDS, HitCounts
from scanner.detection.attribution import BatchOrigin
from scanner.looks.accounts.judge import AccountPositions, Posts
from scanner.watermark import select_positions
from scanner.watermark.rule import log10_p_best


class AccountDecoyObserver(HitCounts):
    """Counts the decoys' hits of the accounts of one part; scanner.looks.accounts.judge shows it some at a time.

    origin: of the part, as it stands in every row; unit: name of the posts that are tested together.
    """

    def __init__(self, decoys: Decoys, origin: BatchOrigin, unit: str) -> None:
        super().__init__(decoys, origin)
        self._piece = f"accounts;{unit};".encode()

    def observe(self, posts: Posts, under_keys: Sequence[AccountPositions]) -> None:
        """Score those accounts that are drawn."""
        digests = [hashlib.sha256(name.encode()).digest() for name in posts.account_ids]
        drawn = [(account, kind) for account, kind, _ in self._decoys.drawn(self._piece, digests)]
        for subject in under_keys:
            key_id = subject.opened_key.key.key_id
            if key_id in self._decoys.first_keys:
                number = self._decoys.kinds[key_id].number
                accounts = [account for account, kind in drawn if kind == number]
                if accounts:
                    self._score(subject, accounts, [self._decoys.seed(self._piece, digests[i]) for i in accounts])

    def _score(self, subject: AccountPositions, accounts: Sequence[int], seeds: Sequence[bytes]) -> None:
        """Score accounts, each under the decoy key of its seed, and count the hits of all of them at once."""
        key, kind = subject.opened_key.key, self._decoys.kinds[subject.opened_key.key.key_id]
        score = []
        for account, seed in zip(accounts, seeds, strict=True):
            mark, message = kind.open(key.messages, seed), int.from_bytes(seed[:8], "little") % key.messages
            score.append(mark.score(subject.posts, select_positions(subject.positions, [account]), message))
        scored = subject.positions.scored[accounts]
        hit = log10_p_best(kind.law, np.concatenate(score), scored, 1)[:, None] <= LOG10_THRESHOLDS
        sums = cluster_sums(hit, np.ones(len(hit)), self._decoys.chances(kind.law, scored, 1))
        self.count("decoy_accounts", subject.opened_key, sums, 1)
