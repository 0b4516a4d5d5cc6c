"""What shows in a stored text that something is wrong with its file: a kernel reads bytes, without tokens or scores."""

import functools

import numpy as np
from numpy.typing import NDArray

from scanner.printable import BLANKS, CONTROLS, INVISIBLE
from scanner.text.utf8 import Utf8
from scanner.watermark.kernel import kernel

BLANK, HIDDEN, GARBLED = 1, 2, 4
"""Traits of a text, as bits.

BLANK: no character shows.
HIDDEN: some characters show nothing, beyond those that emoji and scripts need.
GARBLED: bytes that are no UTF-8, U+FFFD, or UTF-8 that was read in a code page of Windows: é became Ã©.
"""

_RANGES = {
    "Latin": ((0x41, 0x24F), (0x1E00, 0x1EFF), (0xFF21, 0xFF5A)),
    "Greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "Cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)),
    "Hebrew": ((0x590, 0x5FF),),
    "Arabic": ((0x600, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFF)),
    "Indic": ((0x900, 0xDFF),),
    "Southeast Asian": ((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF)),
    "Hangul": ((0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7AF)),
    "Kana": ((0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    "Han": ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
}
"""Scripts by their blocks below U+10000, first and last character."""

SCRIPTS = ("none", *_RANGES, "other")
"""Scripts by number. Of a text: that of most of its letters; Japanese is Kana, whatever share of it is Han."""

_KANA, _HAN, _OTHER = SCRIPTS.index("Kana"), SCRIPTS.index("Han"), SCRIPTS.index("other")
_SCRIPT, _HIDES, _CONTINUES, _SPACE, _JOINS = 15, 16, 32, 64, 128
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"
"""Characters that show nothing and that emoji, Persian or Indic text need. After an ASCII letter nothing needs them."""

_OF_WINDOWS = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
"""What the bytes 0x80 to 0x9F are in the code page 1252."""


@functools.cache
def character_kinds() -> NDArray[np.uint8]:
    """Return what the kernel asks of characters below U+10000: number of the script of a letter, and bits."""
    kinds = np.zeros(0x10000, np.uint8)
    scripts = np.full(0x10000, _OTHER, np.uint8)
    for script, blocks in _RANGES.items():
        for first, last in blocks:
            scripts[first : last + 1] = SCRIPTS.index(script)
    for code in range(0x10000):
        character = chr(code)
        if character.isalpha():
            kinds[code] = scripts[code]
        if INVISIBLE.match(character):
            kinds[code] |= (_JOINS if character in _JOINERS else _HIDES) | _SPACE
        if character.isspace() or BLANKS.match(character) or CONTROLS.match(character):
            kinds[code] |= _SPACE
        if 0x80 <= code <= 0xBF or character in _OF_WINDOWS:
            kinds[code] |= _CONTINUES
    kinds.setflags(write=False)
    return kinds


def traits_of(texts: Utf8) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return traits and scripts of texts: bits and numbers of SCRIPTS, uint8[D]."""
    return _traits(texts.data, texts.offsets, character_kinds())


@kernel
def _traits(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], kinds: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    traits, scripts = np.zeros(len(offsets) - 1, np.uint8), np.zeros(len(offsets) - 1, np.uint8)
    letters = np.zeros(16, np.int64)
    for d in range(len(traits)):
        letters[:] = 0
        shows = hides = garbled = after_letter = False
        pending = 0  # characters that would end a character of UTF-8 that was read as Windows' letters
        i, end = offsets[d], offsets[d + 1]
        while i < end:
            byte = data[i]
            if byte < 0x80:
                after_letter = bool(np.uint8((byte | np.uint8(32)) - np.uint8(97)) < 26)
                letters[1] += after_letter
                shows |= (byte > 32) & (byte != 127)
                pending = 0
                i += 1
                continue

            # 1. Decode a character; bytes that are none count as one.
            length = 2 if 0xC2 <= byte < 0xE0 else 3 if 0xE0 <= byte < 0xF0 else 4 if 0xF0 <= byte < 0xF5 else 1
            code = np.int64(byte) & (0x7F >> length)
            valid = length > 1 and i + length <= end
            for k in range(1, length if valid else 1):
                valid &= (data[i + k] & 0xC0) == 0x80
                code = (code << 6) | (data[i + k] & 0x3F)
            least = 0x800 if length == 3 else 0x10000 if length == 4 else 0x80
            if not valid or code < least or 0xD800 <= code < 0xE000 or code > 0x10FFFF:
                garbled, shows, after_letter, pending = True, True, False, 0
                i += 1
                continue
            i += length

            # 2. Ask what it is.
            if code >= 0x10000:
                letters[_HAN] += 0x20000 <= code < 0x40000
                hidden = bool(0xE0000 <= code < 0xE1000)
                hides |= hidden
                shows |= not hidden
                after_letter, pending = False, 0
                continue
            kind = kinds[code]
            letters[kind & _SCRIPT] += 1
            shows |= (kind & _SPACE) == 0
            hides |= (kind & _HIDES) != 0 or ((kind & _JOINS) != 0 and after_letter)
            after_letter = False

            # 3. Two to four letters whose bytes in Windows' code page are UTF-8 were a character once.
            if pending and kind & _CONTINUES:
                pending -= 1
                garbled |= pending == 0
            elif 0xC2 <= code < 0xF5:
                pending = 1 if code < 0xE0 else 2 if code < 0xF0 else 3
            else:
                pending = 0
            garbled |= code == 0xFFFD
        if letters[_KANA]:
            letters[_KANA] += letters[_HAN]
            letters[_HAN] = 0
        letters[0] = 0
        scripts[d] = letters.argmax()
        traits[d] = BLANK * (not shows) | HIDDEN * hides | GARBLED * garbled
    return traits, scripts
