"""Answers of a server that draws from random or recorded next-token distributions, under a mark of a test's choice."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import tokenizers

from scanner.probe.analysis import analyse
from scanner.registry import load_registry, new_key, open_key
from scanner.watermark import Positions, Tokens
from scanner.watermark.formats import format_of, make_format
from scanner.watermark.positions import reach_of
from tests.fixed import fix_secrets

VOCABULARY = np.arange(3_000, dtype=np.uint32)
"""Token ids of the words that servers write."""

CANDIDATES = 12
"""Tokens that may come next, at each place of an answer."""

RECORDED = Path(__file__).with_name("recorded_chances.npy")
"""Chances of a real model's likeliest tokens, float16[answers, tokens, C] (tests/bench/record_chances.py)."""

ANSWERS, LENGTH, MESSAGE = 24, 120, 7
"""Of a `Planted` registry: its answers, their tokens, and the message of their user."""

Draw = Callable[[np.ndarray, np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""From contexts uint32[A, h], candidates uint32[A, C] and their chances float64[A, C] to the place chosen, int64[A]."""


class Server(NamedTuple):
    """A server: how many tokens before a token its draws take in, and how it draws."""

    reach: int
    draw: Draw


def sampled(contexts, candidates, chances, generator):
    """Draw without a mark."""
    del contexts, candidates
    return (chances / generator.exponential(size=chances.shape)).argmax(axis=1)


def greedy(contexts, candidates, chances, generator):
    """Take the likeliest token, as at a temperature of 0."""
    del contexts, candidates, generator
    return chances.argmax(axis=1)


def scores_of(mark, contexts, candidates, messages) -> np.ndarray:
    """What each candidate would add to the score: float64[A, C]."""
    tokens, positions = documents_of(contexts, candidates)
    of_candidates = np.repeat(np.broadcast_to(messages, len(candidates)), candidates.shape[1])
    return np.asarray(mark.score(tokens, positions, of_candidates), np.float64).reshape(candidates.shape)


def documents_of(contexts, candidates) -> tuple[Tokens, Positions]:
    """A document for each candidate, behind its context, and the position of the candidate in it."""
    answers, count = candidates.shape
    rows = np.concatenate([np.repeat(contexts, count, axis=0), candidates.reshape(-1, 1)], axis=1)
    offsets = np.arange(answers * count + 1) * rows.shape[1]
    return Tokens(rows.ravel(), offsets), Positions(offsets[1:] - 1, np.arange(answers * count + 1))


def gumbel_server(mark, messages=0) -> Server:
    """Draws argmax r^(1/p), r of the mark's draws."""

    def draw(contexts, candidates, chances, generator):
        del generator
        r = -np.expm1(-scores_of(mark, contexts, candidates, messages))
        return (np.log(np.maximum(r, 1e-300)) / chances).argmax(axis=1)

    return Server(reach_of(mark.rule), draw)


def green_server(mark, messages=0, delta: float = 2.5) -> Server:
    """Raises the logits of green tokens by δ, and samples."""

    def draw(contexts, candidates, chances, generator):
        green = scores_of(mark, contexts, candidates, messages)
        return sampled(contexts, candidates, chances * np.exp(delta * green), generator)

    return Server(reach_of(mark.rule), draw)


def tournament_server(mark, layers: int | None = None) -> Server:
    """Draws by the tournament of SynthID, whose layers each shift the chances towards the tokens of bit 1."""

    def draw(contexts, candidates, chances, generator):
        bits = mark.ones(*documents_of(contexts, candidates)).reshape(*candidates.shape, -1)
        chances = chances / chances.sum(axis=1, keepdims=True)
        for layer in range(bits.shape[2] if layers is None else layers):
            bit = bits[:, :, layer]
            chances = chances * (1.0 + bit - (chances * bit).sum(axis=1, keepdims=True))
        return sampled(contexts, candidates, chances, generator)

    return Server(reach_of(mark.rule), draw)


def mixed_server(first: Server, second: Server, share: float) -> Server:
    """Draws by the second server with a chance, token by token."""

    def draw(contexts, candidates, chances, generator):
        by_first = first.draw(contexts[:, len(contexts[0]) - first.reach :], candidates, chances, generator)
        by_second = second.draw(contexts[:, len(contexts[0]) - second.reach :], candidates, chances, generator)
        return np.where(generator.random(len(candidates)) < share, by_second, by_first)

    return Server(max(first.reach, second.reach), draw)


PLAIN, GREEDY = Server(0, sampled), Server(0, greedy)


def token_ids(
    server: Server,
    prompts: np.ndarray,
    length: int,
    seed: int,
    *,
    prompt_enters: bool = True,
    recorded: np.ndarray | None = None,
) -> np.ndarray:
    """Answers to prompts, uint32[A, P]: uint32[A, length].

    Args:
        server: how tokens are drawn.
        prompts: token ids before the answers, as many as the server's draws take in or more.
        length: tokens of an answer.
        seed: of everything that the mark does not decide.
        prompt_enters: whether contexts hold the prompt; else tokens without a whole context are drawn unmarked.
        recorded: chances as in RECORDED, from which each answer takes those of one recorded answer; None: random ones.
    """
    generator = np.random.default_rng(seed)
    rows = prompts.astype(np.uint32)
    answers = None if recorded is None else recorded[generator.integers(len(recorded), size=len(rows))]
    for place in range(length):
        if answers is None:
            chances = generator.dirichlet(np.full(CANDIDATES, 0.6), size=len(rows)) + 1e-9
        else:
            chances = answers[:, place % answers.shape[1]].astype(np.float64) + 1e-9
        candidates = generator.choice(VOCABULARY, size=chances.shape)
        contexts = rows[:, rows.shape[1] - server.reach :] if server.reach else rows[:, :0]
        marks = prompt_enters or place >= server.reach
        choice = (server.draw if marks else sampled)(contexts, candidates, chances, generator)
        rows = np.concatenate([rows, candidates[np.arange(len(rows)), choice][:, None]], axis=1)
    return rows[:, prompts.shape[1] :]


def word_of(token: int) -> str:
    """The word of a token."""
    return f"word{token}"


def texts_of(ids: np.ndarray) -> list[str]:
    """The texts of token ids, each of which is a word."""
    return ["".join(f" {word_of(token)}" for token in row) for row in ids.tolist()]


def write_tokenizer(path: Path, order: np.ndarray = VOCABULARY) -> Path:
    """A tokenizer of one token a word; `order`: the word of each token."""
    vocabulary = {word_of(word): token for token, word in enumerate(order.tolist())} | {"?": len(order)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path.parent.mkdir(parents=True, exist_ok=True)
    inner.save(str(path))
    return path


def secret_for(name: str, size: int) -> bytes:
    """A secret of a format that has keys of so many bytes; of SynthID, keys below 2^63."""
    raw = hashlib.shake_256(name.encode()).digest(size)
    return (np.frombuffer(raw, ">u8") >> np.uint64(1)).astype(">u8").tobytes() if size > 64 else raw


def make_registry(folder: Path, form: str, secret: bytes, messages: int = 1, **parameters) -> Path:
    """A registry with one key, `k`, of a secret of the test's choice."""
    fix_secrets(folder, "k")
    (folder / "secrets" / "k.key").write_text(secret.hex() + "\n")
    tokenizer = write_tokenizer(folder / "words" / "tokenizer.json")
    new_key(folder, "k", format=form, messages=messages, tokenizer=tokenizer, **parameters)
    return folder


def prompts_of(count: int, seed: int) -> np.ndarray:
    """Token ids of prompts of eight words: uint32[count, 8]."""
    return np.random.default_rng([seed, 1]).choice(VOCABULARY, size=(count, 8))


def answers_table(ids: np.ndarray, prompts: np.ndarray | None = None, name: str = "sampled") -> pa.Table:
    """A table of answers of one class, with the ids of their prompts."""
    columns = {"text": texts_of(ids), "class": [name] * len(ids)}
    if prompts is not None:
        columns["prompt_ids"] = prompts.tolist()
    return pa.table(columns)


class Planted:
    """A registry with a key, and answers of servers to the same prompts."""

    def __init__(self, folder, form: str, size: int, seed: int = 0, messages: int = 1, **parameters) -> None:
        self.secret, self.seed = secret_for(f"{form} {seed}", size), seed
        self.registry = make_registry(folder, form, self.secret, messages, **parameters)
        self.key = load_registry(self.registry).keys[0]
        self.mark, self.form = open_key(self.registry, self.key), format_of(self.key)
        self.prompts = prompts_of(ANSWERS, seed)

    def changed(self, name: str | None = None, **parameters):
        """The mark of the key's secret under another format or other parameters."""
        return make_format(name or self.form.name, self.key.parameters | parameters).open(self.secret)

    def ids(self, server, *, seed: int = 0, alone: bool = False, **options) -> np.ndarray:
        """Token ids of answers; `alone`: contexts lack the prompt, as vLLM's do."""
        prompts = np.full_like(self.prompts, 2**32 - 1) if alone else self.prompts
        return token_ids(server, prompts, LENGTH, 100 * self.seed + seed, **options)

    def table(self, server, name: str = "sampled", **options) -> pa.Table:
        return answers_table(self.ids(server, **options), self.prompts, name)

    def probe(self, *tables, **options):
        """The result for the key, of tables of answers."""
        return analyse(pa.concat_tables(tables), self.registry, **options).keys[0]
