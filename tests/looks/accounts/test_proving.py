"""Accounts are proved before they name anybody: what is right is confirmed, and nothing else."""

from datetime import UTC, datetime
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from scanner.detection.open_plan import open_keys, open_prover
from scanner.detection.rules import Rules
from scanner.detection.stated_shares import StatedShares
from scanner.looks.accounts import judge as account_judge
from scanner.looks.accounts import proving as account_proving
from scanner.looks.accounts.judge import AccountJudge, Posts
from scanner.registry import Holders, load_registry
from scanner.watermark.positions import Positions
from tests.support.two_keys import message_of

STATED = StatedShares(account=Fraction(1, 2), nights=7)


@pytest.fixture
def judge(registry):
    """Gives the rows of ACCOUNTS of accounts by name, judged under the key `green` and proved."""

    def rows(accounts: dict[str, list[str]]) -> dict[str, dict]:
        keys = open_keys(registry, [key for key in load_registry(registry).keys if key.key_id == "green"], fast=False)
        rules, sizes = Rules(1e-6, 1, stated=STATED), [len(posts) for posts in accounts.values()]
        texts = [text for posts in accounts.values() for text in posts]
        posts = Posts(texts, np.cumsum([0, *sizes]), list(accounts), [None] * len(texts))
        judge = AccountJudge(
            keys, [2.0], Holders.load(registry, ["green"]), rules, nights=7,
            open_prover=lambda opened_keys: open_prover(registry, opened_keys, rules),
        )  # fmt: skip
        return {row["account_id"]: row for row in judge.judge(posts, datetime.now(UTC))}

    return rows


@pytest.fixture
def accounts(registry, marked, plain) -> dict[str, list[str]]:
    """`bot` posts text of alice, `quoter` quotes it, `both` does both, `person` ends all posts alike."""
    alice = message_of(registry, "green", "alice")
    bot = [marked(alice, 14, seed) for seed in range(30)]
    return {
        "bot": bot,
        "quoter": [f"> {marked(alice, 14, seed)}\n{plain(14, 500 + seed)}" for seed in range(30)],
        "both": [f"> {marked(alice, 14, seed)}\n{marked(alice, 14, 700 + seed)}" for seed in range(30)],
        "person": [f"{plain(14, 900 + seed)} {plain(20, 1)}" for seed in range(30)],
    }


def told(rows: dict[str, dict]) -> dict[str, tuple]:
    return {name: (row["naming"], row["user_id"], row["proof"]) for name, row in rows.items()}


def test_what_is_right_is_proved(judge, accounts):
    assert told(judge(accounts)) == {
        "bot": ("named", "alice", "proved"),
        "quoter": ("quoted", None, "proved"),
        "both": ("named", "alice", "proved"),
    }


def count_shared_in_each(monkeypatch):
    """N-grams that posts share are counted in each post."""

    def of_each_post(rule, _reach, posts, begins, dedup):
        of_posts = rule.positions(posts, dedup)
        return Positions(of_posts.index, of_posts.offsets[begins])

    monkeypatch.setattr(account_judge, "pooled_positions", of_each_post)


def forget_nights(monkeypatch):
    """p is not corrected for the nights of the window."""
    whole = AccountJudge._score
    monkeypatch.setattr(
        AccountJudge, "_score", lambda self, under_key, correction: whole(self, under_key, correction / 7)
    )


def forget_share(monkeypatch):
    """p is not corrected for the share that accounts have of the rate."""
    whole = AccountJudge._score
    monkeypatch.setattr(
        AccountJudge, "_score", lambda self, under_key, correction: whole(self, under_key, correction / 2)
    )


def raise_scores(monkeypatch):
    """Scores are a tenth of the positions too large."""
    whole = account_judge.search

    def wrong(*arguments):
        found = whole(*arguments)
        return found._replace(score=found.score + found.scored[:, None] // 10)

    monkeypatch.setattr(account_judge, "search", wrong)


@pytest.mark.parametrize("fault", [count_shared_in_each, forget_nights, forget_share, raise_scores])
def test_account_of_a_wrong_score_names_nobody(judge, accounts, fault, monkeypatch):
    accounts["bot"] = [f"{post} {accounts['bot'][0]}" for post in accounts["bot"]]
    fault(monkeypatch)
    rows = judge(accounts)
    assert told(rows)["bot"] == ("unproved", None, "differs")
    assert {(row["message"], row["named"]) for row in rows.values() if row["proof"] == "differs"} == {(None, None)}


@pytest.mark.parametrize("limit", ["TOKENS_OF_ACCOUNTS", "LONGEST_ACCOUNT"])
def test_account_that_is_not_proved_names_nobody(judge, accounts, limit, monkeypatch):
    monkeypatch.setattr(account_proving, limit, 100)
    assert set(told(judge(accounts)).values()) == {("unproved", None, "not drawn")}


def test_own_words_are_proved_too(judge, accounts, monkeypatch):
    """A score that is wrong for own words only, whose name rests on them."""
    whole, real = account_judge.search, partial(judge, {"both": accounts["both"]})
    calls = []

    def wrong_at_second(*arguments):
        found = whole(*arguments)
        calls.append(found)
        return found._replace(score=found.score + (len(calls) == 2))

    assert told(real()) == {"both": ("named", "alice", "proved")}
    monkeypatch.setattr(account_judge, "search", wrong_at_second)
    assert told(real()) == {"both": ("unproved", None, "differs")}
    assert len(calls) == 2
