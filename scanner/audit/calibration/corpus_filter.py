"""A filter of common n-grams for an audit of keys, learnt from the corpus: no text meets a filter that it taught.

A scan's filter is learnt from earlier nights, which a corpus has not. So digests part its texts into two halves, and
each half is scored without the n-grams that are common in the other.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark import Tokens
from scanner.watermark.ngram_filter import TEXTS_A_CELL, Sketch

HALVES = 2
"""Halves of a corpus, each of which teaches the other."""


class Lesson(NamedTuple):
    """Texts of one part of the corpus that teach: places within the part, int64[D], and the bit of each, uint8[D]."""

    part: int
    places: NDArray[np.int64]
    bits: NDArray[np.uint8]


def in_halves(digests: NDArray[np.uint64], places: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Those of some places whose texts are in each half, by digests of all texts of a part, uint64[D]."""
    half = digests[places] % np.uint64(HALVES)
    return [places[half == number] for number in range(HALVES)]


def teaching(
    distinct: Sequence[NDArray[np.int64]], lengths: Sequence[NDArray[np.int64]], reach: int, least: int
) -> list[NDArray[np.int64]]:
    """Those of the distinct texts of each part that have so many n-grams at least: a scan learns no others.

    Args:
        distinct: places in each part.
        lengths: tokens of all texts of each part.
        reach: tokens of an n-gram before its last.
        least: n-grams.
    """
    return [places[of_part[places] - reach >= least] for places, of_part in zip(distinct, lengths, strict=True)]


def lessons(
    digests: Sequence[NDArray[np.uint64]], distinct: Sequence[NDArray[np.int64]], most: int
) -> list[list[Lesson]]:
    """The texts that teach in each half: all, or those with the least digests where these are more than `most`.

    Args:
        digests: of the texts of each part.
        distinct: places in each part of texts that teach, and stand in no earlier place.
        most: texts of a half.
    """
    halves = []
    for number in range(HALVES):
        of_half = [in_halves(*part)[number] for part in zip(digests, distinct, strict=True)]
        orders = [part[places] >> np.uint64(7) for part, places in zip(digests, of_half, strict=True)]
        least = np.sort(np.concatenate(orders))[:most] if orders else np.zeros(0, np.uint64)
        halves.append(
            [
                _lesson(at, part, places[order <= least[-1]])
                for at, (part, places, order) in enumerate(zip(digests, of_half, orders, strict=True))
                if len(least) and (order <= least[-1]).any()
            ]
        )
    return halves


def _lesson(part: int, digests: NDArray[np.uint64], places: NDArray[np.int64]) -> Lesson:
    bits = digests[places] // np.uint64(HALVES) % np.uint64(TEXTS_A_CELL)
    return Lesson(part, places, bits.astype(np.uint8))


def common_in(
    texts: Iterable[tuple[Tokens, NDArray[np.uint8]]], reach: int, key: NDArray[np.uint64], common_from: int
) -> NDArray[np.uint8]:
    """The n-grams that so many distinct texts hold, as Sketch.common gives them.

    Args:
        texts: tokens, with the bit of each text.
        reach: tokens of an n-gram before its last.
        key: as hash_key makes it.
        common_from: distinct texts that make an n-gram common.
    """
    sketch = Sketch(reach)
    for tokens, bits in texts:
        sketch.learn(key, tokens, bits)
    return sketch.common(common_from)
