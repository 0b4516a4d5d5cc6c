"""Draws counts of p-values from docs/measurements as SVG, in light and dark: `calibration` and `audit`."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.support.diagrams import SMALL, Canvas
from tests.support.measurements import FOLDER, read

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Count(NamedTuple):
    """How often p-values reached a level.

    level: the p-value.
    tests: p-values that were counted.
    hits: p-values at or below the level.
    expected: hits that the law states on average.
    low, high: limits of the mean number of hits; the limits of all levels hold together.
    """

    level: float
    tests: int
    hits: int
    expected: float
    low: float
    high: float


class Scale(NamedTuple):
    """A logarithmic axis.

    first, last: values at its ends.
    start, end: places of its ends on the canvas.
    """

    first: float
    last: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return where a value is drawn; values beyond the axis are drawn at its ends."""
        within = min(max(value, min(self.first, self.last)), max(self.first, self.last))
        share = math.log(within / self.first) / math.log(self.last / self.first)
        return self.start + share * (self.end - self.start)


def counts_of(name: str) -> dict[str, list[Count]]:
    """Return the counts of a measurement's rows, by their first cell."""
    counts: dict[str, list[Count]] = {}
    for row in read(FOLDER / f"{name}.json").rows:
        level, tests, hits, expected, low, high = (float(str(cell).replace(",", "")) for cell in row[1:7])
        counts.setdefault(str(row[0]), []).append(Count(level, int(tests), int(hits), expected, low, high))
    return counts


def power_of_ten(exponent: int) -> str:
    return "10" + str(exponent).translate(SUPERSCRIPTS) if exponent else "1"


def _point(canvas: Canvas, x: float, low: float, middle: float | None, high: float, colour: str) -> None:
    """Draw limits as a bar, and the count itself as a dot."""
    canvas.line((x, low), (x, high), colour, 2.5)
    if middle is not None:
        canvas.dot(x, middle, colour)


def _levels(canvas: Canvas, x: Scale, bottom: float, smallest: int) -> None:
    """Label the levels of p below the plot."""
    for exponent in range(-1, smallest - 1, -1):
        place = x.place(10.0**exponent)
        canvas.line((place, bottom), (place, bottom + 5), "line")
        canvas.words(place, bottom + 21, power_of_ten(exponent), SMALL, "soft")
    canvas.words((x.start + x.end) / 2, bottom + 44, "stated: chance of a p-value at or below this level", SMALL)


def _key(canvas: Canvas, x: float, y: float, colours: dict[str, str]) -> None:
    """Name the colours."""
    for i, (name, colour) in enumerate(colours.items()):
        canvas.dot(x, y + i * 22 - 4, colour)
        canvas.words(x + 12, y + i * 22, name, SMALL, "ink", "start")


def calibration(palette: dict[str, str]) -> str:
    """Draw how often unmarked texts reached each p-value, beside how often the p-values say."""
    counts = counts_of("p-values-of-a-calibration")
    canvas = Canvas(
        palette, 760, 430,
        "How often unmarked texts reached each p-value, beside the stated rate: the points of both formats follow the "
        "diagonal from 1 in 10 to 1 in 100 million.",
    )  # fmt: skip
    x, y = Scale(0.25, 3e-9, 100, 740), Scale(3e-10, 0.25, 370, 40)
    canvas.line((x.start, y.start), (x.end, y.start), "line")
    canvas.line((x.start, y.start), (x.start, y.end), "line")
    canvas.line((x.place(0.25), y.place(0.25)), (x.place(3e-9), y.place(3e-9)), "soft", 1.5, dashed=True)
    _levels(canvas, x, y.start, -8)
    for exponent in range(-1, -10, -1):
        canvas.words(92, y.place(10.0**exponent) + 4, power_of_ten(exponent), SMALL, "soft", "end")
    canvas.words(100, 22, "observed: share of p-values on unmarked texts", SMALL, "ink", "start")
    colours = dict(zip(counts, ("blue", "red"), strict=True))
    for name, colour in colours.items():
        for count in counts[name]:
            low, middle, high = (y.place(hits / count.tests) for hits in (count.low, count.hits, count.high))
            _point(canvas, x.place(count.expected / count.tests), low, middle, high, colour)
    _key(canvas, 560, 70, colours)
    canvas.words(572, 114, "dashed: as stated", SMALL, "soft", "start")
    return canvas.svg()


def audit(palette: dict[str, str]) -> str:
    """Draw how often decoys reached each p-value in a sound night and in one with a fault, over what is expected."""
    counts = counts_of("decoys-of-two-nights")
    canvas = Canvas(
        palette, 760, 330,
        "Decoys of two nights: in the sound night they reach each p-value as often as expected, in the night with a "
        "fault twice as often, and the limits of five levels leave out what is expected.",
    )  # fmt: skip
    x, y = Scale(0.3, 3e-8, 70, 740), Scale(0.25, 8.0, 270, 40)
    for ratio, words in ((0.25, "¼"), (0.5, "½"), (1.0, "1"), (2.0, "2"), (4.0, "4"), (8.0, "8")):
        canvas.line((x.start, y.place(ratio)), (x.end, y.place(ratio)), "soft" if ratio == 1 else "box", 1.5)
        canvas.words(60, y.place(ratio) + 5, words, SMALL, "soft", "end")
    canvas.words(70, 22, "times as many decoys as expected", SMALL, "ink", "start")
    _levels(canvas, x, y.start, -7)
    colours = dict(zip(counts, ("blue", "red"), strict=True))
    for (name, colour), shift in zip(colours.items(), (-8, 8), strict=True):
        for count in counts[name]:
            ratios: Sequence[float] = [hits / count.expected for hits in (count.low, count.hits, count.high)]
            low, middle, high = map(y.place, ratios)
            _point(canvas, x.place(count.level) + shift, low, middle if count.hits else None, high, colour)
    _key(canvas, 420, 18, {name: colours[name] for name in list(colours)[:1]})
    _key(canvas, 580, 18, {name: colours[name] for name in list(colours)[1:]})
    return canvas.svg()


PLOTS: dict[str, Callable[[dict[str, str]], str]] = {"calibration": calibration, "audit": audit}
