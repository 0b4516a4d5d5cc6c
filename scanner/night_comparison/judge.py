"""Whether a figure of a night is what earlier nights lead to expect: robust to weekends, growth, and odd nights.

Everything is judged on a scale on which nights differ by about as much whatever their size: logarithms of counts and
means, log odds of shares.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from scanner.night_comparison.figures import Kind, Series

LEAST_NIGHTS = 28
"""Earlier nights without which a night is held against none: four of each day of the week."""

MOST_NIGHTS = 56
"""Earlier nights, the newest, that a night is held against."""

LEVEL_NIGHTS = 13
"""Nights whose median is the level. A lasting change is the level once it has more than half of them."""

NEW_NORMAL_AFTER = LEVEL_NIGHTS // 2 + 1
"""Nights for which a lasting change is odd. The night after them is ordinary again."""

LIMITS: Mapping[Kind, float] = {"count": 4.5, "share": 6.0, "mean": 6.0}
"""Standard errors beyond which a night is odd. A count has the better of two forecasts, and smaller errors for it.

Ordinary nights have longer tails than a normal law: tests/night_comparison counts false alarms and what is seen.
"""

LEAST_ERROR = 0.02
"""Least standard error of a forecast: however alike earlier nights were, a change by a tenth is no odd night."""

SKETCH_ERROR = 0.065
"""Standard error of a number of accounts, which is estimated from a sketch of 256 registers."""

SPREAD_OF_LENGTHS = 2.0
"""Standard deviation of the lengths of texts, in means."""

_WEEK, _MIDDLE = 7, 3
_NO_WEEK = 0.8  # days of the week that leave more of the spread explain none of it


class Judged(NamedTuple):
    """A figure of T nights, held against earlier ones.

    errors: float64[T], standard errors between forecast and night; NaN: not judged.
    odd: int64[T], 1 where a night has too much, −1 where too little, else 0.
    since: int64[T], place of the first of the nights in a row that are odd in the same way; its own where it is not.
    """

    errors: NDArray[np.float64]
    odd: NDArray[np.int64]
    since: NDArray[np.int64]


def judge(nights: Sequence[date], series: Series) -> Judged:
    """Hold each night of a figure against the nights before it.

    An example: workdays have 100,000 documents and Sundays 75,000, 1 % more each week. A holiday with 76,000 on a
    Thursday is ordinary, since a night may be like another day of the week. A Thursday with 50,000 is odd.

    Args:
        nights: dates of T nights, in order.
        series: the figure.
    """
    count, scaled = len(nights), _scaled(series)
    weekdays, places = np.array([night.weekday() for night in nights], np.int64), np.arange(count)
    errors, odd, since = np.full(count, np.nan), np.zeros(count, np.int64), places.copy()
    for place in np.flatnonzero(np.isfinite(scaled)).tolist():
        earlier = places[:place][np.isfinite(scaled[:place])][-MOST_NIGHTS:]
        if len(earlier) < LEAST_NIGHTS:
            continue
        past, days = scaled[earlier], weekdays[earlier]

        # 1. Learn the days of the week: the median of each day beside the median of the week around it.
        effects, week = np.zeros(_WEEK), np.median(sliding_window_view(past, _WEEK), axis=1)
        beside_week, days_around = past[_MIDDLE:-_MIDDLE] - week, days[_MIDDLE:-_MIDDLE]
        for day in set(days_around.tolist()):
            effects[day] = np.median(beside_week[days_around == day])
        if _spread(beside_week - effects[days_around]) > _NO_WEEK * _spread(beside_week):
            effects[:] = 0.0  # seven medians of chance would only add theirs

        # 2. Forecast the earlier nights by the median of those before each. Growth shifts all of these errors alike.
        levels = np.median(sliding_window_view(past - effects[days], LEVEL_NIGHTS), axis=1)
        misses = _misses(past[LEVEL_NIGHTS:], levels[:-1], effects, days[LEVEL_NIGHTS:])
        ordinary = misses[odd[earlier[LEVEL_NIGHTS:]] == 0]  # an odd night must not hide the next
        if len(ordinary) < _WEEK:
            continue
        growth = float(np.median(ordinary))
        spread = max(_spread(ordinary - growth), LEAST_ERROR)

        # 3. Forecast this night, and add what chance does to counts.
        tonight = slice(place, place + 1)
        miss = float(_misses(scaled[tonight], levels[-1:] + growth, effects, weekdays[tonight])[0])
        errors[place] = miss / np.hypot(spread, _counting_error(series, place, float(scaled[place]) - miss, miss))

        # 4. Say whether it is beyond the limit, and since when.
        if abs(errors[place]) > LIMITS[series.kind]:
            odd[place] = np.sign(miss)
            since[place] = since[earlier[-1]] if odd[earlier[-1]] == odd[place] else place
    return Judged(errors, odd, since)


def _scaled(series: Series) -> NDArray[np.float64]:
    """Return a figure on the scale on which nights are compared: float64[T]; half a document keeps 0 on it."""
    amount, of = series.amount, series.of
    if series.kind == "count":
        return np.log(amount + 0.5)
    other = np.maximum(of, 1.0) if series.kind == "mean" else np.maximum(of - amount, 0.0) + 0.5
    return np.where(of > 0, np.log((amount + 0.5) / other), np.nan)


def _misses(
    scaled: NDArray[np.float64], levels: NDArray[np.float64], effects: NDArray[np.float64], days: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return how far nights are from their level, as their own day of the week or as the day that differs most from it.

    A holiday is like a Sunday, and a platform may move its weekend.
    """
    other_day = np.abs(effects[:, None] - effects[days]).argmax(axis=0)
    as_own_day, as_other_day = scaled - levels - effects[days], scaled - levels - effects[other_day]
    return np.where(np.abs(as_own_day) <= np.abs(as_other_day), as_own_day, as_other_day)


def _spread(misses: NDArray[np.float64]) -> float:
    """Return a standard deviation that few large values do not move, by the median and the 90 % quantile of |x|."""
    median, high = np.quantile(np.abs(misses), (0.5, 0.9))
    return max(1.4826 * float(median), float(high) / 1.6449)


def _counting_error(series: Series, place: int, forecast: float, miss: float) -> float:
    """Return the standard error that chance alone gives a count, on the scale of the forecast.

    It is that of the likelihood ratio, which holds for few documents too: none where 5 are expected is 3.2 errors off.
    """
    amount, of = float(series.amount[place]), float(series.of[place])
    if series.kind == "mean":
        return SPREAD_OF_LENGTHS / float(np.sqrt(of))
    if series.kind == "count":
        expected = float(np.exp(forecast))
        ratio = _log_ratio(amount, expected) + expected - amount
    else:
        expected = of / (1 + float(np.exp(-forecast)))
        ratio = _log_ratio(amount, expected) + _log_ratio(of - amount, of - expected)
    errors_off = float(np.sqrt(2 * max(ratio, 0.0)))
    sketch_error = SKETCH_ERROR if series.figure == "accounts" else 0.0
    return float(np.hypot(abs(miss) / errors_off if errors_off > 0 else 0.0, sketch_error))


def _log_ratio(count: float, expected: float) -> float:
    return count * float(np.log(count / expected)) if count > 0 else 0.0
