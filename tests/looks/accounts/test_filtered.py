"""Accounts in scans with a filter: each post loses the n-grams that were common before its own night, and no others."""

from datetime import date, timedelta

import polars as pl
import pytest

from scanner.cluster.scan import run_scan
from scanner.looks.accounts import follow_up
from scanner.looks.accounts.judge import Posts
from scanner.ngram_filter import common_ngrams
from scanner.results.transactions import read_whole
from scanner.scan_plan import make_plan
from tests.support.two_keys import message_of

pytestmark = pytest.mark.usefixtures("without_ray")

FIRST, SECOND = date(2026, 11, 20), date(2026, 11, 21)
POSTS, WORDS, SIGNATURE, WINDOW = 20, 14, 30, 2
OWN = WORDS - WINDOW + WINDOW
"""Scored positions of a post: of its words, and those that begin in them and end in the signature."""
SHARED = SIGNATURE - WINDOW
"""Scored positions within a signature, which count once in an account."""


@pytest.fixture
def two_nights(night, registry, marked, plain, monkeypatch):
    """A function that scans two nights, with a filter or without, and gives the scored positions of the marked account.

    The posts of each night end with a signature, which 40 other texts of the first night hold too.
    """
    monkeypatch.setattr(common_ngrams, "CELLS_OF_A_ROW", 1 << 15)
    monkeypatch.setattr(follow_up, "window_begins", lambda day, _nights: day - timedelta(days=10))
    alice = message_of(registry, "green", "alice")
    signatures = {FIRST: plain(SIGNATURE, 1), SECOND: plain(SIGNATURE, 2)}

    def write(day, seed) -> None:
        (night.input / str(day)).mkdir()
        posts = [("bot", marked(alice, WORDS, seed + i) + signatures[day]) for i in range(POSTS)]
        both = signatures[FIRST] + signatures[SECOND]
        others = [plain(20, 500 + i) + both for i in range(40 if day == FIRST else 0)]
        readers = [(f"reader {number}", text) for number, text in enumerate(others)]
        who, texts = zip(*posts, *readers, strict=True)
        night.write(f"{day}/a", texts, who=pl.Series(who, dtype=pl.String).to_arrow())

    def scan(more: str) -> int:
        night.configure(more=f"accounts = {{ nights = 30 }}\n{more}", columns='account = "who"', paths=["in/{date}"])
        for day, seed in ((FIRST, 1000), (SECOND, 2000)):
            write(day, seed)
            run_scan(make_plan(night.config, day), lambda work, totals: None)
        rows = read_whole(night.results, "accounts").collect()
        row = rows.filter(pl.col("posts") == 2 * POSTS).to_dicts()[-1]
        assert (row["account_id"], row["user_id"]) == ("bot", "alice")
        return int(row["scored"])

    scan.night = night
    return scan


@pytest.mark.costly
def test_each_post_is_scored_under_the_filter_of_its_own_night(two_nights):
    assert two_nights("filter = {}") == 2 * POSTS * OWN + SHARED  # the first night, of no filter, keeps its signature
    posts = read_whole(two_nights.night.results, "account_posts").collect()
    assert posts["filter_sha256"].n_unique() == 2
    kinds = read_whole(two_nights.night.results, "audit_counts").collect()["kind"].unique()
    assert "decoy_accounts" in set(kinds)


@pytest.mark.costly
def test_without_a_filter_all_positions_of_posts_are_scored(two_nights):
    assert two_nights("") == 2 * POSTS * OWN + 2 * SHARED
    posts = read_whole(two_nights.night.results, "account_posts").collect()
    assert posts["filter_sha256"].null_count() == len(posts)


@pytest.mark.costly
def test_a_filter_of_tonight_for_earlier_posts_would_change_what_was_looked_at(two_nights, monkeypatch):
    """The sabotage that the first test catches: earlier posts lose what nights after them made common."""
    real, seen = Posts.of_rows.__func__, []

    def tonights(cls, rows):
        posts = real(cls, rows)
        seen.extend(sha256 for sha256 in dict.fromkeys(posts.filters) if sha256 not in seen)
        return posts._replace(filters=[seen[-1]] * len(posts.filters))  # the first night has a filter too, of nothing

    monkeypatch.setattr(Posts, "of_rows", classmethod(tonights))
    assert two_nights("filter = {}") == 2 * POSTS * OWN
