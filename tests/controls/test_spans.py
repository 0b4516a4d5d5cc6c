"""The law of spans in the audit of a scan: it holds, and overlapping windows counted as one look are caught."""

import numpy as np
import polars as pl
import pytest

from scanner.controls.decoys import text_observer
from scanner.controls.decoys.draws import open_decoys
from scanner.detection.attribution import BatchOrigin
from scanner.results.transactions import read_whole
from scanner.watermark.rule import corrected
from schemas.words import AuditState
from tests.support.audited_scan import Key, make, pieces, scan

pytestmark = pytest.mark.usefixtures("opened_once")
SPANS = "spans = { windows = true }"
LOOKS = "spans = { windows = true, segments = true }"
KEYS = (Key(1, format="greenlist-v3"), Key(40, format="gumbel-v3"))


def scanned(folder, texts: list[str], more: str = SPANS):
    plan = make(folder, texts, *KEYS, more=more)
    audit = scan(plan)
    counts = read_whole(plan.results, "audit_counts").filter(pl.col("kind") == "decoy_spans").collect()
    return audit, counts


@pytest.mark.costly
@pytest.mark.seconds
def test_the_law_of_spans_is_tested_in_every_scan_and_holds(tmp_path, human_texts):
    """2,400 texts, scored under one message of a key and under all of them."""
    audit, counts = scanned(tmp_path, pieces(human_texts, 60, 2_400, 20))
    assert audit.state == AuditState.NO_ALARM
    assert set(counts["label"].str.split(";").list.first()) == {"greenlist-v3", "gumbel-v3"}
    assert set(counts["messages"]) == {1, 40}
    judged = [row for row in audit.rows if row["kind"] == "decoy_spans"]
    assert {row["verdict"] for row in judged} <= {"holds", "conservative", "undecided"}
    (often,) = (row for row in judged if row["label"] == "gumbel-v3;h=4;seeds=8" and row["threshold"] == 0.1)
    assert often["hits"] > often["tests"] / 300


@pytest.mark.seconds
def test_windows_counted_as_one_look_raise_the_alarm(tmp_path, human_texts, monkeypatch):
    monkeypatch.setattr(
        text_observer, "log10_in_document", lambda log10_p, looks, messages: corrected(log10_p, messages)
    )
    audit, _ = scanned(tmp_path, pieces(human_texts, 60, 600, 20))
    assert audit.state == AuditState.ALARM
    wrong = {row["kind"] for row in audit.rows if row["verdict"] == "too small"}
    assert wrong == {"decoy_spans"}


@pytest.mark.costly
@pytest.mark.seconds
def test_segments_counted_as_one_look_raise_the_alarm_and_else_do_not(tmp_path, human_texts, monkeypatch):
    """600 texts of six paragraphs each; the best paragraph counts."""
    paragraphs = pieces(human_texts, 35, 3_600, 20)
    texts = ["\n\n".join(paragraphs[i : i + 6]) for i in range(0, len(paragraphs), 6)]
    audit, counts = scanned(tmp_path / "right", texts, more="spans = { segments = true }")
    assert audit.state == AuditState.NO_ALARM
    assert counts.filter(pl.col("threshold") == 0.1)["hits"].sum() > 20
    monkeypatch.setattr(
        text_observer, "log10_in_document", lambda log10_p, looks, messages: corrected(log10_p, messages)
    )
    audit, _ = scanned(tmp_path / "wrong", texts, more="spans = { segments = true }")
    assert audit.state == AuditState.ALARM
    assert {row["kind"] for row in audit.rows if row["verdict"] == "too small"} == {"decoy_spans"}


def test_nothing_of_spans_is_counted_where_they_are_off(tmp_path, human_texts):
    _, counts = scanned(tmp_path, pieces(human_texts, 60, 20), more="")
    assert counts.is_empty()


@pytest.mark.costly
def test_decoys_of_a_batch_count_what_each_counts_by_itself(tmp_path, human_texts, monkeypatch):
    """Texts with windows and segments, each under a key of its own, all in one pass and one after another."""
    score_one, compared = text_observer.DecoyObserver._score_one, []

    def both(counts, scores, places, *others):
        score_one(counts_of[0], scores, places, *others)
        for place in places[:, None]:
            score_one(counts_of[1], scores, place, *others)
        compared.append(len(places))
        score_one(counts, scores, places, *others)

    keys = (Key(1, format="greenlist-v3"), Key(1, format="gumbel-v3"))
    plan = make(
        tmp_path, ["\n\n".join(pieces(human_texts, 40, 300, 20)[i : i + 2]) for i in range(299)], *keys, more=LOOKS
    )
    counts_of = [text_observer.DecoyObserver(open_decoys(plan), BatchOrigin("", "", ""), b"") for _ in range(2)]
    monkeypatch.setattr(text_observer.DecoyObserver, "_score_one", both)
    scan(plan)
    assert max(compared) > 20
    together, apart = (counts._sums for counts in counts_of)
    assert together.keys() == apart.keys()
    assert {subject.kind for subject in together} >= {"decoy", "decoy_spans"}
    for subject, sums in together.items():
        assert sums.hits.tolist() == apart[subject].hits.tolist()
        assert np.stack([*sums.columns().values()]) == pytest.approx(np.stack([*apart[subject].columns().values()]))
