"""Read stored texts of a batch: digests, tokens, normalised texts and segments, or the reason why one cannot be read.

A few texts are read, hashed and tokenised at a time, so that they stay in the cache.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.input.documents import decode_text
from scanner.looks.normalising import normal_forms
from scanner.printable import has_manifest, without_manifests
from scanner.text.utf8 import Utf8
from scanner.watermark import Tokens, join_batches
from scanner.watermark.parts import Segments, join_segments

FEW_BYTES = 2**19
"""Bytes of text that are worked on at a time.

Decoded and tokenised, they take several times as much of a cache. With fewer bytes, the cost of each call of a
tokenizer is paid more often, which matters for short texts and their normal forms.
"""


class TokenisedTexts(NamedTuple):
    """D stored texts. R of them can be read, as a whole or in part.

    readable: bool[D].
    manifests: bool[D], texts whose C2PA manifests are cut off.
    digests: SHA-256 of each stored text. None where nothing is stored.
    tokens: tokens of the R texts, by tokenizer.
    faults: reason and detail by document, of texts that cannot be read (schemas.words.DOCUMENT_REASONS) or only in part
        (PART_REASONS).
    differing: int64[V], places among the R texts of those whose normalised text differs.
    normalised: tokens of these V normalised texts, by tokenizer.
    segments: segments of the R texts, by tokenizer, by their tokens. Empty if no segments are tested.
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
    cut: Callable[[Utf8, Mapping[str, Tokens]], dict[str, Segments]] | None = None,
) -> TokenisedTexts:
    """Read stored texts.

    Args:
        stored: the texts of D documents.
        tokenise: returns the tokens of every tokenizer, by its name.
        normalised: whether to also tokenise normalised texts that differ.
        cut: cuts texts into segments (scanner.looks.text_parts.CutTexts). None: no segments.
    """
    readable, manifests = np.ones(len(stored), np.bool_), np.zeros(len(stored), np.bool_)
    digests: list[bytes | None] = []
    faults: dict[int, tuple[str, str]] = {}
    tokens: list[Mapping[str, Tokens]] = []
    segments: list[dict[str, Segments]] = []
    differing, normalised_tokens = list[int](), list[Mapping[str, Tokens]]()
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
                manifests[row] = texts[-1] != text and has_manifest(text)
            as_stored = as_stored and not reason and (text is None or texts[-1] == text)
        tokens.append(tokenise(texts))
        # the stored bytes are used in place unless a text of these few was changed
        as_scored = few if as_stored else pa.array([*map(str.encode, texts)], pa.large_binary())
        if cut is not None:
            segments.append(cut(utf8_of_stored(as_scored), tokens[-1]))
        if normalised:
            normal = normal_forms(texts, utf8_of_stored(as_scored))
            differing += [read + place for place in normal]
            normalised_tokens += [tokenise([*normal.values()])] if normal else []
        read += len(texts)
    return TokenisedTexts(
        readable,
        manifests,
        digests,
        _joined(tokens),
        faults,
        np.array(differing, np.int64),
        _joined(normalised_tokens),
        {name: join_segments([few[name] for few in segments]) for name in (segments[0] if segments else ())},
    )


def split_by_readable(documents: pa.RecordBatch, texts: TokenisedTexts) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return documents that can be read, and the others with digests and faults in place of their texts.

    Texts are not copied.
    """
    count = len(documents)
    columns = dict(zip(documents.schema.names, documents.columns, strict=True))
    del columns["text"]
    columns |= {name: pa.nulls(count, pa.string()) for name in ("manifest", "reason", "detail")}
    columns["text_sha256"] = pa.array(texts.digests, pa.binary())
    if texts.manifests.any():
        columns["manifest"] = pa.array(np.full(count, "c2pa"), pa.string(), mask=~texts.manifests)
    if texts.faults:
        reasons, details = zip(*(texts.faults.get(row, (None, None)) for row in range(count)), strict=True)
        columns |= {"reason": pa.array(reasons, pa.string()), "detail": pa.array(details, pa.string())}
    batch = pa.RecordBatch.from_pydict(columns)
    if texts.readable.all():
        return batch, batch.slice(0, 0)
    return batch.filter(pa.array(texts.readable)), batch.filter(pa.array(~texts.readable))


def utf8_of_stored(stored: pa.LargeBinaryArray) -> Utf8:
    """Return the bytes of stored texts in place, without a copy."""
    _, offsets, data = stored.buffers()
    views = np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64)[stored.offset :][: len(stored) + 1]
    for view in views:
        view.setflags(write=False)  # kernels are compiled for read-only arrays, whoever made the buffer
    return Utf8(*views)


def _joined(batches: Sequence[Mapping[str, Tokens]]) -> dict[str, Tokens]:
    return {name: join_batches([batch[name] for batch in batches]) for name in batches[0]} if batches else {}


def _few_at_a_time(stored: pa.LargeBinaryArray) -> Iterator[tuple[int, pa.LargeBinaryArray]]:
    """Yield slices of equally many rows, each with its first row. Without rows, yield one slice."""
    rows = max(len(stored) * FEW_BYTES // max(stored.nbytes, 1), 1)
    for begin in range(0, max(len(stored), 1), rows):
        yield begin, stored[begin : begin + rows]
