"""Where tokens stand in a text: how many of them begin before a character.

The reference tells where each token stands, in ten times what tokenising takes. Where a tokenizer's tokens are the
bytes of the text, one after the other, their lengths tell it too; a text whose tokens are not as long as it is asked
of the reference.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.tokens.reference import HuggingFaceTokenizer
from scanner.watermark import Tokens


class Lengths(NamedTuple):
    """How many bytes of text each token id is, int64[V], and how many more those of a whole text are than it has."""

    of_tokens: NDArray[np.int64]
    more: int


def lengths_of(data: bytes) -> Lengths | None:
    """Lengths of the tokens of a tokenizer.json, its bytes. None: they are not the bytes of the text as it stands.

    ByteLevel writes each byte as one character; SentencePiece writes spaces, of which it puts one in front, as `▁`, and
    bytes that it has no token for as `<0x0A>`.
    """
    told = json.loads(data)
    decoder, normalizer, model = told.get("decoder") or {}, told.get("normalizer"), told["model"]
    if model.get("type") != "BPE":
        return None
    if normalizer is None and decoder.get("type") == "ByteLevel":
        return Lengths(_each(model["vocab"], len), 0)
    if normalizer == _WITH_SPACES and model.get("byte_fallback"):
        return Lengths(_each(model["vocab"], lambda token: 1 if _BYTE.fullmatch(token) else _spaced(token)), 1)
    return None


_BYTE = re.compile("<0x[0-9A-F]{2}>")
_WITH_SPACES = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}


def _spaced(token: str) -> int:
    return len(token.replace("▁", " ").encode(errors="ignore"))


def _each(ids: Mapping[str, int], length: Callable[[str], int]) -> NDArray[np.int64]:
    lengths = np.zeros(max(ids.values(), default=-1) + 1, np.int64)
    for token, number in ids.items():
        lengths[number] = length(token)
    return lengths


class Standing:
    """Tells for one tokenizer how many tokens of texts begin before characters of them."""

    def __init__(self, reference: HuggingFaceTokenizer) -> None:
        self._reference = reference
        self._lengths = lengths_of(reference.data)

    def before(self, texts: Sequence[str], tokens: Tokens, characters: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """How many tokens of its text begin before each character, int64[C], text by text.

        Args:
            texts: D of them.
            tokens: of these.
            characters: of each text, in increasing order.
        """
        told, right = self._by_lengths(texts, tokens, characters)
        first = 0
        for d, (text, wanted) in enumerate(zip(texts, characters, strict=True)):
            if len(wanted) and not right[d]:
                told[first : first + len(wanted)] = np.searchsorted(self._reference.begins(text), wanted)
            first += len(wanted)
        return told

    def _by_lengths(
        self, texts: Sequence[str], tokens: Tokens, characters: Sequence[Sequence[int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """What the lengths of tokens say, and of which texts these are right: int64[C], bool[D]."""
        many = np.array([len(wanted) for wanted in characters], np.int64)
        if self._lengths is None or (tokens.ids >= len(self._lengths.of_tokens)).any():
            return np.zeros(many.sum(), np.int64), np.zeros(len(texts), np.bool_)
        of_tokens, more = self._lengths
        ends = np.concatenate([[0], np.cumsum(of_tokens[tokens.ids])])
        bases = ends[tokens.offsets]
        each = [np.empty(0, np.int64), *map(_bytes_at, texts, characters)]
        at = np.concatenate(each)
        at[at > 0] += more
        sizes = np.array([len(text) if text.isascii() else len(text.encode()) for text in texts], np.int64)
        whose = np.repeat(np.arange(len(texts)), many)
        before = np.searchsorted(ends[:-1], bases[whose] + at) - tokens.offsets[whose]
        return np.minimum(before, np.diff(tokens.offsets)[whose]), np.diff(bases) == sizes + more


def _bytes_at(text: str, characters: Sequence[int]) -> NDArray[np.int64]:
    """How many bytes stand before each character of a text."""
    if text.isascii():
        return np.array(characters, np.int64)
    firsts = np.concatenate([[0], np.array(characters, np.int64)])
    sizes = (len(text[first:last].encode()) for first, last in pairwise(firsts.tolist()))
    return np.cumsum(np.fromiter(sizes, np.int64, len(characters)))
