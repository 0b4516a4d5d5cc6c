"""The paper's three Gumbel scores on real completions: `python -m tests.generation.compare_scores --texts 100`.

Every completion is tokenised from its text alone, clean and after an attack. The model gives probabilities with and
without the prompt before the text, for the tokens of its sampling (top-p) or for all tokens.
"""

import argparse
import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from scanner.generation import LocalModel, Sampling, complete, load_model, token_log_probabilities
from scanner.watermark import Gumbel, LogGumbel, Positions, Tokens, batch_tokens, scored_positions
from tests.generation.neyman_pearson import neyman_pearson
from tests.support.from_packages import MODEL

PROMPTS = (Path(__file__).parents[2] / "jobs" / "demo" / "prompts.txt").read_text(encoding="utf-8").splitlines()
SECRET = hashlib.sha256(b"compare scores").digest()
WINDOW, BATCH = 4, 16
APART = 1_000_000
"""Distance of two texts' messages: more than the vocabulary, so that no two texts meet the same draws."""

REPLACED = 0.3
RATE = 1e-5
LEAST = 16
"""Tokens below which a text is left out."""


class Text(NamedTuple):
    """A marked completion, and the prompt as the model saw it."""

    message: int
    prompt: list[int]
    tokens: list[int]


class Row(NamedTuple):
    """One line of the table. log10_p: float64[n], of the same texts in every row."""

    attack: str
    score: str
    asked: str
    log10_p: np.ndarray


def write(model: LocalModel, texts: int, sampling: Sampling) -> list[Text]:
    found = []
    for start in range(0, texts, BATCH):
        messages = [APART * (i + 1) for i in range(start, min(start + BATCH, texts))]
        prompts = [PROMPTS[i % len(PROMPTS)] for i in range(start, start + len(messages))]
        done = complete(model, prompts, sampling, start, Gumbel(SECRET, WINDOW), messages)
        for message, prompt, completion in zip(messages, prompts, done, strict=True):
            tokens = model.tokenizer.encode(completion.text, add_special_tokens=False).ids
            if len(tokens) >= LEAST:
                found.append(Text(message, model.encode([prompt])[0][0].tolist(), tokens))
    return found


def replace(model: LocalModel, tokens: list[int], generator: np.random.Generator) -> list[int]:
    """Tokens of the text in which each token is replaced by a random one with chance REPLACED, tokenised again."""
    drawn = generator.integers(0, model.vocabulary, len(tokens))
    mixed = np.where(generator.random(len(tokens)) < REPLACED, drawn, tokens)
    return model.tokenizer.encode(model.decode(mixed.tolist()), add_special_tokens=False).ids


def compare(model: LocalModel, texts: list[Text], sampling: Sampling) -> list[Row]:
    generator = np.random.default_rng(5)
    attacked = {
        "clean": [t.tokens for t in texts],
        "30 % replaced": [replace(model, t.tokens, generator) for t in texts],
    }
    messages = np.array([text.message for text in texts])
    as_sampled = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    all_tokens = as_sampled | {"top_k": 0, "top_p": 1.0}
    rows = []
    for attack, lists in attacked.items():
        tokens = batch_tokens(lists)
        positions = scored_positions(tokens, WINDOW, "ngram")
        for name, mark in (("original", Gumbel(SECRET, WINDOW)), ("ln r", LogGumbel(SECRET, WINDOW))):
            rows.append(
                Row(attack, name, "-", mark.law.log10_p(mark.score(tokens, positions, messages), positions.scored))
            )
        for context, before in (("with prompt", [text.prompt for text in texts]), ("without prompt", None)):
            for how, sampled in (("as sampled", as_sampled), ("all tokens", all_tokens)):
                log_p = np.concatenate(token_log_probabilities(model, lists, before, **sampled))
                found = neyman_pearson_of(log_p, tokens, positions, messages)
                rows.append(Row(attack, "Neyman-Pearson", f"{context}, {how}", found))
        if attack == "clean":
            null = neyman_pearson_of(log_p, tokens, positions, messages + APART // 2)
            rows.append(Row("another message", "Neyman-Pearson", f"{context}, {how}", null))
    return rows


def neyman_pearson_of(log_p: np.ndarray, tokens: Tokens, positions: Positions, messages: np.ndarray) -> np.ndarray:
    draws = Gumbel(SECRET, WINDOW).draws_of(tokens, positions, messages)
    return neyman_pearson(draws, log_p[positions.index], positions.offsets).log10_p


def table(rows: list[Row]) -> str:
    """Median log10 p with a 95 % interval by order statistics, and TPR at RATE with a 95 % exact interval."""
    lines = ["| attack | score | the model is asked | n | median log10 p (95 %) | TPR at 1e-5 (95 %) |", "|---|---|---|---|---|---|"]  # fmt: skip  # noqa: E501
    for row in rows:
        n, p = len(row.log10_p), np.sort(row.log10_p)
        low, high = stats.binom.interval(0.95, n, 0.5)
        hits = int((p <= np.log10(RATE)).sum())
        share = stats.binomtest(hits, n).proportion_ci(0.95)
        median = f"{np.median(p):.1f} ({p[max(int(low) - 1, 0)]:.1f} to {p[min(int(high), n - 1)]:.1f})"
        lines.append(
            f"| {row.attack} | {row.score} | {row.asked} | {n} | {median} | {hits / n:.2f} ({share.low:.2f} to {share.high:.2f}) |"  # noqa: E501
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.generation.compare_scores", description=__doc__)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    model = load_model(options.model)
    sampling = Sampling(options.tokens, temperature=options.temperature, top_p=options.top_p)
    texts = write(model, options.texts, sampling)
    lengths = [len(text.tokens) for text in texts]
    print(f"{len(texts)} texts of {min(lengths)} to {max(lengths)} tokens (mean {np.mean(lengths):.0f}), h = {WINDOW}")
    print(table(compare(model, texts, sampling)))


if __name__ == "__main__":
    main()
