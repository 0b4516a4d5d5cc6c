"""The figures of nights: what is counted of each night, as series that can be held against earlier nights.

A figure is a count (documents), a share (texts that are empty), or a mean (tokens a text). Shares leave out what
another figure counts: of a night with many empty texts only the share of empty texts moves, not that of short ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TextCounts:
    """Counts of the texts of a night by what workers see of them (TEXT_COUNTS in schemas.tables).

    accounts: about how many distinct accounts posted.
    scripts: texts by the script of most of their letters; `none`: without a letter.
    flags: by key, those of canaries left out.
    """

    missing: int = 0
    blank: int = 0
    hidden: int = 0
    garbled: int = 0
    without_account: int = 0
    accounts: float = 0.0
    scripts: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NightCounts:
    """Counts of a night.

    documents: that were read.
    keys: ids of the keys that were tested.
    texts: None: unknown, as of nights that an older version scanned or that were dropped.
    """

    night: date
    documents: int
    quarantined: int
    too_short: int
    tokens: int
    keys: frozenset[str] = frozenset()
    texts: TextCounts | None = None


Kind = Literal["count", "share", "mean"]


class Series(NamedTuple):
    """A figure of T nights.

    figure: its name; figures of several scripts or keys share one.
    subject: the script or the key; empty: the figure has none.
    kind: a count has no `of`; a share is amount of `of`; a mean is amount over `of`.
    amount: float64[T]; NaN: unknown.
    of: float64[T]; documents.
    """

    figure: str
    subject: str
    kind: Kind
    amount: NDArray[np.float64]
    of: NDArray[np.float64]

    @property
    def values(self) -> NDArray[np.float64]:
        """The figure as people read it: float64[T]."""
        per = np.ones(len(self.of)) if self.kind == "count" else np.where(self.of > 0, self.of, np.nan)
        return np.asarray(self.amount / per)


def series_of(nights: Sequence[NightCounts]) -> list[Series]:
    """Return all figures of nights, causes before what follows from them."""
    documents, quarantined, too_short, tokens = _columns(nights, ("documents", "quarantined", "too_short", "tokens"))
    texts = [night.texts for night in nights]
    names = ("missing", "blank", "hidden", "garbled", "without_account", "accounts")
    missing, blank, hidden, garbled, without_account, accounts = _columns(texts, names)
    scripts = _by_name([None if counts is None else counts.scripts for counts in texts])
    flags = _by_name([None if counts is None else counts.flags for counts in texts])

    stored, shown = np.maximum(documents - missing, 0), np.maximum(documents - missing - blank, 0)
    without_letters = scripts.pop("none", 0 * missing)
    lettered = sum(scripts.values(), 0 * missing)
    key_ids = sorted({key_id for night in nights for key_id in night.keys})
    tested = {key_id: np.array([key_id in night.keys for night in nights], np.bool_) for key_id in key_ids}
    return [
        Series("empty", "", "share", missing + blank, documents),
        Series("garbled", "", "share", garbled, stored),
        Series("hidden", "", "share", hidden, stored),
        Series("no account", "", "share", without_account, documents),
        Series("quarantine", "", "share", np.maximum(quarantined - missing, 0), stored),
        Series("documents", "", "count", documents, documents),
        Series("accounts", "", "count", accounts, documents),
        Series("no letters", "", "share", without_letters, shown),
        *(Series("script", script, "share", amount, lettered) for script, amount in sorted(scripts.items())),
        Series("tokens", "", "mean", tokens, shown),
        Series("too short", "", "share", np.maximum(too_short - blank, 0), shown),
        *(
            Series("flags", key_id, "share", np.where(days, flags.get(key_id, 0 * missing), np.nan), documents)
            for key_id, days in tested.items()
        ),
    ]


def _columns(rows: Sequence[object], names: Sequence[str]) -> list[NDArray[np.float64]]:
    """Return attributes of T rows, each as float64[T]; NaN where there is no row."""
    return [np.array([np.nan if row is None else getattr(row, name) for row in rows], np.float64) for name in names]


def _by_name(rows: Sequence[Mapping[str, int] | None]) -> dict[str, NDArray[np.float64]]:
    """Return numbers of T rows by name, each as float64[T]; 0 where a row lacks the name, NaN where there is no row."""
    names = {name for row in rows for name in row or ()}
    return {name: np.array([np.nan if row is None else row.get(name, 0) for row in rows], np.float64) for name in names}
