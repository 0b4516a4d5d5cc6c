"""A registry with two keys and two tokenizers, and texts that are really marked under one of them."""

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import tokenizers

from scanner.registry import add_users, list_users, load_registry, new_key, open_key
from scanner.watermark.native.keyed import GreenListMark
from tests.fixed import fix_secrets

TOKENIZER = Path(__file__).parents[2] / "jobs" / "demo" / "tokenizer.json"
MESSAGES = {"green": 2000, "gum": 500}


def write_byte_tokenizer(path: Path) -> Path:
    """A tokenizer of one token a byte, and a control token."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=257, special_tokens=["<s>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    inner.train_from_iterator([], trainer)
    inner.save(str(path))
    return path


def make_registry(folder: Path, byte_tokenizer: Path) -> Path:
    """Keys `green` (SmolLM2's tokenizer) and `gum` (one token a byte); alice and bob hold a message of each."""
    fix_secrets(folder, *MESSAGES)
    new_key(folder, "green", format="greenlist", window=2, gamma="1/4", messages=MESSAGES["green"], tokenizer=TOKENIZER)
    new_key(folder, "gum", format="gumbel", window=4, messages=MESSAGES["gum"], tokenizer=byte_tokenizer)
    # a scan's id has its start to the second alone: a user added in that second would not be named
    add_users(folder, None, ["alice", "bob"], datetime.now(UTC) - timedelta(minutes=1))
    return folder


def message_of(registry: Path, key_id: str, user: str) -> int:
    held = list_users(registry, [key_id]).filter(pl.col("user_id") == user)
    return int(held["message"][0])


class Words(NamedTuple):
    """Words that SmolLM2's tokenizer turns into one token each, wherever they stand, with that token."""

    tokens: np.ndarray
    words: list[str]


def words_of_one_token() -> Words:
    inner = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    found = {token: i for token, i in inner.get_vocab().items() if token[0] == "Ġ" and token[1:].isascii()}
    found = {token[1:]: i for token, i in found.items() if token[1:].isalpha() and token[1:].islower()}
    names = sorted(found)[::7]
    encoded = inner.encode_batch([" " + name for name in names], add_special_tokens=False)
    kept = [(found[name], name) for name, e in zip(names, encoded, strict=True) if e.ids == [found[name]]]
    return Words(np.array([i for i, _ in kept]), [name for _, name in kept])


def plain_text(words: Words) -> Callable[[int, int], str]:
    """Random text of so many words."""

    def make(length: int, seed: int) -> str:
        return "".join(
            " " + words.words[i] for i in np.random.default_rng(seed).integers(len(words.words), size=length)
        )

    return make


def marked_text(registry: Path, words: Words, key_id: str = "green") -> Callable[[int, int, int], str]:
    """Text of so many words, marked under a green-list key for a message: each word green where one of 20 is."""
    key = next(key for key in load_registry(registry).keys if key.key_id == key_id)
    mark = open_key(registry, key)
    assert isinstance(mark, GreenListMark)

    @functools.cache
    def make(message: int, length: int, seed: int) -> str:
        generator = np.random.default_rng(seed)
        chosen = list(generator.integers(len(words.words), size=mark.window))
        while len(chosen) < length:
            window = words.tokens[chosen[-mark.window :]].astype(np.uint32)
            nonces = mark.window_nonces(window[None, :])
            green = mark.green(nonces, np.array([message]), int(words.tokens.max()) + 1)[0]
            candidates = generator.integers(len(words.words), size=20)
            chosen.append(next((c for c in candidates if green[words.tokens[c]]), candidates[0]))
        return "".join(" " + words.words[i] for i in chosen)

    return make
