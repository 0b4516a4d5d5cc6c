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
from numpy.typing import NDArray

from scanner.audit.in_every_scan.decoy_keys import Decoys
from scanner.audit.in_every_scan.decoys import Counts
from scanner.audit.statistics.expectation import THRESHOLDS
from scanner.detection.accounts import Pooled, Posts
from scanner.detection.under_test import KeyUnderTest, Origin
from scanner.watermark import only
from scanner.watermark.accounts import by_post, log10_evidence
from scanner.watermark.rule import log10_p_best

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
                accounts = [account for account, kind in drawn if kind == number]
                if accounts:
                    self._score(asked, posts, accounts, [self._decoys.seed(self._piece, digests[i]) for i in accounts])

    def _score(self, asked: Pooled, posts: Posts, accounts: Sequence[int], seeds: Sequence[bytes]) -> None:
        """Score accounts, each under the decoy key of its seed, and count the hits of all of them at once."""
        key, kind = asked.test.key, self._decoys.kinds[asked.test.key.key_id]
        of_accounts, of_posts, scored = [], [], []
        for account, seed in zip(accounts, seeds, strict=True):
            mark, message = kind.open(key.messages, seed), int.from_bytes(seed[:8], "little") % key.messages
            positions = only(asked.positions, [account])
            each = by_post(positions, asked.posts, *posts.begins[account : account + 2].tolist())
            of_accounts.append(mark.score(asked.posts, positions, message))
            of_posts.append(mark.score(asked.posts, each, message))
            scored.append(each.scored)
        self._count_pooled(asked.test, np.concatenate(of_accounts), asked.positions.scored[accounts])
        nights = np.concatenate([posts.nights[posts.begins[i] : posts.begins[i + 1]] for i in accounts])
        begins = np.cumsum([0, *map(len, scored)])
        self._count_evidence(asked.test, np.concatenate(of_posts), np.concatenate(scored), begins, nights)

    def _count_pooled(self, test: KeyUnderTest, score: NDArray[np.generic], scored: NDArray[np.int64]) -> None:
        """Count how often the pooled scores of accounts, [A], reach the levels."""
        law = self._decoys.kinds[test.key.key_id].law
        hit = log10_p_best(law, score, scored, 1)[:, None] <= _LOG10_ALPHA
        self._count("decoy_accounts", test, hit, np.ones(len(hit)), self._decoys.chances(law, scored, 1), 1)

    def _count_evidence(
        self,
        test: KeyUnderTest,
        score: NDArray[np.generic],
        scored: NDArray[np.int64],
        begins: NDArray[np.int64],
        nights: NDArray[np.int64],
    ) -> None:
        """Count how often the evidence of accounts reaches the levels; the arguments are as of `log10_evidence`."""
        law = self._decoys.kinds[test.key.key_id].law
        hit, possible = (
            log10_evidence(law, given, scored, begins, nights)[:, None] >= -_LOG10_ALPHA
            for given in (score, law.largest(scored))
        )
        self._count("decoy_evidence", test, hit, np.ones(len(hit)), np.where(possible, THRESHOLDS, 0.0), 1)
