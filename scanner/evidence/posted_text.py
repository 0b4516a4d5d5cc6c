"""Show posts as people posted them, with an escape in place of each character that hides something.

Ids and lines of a log go through `scanner.printable.safe`, which escapes everything that cannot be seen. In posts such
characters are everyday writing: ❤️ has a variation selector, a family of emoji has joiners, Persian has non-joiners,
Thai has zero-width spaces between words, Hebrew has three marks on a letter. So a character is shown as it is where the
writing system or an emoji uses it. Everywhere else it becomes an escape, for example a joiner between Latin letters:

>>> as_posted("I \\u2764\\ufe0f it, wa\\u200dter")
'I ❤️ it, wa\\\\u200dter'
"""

import unicodedata

from scanner.printable import INVISIBLE, combines

MOST_MARKS = 8
"""Most combining characters on a letter that a script needs (Tibetan stacks). More of them paint over other lines."""

_JOINERS = "\u200c\u200d"
_VIRAMA = 9  # combining class of signs that take the vowel from a letter
_DIRECTION_MARKS = "\u061c\u200e\u200f"
_ISOLATES = "\u202a\u202b\u202c\u2066\u2067\u2068\u2069"  # not overrides, which turn words around
_WORD_BREAKS = "\u200b\u2060"
_BLACK_FLAG, _TAGS, _TAG_END = "\U0001f3f4", range(0xE0020, 0xE007F), "\U000e007f"
_NO_SPACES = (range(0x0E00, 0x1000), range(0x1000, 0x10A0), range(0x1780, 0x1800), range(0x1950, 0x1AB0))
"""Blocks of scripts without blanks between words: Thai, Lao and Tibetan, Myanmar, Khmer, Tai and Buginese."""

_JAMO = (range(0x1100, 0x1200), range(0xA960, 0xA980), range(0xD7B0, 0xD800))
_MONGOLIAN, _BRAILLE = range(0x1800, 0x18B0), range(0x2800, 0x2900)


def as_posted(text: str) -> str:
    """Return a text as it was posted, with line feeds as line ends, and escapes for characters that hide something."""
    return "".join(shown_characters(text))


def shown_characters(text: str) -> list[str]:
    """Return the shown form of each character of a text: itself, an escape, or nothing before a line feed."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return list(text)
    right_to_left = any(unicodedata.bidirectional(character) in ("R", "AL") for character in text)
    shown, marks = [], 0
    for place, character in enumerate(text):
        marks = marks + 1 if combines(character) else 0
        if character == "\r" and text[place + 1 : place + 2] == "\n":
            shown.append("")
        elif marks > MOST_MARKS or _hides(text, place, right_to_left=right_to_left):
            shown.append(character.encode("unicode_escape", "surrogatepass").decode("ascii"))
        else:
            shown.append(character)
    return shown


def is_inside_letter(text: str, place: int) -> bool:
    """Return whether a place is inside one letter or emoji, as readers see it, so that a text is not cut there."""
    if not 0 < place < len(text):
        return False
    previous_character, character = text[place - 1], text[place]
    if previous_character == "\u200d" and unicodedata.category(character) in ("So", "Sk"):
        return True
    joined = unicodedata.category(character) in ("Mn", "Me", "Mc", "Sk") or character in _JOINERS
    return joined or INVISIBLE.match(character) is not None


def _hides(text: str, place: int, *, right_to_left: bool) -> bool:
    """Return whether readers cannot see the character at a place, and the characters around it do not need it."""
    character = text[place]
    if character in "\n\t" or (character.isprintable() and character != "\u2800" and not INVISIBLE.match(character)):
        return False
    if unicodedata.category(character) == "Zs":  # a blank looks like one, whichever it is
        return False
    previous_character, next_character = text[place - 1 : place], text[place + 1 : place + 2]
    if character in _JOINERS:
        ends_word = bool(previous_character) and unicodedata.combining(previous_character) == _VIRAMA  # as in Malayalam
        return not (ends_word or (_may_be_joined(previous_character) and _may_be_joined(next_character)))
    if character in _DIRECTION_MARKS or character in _ISOLATES:
        return not right_to_left
    if character in _WORD_BREAKS:
        return not (_is_in(previous_character, *_NO_SPACES) and _is_in(next_character, *_NO_SPACES))
    if "\ufe00" <= character <= "\ufe0f":
        return unicodedata.category(previous_character or " ") not in ("So", "Sm", "Lo", "Po", "Pd", "Nd")
    if "\U000e0100" <= character <= "\U000e01ef":
        return not (previous_character and unicodedata.category(previous_character) == "Lo")
    if ord(character) in _TAGS or character == _TAG_END:
        return not _is_flag(text, place)
    if "\u180b" <= character <= "\u180f":
        return not _is_in(previous_character, _MONGOLIAN)
    if character in "\u115f\u1160":
        return not (_is_in(previous_character, *_JAMO) or _is_in(next_character, *_JAMO))
    if character == "\u034f":
        return not (previous_character and next_character and combines(previous_character) and combines(next_character))
    if character == "\u2800":
        return (
            not (_is_in(previous_character, _BRAILLE) or _is_in(next_character, _BRAILLE))
            or previous_character == "\u2800"
            or next_character == "\u2800"
        )
    return True


def _may_be_joined(character: str) -> bool:
    """Return whether a joiner has an effect beside a character: letters without case, their vowels, emoji."""
    return bool(character) and (
        unicodedata.category(character) in ("Lo", "Mn", "Mc", "So", "Sk") or character in "\ufe0f\u2640\u2642"
    )


def _is_in(character: str, *blocks: range) -> bool:
    return bool(character) and any(ord(character) in block for block in blocks)


def _is_flag(text: str, place: int) -> bool:
    """Return whether a tag follows a black flag, as in the flag of a part of a country such as Scotland."""
    begin = place
    while begin > 0 and place - begin < 8 and ord(text[begin - 1]) in _TAGS:
        begin -= 1
    return text[begin - 1 : begin] == _BLACK_FLAG
