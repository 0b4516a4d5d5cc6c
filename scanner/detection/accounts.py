"""All posts of an account as one text: some accounts in, marked accounts out (scanner.watermark.pooled).

An account is tested in two ways, each with half of its share of the error. The pooled score of all posts so far is
tested once a night, so that it pays for every night of the window: a night's first look under a key, and in later looks
it stands on record and flags nobody. The evidence of the e-process may be tested at any
time and pays for no night. Keys whose p-values do not hold over a whole key (`Basis.proven`) are left out: a rank among
decoys tells nothing of evidence that grows.

Where scans leave common n-grams out, each post is scored under the filter of its own night, whichever night the account
is tested on. So what a night adds is fixed by its posts and by earlier texts, before any draw of the key: the evidence
stays one process, and the pooled score has the law of the positions that stay. A tuple belongs to the first post that
has it, also where that post's filter leaves it out.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.filtering import NO_FILTER, Filter
from scanner.detection.naming import Names, entries_of, of_one_user, passing_of, to_be_looked_at, who_at
from scanner.detection.sketches import reach_of
from scanner.detection.under_test import KeyUnderTest, NamesUsers
from scanner.input.documents import read_text
from scanner.quoting import own_words
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.pooled import by_post, log10_evidence, pooled_positions
from scanner.watermark.positions import PositionRule
from scanner.watermark.search import Found, corrected, decide, long_enough, search
from schemas.config import Dedup
from schemas.evidence_tables import ACCOUNTS
from schemas.words import Naming

HALVES = 2
"""Halves of an account's share: one for the pooled score, one for the evidence."""


class Posts(NamedTuple):
    """P posts of A accounts, account by account and scan by scan.

    texts: a text a post; begins: int64[A+1], where the posts of each account begin; nights: int64[P], the number of the
    scan that read each post, never falling within an account; account_ids: A ids; times: when each was posted, None
    where nobody knows; filters: digest of the filter under which each post was scanned, None: none; empty: none of all.
    """

    texts: list[str]
    begins: NDArray[np.int64]
    nights: NDArray[np.int64]
    account_ids: list[str]
    times: list[datetime | None]
    filters: Sequence[str | None] = ()

    @classmethod
    def of_rows(cls, rows: pa.Table) -> "Posts":
        """Posts of rows of ACCOUNT_POSTS, in that order."""
        ids, scans = rows["account_id"].to_pylist(), rows["scan_id"].to_pylist()
        begins = [i for i, name in enumerate(ids) if i == 0 or ids[i - 1] != name]
        number = {scan: i for i, scan in enumerate(sorted(set(scans)))}
        return cls(
            texts=[read_text(raw)[0] or "" for raw in rows["text"].to_pylist()],
            begins=np.array([*begins, len(ids)], np.int64),
            nights=np.array([number[scan] for scan in scans], np.int64),
            account_ids=[ids[i] for i in begins],
            times=rows["created_at"].to_pylist(),
            filters=rows["filter_sha256"].to_pylist(),
        )

    def only(self, account_ids: Collection[str]) -> "Posts":
        """The posts of some accounts."""
        kept = [i for i, name in enumerate(self.account_ids) if name in account_ids]
        posts = [p for i in kept for p in range(self.begins[i], self.begins[i + 1])]
        sizes = [self.begins[i + 1] - self.begins[i] for i in kept]
        return Posts(
            texts=[self.texts[p] for p in posts],
            begins=np.cumsum([0, *sizes], dtype=np.int64),
            nights=self.nights[posts],
            account_ids=[self.account_ids[i] for i in kept],
            times=[self.times[p] for p in posts],
            filters=[self.filters[p] for p in posts] if self.filters else (),
        )


class Pooled(NamedTuple):
    """Some accounts as a key sees them. posts: tokens of each post; positions: the scored ones of each account."""

    test: KeyUnderTest
    posts: Tokens
    positions: Positions

    def together(self, begins: NDArray[np.int64]) -> Tokens:
        """The tokens of each account as one text."""
        return Tokens(self.posts.ids, self.posts.offsets[begins])


class AccountWitness(Protocol):
    """Sees the accounts that are scored; scanner.audit.in_every_scan.account_decoys.AccountDecoys is one."""

    def see(self, posts: Posts, pooled: Sequence[Pooled]) -> None:
        """Take some accounts, with the data of each key."""


class AccountJudge:
    """Tests accounts under a fixed list of keys.

    Args:
        keys: the keys under test; only those whose p-values hold over a whole key are used.
        tests: K of SPEC §3 of accounts under each of these keys.
        holders: who holds a message.
        nights: nights of a window; the pooled score may be tested on each.
        first_looks: ids of the keys under which this is the night's first look; None: all.
        dedup, min_scored, false_positive_rate, misnaming_rate: as of Detector.
        open_filter: opens the filter of a digest.
    """

    def __init__(
        self,
        keys: Sequence[KeyUnderTest],
        tests: Sequence[float],
        holders: NamesUsers,
        *,
        nights: int,
        dedup: Dedup,
        min_scored: int,
        false_positive_rate: float,
        misnaming_rate: float | None = None,
        first_looks: Collection[str] | None = None,
        open_filter: Callable[[str], Filter] = lambda _: NO_FILTER,
    ) -> None:
        asked = [
            (test, each)
            for test, each in zip(keys, tests, strict=True)
            if test.watermark.basis.proven and test.watermark.law is not None
        ]
        self._keys, self._tests = [test for test, _ in asked], [each for _, each in asked]
        self._tokenizers = {test.key.tokenizer.sha256: test.tokenizer for test in self._keys}
        self._holders, self._nights, self._dedup, self._min_scored = holders, nights, dedup, min_scored
        self._rate, self._misnaming_rate, self._open_filter = false_positive_rate, misnaming_rate, open_filter
        known = {test.key.key_id for test in self._keys}
        self._first_looks = known if first_looks is None else known.intersection(first_looks)

    def judge(self, posts: Posts, began: datetime, witness: AccountWitness | None = None) -> list[dict[str, Any]]:
        """Rows of ACCOUNTS for marked accounts, without the columns that the scan fills.

        An account that quotes others is flagged as any, and names nobody whom its own words do not name too.

        Args:
            posts: posts of some accounts.
            began: when the scan began, for posts without a time.
            witness: sees the accounts that are scored.
        """
        pooled = self._pooled(posts)
        if witness is not None:
            witness.see(posts, pooled)
        rows = self._rows(posts, pooled, began)
        self._hold_against_own_words(rows, posts, began)
        return rows

    def _hold_against_own_words(self, rows: list[dict[str, Any]], posts: Posts, began: datetime) -> None:
        """Take names away that hold on all posts and not on own words, and fill `quoted_share`.

        Both must hold at the same K, so that no share of the error is needed for the second look.
        """
        if not rows:
            return
        own = posts.only([row["account_id"] for row in rows])
        own = own._replace(texts=[own_words(text) for text in own.texts])
        pooled = self._pooled(own)
        named = {(row["account_id"], row["key_id"]): row["user_id"] for row in self._rows(own, pooled, began)}
        of_keys = {each.test.key.key_id: each.positions.scored for each in pooled}
        for i, row in enumerate(rows):
            row["quoted_share"] = max(0.0, 1.0 - int(of_keys[row["key_id"]][i]) / max(row["scored"], 1))
            same = named.get((row["account_id"], row["key_id"])) == row["user_id"]
            if row["user_id"] is not None and not same:
                row |= {"user_id": None, "message": None, "named": None, "named_again": None, "naming": Naming.QUOTED}

    def _rows(self, posts: Posts, pooled: Sequence[Pooled], began: datetime) -> list[dict[str, Any]]:
        """Rows of the marked accounts, by all of the given words."""
        found, evidence = [], []
        for asked, tests in zip(pooled, self._tests, strict=True):
            said, log10_e = self._score(asked, tests, posts)
            found.append(said)
            evidence.append(log10_e)
        if not found:
            return []
        decided = decide(found, self._rate, self._misnaming_rate)
        names, last = Names.of_nobody(decided.naming), _last(posts)
        passing_too = passing_of(found, self._rate)
        nowhere = np.zeros(len(last), np.bool_)
        for i in to_be_looked_at(decided.naming, nowhere, found, passing_too):
            chosen = decided.named if decided.naming[i] == Naming.NAMED else passing_too
            best = int(decided.key[i]), int(decided.candidate[i])
            entries = entries_of(found, chosen, i, best, who_at(self._keys, self._holders, last[i] or began))
            if decided.naming[i] == Naming.NAMED or of_one_user(entries):
                names.put(i, entries, last[i], began)
        rows = []
        for i in np.flatnonzero(decided.flagged).tolist():
            key, candidate = int(decided.key[i]), int(decided.candidate[i])
            rows.append(
                self._row(posts, i, pooled[key], names)
                | _figures(found[key], i, candidate, undecided=names.naming[i] == Naming.UNDECIDED)
                | {"log10_e": float(evidence[key][i, candidate]), "tests": self._tests[key]}
            )
        return rows

    def _pooled(self, posts: Posts) -> list[Pooled]:
        tokens = {name: tokenizer.encode(posts.texts) for name, tokenizer in self._tokenizers.items()}
        known: dict[tuple[str, PositionRule], Positions] = {}
        pooled = []
        for test in self._keys:
            name, rule = test.key.tokenizer.sha256, test.watermark.rule
            if (name, rule) not in known:
                positions = pooled_positions(rule, reach_of(rule), tokens[name], posts.begins, self._dedup)
                known[name, rule] = self._filtered(posts, test, tokens[name], positions)
            pooled.append(Pooled(test, tokens[name], known[name, rule]))
        return pooled

    def _filtered(self, posts: Posts, test: KeyUnderTest, tokens: Tokens, positions: Positions) -> Positions:
        """The positions of accounts, each post's without the n-grams that its own filter leaves out."""
        if not any(posts.filters):
            return positions
        of_posts = by_post(positions, tokens)
        for sha256 in dict.fromkeys(posts.filters):
            filtered = NO_FILTER if sha256 is None else self._open_filter(sha256)
            common = filtered.of(test.key.tokenizer.sha256, test.watermark.rule)
            if common is not None:
                of_posts = common.without(tokens, of_posts, np.array([each == sha256 for each in posts.filters]))
        return Positions(of_posts.index, of_posts.offsets[posts.begins])

    def _score(self, asked: Pooled, tests: float, posts: Posts) -> tuple[Found, NDArray[np.float64]]:
        """A key's findings for all accounts, and log10 of the evidence for each of its candidates: float64[A, C]."""
        mark, messages = asked.test.watermark, asked.test.key.messages
        accounts, kept = long_enough(asked.positions, self._min_scored)
        found = search(mark, asked.together(posts.begins), kept, messages, tests * HALVES * self._nights)
        found = found.among(accounts, asked.positions.scored)
        log10_e = np.zeros(found.message.shape)
        for c in range(found.message.shape[1]):
            if (found.message[:, c] >= 0).any():
                log10_e[:, c] = evidence_for(mark, asked, posts, np.maximum(found.message[:, c], 0))
        by_evidence = corrected(-log10_e, messages, tests * HALVES)
        there = found.message >= 0
        by_score = found.log10_p_global if asked.test.key.key_id in self._first_looks else np.zeros(there.shape)
        both = np.where(there, np.fmin(by_score, by_evidence), np.nan)
        return found._replace(log10_p_global=both), log10_e

    def _row(self, posts: Posts, account: int, asked: Pooled, names: Names) -> dict[str, Any]:
        of_account = slice(posts.begins[account], posts.begins[account + 1])
        times = [time for time in posts.times[of_account] if time is not None]
        offsets = asked.posts.offsets[posts.begins]
        return {
            "nights": self._nights,
            "account_id": posts.account_ids[account],
            "posts": int(posts.begins[account + 1] - posts.begins[account]),
            "texts": len(set(posts.texts[of_account])),
            "tokens": int(offsets[account + 1] - offsets[account]),
            "scored": int(asked.positions.scored[account]),
            "first_post": min(times, default=None),
            "last_post": max(times, default=None),
            "key_id": asked.test.key.key_id,
            "messages_tested": asked.test.key.messages,
            "first_look": asked.test.key.key_id in self._first_looks,
            **{name: getattr(names, name)[account] for name in ("user_id", "naming", "named", "named_again")},
            "scanned_at": datetime.now(UTC),
        }


def evidence_for(mark: Watermark, asked: Pooled, posts: Posts, messages: NDArray[np.int64]) -> NDArray[np.float64]:
    """log10 of the largest evidence of each account so far, for one message each, int64[A]: float64[A]."""
    if mark.law is None:
        return np.zeros(len(messages))
    positions = by_post(asked.positions, asked.posts)
    score = mark.score(asked.posts, positions, np.repeat(messages, np.diff(posts.begins)))
    return log10_evidence(mark.law, score, positions.scored, posts.begins, posts.nights)


def account_rows(rows: Sequence[dict[str, Any]], **same: object) -> list[pa.RecordBatch]:
    """Rows of ACCOUNTS: the rows of AccountJudge.judge with the values that all of them share."""
    return [pa.RecordBatch.from_pylist([row | same for row in rows], ACCOUNTS)] if rows else []


def _figures(said: Found, account: int, candidate: int, *, undecided: bool) -> dict[str, Any]:
    at = account, candidate
    return {
        "message": None if undecided else int(said.message[at]),
        **{name: float(getattr(said, name)[at]) for name in ("score", "log10_p", "log10_p_global")},
    }


def _last(posts: Posts) -> list[datetime | None]:
    """Time of each account's last post, None where no post has a time."""
    return [
        max((time for time in posts.times[a:b] if time is not None), default=None)
        for a, b in zip(posts.begins[:-1], posts.begins[1:], strict=True)
    ]
