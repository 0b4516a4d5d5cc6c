"""Documents simulated from draws, in part those of real marked text: how many are found, and where.

Draws of marked positions are runs from the demo's marked texts, for their own message; all other draws follow the law.
So T and the marked share can be chosen, which texts do not allow. Intervals are over simulated documents; runs are
taken from few texts, whose number is printed.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.judgement import binomial_limits
from scanner.watermark.laws import Binomial, Law
from scanner.watermark.positions import consecutive_positions
from scanner.watermark.rule import corrected, log10_p_of
from scanner.watermark.text_windows import count_windows, log10_in_document, running_sums, windows

SHORTEST_WINMAX = 24


class Mixed(NamedTuple):
    """Draws of a document, float64[T], and which positions are marked: begin … end−1."""

    draws: NDArray[np.float64]
    begin: int
    end: int


def by_chance(law: Law, size: int | tuple[int, ...], random: np.random.Generator) -> NDArray[np.float64]:
    """Draws of unmarked text: bits of a green list, exponential variables of a Gumbel mark."""
    if isinstance(law, Binomial):
        return (random.random(size) < float(law.gamma)).astype(np.float64)
    return random.exponential(size=size)


def mixed(law: Law, runs: list[NDArray[np.float64]], marked: int, scored: int, random: np.random.Generator) -> Mixed:
    """One document: a random run of a random text, put at a random place among unmarked draws."""
    of_text = runs[random.integers(len(runs))]
    first, begin = random.integers(len(of_text) - marked + 1), int(random.integers(scored - marked + 1))
    draws = by_chance(law, scored, random)
    draws[begin : begin + marked] = of_text[first : first + marked]
    return Mixed(draws, begin, begin + marked)


def share(hits: int, tests: int) -> str:
    """A share with its 95 % interval, in words."""
    limits = binomial_limits(hits, tests, 0.025)
    return f"{hits / tests:.3f} ({limits.low:.3f} to {limits.high:.3f})"


def power(
    label: str, law: Law, terms: list[NDArray[np.float64]], marked: int, scored: int, documents: int
) -> Iterator[str]:
    """Power at 1e-6 among 100,000 messages: the whole with all of the error, or whole and spans with half each."""
    runs = [one for one in terms if len(one) >= marked]
    if not runs:
        yield f"{label}: no text of {marked} marked tokens"
        return
    random, whole, with_spans = np.random.default_rng(7), 0, 0
    where = windows(scored)
    for _ in range(documents):
        one = mixed(law, runs, marked, scored, random)
        sums = running_sums(one.draws, consecutive_positions(np.zeros(1, np.int64), np.array([scored])).offsets)
        of_whole = float(log10_p_of(law, sums[-1], scored))
        least = log10_p_of(law, sums[where[:, 1]] - sums[where[:, 0]], where[:, 1] - where[:, 0]).min()
        in_document = log10_in_document(least, count_windows(scored), 100_000)
        whole += bool(corrected(of_whole, 100_000) <= -6)
        with_spans += bool(min(corrected(in_document, 1, 2), corrected(of_whole, 100_000, 2)) <= -6)
    yield (
        f"{label}: {marked} of {scored} marked, {documents} documents, runs of {len(runs)} texts: whole alone "
        f"{share(whole, documents)}, with spans {share(with_spans, documents)}"
    )


def beside_winmax(
    label: str, law: Law, terms: list[NDArray[np.float64]], marked: int, scored: int, documents: int, null: int
) -> Iterator[str]:
    """Power and IoU beside WinMax (Kirchenbauer et al. 2023, `On the Reliability of Watermarks`), one message.

    WinMax gives the largest z of all windows of any length and beginning. Both methods have the same empirical error:
    their limit is the score that one in a thousand null documents passes. Ours is also shown by its own law.
    """
    runs, random, where = [one for one in terms if len(one) >= marked], np.random.default_rng(8), windows(scored)

    def ours(sums: NDArray[np.float64]) -> tuple[float, tuple[int, int]]:
        log10_p = log10_p_of(law, sums[where[:, 1]] - sums[where[:, 0]], where[:, 1] - where[:, 0])
        best = int(log10_p.argmin())
        return float(log10_in_document(log10_p[best], len(where), 1)), (int(where[best, 0]), int(where[best, 1]))

    def winmax(sums: NDArray[np.float64]) -> tuple[float, tuple[int, int]]:
        most, at = -np.inf, (0, 0)
        for length in range(SHORTEST_WINMAX, scored + 1):
            z = (sums[length:] - sums[:-length] - length * law.mean) / np.sqrt(length * law.variance)
            if z.max() > most:
                most, at = float(z.max()), (int(z.argmax()), int(z.argmax()) + length)
        return -most, at

    def sums_of(draws: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.append(0.0, np.cumsum(draws))

    nulls: Any = [[one(sums_of(by_chance(law, scored, random)))[0] for one in (ours, winmax)] for _ in range(null)]
    limits = np.sort(np.array(nulls), axis=0)[null // 1000 - 1]
    hits, by_law, overlaps = np.zeros(2, np.int64), 0, [list[float](), list[float]()]
    for _ in range(documents):
        one = mixed(law, runs, marked, scored, random)
        for method, find in enumerate((ours, winmax)):
            value, (begin, end) = find(sums_of(one.draws))
            hits[method] += value <= limits[method]
            by_law += method == 0 and value <= -3
            common = max(0, min(end, one.end) - max(begin, one.begin))
            overlaps[method].append(common / (end - begin + one.end - one.begin - common))
    tenths = [np.quantile(of_one, (0.5, 0.1, 0.9)) for of_one in overlaps]
    iou = [f"{middle:.3f} (tenths {low:.2f} to {high:.2f})" for middle, low, high in tenths]
    yield (
        f"{label}: {marked} of {scored}, {documents} documents, runs of {len(runs)} texts, limits of {null} null ones: "
        f"found at 1e-3 ours {share(int(hits[0]), documents)} (by its law {share(by_law, documents)}), WinMax "
        f"{share(int(hits[1]), documents)}; IoU median ours {iou[0]}, WinMax {iou[1]}"
    )
