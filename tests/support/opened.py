"""Tokenizers that are loaded once for all tests of a process, and the keys of a registry opened with them."""

import functools
from pathlib import Path

from scanner.detection.attribution import OpenedKey
from scanner.registry import load_registry, open_key, tokenizer_path
from scanner.text import Tokenizer, load_tokenizer, sha256_file
from tests.support.two_keys import TOKENIZER


@functools.cache
def loaded(path: Path, sha256: str) -> Tokenizer:
    """A tokenizer; the check that its fast backend is exact takes half a second."""
    return load_tokenizer(path, sha256)


@functools.cache
def demo_tokenizer() -> Tokenizer:
    """SmolLM2's tokenizer, which the demo ships."""
    return loaded(TOKENIZER, sha256_file(TOKENIZER))


def opened(registry: Path) -> list[OpenedKey]:
    """All keys of a registry, in their order."""
    return [
        OpenedKey(key, open_key(registry, key), loaded(tokenizer_path(registry, key), key.tokenizer.sha256))
        for key in load_registry(registry).keys
    ]
