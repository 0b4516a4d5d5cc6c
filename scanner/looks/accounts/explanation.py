"""Explain marked accounts to people: a list, an account with its posts, sentences, a page, and a record as JSON.

Kept posts are read again and weighed as in the scan. This decides nothing. Only the row decides whether a user is
named.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.detection.rules import Rules
from scanner.errors import Refused
from scanner.evidence.case import FlagCase
from scanner.evidence.explainer import Explainer
from scanner.evidence.explanation import RUN_STRENGTHS, TOKENS_A_RUN
from scanner.evidence.page import LEVEL_WORDS, LONGEST_TITLE, environment
from scanner.evidence.posted_text import as_posted
from scanner.evidence.sentences import DOES_NOT_SAY, name, signature_in_words
from scanner.input.documents import read_text
from scanner.looks.accounts.judge import AccountFindings, AccountJudge, Posts
from scanner.looks.accounts.post_rows import BYTES_OF_A_POST
from scanner.looks.accounts.posts import (
    kept_posts,
    scanned_posts,
    window_of,
)
from scanner.looks.accounts.proving import LONGEST_ACCOUNT
from scanner.looks.marked_account import NO_DECISION, AccountExplanation, AccountLine, AccountPost
from scanner.printable import counted, one_in, printable, safe
from scanner.registry import NamedUser
from scanner.results import accounts
from scanner.results.queries import ask, with_audit
from scanner.results.scan_list import recorded_scan
from scanner.results.transactions import has_table
from scanner.signing import unchecked
from scanner.text.quoting import unquoted_words
from scanner.watermark.pooled_positions import by_post
from scanner.watermark.rule import log10_p_of
from schemas.words import WHY_NOBODY, AuditState, Naming, Proof

MOST_POSTS_LISTED = 100
"""Largest number of posts of an account that are shown. The posts that show the mark most strongly come first."""


def none_tested(results: str) -> bool:
    """Return whether no scan tested accounts."""
    return not has_table(results, "accounts")


def marked_accounts(
    explainer: Explainer, night: date | None = None, account_ids: Sequence[str] = ()
) -> list[Mapping[str, Any]]:
    """Return rows of ACCOUNTS with `audit`, smallest p first.

    Args:
        explainer: of the results.
        night: date of the data. None: the newest row of each account.
        account_ids: only these accounts. Empty: all accounts.

    Returns:
        The rows. Empty if no scan tested accounts.
    """
    results = explainer.results
    if none_tested(results):
        return []
    account_filter = pl.col("account_id").is_in(list(account_ids)) | pl.lit(not account_ids)

    def question() -> pl.DataFrame:
        rows = accounts(results, explainer.rate, night).filter(account_filter)
        return with_audit(results, rows.sort("log10_p_global", "account_id", "keys")).collect()

    return [*ask(results, question).iter_rows(named=True)]


def accounts_unread(explainer: Explainer) -> list[AccountExplanation]:
    """Return all marked accounts, each without its posts."""
    why, rows = "posts are only read for one account at a time", marked_accounts(explainer)
    # after the rows were read, because it tells which of them had no signature
    not_checked = unchecked(explainer.results)
    return [AccountExplanation(row, not_checked, False, (), 0, why, None, None, None) for row in rows]


def explain_account(explainer: Explainer, account_id: str, night: date | None = None) -> list[AccountExplanation]:
    """Explain a marked account: its newest row, or its row of a night, one for each set of keys.

    Raises:
        Refused: it is not marked, or no scan tested accounts.
    """
    rows = marked_accounts(explainer, night, [account_id])
    if not rows:
        when = "" if night is None else f" in the night {night}"
        raise Refused(
            f"account {account_id!r}: its posts together are not marked{when}, or no scan tested accounts; `brickscan "
            "accounts` lists marked accounts"
        )
    newest = max(row["night"] for row in rows)
    return [_explained(explainer, row) for row in rows if row["night"] == newest]


def _explained(explainer: Explainer, row: Mapping[str, Any]) -> AccountExplanation:
    scan = recorded_scan(explainer.results, row["scan_id"])
    read, no_posts = _posts(explainer, row)
    texts = [read_text(post["text"])[0] or "" for post in read]
    p = p_unquoted = no_evidence = None
    levels: list[tuple[int, int | None, int | None]] = [(0, None, None)] * len(read)
    try:
        if read:
            p, p_unquoted, levels = _evidence_of_posts(explainer, row, scan, read, texts)
    except Refused as error:
        no_evidence = str(error)
    posts = [
        AccountPost(post["path"], post["row"], post["created_at"], text, *evidence)
        for post, text, evidence in zip(read, texts, levels, strict=True)
    ]
    posts.sort(key=lambda post: (-max(post.level or 0, post.own_level or 0), post.path, post.row))
    trial = bool(scan and scan["trial"])
    return AccountExplanation(
        row,
        unchecked(explainer.results),
        trial,
        posts[:MOST_POSTS_LISTED],
        len(posts),
        no_posts,
        p,
        p_unquoted,
        no_evidence,
    )


def _posts(explainer: Explainer, row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """Return the posts that were tested together, scan by scan, and the reason why there are none."""
    if not explainer.reads_texts:
        return [], "name the scan's configuration instead of its results to see the posts"
    dates = window_of(row["night"], row["nights"])
    table_posts = kept_posts(explainer.results, row["account_id"], dates, row["scan_id"])
    if len(table_posts) >= row["posts"]:
        return table_posts, None

    file_posts = []
    tested_posts = scanned_posts(explainer.results, row["account_id"], dates, row["scan_id"])
    for post in tested_posts.iter_rows(named=True):
        with contextlib.suppress(Refused):
            file_posts.append(post | {"text": explainer.stored_text(FlagCase(post, None))[:BYTES_OF_A_POST]})
    posts = max(table_posts, file_posts, key=len)
    return posts, None if posts else "its posts are no longer kept, and their files are gone or now have other texts"


def _evidence_of_posts(
    explainer: Explainer,
    row: Mapping[str, Any],
    scan: Mapping[str, Any] | None,
    read: Sequence[Mapping[str, Any]],
    texts: list[str],
) -> tuple[float, float, list[tuple[int, int | None, int | None]]]:
    """Return log10 p of all posts, log10 p of own words only, and each post's scored tokens and two levels."""
    posts = _of_account(row, read, texts)
    judge = _judge(explainer, row, scan)
    findings = judge.findings(posts)
    unquoted = judge.findings(posts._replace(texts=[unquoted_words(text) for text in texts]))
    outcomes, message = findings.outcomes, row["message"]
    if message is None:
        message = int(outcomes.findings[0].message[0, outcomes.decision.candidate[0]])
    scored, levels = _levels(findings, message)
    _, unquoted_levels = _levels(unquoted, message)
    pair = outcomes, unquoted.outcomes
    p, p_unquoted = (
        float(text_outcomes.findings[0].log10_p_global[0, text_outcomes.decision.candidate[0]])
        for text_outcomes in pair
    )
    return p, p_unquoted, list(zip(scored.tolist(), levels, unquoted_levels, strict=True))


def _of_account(row: Mapping[str, Any], read: Sequence[Mapping[str, Any]], texts: list[str]) -> Posts:
    return Posts(
        texts=texts,
        begins=np.array([0, len(texts)], np.int64),
        account_ids=[row["account_id"]],
        times=[post["created_at"] for post in read],
        filters=[post["filter_sha256"] for post in read],
    )


def _judge(explainer: Explainer, row: Mapping[str, Any], scan: Mapping[str, Any] | None) -> AccountJudge:
    """Return a judge that tests an account as its scan did, under only the row's key."""
    if scan is None:
        raise Refused("its scan did not finish, so its settings are not on record")
    return AccountJudge(
        [explainer.open_key(row["key_id"], scan)],
        [row["correction"]],
        _HolderMemory(row),
        Rules.recorded(scan, 1),
        nights=row["nights"],
        open_filter=cache(explainer.open_filter),
    )


class _HolderMemory:
    """Users of messages, remembered from an account's row, so that the registry is not asked again."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._users = {(entry["key_id"], entry["message"]): entry["user_id"] for entry in (row, *(row["named"] or ()))}

    def naming(self, key_id: str, message: int, _at: datetime) -> NamedUser:
        held = (key_id, message) in self._users
        return NamedUser(Naming.NAMED if held else Naming.UNALLOCATED, self._users.get((key_id, message)), None)


def _levels(findings: AccountFindings, message: int) -> tuple[NDArray[np.int64], list[int | None]]:
    """Return the number of scored tokens of each post, and how strongly each shows the mark of a message."""
    (under_key,) = findings.under_keys
    mark, positions = under_key.opened_key.watermark, by_post(under_key.positions, under_key.posts)
    scored = positions.scored
    if message < 0:
        return scored, [None] * len(scored)
    score = mark.score(under_key.posts, positions, np.full(len(scored), message))
    log10_p = log10_p_of(mark.law, score, scored)
    # the strength of fewer tokens would reveal some of the key
    return scored, [
        sum(bool(p <= level) for level in RUN_STRENGTHS) if n >= TOKENS_A_RUN else None
        for p, n in zip(log10_p, scored, strict=True)
    ]


CHARACTERS_OF_A_POST = 1_000
"""Largest number of characters of a post that a page shows."""

_TO_DO: Mapping[str, str] = {
    Naming.NAMED: "ask your own records whether this is the account of {users}, and look at its posts: other people's "
    "words count as its own unless they are in quotation marks. Your own rules decide what happens next",
    Naming.QUOTED: "nothing: it quotes marked posts, and its own words do not name a user",
    Naming.EVERYBODY: "what your rules say about generated text: the key marks for everybody alike",
    Naming.RESERVED: "do not name anyone, and report it to the engineers: no user has a reserved message",
}


def line_of_account(row: Mapping[str, Any], address: str, *, trial: bool) -> AccountLine:
    """Return a row of ACCOUNTS as a line of a list."""
    return AccountLine(
        name(row["account_id"]),
        row["night"],
        marked_for(row),
        to_do(row, trial=trial),
        f"{row['posts']:,}",
        "unknown" if row["quoted_share"] is None else f"{row['quoted_share']:.0%}",
        one_in(row["log10_p_global"]),
        address,
    )


def users_named(row: Mapping[str, Any]) -> list[str]:
    """Return the ids of the users whom an account's row names."""
    if row["naming"] != Naming.NAMED:
        return []
    return [entry["user_id"] for entry in row["named"] or () if entry["user_id"] is not None]


def marked_for(row: Mapping[str, Any]) -> str:
    """Write for whom an account's posts are marked, or why the row names no user."""
    if row["naming"] != Naming.NAMED:
        return f"nobody: {why_nobody(row)}"
    return ", ".join(map(name, users_named(row))) or "a user whose name was erased"


def why_nobody(row: Mapping[str, Any]) -> str:
    """Write why a marked account names no user."""
    not_proved = row["naming"] == Naming.UNPROVED and row["proof"] != Proof.DIFFERS
    return proof_in_words(row) if not_proved else WHY_NOBODY.get(row["naming"], row["naming"])


def proof_in_words(row: Mapping[str, Any]) -> str:
    """Write whether the pooled score of an account was computed again."""
    meaning: Mapping[str | None, str] = {
        Proof.PROVED: "a slower method computed its score again and got the same result",
        Proof.DIFFERS: "a slower method computed its score again and got a different result: do not use this row",
        Proof.NOT_OFFERED: "its score was not computed again: the format has no slower method",
        Proof.NOT_DRAWN: f"its score was not computed again: the account has more than {LONGEST_ACCOUNT:,} tokens"
        if row["tokens"] > LONGEST_ACCOUNT
        else "its score was not computed again: too many accounts were marked, so only a sample was",
    }
    return meaning.get(row["proof"], "not on record")


def to_do(row: Mapping[str, Any], *, trial: bool = False) -> str:
    """Write what to do about a marked account."""
    if trial:
        return "nothing: a trial is not evidence against anyone"
    if row["audit"] == AuditState.ALARM:
        return (
            "do not use any flag or name of its scan: the audit raised an alarm, and `brickscan status` says why and "
            "what to do"
        )
    other = "do not name anyone; look at its posts if the account matters for other reasons"
    return _TO_DO.get(row["naming"], other).format(users=marked_for(row))


def what_was_found(explained: AccountExplanation) -> Iterator[tuple[str, str]]:
    """Yield pairs of a heading and a sentence."""
    row = explained.row
    posted = [f"{time.astimezone(UTC):%Y-%m-%d %H:%M}" for time in (row["first_post"], row["last_post"]) if time]
    times = f", posted {' to '.join(dict.fromkeys(posted))} UTC" if posted else ", posted at unknown times"
    texts = f"{counted(row['posts'], 'post')}, {counted(row['texts'], 'distinct text')}{times}"
    window = "" if row["nights"] == 1 else f", window of {row['nights']} nights"
    yield "Account", f"{name(row['account_id'])}; night {row['night']}{window}: {texts}"
    yield "Contains text marked for", marked_for(row)
    yield "Why", _why(explained)
    yield "Signature", signature_in_words(explained.not_checked)
    yield "What to do", to_do(row, trial=explained.trial)
    yield (
        "All posts together",
        f"if nothing were marked, {one_in(row['log10_p_global'])} accounts would score as high for any of the "
        f"{counted(row['messages_tested'], 'message')} of key {name(row['key_id'])}, corrected for "
        f"{round(row['correction'] * row['nights'], 1):g} tests ({row['scored']:,} of "
        f"{counted(row['tokens'], 'token')} scored)",
    )
    yield "Own words alone", _unquoted_words(explained)
    yield "Proof", proof_in_words(row)
    yield "Decisions", NO_DECISION


def _why(explained: AccountExplanation) -> str:
    row = explained.row
    rule = (
        "a user is named only if all posts are flagged for the user's message, and the account's own words name the "
        "same user"
    )
    reasons = {
        Naming.NAMED: "both hold",
        Naming.QUOTED: "all posts together are flagged, but its own words are not",
        Naming.UNDECIDED: "all posts together are flagged, but its own words do not tell one user from others",
        Naming.AMBIGUOUS: "all posts together are flagged, but its own words fit several messages",
        Naming.UNPROVED: why_nobody(row),
    }.get(row["naming"], f"both hold for a message that does not name a user: {why_nobody(row)}")
    return f"{rule}; here {reasons}"


def _unquoted_words(explained: AccountExplanation) -> str:
    share, p = explained.row["quoted_share"], explained.log10_p_own
    quoted = "it is not known how much is quoted" if share is None else f"{share:.0%} of the scored words are in quotes"
    if p is None:
        why = explained.no_posts or explained.no_evidence
        return f"{quoted}; their own p-value is not shown: {why}"
    few = (
        f", of the {counted(explained.read, 'post')} that can be read again"
        if explained.read < explained.row["posts"]
        else ""
    )
    if np.isnan(p):
        return f"{quoted}; too few of its own words are scored to say anything{few}"
    return f"{quoted}; without them, {one_in(p)} accounts would score as high by chance{few}"


def posts_in_words(explained: AccountExplanation, most: int = MOST_POSTS_LISTED) -> str:
    """Write a sentence on which posts are shown."""
    if explained.no_posts:
        return f"The posts are not shown: {explained.no_posts}."
    few = f"{min(most, len(explained.posts)):,} of {counted(explained.row['posts'], 'post')}"
    gone = f"; {explained.read:,} of them can be read again" if explained.read < explained.row["posts"] else ""
    why = f" Their evidence is not shown: {explained.no_evidence}." if explained.no_evidence else ""
    return f"{few}, strongest evidence first{gone}. A single post decides nothing.{why}"


def about_post(post: AccountPost) -> str:
    """Write a line on when and where a post was, and how strongly it shows the mark."""
    posted = "time unknown" if post.created_at is None else f"{post.created_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    quoting = any(part.kind == "quoted" for part in post.parts)
    unquoted = f"; own words only: {_level(post.own_level)}" if quoting else ""
    place = f"{printable(post.path)}:{post.row}"
    return f"{posted}, {place}: {_level(post.level)}{unquoted} ({counted(post.scored, 'token')} scored)"


def _level(level: int | None) -> str:
    words = f"speaks {LEVEL_WORDS[level]} for the mark" if level else "does not speak for the mark"
    return "too short to tell on its own" if level is None else words


def account_page(found: Sequence[AccountExplanation], back: str | None = None, **values: object) -> str:
    """Return the page of an account, as HTML. `back` is a link to its night."""
    return environment().get_template("account.html.j2").render(**about_account(found), back=back, **values)


def about_account(found: Sequence[AccountExplanation]) -> dict[str, Any]:
    """Return values for the template `account.html.j2`."""
    return {
        "title": f"Account: {printable(found[0].row['account_id'], LONGEST_TITLE)}",
        "rows": [
            {
                "facts": [(heading, safe(sentence)) for heading, sentence in what_was_found(explained)],
                "posts_in_words": safe(posts_in_words(explained)),
                "posts": [(about_post(post), _shown_parts(post)) for post in explained.posts],
            }
            for explained in found
        ],
        "does_not_say": DOES_NOT_SAY,
    }


def _shown_parts(post: AccountPost) -> list[tuple[bool, str]]:
    """Return the parts of a post's first characters: whether each is quoted, and its text."""
    text, parts = post.text[:CHARACTERS_OF_A_POST], (part for part in post.parts if part.begin < CHARACTERS_OF_A_POST)
    return [(part.kind == "quoted", as_posted(text[part.begin : part.end])) for part in parts]


def record_of_account(explained: AccountExplanation) -> dict[str, Any]:
    """Return a record for json.dumps."""
    row = {name: _plain(value) for name, value in explained.row.items() if name not in ("shard_id", "keys")}
    return row | {
        "trial": explained.trial,
        "checked": explained.not_checked is None,
        "log10_p_own_words": _plain(explained.log10_p_own),
        "posts_read": explained.read,
        "no_posts": explained.no_posts,
        "not_weighed": explained.no_evidence,
        "shown": [
            {name: _plain(value) for name, value in post._asdict().items()}
            | {"parts": [part._asdict() for part in post.parts]}
            for post in explained.posts
        ],
        "says": [{"heading": heading, "sentence": sentence} for heading, sentence in what_was_found(explained)],
        "does_not_say": list(DOES_NOT_SAY),
    }


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and np.isnan(value) else value
