"""Count decoys of accounts: how often the pooled score of all posts passes under keys that mark no text.

A decoy key is made for one account and one set of scans whose posts are tested together. So a resumed pass makes the
same key again. The look at accounts itself makes whole decisions, with a decoy in place of each key, on some accounts
together.
"""

from collections.abc import Callable, Sequence

import numpy as np

from scanner.audit.statistics.hits import LOG10_THRESHOLDS, cluster_sums
from scanner.controls.control import DecidesAccounts
from scanner.controls.decoys.draws import Decoys
from scanner.controls.decoys.hit_counts import DecoyHits, HitCounts, HitSubject
from scanner.controls.decoys.whole_texts import DECISION_ACCOUNTS, WholeTextDecoys
from scanner.detection.attribution import BatchOrigin, KeyPositions
from scanner.watermark import select_positions
from scanner.watermark.rule import log10_p_best

ACCOUNTS_A_DRAW = 8
"""Largest number of accounts that are decided under the same decoys. They are one cluster, and accounts are few."""


class AccountDecoyObserver(DecoyHits):
    """Counts the decoys' hits of the accounts of one part of a pass.

    Args:
        origin: of the part, as in each row.
        piece: name of the posts that are tested together.
    """

    def __init__(self, decoys: Decoys, origin: BatchOrigin, piece: bytes) -> None:
        super().__init__(decoys, origin)
        self._piece = piece

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Score the drawn accounts. `digests` are SHA-256 of their names."""
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
            self.compare(kind.format, key.messages, [mark])
            score.append(
                mark.score(key_positions.tokens, select_positions(key_positions.positions, [account]), message)
            )
        scored = key_positions.positions.scored[accounts]
        hit = log10_p_best(kind.law, np.concatenate(score), scored, 1)[:, None] <= LOG10_THRESHOLDS
        sums = cluster_sums(hit, np.ones(len(hit)), self._decoys.chances(kind.law, scored, 1))
        self.count("decoy_accounts", key_positions.opened_key, sums, 1)


class WholeAccountObserver(HitCounts):
    """Has the drawn accounts of a part of a pass decided whole, some at a time, and counts hits.

    Args:
        decoys: decoys of all keys under test.
        judge: decides on accounts.
        origin, dedup: as in each row.
        piece: name of the posts that are tested together.
    """

    def __init__(
        self, decoys: WholeTextDecoys, judge: DecidesAccounts, origin: BatchOrigin, dedup: str, piece: bytes
    ) -> None:
        super().__init__(origin, dedup)
        self._decoys, self._judge, self._piece = decoys, judge, piece

    def observe(self, digests: Sequence[bytes], scores: Sequence[KeyPositions], text_of: Callable[[int], str]) -> None:
        """Have the drawn accounts of a batch decided. `digests` are SHA-256 of their names."""
        del text_of
        if not self._decoys.can_replace_any(scores):
            return
        drawn = self._decoys.drawn_accounts(self._piece, digests)
        for begin in range(0, len(drawn), ACCOUNTS_A_DRAW):
            accounts = drawn[begin : begin + ACCOUNTS_A_DRAW]
            marks = self._decoys.marks(self._decoys.seed(self._piece, [digests[i] for i in accounts.tolist()]))
            for key_id, mark in marks.items():
                self.compare(*self._decoys.form_of(key_id), [mark])
            sums = self._decoys.count_account_hits(self._judge, marks, scores, accounts)
            self.add(HitSubject(DECISION_ACCOUNTS, self._decoys.messages, "all"), sums)
