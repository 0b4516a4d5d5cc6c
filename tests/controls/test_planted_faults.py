"""Faults that are planted in whole scans of 3,000 texts are seen by the controls that the audit's page names.

Only faults that change no law: a process remembers what laws computed, and the table has a process for each fault.
"""

import pytest

from tests.bench import planted_faults
from tests.bench.planted_faults import FAULTS, cells, nights

SEEN = {
    ("none", True): set(),
    ("none", False): set(),
    ("parts pay neither keys nor look", True): {"proofs"},
    ("correction for keys dropped", True): {"proofs"},
    ("all decoys share one key", False): {"decoys"},
    ("normalised texts: p × 0.1", False): {"whole decisions"},
    ("the second p-value of names pays for one user", False): {"decoys"},
    ("accounts count n-grams in each post", False): {"whole decisions"},
    ("accounts: p × 0.1", False): {"whole decisions"},
    ("half of the marked text is not found", True): {"canaries"},
}
"""Controls that see a fault, by its title and whether text is marked; others may see it too."""


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize(("title", "marked"), SEEN)
def test_a_planted_fault_is_seen(title, marked):
    (night,) = nights(title, 3_000, 1, marked=marked)
    seen = {control for control, alarms in night.items() if alarms}
    assert seen >= SEEN[title, marked]
    assert bool(seen) == (title != "none")


def test_every_fault_has_a_title_of_its_own():
    titles = [fault.title for fault in FAULTS]
    assert len(set(titles)) == len(titles)
    assert {title for title, _ in SEEN} <= set(titles)


def test_cells_say_from_how_many_documents_on_a_control_alarms_in_every_night(monkeypatch):
    def alarms(_title: str, size: int, runs: int, *, marked: bool) -> list[dict[str, bool]]:
        """Decoys see marked text from 12,500 on, and proofs in one of two nights of 3,000."""
        return [
            dict.fromkeys(planted_faults.CONTROLS_SHOWN, False)
            | {"decoys": marked and size >= 12_500, "proofs": size == 3_000 and run == 0}
            for run in range(runs)
        ]

    monkeypatch.setattr(planted_faults, "nights", alarms)
    assert cells("none", [3_000, 12_500, 50_000]) == ["12,500", "decoys", "not", ""]
    assert cells("none", [3_000]) == ["not", "", "not", ""]
