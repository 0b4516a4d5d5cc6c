"""The worked examples of docs/concepts have the numbers that the product computes."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from scanner.registry import load_registry, new_key, open_key
from scanner.watermark import Tokens
from scanner.watermark.laws import Binomial
from scanner.watermark.level_laws import LEVELS, log10_gumbel_levels
from scanner.watermark.positions import Positions
from scanner.watermark.rule import corrected
from tests.bench.configured import VERSION_3
from tests.fixed import fix_secrets
from tests.support.two_keys import TOKENIZER

CONCEPTS = Path(__file__).parents[1] / "docs/concepts"
PAGE = (CONCEPTS / "p-values.md").read_text(encoding="utf-8")
WEIGHTED = (CONCEPTS / "weighted-evidence.md").read_text(encoding="utf-8")
SENTENCES, WEIGHTED_SENTENCES = (" ".join(page.split()) for page in (PAGE, WEIGHTED))
"""The pages without their line breaks, which may fall inside a sentence."""
TEXT = "the cat sat on the mat and the cat sat on the mat"
KEYS = ("spring-2026", "summer-2026")
FORM = VERSION_3["greenlist-v3"] | {"window": 2}
MESSAGES = 20_000


@pytest.fixture(scope="module")
def marks(tmp_path_factory):
    """Marks of the two keys, which every run draws alike."""
    registry = tmp_path_factory.mktemp("example") / "registry"
    fix_secrets(registry, *KEYS)
    for key in KEYS:
        new_key(registry, key, tokenizer=TOKENIZER, messages=MESSAGES, **FORM)
    return {key.key_id: open_key(registry, key) for key in load_registry(registry).keys}


def tokens_of(words, copies=1):
    """Return copies of a text, each word a token."""
    ids = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return Tokens(
        np.tile(np.array([ids[word] for word in words], np.uint32), copies), np.arange(copies + 1) * len(words)
    )


def test_example_is_what_the_product_computes(marks):
    words = TEXT.split()
    assert f"> {TEXT}\n" in PAGE
    tokens = tokens_of(words)
    for key, mark in marks.items():
        positions = mark.rule.positions(tokens, "ngram")
        scored = [words[place] for place in positions.index]
        assert f"Then come *{', '.join(scored)}*: seven." in SENTENCES
        favours = [
            word
            for word, place in zip(scored, positions.index, strict=True)
            if mark.score(tokens, Positions(np.array([place]), np.array([0, 1])), np.array([0]))[0]
        ]
        log10_p = mark.law.log10_p(float(len(favours)), 7)
        both = 10 ** float(corrected(log10_p, 1, 2))
        row = f"| `{key}` | {', '.join(favours)} | {len(favours)} of 7 | {10 ** float(log10_p):.3f} | {both:.3f} |"
        assert row in PAGE


@pytest.mark.parametrize(("scored", "said"), [(7, "6.1e-5"), (20, "9.1e-13")])
def test_smallest_p_of_a_length(marks, scored, said):
    (law,) = {mark.law for mark in marks.values()}
    assert isinstance(law, Binomial)
    mantissa, exponent = f"{10 ** float(law.log10_p(float(scored), scored)):.1e}".split("e")
    assert f"p is {said}" in SENTENCES or f"p would be {said}" in SENTENCES
    assert f"{mantissa}e{int(exponent)}" == said


def test_law_holds_over_keys(marks):
    """Each of 40,000 messages draws anew. Fails by chance once in a million runs of other keys."""
    tokens = tokens_of(TEXT.split(), MESSAGES)
    hits = 0
    for mark in marks.values():
        positions = mark.rule.positions(tokens, "ngram")
        hits += int((mark.score(tokens, positions, np.arange(MESSAGES)) >= 3).sum())
    law = stats.binom(2 * MESSAGES, stats.binom.sf(2, 7, 0.25))
    assert law.ppf(5e-7) <= hits <= law.isf(5e-7)


def test_levels_and_sums_of_six_tokens():
    rows = re.findall(r"^\| \w+ \| (0\.\d+) \| (\d) \| ([\d.]+) \| ([\d.]+) \|$", WEIGHTED, re.MULTILINE)
    chances, levels, x, counts = np.array(rows, dtype=float).T
    assert len(rows) == 6
    assert np.array_equal(levels, np.rint(LEVELS * (1 - np.sqrt(chances))))
    assert np.allclose(counts, levels * x)
    for values in (np.ones(6), levels):
        score = float((values * x).sum())
        p = 10 ** float(log10_gumbel_levels(np.array([score]), np.ones((1, 6), int), values)[0])
        assert f"sum is {score:.1f} where {values.sum():.0f} is expected" in WEIGHTED_SENTENCES
        assert f"p = {p:.2f}" in WEIGHTED_SENTENCES or f"p is {p:.3f}" in WEIGHTED_SENTENCES
