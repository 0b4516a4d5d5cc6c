"""Parts of the traffic are judged by themselves: a fault in one part alone is seen, and the part is named."""

import itertools

import numpy as np
import polars as pl
import pytest

from scanner import results
from scanner.audit.statistics.hits import DEEP_THRESHOLDS, THRESHOLDS, critical_scores
from scanner.controls.controls import FAMILIES
from scanner.controls.decoys import text_observer
from scanner.controls.decoys.draws import Decoys
from scanner.controls.decoys.text_observer import STRATA
from tests.support.audited_scan import Key, make, pieces, scan

PARTS = 10
DRAW = 2
"""A draw of decoys. In one of five draws, 0, sound parts hit so often that the whole alarms beside the sick part."""


@pytest.fixture(scope="module")
def texts(human_texts) -> list[str]:
    """Texts of 25 words, and one in ten of 70."""
    short, long = pieces(human_texts, 25, 3600), pieces(human_texts, 70, 400)
    return [text for tenth in zip(*(short[i::9] for i in range(9)), long, strict=False) for text in tenth]


def wrong(audit) -> set[tuple]:
    return {(row["kind"], row["stratum"]) for row in audit.rows if row["verdict"] == "too small"}


def test_strata_of_a_kind_add_up_to_all_decoys(tmp_path, texts):
    plan = make(tmp_path, texts[:300], Key(20), Key(1))
    audit = scan(plan, parts=3)
    assert audit.state == "no alarm"
    counts = results.audit_counts(plan.results).collect()
    sums = ("tests", "hits", "expected", "hits_squared", "hits_times_expected", "expected_squared")
    for kind in STRATA:
        parts = counts.filter(pl.col("kind") == kind)
        assert parts["stratum"].null_count() == 0
        of_kind = "decoy_all" if "all" in kind else "decoy"
        of_all = counts.filter(pl.col("kind") == of_kind)
        for threshold in DEEP_THRESHOLDS if of_kind == "decoy_all" else THRESHOLDS:
            own, whole = (rows.filter(threshold=threshold).select(sums).sum().row(0) for rows in (parts, of_all))
            assert own == pytest.approx(whole)
            assert own[0] > 250
    errors = {row["kind"]: row["family_error"] for row in audit.rows}
    assert {errors[kind] for kind in ("decoy", "decoy_all", "reserved", *STRATA)} == {1e-6 / FAMILIES}
    assert len({*counts.filter(kind="decoy_length")["stratum"]}) > 2


def test_one_sick_host_is_lost_in_the_whole_and_seen_by_itself(tmp_path, texts, monkeypatch):
    """The sick host's p-values are p^1.9."""
    number = itertools.count()
    observe, p = text_observer.DecoyObserver.observe, text_observer.log10_p_best

    def elsewhere(self, *batch) -> None:
        host = f"host-{next(number) % PARTS}"
        monkeypatch.setattr(text_observer.platform, "node", lambda: host)
        observe(self, *batch)

    plan = make(tmp_path, texts, Key(1))
    monkeypatch.setattr(text_observer.DecoyObserver, "observe", elsewhere)
    monkeypatch.setattr(
        text_observer, "log10_p_best", lambda *a: p(*a) * (1.9 if text_observer.platform.node() == "host-7" else 1)
    )
    number = itertools.count()
    audit = scan(plan, parts=PARTS, draw=DRAW)
    assert audit.state == "alarm"
    assert wrong(audit) == {("decoy_host", "host-7")}
    assert "p-values are too small for host host-7" in audit.advice
    assert "`brickscan selftest` there" in audit.advice


@pytest.mark.costly
def test_p_of_long_texts_that_is_a_little_too_small_is_seen_under_all_messages(tmp_path, texts, monkeypatch):
    """p × 0.7 of 64 tokens and more, one text in ten: 400 documents, and 3,200,000 pairs of group and user."""
    key = Key(400, format="gumbel-v3", groups=20)
    assert scan(make(tmp_path, texts, key), "sound").state == "no alarm"
    critical = Decoys.critical

    def of_long(self, law, scored):
        eased = critical_scores(law, np.unique(scored), np.array(DEEP_THRESHOLDS) / 0.7).critical[
            np.unique(scored, return_inverse=True)[1]
        ]
        return np.where((scored >= 64)[:, None], eased, critical(self, law, scored))

    monkeypatch.setattr(Decoys, "critical", of_long)
    audit = scan(make(tmp_path / "wrong", texts, key), "wrong")
    assert audit.state == "alarm"
    assert ("decoy_all_length", "64-127") in wrong(audit)


def test_one_wrong_length_is_lost_in_the_whole_and_seen_by_itself(tmp_path, texts, monkeypatch):
    p = text_observer.log10_p_best

    def of_long(law, score, scored, messages):
        return p(law, score, scored, messages) * np.where((scored >= 64) & (scored < 128), 1.6, 1.0)

    monkeypatch.setattr(text_observer, "log10_p_best", of_long)
    audit = scan(make(tmp_path, texts, Key(1)), draw=DRAW)
    assert audit.state == "alarm"
    assert wrong(audit) == {("decoy_length", "64-127")}
    assert "p-values are too small for texts of scored length 64-127" in audit.advice
