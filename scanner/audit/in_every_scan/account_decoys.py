"""Decoys of accounts: a sample of accounts is scored once more under keys that mark nothing, as documents are.

A decoy key is made for one account and one set of scans whose posts are tested together, so that a resumed pass makes
the same key again. Two
questions are counted: how often the pooled score of all posts falls below each threshold, and how often the evidence
over nights reaches the inverse of the threshold. The law bounds how often the evidence does; the bound is 0 where no
score can reach it.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from scanner.audit.in_every_scan.decoy_keys import Decoys, entropy_of
from scanner.audit.in_every_scan.decoys import Counts
from scanner.audit.statistics.expectation import THRESHOLDS
from scanner.detection.accounts import Pooled, Posts
from scanner.detection.under_test import Origin
from scanner.watermark import only
from scanner.watermark.pooled import by_post, log10_evidence
from scanner.watermark.search import log10_p_best

_LOG10_ALPHA = np.log10(THRESHOLDS)


class AccountDecoys(Counts):
    """Counts the decoys' hits of the accounts of one part; scanner.detection.accounts shows it some at a time.

    Args:
        decoys: of the scan.
        origin: of the part, as it stands in every row.
        unit: name of the posts that are tested together.
    """

    def __init__(self, decoys: Decoys, origin: Origin, unit: str) -> None:
        super().__init__(decoys, origin)
        self._piece = f"accounts;{unit};".encode()

    def see(self, posts: Posts, pooled: Sequence[Pooled]) -> None:
        """Score those accounts that are drawn."""
        digests = [hashlib.sha256(name.encode()).digest() for name in posts.account_ids]
        drawn = [(account, kind) for account, kind, _ in self._decoys.drawn(self._piece, digests)]
        for asked in pooled:
            key_id = asked.test.key.key_id
            if key_id in self._decoys.one:
                number = self._decoys.kinds[key_id].number
                for account in (account for account, kind in drawn if kind == number):
                    self._score(asked, posts, account, self._decoys.seed(self._piece, digests[account]))

    def _score(self, asked: Pooled, posts: Posts, account: int, seed: bytes) -> None:
        key, kind = asked.test.key, self._decoys.kinds[asked.test.key.key_id]
        message = int.from_bytes(seed[:8], "little") % key.messages
        mark, law = kind.open(entropy_of(key, seed)), kind.law
        first, last = posts.begins[account : account + 2].tolist()
        positions = only(asked.positions, [account])
        score = mark.score(asked.posts, positions, message)
        log10_p = log10_p_best(law, score, positions.scored, 1)
        hit = log10_p[:, None] <= _LOG10_ALPHA[None, :]
        self._count("decoy_accounts", asked.test, hit, np.ones(1), self._decoys.chances(law, positions.scored, 1), 1)
        of_posts = by_post(positions, asked.posts, first, last)
        of_account, nights = np.array([0, last - first]), posts.nights[first:last]
        of_each = mark.score(asked.posts, of_posts, message)
        most = log10_evidence(law, law.largest(of_posts.scored), of_posts.scored, of_account, nights)
        hit = log10_evidence(law, of_each, of_posts.scored, of_account, nights)[:, None] >= -_LOG10_ALPHA[None, :]
        chance = np.where(most[:, None] >= -_LOG10_ALPHA[None, :], np.array(THRESHOLDS)[None, :], 0.0)
        self._count("decoy_evidence", asked.test, hit, np.ones(1), chance, 1)
