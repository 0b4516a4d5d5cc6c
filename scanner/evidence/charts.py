"""Draw the charts of pages as inline SVG, with words for people who cannot see them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

_WIDTH, _HEIGHT, _LEFT, _BELOW = 520, 300, 60, 50


def rates_chart(rows: Sequence[Mapping[str, Any]], tested: str = "decoy keys") -> Markup:
    """Draw observed against stated rates, both on a logarithmic scale, with their limits. The line is "as stated".

    Args:
        rows: rows of schemas.audit.AUDITS, with tests, hits, expected, low and high. A rate without hits is at the
            bottom.
        tested: subject of the rates, in words.
    """
    points = [
        (
            row["expected"] / row["tests"],
            row["hits"] / row["tests"],
            row["low"] / row["tests"],
            row["high"] / row["tests"],
        )
        for row in rows
        if row["tests"] and row["expected"] > 0
    ]
    least_rate = min((stated for stated, *_ in points), default=1e-8) / 10
    decades = -math.log10(least_rate)

    def position(rate: float) -> float:
        return 1 + math.log10(max(rate, least_rate)) / decades

    def x(rate: float) -> float:
        return _LEFT + position(rate) * (_WIDTH - _LEFT - 10)

    def y(rate: float) -> float:
        return 10 + (1 - position(rate)) * (_HEIGHT - _BELOW - 10)

    elements = [
        Markup('<path class="stated" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(
            x(least_rate), y(least_rate), x(1), y(1)
        )
    ]
    for exponent in range(math.floor(decades) + 1):
        rate = 10.0**-exponent
        words = ("1",) if not exponent else (f"1e-{exponent}",)
        elements += [
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x(rate), _HEIGHT - 30, *words),
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(_LEFT - 6, y(rate) + 4, *words),
        ]
    for stated, observed, low, high in points:
        elements += [
            Markup('<path class="limits" d="M{0:.1f} {1:.1f}V{2:.1f}"/>').format(x(stated), y(low), y(high)),
            Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(x(stated), y(observed)),
        ]
    caption = f"{len(points)} rates on {tested}: observed against stated, with limits."
    axes = Markup('<text x="{}" y="{}" text-anchor="middle">stated rate</text>').format(_WIDTH // 2, _HEIGHT - 4)
    return _svg(caption, _HEIGHT, [*elements, axes])


def bars_chart(rows: Sequence[tuple[str, int]], caption: str) -> Markup:
    """Draw a bar for each row, below its words, with its number beside it. 40 letters fit on a phone."""
    largest_count = max((count for _, count in rows), default=1)
    elements = []
    for i, (words, count) in enumerate(rows):
        y = 40 * i
        width = max(1.0, 420 * count / largest_count)
        elements += [
            Markup('<text x="0" y="{}">{}</text>').format(y + 16, words),
            Markup('<rect x="0" y="{}" width="{:.1f}" height="12"/>').format(y + 22, width),
            Markup('<text x="{:.1f}" y="{}">{:,}</text>').format(width + 8, y + 33, count),
        ]
    return _svg(caption, 40 * len(rows), elements)


def _svg(caption: str, height: int, elements: Sequence[Markup]) -> Markup:
    head = Markup('<svg role="img" viewBox="0 0 {} {}" aria-label="{}"><title>{}</title>')
    return head.format(_WIDTH, height, escape(caption), escape(caption)) + Markup("").join(elements) + Markup("</svg>")
