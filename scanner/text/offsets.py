"""Which tokens begin in which segment of a text.

The reference tells where each token stands, in ten times what tokenising takes. Where a tokenizer's tokens are the
bytes of the text, one after the other, their lengths tell it too; a text whose tokens are not as long as it is asked
of the reference.
"""

import json
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.text.quoting import Utf8, tokens_before
from scanner.text.reference import HuggingFaceTokenizer
from scanner.watermark import Tokens
from scanner.watermark.span_search import Segments


class Lengths(NamedTuple):
    """How many bytes of text each token id is, int32[V], and how many more those of a whole text are than it has."""

    of_tokens: NDArray[np.int32]
    more: int


def lengths_of(data: bytes) -> Lengths | None:
    """Lengths of the tokens of a tokenizer.json, its bytes. None: they are not the bytes of the text as it stands.

    ByteLevel writes each byte as one character; SentencePiece writes spaces, of which it puts one in front, as `▁`, and
    bytes that it has no token for as `<0x0A>`.
    """
    settings = json.loads(data)
    decoder, normalizer, model = settings.get("decoder") or {}, settings.get("normalizer"), settings["model"]
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


def _each(ids: Mapping[str, int], length: Callable[[str], int]) -> NDArray[np.int32]:
    lengths = np.zeros(max(ids.values(), default=-1) + 1, np.int32)
    for token, number in ids.items():
        lengths[number] = length(token)
    return lengths


class Standing:
    """Tells for one tokenizer which tokens segments of texts have: those that begin in them."""

    def __init__(self, reference: HuggingFaceTokenizer) -> None:
        self._reference = reference
        self._lengths = lengths_of(reference.data)

    def by_tokens(self, texts: Utf8, tokens: Tokens, segments: Segments) -> Segments:
        """The same segments by the tokens of their text.

        Args:
            texts: D of them.
            tokens: of these.
            segments: of these, by bytes; they begin and end with characters.
        """
        begin, end, right = self._by_lengths(texts, tokens, segments)
        for d in np.flatnonzero(~right & (segments.many > 0)).tolist():
            text = texts.data[texts.offsets[d] : texts.offsets[d + 1]].tobytes()
            own = slice(segments.offsets[d], segments.offsets[d + 1])
            begins = self._reference.begins(text.decode())
            begin[own], end[own] = (
                np.searchsorted(begins, _characters_before(text, edges[own]))
                for edges in (segments.begin, segments.end)
            )
        return segments._replace(begin=begin, end=end)

    def _by_lengths(
        self, texts: Utf8, tokens: Tokens, segments: Segments
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """What the lengths of tokens say, and of which texts these are right: int64[S] twice, bool[D]."""
        if self._lengths is None:
            return np.zeros_like(segments.begin), np.zeros_like(segments.end), np.zeros(len(segments.many), np.bool_)
        of_tokens, more = self._lengths
        return tokens_before(segments, tokens, of_tokens, more, np.diff(texts.offsets))


def _characters_before(text: bytes, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many characters of a text stand before each byte, int64[S], which are in order."""
    edges = pairwise([0, *places.tolist()])
    return np.cumsum([len(text[first:last].decode()) for first, last in edges], dtype=np.int64)
