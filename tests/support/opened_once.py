"""What all tests of a process share, since it takes long to open: tokenizers, and the process that reads footers."""

import contextlib
import functools
from types import SimpleNamespace

import pytest

from scanner.text import tokenizers
from scanner.text.tokenizers import FastTokenizer, HuggingFaceTokenizer

_REFERENCE, _FAST = tokenizers.HuggingFaceTokenizer, tokenizers.FastTokenizer


@functools.cache
def _reference(data: bytes) -> HuggingFaceTokenizer:
    return _REFERENCE(data)


@functools.cache
def _fast(data: bytes, reference: HuggingFaceTokenizer) -> FastTokenizer:
    return _FAST(data, reference)


def keep_tokenizers(patch: pytest.MonkeyPatch) -> None:
    """Open tokenizers of the same bytes once."""
    patch.setattr(tokenizers, "HuggingFaceTokenizer", _reference)
    patch.setattr(tokenizers, "FastTokenizer", _fast)


def keep_no_tokenizer(patch: pytest.MonkeyPatch) -> None:
    """Open tokenizers as brickscan does."""
    patch.setattr(tokenizers, "HuggingFaceTokenizer", _REFERENCE)
    patch.setattr(tokenizers, "FastTokenizer", _FAST)


def keep_inspector(patch: pytest.MonkeyPatch) -> None:
    """Have scans, and readers of the texts of flags, read footers with one process."""
    from scanner.cluster import work  # late: it imports Ray, which few tests need
    from scanner.evidence import stored_texts
    from tests.support.inspection import INSPECTOR, inspect

    patch.setattr(work, "Inspector", lambda: contextlib.nullcontext(INSPECTOR))
    patch.setattr(stored_texts, "Inspector", lambda: SimpleNamespace(inspect=inspect, close=lambda: None))
