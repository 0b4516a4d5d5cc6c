"""What runs and parts of a text say adds up to what the whole text says, by the slow path of its format."""

import numpy as np
import pytest

from scanner.detection.scan_plan import open_keys
from scanner.evidence.quoting import Part
from scanner.evidence.weighing import LEVELS, Run, weigh
from scanner.registry import check_secret, load_registry
from scanner.watermark.formats import format_of
from tests.support.two_keys import message_of


@pytest.fixture(scope="module", params=["green", "gum"])
def opened(request, registry):
    (key,) = (key for key in load_registry(registry).keys if key.key_id == request.param)
    (test,) = open_keys(registry, [key], fast=False)
    return registry, key, test


def weighed(opened, text, parts=(), run=8, dedup="ngram"):
    registry, key, test = opened
    message = message_of(registry, key.key_id, "alice")
    return weigh(test.watermark, test.tokenizer.reference, text, message, key.messages, dedup, parts, run)


@pytest.mark.parametrize("dedup", ["ngram", "context", "none"])
def test_each_token_adds_what_the_slow_path_says(opened, marked, dedup):
    """Runs of one token: their scores are the law's inverse of p, and add up to the score of the slow path."""
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
    else:  # p of one exponential variable is its exponential
        assert sum(-run.log10_p * np.log(10) for run in found.runs) == pytest.approx(score, rel=1e-9)


def test_runs_stand_where_their_tokens_do(opened, marked):
    text = marked(message_of(opened[0], opened[1].key_id, "alice"), 60, 1)
    found = weighed(opened, text)
    assert sum(run.scored for run in found.runs) == found.scored
    assert found.runs[-1].end == len(text)
    assert all(a.end - 1 <= b.begin for a, b in zip(found.runs, found.runs[1:], strict=False))
    assert [run.scored for run in found.runs[:-1]] == [8] * (len(found.runs) - 1)


@pytest.mark.parametrize("opened", ["green"], indirect=True)  # under which texts are marked
def test_a_quotation_is_told_from_own_words(registry, opened, marked, plain):
    """The case of a thread: somebody quotes marked text and writes a reply."""
    quoted = marked(message_of(registry, "green", "alice"), 90, 1)
    own = plain(90, 3)
    text = f"> {quoted}\n{own}"
    cut = text.index("\n") + 1
    found = weighed(opened, text, [Part("quoted", 0, cut), Part("own", cut, len(text))])
    said = {part.kind: part for part in found.parts}
    assert said["quoted"].log10_p_any < -30 < said["own"].log10_p_any
    assert said["own"].log10_p_any > -2
    assert said["quoted"].scored + said["own"].scored == found.scored
    assert said["quoted"].log10_p == pytest.approx(said["quoted"].log10_p_any)
    assert said["own"].log10_p >= said["own"].log10_p_any


def test_a_part_without_tokens_says_nothing(opened, plain):
    text = "> \n" + plain(60, 2)
    found = weighed(opened, text, [Part("quoted", 0, 0), Part("own", 0, len(text))])
    assert {part.kind: (part.scored > 0, part.log10_p_any == 0) for part in found.parts}["quoted"] == (False, True)


def test_text_that_is_too_short_has_no_runs(opened):
    found = weighed(opened, "")
    assert (found.tokens, found.scored, found.score, found.runs) == (0, 0, 0.0, [])


def test_levels_follow_p():
    steps = [0.0, *LEVELS, -9.0, float("nan")]
    assert [Run(0, 1, 8, 0, p).level for p in steps] == [0, 1, 2, 3, 4, 4, 0]
