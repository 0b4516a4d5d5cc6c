"""The proof of flags against the plain references, which share no code with it; the proof shares none with kernels."""

import ast
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import scanner.watermark
from scanner.watermark.native.proof import GreenListProof, GreenListProof3, GumbelProof, GumbelProof3
from scanner.watermark.proof import floored, log10_any_of, log10_binomial, log10_gamma, log10_two_gammas
from scanner.watermark.stacks.sglang.proof import SglangProof
from scanner.watermark.stacks.vllm.proof import VllmProof
from tests import reference, reference3
from tests.support.syntax_trees import tree_of
from tests.watermark.mpmath_oracle import series
from tests.watermark.sglang import reference as sglang
from tests.watermark.vllm import reference as vllm

HERE = Path(scanner.watermark.__file__).parent
FILES = sorted(HERE.rglob("*proof.py"))
QUARTER = Fraction(1, 4)
BEACON = bytes(range(32))


def text(draw: random.Random, length: int = 40) -> list[int]:
    """Small tokens and large ones, with repeats."""
    return [draw.randrange(9) if i % 3 else draw.randrange(2**32 - 5000) for i in range(length)] + [3, 1, 2] * 4


def test_it_shares_no_code_with_what_scores():
    """The proof imports nothing of ours but its own files and `HiddenValue`, which hides secrets."""
    found = [str(path.relative_to(HERE)) for path in FILES]
    stacks = ("huggingface", "sbw", "sglang", "synthid", "three_bricks", "vllm")
    assert found == ["native/proof.py", "proof.py", *(f"stacks/{stack}/proof.py" for stack in stacks)]
    shared = {"scanner.watermark.proof": None, "scanner.watermark.stacks.plain_draws": None}
    own = shared | {"scanner.watermark.hidden_value": ["HiddenValue"]}
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith(("scanner", "schemas", "numba")) for alias in node.names), path
            if isinstance(node, ast.ImportFrom) and node.module.startswith(("scanner", "schemas", "numba")):
                assert node.module in own, path
                assert own[node.module] in (None, [alias.name for alias in node.names]), path


@pytest.mark.parametrize("make", [GreenListProof, GreenListProof3])
def test_steps_show_no_key(make):
    label = "greenlist;h=2;gamma=1/4" if make is GreenListProof else "greenlist-v3;h=2;gamma=1/4;seeds=8"
    proof = make(bytes(32), label, 2, QUARTER, *(() if make is GreenListProof else (None, BEACON)))
    steps = proof._steps(np.arange(6, dtype=np.uint32).reshape(3, 2))
    assert repr(steps) == "3 steps"
    assert str(steps.keys[0, 0]) not in f"{steps} {proof}"


@pytest.mark.seconds
@pytest.mark.parametrize("dedup", ["ngram", "context", "none"])
@pytest.mark.parametrize("window", [0, 1, 2, 3, 4, 7, 16])
def test_version_1(window, dedup):
    draw = random.Random(window)
    secret, messages, tokens = draw.randbytes(32), [0, 17, 2**31 - 1], text(draw)
    for gamma in (QUARTER, Fraction(3, 8), Fraction(1, 2), Fraction(77, 256)):
        plain = reference.Method("greenlist", secret, window, gamma)
        proof = GreenListProof(secret, plain.label, window, gamma)
        scored, scores = proof.scores(np.array(tokens, np.uint32), messages, dedup)
        assert scored == len(reference.scored_positions(tokens, window, dedup))
        assert scores == plain.scores(tokens, messages, dedup)
    plain = reference.Method("gumbel", secret, window)
    _, scores = GumbelProof(secret, plain.label, window).scores(np.array(tokens, np.uint32), messages, dedup)
    assert scores == pytest.approx(plain.scores(tokens, messages, dedup), rel=1e-13)


@pytest.mark.parametrize("groups", [None, 2, 7, 300])
@pytest.mark.parametrize("window", [1, 4])
def test_version_3(window, groups):
    draw = random.Random(window)
    secret, tokens = draw.randbytes(16), text(draw)
    messages = [0, 1, 2**16 - 1 if groups is None else groups**2 - 1]
    for gamma in (QUARTER, Fraction(77, 256)):
        plain = reference3.Method("greenlist", secret, window, gamma, groups, beacon=BEACON)
        proof = GreenListProof3(secret, plain.label, window, gamma, groups, BEACON)
        _, scores = proof.scores(np.array(tokens, np.uint32), messages, "ngram")
        both = [plain.scores(tokens, message) for message in messages]
        assert scores == [score for score, _ in both]
        steps = [step.of_group for step in plain.steps(tokens)].count(False)
        own = (steps, [score - of_group for score, of_group in both], groups)
        assert proof.user_evidence(np.array(tokens, np.uint32), messages, "ngram") == (own if groups else None)
    plain = reference3.Method("gumbel", secret, window, None, groups, beacon=BEACON)
    proof = GumbelProof3(secret, plain.label, window, groups, BEACON)
    _, scores = proof.scores(np.array(tokens, np.uint32), messages, "ngram")
    assert scores == pytest.approx([plain.scores(tokens, message)[0] for message in messages], rel=1e-13)


@pytest.mark.seconds
@pytest.mark.parametrize("width", [1, 3, 4, 5, 9])
def test_vllm(width):
    draw = random.Random(width)
    master, tokens = draw.getrandbits(64), [draw.randrange(5) for _ in range(60)]
    positions = vllm.detect(tokens, master, width).positions
    whole = {
        weight: VllmProof(master.to_bytes(8, "big"), width, weight, opening=True, bits=64) for weight in (None, 0.1)
    }
    scored, (one,) = whole[None].scores(np.array(tokens, np.uint32), [0], "context")
    assert scored == len(positions)
    assert one == pytest.approx(float(vllm.safe_score(tokens, positions, master, width)), rel=1e-13)
    a, b = (vllm.safe_score(tokens, positions, vllm.derive(master, name), width) for name in ("key_a", "key_b"))
    _, (two,) = whole[0.1].scores(np.array(tokens, np.uint32), [0], "context")
    assert two == pytest.approx(float(vllm.best_of_weights(a, b, scored, 0.1)), rel=1e-9)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_sglang(width):
    draw = random.Random(width)
    keys, tokens = [draw.getrandbits(64) for _ in range(2)], [draw.randrange(6) for _ in range(60)]
    secret = b"".join(key.to_bytes(8, "big") for key in keys)
    positions = sglang.scored(tokens, width)
    scored, (score,) = SglangProof(secret[:8], width, 1.0, 32).scores(np.array(tokens, np.uint32), [0], "context")
    assert scored == len(positions)
    assert score == pytest.approx(float(sglang.safe_score(tokens, positions, f"{keys[0]:x}", width)), rel=1e-13)
    by_coin = {True: [], False: []}
    for place in positions:
        seed = sglang.context_hash(tokens[place - width : place])
        by_coin[sglang.coin(f"{keys[0]:x}", f"{keys[1]:x}", seed) < int(0.3 * 2**32)].append(place)
    wanted = sum(
        float(sglang.safe_score(tokens, by_coin[first], f"{keys[not first]:x}", width)) for first in (True, False)
    )
    _, (score,) = SglangProof(secret, width, 0.3, 32).scores(np.array(tokens, np.uint32), [0], "context")
    assert score == pytest.approx(wanted, rel=1e-13)


@pytest.mark.seconds
@pytest.mark.parametrize("scored", [1, 16, 256, 5000, 200_000])
def test_p_values(scored):
    for share in (0.5, 1.0, 1.05, 1.3, 2.0):
        score = min(scored, int(scored / 4 * share))
        wanted = float(reference.log10_greenlist(score, scored, QUARTER))
        assert log10_binomial(score, scored, QUARTER) == pytest.approx(wanted, rel=1e-13, abs=1e-15)
        wanted = float(reference.log10_gumbel(scored * share, scored))
        assert log10_gamma(scored * share, scored) == pytest.approx(wanted, rel=1e-13, abs=1e-15)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("scored", [2, 20, 100])
def test_p_values_of_two_sums(scored):
    for weight in (0.05, 0.1, 0.3, 0.49):
        for share in (0.5, 0.9, 1.0, 1.5, 3.0, 6.0):
            wanted = float(series(share * scored, scored, weight))
            for same in (weight, 1.0 - weight):
                found = log10_two_gammas(share * scored, scored, same)
                assert found == pytest.approx(wanted, rel=1e-12, abs=1e-15)
    assert log10_two_gammas(30.0, 20, 1.0) == log10_gamma(30.0, 20)
    assert log10_two_gammas(30.0, 20, 0.5) == log10_gamma(60.0, 40)


def test_corrections_and_floors():
    for log10_p in (-1e-9, -0.1, -1.0, -20.0, -1000.0, -1e6):
        for tests in (1, 2, 1000, 10**6):
            wanted = float(reference.log10_any_of(log10_p, tests))
            assert log10_any_of(log10_p, tests) == pytest.approx(wanted, rel=1e-13, abs=1e-15)
    assert log10_any_of(0.0, 7) == log10_gamma(3.0, 0) == log10_binomial(0, 5, QUARTER) == 0.0
    assert floored(-10.0, 32) == pytest.approx(-32 * np.log10(2.0))
    assert floored(-9.0, 32) == -9.0
