"""Undo disguises of a text that cost its poster nothing. The result is a second text, scored if it differs.

Unseen characters, other blanks, look-alike letters, other styles, line ends and capitals leave a text readable and
change nearly all of its tokens. They are undone by rules that depend only on the text, not on a key. So p-values hold
for the result as for any text. It is a look of its own, and K counts it (SPEC §3).

Three rules hold for every text:

- A character is replaced by the usual one that looks the same.
- A line end is a blank where Markdown shows none.
- Only the first word of a sentence begins with a capital. No share of capitals tells a title from a disguise, because a
  person who hides a mark would stay below that share.

A rule that would change less than one word in fifty is not applied, because so few changes leave the mark: 81 of 83
texts are still found.

A kernel reads all texts and applies the rules for characters, lines and sentences. Python handles the few texts with
unusual letters. Changes that mail and web pages add are undone first (`transport.py`).
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scanner import printable as characters
from scanner.look_alikes import LOOK_ALIKES_BY_SCRIPT, SCRIPTS, STYLED
from scanner.looks.normal_form import bidirectional
from scanner.looks.normal_form.transport import arrived_text, transport_signs
from scanner.printable import AS_FOREIGN, LOOK_ALIKES, compose
from scanner.text.utf8 import Utf8
from scanner.watermark.kernel import inlined, kernel

CHARACTERS_A_CHANGE = 250
"""A text is changed if one character in so many, or more, is disguised.

Disguising one word in fifty leaves the mark.
"""

WORDS_A_CAPITAL = 50
"""Capitals are undone if one word in so many, or more, has a capital that no sentence asks for.

Names alone reach this share in most posts. A larger share would be cheap to stay below: of 83 marked texts that are
found, 80 are found as written after one word in 50 got a capital, 73 after one in 25 and 50 after one in 10.
"""

_KINDS_OF_HIDDEN = (characters.INVISIBLE, characters.CONTROLS, characters.BLANKS, characters.COMBINING_LINES)
_HIDES = re.compile("|".join((*(kind.pattern for kind in _KINDS_OF_HIDDEN), "[\r\u0085\u2028\u2029]")))
"""Characters that are left out, or replaced by a blank or a line end. One class of characters is fast in `re`."""

_SHOWN = {
    **{chr(code): " " for code in range(0x3001) if characters.BLANKS.match(chr(code))},
    **dict.fromkeys("\u0085\u2028\u2029", "\n"),
}

_WIDE = re.compile(
    "[\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff5e](?<=[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a].)"
)
"""Full-width signs after full-width letters or digits. Other full-width signs belong to Chinese and Japanese texts.

The pattern looks back from behind its first character, because `re` finds a class of characters fast.
"""

_PLAIN = str.maketrans(dict(STYLED))
_MAY_BE_STYLED = re.compile("[{}\U00010000-\U0010ffff]".format("".join(filter("\U00010000".__gt__, STYLED))))
"""Letters of STYLED of up to 16 bits, and all characters beyond.

`re` would compare every character with each listed one beyond 16 bits.
"""

_SCRIPT_OF: Mapping[str, str] = {
    **{
        chr(code): script
        for script, runs in SCRIPTS.items()
        if script != "Latin"
        for run in runs
        for code in run
    },
    **{letter: script for script, (letters, _) in LOOK_ALIKES_BY_SCRIPT.items() for letter in letters},
}  # fmt: skip
"""Scripts of letters other than Latin ones, and of the signs and digits that look like a Latin letter."""

_LATIN = frozenset(chr(code) for run in SCRIPTS["Latin"] for code in run)
_OTHERS = "".join(filter("\U00010000".__gt__, _SCRIPT_OF)) + "\U00010000-\U0001ffff"
_LETTER = f"(?:[^\\W\\d_]|[{re.escape(''.join(letter for letter in LOOK_ALIKES if not letter.isalpha()))}])"
_WORD = re.compile(f"{_LETTER}+")
_MIXED = re.compile(f"[{_OTHERS}](?:(?<=[A-Za-z].)|(?=[A-Za-z]))")
"""A letter of another script beside a Latin one. Characters beyond 16 bits are not told apart."""

_DOTTED = re.compile("([ij\u0131\u0237])\u0307")
"""i and j, with or without their dot, followed by a combining dot. Only one dot is shown."""

_TURKISH = re.compile("[ĞğİŞş]")
"""Letters of the alphabets that have a dotless i. In a text without any of these, a dotless i means i."""

_GERMAN = (
    *("auch", "auf", "bei", "dass", "durch", "ein", "eine", "einem", "einen", "einer", "eines", "für", "ich", "ist"),
    *("kann", "mit", "nach", "nicht", "nur", "oder", "sich", "sind", "und", "über", "von", "vom", "werden", "wenn"),
    *("wie", "wir", "wird", "wurde", "zu", "zum", "zur"),
)
"""Lowercase words that tell a German sentence, in which nouns have capitals. Few of them occur in other languages."""


def find_normal_forms(texts: Sequence[str], utf8: Utf8) -> dict[int, str]:
    """Return the normal forms of texts that differ from them, by place. `texts` and `utf8` are the same texts."""
    forms, disguised = _folded(utf8)
    arrived: dict[int, str] = {}
    for place in np.flatnonzero(signs := transport_signs(utf8.data, utf8.offsets)).tolist():
        text = arrived_text(texts[place], int(signs[place]))
        if (len(texts[place]) - len(text)) * CHARACTERS_A_CHANGE >= len(texts[place]) > len(text):
            arrived[place] = text
    if arrived:
        again, disguised[[*arrived]] = _folded(Utf8.of([*arrived.values()]))
        forms |= {place: again.get(i, text) for i, (place, text) in enumerate(arrived.items())}
    places = np.flatnonzero(disguised).tolist()
    plain = [with_plain_characters(arrived.get(place, texts[place])) for place in places]
    if plain:
        again, _ = _folded(Utf8.of(plain), are_plain=True)
        forms |= {place: again.get(i, text) for i, (place, text) in enumerate(zip(places, plain, strict=True))}
    for place in (*arrived, *places):
        if forms.get(place) == texts[place]:
            del forms[place]
    return dict(sorted(forms.items()))


def _folded(texts: Utf8, *, are_plain: bool = False) -> tuple[dict[int, str], NDArray[np.bool_]]:
    """Change texts by their lines and sentences.

    Texts with enough disguised characters are not changed here, unless all texts have plain characters (`are_plain`).

    Returns:
        The changed texts, by place.
        Whether each text has enough disguised characters, bool[D].
    """
    data, ends, disguised = _fold(texts.data, texts.offsets, *_TABLES, are_plain)
    raw, stops = data.tobytes(), ends.tolist()
    bounds = enumerate(pairwise([0, *stops]))
    return {i: raw[begin:end].decode("utf-8", "surrogatepass") for i, (begin, end) in bounds if begin < end}, disguised


def with_plain_characters(text: str) -> str:
    """Replace characters by the usual ones that look the same, drop unseen ones, and put the text in reading order."""
    if "\r" in text:
        text = characters.LINE_ENDS.sub("\n", text)
    if text.isascii():
        return characters.BLANKS.sub(" ", characters.CONTROLS.sub("", text))
    if bidirectional.SIGNS.search(text):
        text = bidirectional.as_read(text)
    text = _HIDES.sub(lambda sign: _SHOWN.get(sign[0], ""), text)
    if text.isascii():
        return text
    text = _WIDE.sub(lambda sign: chr(ord(sign[0]) - 0xFEE0), compose(text))
    if _MAY_BE_STYLED.search(text):
        text = compose(text.translate(_PLAIN))
    if "\u0307" in text:
        text = _DOTTED.sub(lambda letter: "j" if letter[1] in "j\u0237" else "i", text)
    if "\u0131" in text and not _TURKISH.search(text):
        text = text.replace("\u0131", "i")
    return compose(_words_of_one_script(text)) if _MIXED.search(text) else text


def _words_of_one_script(text: str) -> str:
    """Replace words that mix look-alike letters of several scripts by words of one script."""
    # A word's script is known by letters that no other script has. A word without such letters follows the last mixed
    # word before it, unless a word between them is plainly of another script. So words of two languages stay.
    tells = (_script_of(set(word[0]), None) for word in _WORD.finditer(text))
    script: str | None = next((script if mixed else None for script, mixed in tells if script), None)

    def mended(word: re.Match[str]) -> str:
        nonlocal script
        letters = set(word[0])
        of, mixed = _script_of(letters, script)
        if of:
            script = of if mixed or of == script else None
        return word[0] if script is None or (mixed and not of) else word[0].translate(_AS_SCRIPT[script])

    return _WORD.sub(mended, text)


def _script_of(letters: set[str], now: str | None) -> tuple[str | None, bool]:
    """Return a word's script, or None, and whether the word mixes two scripts.

    The script is known by letters that look like no letter of another script.
    """
    # None and True: a word with such letters of two scripts. now: the script of mixed words so far, used if the word
    # has only Latin letters.
    latin = {letter for letter in letters if letter not in _SCRIPT_OF}
    others = {_SCRIPT_OF[letter] for letter in letters - latin}
    other = now if not others else others.pop() if len(others) == 1 else None
    surely_latin = not latin <= AS_FOREIGN.get(other or "Latin", {}).keys()
    surely_other = not letters - latin <= LOOK_ALIKES.keys()
    mixed = 0 < len(latin) < len(letters)
    if surely_latin:
        return (None, True) if surely_other or (mixed and not latin <= _LATIN) else ("Latin", mixed)
    return (other if surely_other else None), mixed and surely_other


_AS_SCRIPT: Mapping[str, dict[int, str]] = {
    "Latin": str.maketrans(dict(LOOK_ALIKES)),
    **{script: str.maketrans(dict(letters)) for script, letters in AS_FOREIGN.items()},
}


_KINDS = 14
(
    _OTHER, _SMALL, _CAPITAL, _LETTER_OF_NONE, _BLANK, _TAB, _END, _FULL_STOP, _QUOTE, _COMMA, _COLON, _DIGIT, _UNSEEN,
    _SIGN,
) = range(_KINDS)  # fmt: skip
"""Kinds of characters.

_SMALL, _CAPITAL: of scripts whose sentences begin with a capital.
_LETTER_OF_NONE: letters, with their marks, of other scripts that write blanks between words.
_QUOTE: may be before a sentence's first letter or after its end.
"""

_KIND, _CHANGED, _COMPOSING, _FOREIGN, _LATIN_LETTER = 15, 16, 32, 64, 128
"""Bits of a character.

_KIND: its kind.
_CHANGED: whether it is always replaced or dropped.
_COMPOSING: whether it may join with the character before it.
_FOREIGN: whether it is a letter of another script, among which look-alikes may hide.
_LATIN_LETTER: whether it is one of A-Z and a-z.
"""

_CASED_SCRIPTS = ("Latin", "Greek", "Cyrillic", "Armenian")

_WITHOUT_BLANKS = (
    *range(0xE00, 0x10A0),
    *range(0x1780, 0x1800),
    *range(0x1950, 0x1B80),
    *range(0x2E80, 0xA4D0),
    *range(0xA980, 0xAAE0),
    *range(0xF900, 0xFB00),
    *range(0xFE30, 0xFE50),
    *range(0xFF00, 0xFFF0),
)
"""Blocks of scripts without blanks between words, from Thai to Chinese.

A line end between such words becomes nothing.
"""

_KNOWN = 0x20000
"""Characters beyond it are Chinese ones or unseen ones, except for those that NFC changes."""


def _bits() -> NDArray[np.uint8]:
    """Return the bits of each character, uint8[0x110000]."""
    bits = np.zeros(0x110000, np.uint8)
    for code in range(_KNOWN):
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "LM":
            bits[code] = _LETTER_OF_NONE
        elif category == "Nd":
            bits[code] = _DIGIT
    bits[[*_WITHOUT_BLANKS]] = _OTHER
    for script in _CASED_SCRIPTS:
        for character in (chr(code) for run in SCRIPTS[script] for code in run):
            if character.lower() != character:
                bits[ord(character)] = _CAPITAL
            elif character.upper() != character:
                bits[ord(character)] = _SMALL
    kinds = {
        _BLANK: " ",
        _TAB: "\t",
        _END: "\n",
        _FULL_STOP: ".!?…",
        _QUOTE: "'\"“”‘’()[]",
        _SIGN: "{}*_#>~-–—•|",
        _COMMA: ",،",
        _COLON: ":;",
    }
    for kind, signs in kinds.items():
        bits[[*map(ord, signs)]] = kind
    bits[[*map(ord, _SCRIPT_OF)]] |= _FOREIGN
    bits[[*range(0x41, 0x5B), *range(0x61, 0x7B)]] |= _LATIN_LETTER
    bits[[*{pair & 0xFFFFFFFF for pair in _composing()}]] |= _COMPOSING
    for code in (*range(_KNOWN), *range(0x2F800, 0x2FA20), *range(0xE0000, 0xE1000)):
        if _HIDES.match(chr(code)):
            shown = _SHOWN.get(chr(code))
            bits[code] = _CHANGED | (_UNSEEN if shown is None else _BLANK if shown == " " else _END)
        elif unicodedata.normalize("NFC", chr(code)) != chr(code):
            bits[code] |= _CHANGED
    usual = "０１２３４５６７８９™№"  # digits in Japanese, signs in other texts
    bits[[ord(character) for character in STYLED if character not in usual]] |= _CHANGED
    bits[0x131] |= _CHANGED
    return bits


def _composing() -> list[int]:
    """List pairs of characters that become one by NFC, and a dot on a dotted letter: first << 32 | second, in order."""
    pairs = [ord(letter) << 32 | 0x307 for letter in "ij\u0131\u0237"]
    for code in (*range(0x3400), *range(0xF900, 0x10000), *range(0x11000, 0x11A00), *range(0x1D100, 0x1D200)):
        parts = unicodedata.normalize("NFD", chr(code))
        first = unicodedata.normalize("NFC", parts[:-1])
        if len(parts) > 1 == len(first) and unicodedata.normalize("NFC", parts) == chr(code):
            pairs.append(ord(first) << 32 | ord(parts[-1]))
    consonants, vowels, ends = range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A8, 0x11C3)
    pairs += [consonant << 32 | vowel for consonant in consonants for vowel in vowels]
    pairs += [syllable << 32 | end for syllable in range(0xAC00, 0xD7A4, 28) for end in ends]
    pairs += [vowel << 32 | end for vowel in vowels for end in ends]  # syllables of three parts
    return sorted({*pairs})


def _other_cases() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the small letter of each capital, and the capital of each small letter that maps back to it."""
    small, capital = np.arange(_KNOWN, dtype=np.uint32), np.arange(_KNOWN, dtype=np.uint32)
    for code in range(_KNOWN):
        letter = chr(code)
        small[code] = ord(letter.lower()[0])  # the second character of a small İ is a mark that is not seen
        if len(letter.upper()) == 1 and letter.upper().lower() == letter:
            capital[code] = ord(letter.upper())
    return small, capital


_LONGEST_GERMAN = max(map(len, _GERMAN))
_SPREAD = 0x9E3779B97F4A7C15
"""A factor that gives each word of _GERMAN its own place: the first nine bits of word · factor."""


def _german() -> NDArray[np.uint64]:
    """Return the words of _GERMAN, one byte a letter (Latin-1), each at its place in uint64[512]. 0 elsewhere."""
    words = np.zeros(512, np.uint64)
    for word in _GERMAN:
        number = int.from_bytes(word.encode("latin-1"))
        words[(number * _SPREAD % 2**64) >> 55] = number
    return words


@kernel
def _fold(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    bits: NDArray[np.uint8],
    pairs: NDArray[np.uint64],
    small: NDArray[np.uint32],
    capital: NDArray[np.uint32],
    german: NDArray[np.uint64],
    are_plain: bool,
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """Change texts of UTF-8 by lines and sentences.

    A text that does not change has no bytes in the result. A text whose characters change has none either, because it
    comes again with plain characters.

    Returns:
        The changed texts, one after the other.
        The place where each ends, int64[D].
        Whether characters of a text change, bool[D].
    """
    count, longest = len(offsets) - 1, np.int64(0)
    for d in range(count):
        longest = max(longest, offsets[d + 1] - offsets[d])
    codes, kinds = np.empty(longest + 1, np.uint32), np.empty(longest + 1, np.uint8)
    ends, disguised = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    folded, end = np.empty(len(data) + 1024, np.uint8), np.int64(0)
    drops, keeps = np.bool_(True), np.bool_(False)  # plain bools would compile `_characters` twice
    for d in range(count):
        length, hidden, hard, gaps = _characters(data, offsets[d], offsets[d + 1], bits, pairs, codes, kinds, keeps)
        seen = bool(not are_plain and hidden > 0 and hidden * CHARACTERS_A_CHANGE >= length)
        disguised[d] = seen and hard > 0
        if not disguised[d]:
            if seen:
                length, _, _, gaps = _characters(data, offsets[d], offsets[d + 1], bits, pairs, codes, kinds, drops)
            words, capitals = _sentences(codes, kinds, length, small, capital, german)
            crowded, broken = capitals > 0 and capitals * WORDS_A_CAPITAL >= words, False
            if gaps and gaps * CHARACTERS_A_CHANGE >= length:
                if capitals and not crowded:  # these capitals stay
                    _characters(data, offsets[d], offsets[d + 1], bits, pairs, codes, kinds, seen)
                length, breaks = _lines(codes, kinds, length)
                broken = bool(breaks * CHARACTERS_A_CHANGE >= length)
            if seen or broken or crowded:
                if len(folded) < end + 4 * length:
                    more = np.empty(2 * (end + 4 * length), np.uint8)
                    more[:end] = folded[:end]
                    folded = more
                end = _encoded(codes, length, folded, end)
        ends[d] = end
    return folded[:end], ends, disguised


@kernel
def _characters(
    data: NDArray[np.uint8],
    begin: np.int64,
    stop: np.int64,
    bits: NDArray[np.uint8],
    pairs: NDArray[np.uint64],
    codes: NDArray[np.uint32],
    kinds: NDArray[np.uint8],
    drops: bool | np.bool_,
) -> tuple[np.int64, np.int64, np.int64, np.int64]:
    """Write a text's characters and their kinds, followed by one _OTHER.

    Args:
        data: UTF-8 of all texts.
        begin: the text's first byte.
        stop: the byte after its last.
        bits: of each character.
        pairs: pairs of characters that become one.
        codes: the characters are written here.
        kinds: their kinds are written here.
        drops: whether unseen characters are left out.

    Returns:
        The number of written characters.
        The number of the text's characters that may be disguised.
        The number of these that are not blanks, line ends or unseen.
        The number of surplus blanks between words.
    """
    i, end, one = np.uint64(begin), np.uint64(stop), np.uint64(1)
    length, hidden, hard, gaps = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    last_bit, last_code, dotless, turkish = np.uint8(0), np.uint32(0), np.int64(0), False
    while i < end:
        code = np.uint32(data[i])
        i += one
        if code >= 0x80:
            code, i = _decoded(data, i)
            turkish |= code in (0x11E, 0x11F, 0x130, 0x15E, 0x15F)
        bit = bits[code]
        if bit & (_CHANGED | _COMPOSING | _FOREIGN) or last_bit & _FOREIGN:
            kind = bit & _KIND
            if bit & _CHANGED and (kind == _UNSEEN or _is_blank(kind)):
                hidden += 1
                if code == 0x202D or code == 0x202E:  # an override changes all characters in it
                    hidden, hard = hidden + stop - begin, hard + 1
                if kind == _UNSEEN or (code == 13 and i < end and data[i] == 10):
                    if not drops:
                        codes[length], kinds[length] = code, kind
                        length += 1
                    continue
                if drops:
                    code = np.uint32(32 if kind == _BLANK else 10)
            else:
                mixed = (bit & _FOREIGN and last_bit & _LATIN_LETTER) or (bit & _LATIN_LETTER and last_bit & _FOREIGN)
                composes = False
                if bit & _COMPOSING and last_code:
                    pair = np.uint64(last_code) << np.uint64(32) | np.uint64(code)
                    place = np.searchsorted(pairs, pair)
                    composes = bool(place < len(pairs) and pairs[place] == pair)
                if code == 0x131:
                    dotless += 1
                elif bit & _CHANGED or mixed or composes:
                    hidden, hard = hidden + 1, hard + 1
        codes[length], kinds[length] = code, bit & _KIND
        gaps += (code == 10) | (code == 9) | ((code == 32) & (last_code == 32))
        length += 1
        last_bit, last_code = bit, code
    kinds[length] = _OTHER
    if not turkish:
        hidden, hard = hidden + dotless, hard + dotless
    return length, hidden, hard, gaps


@inlined
def _is_letter(kind: np.uint8) -> bool:
    return bool(np.uint8(kind - _SMALL) <= _LETTER_OF_NONE - _SMALL)


@inlined
def _is_cased(kind: np.uint8) -> bool:
    return bool(np.uint8(kind - _SMALL) <= _CAPITAL - _SMALL)


@inlined
def _is_blank(kind: np.uint8) -> bool:
    return bool(np.uint8(kind - _BLANK) <= _END - _BLANK)


@inlined
def _joins(left: np.uint8, ends: np.int64, right: np.uint8) -> bool:
    """Return whether this number of line ends between two characters is a blank, as in Markdown and within sentences.

    One line end is a blank before a letter or a quotation. Several are a blank within a sentence, before a small
    letter.
    """
    goes_on = _is_letter(left) or left in (_COMMA, _DIGIT)
    return (ends == 1 and (_is_letter(right) or right == _QUOTE)) or (
        goes_on and _is_letter(right) and right != _CAPITAL
    )


@kernel
def _lines(codes: NDArray[np.uint32], kinds: NDArray[np.uint8], length: np.int64) -> tuple[np.int64, np.int64]:
    """Turn each run of blanks, and each line end within a paragraph, into one blank.

    Returns:
        The new length.
        The number of changed runs.
    """
    i, written, changes = np.int64(0), np.int64(0), np.int64(0)
    while i < length:
        while i < length and not (_is_blank(kinds[i]) and (kinds[i] != _BLANK or _is_blank(kinds[i + 1]))):
            codes[written] = codes[i]  # a single blank stays
            written += 1
            i += 1
        begin, ends, last_end = i, np.int64(0), i
        while i < length and _is_blank(kinds[i]):
            if kinds[i] == _END:
                ends, last_end = ends + 1, i + 1
            i += 1
        if begin == 0 or i == length:  # at the start or the end of the text
            last_end, ends = begin, np.int64(0)
        else:
            if ends == 0 or _joins(kinds[begin - 1], ends, kinds[i]):
                changes += i - begin > 1 or codes[begin] != 32
                codes[written] = 32
                written += 1
                continue
            changes += last_end - begin > ends
        for _ in range(ends):
            codes[written] = 10
            written += 1
        for place in range(last_end, i):  # indentation of a line of code
            codes[written] = codes[place]
            written += 1
    return written, changes


@kernel
def _sentences(
    codes: NDArray[np.uint32],
    kinds: NDArray[np.uint8],
    length: np.int64,
    small: NDArray[np.uint32],
    capital: NDArray[np.uint32],
    german: NDArray[np.uint64],
) -> tuple[np.int64, np.int64]:
    """Write the first letters of sentences as capitals, and all other letters small.

    A sentence begins after a full stop and a blank. A letter stays as it is at the beginning of the text, after a line
    end that stays, after a colon and after a number. The word I and German sentences stay too.

    Returns:
        The number of words.
        The number of changed words.
    """
    words, changes, i = np.int64(_is_cased(kinds[0])), np.int64(0), np.int64(0)
    for end in range(1, length):  # without a branch, so that a processor compares many letters at once
        words += _is_cased(kinds[end]) & (not _is_cased(kinds[end - 1]))
    first, stopped = 1, False  # 2: the next letter gets a capital. 1: it stays. 0: it becomes small.
    begin, is_german = np.int64(0), np.int64(-1)  # begin of the sentence; is_german −1: not looked at yet
    last_kind = np.uint8(_OTHER)
    while i < length:
        if first == 0 and not stopped:  # small letters and blanks continue a sentence: most of a text
            place = i
            while 1 << kinds[i] & (1 << _SMALL | 1 << _BLANK):
                i += 1
            if i == length:
                break
            last = i
            while last > place and kinds[last - 1] == _BLANK:
                last -= 1
            if last > place:
                last_kind = np.uint8(_SMALL)
            if kinds[i] == _CAPITAL:
                while i > place and kinds[i - 1] == _SMALL:
                    i -= 1
        kind = kinds[i]
        if _is_cased(kind):
            place, inner = i, np.uint8(0)
            i += 1
            while _is_cased(kinds[i]):
                inner |= kinds[i] == _CAPITAL
                i += 1
            changed = inner > 0 or (first == 0 and kind == _CAPITAL)
            if first == 2 and kind == _SMALL:
                changed |= capital[codes[place]] != codes[place]
            if changed and not (codes[place] == 73 and i == place + 1):
                if is_german < 0:
                    is_german = np.int64(_is_german(codes, kinds, begin, length, german))
                if not is_german:
                    changes += 1
                    _write_word(codes, place, i, first, small, capital)
            first, stopped, last_kind = 0, False, np.uint8(_SMALL)
        elif _is_blank(kind):
            ends = np.int64(0)
            while _is_blank(kinds[i]):
                ends += kinds[i] == _END
                i += 1
            if stopped:
                first, stopped, begin, is_german = 2, False, i, np.int64(-1)
            elif ends:
                if not _joins(last_kind, ends, kinds[i]):
                    first = max(first, 1)
                begin, is_german = i, np.int64(-1)
        else:
            if kind == _FULL_STOP:
                stopped, first = last_kind != _DIGIT, first if last_kind != _DIGIT else 1
            elif kind == _COLON:
                first, stopped = 1, False
            elif kind != _QUOTE and kind != _SIGN:
                first, stopped = 0 if first == 0 or kind in (_LETTER_OF_NONE, _COMMA) else 1, False
            last_kind = kind
            i += 1
    return words, changes


@inlined
def _write_word(
    codes: NDArray[np.uint32],
    begin: np.int64,
    end: np.int64,
    first: int,
    small: NDArray[np.uint32],
    capital: NDArray[np.uint32],
) -> None:
    for place in range(begin, end):
        if place > begin or first == 0:
            last = codes[place] == 0x3A3 and place > begin and place == end - 1  # a sigma that ends a word
            codes[place] = np.uint32(0x3C2) if last else small[codes[place]]
        elif first == 2:
            codes[place] = capital[codes[place]]


@kernel
def _is_german(
    codes: NDArray[np.uint32], kinds: NDArray[np.uint8], begin: np.int64, length: np.int64, german: NDArray[np.uint64]
) -> bool:
    """Return whether the sentence that begins at this place has a word that tells a German sentence."""
    i, stopped = begin, False
    while i < length:
        if _is_cased(kinds[i]):
            place = i
            while _is_cased(kinds[i]):
                i += 1
            if i - place <= _LONGEST_GERMAN:
                word, largest = np.uint64(0), np.uint32(0)
                for letter in codes[place:i]:
                    word, largest = word << np.uint64(8) | np.uint64(letter), largest | letter
                if largest < 256 and german[word * np.uint64(_SPREAD) >> np.uint64(55)] == word:
                    return True
            stopped = False
        kind = kinds[i]
        if kind == _END or (kind == _BLANK and stopped):
            return False
        stopped = kind == _FULL_STOP or (stopped and kind in (_QUOTE, _SIGN))
        i += 1
    return False


@kernel
def _encoded(codes: NDArray[np.uint32], length: np.int64, data: NDArray[np.uint8], end: np.int64) -> np.int64:
    """Write characters as UTF-8 from a place on. Return the place after them."""
    for i in range(length):  # without a branch for ASCII, because most texts are ASCII
        data[end + i] = codes[i]
    largest = np.uint32(0)
    for i in range(length):
        largest |= codes[i]
    if largest < 0x80:
        return end + length
    for i in range(length):
        code = codes[i]
        if code < 0x80:
            data[end] = code
            end += 1
            continue
        if code < 0x800:
            data[end] = 0xC0 | code >> 6
            end += 1
        else:
            if code < 0x10000:
                data[end] = 0xE0 | code >> 12
                end += 1
            else:
                data[end] = 0xF0 | code >> 18
                data[end + 1] = 0x80 | (code >> 12 & 63)
                end += 2
            data[end] = 0x80 | (code >> 6 & 63)
            end += 1
        data[end] = 0x80 | (code & 63)
        end += 1
    return end


@inlined
def _decoded(data: NDArray[np.uint8], i: np.uint64) -> tuple[np.uint32, np.uint64]:
    """Decode a character of several bytes of valid UTF-8. `i` is the place of its second byte.

    Returns:
        The character.
        The place after it.
    """
    one, six, low = np.uint64(1), np.uint32(6), np.uint32(63)
    code = np.uint32(data[i - one])
    if code < 0xE0:
        return (code & np.uint32(31)) << six | (np.uint32(data[i]) & low), i + one
    more = (np.uint32(data[i]) & low) << six | (np.uint32(data[i + one]) & low)
    if code < 0xF0:
        return (code & np.uint32(15)) << np.uint32(12) | more, i + np.uint64(2)
    last = np.uint32(data[i + np.uint64(2)]) & low
    return (code & np.uint32(7)) << np.uint32(18) | more << six | last, i + np.uint64(3)


_TABLES: tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint64]] = (
    _bits(),
    np.array(_composing(), np.uint64),
    *_other_cases(),
    _german(),
)
