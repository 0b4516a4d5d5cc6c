"""Places of tokens that follow from their lengths are the places that the reference gives."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.demo import TOKENIZER
from scanner.looks.parts.segments import TokenOffsets, lengths_of
from scanner.text import HuggingFaceTokenizer
from scanner.text.tokenizers import golden_strings
from scanner.text.utf8 import Utf8
from scanner.watermark.parts import Segments

DEMO = TOKENIZER.read_bytes()
_LETTERS = [*"▁abcdefgh .,>\n", *(f"<0x{byte:02X}>" for byte in range(256))]
SENTENCE_PIECE = {
    "version": "1.0",
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
    "added_tokens": [],
    "decoder": None,
    "model": {
        "type": "BPE",
        "vocab": {token: number for number, token in enumerate([*_LETTERS, "ab", "▁a", "▁▁"])},
        "merges": ["a b", "▁ a", "▁ ▁"],
        "byte_fallback": True,
    },
}


def trimmed() -> bytes:
    """The demo's tokenizer with offsets that leave out white space."""
    told = json.loads(DEMO)
    told["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps(told).encode()


def lower_case() -> bytes:
    """A tokenizer whose tokens are not the bytes of the text."""
    return json.dumps(json.loads(DEMO) | {"normalizer": {"type": "Lowercase"}}).encode()


TOKENIZERS = {
    "demo": lambda: DEMO,
    "sentence piece": lambda: json.dumps(SENTENCE_PIECE).encode(),
    "trimmed": trimmed,
    "lower case": lower_case,
}


LARGE = [pytest.param(name, marks=pytest.mark.seconds) for name in ("trimmed", "lower case")]
"""Variants of the demo's tokenizer, which take a second to make."""


@pytest.fixture(scope="module", params=["demo", "sentence piece", *LARGE])
def standing(request) -> tuple[HuggingFaceTokenizer, TokenOffsets]:
    reference = HuggingFaceTokenizer(TOKENIZERS[request.param]())
    return reference, TokenOffsets(reference)


def utf8(texts: list[str]) -> Utf8:
    raw = [text.encode() for text in texts]
    return Utf8(np.frombuffer(b"".join(raw), np.uint8), np.cumsum([0, *map(len, raw)]))


def plainly(reference: HuggingFaceTokenizer, text: str, character: int) -> int:
    return sum(begin < character for begin in reference.begins(text).tolist())


def same(reference: HuggingFaceTokenizer, standing: TokenOffsets, texts: list[str]) -> None:
    """Both agree on three segments a text, which begin and end at random characters."""
    random = np.random.default_rng(1)
    characters = [sorted(random.integers(len(text) + 1, size=6).tolist()) for text in texts]
    each = [(text, at) for text, of_text in zip(texts, characters, strict=True) for at in of_text]
    places = np.array([len(text[:at].encode()) for text, at in each], np.int64)
    by_bytes = Segments(3 * np.arange(len(texts) + 1), places[::2], places[1::2], np.tile(np.arange(3), len(texts)))
    told = standing.by_tokens(utf8(texts), reference.encode(texts), by_bytes)
    wanted = [plainly(reference, text, at) for text, at in each]
    assert (told.begin.tolist(), told.end.tolist()) == (wanted[::2], wanted[1::2])
    assert (told.offsets.tolist(), told.number.tolist()) == (by_bytes.offsets.tolist(), by_bytes.number.tolist())


@pytest.mark.costly
@pytest.mark.seconds
def test_golden_strings(standing):
    reference, of_it = standing
    same(reference, of_it, [text[:300] for text in golden_strings(DEMO)[::7]])


@pytest.mark.seconds
@given(st.lists(st.text(st.sampled_from("ab \n>é😀▁A"), max_size=20), min_size=1, max_size=4))
def test_mixed_texts(standing, texts):
    same(*standing, texts)


@pytest.mark.seconds
def test_tokens_beyond_the_vocabulary_are_asked_of_the_reference():
    """An added token stands beyond the model's vocabulary and may be any text."""
    told = json.loads(DEMO)
    options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    told["added_tokens"].append({"id": 60_000, "content": "hello there", **options})
    reference = HuggingFaceTokenizer(json.dumps(told).encode())
    assert len(lengths_of(reference.data).token_bytes) <= reference.encode(["hello there"]).ids[0]
    same(reference, TokenOffsets(reference), ["a hello there b c hello there\n\nd", "hello there", "a b c"])


def test_texts_without_segments(standing):
    reference, of_it = standing
    for texts in ([], ["a", ""]):
        told = of_it.by_tokens(utf8(texts), reference.encode(texts), Segments.none(len(texts)))
        assert told.many.tolist() == [0] * len(texts)


@pytest.mark.costly
@pytest.mark.seconds
def test_lengths_are_known_where_tokens_are_the_text():
    known = {name: lengths_of(make()) is not None for name, make in TOKENIZERS.items()}
    assert known == {"demo": True, "sentence piece": True, "trimmed": True, "lower case": False}


@pytest.mark.seconds
def test_white_space_is_of_its_token():
    reference = HuggingFaceTokenizer(trimmed())
    ids, stand = reference.encode_with_offsets("a\n\n bc")
    assert len(ids) == len(reference.begins("a\n\n bc"))
    assert stand[-1, 0] == 4
    assert reference.begins("a\n\n bc")[-1] == 3
