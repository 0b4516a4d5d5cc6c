"""SmolLM2 writes marked text, and the scan's scores find in the text alone for whom it was marked."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from jobs.demo import TOKENIZER
from scanner.generation import LocalModel, Sampling, complete, load_model
from scanner.text import load_tokenizer
from scanner.watermark import GreenList, Gumbel, Watermark, scored_positions
from tests.generation import compare_scores
from tests.support.from_packages import MODEL

pytestmark = pytest.mark.model

SECRET = bytes(range(32))
PROMPTS = [
    "Write a short story about a train that stops between two stations.",
    "Explain how a kite stays in the air.",
    "Describe a garden in the first days of spring.",
]
MESSAGES = [7, 77_777, 5_000]


@pytest.fixture(scope="module")
def model() -> LocalModel:
    folder = Path(__file__).parents[2] / MODEL
    if not folder.exists():
        pytest.fail(f"{folder} is missing; run: make model")
    return load_model(folder)


@pytest.mark.parametrize("mark", [GreenList(SECRET, 4, Fraction(1, 4)), Gumbel(SECRET, 4)], ids=lambda mark: mark.label)
def test_marked_text_names_its_message_among_a_hundred_thousand(model: LocalModel, mark: Watermark) -> None:
    done = complete(model, PROMPTS, Sampling(max_new_tokens=160), 1, mark, MESSAGES)
    assert all("<|im_" not in completion.text for completion in done)
    tokens = load_tokenizer(TOKENIZER, model.tokenizer_sha256).encode([completion.text for completion in done])
    positions = scored_positions(tokens, 4, "ngram")
    best = mark.best_two(tokens, positions, 100_000)
    log10_p = mark.law.log10_p(best.score, np.diff(positions.offsets))
    found = log10_p < -11
    assert found.sum() >= 2
    assert best.message[found].tolist() == np.array(MESSAGES)[found].tolist()


def test_unmarked_text_scores_like_chance(model: LocalModel) -> None:
    done = complete(model, PROMPTS, Sampling(max_new_tokens=80), 1)
    tokens = load_tokenizer(TOKENIZER, model.tokenizer_sha256).encode([completion.text for completion in done])
    for mark in (GreenList(SECRET, 4, Fraction(1, 4)), Gumbel(SECRET, 4)):
        positions = scored_positions(tokens, 4, "ngram")
        log10_p = mark.law.log10_p(mark.score(tokens, positions, np.array(MESSAGES)), np.diff(positions.offsets))
        assert (log10_p > -4).all()


def test_neyman_pearson_is_strong_on_clean_text_and_fragile(model: LocalModel) -> None:
    """Medians of 8 short texts against the paper, Advanced Detection Schemes; compare_scores makes larger tables.

    On clean text, with the prompt, Neyman-Pearson has the lowest p of the three scores, and ln r the highest. Once
    tokens are replaced, the original score is best and Neyman-Pearson finds nothing. Another message's p is not small.
    """
    sampling = Sampling(max_new_tokens=64)
    rows = compare_scores.compare(model, compare_scores.write(model, 8, sampling), sampling)
    median = {row[:3]: float(np.median(row.log10_p)) for row in rows}
    with_prompt, without = "with prompt, as sampled", "without prompt, as sampled"
    assert median["clean", "Neyman-Pearson", with_prompt] < median["clean", "original", "-"] - 3
    assert median["clean", "Neyman-Pearson", with_prompt] < median["clean", "Neyman-Pearson", without] - 3
    assert median["clean", "original", "-"] < median["clean", "ln r", "-"] - 3
    assert median["30 % replaced", "Neyman-Pearson", with_prompt] > max(median["30 % replaced", "original", "-"], -1)
    (null,) = (row.log10_p for row in rows if row.attack == "another message")
    assert (null > -3).all()
