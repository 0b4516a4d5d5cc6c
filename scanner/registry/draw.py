"""Free messages drawn at random, without reading the taken ones."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scanner.registry.book import Book
from scanner.registry.parts import Ints
from schemas.registry import MAX_MESSAGES, RESERVED_EVERY, MasterKey, reserved_count


def draw(book: Book, key: MasterKey, free: int, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` of a key's `free` messages in random order, all orders of all messages equally likely."""
    if 2 * free >= key.messages and 2 * count <= free:  # at least every fourth draw succeeds
        return _drawn_by_trial(lambda messages: ~book.is_given(key.key_id, messages), key.messages, count, rng)
    return _drawn_by_rank(lambda messages: book.given_up_to(key.key_id, messages), free, count, rng)


def _drawn_by_trial(
    is_free: Callable[[Ints], NDArray[np.bool_]], messages: int, count: int, rng: np.random.Generator
) -> Ints:
    """Draw from all messages that are not reserved until enough are free; taken and repeated ones do not count."""
    drawn = np.zeros(0, np.int64)
    while len(drawn) < count:
        # for one user two: each may lie in another part of every run, which is then opened
        more = _message(rng.integers(0, messages - reserved_count(messages), size=2 * (count - len(drawn))))
        more = more[is_free(more)]
        both = np.concatenate([drawn, more])
        drawn = both[np.sort(np.unique(both, return_index=True)[1])]
    return drawn[:count]


def _drawn_by_rank(taken_up_to: Callable[[Ints], Ints], free: int, count: int, rng: np.random.Generator) -> Ints:
    """Draw ranks among the free messages, and find by bisection which ones these are.

    Args:
        taken_up_to: function that gives how many taken messages are at most each of these.
        free: how many messages are free.
        count: how many messages are drawn.
        rng: random generator.
    """
    ranks = rng.choice(free, size=count, replace=False)
    low, high = ranks, ranks + int(taken_up_to(np.array([MAX_MESSAGES]))[0])  # numbers of messages; the first one that
    while (low < high).any():  # has as many free ones before it is free itself
        middle = (low + high) // 2
        enough = middle + 1 - taken_up_to(_message(middle)) > ranks
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return _message(low)


def _message(number: Ints) -> Ints:
    """The message of a number: message n + n div 19 is the n-th that is not reserved (for RESERVED_EVERY = 20)."""
    messages: Ints = number + number // (RESERVED_EVERY - 1)
    return messages
