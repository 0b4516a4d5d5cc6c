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
