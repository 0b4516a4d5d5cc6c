"""The table of planted faults: what is sound alarms as rarely as stated, and each control sees a fault of its kind."""

import pytest
from scipy import stats

from schemas.config import ScanAuditConfig
from tests.bench.planted_faults import FAULTS, alarms, refuted

NAMES = ("decoys", "whole decisions", "reserved", "strata", "canaries")


def seen_by(title: str) -> set[str]:
    (fault,) = (fault for fault in FAULTS if fault.title == title)
    return {name for name, share in zip(NAMES, alarms(fault, 200), strict=True) if share > 0.9}


def test_a_night_without_a_fault_does_not_alarm():
    """A control is expected to alarm in 0.2 of 200 nights at most."""
    assert max(alarms(FAULTS[0], 200)) <= 0.02


@pytest.mark.parametrize(
    ("title", "controls"),
    [
        ("one format's p × 0.5", {"decoys", "strata"}),
        (
            "a generator repeats, each n-gram counts four times in 5 % of the texts",
            {"decoys", "whole decisions", "reserved"},
        ),
        ("correction for messages dropped", {"decoys", "whole decisions", "reserved"}),
        ("half of the marked text is not found", {"canaries"}),
    ],
)
def test_a_fault_is_seen_by_the_controls_of_its_kind(title, controls):
    assert seen_by(title) == controls


@pytest.mark.costly
@pytest.mark.seconds
def test_proofs_come_out_differently_where_p_values_are_wrong_and_only_there():
    assert refuted(FAULTS[0]) == 0
    assert refuted(FAULTS[2]) > 30


@pytest.mark.costly
@pytest.mark.seconds
def test_sound_nights_alarm_by_whole_decisions_as_rarely_as_stated():
    """By all looks and by whole texts alone; so many alarms would have a probability below 0.001 at the stated rate."""
    nights = 3000
    seen = dict(zip(NAMES, alarms(FAULTS[0], nights), strict=True))
    assert seen["whole decisions"] * nights <= stats.binom.isf(0.001, nights, ScanAuditConfig().family_error)
