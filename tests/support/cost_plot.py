"""Draws docs/measurements/cost-curves.json as SVG, in light and dark: what a scan costs as one thing grows."""

import itertools
from collections.abc import Callable

from tests.support.diagrams import SMALL, Canvas
from tests.support.measurements import FOLDER, read
from tests.support.p_value_plots import Scale, power_of_ten

PANELS = {"users": "users of a key", "keys": "keys", "tokens": "tokens of a post"}
COLOURS = {"greenlist-v3": "blue", "gumbel-v3": "red"}
NAMES = {"greenlist-v3": "green list", "gumbel-v3": "Gumbel"}
WIDTH, GAP, LEFT = 200, 34, 66


def cost(palette: dict[str, str]) -> str:
    """Draw CPU milliseconds a megabyte over users, keys and the length of posts, a panel each."""
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for field, value, name, milliseconds, *_ in read(FOLDER / "cost-curves.json").rows:
        point = float(str(value).replace(",", "")), float(str(milliseconds).replace(",", ""))
        curves.setdefault((str(field), str(name)), []).append(point)
    costs = [cost for curve in curves.values() for _, cost in curve]
    canvas = Canvas(
        palette, 760, 330,
        "CPU time a megabyte of text as the number of users, the number of keys or the length of posts grows, for "
        "green lists and Gumbel marks.",
    )  # fmt: skip
    y = Scale(10 ** _exponent(min(costs)), 10 ** (_exponent(max(costs)) + 1), 270, 40)
    for exponent in range(_exponent(min(costs)), _exponent(max(costs)) + 2):
        canvas.words(LEFT - 8, y.place(10.0**exponent) + 4, f"{10**exponent:,}", SMALL, "soft", "end")
    canvas.words(4, 22, "CPU ms a megabyte", SMALL, "ink", "start")
    for place, (field, title) in enumerate(PANELS.items()):
        start = LEFT + place * (WIDTH + GAP)
        values = [value for value, _ in curves[field, "greenlist-v3"]]
        x = Scale(values[0], values[-1], start + 8, start + WIDTH - 8)
        canvas.line((start, y.start), (start + WIDTH, y.start), "line")
        for exponent in range(_exponent(y.first), _exponent(y.last) + 1):
            canvas.line((start, y.place(10.0**exponent)), (start + WIDTH, y.place(10.0**exponent)), "box", 1.5)
        for number, value in enumerate(values):
            if len(values) < 7 or number == 0 or (len(values) - 1 - number) % 3 == 0:
                words = f"{value:,.0f}" if value < 10**4 else power_of_ten(_exponent(value))
                canvas.words(x.place(value), y.start + 20, words, SMALL, "soft")
        canvas.words(start + WIDTH / 2, y.start + 44, title, SMALL)
        for name, colour in COLOURS.items():
            points = [(x.place(value), y.place(cost)) for value, cost in curves[field, name]]
            for ends in itertools.pairwise(points):
                canvas.line(*ends, colour, 1.5)
            for point in points:
                canvas.dot(*point, colour)
    for number, (name, colour) in enumerate(COLOURS.items()):
        canvas.dot(480 + 130 * number, 18, colour)
        canvas.words(492 + 130 * number, 22, NAMES[name], SMALL, "ink", "start")
    return canvas.svg()


def _exponent(value: float) -> int:
    """Return the exponent of the largest power of ten that is not above a value."""
    return len(str(int(value))) - 1


PLOTS: dict[str, Callable[[dict[str, str]], str]] = {"cost": cost}
