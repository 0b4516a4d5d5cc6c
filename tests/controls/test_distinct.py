"""Decoys are checked to be distinct: equal keys are told from unequal ones in every format, and a scan sees them."""

from itertools import combinations

import polars as pl
import pytest

from scanner import results
from scanner.controls.decoys.distinct import DECOY_KEYS, DECOYS_A_PIECE, PROBES, chance_of_alike, draws_of
from scanner.controls.decoys.draws import Decoys
from scanner.controls.decoys.whole_texts import WholeTextDecoys
from scanner.controls.scan_audit import ScanAudit
from scanner.watermark.format import DrawsKeys
from scanner.watermark.formats import FORMATS, make_format
from schemas.words import AuditState, AuditVerdict
from tests.support.audited_scan import Key, make, pieces, scan

PARAMETERS = {
    "greenlist": [{"window": 4, "gamma": "1/4"}, {"window": 0, "gamma": "3/8"}],
    "greenlist-v3": [{"window": 4, "gamma": "1/4", "beacon": "5a" * 32, "groups": groups} for groups in (None, 9)],
    "gumbel": [{"window": 4}, {"window": 0}],
    "gumbel-v3": [{"window": 4, "beacon": "5a" * 32, "groups": groups} for groups in (None, 9)],
}
"""Of formats that do not stand as they are."""

DRAWING = [
    form
    for name in FORMATS
    if issubclass(FORMATS[name], DrawsKeys)
    for form in (make_format(name, parameters) for parameters in PARAMETERS.get(name, [{}]))
    if form.law() is not None
]
KEYS = (Key(1), Key(400), Key(1, format="gumbel-v3"))


@pytest.mark.parametrize("form", DRAWING, ids=lambda form: form.label())
def test_equal_keys_draw_alike_and_no_others_do(form):
    """40 keys are 780 pairs, which draw alike with a chance of 2e-7 in all formats together."""
    marks = [form.open(form.draw_key(bytes([number]) * 32)) for number in range(40)]
    draws = draws_of(marks)
    assert len(set(draws)) == 40
    assert draws_of([marks[3], marks[5], marks[3]]) == [draws[3], draws[5], draws[3]]
    assert draws_of(marks[7:8]) == draws[7:8]
    assert 2.0**-128 <= chance_of_alike(form) < 1e-9


def test_chance_of_alike_is_that_of_keys_and_of_draws():
    green, sglang = (next(form for form in DRAWING if form.name == name) for name in ("greenlist", "sglang-one-key"))
    assert chance_of_alike(green) == pytest.approx((0.25**2 + 0.75**2) ** PROBES)
    assert chance_of_alike(sglang) == pytest.approx(2**-32)


def of_decoy_keys(audit: ScanAudit) -> list[dict]:
    return [row for row in audit.rows if row["kind"] == DECOY_KEYS]


def test_sound_decoys_are_distinct_and_pairs_are_those_of_a_plain_loop(tmp_path, human_texts):
    """Three pieces: each compares its first decoys, and its least draw is held against those of the others."""
    plan = make(tmp_path, pieces(human_texts, 30, 300), *KEYS)
    audit = scan(plan, parts=3)
    assert audit.state == AuditState.NO_ALARM
    rows = results.audit_counts(plan.results).filter(pl.col("kind") == DECOY_KEYS).collect()
    for row in of_decoy_keys(audit):
        part = rows.filter(label=row["label"], messages=row["messages"])
        assert len(part) == 6  # of single texts and of whole decisions
        assert part["tests"].max() == len([*combinations(range(DECOYS_A_PIECE), 2)])
        assert (row["hits"], row["tests"]) == (0, part["tests"].sum() + len([*combinations(range(6), 2)]))
        assert row["threshold"] == pytest.approx(row["expected"] / row["tests"])
    assert {(row["label"], row["messages"]) for row in of_decoy_keys(audit)} == {
        ("greenlist;h=4;gamma=1/4", 1), ("greenlist;h=4;gamma=1/4", 400), ("gumbel-v3;h=4;seeds=8", 1),
    }  # fmt: skip


def share_one_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Decoys, "seed", lambda *_: bytes(32))
    patch.setattr(WholeTextDecoys, "seed", lambda *_: bytes(32))


@pytest.mark.parametrize("parts", [1, 20])
def test_decoys_that_share_one_key_are_seen(tmp_path, human_texts, monkeypatch, parts):
    """Within a piece, and where each piece has one decoy of a text: pieces are held against each other."""
    texts = pieces(human_texts, 60, 20)
    plan = make(tmp_path, texts, *KEYS)
    share_one_key(monkeypatch)
    audit = scan(plan, parts=parts)
    assert audit.state == AuditState.ALARM
    assert {row["kind"] for row in audit.rows if row["verdict"] == AuditVerdict.TOO_SMALL} == {DECOY_KEYS}
    # decoys of texts share one key, and those of whole decisions another one
    assert all(row["hits"] > 0.4 * row["tests"] for row in of_decoy_keys(audit))
    alarms = [alarm for alarm in audit.alarms() if alarm.endswith("Test: decoy_keys greenlist;h=4;gamma=1/4 ngram")]
    assert any(alarm.startswith("decoy keys that should differ draw alike: ") for alarm in alarms)
    assert "keys that should differ draw alike, so the p-values of this scan were not tested" in audit.advice


@pytest.mark.parametrize("format_name", ["greenlist", "gumbel-v3"])
def test_one_decoy_that_comes_twice_is_seen(tmp_path, human_texts, monkeypatch, format_name):
    """The fifth text of 20 has the decoy of the fourth: one of 190 pairs."""
    plan, seed, seeds = make(tmp_path, pieces(human_texts, 60, 20), Key(1, format=format_name)), Decoys.seed, []

    def fifth_as_fourth(self, piece, digest):
        seeds.append(seed(self, piece, digest))
        return seeds[3] if len(seeds) == 5 else seeds[-1]

    monkeypatch.setattr(Decoys, "seed", fifth_as_fourth)
    audit = scan(plan)
    (row,) = of_decoy_keys(audit)
    assert (row["hits"], row["tests"], audit.state) == (1, 190 + 1, AuditState.ALARM)
