"""Known answers on the interpreted device, by the command: they pass, and a changed digit fails."""

import json
from importlib import resources

import pytest
from click.testing import CliRunner

from jobs.selftest import selftest
from scanner.gpu.device_answers import check_device
from tests.gpu.interpreted.sides import CPU

GROUPS = json.loads((resources.files("scanner.watermark.native") / "known_answers.json").read_text())
SHORT = [case for case in GROUPS["documents"] if len(case["tokens"]) <= 17 and case["method"] != "gumbel-log"]
GREEN = next(case for case in SHORT if case["method"] == "greenlist" and case["scored"] > 2)
GUMBEL = next(case for case in SHORT if case["method"] == "gumbel" and case["scored"] > 2)


def test_the_command_checks_every_device(tmp_path):
    subset = tmp_path / "subset.json"
    subset.write_text(json.dumps({"streams": GROUPS["streams"], "documents": SHORT[:8]}))
    result = CliRunner().invoke(selftest, ["--vectors", str(subset)], standalone_mode=False)
    assert result.return_value == 0, result.output
    assert "cpu streams: 2 passed, 0 failed" in result.output
    assert "cpu documents: 8 passed, 0 failed" in result.output


@pytest.mark.parametrize("wrong", [GREEN | {"score": GREEN["score"] + 1}, GUMBEL | {"score": GUMBEL["score"] * 1.1}])
def test_a_wrong_answer_fails(wrong):
    (found,) = check_device(json.dumps({"documents": [wrong]}), CPU)
    assert (found.passed, len(found.failures)) == (0, 1)


SEARCHES = json.loads((resources.files("scanner.watermark.native") / "known_answers_2.json").read_text())["searches"]
BRIEF = [case for case in SEARCHES if len(case["tokens"]) <= 5]


def test_searches_of_version_2_pass_and_a_wrong_candidate_fails():
    assert {case["method"] for case in BRIEF} == {"greenlist", "gumbel"}
    (found,) = check_device(json.dumps({"searches": BRIEF}), CPU)
    assert (found.group, found.passed, found.failures) == ("cpu searches", len(BRIEF), [])
    one = BRIEF[-1]
    for change in ({"message": one["candidates"][0]["message"] ^ 1}, {"score": one["candidates"][0]["score"] + 1}):
        wrong = one | {"candidates": [one["candidates"][0] | change, *one["candidates"][1:]]}
        (found,) = check_device(json.dumps({"searches": [wrong]}), CPU)
        assert (found.passed, len(found.failures)) == (0, 1)
