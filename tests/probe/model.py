"""A model for the server of tests: random next-token distributions, marked as a test says for each request."""

import functools
import hashlib
import json
from collections.abc import Callable

import numpy as np

from tests.probe.planted import CANDIDATES, GREEDY, Server
from tests.probe.server import Body, Write, Written, prompt_of
from tests.support.opened import demo_tokenizer
from tests.support.two_keys import Words

ServerFor = Callable[[Body], Server]
"""How the answers to a request are drawn."""


@functools.cache
def prompt_ids(prompt: str) -> np.ndarray:
    return demo_tokenizer().encode([prompt]).ids.astype(np.uint32)


def model(words: Words, server_for: ServerFor, length: int = 150, *, greedy: bool = True) -> Write:
    """A model whose answers have so many words.

    greedy: whether it takes the likeliest token at a temperature of 0, under which nothing can be marked.
    """

    def write(body: Body, number: int) -> list[Written]:
        server = GREEDY if greedy and body.get("temperature") == 0 else server_for(body)
        prompt = prompt_ids(prompt_of(body))
        seed = int.from_bytes(hashlib.sha256(json.dumps([body, number]).encode()).digest()[:4])
        ids = _answers(server, words, np.tile(prompt, (body.get("n", 1), 1)), length, seed).tolist()
        return [
            Written("".join(f" {word_of[token]}" for token in row), row, finish="length", prompt_ids=prompt.tolist())
            for row in ids
        ]

    word_of = dict(zip(words.tokens.tolist(), words.words, strict=True))
    return write


def _answers(server: Server, words: Words, prompts: np.ndarray, length: int, seed: int) -> np.ndarray:
    """Token ids of answers to prompts, uint32[A, P]: uint32[A, length], all words of one token."""
    generator = np.random.default_rng(seed)
    rows = prompts
    for _ in range(length):
        candidates = words.tokens[generator.integers(len(words.tokens), size=(len(rows), CANDIDATES))].astype(np.uint32)
        chances = generator.dirichlet(np.full(CANDIDATES, 0.6), size=len(rows)) + 1e-9
        choice = server.draw(rows[:, rows.shape[1] - server.reach :], candidates, chances, generator)
        rows = np.concatenate([rows, candidates[np.arange(len(rows)), choice][:, None]], axis=1)
    return rows[:, prompts.shape[1] :]
