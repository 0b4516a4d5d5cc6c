"""Known answers on the interpreted device, by the command: they pass, and a changed digit fails."""

import json
from importlib import resources

from click.testing import CliRunner

from jobs.formats import selftest
from scanner.gpu.marks import check_device
from tests.gpu.interpreted.sides import CPU

GROUPS = json.loads((resources.files("scanner.watermark.native") / "known_answers.json").read_text())


def test_the_command_checks_every_device(tmp_path):
    subset = tmp_path / "subset.json"
    subset.write_text(json.dumps({"streams": GROUPS["streams"]}))
    result = CliRunner().invoke(selftest, ["--vectors", str(subset)], standalone_mode=False)
    assert result.return_value == 0, result.output
    assert "cpu streams: 2 passed, 0 failed" in result.output
    assert "cpu documents" not in result.output  # of version 1, and scored on the CPU alone


def test_a_wrong_word_fails():
    one = GROUPS["streams"][0]
    first, *rest = one["words"]
    wrong = one | {"words": [first | {"word": first["word"] ^ 1, "planes": 1}, *rest]}
    (found,) = check_device(json.dumps({"streams": [wrong]}), CPU)
    assert (found.passed, len(found.failures)) == (0, 1)


SEARCHES = json.loads((resources.files("scanner.watermark.native") / "known_answers_3.json").read_text())["searches"]
BRIEF = [case for case in SEARCHES if len(case["tokens"]) <= 16 and case["groups"] <= 520]


def test_searches_of_version_3_pass_and_a_wrong_candidate_fails():
    assert {case["method"] for case in BRIEF} == {"greenlist", "gumbel"}
    searched = [case for case in BRIEF if case["method"] == "gumbel"]
    (found,) = check_device(json.dumps({"searches": BRIEF}), CPU)
    assert (found.group, found.passed, found.failures) == ("cpu searches", len(searched), [])
    one = max(searched, key=lambda case: len(case["candidates"]))
    for change in ({"message": one["candidates"][0]["message"] ^ 1}, {"score": one["candidates"][0]["score"] + 1}):
        wrong = one | {"candidates": [one["candidates"][0] | change, *one["candidates"][1:]]}
        (found,) = check_device(json.dumps({"searches": [wrong]}), CPU)
        assert (found.passed, len(found.failures)) == (0, 1)


def test_what_no_device_computes_is_left_to_the_cpu():
    answers = json.loads((resources.files("scanner.watermark.native") / "known_answers_3.json").read_text())
    del answers["searches"]
    assert check_device(json.dumps(answers), CPU) == []
