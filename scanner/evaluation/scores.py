"""Results of a scan for texts whose key and message are known: the same tokens, positions, scores and p-values."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark import Dedup, Tokens, Watermark, take
from scanner.watermark.format import Basis
from scanner.watermark.native.numbered import Numbered
from scanner.watermark.rule import Found, corrected, decide, found_of, log10_p_of
from scanner.watermark.rule import search as search_key
from schemas.words import Naming

DEDUP: Dedup = "ngram"
"""Repeats that are left out: as in a scan by default (paper, Rectifying the Detection Scores)."""


class OneMessage(NamedTuple):
    """log10 p of the one message that was tested, float64[D], 0 where a text is too short; scored tokens, int64[D]."""

    log10_p: NDArray[np.float64]
    scored: NDArray[np.int64]


class Search(NamedTuple):
    """D texts searched for M messages, their own among them: log10 p of single messages, float64[D].

    own: of the text's own message; first, second: of the two best others (0 where there is none, or a text is too
    short).
    """

    own: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    scored: NDArray[np.int64]


class GroupSearch(NamedTuple):
    """D texts searched for their own message and others in groups, float64[D] each: log10 of rates.

    own: p of the text's own message alone; own_named, other_named, flagged: the smallest rate at which its own message
    is named, any other message is named, and the text is flagged; 0 where there is none, or a text is too short.
    """

    own: NDArray[np.float64]
    own_named: NDArray[np.float64]
    other_named: NDArray[np.float64]
    flagged: NDArray[np.float64]
    scored: NDArray[np.int64]


class Named(NamedTuple):
    """Whom a scan's rule names, bool[D] each: the right user, a wrong one, or nobody though the text is flagged.

    Under version 1 nobody is named where several messages pass. Under version 2 nobody is named where no message passes
    by its own steps, and the right user and a wrong one can both be named.
    """

    found: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    ambiguous: NDArray[np.bool_]


def score_one(mark: Watermark, tokens: Tokens, message: NDArray[np.int64] | int, min_scored: int) -> OneMessage:
    """Test each text for one message, or each for its own, int64[D], as a scan with a key of one message does."""
    positions = mark.rule.positions(tokens, DEDUP)
    log10_p = log10_p_of(mark.law, mark.score(tokens, positions, message), positions.scored)
    return OneMessage(np.where(positions.scored >= min_scored, log10_p, 0.0), positions.scored)


def score_each(marks: Sequence[Watermark], tokens: Tokens, message: int, min_scored: int) -> OneMessage:
    """As `score_one`, with a key for each text."""
    log10_p, scored = np.zeros(len(marks)), np.zeros(len(marks), np.int64)
    for mark in {id(mark): mark for mark in marks}.values():
        rows = np.flatnonzero([other is mark for other in marks])
        log10_p[rows], scored[rows] = score_one(mark, take(tokens, rows), message, min_scored)
    return OneMessage(log10_p, scored)


def search(mark: Watermark, tokens: Tokens, own: NDArray[np.int64], count: int, min_scored: int) -> Search:
    """Search each text for `count` messages: its own, and the smallest others.

    Where its own message is below `count`, these are the messages that a scan of a key with so many messages searches;
    otherwise its own stands in for the last of them. Since all messages are alike, this adds users without texts, as
    the paper does, and every text counts for every number of users.

    Args:
        mark: the key's watermark.
        tokens: D texts.
        own: the message that each text was marked for, int64[D].
        count: M, at least 2.
        min_scored: scored tokens below which a text is too short.
    """
    positions = mark.rule.positions(tokens, DEDUP)
    enough = positions.scored >= min_scored
    found = {name: np.zeros(len(own)) for name in ("own", "first", "second")}
    for rows, others in ((enough & (own < count), count), (enough & (own >= count), count - 1)):
        at = np.flatnonzero(rows)
        if not len(at):
            continue
        mine = take(tokens, at)
        places = mark.rule.positions(mine, DEDUP)
        best = search_key(mark, mine, places, others)
        p_own = log10_p_of(mark.law, mark.score(mine, places, own[at]), places.scored)
        p_best, p_second = best.log10_p[:, 0], np.nan_to_num(best.log10_p[:, 1])
        is_first, is_second = best.message[:, 0] == own[at], best.message[:, 1] == own[at]
        found["own"][at] = p_own
        found["first"][at] = np.where(is_first, p_second, p_best)
        found["second"][at] = np.where(is_first | is_second, 0.0, p_second)
    return Search(found["own"], found["first"], found["second"], positions.scored)


def search_groups(mark: Numbered, tokens: Tokens, own: NDArray[np.int64], groups: int, min_scored: int) -> GroupSearch:
    """Search each text among the first so many groups of a key, and as many users of each, by the rules of a scan.

    All groups are alike, and all users of one, so that texts of one key count for every smaller number of users.

    Args:
        mark: the key's watermark.
        tokens: D texts.
        own: the message that each text was marked for, int64[D], within these groups.
        groups: the key's number of groups, or fewer.
        min_scored: scored tokens below which a text is too short.
    """
    positions = mark.rule.positions(tokens, DEDUP)
    enough = positions.scored >= min_scored
    searched = found_of(mark, mark.search_groups(tokens, positions, groups), positions.scored, groups**2)
    both = np.nan_to_num(np.maximum(searched.log10_p_global, searched.log10_p_own))  # a name needs both
    mine = searched.message == own[:, None]
    alone = log10_p_of(mark.law, mark.score(tokens, positions, own), positions.scored)

    def least(log10_p: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(enough, log10_p.min(axis=1), 0.0)

    return GroupSearch(
        own=np.where(enough, alone, 0.0),
        own_named=least(np.where(mine, both, 0.0)),
        other_named=least(np.where(mine, 0.0, both)),
        flagged=least(np.nan_to_num(searched.log10_p_global)),
        scored=positions.scored,
    )


def name(searched: Search | GroupSearch, count: int, false_positive_rate: float, *, independent: bool = False) -> Named:
    """Name users of `count` messages by the rule of a scan (scanner.watermark.rule.decide; SPEC §3).

    When a text's own message is one of the two best of all, the third best is unknown. It is not needed, since it
    passes only if the second does.

    Args:
        searched: the search.
        count: M.
        false_positive_rate: also the misnaming rate.
        independent: whether one message's mark leaves the scores of others unchanged, so that every message that passes
            is named.
    """
    if isinstance(searched, GroupSearch):
        limit = np.log10(false_positive_rate)
        found, wrong, flagged = searched.own_named <= limit, searched.other_named <= limit, searched.flagged <= limit
        return Named(found, wrong, flagged & ~found & ~wrong)
    log10_p = np.stack([searched.own, searched.first, searched.second], axis=1)
    nothing = np.zeros(log10_p.shape)
    found = Found(
        scored=searched.scored,
        message=np.broadcast_to(np.arange(3), log10_p.shape),  # in the order of Search, since the rule needs no numbers
        score=nothing,
        log10_p=log10_p,
        log10_p_global=corrected(log10_p, count),
        log10_p_own=np.full(log10_p.shape, -np.inf),  # without groups nothing more is asked
        independent=independent,
        basis=Basis(bits=256),  # the keys of the experiments are long enough
        p_rank=nothing,
    )
    decision = decide([found], false_positive_rate)
    right, *others = decision.named[0].T
    return Named(right, np.any(others, axis=0), decision.naming == Naming.AMBIGUOUS)
