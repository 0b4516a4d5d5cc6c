"""The texts of a batch of documents, read, hashed and tokenised, a few at a time so that they stay in the cache."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.input.documents import decode_text
from scanner.input.manifests import without_manifests
from scanner.text import TokenOffsets
from scanner.text.normal_form import normal_forms
from scanner.text.quoting import Utf8, segments_of_texts
from scanner.watermark import Tokens, join_batches
from scanner.watermark.span_search import Segments, joined_segments

FEW_BYTES = 2**18
"""Bytes of text that are worked on at a time. Decoded and tokenised, they take several times as much of a cache."""


class TokenisedTexts(NamedTuple):
    """D stored texts, R of which can be read, as a whole or in part.

    readable: bool[D]; manifests: bool[D], texts whose C2PA manifests are cut off; digests: SHA-256 of each of D stored
    texts, None where nothing is stored; tokens: of R documents, by tokenizer; faults: by document, reason and detail of
    texts that cannot be read, by schemas.words.DOCUMENT_REASONS, and of texts that are read in part, by PART_REASONS.
    segments: of R documents, by tokenizer, by their tokens; nothing where nobody asks for them. differing: int64[V],
    which of the R documents are others when normalised; normalised: tokens of these, by tokenizer.
    """

    readable: NDArray[np.bool_]
    manifests: NDArray[np.bool_]
    digests: list[bytes | None]
    tokens: dict[str, Tokens]
    faults: dict[int, tuple[str, str]]
    differing: NDArray[np.int64]
    normalised: dict[str, Tokens]
    segments: dict[str, Segments]


def read_texts(
    stored: pa.LargeBinaryArray,
    tokenise: Callable[[Sequence[str]], Mapping[str, Tokens]],
    *,
    normalised: bool = False,
    token_offsets: Mapping[str, TokenOffsets] | None = None,
) -> TokenisedTexts:
    """Read texts as they are stored; `tokenise` gives the tokens of every tokenizer, by its name.

    normalised: whether to give the tokens of normalised texts too, where these differ; token_offsets: by which
    to give segments too, of each tokenizer.
    """
    readable, manifests = np.ones(len(stored), np.bool_), np.zeros(len(stored), np.bool_)
    digests: list[bytes | None] = []
    faults: dict[int, tuple[str, str]] = {}
    parts: list[Mapping[str, Tokens]] = []
    segments: list[dict[str, Segments]] = []
    differing, others = list[int](), list[Mapping[str, Tokens]]()
    read = 0
    for begin, few in _few_at_a_time(stored):
        texts: list[str] = []
        as_stored = True
        for row, raw in enumerate(few.to_pylist(), begin):
            text, reason, detail = decode_text(raw)
            digests.append(None if raw is None else hashlib.sha256(raw).digest())
            if reason:
                faults[row] = reason, detail
            if text is None:
                readable[row] = False
            else:
                texts.append(without_manifests(text))
                manifests[row] = texts[-1] != text
            as_stored = as_stored and not reason and not manifests[row]
        parts.append(tokenise(texts))
        as_scored = few if as_stored else pa.array([*map(str.encode, texts)], pa.large_binary())
        if token_offsets is not None:
            segments.append(segments_of_stored(as_scored, parts[-1], token_offsets))
        if normalised:
            plain = normal_forms(texts, _utf8(as_scored))
            differing += [read + i for i in plain]
            others += [tokenise([*plain.values()])] if plain else []
        read += len(texts)
    return TokenisedTexts(
        readable,
        manifests,
        digests,
        _joined(parts),
        faults,
        np.array(differing, np.int64),
        _joined(others),
        {name: joined_segments([one[name] for one in segments]) for name in (segments[0] if segments else ())},
    )


def segments_of_stored(
    stored: pa.LargeBinaryArray, tokens: Mapping[str, Tokens], token_offsets: Mapping[str, TokenOffsets]
) -> dict[str, Segments]:
    """Segments of texts that are stored as they are scored, by tokenizer: a segment has the tokens that begin in it."""
    texts = _utf8(stored)
    by_bytes = segments_of_texts(texts)
    return {name: of_tokenizer.by_tokens(texts, tokens[name], by_bytes) for name, of_tokenizer in token_offsets.items()}


def _utf8(stored: pa.LargeBinaryArray) -> Utf8:
    """Bytes of stored texts where they lie; they are not copied."""
    _, offsets, data = stored.buffers()
    views = np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64)[stored.offset :][: len(stored) + 1]
    for view in views:
        view.setflags(write=False)  # as kernels are compiled for, whoever made the buffer
    return Utf8(*views)


def _joined(parts: Sequence[Mapping[str, Tokens]]) -> dict[str, Tokens]:
    return {name: join_batches([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _few_at_a_time(stored: pa.LargeBinaryArray) -> Iterator[tuple[int, pa.LargeBinaryArray]]:
    """Slices of equally many rows, each with its first row; one slice where there are no rows."""
    rows = max(len(stored) * FEW_BYTES // max(stored.nbytes, 1), 1)
    for begin in range(0, max(len(stored), 1), rows):
        yield begin, stored[begin : begin + rows]
