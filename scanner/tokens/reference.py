"""The reference tokenizer, Hugging Face `tokenizers`, and the protocol that every backend follows."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import tokenizers
from numpy.typing import NDArray

from scanner.watermark import Tokens

CHUNK_CHARACTERS = 1_000_000
"""Text that is tokenised at a time: the encodings of one chunk are the most that is held beside the token ids."""


class Tokenizer(Protocol):
    """Turns texts into token ids."""

    vocab_size: int

    @property
    def backend(self) -> str:
        """The library that gives the tokens now."""

    @property
    def reference(self) -> "HuggingFaceTokenizer":
        """The backend that decides, by which flags are proved."""

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
        self.vocab_size: int = self._inner.get_vocab_size()

    @property
    def backend(self) -> str:
        """Its library."""
        return "tokenizers"

    @property
    def reference(self) -> "HuggingFaceTokenizer":
        """Itself."""
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
