"""The fast backend, `fastokens` (the extra `fast`): flat buffers instead of Python lists, tens of times as fast.

It is trusted only as far as it was seen to agree with the reference: on golden strings when it is loaded, and on a
sample of the first texts. The reference tokenises every text that it refuses.
"""

import importlib
import logging
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scanner.errors import BackendMissing, BackendUnlike
from scanner.tokens.golden import golden_strings
from scanner.tokens.reference import HuggingFaceTokenizer
from scanner.watermark import Tokens, joined

SAMPLE_TEXTS, SAMPLE_CHARACTERS = 256, 200_000
"""First texts that both backends tokenise, and characters of them."""

_log = logging.getLogger(__name__)
Scalar = TypeVar("Scalar", np.uint32, np.int64)


class FastTokenizer:
    """A tokenizer that was found to agree with the reference.

    Args:
        data: the bytes of a tokenizer.json.
        reference: loaded from the same bytes.

    Raises:
        BackendMissing: `fastokens` is not installed.
        BackendUnlike: it cannot load these bytes, or gives other tokens for a golden string.
    """

    def __init__(self, data: bytes, reference: HuggingFaceTokenizer) -> None:
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")  # a worker has one core; read when the library is loaded
        try:
            library: Any = importlib.import_module("fastokens")
        except ImportError:
            raise BackendMissing("fastokens is not installed; the extra `fast` brings it, and faster scans") from None
        try:
            self._inner: Any = library.Tokenizer.from_json_str(data.decode())
            self._inner.no_truncation()
        except BaseException as error:
            _end_if_told_to(error)
            raise BackendUnlike(f"fastokens cannot load it ({type(error).__name__}: {str(error)[:200]})") from None
        self.vocab_size = reference.vocab_size
        self.reference = reference
        self._trusted = True
        self._texts, self._characters = SAMPLE_TEXTS, SAMPLE_CHARACTERS  # still to be compared
        self._compare(golden_strings(data))

    @property
    def backend(self) -> str:
        """The library that is trusted now."""
        return "fastokens" if self._trusted else self.reference.backend

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise D texts without special tokens: ids uint32[N], offsets int64[D+1]. Texts must hold no surrogates."""
        sample = self._sample(texts) if self._trusted else []
        if sample:
            try:
                self._compare(sample)
            except BackendUnlike as error:
                _log.warning("%s; Hugging Face tokenizers is used instead, which is slower", error)
                self._trusted = False
        return self._encode(texts) if self._trusted else self.reference.encode(texts)

    def _sample(self, texts: Sequence[str]) -> list[str]:
        """The texts that still belong to the sample, a long one cut to its beginning."""
        sample: list[str] = []
        for text in texts[: self._texts]:
            if self._characters <= 0:
                break
            sample.append(text[: self._characters])
            self._characters -= len(text)
        self._texts -= len(sample)
        return sample

    def _encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts. The reference reads texts that the backend refuses, as for a byte not in the vocabulary."""
        try:
            ids, offsets = self._inner.encode_batch_flat(list(texts), False, True)
        except BaseException as error:
            _end_if_told_to(error)
            if len(texts) == 1:
                return self.reference.encode(texts)
            half = len(texts) // 2
            return joined([self._encode(texts[:half]), self._encode(texts[half:])])
        return Tokens(_array(ids, np.uint32), _array(offsets, np.int64))

    def _compare(self, texts: Sequence[str]) -> None:
        expected, found = self.reference.encode(texts), self._encode(texts)
        if np.array_equal(expected.ids, found.ids) and np.array_equal(expected.offsets, found.offsets):
            return
        for i, text in enumerate(texts):
            a, b = (tokens.ids[tokens.offsets[i] : tokens.offsets[i + 1]].tolist() for tokens in (expected, found))
            if a != b:
                raise BackendUnlike(f"fastokens reads {text[:40]!r} as {b[:8]}, not as {a[:8]}")


def _array(buffer: bytes, kind: type[Scalar]) -> NDArray[Scalar]:
    """A buffer as an array, without a copy.

    It is marked writable, though nobody writes to it, since numba compiles kernels anew for read-only arrays. An empty
    one is made anew, since it has no place in memory.
    """
    read_only = np.frombuffer(buffer, kind)
    if not len(read_only):
        return read_only.copy()
    said = read_only.__array_interface__ | {"data": (read_only.__array_interface__["data"][0], False)}
    return np.asarray(_Held(said, read_only))


class _Held:
    """A buffer that numpy makes an array of (its array interface, version 3) and keeps alive as long as the array."""

    def __init__(self, said: dict[str, Any], buffer: object) -> None:
        self.__array_interface__ = said
        self._buffer = buffer


def _end_if_told_to(error: BaseException) -> None:
    """Raise again whatever ends the process. A panic of the library is no Exception, but the fault of one text."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error
