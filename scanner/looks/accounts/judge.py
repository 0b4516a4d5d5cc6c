"""Test all posts of an account as one text.

The pooled score of all posts so far is tested once a night under each key, in the night's first look. p is corrected
for every night of the window. Keys whose p-values do not hold over a whole key (`Basis.proven`) are left out.

If scans leave common n-grams out, each post is scored under the filter of its own night, whichever night the account is
tested on. So earlier texts decide what is left out, before any draw of the key, and the pooled score has the law of the
remaining positions. A tuple belongs to the first post that has it, even if that post's filter leaves it out.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.controls.control import DecidedAccounts
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
from scanner.looks.accounts.proving import AccountDecision, AccountProver
from scanner.text.quoting import unquoted_words
from scanner.watermark import Positions, Tokens, Watermark, select_positions
from scanner.watermark.pooled_positions import by_post, pooled_positions
from scanner.watermark.positions import PositionRule, reach_of
from scanner.watermark.rule import KeyFindings, long_enough, search
from schemas.tables import ACCOUNTS
from schemas.words import Naming, Proof


class Posts(NamedTuple):
    """P posts of A accounts, account by account and scan by scan.

    texts: text of each post.
    begins: int64[A+1], where the posts of each account begin.
    account_ids: A ids.
    times: time when each was posted. None: unknown.
    filters: digest of the filter under which each post was scanned. None: no filter. Empty: no post has one.
    """

    texts: list[str]
    begins: NDArray[np.int64]
    account_ids: list[str]
    times: list[datetime | None]
    filters: Sequence[str | None] = ()

    @classmethod
    def of_rows(cls, rows: pa.Table) -> "Posts":
        """Return the posts of rows of ACCOUNT_POSTS, in that order."""
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
        """Return the posts of some accounts."""
        account_ids = frozenset(account_ids)
        places = [i for i, name in enumerate(self.account_ids) if name in account_ids]
        posts = [p for i in places for p in range(self.begins[i], self.begins[i + 1])]
        sizes = [self.begins[i + 1] - self.begins[i] for i in places]
        return Posts(
            texts=[self.texts[p] for p in posts],
            begins=np.cumsum([0, *sizes], dtype=np.int64),
            account_ids=[self.account_ids[i] for i in places],
            times=[self.times[p] for p in posts],
            filters=[self.filters[p] for p in posts] if self.filters else (),
        )


class AccountPositions(NamedTuple):
    """Some accounts as a key reads them.

    posts: tokens of each post.
    accounts: the same tokens, with all posts of an account as one text.
    positions: scored positions of each account.
    """

    opened_key: OpenedKey
    posts: Tokens
    accounts: Tokens
    positions: Positions


class AccountFindings(NamedTuple):
    """Findings of K keys on A accounts.

    under_keys: the scored positions.
    """

    outcomes: TextOutcomes
    under_keys: Sequence[AccountPositions]

    def decision_on(self, posts: Posts, account: int) -> AccountDecision:
        """Return the findings on one of the accounts, given its posts."""
        begin, end = posts.begins[account : account + 2].tolist()
        return AccountDecision(
            posts.texts[begin:end],
            posts.filters[begin:end] if posts.filters else [None] * (end - begin),
            [
                int(account_positions.posts.offsets[end] - account_positions.posts.offsets[begin])
                for account_positions in self.under_keys
            ],
            account,
            self.outcomes.findings,
            self.outcomes.decision,
        )


class OwnWords(NamedTuple):
    """An account's own words, without the words it quotes.

    posts: posts of all accounts that quote.
    place: place of the account among them.
    scored: its number of scored tokens under each key. None: it quotes nothing, so all words are its own.
    """

    posts: Posts
    findings: AccountFindings
    place: int
    scored: list[int] | None


class AccountJudge:
    """Tests accounts under a fixed list of keys.

    Filters are those of the posts' nights, opened by their digests.

    Args:
        keys: only those whose p-values hold over a whole key are used.
        corrections: K of SPEC §3 of accounts under each key.
        holders: names the users who hold messages.
        rules: rules of the scan.
        nights: number of nights in a window. Accounts may be tested on each.
        first_looks: ids of the keys under which this is the night's first look. Under other keys no account is tested.
            None: all keys.
        open_filter: opens a filter by its digest.
        open_prover: makes a prover of flags under some keys. None: accounts are not proved, for example when an account
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
        keys_and_corrections = [
            (opened_key, correction)
            for opened_key, correction in zip(keys, corrections, strict=True)
            if opened_key.watermark.basis.proven
            and opened_key.watermark.law is not None
            and (first_looks is None or opened_key.key.key_id in first_looks)
        ]
        self._keys = [opened_key for opened_key, _ in keys_and_corrections]
        self._corrections = [correction for _, correction in keys_and_corrections]
        self._tokenizers = {opened_key.key.tokenizer.sha256: opened_key.tokenizer for opened_key in self._keys}
        self._holders, self._nights, self._rules, self._open_filter = holders, nights, rules, open_filter
        self._prover = None
        if open_prover is not None and self._keys:
            self._prover = AccountProver(open_prover(self._keys), self._keys, open_filter)

    def judge(self, posts: Posts, began: datetime, observer: ScoreObserver | None = None) -> list[dict[str, Any]]:
        """Return rows of ACCOUNTS for marked accounts, as `rows` does, and show the accounts to an observer."""
        findings = self.look_at(posts, observer)
        return [] if findings is None else self.rows(posts, findings, began)

    def look_at(self, posts: Posts, observer: ScoreObserver | None = None) -> "AccountFindings | None":
        """Return the findings on accounts. None if there is no key. `observer` is shown the accounts."""
        under_keys = self._under_keys(posts)
        if observer is not None:
            places = np.arange(len(posts.account_ids))
            scores = [
                KeyPositions(under_key.opened_key, under_key.accounts, under_key.positions, places)
                for under_key in under_keys
            ]
            observer.observe(_digests(posts), scores, posts.joined)
        return self._findings(posts, under_keys) if under_keys else None

    def decided(self, posts: Posts, findings: "AccountFindings") -> DecidedAccounts:
        """Return the decisions on all accounts, as controls count them."""
        decision = findings.outcomes.decision
        place = decision.key, np.arange(len(posts.account_ids)), decision.candidate
        under_keys = _of_one_width(findings.outcomes.findings)
        message = np.stack([under_key.message for under_key in under_keys])[place]
        return DecidedAccounts(
            posts.account_ids,
            _digests(posts),
            [self._keys[key].key.key_id for key in decision.key.tolist()],
            message,
            np.where(message >= 0, np.stack([under_key.log10_p_global for under_key in under_keys])[place], np.nan),
            decision.flagged,
            {under_key.opened_key.key.key_id: under_key.positions.scored for under_key in findings.under_keys},
        )

    def rows(self, posts: Posts, findings: "AccountFindings", began: datetime) -> list[dict[str, Any]]:
        """Return rows of ACCOUNTS for marked accounts, without the columns that the scan fills.

        An account that quotes others is flagged like any other, but it is named only for users whom its own words name
        too.

        Args:
            posts: posts of the accounts.
            findings: findings on the accounts.
            began: when the scan began, for posts without a time.
        """
        under_keys = findings.under_keys
        marked, last = np.flatnonzero(findings.outcomes.decision.flagged).tolist(), _last(posts)
        unquoted = self._unquoted(posts.select_accounts([posts.account_ids[i] for i in marked]))
        proofs = self._proofs(posts, findings, marked, unquoted, began)
        names = NameColumns.of_nobody(findings.outcomes.decision.naming)
        rows = []
        for i in marked:
            user_of = users_at(self._keys, self._holders, last[i] or began)
            own_words = unquoted.get(posts.account_ids[i], OwnWords(posts, findings, i, None))
            proof, unquoted_scored = proofs.get(posts.account_ids[i]), own_words.scored
            names.naming[i], entries = _named(findings, i, own_words.findings, own_words.place, user_of)
            if proof not in (None, Proof.PROVED):
                names.naming[i], entries = Naming.UNPROVED, []
            if entries:
                names.name_users(i, entries, last[i], began)
            key, candidate = self._best(findings, i, entries)
            nameless = names.naming[i] in (Naming.UNDECIDED, Naming.QUOTED, Naming.UNPROVED)
            scored = int(under_keys[key].positions.scored[i])
            rows.append(
                self._row(posts, i, under_keys[key], names)
                | _figures(findings.outcomes.findings[key], i, candidate, nameless=nameless)
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
        """Return the findings on some accounts. At least one key must have p-values that hold."""
        return self._findings(posts, self._under_keys(posts))

    def _findings(self, posts: Posts, under_keys: Sequence[AccountPositions]) -> "AccountFindings":
        findings = self._score_all(under_keys, self._corrections)
        return AccountFindings(TextOutcomes.of_stored_texts(findings, self._rules.rates), under_keys)

    def _score_all(self, under_keys: Sequence[AccountPositions], corrections: Sequence[float]) -> list[KeyFindings]:
        """Return the findings of each key on all accounts, also corrected for the nights of the window."""
        return [
            self._score(account_positions, correction * self._nights)
            for account_positions, correction in zip(under_keys, corrections, strict=True)
        ]

    def decide_under(
        self, marks: Mapping[str, Watermark], scores: Sequence[KeyPositions], accounts: NDArray[np.int64], rate: float
    ) -> NDArray[np.float64]:
        """See DecidesAccounts.decide_under."""
        under_keys, corrections = list[AccountPositions](), list[float]()
        for key_positions, correction in zip(scores, self._corrections, strict=True):
            mark = marks.get(key_positions.opened_key.key.key_id)
            if mark is not None:
                opened_key = replace(key_positions.opened_key, watermark=key_positions.opened_key.to_device(mark))
                positions = select_positions(key_positions.positions, accounts)
                under_keys.append(AccountPositions(opened_key, key_positions.tokens, key_positions.tokens, positions))
                corrections.append(correction)
        findings = self._score_all(under_keys, corrections)
        decision = TextOutcomes.of_stored_texts(findings, (rate, rate)).decision
        p = np.stack([under_key.log10_p_global for under_key in _of_one_width(findings)])
        return np.asarray(p[decision.key, np.arange(len(accounts)), decision.candidate], np.float64)

    def _proofs(
        self,
        posts: Posts,
        findings: "AccountFindings",
        marked: Sequence[int],
        unquoted: Mapping[str, "OwnWords"],
        began: datetime,
    ) -> dict[str, Proof]:
        """Return the proofs of marked accounts, by id. Empty if nothing is proved."""
        if self._prover is None:
            return {}
        decisions = {posts.account_ids[i]: [findings.decision_on(posts, i)] for i in marked}
        for name, own_words in unquoted.items():
            if own_words.findings.outcomes.decision.flagged[own_words.place]:  # otherwise they name no user
                decisions[name].append(own_words.findings.decision_on(own_words.posts, own_words.place))
        return self._prover.prove(decisions.items(), began.isoformat().encode())

    def _unquoted(self, posts: Posts) -> dict[str, "OwnWords"]:
        """Return the findings on own words only, for accounts that quote, by account id."""
        # A name must hold here and on all posts, at the same K. So this look needs no share of the error.
        unquoted = posts._replace(texts=[unquoted_words(text) for text in posts.texts])
        changed = np.array([a != b for a, b in zip(posts.texts, unquoted.texts, strict=True)], np.bool_)
        spans = list(zip(posts.account_ids, posts.begins[:-1], posts.begins[1:], strict=True))
        quoting = unquoted.select_accounts([name for name, a, b in spans if changed[a:b].any()])
        if not quoting.account_ids:
            return {}
        findings = self.findings(quoting)
        scored = [
            [int(account_positions.positions.scored[j]) for account_positions in findings.under_keys]
            for j in range(len(quoting.account_ids))
        ]
        return {name: OwnWords(quoting, findings, j, scored[j]) for j, name in enumerate(quoting.account_ids)}

    def _best(self, findings: "AccountFindings", account: int, entries: Sequence[NamedMessage]) -> tuple[int, int]:
        """Return key and candidate of the row: those of the first named user, or else of the smallest p."""
        if not entries:
            return int(findings.outcomes.decision.key[account]), int(findings.outcomes.decision.candidate[account])
        key = next(i for i, opened_key in enumerate(self._keys) if opened_key.key.key_id == entries[0].key_id)
        return key, int(np.flatnonzero(findings.outcomes.findings[key].message[account] == entries[0].message)[0])

    def _under_keys(self, posts: Posts) -> list[AccountPositions]:
        tokens = {name: tokenizer.encode(posts.texts) for name, tokenizer in self._tokenizers.items()}
        positions_by_rule: dict[tuple[str, PositionRule], Positions] = {}
        under_keys = []
        for opened_key in self._keys:
            name, rule = opened_key.key.tokenizer.sha256, opened_key.watermark.rule
            if (name, rule) not in positions_by_rule:
                positions = pooled_positions(rule, reach_of(rule), tokens[name], posts.begins, self._rules.dedup)
                positions_by_rule[name, rule] = self._filtered(posts, opened_key, tokens[name], positions)
            accounts = Tokens(tokens[name].ids, tokens[name].offsets[posts.begins])
            under_keys.append(AccountPositions(opened_key, tokens[name], accounts, positions_by_rule[name, rule]))
        return under_keys

    def _filtered(self, posts: Posts, opened_key: OpenedKey, tokens: Tokens, positions: Positions) -> Positions:
        """Return the positions of accounts, without the n-grams that each post's own filter leaves out."""
        if not any(posts.filters):
            return positions
        post_positions = by_post(positions, tokens)
        for sha256 in dict.fromkeys(posts.filters):
            filtered = NO_FILTER if sha256 is None else self._open_filter(sha256)
            common = filtered.of(opened_key.key.tokenizer.sha256, opened_key.watermark.rule)
            if common is not None:
                post_positions = common.without(
                    tokens, post_positions, np.array([digest == sha256 for digest in posts.filters])
                )
        return Positions(post_positions.index, post_positions.offsets[posts.begins])

    def _score(self, account_positions: AccountPositions, correction: float) -> KeyFindings:
        """Return a key's findings for all accounts."""
        mark, messages = account_positions.opened_key.watermark, account_positions.opened_key.key.messages
        accounts, positions = long_enough(account_positions.positions, self._rules.min_scored)
        findings = search(mark, account_positions.accounts, positions, messages, correction)
        return findings.of_batch(accounts, account_positions.positions.scored, correction)

    def _row(
        self, posts: Posts, account: int, account_positions: AccountPositions, names: NameColumns
    ) -> dict[str, Any]:
        post_slice = slice(posts.begins[account], posts.begins[account + 1])
        times = [time for time in posts.times[post_slice] if time is not None]
        offsets = account_positions.posts.offsets[posts.begins]
        return {
            "nights": self._nights,
            "account_id": posts.account_ids[account],
            "posts": int(posts.begins[account + 1] - posts.begins[account]),
            "texts": len(set(posts.texts[post_slice])),
            "tokens": int(offsets[account + 1] - offsets[account]),
            "scored": int(account_positions.positions.scored[account]),
            "first_post": min(times, default=None),
            "last_post": max(times, default=None),
            "key_id": account_positions.opened_key.key.key_id,
            "messages_tested": account_positions.opened_key.key.messages,
            **{name: getattr(names, name)[account] for name in ("user_id", "naming", "named", "further_messages")},
            "scanned_at": datetime.now(UTC),
        }


def account_rows(rows: Sequence[dict[str, Any]], **same: object) -> list[pa.RecordBatch]:
    """Return rows of ACCOUNTS: the rows of AccountJudge.judge with the values that all of them share."""
    return [pa.RecordBatch.from_pylist([row | same for row in rows], ACCOUNTS)] if rows else []


def _digests(posts: Posts) -> list[bytes]:
    return [hashlib.sha256(name.encode()).digest() for name in posts.account_ids]


def _of_one_width(findings: Sequence[KeyFindings]) -> list[KeyFindings]:
    """Return findings with the same number of candidates under each key."""
    width = max(under_key.message.shape[1] for under_key in findings)
    return [under_key.of_width(width) for under_key in findings]


def _named(
    findings: AccountFindings,
    account: int,
    unquoted: AccountFindings,
    unquoted_place: int,
    user_of: UserOfMessage,
) -> tuple[Naming, list[NamedMessage]]:
    """Return the users whom an account is named for, by rule 1 on all posts and by rules 1 and 2 on own words."""
    # `account` is its place in the findings on all posts, `unquoted_place` in those on own words. Entries are listed
    # by p, smallest first.
    if not unquoted.outcomes.decision.flagged[unquoted_place]:
        return Naming.QUOTED, []
    naming = Naming(unquoted.outcomes.decision.naming[unquoted_place])
    own_entries = unquoted.outcomes.entries(unquoted_place, naming, user_of)
    if not own_entries:
        return naming, []
    entries = name_candidates(
        findings.outcomes.findings, findings.outcomes.decision.passing, account, (-1, -1), user_of
    )
    named = {(entry.key_id, entry.message) for entry in own_entries}
    return Naming.UNDECIDED, [entry for entry in entries if (entry.key_id, entry.message) in named]


def _figures(findings: KeyFindings, account: int, candidate: int, *, nameless: bool) -> dict[str, Any]:
    cell = account, candidate
    return {
        "message": None if nameless else int(findings.message[cell]),
        **{name: float(getattr(findings, name)[cell]) for name in ("score", "log10_p", "log10_p_global")},
    }


def _last(posts: Posts) -> list[datetime | None]:
    return [
        max((time for time in posts.times[a:b] if time is not None), default=None)
        for a, b in zip(posts.begins[:-1], posts.begins[1:], strict=True)
    ]
