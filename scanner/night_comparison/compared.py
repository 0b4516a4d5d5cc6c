"""Nights held against the nights before them, in words: what moved, since when, and what to look at."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.night_comparison.figures import Series, series_of
from scanner.night_comparison.judge import LEAST_NIGHTS, MOST_NIGHTS, judge
from scanner.night_comparison.recorded_nights import finished_nights, nights_needed, read_counts
from scanner.printable import counted, printable

USUAL_NIGHTS = 28
"""Ordinary nights whose median is told as what is usual."""

_FIGURES: Mapping[str, tuple[str, str, str]] = {
    "empty": ("{value} of texts are empty", "empty texts", "look at what writes these files"),
    "garbled": (
        "{value} of texts are garbled",
        "garbled texts",
        "look at the encoding of these files",
    ),
    "hidden": (
        "{value} of texts have hidden characters",
        "hidden characters",
        "look at what processes texts on the way, and whether somebody hides marks",
    ),
    "no account": (
        "{value} of documents have no account",
        "no account",
        "look at the account column",
    ),
    "quarantine": ("{value} of texts are in quarantine", "quarantine", "`brickscan quarantine` says why"),
    "documents": ("{value} documents", "documents", "check whether files are missing or duplicated"),
    "accounts": ("about {value} accounts posted", "accounts", "look at the account column, and at who posts most"),
    "no letters": ("{value} of texts have no letter", "texts without a letter", "look at the text column"),
    "script": ("{value} of texts are in {subject} letters", "scripts", "check whether files of a language are missing"),
    "tokens": (
        "{value} tokens a text",
        "tokens a text",
        "check whether texts are cut off, or the wrong column is read",
    ),
    "too short": ("{value} of texts are too short", "short texts", "check whether texts are cut off"),
    "flags": (
        "{value} of documents are flagged under key {subject}",
        "flags",
        "check whether the system that marks with the key changed, and look at the newest flags",
    ),
}
"""Each figure: a sentence, a few words, and what to look at."""


class Move(NamedTuple):
    """A figure of a night that is not what earlier nights lead to expect.

    value: of the night.
    usual: median of so many ordinary nights before it moved.
    since: first of the nights in a row on which it did.
    """

    figure: str
    subject: str
    value: float
    usual: float
    nights: int
    since: date
    share: bool

    def in_words(self) -> str:
        """Say what moved, such as `35 % of texts are empty (0.1 % on the 28 nights before)`."""
        text = _FIGURES[self.figure][0].format(value=self._number(self.value), subject=printable(self.subject))
        return f"{text} ({self._number(self.usual)} on the {self.nights} nights before)"

    def _number(self, value: float) -> str:
        number = 100 * value if self.share else value
        words = f"{number:,.0f}" if number >= 10 or not number else f"{number:.2g}"
        return f"{words} %" if self.share else words


@dataclass(frozen=True)
class ComparedNight:
    """A night, held against the nights before it.

    earlier: how many there are.
    moves: what moved, causes before what follows from them.
    """

    night: date
    earlier: int
    moves: tuple[Move, ...] = ()

    @property
    def moved(self) -> str | None:
        """A sentence on what moved and since when; None: nothing did.

        An example: night 2026-11-26: 35 % of texts are empty (0.1 % on the 28 nights before), since 2026-11-26: look at
        what writes these files. Beside it moved: tokens a text.
        """
        if not self.moves:
            return None
        first, *_ = self.moves
        others = list(dict.fromkeys(_FIGURES[move.figure][1] for move in self.moves))[1:]
        beside = f". Also moved: {', '.join(others)}" if others else ""
        advice = _FIGURES[first.figure][2]
        return f"night {self.night}: {first.in_words()}, since {first.since}: {advice}{beside}"

    @property
    def waiting(self) -> str | None:
        """A sentence where there are too few earlier nights; None: there are enough."""
        if self.earlier >= LEAST_NIGHTS:
            return None
        earlier = counted(self.earlier, "earlier night")
        return f"night {self.night} has too little to be compared with: {earlier}, of {LEAST_NIGHTS}"

    @property
    def figures(self) -> list[str]:
        """Names of the figures that moved, each once."""
        return [*dict.fromkeys(move.figure for move in self.moves)]

    @property
    def record(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "night": self.night.isoformat(),
            "earlier_nights": self.earlier,
            "moved": [
                {
                    "figure": move.figure,
                    "subject": move.subject or None,
                    "value": move.value,
                    "usual": move.usual,
                    "since": move.since.isoformat(),
                }
                for move in self.moves
            ],
        }


def compare(results: str, asked: Collection[date], ending: Mapping[date, Collection[str]]) -> list[ComparedNight]:
    """Hold nights against the nights before each (scanner.comparing.Comparison)."""
    keys = finished_nights(results, ending)
    nights = nights_needed([*keys], asked, MOST_NIGHTS + LEAST_NIGHTS)  # each night that is compared with is judged too
    if not nights:
        return []
    moves: dict[date, list[Move]] = {night: [] for night in nights}
    for series in series_of(read_counts(results, {night: keys[night] for night in nights})):
        judged = judge(nights, series)
        told = set[date]()
        for place in range(len(nights) - 1, -1, -1):
            night, since = nights[place], nights[int(judged.since[place])]
            if judged.odd[place] and night in asked and since not in told:
                told.add(since)  # told by the newest of the nights in a row
                moves[night].append(_move(nights, series, judged.odd, place, int(judged.since[place])))
    finished = [*keys]
    return [
        ComparedNight(night, finished.index(night), tuple(moves[night])) for night in reversed(nights) if night in asked
    ]


def _move(nights: Sequence[date], series: Series, odd: NDArray[np.int64], place: int, since: int) -> Move:
    values = series.values
    ordinary = np.flatnonzero((odd[:since] == 0) & np.isfinite(values[:since]))[-USUAL_NIGHTS:]
    return Move(
        series.figure,
        series.subject,
        float(values[place]),
        float(np.median(values[ordinary])),
        len(ordinary),
        nights[since],
        series.kind == "share",
    )
