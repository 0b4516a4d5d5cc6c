"""Cut texts into segments: quotations, and paragraphs of own words, by characters, by bytes and by tokens.

Plain functions define the segments. A scan cuts every text, and for a paragraph Python would take longer than a
tokenizer. So kernels go from newline to newline of the whole batch.

The reference tokenizer tells the place of each token, but takes ten times as long as tokenising. For tokenizers whose
tokens are the bytes of the text, one after the other, the lengths of the tokens give the places too. If the tokens of a
text are not as long as the text, the reference tokenizer is asked.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.text import HuggingFaceTokenizer
from scanner.text.quoting import iterate_parts
from scanner.text.utf8 import Utf8
from scanner.watermark import Tokens
from scanner.watermark.kernel import kernel
from scanner.watermark.parts import Segments

Form = Literal["paragraph", "quotation"]

_BLANK = re.compile(r"\n(?:[ \t\r]*\n)+")


class TextSegment(NamedTuple):
    """Characters begin … end−1 of a text: a quotation, or a paragraph of own words."""

    form: Form
    begin: int
    end: int


def segments_of(text: str) -> Iterator[TextSegment]:
    """Yield, in order, quotations and the paragraphs of own words between them. Blank lines separate paragraphs.

    They are yielded one by one, because a hostile text has one in three characters. A list of them would take far more
    memory than the text.
    """
    for part in iterate_parts(text):
        if part.kind == "quoted":
            yield TextSegment("quotation", part.begin, part.end)
            continue
        begin = part.begin
        for blank in _BLANK.finditer(text, part.begin, part.end):
            if begin < blank.start():
                yield TextSegment("paragraph", begin, blank.start())
            begin = blank.end()
        if begin < part.end:
            yield TextSegment("paragraph", begin, part.end)


SHORTEST_SEGMENT = 6
"""Smallest number of bytes in a segment. No tokenizer makes SHORTEST_WINDOW tokens of fewer."""

_TAB, _NEWLINE, _FORM_FEED, _RETURN, _SPACE, _SLASH, _LESS, _MORE = b"\t\n\f\r /<>"
_NAME = np.frombuffer(b"blockquote", np.uint8)
_ESCAPED = np.frombuffer(b"&gt;", np.uint8)
_LETTER_CASE = 0x20


def segments_of_texts(texts: Utf8) -> Segments:
    """Return segments, in bytes of their text.

    Each has at least SHORTEST_SEGMENT bytes and is less than the whole text.
    """
    data, offsets = texts
    begin, end = offsets[[0, -1]].tolist()
    edges = np.empty(((end - begin) // SHORTEST_SEGMENT, 3), np.int64)
    newlines, tags = (begin + np.flatnonzero(data[begin:end] == byte) for byte in (_NEWLINE, _LESS))
    first = _cut(data, offsets, newlines, *_blocks_of_bytes(data, offsets, tags), edges)
    return Segments(first, *edges[: first[-1]].T.copy())


@kernel
def _blocks_of_bytes(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], tags: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find ranges of data between tags of quotations.

    Args:
        data: UTF-8 of all texts.
        offsets: int64[D+1], where texts begin and end.
        tags: places where tags may begin.

    Returns:
        The ranges, int64[B, 2].
        The place of each text's ranges among them, int64[D+1].
    """
    blocks, many, tag = np.empty((len(tags), 2), np.int64), 0, 0
    first = np.zeros(len(offsets), np.int64)
    for d in range(len(offsets) - 1):
        begin, depth = 0, 0
        while tag < len(tags) and tags[tag] < offsets[d + 1]:
            start = tags[tag]
            end = _tag_end(data, start, offsets[d + 1])
            tag += 1
            if end == start:
                continue
            closes = data[start + 1] == _SLASH
            if not closes and not depth:
                begin = end
            if closes and depth == 1:
                blocks[many, 0], blocks[many, 1] = begin, start
                many += 1
            depth = max(depth - 1, 0) if closes else depth + 1
        if depth:
            blocks[many, 0], blocks[many, 1] = begin, offsets[d + 1]
            many += 1
        first[d + 1] = many
    return blocks[:many], first


@kernel
def _tag_end(data: NDArray[np.uint8], begin: int, last: int) -> int:
    """Return the end of a quotation's tag that begins at this place. If no tag begins here, return the place itself."""
    i = begin + 1
    if i < last and data[i] == _SLASH:
        i += 1
    for letter in _NAME:
        if i == last or data[i] | _LETTER_CASE != letter:
            return begin
        i += 1
    if i == last or not (_is_blank(data[i]) or data[i] in (_NEWLINE, _FORM_FEED, _SLASH, _MORE)):
        return begin
    while i < last and data[i] != _LESS and data[i] != _MORE:
        i += 1
    return i + 1 if i < last and data[i] == _MORE else begin


@kernel
def _cut(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    newlines: NDArray[np.int64],
    blocks: NDArray[np.int64],
    first_block: NDArray[np.int64],
    edges: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Write begin, end and number of segments into `edges`. Return the place of each text's segments, int64[D+1]."""
    first, many, line = np.zeros(len(offsets), np.int64), 0, 0
    for d in range(len(offsets) - 1):
        begin, last = offsets[d], offsets[d + 1]
        block, number = first_block[d], 0
        part, part_line, quoted, i = begin, line, False, begin
        while i < last:
            ends = line < len(newlines) and newlines[line] < last
            line_end = newlines[line] + 1 if ends else last
            line_quoted = _is_quoted(data, i, line_end)
            while i < line_end:
                while block < first_block[d + 1] and blocks[block, 1] <= i:
                    block += 1
                here, end = line_quoted, line_end
                if not line_quoted and block < first_block[d + 1]:
                    here = blocks[block, 0] <= i
                    end = min(end, blocks[block, 1 if here else 0])
                if here != quoted:
                    many, number = _part(
                        data, newlines[part_line:line], (begin, last), (part, i), quoted, edges, many, number
                    )
                    part, part_line, quoted = i, line, here
                i = end
            line += ends
        many, number = _part(data, newlines[part_line:line], (begin, last), (part, last), quoted, edges, many, number)
        first[d + 1] = many
    return first


@kernel
def _is_blank(byte: int) -> bool:
    return byte in (_SPACE, _TAB, _RETURN)


@kernel
def _is_quoted(data: NDArray[np.uint8], i: int, end: int) -> bool:
    """Return whether a line begins with the sign of a quotation, after at most three blanks."""
    indent_end = min(i + 3, end)
    while i < indent_end and (data[i] == _SPACE or data[i] == _TAB):
        i += 1
    if i < end and data[i] == _MORE:
        return True
    for letter in _ESCAPED:
        if i == end or data[i] != letter:
            return False
        i += 1
    return True


@kernel
def _part(
    data: NDArray[np.uint8],
    newlines: NDArray[np.int64],
    text: tuple[int, int],
    part: tuple[int, int],
    quoted: bool,
    edges: NDArray[np.int64],
    many: int,
    number: int,
) -> tuple[int, int]:
    """Write the segments of a part. `newlines` are the places of its line ends.

    Returns:
        The number of written segments, and of segments in the text.
    """
    begin, last = part
    line = len(newlines) if quoted else 0
    while line < len(newlines):
        end = newlines[line]
        line += 1
        while line < len(newlines) and _all_blank(data, newlines[line - 1] + 1, newlines[line]):
            line += 1
        if newlines[line - 1] > end:  # blank lines separate segments
            many, number = _write((begin, end), text, edges, many, number)
            begin = newlines[line - 1] + 1
    return _write((begin, last), text, edges, many, number)


@kernel
def _all_blank(data: NDArray[np.uint8], begin: int, end: int) -> bool:
    while begin < end and _is_blank(data[begin]):
        begin += 1
    return begin == end


@kernel
def _write(
    segment: tuple[int, int], text: tuple[int, int], edges: NDArray[np.int64], many: int, number: int
) -> tuple[int, int]:
    size = segment[1] - segment[0]
    if size <= 0:
        return many, number
    if SHORTEST_SEGMENT <= size < text[1] - text[0]:
        edges[many, 0], edges[many, 1], edges[many, 2] = segment[0] - text[0], segment[1] - text[0], number
        many += 1
    return many, number + 1


@kernel
def tokens_before(
    segments: Segments, tokens: Tokens, bytes_of: NDArray[np.int32], more: int, sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Count tokens that begin before each segment's begin and end, by the bytes of tokens.

    Args:
        segments: by bytes.
        tokens: of the documents.
        bytes_of: int32[V], number of bytes of each token id. Ids beyond have none.
        more: number of bytes in front that the tokens of a document have in addition to its own.
        sizes: int64[D], bytes of documents.

    Returns:
        Number of tokens before the begin of each segment, int64[S].
        Number of tokens before its end, int64[S].
        Whether both are right for a document, because its tokens have the expected number of bytes, bool[D].
    """
    begin, end, right = np.empty_like(segments.begin), np.empty_like(segments.end), np.ones(len(sizes), np.bool_)
    for d in range(len(sizes)):
        if segments.offsets[d] == segments.offsets[d + 1]:
            continue
        first, last = tokens.offsets[d], tokens.offsets[d + 1]
        token, place = first, 0
        for s in range(segments.offsets[d], segments.offsets[d + 1]):
            edge = segments.begin[s] + more if segments.begin[s] else 0
            while token < last and place < edge:
                place += _size(tokens.ids[token], bytes_of)
                token += 1
            begin[s] = token - first
            edge = segments.end[s] + more if segments.end[s] else 0
            while token < last and place < edge:
                place += _size(tokens.ids[token], bytes_of)
                token += 1
            end[s] = token - first
        for token_id in tokens.ids[token:last]:
            place += _size(token_id, bytes_of)
        right[d] = place == sizes[d] + more
    return begin, end, right


@kernel
def _size(token: int, bytes_of: NDArray[np.int32]) -> int:
    return bytes_of[token] if token < len(bytes_of) else 0


class Lengths(NamedTuple):
    """Lengths of tokens, in bytes of text."""

    token_bytes: NDArray[np.int32]
    """int32[V]: bytes of each token id."""
    more: int
    """Number of bytes that the tokens of a text have in addition to the text's own."""


def lengths_of(data: bytes) -> Lengths | None:
    """Return the lengths of the tokens of a tokenizer.json, given its bytes.

    ByteLevel writes each byte as one character. SentencePiece puts a space in front, writes spaces as `▁`, and writes
    bytes without a token of their own as `<0x0A>`.

    Returns:
        The lengths. None: the tokens are not the bytes of the text as written.
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


class TokenOffsets:
    """Tells, for one tokenizer, the tokens of segments of texts: those that begin in a segment."""

    def __init__(self, reference: HuggingFaceTokenizer) -> None:
        self._reference = reference
        self._lengths = lengths_of(reference.data)

    def by_tokens(self, texts: Utf8, tokens: Tokens, segments: Segments) -> Segments:
        """Return the same segments by the tokens of their text.

        Args:
            texts: of the batch.
            tokens: of these texts.
            segments: of these texts, by bytes. They begin and end with whole characters.
        """
        begin, end, right = self._by_lengths(texts, tokens, segments)
        for d in np.flatnonzero(~right & (segments.many > 0)).tolist():
            text = texts.data[texts.offsets[d] : texts.offsets[d + 1]].tobytes()
            document = slice(segments.offsets[d], segments.offsets[d + 1])
            begins = self._reference.begins(text.decode())
            begin[document], end[document] = (
                np.searchsorted(begins, _characters_before(text, edges[document]))
                for edges in (segments.begin, segments.end)
            )
        return segments._replace(begin=begin, end=end)

    def _by_lengths(
        self, texts: Utf8, tokens: Tokens, segments: Segments
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return segments by the lengths of tokens, int64[S] twice, and whether they are right, bool[D]."""
        if self._lengths is None:
            return np.zeros_like(segments.begin), np.zeros_like(segments.end), np.zeros(len(segments.many), np.bool_)
        token_bytes, more = self._lengths
        return tokens_before(segments, tokens, token_bytes, more, np.diff(texts.offsets))


def _characters_before(text: bytes, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the characters of a text before each byte, int64[S], in ascending order."""
    edges = pairwise([0, *places.tolist()])
    return np.cumsum([len(text[first:last].decode()) for first, last in edges], dtype=np.int64)


def segment_cutter(
    tokenizers: Mapping[str, HuggingFaceTokenizer],
) -> Callable[[Utf8, Mapping[str, Tokens]], dict[str, Segments]]:
    """Return a function that cuts texts into segments. A segment has the tokens that begin in it.

    Args:
        tokenizers: the reference tokenizers, by name.

    Returns:
        A function that takes texts, and their tokens under each tokenizer. It returns the segments under each
        tokenizer, by these tokens.
    """
    token_offsets = {name: TokenOffsets(tokenizer) for name, tokenizer in tokenizers.items()}

    def cut(texts: Utf8, tokens: Mapping[str, Tokens]) -> dict[str, Segments]:
        by_bytes = segments_of_texts(texts)
        return {name: token_offsets[name].by_tokens(texts, tokens[name], by_bytes) for name in tokens}

    return cut
