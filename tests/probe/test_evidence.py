"""The evidence of a class against plain loops and laws of scipy."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from scanner.probe.evidence import (
    SEVERAL,
    TOP_SHARE,
    OpenedForm,
    carried,
    evidence_on,
    strength_of,
    tokens_needed,
)
from scanner.watermark.formats import make_format
from scanner.watermark.positions import batch_tokens
from tests import reference
from tests.watermark.vllm import reference as vllm_reference

SECRET = bytes(range(100, 132))
WINDOW, GAMMA, TESTS = 2, Fraction(1, 4), 50


def documents(seed: int, count: int = 9) -> list[list[int]]:
    """Answers of few different tokens, so that most n-grams repeat within answers and between them."""
    generator = np.random.default_rng(seed)
    return [generator.integers(5, size=generator.integers(0, 30)).tolist() for _ in range(count)]


def plain_places(answers: list[list[int]], window: int, with_token: bool) -> list[tuple[int, int]]:
    """Places (answer, token) that count: the first ones of what decides a draw, whose window lies in one answer."""
    row = [(a, i) for a, answer in enumerate(answers) for i in range(len(answer))]
    ids = [answers[a][i] for a, i in row]
    seen, places = set(), []
    for place in range(window, len(ids)):
        what = tuple(ids[place - window : place + with_token])
        if what not in seen and row[place][1] >= window:
            places.append(row[place])
        seen.add(what)
    return places


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("users", ["one", "several", "unknown"])
def test_green_list_of_version_1(seed, users):
    answers = documents(seed)
    form = make_format("greenlist", {"window": WINDOW, "gamma": "1/4"})
    messages = 3
    known = {
        "one": np.full(len(answers), 2),
        "several": np.arange(len(answers)) % messages,
        "unknown": np.full(len(answers), SEVERAL),
    }[users]
    found = evidence_on(
        OpenedForm(form, form.open(SECRET), messages),
        batch_tokens(answers),
        np.arange(len(answers)),
        known,
        TESTS,
    )
    keys = reference.sub_keys(SECRET, reference.label("greenlist", WINDOW, GAMMA))
    places = plain_places(answers, WINDOW, users != "several")

    def green(message_of) -> int:
        return sum(
            reference.is_green(
                keys,
                reference.window_nonce(keys, answers[a][i - WINDOW : i]),
                answers[a][i] + message_of(a),
                GAMMA,
            )
            for a, i in places
        )

    if users == "unknown":
        scores = [green(lambda _, m=m: m) for m in range(messages)]
        score, tried = max(scores), messages
        assert found.message == scores.index(score)
    else:
        score, tried = green(lambda a: int(known[a])), 1
    assert (found.scored, found.score) == (len(places), score)
    p = 1 - (1 - stats.binom.sf(score - 1, len(places), float(GAMMA))) ** tried
    assert found.log10_p == pytest.approx(math.log10(p), abs=1e-9)
    assert found.log10_p_page == pytest.approx(math.log10(1 - (1 - p) ** TESTS), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_vllm(seed):
    answers = documents(seed)
    form = make_format("vllm-gumbel", {"context_width": WINDOW})
    key = int.from_bytes(SECRET[:8], "big")
    opened = OpenedForm(form, form.open(SECRET[:8]), 1)
    found = evidence_on(opened, batch_tokens(answers), np.arange(len(answers)), np.zeros(len(answers), np.int64), TESTS)
    places = plain_places(answers, WINDOW, with_token=True)
    words = [vllm_reference.word(key, answers[a][i - WINDOW : i], answers[a][i]) for a, i in places]
    score = sum(-math.log(1 - (word >> 8) / 2**24) for word in words)
    assert found.scored == len(places)
    assert found.score == pytest.approx(score)
    assert found.log10_p == pytest.approx(stats.gamma.logsf(score, len(places)) / math.log(10), abs=1e-6)


def test_only_answers_of_the_class_count():
    answers = documents(5)
    form = make_format("gumbel", {"window": WINDOW})
    opened = OpenedForm(form, form.open(SECRET), 1)
    known = np.zeros(len(answers), np.int64)
    some = np.array([1, 4, 7])
    of_some = evidence_on(opened, batch_tokens(answers), some, known, TESTS)
    alone = evidence_on(opened, batch_tokens([answers[i] for i in some]), np.arange(3), known[:3], TESTS)
    assert of_some == alone


def test_nothing_to_score():
    form = make_format("gumbel", {"window": WINDOW})
    opened = OpenedForm(form, form.open(SECRET), 1)
    found = evidence_on(opened, batch_tokens([[], [1, 2]]), np.arange(2), np.zeros(2, np.int64), TESTS)
    assert (found.scored, found.log10_p_page) == (0, 0.0)


@pytest.mark.parametrize("log10_p", [-0.31, -2.0, -9.0, -300.0, -5000.0])
def test_strength(log10_p):
    assert stats.norm.logsf(strength_of(log10_p)) == pytest.approx(log10_p * math.log(10), rel=1e-9)


def test_tokens_needed_have_the_power():
    """So many tokens, each of a mean of 0.2 standard deviations, pass in 95 of 100 trials."""
    needed = tokens_needed(0.2, -3.0, 0.95)
    passes = stats.norm.sf(stats.norm.isf(1e-3) - 0.2 * math.sqrt(needed))
    assert passes == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("name", "parameters", "size"),
    [
        ("gumbel-v3", {"window": 2, "beacon": "5a" * 32}, 32),
        ("greenlist-v3", {"window": 2, "gamma": "1/8", "beacon": "5a" * 32}, 32),
        ("vllm-dual-key", {"context_width": 2}, 8),
        ("sglang-two-keys", {"context_window": 2}, 16),
    ],
)
def test_unmarked_tokens_meet_the_top_as_often_as_chance_makes_them(name, parameters, size):
    """5 standard deviations of 20,000 tokens: less than once in a million such tests."""
    mark = make_format(name, parameters).open(SECRET[:size])
    tokens = batch_tokens([np.random.default_rng(3).integers(50_000, size=20_000).tolist()])
    positions = mark.rule.positions(tokens, "ngram")
    hits, share = carried(mark, tokens, positions, np.zeros(1, np.int64))
    assert share == (0.125 if "1/8" in parameters.values() else TOP_SHARE)
    count = len(positions.index)
    assert abs(hits - share * count) <= 5 * math.sqrt(share * (1 - share) * count)
