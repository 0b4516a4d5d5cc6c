"""Prove a flagged account before it names anybody: compute its pooled score again, as for a text.

The slow paths of texts read the posts of an account as one text (scanner.detection.proving). Tokens whose n-gram
reaches into the post before are left out, and so are the n-grams that the filter of each post's night leaves out. The
tuples that came before in the account are found anew, from the tokens of the reference tokenizer. Only the reach of
n-grams is taken from the mark's rule. If it were wrong, other positions would count, but under the same law.

Example: posts of the tokens [1, 2, 3] and [1, 2, 3], under a key that hashes one token before each. The text is [1, 2,
3, 1, 2, 3], and places 0 and 3 are left out. Of the pairs (1, 2), (2, 3), (3, 1), (1, 2), (2, 3) the third is at place
3, and the last two came before. So two positions count.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.detection.attribution import OpenedKey
from scanner.detection.left_out import NgramFilter, places_left_out
from scanner.detection.proving import Prover, TextReading
from scanner.watermark.format import ProofPath
from scanner.watermark.positions import reach_of
from scanner.watermark.rule import Decision, KeyFindings
from schemas.words import Proof

TOKENS_OF_ACCOUNTS = 2**20
"""Largest number of tokens that are proved among accounts that are tested together, a few MB of text.

If there are more flagged accounts, a keyed sample is drawn, and the others name nobody.
"""

LONGEST_ACCOUNT = 2**18
"""Largest number of tokens of an account that is proved. A proof's memory grows with the tokens."""


class AccountDecision(NamedTuple):
    """The findings on one account, in all of its posts or in its own words.

    texts: texts of its posts.
    filters: digest of the filter of each post. None: no filter.
    lengths: number of tokens under each key.
    place: place of the account in the findings of K keys, and in the decision on them.
    """

    texts: Sequence[str]
    filters: Sequence[str | None]
    lengths: Sequence[int]
    place: int
    found: Sequence[KeyFindings]
    decided: Decision

    @property
    def key(self) -> int:
        """Return the place of the key that gives the decision."""
        return int(self.decided.key[self.place])


class AccountProver:
    """Computes the findings on accounts again.

    Args:
        prover: prover of the keys of an AccountJudge.
        opened_keys: these keys, in the same order.
        open_filter: opens a filter by its digest.
    """

    def __init__(
        self,
        prover: Prover,
        opened_keys: Sequence[OpenedKey],
        open_filter: Callable[[str], NgramFilter],
    ) -> None:
        self._prover, self._keys, self._open_filter = prover, opened_keys, open_filter

    def prove(self, accounts: Iterable[tuple[str, Sequence[AccountDecision]]], salt: bytes) -> dict[str, Proof]:
        """Return the proof of each flagged account, by its id. Every decision on it must be confirmed.

        Args:
            accounts: ids, each with the decision on all of its posts and, if this names somebody, the one on its own
                words.
            salt: as for Prover.prove.
        """
        account_decisions = list(accounts)
        sizes = [[decision.lengths[decision.key] for decision in decisions] for _, decisions in account_decisions]
        short = [
            (place, name, sum(sizes[place]))
            for place, (name, _) in enumerate(account_decisions)
            if max(sizes[place]) <= LONGEST_ACCOUNT
        ]
        drawn = self._prover.draw(short, salt, most=TOKENS_OF_ACCOUNTS, longest=TOKENS_OF_ACCOUNTS)
        return {name: self._proof(decisions, drawn=i in drawn) for i, (name, decisions) in enumerate(account_decisions)}

    def _proof(self, decisions: Sequence[AccountDecision], *, drawn: bool) -> Proof:
        if not all(self._prover.offers(decision.key) for decision in decisions):
            return Proof.NOT_OFFERED
        if not drawn:
            return Proof.NOT_DRAWN
        return Proof.PROVED if all(map(self._confirms, decisions)) else Proof.DIFFERS

    def _confirms(self, account: AccountDecision) -> bool:
        def read(key: int, _path: ProofPath) -> TextReading:
            return self._read(account, key)

        return self._prover.confirms(account.place, read, account.lengths, account.found, account.decided)

    def _read(self, account: AccountDecision, key: int) -> TextReading:
        opened_key = self._keys[key]
        rule, tokenizer = opened_key.watermark.rule, opened_key.tokenizer.reference
        posts: list[NDArray[np.uint32]] = []
        left_out, begin = set[int](), 0
        for text, sha256 in zip(account.texts, account.filters, strict=True):
            ids = tokenizer.encode([text]).ids
            left_out.update(range(begin, begin + min(reach_of(rule), len(ids))))
            if sha256 is not None:
                common = self._open_filter(sha256).of(opened_key.key.tokenizer.sha256, rule)
                left_out.update(begin + place for place in places_left_out(common, ids))
            posts.append(ids)
            begin += len(ids)
        return TextReading(np.concatenate(posts), left_out, self._prover.correction_of_accounts(key))
