"""A night on Ray ends with exit code 5 if its canaries are found for other users, as with a wrong users table."""

import pytest

from jobs.scan import outcome_record
from jobs.summary import summary
from scanner.controls.canaries.canary_counts import CANARY_WORDS, CanaryCounts
from scanner.registry import make_canaries


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_a_night_whose_canaries_carry_each_others_messages_ends_with_5(night, own_registry, marked, plain):
    made = make_canaries(own_registry, ["green"], 2, 0.9).made
    night.configure(columns='account = "account"', audit="canaries = 20")
    texts = [marked(made[1 - i % 2].message, 60, i) for i in range(20)]
    accounts = [made[i % 2].account_id for i in range(20)]
    night.write("a", [*texts, plain(60, 1)], account=[*accounts, "somebody"])
    outcome = night.scan()
    assert (outcome.exit_code, outcome.audit.state) == (5, "canaries lost")
    last = night.last_scan()
    assert (last["exit_code"], last["audit"], last["documents"]) == (5, "canaries lost", 21)
    counted = CanaryCounts(**outcome.audit.facts["canaries"])
    assert (counted.due, counted.came, counted.found, counted.right) == (20, 20, 0, 0)
    assert counted.wrong == night.verdicts()["flagged"].sum() >= 18
    said = " ".join(summary(outcome, night.results, 1e-6).split())
    assert f"{counted.wrong} of 20 canaries were {CANARY_WORDS['canary_wrong']}" in said
    assert "They arrived and were not found" in said
    assert outcome_record(outcome, night.plan())["exit_code"] == 5
