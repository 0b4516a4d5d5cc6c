"""What a token costs under a key, by a timed sample, beside what it costs our own green list."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scanner.watermark.format import Format, Watermark
from scanner.watermark.formats import make_format
from scanner.watermark.positions import Tokens
from scanner.watermark.rule import candidates

WORTH_TELLING = 100.0
"""Times the cost of our green list at which whoever adds or scans a key is warned."""

_WORTH_TIMING = 1e-6  # seconds a token that a format itself allows for, generously; what takes less needs no sample
_LENGTH, _FEWEST, _MOST = 256, 2, 64  # tokens of a document; documents of a sample, at least and at most
_ENOUGH = 0.1  # seconds that a sample must take


class Price(NamedTuple):
    """seconds: core seconds of one token under all messages; times: that over our green list's for as many messages."""

    seconds: float
    times: float

    def words(self) -> str:
        """The price in words, for people."""
        times, hours = f"{round_to_one(self.times):,}", two_digits(5e8 * self.seconds / 3600)
        return (
            f"{two_digits(1e6 * self.seconds)} µs a token on one core, about {times} times what our green list takes; "
            f"a million posts of 500 tokens take {hours} core-hours under it"
        )


def price(form: Format, mark: Watermark, messages: int, clock: Callable[[], float] = time.thread_time) -> Price | None:
    """Time a key on tokens as frequent as in text; None where it takes less than a hundred times our green list.

    Args:
        form: of the key.
        mark: opened.
        messages: M, that a scan searches.
        clock: in seconds.
    """
    if form.seconds(messages) < _WORTH_TIMING:
        return None
    ours = make_format("greenlist", {"window": 4, "gamma": "1/4"}).open(bytes(range(16)))
    seconds, compared = (seconds_a_token(of, messages, clock) for of in (mark, ours))
    found = Price(seconds, seconds / compared)
    return found if found.times >= WORTH_TELLING else None


def sample(documents: int, seed: int) -> Tokens:
    """Documents whose tokens come as often as one over their rank, as words do: the n-th id of a vocabulary."""
    ranks = np.exp(np.random.default_rng(seed).uniform(0.0, np.log(30_000.0), documents * _LENGTH))
    return Tokens(ranks.astype(np.uint32), np.arange(documents + 1, dtype=np.int64) * _LENGTH)


def seconds_a_token(mark: Watermark, messages: int, clock: Callable[[], float]) -> float:
    """Seconds to leave out repeats and score one token, timed on more and more documents until a sample is long.

    As many others come first, so that what is compiled or kept of a vocabulary is there, as it is in a scan.
    """
    documents = _FEWEST
    while True:
        _score(mark, sample(documents, 1), messages)
        tokens = sample(documents, 2)
        began = clock()
        _score(mark, tokens, messages)
        seconds = max(clock() - began, 1e-9)
        if seconds >= _ENOUGH or documents >= _MOST:
            return seconds / len(tokens.ids)
        documents = min(_MOST, documents * int(min(max(_ENOUGH / seconds, 2.0), _MOST)))


def _score(mark: Watermark, tokens: Tokens, messages: int) -> None:
    positions = mark.rule.positions(tokens, "ngram")
    if messages == 1:
        mark.score(tokens, positions, 0)
    else:
        candidates(mark, tokens, positions, messages)


def round_to_one(times: float) -> int:
    """The ratio with one digit: no more of it is known."""
    unit = int("1" + "0" * (len(str(int(times))) - 1))
    return round(times / unit) * unit


def two_digits(number: float) -> str:
    """The number with two digits, or with all digits before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"
