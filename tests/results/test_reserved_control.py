"""False discoveries by reserved messages: the rate holds under a broken law, at a known cost in power."""

import numpy as np
import pytest

from scanner import results
from scanner.errors import Refused
from scanner.results import false_discoveries
from scanner.results.false_discoveries import FEWEST_FLAGS, _log10_q, q_by_reserved
from tests.support.two_keys import message_of

NIGHTS, MARKED, FALSE, SHARE = 2000, 1500, 100, 0.05


def night(random: np.random.Generator, false: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log10 p of flags under a broken law, whether each message is reserved, and whether each text is unmarked.

    p is 10^-40 to 10^-6 for marked texts and 10^-20 to 10^-6 for false flags; a right law has next to none of these.
    """
    p = np.concatenate([random.uniform(-40, -6, MARKED), random.uniform(-20, -6, false)])
    null = np.arange(len(p)) >= MARKED
    return p, null & (random.random(len(p)) < SHARE), null


def told(q: np.ndarray, null: np.ndarray, level: float) -> tuple[float, float]:
    """The share of unmarked texts among texts with q ≤ level, and the share of the marked texts with q ≤ level."""
    kept = q <= level  # false for the NaN of a reserved message
    return (kept & null).sum() / max(kept.sum(), 1), (kept & ~null).sum() / MARKED


@pytest.mark.costly
def test_the_rate_holds_under_a_broken_law_that_benjamini_hochberg_does_not_see():
    """2,000 nights of 1,500 marked texts and 100 false flags, and 500 nights with 1,000 false flags."""
    random = np.random.default_rng(17)
    for false in (FALSE, 10 * FALSE):
        ours, power, theirs = [], [], []
        for _ in range(NIGHTS if false == FALSE else 500):
            p, reserved, null = night(random, false)
            share_false, found = told(q_by_reserved(p, reserved, SHARE), null, 0.05)
            ours.append(share_false)
            power.append(found)
            order = np.argsort(p)
            q = np.empty(len(p))
            q[order] = 10 ** _log10_q(np.concatenate([p[order], np.zeros(10**5)]))[: len(p)]
            q[reserved] = np.nan
            theirs.append(told(q, null, 0.05)[0])
        error = np.std(ours) / np.sqrt(len(ours))
        assert np.mean(ours) <= 0.05 + 5 * error
        assert np.mean(theirs) > 0.05 if false == FALSE else np.mean(theirs) > 0.3
        assert np.mean(power) > 0.4


def test_all_false_flags_are_seldom_taken_for_a_discovery():
    """No text is marked, so that every kept text is false; at most one in 20 of 4,000 nights may keep any."""
    random = np.random.default_rng(18)
    kept = 0
    for _ in range(4000):
        p, reserved = random.uniform(-20, -6, 600), random.random(600) < SHARE
        kept += bool((q_by_reserved(p, reserved, SHARE) <= 0.05).any())
    assert kept / 4000 <= 0.05 + 5 * np.sqrt(0.05 * 0.95 / 4000)


def test_fewer_flags_than_that_say_no_five_percent():
    for flags in (1, FEWEST_FLAGS - 1, FEWEST_FLAGS, 1000):
        q = q_by_reserved(np.linspace(-30, -6, flags), np.zeros(flags, bool), SHARE)
        assert (q.min() <= 0.05) == (flags >= FEWEST_FLAGS)


def test_q_against_a_plain_loop():
    random = np.random.default_rng(19)
    p, reserved = np.round(random.uniform(-9, -6, 300), 1), random.random(300) < 0.1  # with many ties
    found = q_by_reserved(p, reserved, 0.1)
    for i in range(300):
        if reserved[i]:
            assert np.isnan(found[i])
            continue
        bounds = [
            (1 + (reserved & (p <= t)).sum()) * 9 / max((~reserved & (p <= t)).sum(), 1) for t in set(p[p >= p[i]])
        ]
        assert found[i] == pytest.approx(min(1.0, *bounds))


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_of_a_scan(night_of_flags, monkeypatch):
    scanned, scan_id = night_of_flags
    found = results.reserved_q_values(scanned.results, scan_id)
    assert found["message"].to_list().count(19) == 0
    assert len(found) == 3, "a copy is no further piece, and a reserved message is no discovery"
    assert found["q"].to_list() == [1.0] * 3
    with pytest.raises(Refused, match="has not ended"):
        results.reserved_q_values(scanned.results, "other")
    monkeypatch.setattr(false_discoveries, "TEXTS_AT_A_TIME", 1)
    untold = results.reserved_q_values(scanned.results, scan_id)
    assert len(untold) == 3, "of alice's texts it is not told which are one piece: each stands for itself"


@pytest.fixture
def night_of_flags(night_with, registry, marked):
    alice, bob = (message_of(registry, "green", user) for user in ("alice", "bob"))
    texts = [marked(alice, 60, 1), marked(alice, 60, 2), marked(bob, 60, 3), marked(19, 60, 4), marked(alice, 60, 1)]
    return night_with(texts)


@pytest.fixture
def night_with(request, tmp_path, registry):
    from tests.support.night import Night

    def make(texts):
        made = Night(tmp_path, registry)
        made.write("a", texts)
        return made, made.scan().scan_id

    return make
