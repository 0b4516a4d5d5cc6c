"""Ordinary nights are green and broken ones amber: counted on made nights (tests/support/made_nights.py)."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from scanner.night_comparison.figures import NightCounts, Series, series_of
from scanner.night_comparison.judge import LEAST_NIGHTS, NEW_NORMAL_AFTER, Judged, judge
from tests.support.made_nights import BROKEN, ordinary_nights

NIGHTS = 400
A_FALSE_ALARM_IN = 60
"""Nights, two months, in which one false alarm is allowed at most."""


def judged(nights: list[NightCounts], figure: str | None = None) -> dict[tuple[str, str], Judged]:
    """Judge all figures, or those of one name."""
    dates = [night.night for night in nights]
    chosen = [series for series in series_of(nights) if figure in (None, series.figure)]
    return {(series.figure, series.subject): judge(dates, series) for series in chosen}


def odd_nights(nights: list[NightCounts]) -> np.ndarray:
    return np.any([figure.odd != 0 for figure in judged(nights).values()], axis=0)


def false_alarms(seed: int, documents: int = 400_000) -> int:
    return int(odd_nights(ordinary_nights(LEAST_NIGHTS + NIGHTS, seed, documents)).sum())


def seen(fault: str, seed: int, place: int, documents: int = 400_000) -> bool:
    """Say whether the figure moves that a fault must move, on the night of that place."""
    change, figure = BROKEN[fault]
    nights = ordinary_nights(place + 1, seed, documents)
    figures = judged([*nights[:-1], change(nights[-1])], figure)
    return any(of_figure.odd[-1] for of_figure in figures.values())


FALSE_ALARMS = [3, 2, 6, 3, 2, 6, 0, 1, 8, 3]
FALSE_ALARMS_OF_FEW = [1, 1, 2, 1, 2]
"""Amber nights of 400 ordinary ones, by seed: with 400,000 documents a night, and with 20,000."""

SEEN = {"half of the files missing": 37}
"""Of 40 broken nights those that are amber by the figure at fault, where these are not all."""


def test_false_alarms_of_400_nights_of_ordinary_traffic():
    assert false_alarms(0) == FALSE_ALARMS[0] <= NIGHTS // A_FALSE_ALARM_IN


@pytest.mark.long
def test_false_alarms_on_several_seeds():
    assert [false_alarms(seed) for seed in range(10)] == FALSE_ALARMS
    assert [false_alarms(seed, 20_000) for seed in range(5)] == FALSE_ALARMS_OF_FEW


def test_what_was_counted_is_at_most_a_false_alarm_in_two_months():
    """The upper limit is that of a count at 97.5 %; the page of measurements states what is counted here."""
    nights, alarms = NIGHTS * len(FALSE_ALARMS), sum(FALSE_ALARMS)
    limits = [2 * nights / chi2.ppf(level, 2 * count) for level, count in ((0.025, alarms), (0.975, alarms + 1))]
    assert limits[1] > A_FALSE_ALARM_IN
    page = (Path(__file__).parents[2] / "docs/measurements.md").read_text()
    assert f"| 400,000 documents a night | {', '.join(map(str, FALSE_ALARMS))} |" in page
    assert f"| 20,000 documents a night | {', '.join(map(str, FALSE_ALARMS_OF_FEW))} |" in page
    said = f"{alarms} of {nights:,} nights: a false alarm in {nights / alarms:.0f} nights"
    assert f"{said} (95 % interval: {limits[1]:.0f} to {limits[0]:.0f})" in page
    for fault in BROKEN:
        assert f"| {fault} | {SEEN.get(fault, 40)} |" in page
    guide = (Path(__file__).parents[2] / "docs/guides/nights-against-nights.md").read_text()
    assert f"{alarms} of {nights:,} ordinary nights" in guide


@pytest.mark.parametrize("fault", BROKEN)
def test_each_kind_of_broken_night_is_seen(fault):
    assert seen(fault, 1_000, 60)


@pytest.mark.costly
@pytest.mark.parametrize("fault", BROKEN)
def test_broken_nights_are_seen_at_any_time(fault):
    count = sum(seen(fault, 1_000 + seed, place) for seed in range(10) for place in (40, 70, 100, 115))
    assert count == SEEN.get(fault, 40)


def test_an_odd_night_does_not_hide_the_next():
    change, _ = BROKEN["a third of the texts empty"]
    nights = [change(night) if place in (50, 60) else night for place, night in enumerate(ordinary_nights(70, 1_001))]
    assert np.flatnonzero(judged(nights)["empty", ""].odd).tolist() == [50, 60]


def test_a_lasting_change_is_the_new_normal():
    """It is said since its first night for a week, and then no more; the way back is odd again."""
    change, _ = BROKEN["UTF-8 read as Latin-1"]
    nights = [change(night) if 40 <= place < 70 else night for place, night in enumerate(ordinary_nights(80, 1_002))]
    garbled = judged(nights)["garbled", ""]
    assert np.flatnonzero(garbled.odd).tolist() == [
        *range(40, 40 + NEW_NORMAL_AFTER),
        *range(70, 70 + NEW_NORMAL_AFTER),
    ]
    assert set(garbled.since[40 : 40 + NEW_NORMAL_AFTER]) == {40}
    assert set(garbled.odd[40 : 40 + NEW_NORMAL_AFTER]) == {1}
    assert set(garbled.odd[70 : 70 + NEW_NORMAL_AFTER]) == {-1}


def documents(numbers: list[float]) -> Judged:
    counts = np.array(numbers, np.float64)
    dates = [date.fromordinal(date(2026, 1, 5).toordinal() + place) for place in range(len(numbers))]  # a Monday
    return judge(dates, Series("documents", "", "count", counts, counts))


def test_weekends_growth_and_holidays_are_ordinary():
    week = [100_000, 101_000, 99_000, 100_500, 98_000, 78_000, 75_000]
    numbers = [week[day % 7] * 1.01 ** (day / 7) for day in range(70)]
    assert not documents(numbers).odd.any()
    numbers[66] = 76_000 * 1.01**9.4  # a Friday like a Sunday
    assert not documents(numbers).odd.any()
    numbers[66] = 50_000 * 1.01**9.4
    assert np.flatnonzero(documents(numbers).odd).tolist() == [66]


def test_too_few_nights_are_not_judged():
    ordinary = documents([1000.0] * LEAST_NIGHTS + [10.0])
    assert np.isnan(ordinary.errors[:-1]).all()
    assert ordinary.odd.tolist() == [0] * LEAST_NIGHTS + [-1]


def test_few_documents_are_judged_by_chance():
    """None where a few are expected is ordinary; a night without any document is not."""
    of = np.full(60, 1000.0)
    rare = np.array([5, 7, 4, 6, 5] * 11 + [5, 4, 6, 5, 0], np.float64)
    dates = [date.fromordinal(737_000 + place) for place in range(60)]
    assert not judge(dates, Series("flags", "green", "share", rare, of)).odd.any()
    assert documents([1000.0] * 40 + [0.0]).odd[-1] == -1


def test_nights_of_which_texts_are_unknown_are_left_out():
    nights = ordinary_nights(90, 1_003)
    nights[30:50] = [replace(night, texts=None) for night in nights[30:50]]
    figures = judged(nights)
    assert np.isnan(figures["empty", ""].errors[30:50]).all()
    assert np.isfinite(figures["documents", ""].errors[30:50]).all()
    change, _ = BROKEN["a third of the texts empty"]
    assert judged([*nights[:-1], change(nights[-1])])["empty", ""].odd[-1] == 1


def test_a_key_is_judged_from_its_first_nights_on():
    nights = ordinary_nights(90, 1_004)
    nights[:40] = [replace(night, keys=night.keys - {"green"}) for night in nights[:40]]
    errors = judged(nights)["flags", "green"].errors
    assert np.isnan(errors[: 40 + LEAST_NIGHTS]).all()
    assert np.isfinite(errors[40 + LEAST_NIGHTS :]).all()


def test_only_empty_texts_move_where_texts_are_empty():
    change, _ = BROKEN["a third of the texts empty"]
    nights = ordinary_nights(61, 1_005)
    figures = judged([*nights[:-1], change(nights[-1])])
    assert [figure for (figure, _), of_figure in figures.items() if of_figure.odd[-1]] == ["empty"]
