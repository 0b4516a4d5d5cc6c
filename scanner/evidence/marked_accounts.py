"""Marked accounts for people: their list, and one account explained by its posts.

The posts are read again: from the table that keeps them until their window is over, else from the input's files. Their
evidence is computed as the scan computed it, under the row's own key. It decides nothing: the row names, or does not.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from deltalake import DeltaTable
from numpy.typing import NDArray

from scanner.detection.accounts import AccountJudge, Look, Posts
from scanner.detection.posts import MOST_BYTES
from scanner.errors import Refused
from scanner.evidence.case import Case
from scanner.evidence.explainer import Explainer
from scanner.evidence.names_then import RegistrySays, as_the_registry_says
from scanner.evidence.weighing import LEVELS, RUN
from scanner.input.documents import read_text
from scanner.registry import Named
from scanner.results import accounts, scans, shards
from scanner.results.account_posts import MOST_POSTS, window_begins
from scanner.results.queries import ask, verdicts, with_audit
from scanner.results.tables import read_whole
from scanner.storage.delta import table_uri
from scanner.text.quoting import Part, own_words, parts_of
from scanner.watermark.accounts import by_post
from scanner.watermark.rule import log10_p_of
from schemas.words import Naming

SHOWN = 100
"""Most posts of an account that are shown, those that speak strongest for the mark first."""


class Post(NamedTuple):
    """A post of a marked account.

    scored: scored tokens, of all its words; level, own_level: how strongly all of its words, and its own words alone,
    speak for the mark, 0 to len(LEVELS); None: fewer than RUN tokens are scored, or the key cannot be opened.
    """

    path: str
    row: int
    created_at: datetime | None
    text: str
    scored: int
    level: int | None
    own_level: int | None

    @property
    def parts(self) -> list[Part]:
        """Quoted lines and own words, in order."""
        return parts_of(self.text)


@dataclass(frozen=True)
class AccountExplained:
    """A marked account explained.

    row: of ACCOUNTS with `audit`, as the registry says it; trial: its keys are dated back; posts: strongest first;
    read: how many could be read again; no_posts: why none; log10_p, log10_p_own: of all posts and of own words alone
    as they are read now, corrected as in the row, NaN: too few tokens, None: not computed, for `not_weighed`.
    """

    row: Mapping[str, Any]
    registry: RegistrySays
    trial: bool
    posts: Sequence[Post]
    read: int
    no_posts: str | None
    log10_p: float | None
    log10_p_own: float | None
    not_weighed: str | None


def none_tested(results: str) -> bool:
    """Whether no scan tested accounts."""
    return not DeltaTable.is_deltatable(table_uri(results, "accounts"))


def marked_accounts(
    explainer: Explainer, night: date | None = None, account_ids: Sequence[str] = ()
) -> list[Mapping[str, Any]]:
    """Rows of ACCOUNTS with `audit`, as the registry says them, smallest p first; none where no scan tested accounts.

    Args:
        explainer: of the results.
        night: date of the data; None: the newest row of each account.
        account_ids: of these alone; empty: of all.
    """
    return [row for row, _ in _marked(explainer, night, account_ids)]


def _marked(
    explainer: Explainer, night: date | None, account_ids: Sequence[str]
) -> list[tuple[Mapping[str, Any], RegistrySays]]:
    results = explainer.results
    if none_tested(results):
        return []
    rows = accounts(results, explainer.rate, night)
    if account_ids:
        rows = rows.filter(pl.col("account_id").is_in(list(account_ids)))
    found = ask(results, with_audit(results, rows.sort("log10_p_global", "account_id", "keys")).collect).to_dicts()
    # the registry is asked who held the message when the scan asked it: at the account's last post
    said = explainer.held_against([row | {"first_seen_at": row["last_post"]} for row in found])
    return [(as_the_registry_says(row, says), says) for row, says in zip(found, said, strict=True)]


def accounts_unread(explainer: Explainer) -> list[AccountExplained]:
    """All marked accounts, each without its posts."""
    why = "its posts are read for one account at a time"
    found = _marked(explainer, None, ())
    return [AccountExplained(row, says, False, (), 0, why, None, None, None) for row, says in found]


def explain_account(explainer: Explainer, account_id: str, night: date | None = None) -> list[AccountExplained]:
    """Explain a marked account: its newest row, or of a night, one a set of keys.

    Raises:
        Refused: it is not marked, or no scan tested accounts.
    """
    rows = _marked(explainer, night, [account_id])
    if not rows:
        when = "" if night is None else f" in the night {night}"
        raise Refused(
            f"account {account_id!r}: its posts together are not marked{when}, or no scan tested accounts; `brickscan "
            "accounts` lists those that are"
        )
    newest = max(row["night"] for row, _ in rows)
    return [_explained(explainer, row, says) for row, says in rows if row["night"] == newest]


def _explained(explainer: Explainer, row: Mapping[str, Any], says: RegistrySays) -> AccountExplained:
    of_scan = ask(explainer.results, scans(explainer.results).filter(pl.col("scan_id") == row["scan_id"]).collect)
    scan = of_scan.row(0, named=True) if len(of_scan) else None
    read, no_posts = _posts(explainer, row)
    texts = [read_text(post["text"])[0] or "" for post in read]
    p = p_own = not_weighed = None
    levels: list[tuple[int, int | None, int | None]] = [(0, None, None)] * len(read)
    try:
        if read:
            p, p_own, levels = _weighed(explainer, row, scan, read, texts)
    except Refused as error:
        not_weighed = str(error)
    posts = [
        Post(post["path"], post["row"], post["created_at"], text, *said)
        for post, text, said in zip(read, texts, levels, strict=True)
    ]
    posts.sort(key=lambda post: (-max(post.level or 0, post.own_level or 0), post.path, post.row))
    trial = bool(scan and scan["trial"])
    return AccountExplained(row, says, trial, posts[:SHOWN], len(posts), no_posts, p, p_own, not_weighed)


def _posts(explainer: Explainer, row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """The posts that were tested together, scan by scan, and why there are none."""
    if not explainer.reads_texts:
        return [], "name the scan's configuration instead of its results to see the posts"
    first = date.fromisoformat(row["night"])
    if row["nights"] > 1:
        first = window_begins(first, row["nights"])
    last = first + timedelta(days=row["nights"] - 1)
    of_nights = pl.col("night").is_between(pl.lit(first.isoformat()), pl.lit(last.isoformat()))
    theirs, results = pl.col("account_id") == row["account_id"], explainer.results
    kept: list[dict[str, Any]] = []
    if DeltaTable.is_deltatable(table_uri(results, "account_posts")):
        rows = read_whole(results, "account_posts").filter(theirs & of_nights).sort("scan_id", "path", "row")
        once = rows.unique(["path", "row"], keep="first", maintain_order=True).head(MOST_POSTS)
        kept = ask(results, once.collect).to_dicts()
    if len(kept) >= row["posts"]:
        return kept, None
    ours = shards(results).filter(of_nights).select("shard_id").unique()
    found = verdicts(results).filter(theirs).join(ours, on="shard_id", how="semi").sort("scan_id", "path", "row")
    filters = scans(results).select("scan_id", "filter_sha256")
    there = ask(results, found.join(filters, on="scan_id", how="left", maintain_order="left").collect)
    read = []
    for post in there.head(MOST_POSTS).iter_rows(named=True):
        with contextlib.suppress(Refused):
            read.append(post | {"text": explainer.stored_text(Case(post, None))[:MOST_BYTES]})
    best = max(kept, read, key=len)
    return best, None if best else "its posts are kept no longer, and their files are gone or hold other texts now"


def _weighed(
    explainer: Explainer,
    row: Mapping[str, Any],
    scan: Mapping[str, Any] | None,
    read: Sequence[Mapping[str, Any]],
    texts: list[str],
) -> tuple[float, float, list[tuple[int, int | None, int | None]]]:
    """log10 p of all posts and of own words alone; and of each post its scored tokens, and its two levels."""
    if scan is None:
        raise Refused("its scan did not end, so that its settings are not on record")
    number = {scan_id: i for i, scan_id in enumerate(sorted({post["scan_id"] for post in read}))}
    posts = Posts(
        texts=texts,
        begins=np.array([0, len(texts)], np.int64),
        nights=np.array([number[post["scan_id"]] for post in read], np.int64),
        account_ids=[row["account_id"]],
        times=[post["created_at"] for post in read],
        filters=[post["filter_sha256"] for post in read],
    )
    judge = AccountJudge(
        [explainer.open_key(row["key_id"])],
        [row["tests"]],
        _Nobody(),
        nights=row["nights"],
        **{name: scan[name] for name in ("dedup", "min_scored", "false_positive_rate", "misnaming_rate")},
        first_looks=[row["key_id"]] if row["first_look"] in (None, True) else [],
        open_filter=cache(explainer.open_filter),
    )
    of_all = judge.look(posts)
    own = judge.look(posts._replace(texts=[own_words(text) for text in texts]))
    message = int(of_all.found[0].message[0, of_all.decided.candidate[0]]) if row["message"] is None else row["message"]
    scored, levels = _levels(of_all, message)
    _, own_levels = _levels(own, message)
    p, p_own = (float(look.found[0].log10_p_global[0, look.decided.candidate[0]]) for look in (of_all, own))
    return p, p_own, list(zip(scored.tolist(), levels, own_levels, strict=True))


class _Nobody:
    """Holders of no message: the names of an account are those of its row."""

    def naming(self, _key_id: str, _message: int, _at: datetime) -> Named:
        """Nobody."""
        return Named(Naming.UNALLOCATED, None, None)


def _levels(look: Look, message: int) -> tuple[NDArray[np.int64], list[int | None]]:
    """Scored tokens of each post, and how strongly it speaks for a message."""
    (pooled,) = look.pooled
    mark, positions = pooled.test.watermark, by_post(pooled.positions, pooled.posts)
    scored = positions.scored
    if message < 0:
        return scored, [None] * len(scored)
    score = mark.score(pooled.posts, positions, np.full(len(scored), message))
    log10_p = log10_p_of(mark.law, score, scored)
    # what fewer tokens say is material of the key
    return scored, [
        sum(bool(p <= level) for level in LEVELS) if n >= RUN else None for p, n in zip(log10_p, scored, strict=True)
    ]
