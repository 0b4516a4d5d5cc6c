"""Scores of a text's runs and parts add up to the score of the whole text, by the slow path of its format."""

import numpy as np
import pytest

from scanner.detection.open_plan import open_keys
from scanner.evidence.explanation import RUN_STRENGTHS, Omissions, ScoreRun, evidence_of_text
from scanner.registry import check_secret, load_registry
from scanner.text import load_tokenizer, sha256_file
from scanner.text.quoting import TextPart
from scanner.watermark.formats import format_of
from scanner.watermark.native.format import GumbelFormat3
from tests import reference3
from tests.support.two_keys import TOKENIZER, message_of


@pytest.fixture(scope="module", params=["green", "gum"])
def opened(request, registry):
    (key,) = (key for key in load_registry(registry).keys if key.key_id == request.param)
    (test,) = open_keys(registry, [key], fast=False)
    return registry, key, test


def weighed(opened, text, parts=(), run=8, dedup="ngram"):
    registry, key, test = opened
    message = message_of(registry, key.key_id, "alice")
    return evidence_of_text(
        test.watermark, test.tokenizer.reference, text, message, key.messages, Omissions(dedup), parts, run
    )


@pytest.mark.parametrize("dedup", ["ngram", "context", "none"])
def test_each_token_adds_what_the_slow_path_says(opened, marked, dedup):
    """Each run is one token: scores that the law has for the runs' p-values add up to the slow path's score."""
    registry, key, test = opened
    text = marked(message_of(registry, key.key_id, "alice"), 60, 1) + " is said again" * 5
    found = weighed(opened, text, run=1, dedup=dedup)
    ids = test.tokenizer.reference.encode([text]).ids
    proof = format_of(key).proof(check_secret(registry, key))
    scored, (score,) = proof.scores(ids, [message_of(registry, key.key_id, "alice")], dedup)
    assert (found.tokens, found.scored) == (len(ids), scored) == (len(ids), len(found.runs))
    assert found.score == pytest.approx(score, rel=1e-12)
    assert found.tokens == found.scored + found.repeats + found.unscored
    if format_of(key).law().discrete:  # γ = 1/4: a green token has p = 1/4
        assert sum(run.log10_p < -0.5 for run in found.runs) == score
    else:  # p = exp(−score) for one exponential variable
        assert sum(-run.log10_p * np.log(10) for run in found.runs) == pytest.approx(score, rel=1e-9)


def test_runs_stand_where_their_tokens_do(opened, marked):
    text = marked(message_of(opened[0], opened[1].key_id, "alice"), 60, 1)
    found = weighed(opened, text)
    assert sum(run.scored for run in found.runs) == found.scored
    assert found.runs[-1].end == len(text)
    assert all(a.end - 1 <= b.begin for a, b in zip(found.runs, found.runs[1:], strict=False))
    assert [run.scored for run in found.runs[:-1]] == [8] * (len(found.runs) - 1)


@pytest.mark.parametrize("opened", ["green"], indirect=True)  # the key of `marked`
def test_a_quotation_is_told_from_own_words(registry, opened, marked, plain):
    """As in a thread where somebody quotes marked text and writes a reply."""
    quoted = marked(message_of(registry, "green", "alice"), 90, 1)
    own = plain(90, 3)
    text = f"> {quoted}\n{own}"
    cut = text.index("\n") + 1
    found = weighed(opened, text, [TextPart("quoted", 0, cut), TextPart("own", cut, len(text))])
    said = {part.kind: part for part in found.parts}
    assert said["quoted"].log10_p_any < -30 < said["own"].log10_p_any
    assert said["own"].log10_p_any > -2
    assert said["quoted"].scored + said["own"].scored == found.scored
    assert said["quoted"].log10_p == pytest.approx(said["quoted"].log10_p_any)
    assert said["own"].log10_p >= said["own"].log10_p_any


def test_a_part_without_tokens_says_nothing(opened, plain):
    text = "> \n" + plain(60, 2)
    found = weighed(opened, text, [TextPart("quoted", 0, 0), TextPart("own", 0, len(text))])
    assert {part.kind: (part.scored > 0, part.log10_p_any == 0) for part in found.parts}["quoted"] == (False, True)


def test_text_that_is_too_short_has_no_runs(opened):
    found = weighed(opened, "")
    assert (found.tokens, found.scored, found.score, found.runs) == (0, 0, 0.0, [])


def test_levels_follow_p():
    steps = [0.0, *RUN_STRENGTHS, -9.0, float("nan")]
    assert [ScoreRun(0, 1, 8, 0, p).level for p in steps] == [0, 1, 2, 3, 4, 4, 0]


def test_what_a_message_reads_alone_is_that_of_the_slow_path():
    """For a key with groups; messages of other keys share nothing."""
    text = "Whoever reads this reads a text of some length, in which windows are many and nothing is marked. " * 2
    secret, groups, message = bytes(range(32)), 40, 777
    tokenizer = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER), fast=False).reference
    slow = reference3.Method("gumbel", secret, 2, groups=groups)
    steps = [s for s in slow.steps(tokenizer.encode([text]).ids.tolist()) if not s.of_group]
    own = slow.log10_p(slow.sum_of(steps, slow.number(message, of_group=False)), len(steps))
    forms = [GumbelFormat3(window=2, groups=of_form, beacon="00" * 32) for of_form in (groups, None)]
    for form, expected in zip(forms, (own, None), strict=True):
        found = evidence_of_text(form.open(secret), tokenizer, text, message, groups**2, Omissions("ngram"), ())
        if expected is None:
            assert found.user_evidence is None
        else:
            assert found.user_evidence[:2] == (len(steps), groups)
            assert found.user_evidence.log10_p == pytest.approx(expected, abs=1e-9)
