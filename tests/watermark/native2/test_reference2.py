"""The reference of version 2 against the known answers that ship with the package."""

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest

import scanner.watermark
from tests import reference, reference2

PACKAGE = Path(scanner.watermark.__file__).parent
KNOWN = json.loads((PACKAGE / "native/known_answers_2.json").read_text(encoding="utf-8"))


def close(actual: float, wanted: float | None) -> bool:
    wanted = -math.inf if wanted is None else wanted
    return actual == wanted or math.isclose(actual, wanted, rel_tol=1e-9, abs_tol=1e-300)


def method_of(case: dict) -> reference2.Method:
    gamma = Fraction(case["gamma"]) if "gamma" in case else None
    return reference2.Method(case["method"], bytes.fromhex(case["secret"]), case["window"], gamma, case["groups"])


def test_it_imports_nothing_of_ours_but_the_reference_of_version_1():
    source = Path(reference2.__file__).read_text(encoding="utf-8")
    lines = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert {line.split()[1] for line in lines} <= {"collections.abc", "dataclasses", "fractions", "tests"}
    assert [line for line in lines if "tests" in line] == ["from tests import reference"]


@pytest.mark.parametrize("case", KNOWN["streams"], ids=lambda case: case["label"])
def test_streams(case):
    secret, label = bytes.fromhex(case["secret"]), case["label"]
    keys = reference2.sub_keys(secret, label)
    assert reference2.commitment(secret, label).hex() == case["commitment"]
    assert (list(keys.chacha), keys.sip.hex()) == (case["chacha_key"], case["sip_key"])
    assert reference.window_nonce(keys, case["window"]) == case["nonce"]
    assert ("groups=" in label and reference2.is_group_step(case["nonce"])) == case["group_step"]
    for word in case["words"]:
        got = reference2.stream_word(keys, case["nonce"], word["planes"], word["plane"], word["i"])
        assert got == word["word"], word


def test_the_labels_of_the_known_answers_are_those_that_a_method_makes():
    made = {
        reference2.label("greenlist", 4, Fraction(1, 4)),
        reference2.label("greenlist", 4, Fraction(1, 4), 1026),
        reference2.label("gumbel", 4),
        reference2.label("gumbel", 4, groups=32445),
    }
    assert {case["label"] for case in KNOWN["streams"]} == made


def test_documents():
    for number, case in enumerate(KNOWN["documents"]):
        method = method_of(case)
        steps = method.steps(case["tokens"], case["dedup"])
        score, score_group = method.scores(case["tokens"], case["message"], case["dedup"])
        assert len(steps) == case["scored"], number
        assert sum(step.of_group for step in steps) == case["scored_group"], number
        assert close(score, case["score"]), number
        assert close(score_group, case["score_group"]), number
        assert close(method.log10_p(score, len(steps)), case["log10_p"]), number


@pytest.mark.parametrize("case", KNOWN["searches"], ids=lambda case: f"{case['method']}-{case['groups']}")
def test_searches(case):
    method = method_of(case)
    steps = method.steps(case["tokens"], case["dedup"])
    assert (len(steps), sum(step.of_group for step in steps)) == (case["scored"], case["scored_group"])
    found = method.search(case["tokens"], case["dedup"])
    assert [one.message for one in found] == [one["message"] for one in case["candidates"]]
    for one, wanted in zip(found, case["candidates"], strict=True):
        for field, value in wanted.items():
            assert close(getattr(one, field), value), (field, value)
