"""C2PA manifests inside of texts, which are cut off before a text is scored: nobody reads them, and a tokenizer does.

A manifest says who made a text, and is signed; its issuer is not verified here. In plain text it is a wrapper of
invisible variation selectors, a byte each (C2PA 2.4, A.8): a manifest of 1,500 bytes is thousands of tokens. In text
with comments or front matter it is a reference between two lines of armour (A.9).
"""

import re

_LEAST_SELECTOR, _FIRST_SELECTORS, _MORE_SELECTORS = 16, 0xFE00, 0xE0100


def _selector(byte: int) -> str:
    """The variation selector that stands for a byte."""
    return chr(_FIRST_SELECTORS + byte if byte < _LEAST_SELECTOR else _MORE_SELECTORS + byte - _LEAST_SELECTOR)


_MARKER = "\ufeff" + "".join(map(_selector, b"C2PATXT\0\1"))
"""Beginning of a wrapper: its mark, magic number and version."""

_LENGTH = 4  # bytes of the manifest's length, the most significant first
_WRAPPER = re.compile(_MARKER + "([\ufe00-\ufe0f\U000e0100-\U000e01ef]*+)")
"""A wrapper whole: what follows the manifest fills it up to a size."""

_BEGIN, _END = "-----BEGIN C2PA MANIFEST-----", "-----END C2PA MANIFEST-----"
_BLOCK = (
    rf"[^\S\n]*+(?:#|//|--|/\*|<!--|;|%|NOTE)?[^\S\n]*+{_BEGIN}\s{{1,2}}"
    rf"(?:https?://|data:application/c2pa;base64,)\S++\s{{1,2}}{_END}[^\S\n]*+(?:\*/|-->)?[^\S\n]*+"
)
_ARMOUR = re.compile(rf"(?:\r?\n|\A){_BLOCK}\Z|(?:(?<=\n)|\A){_BLOCK}\r?\n")
"""A block of armour with the line that it stands in: one reference without blanks, so that no words hide in it."""


def without_manifests(text: str) -> str:
    """A text without its manifests; the same object where there are none. A malformed wrapper stays whole."""
    if _MARKER in text:
        text = _WRAPPER.sub(_cut, text)
    return _ARMOUR.sub("", text) if _BEGIN in text else text


def _cut(wrapper: re.Match[str]) -> str:
    run = wrapper[1]
    length = int.from_bytes(_byte(selector) for selector in run[:_LENGTH])
    return "" if len(run) >= _LENGTH + length and len(run) >= _LENGTH else wrapper[0]


def _byte(selector: str) -> int:
    code = ord(selector)
    return code - _FIRST_SELECTORS if code < _MORE_SELECTORS else code - _MORE_SELECTORS + _LEAST_SELECTOR


def with_manifest(text: str, manifest: bytes) -> str:
    """A text with a manifest in a wrapper behind it."""
    return text + _MARKER + "".join(map(_selector, len(manifest).to_bytes(_LENGTH, "big") + manifest))
