"""Nights that are made up: counts of ordinary traffic, with weekends, holidays, growth and campaigns; and broken ones.

Ordinary traffic is made to be as restless as that of real platforms: every share wanders, noise has heavy tails, about
one night in 35 is a holiday, and about one in ten lies in a campaign, which brings documents, accounts and flags.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from scanner.night_comparison.figures import NightCounts, TextCounts

FIRST = date(2025, 9, 1)
SCRIPTS = {"Latin": 0.82, "Cyrillic": 0.09, "Arabic": 0.05, "Han": 0.03, "Hangul": 0.004}
SHARES = {
    "missing": 0.0004,
    "blank": 0.0006,
    "hidden": 0.012,
    "garbled": 0.002,
    "without_account": 0.03,
    "quarantined": 0.0005,
    "too_short": 0.22,
    "none": 0.02,
}
TRAITS = ("missing", "blank", "hidden", "garbled", "without_account")
FLAGS = {"green": 2e-3, "gumbel": 2e-4, "rare": 5e-6}
A_TEXT, ACCOUNTS_A_DOCUMENT = 60.0, 0.3


def ordinary_nights(number: int, seed: int, documents: int = 400_000) -> list[NightCounts]:
    """Make nights of ordinary traffic.

    documents: of a working day at first.
    """
    rng = np.random.default_rng(seed)
    days = np.arange(number)
    dates = [FIRST + timedelta(days=int(day)) for day in days]
    weekday = np.array([day.weekday() for day in dates])
    week = np.array([1.0, 1.02, 1.0, 0.98, 0.96, 0.8, 0.76]) * rng.lognormal(0, 0.05, 7)
    holidays = rng.random(number) < 1 / 35
    campaign = _campaigns(rng, number)

    def wander(step: float) -> np.ndarray:
        """Return the logarithm of a factor that drifts, and comes back."""
        walk, place = np.zeros(number), 0.0
        for day in range(number):
            place = 0.98 * place + rng.normal(0, step)
            walk[day] = place
        return walk

    def noise(size: float) -> np.ndarray:
        return size * rng.standard_t(5, number) / np.sqrt(5 / 3)

    as_day = np.where(holidays, week[6] * rng.lognormal(0, 0.05, number), week[weekday])
    growth = 0.0015 * days
    volume = documents * as_day * np.exp(growth + wander(0.015) + noise(0.03)) * (1 + 0.2 * campaign)
    made = rng.poisson(volume)

    def counts(
        share: float, of: np.ndarray, size: float = 0.08, step: float = 0.015, weekend: float = 0.0
    ) -> np.ndarray:
        odds = np.log(share / (1 - share)) + wander(step) + noise(size) + weekend * ((weekday >= 5) | holidays)
        return rng.binomial(of, 1 / (1 + np.exp(-odds)))

    parts = {name: counts(share, made, weekend=0.05 if name == "too_short" else 0.0) for name, share in SHARES.items()}
    letters = made - parts["none"] - parts["missing"] - parts["blank"]
    scripts = {name: counts(share, letters, 0.03, 0.008) for name, share in SCRIPTS.items() if name != "Latin"}
    scripts["Latin"] = letters - sum(scripts.values())
    flags = {
        key: counts(rate, made, 0.12, 0.02) + rng.poisson(rate * made * campaign * (0.3 if key == "green" else 0.0))
        for key, rate in FLAGS.items()
    }
    length = A_TEXT * np.exp(wander(0.006) + noise(0.012) - 0.04 * campaign + 0.03 * (weekday >= 5))
    accounts = made**0.9 * documents**0.1 * ACCOUNTS_A_DOCUMENT * (1 + 0.05 * campaign)
    accounts *= np.exp(wander(0.008) + noise(0.04))
    return [
        NightCounts(
            dates[day],
            int(made[day]),
            int(parts["quarantined"][day] + parts["missing"][day]),
            int(parts["too_short"][day] + parts["blank"][day]),
            int(made[day] * length[day]),
            frozenset(FLAGS),
            TextCounts(
                **{name: int(parts[name][day]) for name in TRAITS},
                accounts=float(accounts[day]),
                scripts={name: int(values[day]) for name, values in scripts.items()}
                | {"none": int(parts["none"][day])},
                flags={key: int(values[day]) for key, values in flags.items()},
            ),
        )
        for day in days.tolist()
    ]


def _campaigns(rng: np.random.Generator, number: int) -> NDArray[np.float64]:
    """Return the strength of campaigns on each night, 0 … 1: one in 40 nights begins one of two to six nights."""
    strength = np.zeros(number)
    for first in np.flatnonzero(rng.random(number) < 1 / 40).tolist():
        nights = int(rng.integers(2, 7))
        for night in range(first, min(first + nights, number)):
            strength[night] = max(strength[night], rng.uniform(0.4, 1.0))
    return strength


def _texts(night: NightCounts, **changes: object) -> NightCounts:
    assert night.texts is not None
    return replace(night, texts=replace(night.texts, **changes))  # type: ignore[arg-type]


def _scaled(night: NightCounts, factor: float) -> NightCounts:
    """Multiply all counts of a night; as many accounts post half as much."""
    texts = night.texts
    assert texts is not None
    scaled = replace(
        texts,
        **{name: int(getattr(texts, name) * factor) for name in TRAITS},
        accounts=texts.accounts * min(factor, 1.0) ** 0.5,
        scripts={name: int(count * factor) for name, count in texts.scripts.items()},
        flags={key: int(count * factor) for key, count in texts.flags.items()},
    )
    totals = {name: int(getattr(night, name) * factor) for name in ("documents", "quarantined", "too_short", "tokens")}
    return replace(night, **totals, texts=scaled)


def _emptied(night: NightCounts, share: float) -> NightCounts:
    """Empty so many of the texts."""
    rest, texts = _scaled(night, 1 - share), night.texts
    assert texts is not None
    assert rest.texts is not None
    blank = night.documents - rest.documents
    return replace(
        _texts(rest, blank=rest.texts.blank + blank, accounts=texts.accounts),
        documents=night.documents,
        too_short=rest.too_short + blank,
    )


def _without_flags(night: NightCounts, key: str, factor: float) -> NightCounts:
    assert night.texts is not None
    return _texts(night, flags={**night.texts.flags, key: int(night.texts.flags[key] * factor)})


def _other_column(night: NightCounts) -> NightCounts:
    """Read numbers in place of texts: short, and without letters."""
    documents = night.documents
    short = {"too_short": int(0.99 * documents), "tokens": 8 * documents}
    return replace(_texts(night, scripts={"none": documents}, flags=dict.fromkeys(FLAGS, 0), hidden=0), **short)


def _script_lost(night: NightCounts) -> NightCounts:
    assert night.texts is not None
    scripts = dict(night.texts.scripts)
    lost = scripts.pop("Cyrillic")
    return replace(_texts(night, scripts=scripts), documents=night.documents - lost)


BROKEN: Mapping[str, tuple[Callable[[NightCounts], NightCounts], str]] = {
    "a third of the texts empty": (lambda night: _emptied(night, 0.35), "empty"),
    "half of the files missing": (lambda night: _scaled(night, 0.5), "documents"),
    "all files twice": (lambda night: _scaled(night, 2.0), "documents"),
    "texts cut to 140 characters": (lambda night: replace(night, tokens=int(night.tokens * 0.5)), "tokens"),
    "another column read": (_other_column, "no letters"),
    "UTF-8 read as Latin-1": (lambda night: _texts(night, garbled=int(0.19 * night.documents)), "garbled"),
    "hidden characters in all texts": (lambda night: _texts(night, hidden=int(0.98 * night.documents)), "hidden"),
    "accounts lost": (
        lambda night: _texts(night, without_account=night.documents, accounts=0.0),
        "no account",
    ),
    "one account for all": (lambda night: _texts(night, accounts=1.0), "accounts"),
    "a script lost": (_script_lost, "script"),
    "quarantine of one document in a hundred": (
        lambda night: replace(night, quarantined=night.quarantined + night.documents // 100),
        "quarantine",
    ),
    "a key that finds nothing": (lambda night: _without_flags(night, "gumbel", 0.0), "flags"),
    "a flood of flags of a key": (lambda night: _without_flags(night, "green", 12.0), "flags"),
}
"""Faults of nights by name: what they do to a night, and the figure that must move."""
