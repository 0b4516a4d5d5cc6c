"""A marked account in words for people: its lines in lists, its sentences, its page, and its record as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from scanner.evidence.marked_accounts import SHOWN, AccountExplained, Post
from scanner.evidence.page import LEVEL_WORDS, LONGEST_TITLE, environment, visible
from scanner.evidence.sentences import DOES_NOT_SAY, WHY_NOBODY, name
from scanner.printable import one_in, printable, safe
from schemas.words import AuditState, Naming

MOST_CHARACTERS = 1_000
"""Most characters of a post that a page shows."""

NO_DECISION = (
    "no decision is recorded on an account: a decision holds for one text, and the posts of an account change from "
    "night to night. Where posts are flagged themselves, decide on these"
)
"""Sentence that says why an account has no decisions."""

_TO_DO: Mapping[str, str] = {
    Naming.NAMED: "ask your own records whether this is the account of {users}, and look at its posts: words of others "
    "that no quotation mark shows count as its own. What follows is for your own rules",
    Naming.QUOTED: "nothing: it quotes marked posts, and its own words name nobody",
    Naming.EVERYBODY: "what your rules say of generated text: the key marks for everybody alike",
    Naming.RESERVED: "name nobody, and give it to the engineers: a reserved message belongs to nobody",
    Naming.CONTRADICTED: "name nobody, and run `brickscan users verify` with --results",
}


class AccountLine(NamedTuple):
    """A marked account in a list; address: of its page, empty: it has none."""

    account: str
    night: str
    user: str
    to_do: str
    posts: str
    quoted: str
    chance: str
    address: str


def line_of_account(row: Mapping[str, Any], address: str = "", *, trial: bool = False) -> AccountLine:
    """A row of ACCOUNTS in a list."""
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
    """Ids of the users whom an account's row names."""
    if row["naming"] != Naming.NAMED:
        return []
    return [one["user_id"] for one in row["named"] or () if one["user_id"] is not None]


def marked_for(row: Mapping[str, Any]) -> str:
    """For whom an account's posts are marked, in words, or why nobody is named."""
    if row["naming"] != Naming.NAMED:
        return f"nobody: {WHY_NOBODY[row['naming']]}"
    return ", ".join(map(name, users_named(row))) or "a user whose name was erased"


def to_do(row: Mapping[str, Any], *, trial: bool = False) -> str:
    """What to do about a marked account."""
    if trial:
        return "nothing: a trial is evidence against nobody"
    if row["audit"] == AuditState.ALARM:
        return "nothing before the cause of the audit's alarm is known: believe no name of its scan"
    other = "name nobody; look at its posts if the account matters for other reasons"
    return _TO_DO.get(row["naming"], other).format(users=marked_for(row))


def what_was_found(explained: AccountExplained) -> Iterator[tuple[str, str]]:
    """Pairs of a heading and a sentence."""
    row = explained.row
    posted = [f"{time.astimezone(UTC):%Y-%m-%d %H:%M}" for time in (row["first_post"], row["last_post"]) if time]
    times = f", posted {' to '.join(dict.fromkeys(posted))} UTC" if posted else ", posted at unknown times"
    texts = f"{row['posts']:,} posts, {row['texts']:,} distinct texts{times}"
    window = "" if row["nights"] == 1 else f", window of {row['nights']} nights"
    yield "Account", f"{name(row['account_id'])}; night {row['night']}{window}: {texts}"
    yield "Contains text marked for", marked_for(row)
    yield "Why", _why(explained)
    yield "By the registry", explained.registry.sentence
    yield "What to do", to_do(row, trial=explained.trial)
    by = "the pooled score or the evidence" if row["first_look"] in (None, True) else "the evidence alone"
    yield (
        "All posts together",
        f"if nothing were marked, {one_in(row['log10_p_global'])} accounts would reach as much for any of the "
        f"{row['messages_tested']:,} messages of key {name(row['key_id'])}, by {by}, corrected for "
        f"{round(row['tests'], 1):g} tests ({row['scored']:,} of {row['tokens']:,} tokens scored)",
    )
    yield "Own words alone", _own(explained)
    yield "Decisions", NO_DECISION


def _why(explained: AccountExplained) -> str:
    row = explained.row
    rule = "a name needs all posts to be flagged for the user's message, and own words alone to name the same user"
    said = {
        Naming.NAMED: "both hold",
        Naming.QUOTED: "all posts are flagged, and own words alone are not",
        Naming.UNDECIDED: "all posts are flagged; own words alone do not tell one user from others",
        Naming.AMBIGUOUS: "all posts are flagged; own words alone are for several messages",
    }.get(row["naming"], f"both hold for a message, which names nobody: {WHY_NOBODY.get(row['naming'], row['naming'])}")
    return f"{rule}; here {said}"


def _own(explained: AccountExplained) -> str:
    share, p = explained.row["quoted_share"], explained.log10_p_own
    quoted = "how much is quoted is not known" if share is None else f"{share:.0%} of the scored words stand in quotes"
    if p is None:
        why = explained.no_posts or explained.not_weighed
        return f"{quoted}; their own p-value is not shown: {why}"
    few = f", of the {explained.read:,} posts that can be read again" if explained.read < explained.row["posts"] else ""
    if np.isnan(p):
        return f"{quoted}; too few own words are scored to say anything{few}"
    return f"{quoted}; without them, {one_in(p)} accounts would reach as much by chance{few}"


def posts_in_words(explained: AccountExplained, shown: int = SHOWN) -> str:
    """A sentence on which posts are shown."""
    if explained.no_posts:
        return f"The posts are not shown: {explained.no_posts}."
    few = f"{min(shown, len(explained.posts)):,} of {explained.row['posts']:,} posts"
    gone = f"; {explained.read:,} of them can be read again" if explained.read < explained.row["posts"] else ""
    why = f" Their evidence is not shown: {explained.not_weighed}." if explained.not_weighed else ""
    return f"{few}, those that speak strongest for the mark first{gone}. Single posts decide nothing.{why}"


def about_post(post: Post) -> str:
    """A line about a post: when, where, and how strongly it speaks for the mark."""
    posted = "time unknown" if post.created_at is None else f"{post.created_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    quoting = any(part.kind == "quoted" for part in post.parts)
    own = f"; own words alone: {_level(post.own_level)}" if quoting else ""
    place = f"{printable(post.path)}:{post.row}"
    return f"{posted}, {place}: {_level(post.level)}{own} ({post.scored:,} tokens scored)"


def _level(level: int | None) -> str:
    if level is None:
        return "too short to tell alone"
    return f"speaks {LEVEL_WORDS[level]} for the mark" if level else "does not speak for the mark"


def account_page(found: Sequence[AccountExplained], back: str | None = None, **shown: object) -> str:
    """The page of an account, as HTML; `back`: a link to its night."""
    return environment().get_template("account.html.j2").render(**about_account(found), back=back, **shown)


def about_account(found: Sequence[AccountExplained]) -> dict[str, Any]:
    """Values for the template `account.html.j2`."""
    return {
        "title": f"Account: {printable(found[0].row['account_id'], LONGEST_TITLE)}",
        "rows": [
            {
                "facts": [(heading, safe(sentence)) for heading, sentence in what_was_found(one)],
                "posts_in_words": safe(posts_in_words(one)),
                "posts": [(about_post(post), _shown_parts(post)) for post in one.posts],
            }
            for one in found
        ],
        "does_not_say": DOES_NOT_SAY,
    }


def _shown_parts(post: Post) -> list[tuple[bool, str]]:
    """The parts of a post's first characters: whether each is quoted, and its text."""
    cut_off = [part._replace(end=min(part.end, MOST_CHARACTERS)) for part in post.parts if part.begin < MOST_CHARACTERS]
    return [(part.kind == "quoted", visible(post.text[part.begin : part.end])) for part in cut_off]


def record_of_account(explained: AccountExplained) -> dict[str, Any]:
    """A record for json.dumps."""
    row = {name: _plain(value) for name, value in explained.row.items() if name not in ("shard_id", "keys")}
    return row | {
        "trial": explained.trial,
        "registry_agrees": explained.registry.agrees,
        "log10_p_own_words": _plain(explained.log10_p_own),
        "posts_read": explained.read,
        "no_posts": explained.no_posts,
        "not_weighed": explained.not_weighed,
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
