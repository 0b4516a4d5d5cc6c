"""`brickscan selftest` passes on the shipped answers, fails on a changed digit, and refuses files that test nothing."""

import json
import re
from decimal import Decimal
from importlib import resources

import pytest

from jobs.cli import run
from jobs.formats import selftest
from scanner.watermark.formats import FORMATS, NOT_READ, STACKS, GroupResult, check
from scanner.watermark.native.known_answers import GROUPS as COMPARED
from tests.support.command_line import call

SHIPPED = (resources.files("scanner.watermark.native") / "known_answers.json").read_text()
GROUPS = json.loads(SHIPPED)
OF_MAKERS = {group for stack in STACKS for group in stack.case_groups}


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


KNOWN_3 = json.loads((resources.files("scanner.watermark.native") / "known_answers_3.json").read_text())


@pytest.mark.parametrize("group", ["trees", "claims"])
def test_trees_and_claims_are_counted_and_a_changed_one_fails(group):
    cases = KNOWN_3[group]
    (result,) = check(json.dumps({group: cases}))
    assert (result.group, result.passed, result.failures) == (group, len(cases), [])
    outputs = {
        "trees": ("root", "beacon"),
        "claims": ("scored", "score", "scored_user", "score_user", "shows", "log10_p", "log10_p_user"),
    }[group]
    for field in outputs:
        value = cases[0][field]
        changed = value[:-1] + ("0" if value[-1] != "0" else "1") if isinstance(value, str) else None
        if changed is None:
            changed = value[1:] if isinstance(value, list) else value + 1
        assert failures({group: [cases[0] | {field: changed}]}) == 1, field


@pytest.mark.parametrize("field", ["bucket", "seed", "path"])
def test_a_changed_path_of_a_tree_fails(field):
    case = KNOWN_3["trees"][0]
    for number, shown in enumerate(case["shown"]):
        changed = {"bucket": shown["bucket"] ^ 1, "seed": "00" * 32, "path": shown["path"][::-1]}[field]
        others = [*case["shown"][:number], shown | {field: changed}, *case["shown"][number + 1 :]]
        assert failures({"trees": [case | {"shown": others}]}) == 1


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


def test_the_command_counts_and_exits(tmp_path):
    subset = tmp_path / "subset.json"
    subset.write_text(json.dumps({"draws": GROUPS["draws"]}))
    code, out, _ = call("selftest", "--vectors", subset)
    assert (code, out.splitlines()) == (0, ["draws: 7 passed, 0 failed", "7 passed, 0 failed"])
    wrong = tmp_path / "wrong.json"
    wrong.write_text(re.sub(r'"word": 1,', '"word": 2,', json.dumps({"draws": GROUPS["draws"]})))
    code, out, _ = call("selftest", "--vectors", subset, "--vectors", wrong)
    assert (code, out.splitlines()[-1]) == (1, "13 passed, 1 failed")


@pytest.mark.parametrize("text", ["", "[]", '{"chacha20": []}', '{"draws": 3}'])
def test_a_file_of_another_form_is_refused(tmp_path, capsys, text):
    file = tmp_path / "vectors.json"
    file.write_text(text)
    assert run(selftest, ["--vectors", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


INPUTS = ("algorithm", "token_ids", "context_width", "deduplicate_contexts", "key", "alpha", "context", "contexts")
"""Fields of cases that are inputs; the rest is expected."""


COMPARED_FIELDS = ("score", "words", "key_a", "token_hashes", "coin", "num_green_tokens", "n_unmasked", "num_token")
"""An expected field of each group."""


def as_makers_keep_them() -> dict:
    """One case of each group of other stacks, in a list with inputs and expected values, as their makers keep them."""
    cases, sequences = [], {}
    for entry in FORMATS.values():
        for group, answers in json.loads(entry.answers.shipped.read_text()).items():
            if group not in OF_MAKERS or any(case["group"] == group for case in cases):
                continue
            case = {**answers[0]}
            if group in ("vllm_gumbel", "vllm_dual_key"):
                case["algorithm"] = {"vllm_gumbel": "gumbel", "vllm_dual_key": "dual_key_gumbel"}[group]
            if "tokens" in case:
                sequences[group] = {"tokens": case.pop("tokens")}
                cases.append(case | {"sequence": group, "group": group})
                continue
            inputs = {name: case.pop(name) for name in INPUTS if name in case}
            combined = {name: case.pop(name) for name in ("num_contexts", "score", "log_p_value") if name in case}
            expected = case | ({"combined": combined} if "num_contexts" in combined else combined)
            cases.append({"id": group, "group": group, "inputs": inputs, "expected": expected})
    return {"schema": 1, "sequences": sequences, "cases": cases}


def test_vectors_are_read_as_their_makers_keep_them():
    vectors = as_makers_keep_them()
    assert {case["group"] for case in vectors["cases"]} == OF_MAKERS
    results = check(json.dumps(vectors))
    assert sum(result.passed for result in results) == len(vectors["cases"])
    assert not [failure for result in results for failure in result.failures]
    for case in vectors["cases"]:
        expected = case.get("expected", case.get("out"))
        name = next(name for name in COMPARED_FIELDS if name in expected or name in expected.get("combined", {}))
        within = expected if name in expected else expected["combined"]
        before = within[name]
        within[name] = [before[0] + 1, *before[1:]] if isinstance(before, list) else str(before) + "1"
        within[name] = before + 1 if isinstance(before, int | float) else within[name]
        assert failures(vectors) == 1, (case["group"], name)
        within[name] = before


def test_cases_of_other_formats_are_counted_and_not_checked():
    vectors = as_makers_keep_them()
    vectors["cases"].append({"id": "x", "inputs": {"algorithm": "sbw"}, "expected": {"score": 1.0}})
    assert check(json.dumps(vectors))[-1] == GroupResult(NOT_READ, 0, [], 1)
    with pytest.raises(ValueError, match="holds no cases"):
        check(json.dumps({"cases": vectors["cases"][-1:]}))
    with pytest.raises(ValueError, match=r"cases\[0\] is not an object"):
        check('{"cases": [1]}')
