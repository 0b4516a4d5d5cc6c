"""The reference against the known answers that ship with the package, and against numbers computed by other means."""

import json
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest

from tests import reference

KNOWN = json.loads(
    (Path(__file__).parents[1] / "scanner/watermark/native/known_answers.json").read_text(encoding="utf-8")
)


def real(value: float | None) -> float:
    return -math.inf if value is None else value


def close(actual: float, wanted: float) -> bool:
    return float(actual) == wanted or math.isclose(float(actual), wanted, rel_tol=1e-9)


def test_it_imports_nothing_of_ours_and_no_numba():
    source = Path(reference.__file__).read_text(encoding="utf-8")
    lines = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert {line.split()[1].split(".")[0] for line in lines} <= {
        "collections",
        "dataclasses",
        "fractions",
        "functools",
        "hashlib",
        "itertools",
        "math",
        "mpmath",
    }


@pytest.mark.parametrize("case", KNOWN["chacha8"])
def test_chacha8(case):
    assert list(reference.chacha8_block(tuple(case["key"]), case["counter"], case["nonce"])) == case["block"]


@pytest.mark.parametrize("case", KNOWN["streams"], ids=lambda case: case["label"])
def test_streams(case):
    secret, label = bytes.fromhex(case["secret"]), case["label"]
    keys = reference.sub_keys(secret, label)
    assert reference.commitment(secret, label).hex() == case["commitment"]
    assert (list(keys.chacha), keys.sip.hex()) == (case["chacha_key"], case["sip_key"])
    assert reference.window_nonce(keys, case["window"]) == case["nonce"]
    for word in case["words"]:
        got = reference.stream_word(keys, case["nonce"], word["planes"], word["plane"], word["i"])
        assert got == word["word"], word


@pytest.mark.parametrize("case", KNOWN["draws"], ids=lambda case: str(case["word"]))
def test_draws(case):
    assert close(reference.gumbel_term(case["word"]), case["gumbel"])
    assert close(reference.log_gumbel_term(case["word"]), real(case["log"]))
    assert close(reference.minus_ln_r(case["word"]), case["sampling_minus_ln_r"])


@pytest.mark.parametrize("case", KNOWN["documents"], ids=lambda case: f"{case['method']}-{case['dedup']}")
def test_documents(case):
    gamma = Fraction(case["gamma"]) if case["method"] == "greenlist" else None
    method = reference.Method(case["method"], bytes.fromhex(case["secret"]), case["window"], gamma)
    scored = len(reference.scored_positions(case["tokens"], case["window"], case["dedup"]))
    score = method.score(case["tokens"], case["message"], case["dedup"])
    assert scored == case["scored"]
    if case["method"] == "greenlist":
        assert score == case["score"]
    assert close(score, real(case["score"]))
    assert close(method.log10_p(score, scored), case["log10_p"])


@pytest.mark.parametrize(("scored", "gamma"), [(1, Fraction(1, 2)), (7, Fraction(3, 8)), (40, Fraction(1, 256))])
def test_the_binomial_tail_is_that_of_exact_fractions(scored, gamma):
    chances = [math.comb(scored, k) * gamma**k * (1 - gamma) ** (scored - k) for k in range(scored + 1)]
    for score in range(scored + 1):
        exact = sum(chances[score:])
        with mpmath.workdps(50):
            wanted = mpmath.log10(mpmath.mpf(exact.numerator) / exact.denominator)
            assert mpmath.almosteq(reference.log10_greenlist(score, scored, gamma), wanted, rel_eps=mpmath.mpf("1e-30"))


@pytest.mark.parametrize(("score", "scored"), [(0.5, 1), (3.0, 2), (40.0, 100), (100.0, 100), (250.0, 100), (1e4, 50)])
def test_the_gamma_tails_are_those_of_mpmath(score, scored):
    with mpmath.workdps(50):
        upper = mpmath.gammainc(scored, mpmath.mpf(score), mpmath.inf, regularized=True)
        lower = mpmath.gammainc(scored, 0, mpmath.mpf(score), regularized=True)
        eps = mpmath.mpf("1e-25")  # the logarithm of a p near 1 loses some of mpmath's digits
        assert mpmath.almosteq(reference.log10_gumbel(score, scored), mpmath.log10(upper), eps, eps)
        assert mpmath.almosteq(reference.log10_gumbel_log(-score, scored), mpmath.log10(lower), eps, eps)


@pytest.mark.parametrize(("p", "tests"), [(Fraction(1, 2), 3), (Fraction(1, 10**9), 10**4), (Fraction(999, 1000), 7)])
def test_the_correction_is_that_of_exact_fractions(p, tests):
    exact = 1 - (1 - p) ** tests
    with mpmath.workdps(50):
        log10_p = mpmath.log10(mpmath.mpf(p.numerator) / p.denominator)
        wanted = mpmath.log10(mpmath.mpf(exact.numerator) / exact.denominator)
        assert mpmath.almosteq(reference.log10_any_of(log10_p, tests), wanted, rel_eps=mpmath.mpf("1e-30"))


def test_the_z_test_is_that_of_the_paper():
    z, p = reference.z_test("greenlist", 50, 100, Fraction(1, 4))
    assert close(z, 25 / math.sqrt(18.75))
    assert close(p, math.erfc(25 / math.sqrt(18.75) / math.sqrt(2)) / 2)
    z, p = reference.z_test("gumbel", 120.0, 100)
    assert (close(z, 2.0), close(p, 0.022750131948179195)) == (True, True)
    z, p = reference.z_test("gumbel-log", -90.0, 100)
    assert (close(z, 1.0), close(p, 0.15865525393145707)) == (True, True)
