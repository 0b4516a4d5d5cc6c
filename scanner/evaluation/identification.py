"""The paper's Table 3: how often, among how many users, the user is found whom a text was marked for."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scanner.evaluation.means import Figure, figure, share
from scanner.evaluation.scores import GroupSearch, Search, name, search, search_groups
from scanner.evaluation.units import Setting, key_secret
from scanner.text import Tokenizer
from scanner.watermark.native.numbered import Numbered

LENGTHS: tuple[tuple[int | None, int | None], ...] = ((None, None), (0, 49), (50, 99), (100, 149), (150, None))
"""Scored tokens of the texts that are counted: from, to; the first entry is all texts."""

Searched = TypeVar("Searched", Search, GroupSearch)

FLAG_RATE = 1e-5
"""Rate at which texts are flagged by their own message alone, as in Table 2."""


def search_texts(
    setting: Setting,
    seed: str,
    texts: Sequence[str],
    own: Sequence[int],
    counts: Sequence[int],
    tokenizer: Tokenizer,
    min_scored: int,
) -> list[Search | GroupSearch]:
    """Search texts for their own message and others.

    Args:
        setting: how they were written, under key 0.
        seed: the key's seed.
        texts: D of them.
        own: the message that each text was marked for.
        counts: numbers of messages.
        tokenizer: the key's tokenizer, as a scan loads it.
        min_scored: scored tokens below which a text is too short to be flagged.

    Returns:
        One search for each number of messages.
    """
    mark, tokens = setting.watermark(key_secret(seed, 0)), tokenizer.encode(texts)
    if mark is None:
        raise ValueError("texts that nobody marked are of no user")
    messages = np.array(own, np.int64)
    if isinstance(mark, Numbered) and mark.groups is not None:
        return [search_groups(mark, tokens, messages, groups_of(count), min_scored) for count in counts]
    return [search(mark, tokens, messages, count, min_scored) for count in counts]


def groups_of(messages: int) -> int:
    """The least number of groups, with as many users each, that holds so many messages."""
    return math.isqrt(messages - 1) + 1


def together(parts: Sequence[Searched]) -> Searched:
    """Searches of several parts of the texts as one."""
    return type(parts[0])(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def identification_figures(
    setting: Setting,
    searches: Mapping[int, Search | GroupSearch],
    own: NDArray[np.int64],
    false_positive_rates: Sequence[float],
) -> list[Figure]:
    """Figures of one method.

    Args:
        setting: how the texts were written.
        searches: for each number of messages, the findings in D texts.
        own: the message of each text, which is its user: int64[D].
        false_positive_rates: rates at which users are named, over all messages together.
    """
    independent = setting.format is not None and not setting.format.can_be_framed()
    rows = []
    for least, most in LENGTHS:
        some = next(iter(searches.values()))
        chosen = (some.scored >= (least or 0)) & (some.scored <= (np.inf if most is None else most))
        users = own[chosen]
        make = functools.partial(
            figure,
            "identification",
            setting,
            clusters=f"{len(np.unique(users))} users",
            least_scored=least,
            most_scored=most,
        )
        flagged = share(some.own[chosen] <= np.log10(FLAG_RATE), users)
        rows.append(make("flagged", flagged, false_positive_rate=FLAG_RATE, messages=1))
        for count, found in searches.items():
            for rate in false_positive_rates:
                named = name(found, count, rate, independent=independent)
                rows += [
                    make(measure, share(hits[chosen], users), false_positive_rate=rate, messages=count)
                    for measure, hits in named._asdict().items()
                ]
    return rows
