"""The reference tokenizer, Hugging Face `tokenizers`, and the protocol that every backend follows."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import tokenizers
import tokenizers.processors
from numpy.typing import NDArray

from scanner.watermark import Tokens

CHUNK_CHARACTERS = 1_000_000
"""Characters that are tokenised at a time: beside the token ids, the encodings of one chunk at most are held."""


class Tokenizer(Protocol):
    """An object that turns texts into token ids."""

    vocab_size: int

    @property
    def backend(self) -> str:
        """Name of the library that gives the tokens now."""

    @property
    def reference(self) -> "HuggingFaceTokenizer":
        """The reference tokenizer, by which flags are proved."""

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise D texts without special tokens: ids uint32[N], offsets int64[D+1]."""


class HuggingFaceTokenizer:
    """The reference: Hugging Face `tokenizers`, no special tokens added or read, nothing cut, nothing padded.

    Args:
        data: the bytes of a tokenizer.json.

    Raises:
        ValueError: the bytes are no tokenizer.
    """

    def __init__(self, data: bytes) -> None:
        try:
            self._inner = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises plain Exception
            raise ValueError(str(error)) from None
        self._inner.encode_special_tokens = True
        self._inner.no_truncation()
        self._inner.no_padding()
        self.data = data
        self.vocab_size: int = self._inner.get_vocab_size()

    @property
    def backend(self) -> str:
        """The library's name."""
        return "tokenizers"

    @property
    def reference(self) -> "HuggingFaceTokenizer":
        """The tokenizer itself."""
        return self

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise D texts without special tokens: ids uint32[N], offsets int64[D+1]. Texts must hold no surrogates."""
        ids: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = [np.empty(0, np.uint32)]
        for chunk in _chunks(texts):
            encodings = self._inner.encode_batch_fast(chunk, add_special_tokens=False)
            ids.extend(np.array(encoding.ids, np.uint32) for encoding in encodings)
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(part) for part in ids[1:]], out=offsets[1:])
        return Tokens(np.concatenate(ids), offsets)

    def places(self, text: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Token ids of one text, uint32[N], and where each stands: its first character and that after it, int64[N, 2].

        A character of several tokens is the place of each of them.
        """
        encoding = self._inner.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.uint32), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def begins(self, text: str) -> NDArray[np.int64]:
        """At which character each token of one text begins, int64[N], in order: white space is of its token.

        A character of several tokens is where each of them begins.
        """
        offsets = np.array(self._untrimmed.encode(text, add_special_tokens=False).offsets, np.int64).reshape(-1, 2)
        return np.asarray(np.maximum.accumulate(offsets[:, 0]), np.int64)

    @cached_property
    def _untrimmed(self) -> tokenizers.Tokenizer:
        """The same without what follows tokenising, which may count white space out of where tokens stand."""
        inner = tokenizers.Tokenizer.from_buffer(self.data)
        inner.encode_special_tokens = True
        inner.no_truncation()
        inner.no_padding()
        inner.post_processor = tokenizers.processors.Sequence([])
        return inner


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in texts:
        if chunk and size + len(text) > CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += len(text)
    if chunk:
        yield chunk
