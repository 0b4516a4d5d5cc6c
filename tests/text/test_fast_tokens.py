"""The fast backend gives the reference's tokens, or does not run: which one runs never changes a result."""

import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner.text import FastTokenizer, HuggingFaceTokenizer, load_tokenizer, sha256_file
from scanner.text.tokenizers import advise_fast_backend, golden_strings
from tests.support.two_keys import TOKENIZER

pytestmark = pytest.mark.usefixtures("tokenizers_opened_anew")


@pytest.fixture(scope="module")
def data():
    return TOKENIZER.read_bytes()


@pytest.fixture(scope="module")
def slow(data):
    return HuggingFaceTokenizer(data)


@pytest.fixture
def fast(data, slow):
    pytest.importorskip("fastokens")
    return FastTokenizer(data, slow)


def assert_same(expected, found):
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
        assert b.flags.writeable  # kernels are compiled for arrays that can be written


def readable(raw):
    return (raw.as_py() or b"").decode(errors="replace")


@pytest.mark.costly
@pytest.mark.seconds
def test_real_texts(fast, slow):
    texts = [
        text
        for number in (1, 2)
        for text in map(readable, pq.read_table(TOKENIZER.parent / f"sample-{number}.parquet")["text"].cast("binary"))
    ]
    assert len(texts) > 600
    assert_same(slow.encode(texts), fast.encode(texts))
    assert fast.vocab_size == slow.vocab_size


CHARACTERS = st.one_of(
    st.characters(exclude_categories=["Cs"]), st.sampled_from("  \t\n\0'’<|>ab1\x04\xa0\u200d\ufffd\U0001f600")
)


@pytest.mark.costly
@pytest.mark.seconds
@settings(max_examples=300)
@given(
    texts=st.lists(
        st.one_of(st.text(CHARACTERS, max_size=60), st.sampled_from(["<|im_start|>", "<|endoftext|>x", ""])), max_size=6
    )
)
def test_any_text(request, texts):
    fast, slow = request.getfixturevalue("shared_fast"), request.getfixturevalue("slow")
    assert_same(slow.encode(texts), fast.encode(texts))


@pytest.fixture(scope="module")
def shared_fast(data, slow):
    pytest.importorskip("fastokens")
    return FastTokenizer(data, slow)


def test_golden_strings(data):
    strings = golden_strings(data)
    assert len(strings) > 500
    assert "<|im_start|>" in strings
    assert all(text.encode() is not None for text in strings)  # no surrogates
    for needed in ("\0", "\ufffd", " " * 64, "a" * 5000):
        assert needed in strings
    assert len(set("".join(strings))) > 20_000


@pytest.mark.seconds
def test_it_is_used_where_it_agrees(data, tmp_path):
    pytest.importorskip("fastokens")
    assert isinstance(load_tokenizer(TOKENIZER, sha256_file(TOKENIZER)), FastTokenizer)


@pytest.mark.costly
@pytest.mark.seconds
def test_control_tokens_are_text(fast, data):
    control = {token["id"] for token in json.loads(data)["added_tokens"]}
    ids = fast.encode(["a <|im_start|> b <|endoftext|>"]).ids
    assert not control & set(ids.tolist())


class Imitation:
    """A backend made of the reference, with faults put in."""

    def __init__(self, slow, change=lambda texts: texts, refuse="\n\n\n\n\n"):
        self.slow, self.change, self.refuse = slow, change, refuse

    def no_truncation(self):
        pass

    def encode_batch_flat(self, texts, add_special_tokens, split_special_tokens):
        assert (add_special_tokens, split_special_tokens) == (False, True)
        if any(self.refuse in text for text in texts):
            raise BaseException("panic")
        ids, offsets = self.slow.encode(self.change(texts))
        return ids.tobytes(), offsets.tobytes()


def install(monkeypatch, make):
    tokenizer = SimpleNamespace(from_json_str=lambda text: make())
    monkeypatch.setitem(sys.modules, "fastokens", SimpleNamespace(Tokenizer=tokenizer))


@pytest.mark.seconds
def test_one_warning_when_a_golden_string_differs(monkeypatch, slow, caplog):
    install(monkeypatch, lambda: Imitation(slow, lambda texts: [text.replace("\t", " ") for text in texts]))
    loaded = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER))
    assert isinstance(loaded, HuggingFaceTokenizer)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "fastokens reads" in record.getMessage()
    assert "Hugging Face tokenizers is used instead" in record.getMessage()


@pytest.mark.seconds
def test_one_warning_when_the_first_texts_differ(monkeypatch, slow, data, caplog):
    install(monkeypatch, lambda: Imitation(slow, lambda texts: [text.replace("odd word", "even") for text in texts]))
    fast = FastTokenizer(data, slow)
    for texts in ([], ["fine"], ["fine"] * 3 + ["an odd word"], ["another odd word"], ["fine"]):
        assert_same(slow.encode(texts), fast.encode(texts))
    assert len(caplog.records) == 1
    assert "odd word" in caplog.records[0].getMessage()


@pytest.mark.seconds
@pytest.mark.parametrize("first", [["a"] * 300, ["a" * 150_000, "b" * 60_000]], ids=["texts", "characters"])
def test_only_the_first_texts_are_compared(monkeypatch, slow, data, first):
    install(monkeypatch, lambda: Imitation(slow, lambda texts: [text.replace("odd word", "even") for text in texts]))
    fast = FastTokenizer(data, slow)
    for text in first:
        fast.encode([text])
    assert_same(slow.encode(["even"]), fast.encode(["odd word"]))


@pytest.mark.seconds
def test_what_it_refuses_is_read_by_the_reference(monkeypatch, slow, data, caplog):
    install(monkeypatch, lambda: Imitation(slow, refuse="forbidden"))
    fast = FastTokenizer(data, slow)
    texts = ["a", "b forbidden", "", "c d e", "forbidden", "f"]
    assert_same(slow.encode(texts), fast.encode(texts))
    assert_same(slow.encode([]), fast.encode([]))
    assert not caplog.records


def test_one_warning_when_it_cannot_load(monkeypatch, caplog):
    def fail():
        raise ValueError("unknown model")

    install(monkeypatch, fail)
    assert isinstance(load_tokenizer(TOKENIZER, sha256_file(TOKENIZER)), HuggingFaceTokenizer)
    assert len(caplog.records) == 1
    assert "unknown model" in caplog.text


def test_tell_when_it_is_not_installed(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert isinstance(load_tokenizer(TOKENIZER, sha256_file(TOKENIZER)), HuggingFaceTokenizer)
    assert "fastokens is not installed" in caplog.text


def test_advise_the_fast_backend_where_it_is_missing(monkeypatch):
    assert advise_fast_backend() is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "five times" in advise_fast_backend()


@pytest.mark.seconds
def test_an_interruption_is_no_fault_of_a_text(monkeypatch, slow, data):
    install(monkeypatch, lambda: Imitation(slow))
    fast = FastTokenizer(data, slow)
    fast.encode(["x"])

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fast._inner, "encode_batch_flat", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fast.encode(["x", "y"])
