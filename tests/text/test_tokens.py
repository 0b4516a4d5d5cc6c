import json

import numpy as np
import pytest
import tokenizers
import tokenizers.processors
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner.errors import TokenizerError
from scanner.registry.tokenizer_files import pin_tokenizer
from scanner.text import HuggingFaceTokenizer, load_tokenizer, sha256_file
from scanner.text import tokenizers as module
from tests.support.opened import demo_tokenizer
from tests.support.two_keys import TOKENIZER

pytestmark = pytest.mark.usefixtures("tokenizers_opened_anew")


@pytest.fixture(scope="module")
def tokenizer():
    return demo_tokenizer()


@pytest.fixture(scope="module")
def slow():
    return HuggingFaceTokenizer(TOKENIZER.read_bytes())


@pytest.fixture(scope="module")
def reference():
    """The library's ids of one text, as a model's own code has them, but with control tokens read as text."""
    inner = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    inner.encode_special_tokens = True
    return lambda text: inner.encode(text, add_special_tokens=False).ids


def documents(encoded):
    assert encoded.ids.dtype == np.uint32
    assert encoded.offsets.dtype == np.int64
    assert encoded.offsets[0] == 0
    assert encoded.offsets[-1] == len(encoded.ids)
    return [encoded.ids[a:b].tolist() for a, b in zip(encoded.offsets, encoded.offsets[1:], strict=False)]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=50)
@given(st.lists(TEXTS, max_size=8), st.integers(1, 40))
def test_chunks_change_nothing(slow, reference, texts, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_CHARACTERS", chunk)
        assert documents(slow.encode(texts)) == [reference(text) for text in texts]


@pytest.mark.seconds
def test_control_tokens_are_text(tokenizer):
    inner = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    control = inner.token_to_id("<|im_start|>")
    assert inner.encode("<|im_start|>", add_special_tokens=False).ids == [control]
    (ids,) = documents(tokenizer.encode(["a <|im_start|> b <|endoftext|>"]))
    assert control not in ids
    assert inner.decode(ids) == "a <|im_start|> b <|endoftext|>"


def test_control_tokens_are_text_for_any_tokenizer(byte_tokenizer):
    (ids,) = documents(load_tokenizer(byte_tokenizer, sha256_file(byte_tokenizer)).encode(["<s>"]))
    assert len(ids) == 3


def test_nul_and_nothing(tokenizer, reference):
    assert documents(tokenizer.encode(["", "\0", ""])) == [[], reference("\0"), []]
    assert documents(tokenizer.encode([])) == []


@pytest.mark.costly
@pytest.mark.seconds
def test_a_tokenizer_that_cuts_and_pads_does_neither(tmp_path, reference):
    inner = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    inner.enable_truncation(3)
    inner.enable_padding(length=10)
    inner.save(str(tmp_path / "t.json"))
    texts = ["one two three four five six", "x"]
    loaded = load_tokenizer(tmp_path / "t.json", sha256_file(tmp_path / "t.json"))
    assert documents(loaded.encode(texts)) == [reference(text) for text in texts]


TEMPLATE = tokenizers.processors.TemplateProcessing(single="[B] $A [E]", special_tokens=[("[B]", 0), ("[E]", 1)])


@pytest.mark.seconds
@pytest.mark.parametrize(
    "change",
    [
        lambda inner: inner.enable_truncation(3, stride=1, strategy="only_first", direction="left"),
        lambda inner: inner.enable_padding(length=10, direction="left", pad_to_multiple_of=8),
        lambda inner: setattr(inner, "post_processor", TEMPLATE),
        lambda inner: setattr(inner.model, "dropout", 0.0),
        lambda inner: inner.add_special_tokens(["lazy"]),
    ],
    ids=["truncation", "padding", "post_processor", "no dropout", "special tokens"],
)
def test_tokens_depend_on_the_text_alone(tmp_path, slow, change):
    """Fields that cut, pad, add or read special tokens change nothing, alone or in a batch, this time or the next."""
    inner = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    change(inner)
    inner.save(str(tmp_path / "t.json"))
    loaded = load_tokenizer(tmp_path / "t.json", sha256_file(tmp_path / "t.json"))
    plain = documents(slow.encode(texts := ["The lazy dog is uncommonly international.", "x", ""]))
    for _ in range(3):
        assert documents(loaded.encode(texts)) == plain
        assert [documents(loaded.encode([text]))[0] for text in texts] == plain
        assert [loaded.reference.encode_with_offsets(text)[0].tolist() for text in texts] == plain


@pytest.mark.parametrize(("kind", "field"), [("BPE", "dropout"), ("Unigram", "alpha")])
def test_a_tokenizer_that_splits_words_by_chance_is_refused(tmp_path, kind, field):
    """Where a key is made, and, if this library samples by the field, where a tokenizer is loaded."""
    vocab = {"a": 0, "b": 1, "ab": 2} if kind == "BPE" else [["a", -1.0], ["b", -1.0], ["ab", -1.5]]
    model = {"type": kind, "vocab": vocab, "merges": [["a", "b"]], "unk_id": 0, field: 0.1}
    (tmp_path / "t.json").write_text(json.dumps({"model": model}))
    with pytest.raises(TokenizerError, match=rf"t\.json: its field model\.{field} = 0\.1 splits words at random"):
        pin_tokenizer(tmp_path, "t.json")
    loaded = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    if getattr(loaded.model, field):
        with pytest.raises(TokenizerError, match=rf"model\.{field} = 0\.1"):
            load_tokenizer(tmp_path / "t.json", sha256_file(tmp_path / "t.json"))
    else:
        assert len({tuple(loaded.encode("ababab").ids) for _ in range(20)}) == 1


def test_the_pinned_file_or_none(tmp_path):
    path = tmp_path / "t.json"
    with pytest.raises(TokenizerError, match="cannot be read"):
        load_tokenizer(path, "0" * 64)
    path.write_text("{}")
    with pytest.raises(TokenizerError, match=r"but 0+ is pinned"):
        load_tokenizer(path, "0" * 64)
    with pytest.raises(TokenizerError, match=r"is not a tokenizer\.json that can be loaded"):
        load_tokenizer(path, sha256_file(path))
