"""The texts of a batch of documents, read, hashed and tokenised, a few at a time so that they stay in the cache."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.input.documents import read_text
from scanner.watermark import Tokens, joined

FEW_BYTES = 2**18
"""Bytes of text that are worked on at a time. Decoded and tokenised, they take several times as much of a cache."""


class Texts(NamedTuple):
    """D stored texts, R of which can be read, as a whole or in part.

    readable: bool[D]; digests: D times SHA-256 of what is stored, None where nothing is; tokens: of R documents, by
    tokenizer; faults: by document, reason and detail of those that cannot be read, by schemas.words.DOCUMENT_REASONS,
    and of those that are read in part, by PART_REASONS.
    """

    readable: NDArray[np.bool_]
    digests: list[bytes | None]
    tokens: dict[str, Tokens]
    faults: dict[int, tuple[str, str]]


def read_texts(stored: pa.LargeBinaryArray, tokenise: Callable[[Sequence[str]], Mapping[str, Tokens]]) -> Texts:
    """Read texts as they are stored; `tokenise` gives the tokens of every tokenizer, by its name."""
    readable = np.ones(len(stored), np.bool_)
    digests: list[bytes | None] = []
    faults: dict[int, tuple[str, str]] = {}
    parts: list[Mapping[str, Tokens]] = []
    for begin, few in _few_at_a_time(stored):
        texts: list[str] = []
        for row, raw in enumerate(few.to_pylist(), begin):
            text, reason, detail = read_text(raw)
            digests.append(None if raw is None else hashlib.sha256(raw).digest())
            if reason:
                faults[row] = reason, detail
            if text is None:
                readable[row] = False
            else:
                texts.append(text)
        parts.append(tokenise(texts))
    tokens = {name: joined([part[name] for part in parts]) for name in parts[0]}
    return Texts(readable, digests, tokens, faults)


def _few_at_a_time(stored: pa.LargeBinaryArray) -> Iterator[tuple[int, pa.LargeBinaryArray]]:
    """Slices of equally many rows, each with its first row; one slice where there are no rows."""
    rows = max(len(stored) * FEW_BYTES // max(stored.nbytes, 1), 1)
    for begin in range(0, max(len(stored), 1), rows):
        yield begin, stored[begin : begin + rows]
