"""The reference of version 3 against the known answers that ship with the package."""

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest

import scanner.watermark
from tests import reference3

PACKAGE = Path(scanner.watermark.__file__).parent
KNOWN = json.loads((PACKAGE / "native/known_answers_3.json").read_text(encoding="utf-8"))


def close(actual: float, wanted: float | None) -> bool:
    wanted = -math.inf if wanted is None else wanted
    return actual == wanted or math.isclose(actual, wanted, rel_tol=1e-9, abs_tol=1e-300)


def parameters_of(label: str) -> dict[str, str]:
    return dict(part.split("=") for part in label.split(";")[1:])


def method_of(case: dict) -> reference3.Method:
    return reference3.Method(
        case["method"],
        bytes.fromhex(case["secret"]),
        case["window"],
        Fraction(case["gamma"]) if "gamma" in case else None,
        case["groups"],
        case["seeds"],
        bytes.fromhex(case["beacon"]),
        case["shown"],
    )


def test_it_imports_nothing_of_ours_but_the_reference_of_version_1():
    source = Path(reference3.__file__).read_text(encoding="utf-8")
    lines = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    standard = {"collections.abc", "dataclasses", "fractions", "functools", "hashlib", "math"}
    assert {line.split()[1] for line in lines} <= {*standard, "tests"}
    assert [line for line in lines if "tests" in line] == ["from tests import reference"]


@pytest.mark.parametrize("case", KNOWN["streams"], ids=lambda case: case["label"])
def test_streams(case):
    secret, label, beacon = bytes.fromhex(case["secret"]), case["label"], bytes.fromhex(case["beacon"])
    parameters = parameters_of(label)
    seeds, in_groups = int(parameters["seeds"]), "groups" in parameters
    assert reference3.commitment(secret, label).hex() == case["commitment"]
    assert list(reference3.seed_key(secret, label)) == case["seed_key"]
    assert reference3.window_key(len(case["window"]), seeds).hex() == case["window_key"]
    nonce, second = reference3.window_nonces(case["window"], seeds)
    bucket = reference3.bucket_of(nonce, seeds)
    assert (nonce, second, bucket) == (case["nonce"], case["second"], case["bucket"])
    seed = reference3.seed_of(reference3.seed_key(secret, label), bucket)
    key = reference3.step_key(seed, beacon, second)
    assert (seed.hex(), list(key)) == (case["seed"], case["step_key"])
    assert (in_groups and reference3.is_group_step(key)) == case["group_step"]
    for word in case["words"]:
        assert reference3.stream_word(key, nonce, word["planes"], word["plane"], word["i"]) == word["word"], word
    for word in case["rough_words"]:
        got = reference3.stream_word(key, nonce, 8, word["plane"], word["i"], reference3.ROUGH_BLOCKS)
        assert got == word["word"], word
    for entry in case.get("green", []):
        assert reference3.is_green(key, nonce, entry["j"], Fraction(parameters["gamma"])) == entry["green"], entry
    for entry in case.get("draws", []):
        draw = reference3.draw(key, nonce, entry["j"], in_groups)
        assert draw == entry["word"], entry
        assert not in_groups or reference3.leading_ones(draw) == entry["leading_ones"], entry


def test_the_labels_of_the_known_answers_are_those_that_a_method_makes():
    for case in KNOWN["streams"]:
        parameters = parameters_of(case["label"])
        made = reference3.label(
            case["label"].partition("-v3")[0],
            int(parameters["h"]),
            Fraction(parameters["gamma"]) if "gamma" in parameters else None,
            int(parameters["groups"]) if "groups" in parameters else None,
            int(parameters["seeds"]),
        )
        assert made == case["label"]


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


@pytest.mark.parametrize("number", range(len(KNOWN["searches"])))
def test_searches(number):
    case = KNOWN["searches"][number]
    method = method_of(case)
    steps = method.steps(case["tokens"], case["dedup"])
    assert (len(steps), sum(step.of_group for step in steps)) == (case["scored"], case["scored_group"])
    found = method.search(case["tokens"], case["dedup"])
    assert [one.message for one in found] == [one["message"] for one in case["candidates"]]
    for one, wanted in zip(found, case["candidates"], strict=True):
        for field, value in wanted.items():
            assert close(getattr(one, field), value), (field, value)
