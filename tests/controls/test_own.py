"""The second p-value that names need, under decoys: it holds, and one that pays for too few users is caught."""

import numpy as np
import pytest

from scanner.controls.scan_audit import ScanAudit
from scanner.watermark.native.version3_marks import Version3Mark
from schemas.words import AuditState
from tests.support.audited_scan import Key, make, pieces, scan

pytestmark = pytest.mark.usefixtures("opened_once")
KEYS = (Key(400, format="greenlist-v3", groups=20), Key(400, format="gumbel-v3", groups=20))
SPANS = "spans = { windows = true }"


def own_rows(audit: ScanAudit) -> list[dict]:
    return [row for row in audit.rows if row["kind"] == "decoy_own"]


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("more", ["", SPANS])
def test_it_holds_and_is_reached_as_often_as_its_law_says(tmp_path, human_texts, more):
    """Texts where one group is looked into, most of 2,000; at 0.1 a count is within five standard deviations."""
    texts = pieces(human_texts, 60, 2_000, 20)
    audit = scan(make(tmp_path, texts, *KEYS, more=more))
    assert audit.state == AuditState.NO_ALARM
    largest = [row for row in own_rows(audit) if row["threshold"] == 0.1]
    assert {(row["method"], row["messages"]) for row in largest} == {("greenlist-v3", 20), ("gumbel-v3", 20)}
    for row in largest:
        assert len(texts) / 2 < row["tests"] < len(texts)
        assert abs(row["hits"] - row["expected"]) < 5 * np.sqrt(row["expected"])
    (gumbel,) = (row for row in largest if row["method"] == "gumbel-v3")
    assert gumbel["expected"] == pytest.approx(gumbel["tests"] / 10)


@pytest.mark.costly
@pytest.mark.seconds
def test_one_that_pays_for_no_other_user_of_a_group_raises_the_alarm(tmp_path, human_texts, monkeypatch):
    in_groups = Version3Mark._in_best_groups

    def of_one_user(self, *arguments):
        best = in_groups(self, *arguments)
        return best._replace(user_evidence=best.user_evidence._replace(messages=1))

    monkeypatch.setattr(Version3Mark, "_in_best_groups", of_one_user)
    audit = scan(make(tmp_path, pieces(human_texts, 60, 500, 20), *KEYS))
    assert audit.state == AuditState.ALARM
    assert {row["kind"] for row in audit.rows if row["verdict"] == "too small"} == {"decoy_own"}
    assert any(alarm.endswith("Test: decoy_own gumbel-v3;h=4;groups=20;seeds=8 ngram") for alarm in audit.alarms())
