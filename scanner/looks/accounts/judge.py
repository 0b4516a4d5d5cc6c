"""Test all posts of an account as one text.

The pooled score of all posts so far is tested once a night under each key, in the night's first look, and p is
corrected for every night of the window. Keys whose p-values do not hold over a whole key (`Basis.proven`) are left out.

Where scans leave common n-grams out, each post is scored under the filter of its own night, whichever night the account
is tested on. So what is left out is fixed by earlier texts, before any draw of the key, and the pooled score has the
law of the positions that stay. A tuple belongs to the first post that has it, also where that post's filter leaves it
out.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.detection.attribution import (
    KeyPositions,
    NameColumns,
    NamedMessage,
    NamesUsers,
    OpenedKey,
    ScoreObserver,
    TextOutcomes,
    UserOfMessage,
    name_candidates,
    users_at,
)
from scanner.detection.left_out import NO_FILTER, NgramFilter
from scanner.detection.proving import Prover
from scanner.detection.rules import Rules
from scanner.input.documents import read_text
from scanner.looks.accounts.pooled_positions import by_post, pooled_positions
from scanner.looks.accounts.proving import AccountDecision, AccountProver
from scanner.text.quoting import unquoted_words
from scanner.watermark import Positions, Tokens
from scanner.watermark.positions import PositionRule, reach_of
from scanner.watermark.rule import KeyFindings, long_enough, search
from schemas.tables import ACCOUNTS
from schemas.words import Naming, Proof


class Posts(NamedTuple):
    """P posts of A accounts, account by account and scan by scan.

    texts: a text a post; begins: int64[A+1], where the posts of each account begin; account_ids: A ids; times: when
    each was posted, None where nobody knows; filters: digest of the filter under which each post was scanned, None:
    none; empty: none of all.
    """

    texts: list[str]
    begins: NDArray[np.int64]
    account_ids: list[str]
    times: list[datetime | None]
    filters: Sequence[str | None] = ()

    @classmethod
    def of_rows(cls, rows: pa.Table) -> "Posts":
        """Posts of rows of ACCOUNT_POSTS, in that order."""
        ids = rows["account_id"].to_pylist()
        begins = [i for i, name in enumerate(ids) if i == 0 or ids[i - 1] != name]
        return cls(
            texts=[read_text(raw)[0] or "" for raw in rows["text"].to_pylist()],
            begins=np.array([*begins, len(ids)], np.int64),
            account_ids=[ids[i] for i in begins],
            times=rows["created_at"].to_pylist(),
            filters=rows["filter_sha256"].to_pylist(),
        )

    def joined(self, account: int) -> str:
        """Return all posts of an account, by its place, as one text."""
        begin, end = self.begins[account : account + 2].tolist()
        return "\n".join(self.texts[begin:end])

    def select_accounts(self, account_ids: Collection[str]) -> "Posts":
        """The posts of some accounts."""
        account_ids = frozenset(account_ids)
        kept = [i for i, name in enumerate(self.account_ids) if name in account_ids]
        posts = [p for i in kept for p in range(self.begins[i], self.begins[i + 1])]
        sizes = [self.begins[i + 1] - self.begins[i] for i in kept]
        return Posts(
            texts=[self.texts[p] for p in posts],
            begins=np.cumsum([0, *sizes], dtype=np.int64),
            account_ids=[self.account_ids[i] for i in kept],
            times=[self.times[p] for p in posts],
            filters=[self.filters[p] for p in posts] if self.filters else (),
        )


class AccountPositions(NamedTuple):
    """Some accounts as a key sees them. posts: tokens of each post; positions: the scored ones of each account."""

    opened_key: OpenedKey
    posts: Tokens
    positions: Positions

    def together(self, begins: NDArray[np.int64]) -> Tokens:
        """The tokens of each account as one text."""
        return Tokens(self.posts.ids, self.posts.offsets[begins])


class AccountFindings(NamedTuple):
    """Findings of K keys on A accounts. under_keys: what was scored."""

    outcomes: TextOutcomes
    under_keys: Sequence[AccountPositions]

    def decision_on(self, posts: Posts, account: int) -> AccountDecision:
        """What was found on one of the accounts, whose posts these are."""
        begin, end = posts.begins[account : account + 2].tolist()
        return AccountDecision(
            posts.texts[begin:end],
            posts.filters[begin:end] if posts.filters else [None] * (end - begin),
            [int(of_key.posts.offsets[end] - of_key.posts.offsets[begin]) for of_key in self.under_keys],
            account,
            self.outcomes.findings,
            self.outcomes.decision,
        )


class OwnWords(NamedTuple):
    """An account's own words, without what it quotes.

    posts: of all accounts that quote; place: of the account among them; scored: its scored tokens by key, None: it
    quotes nothing, and its own words are all of its words.
    """

    posts: Posts
    findings: AccountFindings
    place: int
    scored: list[int] | None


class AccountJudge:
    """Tests accounts under a fixed list of keys.

    keys: only those whose p-values hold over a whole key are used; corrections: K of SPEC §3 of accounts under each
    key; nights: of a window, on each of which accounts may be tested; first_looks: ids of the keys under which this is
    the night's first look, None: all; under others nothing is tested. Filters are those of the posts' nights, opened by
    their digests. open_prover: makes what proves flags under some keys; None: nothing is proved, as where an account
    that was proved is judged again.
    """

    def __init__(
        self,
        keys: Sequence[OpenedKey],
        corrections: Sequence[float],
        holders: NamesUsers,
        rules: Rules,
        *,
        nights: int,
        first_looks: Collection[str] | None = None,
        open_filter: Callable[[str], NgramFilter] = lambda _: NO_FILTER,
        open_prover: Callable[[Sequence[OpenedKey]], Prover] | None = None,
    ) -> None:
        under_key = [
            (opened_key, each)
            for opened_key, each in zip(keys, corrections, strict=True)
            if opened_key.watermark.basis.proven
            and opened_key.watermark.law is not None
            and (first_looks is None or opened_key.key.key_id in first_looks)
        ]
        self._keys, self._corrections = [opened_key for opened_key, _ in under_key], [each for _, each in under_key]
        self._tokenizers = {opened_key.key.tokenizer.sha256: opened_key.tokenizer for opened_key in self._keys}
        self._holders, self._nights, self._rules, self._open_filter = holders, nights, rules, open_filter
        self._prover = None
        if open_prover is not None and self._keys:
            of_nights = [correction * nights for correction in self._corrections]
            self._prover = AccountProver(open_prover(self._keys), self._keys, of_nights, open_filter)

    def judge(self, posts: Posts, began: datetime, observer: ScoreObserver | None = None) -> list[dict[str, Any]]:
        """Rows of ACCOUNTS for marked accounts, without the columns that the scan fills.

        An account that quotes others is flagged as any, and is named for nobody whom its own words do not name too.
        began: when the scan began, for posts without a time; observer: is shown the accounts that are scored.
        """
        under_keys = self._under_keys(posts)
        if observer is not None:
            every = np.arange(len(posts.account_ids))
            digests = [hashlib.sha256(name.encode()).digest() for name in posts.account_ids]
            scores = [KeyPositions(of_key.opened_key, of_key.posts, of_key.positions, every) for of_key in under_keys]
            observer.observe(digests, scores, posts.joined)
        if not under_keys:
            return []
        of_all = self._findings(posts, under_keys)
        marked, last = np.flatnonzero(of_all.outcomes.decision.flagged).tolist(), _last(posts)
        unquoted = self._unquoted(posts.select_accounts([posts.account_ids[i] for i in marked]))
        proofs = self._proofs(posts, of_all, marked, unquoted, began)
        names = NameColumns.of_nobody(of_all.outcomes.decision.naming)
        rows = []
        for i in marked:
            user_of = users_at(self._keys, self._holders, last[i] or began)
            own = unquoted.get(posts.account_ids[i], OwnWords(posts, of_all, i, None))
            proof, unquoted_scored = proofs.get(posts.account_ids[i]), own.scored
            names.naming[i], entries = _named(of_all, i, own.findings, own.place, user_of)
            if proof not in (None, Proof.PROVED):
                names.naming[i], entries = Naming.UNPROVED, []
            if entries:
                names.name_users(i, entries, last[i], began)
            key, candidate = self._best(of_all, i, entries)
            nameless = names.naming[i] in (Naming.UNDECIDED, Naming.QUOTED, Naming.UNPROVED)
            scored = int(under_keys[key].positions.scored[i])
            rows.append(
                self._row(posts, i, under_keys[key], names)
                | _figures(of_all.outcomes.findings[key], i, candidate, nameless=nameless)
                | {
                    "correction": self._corrections[key],
                    "proof": proof,
                    "quoted_share": 0.0
                    if unquoted_scored is None
                    else max(0.0, 1.0 - unquoted_scored[key] / max(scored, 1)),
                }
            )
        return rows

    def findings(self, posts: Posts) -> "AccountFindings":
        """Findings on some accounts. There must be a key whose p-values hold."""
        return self._findings(posts, self._under_keys(posts))

    def _findings(self, posts: Posts, under_keys: Sequence[AccountPositions]) -> "AccountFindings":
        found = [
            self._score(under_key, correction * self._nights, posts)
            for under_key, correction in zip(under_keys, self._corrections, strict=True)
        ]
        return AccountFindings(TextOutcomes.of_stored_texts(found, self._rules.rates), under_keys)

    def _proofs(
        self,
        posts: Posts,
        of_all: "AccountFindings",
        marked: Sequence[int],
        unquoted: Mapping[str, "OwnWords"],
        began: datetime,
    ) -> dict[str, Proof]:
        """The proofs of marked accounts, by id; none where nothing is proved."""
        if self._prover is None:
            return {}
        decisions = {posts.account_ids[i]: [of_all.decision_on(posts, i)] for i in marked}
        for name, own in unquoted.items():
            if own.findings.outcomes.decision.flagged[own.place]:  # else they name nobody
                decisions[name].append(own.findings.decision_on(own.posts, own.place))
        return self._prover.prove(decisions.items(), began.isoformat().encode())

    def _unquoted(self, posts: Posts) -> dict[str, "OwnWords"]:
        """Findings on own words alone, of accounts that quote, by account id."""
        # A name must hold here and on all posts, at the same K: so this look needs no share of the error.
        unquoted = posts._replace(texts=[unquoted_words(text) for text in posts.texts])
        changed = np.array([a != b for a, b in zip(posts.texts, unquoted.texts, strict=True)], np.bool_)
        spans = list(zip(posts.account_ids, posts.begins[:-1], posts.begins[1:], strict=True))
        quoting = unquoted.select_accounts([name for name, a, b in spans if changed[a:b].any()])
        if not quoting.account_ids:
            return {}
        findings = self.findings(quoting)
        scored = [
            [int(each.positions.scored[j]) for each in findings.under_keys] for j in range(len(quoting.account_ids))
        ]
        return {name: OwnWords(quoting, findings, j, scored[j]) for j, name in enumerate(quoting.account_ids)}

    def _best(self, of_all: "AccountFindings", account: int, entries: Sequence[NamedMessage]) -> tuple[int, int]:
        """Key and candidate of the row: of the first who is named, else of the smallest p."""
        if not entries:
            return int(of_all.outcomes.decision.key[account]), int(of_all.outcomes.decision.candidate[account])
        key = next(i for i, opened_key in enumerate(self._keys) if opened_key.key.key_id == entries[0].key_id)
        return key, int(np.flatnonzero(of_all.outcomes.findings[key].message[account] == entries[0].message)[0])

    def _under_keys(self, posts: Posts) -> list[AccountPositions]:
        tokens = {name: tokenizer.encode(posts.texts) for name, tokenizer in self._tokenizers.items()}
        known: dict[tuple[str, PositionRule], Positions] = {}
        under_keys = []
        for opened_key in self._keys:
            name, rule = opened_key.key.tokenizer.sha256, opened_key.watermark.rule
            if (name, rule) not in known:
                positions = pooled_positions(rule, reach_of(rule), tokens[name], posts.begins, self._rules.dedup)
                known[name, rule] = self._filtered(posts, opened_key, tokens[name], positions)
            under_keys.append(AccountPositions(opened_key, tokens[name], known[name, rule]))
        return under_keys

    def _filtered(self, posts: Posts, opened_key: OpenedKey, tokens: Tokens, positions: Positions) -> Positions:
        """The positions of accounts, each post's without the n-grams that its own filter leaves out."""
        if not any(posts.filters):
            return positions
        of_posts = by_post(positions, tokens)
        for sha256 in dict.fromkeys(posts.filters):
            filtered = NO_FILTER if sha256 is None else self._open_filter(sha256)
            common = filtered.of(opened_key.key.tokenizer.sha256, opened_key.watermark.rule)
            if common is not None:
                of_posts = common.without(tokens, of_posts, np.array([each == sha256 for each in posts.filters]))
        return Positions(of_posts.index, of_posts.offsets[posts.begins])

    def _score(self, under_key: AccountPositions, correction: float, posts: Posts) -> KeyFindings:
        """A key's findings for all accounts."""
        mark, messages = under_key.opened_key.watermark, under_key.opened_key.key.messages
        accounts, kept = long_enough(under_key.positions, self._rules.min_scored)
        found = search(mark, under_key.together(posts.begins), kept, messages, correction)
        return found.of_batch(accounts, under_key.positions.scored, correction)

    def _row(self, posts: Posts, account: int, under_key: AccountPositions, names: NameColumns) -> dict[str, Any]:
        of_account = slice(posts.begins[account], posts.begins[account + 1])
        times = [time for time in posts.times[of_account] if time is not None]
        offsets = under_key.posts.offsets[posts.begins]
        return {
            "nights": self._nights,
            "account_id": posts.account_ids[account],
            "posts": int(posts.begins[account + 1] - posts.begins[account]),
            "texts": len(set(posts.texts[of_account])),
            "tokens": int(offsets[account + 1] - offsets[account]),
            "scored": int(under_key.positions.scored[account]),
            "first_post": min(times, default=None),
            "last_post": max(times, default=None),
            "key_id": under_key.opened_key.key.key_id,
            "messages_tested": under_key.opened_key.key.messages,
            **{name: getattr(names, name)[account] for name in ("user_id", "naming", "named", "further_messages")},
            "scanned_at": datetime.now(UTC),
        }


def account_rows(rows: Sequence[dict[str, Any]], **same: object) -> list[pa.RecordBatch]:
    """Rows of ACCOUNTS: the rows of AccountJudge.judge with the values that all of them share."""
    return [pa.RecordBatch.from_pylist([row | same for row in rows], ACCOUNTS)] if rows else []


def _named(
    of_all: AccountFindings,
    account: int,
    unquoted: AccountFindings,
    of_unquoted: int,
    user_of: UserOfMessage,
) -> tuple[Naming, list[NamedMessage]]:
    """Whom an account is named for, by rule 1 on all posts and by rules 1 and 2 on own words."""
    # Findings are of all posts and of own words, each with the account's place there; the smallest p comes first
    if not unquoted.outcomes.decision.flagged[of_unquoted]:
        return Naming.QUOTED, []
    naming = Naming(unquoted.outcomes.decision.naming[of_unquoted])
    on_own = unquoted.outcomes.entries(of_unquoted, naming, user_of)
    if not on_own:
        return naming, []
    entries = name_candidates(of_all.outcomes.findings, of_all.outcomes.decision.passing, account, (-1, -1), user_of)
    named = {(entry.key_id, entry.message) for entry in on_own}
    return Naming.UNDECIDED, [entry for entry in entries if (entry.key_id, entry.message) in named]


def _figures(findings: KeyFindings, account: int, candidate: int, *, nameless: bool) -> dict[str, Any]:
    at = account, candidate
    return {
        "message": None if nameless else int(findings.message[at]),
        **{name: float(getattr(findings, name)[at]) for name in ("score", "log10_p", "log10_p_global")},
    }


def _last(posts: Posts) -> list[datetime | None]:
    return [
        max((time for time in posts.times[a:b] if time is not None), default=None)
        for a, b in zip(posts.begins[:-1], posts.begins[1:], strict=True)
    ]
