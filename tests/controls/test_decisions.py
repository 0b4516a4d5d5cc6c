"""Whole decisions under decoys: sound ones stay below what is expected, and each correction that is dropped is seen."""

import numpy as np
import polars as pl
import pytest

from scanner import error_shares, results
from scanner.audit.statistics.hits import THRESHOLDS, ClusterSums
from scanner.audit.statistics.judgement import counts, judge
from scanner.controls.decoys.whole_texts import (
    DECISION,
    DECISION_NORMALISED,
    DECISION_WHOLE,
    TEXTS_A_DRAW,
    WholeTextDecoys,
)
from scanner.detection.detector import BatchScores, Detector, TextForms
from scanner.detection.open_plan import open_detector
from scanner.error_shares import NORMALISED, ErrorShares
from scanner.looks.normalising import normalise
from scanner.looks.parts import search
from scanner.watermark import log10_any_of, rule
from schemas.registry import MasterKey
from schemas.words import AuditState, AuditVerdict
from tests.support.audited_scan import Key, make, pieces, scan

ALL_LOOKS = "variants = { normalised = true }\nspans = { windows = true }"
KEYS = (Key(20, format="gumbel-v3"), *[Key(1, format="gumbel-v3")] * 2)
ERROR = 1e-3


def multiply_normalised(patch: pytest.MonkeyPatch, factor: float) -> None:
    """p-values of normalised texts are so many times what they should be."""
    score = Detector._score

    def wrong(self: Detector, tokens, segments, forms: TextForms) -> BatchScores:
        scores = score(self, tokens, segments, forms)
        if forms.variant != NORMALISED:
            return scores
        findings = [
            of_key._replace(log10_p_global=of_key.log10_p_global + np.log10(factor)) for of_key in scores.findings
        ]
        return scores._replace(findings=findings)

    patch.setattr(Detector, "_score", wrong)


@pytest.fixture(scope="module")
def many_texts(human_texts) -> list[str]:
    """2,400 texts of 30 words in random order, every second with doubled spaces, which normalising changes."""
    words, random = np.array(sorted({*" ".join(human_texts).split()})), np.random.default_rng(5)
    return [("  " if i % 2 else " ").join(random.choice(words, 30)) for i in range(2_400)]


@pytest.fixture(scope="module")
def texts(many_texts) -> list[str]:
    return many_texts[:800]


def counted(folder, texts: list[str], more: str = ALL_LOOKS, kind: str = DECISION) -> ClusterSums:
    """Hits of all texts, in groups that have decoys of their own."""
    plan = make(folder, ["some text"], *KEYS, more=more)
    whole_texts, detector = WholeTextDecoys(bytes(range(32)), plan), open_detector(plan)
    groups = [
        {b"%d" % i: texts[i] for i in range(begin, min(begin + TEXTS_A_DRAW, len(texts)))}
        for begin in range(0, len(texts), TEXTS_A_DRAW)
    ]
    first, *others = [
        whole_texts.count_hits(detector, whole_texts.marks(whole_texts.seed(b"piece", group)), group)[kind]
        for group in groups
    ]
    for sums in others:
        first = first.plus(sums)
    return first


def too_small(sums: ClusterSums) -> bool:
    return any(said.verdict == AuditVerdict.TOO_SMALL for said in judge(counts(sums), ERROR))


@pytest.mark.costly
def test_sound_decisions_reach_much_of_what_is_expected_and_no_more(tmp_path, texts):
    """At 0.1, 800 texts are expected to hit 80 times at most, and hit half as often at least."""
    sums = counted(tmp_path, texts)
    assert not too_small(sums)
    assert 70 < sums.expected[0] < 80.001
    assert sums.expected[0] / 2 < sums.hits[0] < sums.expected[0] + 5 * np.sqrt(sums.expected[0])
    assert (sums.tests[0], sums.clusters[0]) == (800, -(-800 // TEXTS_A_DRAW))


def _no_variants(self: ErrorShares, key: MasterKey, keys_tested: int) -> np.ndarray:
    return np.full((2, 2, 2), key.tested_among(keys_tested) / self.document)


VARIANTS, SPANS = ALL_LOOKS.splitlines()
DROPPED = {
    "messages": (ALL_LOOKS, rule, "corrected", lambda p, _, keys=1: log10_any_of(p, keys)),
    "keys": (ALL_LOOKS, MasterKey, "tested_among", lambda self, keys_tested: 1),
    "variants": (VARIANTS, ErrorShares, "corrections", _no_variants),
    "units": ("weights = { document = 0.2 }", error_shares, "exact_fraction", lambda weight: 1),
    "parts": (SPANS, search, "log10_in_document", lambda p, looks, messages: log10_any_of(p, messages)),
    "messages of parts": (SPANS, search, "log10_in_document", lambda p, looks, messages: log10_any_of(p, looks)),
}


@pytest.mark.costly
@pytest.mark.parametrize("correction", DROPPED)
def test_each_correction_that_is_dropped_is_seen(tmp_path, many_texts, monkeypatch, correction):
    """In 38 clusters: with 13, a rate of twice what is expected is 3 to 4 standard errors away."""
    (looks, *fault), texts = DROPPED[correction], many_texts
    if correction == "variants":  # a text that is its own normal form has one variant, whose weight is 1
        texts = ["  ".join(text.split()) for text in texts]
    monkeypatch.setattr(*fault)
    assert too_small(counted(tmp_path, texts, looks))


@pytest.mark.costly
@pytest.mark.seconds
def test_a_factor_of_two_between_two_keys_is_seen_by_whole_texts_where_all_looks_hide_it(
    tmp_path, human_texts, monkeypatch
):
    """3,200 texts that are their own normal form: of two sound keys, 160 whole texts are expected to hit at 0.1."""
    own_form = {word for word in " ".join(human_texts).split() if normalise(f"a {word} a") == f"a {word} a"}
    words, random = np.array(sorted(own_form)), np.random.default_rng(6)
    texts = [" ".join(random.choice(words, 30)) for _ in range(3200)]
    monkeypatch.setattr(f"{__name__}.KEYS", (Key(1, format="gumbel-v3"),) * 2)
    sound = counted(tmp_path / "sound", texts, kind=DECISION_WHOLE)
    assert not too_small(sound)
    assert abs(sound.hits[0] - sound.expected[0]) < 5 * np.sqrt(sound.expected[0])
    monkeypatch.setattr(MasterKey, "tested_among", lambda self, keys_tested: 1)
    assert not too_small(counted(tmp_path / "all", texts))
    assert too_small(counted(tmp_path / "whole", texts, kind=DECISION_WHOLE))


@pytest.mark.costly
@pytest.mark.seconds
def test_normalised_texts_whose_p_is_a_tenth_are_seen(tmp_path, texts, monkeypatch):
    """Without marked text, so that no proof can see it. Words in random order have another normal form."""
    sound = counted(tmp_path / "sound", texts, kind=DECISION_NORMALISED)
    assert not too_small(sound)
    assert sound.tests[0] == len(texts)
    assert sound.hits[0] < sound.expected[0] + 5 * np.sqrt(sound.expected[0])
    multiply_normalised(monkeypatch, 0.1)
    assert too_small(counted(tmp_path / "wrong", texts, kind=DECISION_NORMALISED))


@pytest.mark.costly
def test_a_scan_that_drops_a_correction_ends_in_alarm_which_other_controls_do_not_raise(tmp_path, texts, monkeypatch):
    """Keys are corrected for as if each were the only one: p-values of one key at a time are as they should be."""
    keys = [Key(1, format="gumbel-v3")] * 4
    sound = scan(make(tmp_path / "sound", texts, *keys))
    assert sound.state == AuditState.NO_ALARM
    monkeypatch.setattr(MasterKey, "tested_among", lambda self, keys_tested: 1)
    audit = scan(make(tmp_path / "wrong", texts, *keys))
    assert audit.state == AuditState.ALARM
    assert {row["kind"] for row in audit.rows if row["verdict"] == AuditVerdict.TOO_SMALL} == {DECISION}
    assert audit.alarms()[0].endswith("Test: decision all ngram")


def test_counts_enter_with_the_shard_and_a_text_votes_once_in_it(tmp_path, human_texts):
    texts = pieces(human_texts, 30, 90)
    plan = make(tmp_path, [*texts, *texts], *KEYS[:1])
    scan(plan)
    rows = results.audit_counts(plan.results).filter(pl.col("kind") == DECISION).collect()
    assert rows["threshold"].to_list() == [*THRESHOLDS]
    assert set(rows["tests"]) == {len(texts)}
    assert set(rows["texts"]) == {-(-len(texts) // TEXTS_A_DRAW)}  # groups of one decoy
    assert (rows["shard_id"].n_unique(), set(rows["messages"])) == (1, {20})


def test_counts_are_those_of_a_plain_loop(tmp_path, texts):
    """One key, whole texts alone: the best of its messages, each scored by itself, corrected in plain floats."""
    plan = make(tmp_path, ["some text"], KEYS[0])
    whole_texts, detector = WholeTextDecoys(bytes(range(32)), plan), open_detector(plan)
    group = {b"%d" % i: text for i, text in enumerate(texts[:TEXTS_A_DRAW])}
    marks = whole_texts.marks(b"piece" + b"".join(group))
    sums = whole_texts.count_hits(detector, marks, group)[DECISION]
    (mark,) = marks.values()
    (test,) = detector._keys
    hits = np.zeros(len(THRESHOLDS))
    for text in group.values():
        tokens = test.tokenizer.encode([text])
        positions = mark.rule.positions(tokens, "ngram")
        score = max(float(mark.score(tokens, positions, message)[0]) for message in range(20))
        p = 1 - (1 - 10 ** float(mark.law.log10_p(score, positions.scored[0]))) ** 20
        hits += p <= np.array(THRESHOLDS)
    assert sums.hits.tolist() == hits.tolist()
    assert sums.expected == pytest.approx(TEXTS_A_DRAW * np.array(THRESHOLDS))


def test_a_piece_and_a_secret_draw_texts_and_decoys_of_their_own(tmp_path):
    plan = make(tmp_path, ["some text"], *KEYS[:2], share=0.125)
    digests = [bytes(np.random.default_rng(i).bytes(32)) for i in range(8000)]
    whole_texts, other = WholeTextDecoys(bytes(range(32)), plan), WholeTextDecoys(bytes(32), plan)
    drawn = [
        {*who.drawn(piece, digests).tolist()}
        for who, piece in ((whole_texts, b"a"), (whole_texts, b"b"), (other, b"a"))
    ]
    for some in drawn:
        assert abs(len(some) - 1000) < 5 * 30  # five standard deviations
    assert len(drawn[0] & drawn[1]) < 250
    assert len(drawn[0] & drawn[2]) < 250
    labels = [mark.commitment for who in (whole_texts, other) for mark in who.marks(b"seed").values()]
    assert len({*labels}) == 4  # keys of one format have decoys of their own
    assert repr(whole_texts) == "WholeTextDecoys(2 keys)"
