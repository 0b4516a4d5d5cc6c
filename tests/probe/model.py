"""A model for the server of tests: random next-token distributions, marked as a test says for each request."""

import functools
import hashlib
import json
from collections.abc import Callable

import numpy as np

from tests.probe.planted import GREEDY, Server, texts_of, token_ids
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
        ids = token_ids(server, words.tokens, np.tile(prompt, (body.get("n", 1), 1)), length, seed)
        texts = texts_of(words, ids)
        return [
            Written(text, row, finish="length", prompt_ids=prompt.tolist())
            for text, row in zip(texts, ids.tolist(), strict=True)
        ]

    return write
