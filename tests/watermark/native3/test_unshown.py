"""Positions whose seeds were shown are left out, by the rule of scans and by the path of proofs.

The reference (tests/reference3.py) leaves them out position by position.
"""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark.format import LeavesOut
from scanner.watermark.formats import FORMATS
from scanner.watermark.native.known_answers import method_of
from scanner.watermark.positions import WholeWindows, batch_tokens, rule_with_shown
from tests.watermark.native3.known3 import BEACON, SECRET, pair
from tests.watermark.pairs import sum_error
from tests.watermark.strategies import DEDUPS, documents, few

MESSAGES = (0, 3, 399)


def form_of(gamma: str | None, window: int, groups: int | None, seeds: int):
    parameters = {"window": window, "groups": groups, "seeds": seeds, "beacon": BEACON.hex()}
    if gamma is None:
        return FORMATS["gumbel-v3"].model_validate(parameters)
    return FORMATS["greenlist-v3"].model_validate({**parameters, "gamma": gamma})


def buckets_of(shown):
    return np.array(sorted(shown), np.int64)


@few
@given(
    documents,
    st.integers(0, 4),
    st.sampled_from(DEDUPS),
    st.sampled_from(["3/8", None]),
    st.sampled_from([None, 20]),
    st.sets(st.integers(0, 15)),
)
def test_both_paths_leave_out_what_was_shown(docs, window, dedup, gamma, groups, shown):
    groups = groups if window else None
    form = form_of(gamma, window, groups, 4)
    mark = form.open(SECRET)
    assert isinstance(mark, LeavesOut)
    mark, proof = mark.leave_out(buckets_of(shown)), form.proof(SECRET).leave_out(buckets_of(shown))
    plain = pair("gumbel" if gamma is None else "greenlist", window, groups, form._share, 4).plain
    plain.shown = shown
    tokens = batch_tokens(docs)
    positions = mark.rule.positions(tokens, dedup)
    wanted = [plain.steps(doc, dedup) for doc in docs]
    begins = tokens.offsets[:-1].tolist()
    assert positions.index.tolist() == [b + s.place for b, steps in zip(begins, wanted, strict=True) for s in steps]
    assert positions.scored.tolist() == [len(steps) for steps in wanted]
    for message in MESSAGES:
        scores = mark.score(tokens, positions, message).tolist()
        for doc, steps, score in zip(docs, wanted, scores, strict=True):
            of_reference = plain.scores(doc, message, dedup)[0]
            assert abs(score - of_reference) <= sum_error(len(steps), of_reference)
            scored, (slow,) = proof.scores(np.array(doc, np.uint32), [message], dedup)
            assert scored == len(steps)
            assert slow == pytest.approx(of_reference, rel=1e-12)


def test_known_answers_leave_them_out():
    """Documents of the specification, by the marks that scans open, without what they show."""
    documents = json.loads(FORMATS["greenlist-v3"].answers.shipped.read_text())["documents"]
    with_shown = [case for case in documents if case["shown"]]
    assert len(with_shown) > 5
    for case in with_shown:
        mark, tokens = method_of(case), batch_tokens([case["tokens"]])
        left = mark.leave_out(buckets_of(case["shown"]))
        positions = left.rule.positions(tokens, case["dedup"])
        assert positions.scored.tolist() == [case["scored"]]
        assert mark.rule.positions(tokens, case["dedup"]).scored[0] > case["scored"]
        assert left.score(tokens, positions, case["message"])[0] == pytest.approx(case["score"], rel=1e-9)


def test_rules_are_told_apart_by_what_was_shown():
    form = form_of("1/4", 3, None, 4)
    one, other = (form.open(SECRET).leave_out(buckets_of(shown)) for shown in ({1, 5}, {1, 6}))
    again = form.open(bytes(16)).leave_out(buckets_of({1, 5}))
    assert one.rule != other.rule
    assert (one.rule, hash(one.rule)) == (again.rule, hash(again.rule))
    assert form.open(SECRET).leave_out(buckets_of(())).rule == WholeWindows(3) != one.rule
    assert rule_with_shown(one.rule) == WholeWindows(3) == rule_with_shown(WholeWindows(3))
    assert "\\x05" not in repr(one.rule) + repr(one)
    with pytest.raises(TypeError):
        pickle.dumps(one)


def test_a_joined_mark_and_a_copy_keep_the_rule():
    form = form_of("1/4", 3, 20, 4)
    left = form.open(SECRET).leave_out(buckets_of({3}))
    assert left.searched_by(None, "elsewhere").rule == left.rule
    assert left.label == form.label()
    assert (
        not form.proof(SECRET).leave_out(buckets_of(range(16))).scores(np.arange(9, dtype=np.uint32), [0], "ngram")[0]
    )
