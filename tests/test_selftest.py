"""`brickscan selftest` passes on the shipped answers, fails on a changed digit, and refuses files that test nothing."""

import json
import re
import subprocess
import sys
from decimal import Decimal
from importlib import resources

import pytest
from click.testing import CliRunner

from jobs.cli import run
from jobs.selftest import selftest
from scanner.watermark.installation import check
from scanner.watermark.native.known_answers import GROUPS as COMPARED

SHIPPED = (resources.files("scanner.watermark.native") / "known_answers.json").read_text()
GROUPS = json.loads(SHIPPED)


def failures(groups: dict) -> int:
    return sum(len(result.failures) for result in check(json.dumps(groups)))


def changed_digits(number: float) -> list[float]:
    """Eight numbers: in each of them another one of the first eight significant digits is moved by one."""
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    digits = (*digits, *[0] * (8 - len(digits)))
    exponent -= max(0, 8 - len(Decimal(repr(number)).as_tuple().digits))
    moved = []
    for place in range(8):
        other = (*digits[:place], digits[place] - 1 if digits[place] else 1, *digits[place + 1 :])
        moved.append(float(Decimal((sign, other, exponent))))
    return moved


def test_the_shipped_answers_pass():
    assert [(result.group, result.passed) for result in check(SHIPPED)] == [(g, len(c)) for g, c in GROUPS.items()]
    assert failures(GROUPS) == 0


@pytest.mark.parametrize("field", ["score", "log10_p"])
def test_a_changed_digit_of_a_document_fails(field):
    tried = 0
    for case in GROUPS["documents"]:
        value = case[field]
        whole = float(value).is_integer()
        for other in [value + 1, value - 1] if whole else changed_digits(value):
            tried += 1
            assert failures({"documents": [case | {field: other}]}) == 1, (case["method"], field, value, other)
    assert tried > 250


@pytest.mark.parametrize("field", ["gumbel", "log", "sampling_minus_ln_r"])
def test_a_changed_digit_of_a_draw_fails(field):
    for case in GROUPS["draws"]:
        others = [1.0, -1.0] if not case[field] else changed_digits(case[field])
        for other in others:
            assert failures({"draws": [case | {field: other}]}) == 1, (field, case[field], other)


def test_changed_integers_fail():
    for case in GROUPS["documents"]:
        assert failures({"documents": [case | {"scored": case["scored"] + 1}]}) == 1
    for case in GROUPS["chacha8"]:
        assert failures({"chacha8": [case | {"block": [case["block"][0] ^ 1, *case["block"][1:]]}]}) == 1
    for case in GROUPS["streams"]:
        assert failures({"streams": [case | {"nonce": case["nonce"] ^ 1}]}) == 1
        assert failures({"streams": [case | {"commitment": "0" * 64}]}) == 1


@pytest.mark.parametrize(
    "broken", [{"message": None}, {"gamma": "2/4x"}, {"gamma": "1/0"}, {"tokens": [-1]}, {"method": "synthid"}]
)
def test_a_case_that_cannot_be_computed_counts_as_failed(broken):
    green = next(case for case in GROUPS["documents"] if case["method"] == "greenlist")
    assert failures({"documents": [green | broken]}) == 1


def test_a_case_of_too_few_numbers_counts_as_failed(monkeypatch):
    def reaches_beyond(_case):
        yield "word", 1, [][0]

    monkeypatch.setitem(COMPARED, "draws", reaches_beyond)
    assert failures({"draws": GROUPS["draws"][:1]}) == 1


@pytest.mark.parametrize("text", ["{}", '{"draws": []}'])
def test_answers_that_test_nothing_are_refused(tmp_path, capsys, text):
    file = tmp_path / "vectors.json"
    file.write_text(text)
    assert run(selftest, ["--vectors", str(file)]) == 2
    assert "holds no cases" in capsys.readouterr().err


@pytest.mark.costly
def test_the_command_counts_and_exits(tmp_path):
    subset = tmp_path / "subset.json"
    subset.write_text(json.dumps({"draws": GROUPS["draws"]}))
    result = CliRunner().invoke(selftest, ["--vectors", str(subset)], standalone_mode=False)
    assert result.output.splitlines() == ["draws: 7 passed, 0 failed", "7 passed, 0 failed"]
    wrong = tmp_path / "wrong.json"
    wrong.write_text(re.sub(r'"word": 1,', '"word": 2,', json.dumps({"draws": GROUPS["draws"]})))
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "selftest", "--vectors", str(subset), "--vectors", str(wrong)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "13 passed, 1 failed"


@pytest.mark.parametrize("text", ["", "[]", '{"chacha20": []}', '{"draws": 3}'])
def test_a_file_of_another_form_is_refused(tmp_path, capsys, text):
    file = tmp_path / "vectors.json"
    file.write_text(text)
    assert run(selftest, ["--vectors", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
