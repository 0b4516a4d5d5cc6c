"""A text without what hides a mark at no cost to who posts it: a second text that is scored where it differs.

Characters that show nothing, other blanks, look-alike letters, other styles and other cases leave a text as readable as
it was, and change nearly all of its tokens. What is taken out here follows from the text alone, no key has a part in
it, so p-values hold for what is left as for any text; it is a look of its own, which K counts (SPEC §3).

A kernel counts what a disguise would leave, character by character. Only a text that has enough of it is changed.
What mail and web pages add (`scanner.text.transport`) is undone first.
"""

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner import printable as characters
from scanner.printable import AS_FOREIGN, LOOK_ALIKES, SCRIPTS, STYLED, Script, combining, compose
from scanner.text.quoting import Utf8
from scanner.text.transport import NO_PROSE, arrived_text, transport_signs
from scanner.watermark.kernel import inlined, kernel

CHARACTERS_A_CHANGE = 100
"""A text is changed where a disguise left one character in so many, or more: fewer leave nearly all of a mark."""

LEAST_WORDS = 8
"""Fewest words, or lines, of a text whose capitals, or line ends, are judged: fewer are a title or an address."""

SHORT_LINES = 3
"""Words a line on average, below which line ends stand for blanks; prose and verse have more."""

LINES_OF_CODE = 10
"""Lines for each indented one, at most, in a text whose line ends are kept, since code needs them."""

_ROUNDS = 4
"""Most rounds of taking off; a second one is for what the first uncovered, such as a word of one script in capitals."""

_DOUBLED = re.compile(r"[ \t](?<=\S.)(?:(?<=\t)|(?=[ \t]))[ \t]*+(?=\S)")
"""Tabs and doubled blanks, except at the beginning of a line, where they indent.

This and `_WIDE` look back behind their first character, since `re` looks for a class of characters fast.
"""

_TRAILING = re.compile(r"(?<=\S)[ \t]++(?=\n)")
_WORD = re.compile(r"[^\W\d_]+")
_WIDE = re.compile(
    "[\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff5e](?<=[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a].)"
)
"""Full-width signs after full-width letters or digits; others are those of Chinese and Japanese texts."""

_SENTENCE = re.compile(  # every run of blanks is read once, so that time goes by the length
    r"[.!?…\ni](?:(?<=[.!?…])['\"”’)\]]*+\s++['\"“‘(\[]*+[^\W\d_]|(?<=\n)\s*+(?:['\"“‘(\[]*+[^\W\d_])?|(?<=\bi)\b)"
)
"""Beginning of a sentence up to its first letter, if a line end stands before the text; blank lines; the English I."""

_PLAIN = str.maketrans(dict(STYLED))
_MAY_BE_STYLED = re.compile("[{}\U00010000-\U0010ffff]".format("".join(filter("\U00010000".__gt__, STYLED))))
"""Letters of STYLED and all characters beyond 16 bits, with each of which `re` would compare every other."""
_FOREIGN: Mapping[str, Script] = {
    letter: script
    for script, blocks in SCRIPTS.items()
    if script != "Latin"
    for letter in (chr(code) for block in blocks for code in block)
    if letter.isalpha()
}
_MIXED = re.compile("[{0}](?:(?![{0}])(?=[^\\W\\d_])|(?<=[^\\W\\d_][{0}])(?<![{0}][{0}]))".format("".join(_FOREIGN)))
"""A letter of `_FOREIGN` beside a letter that is none, in one word."""

_LATIN = frozenset(chr(code) for block in SCRIPTS["Latin"] for code in block)

_KINDS = 10
(
    _OTHER, _LATIN_SMALL, _LATIN_CAPITAL, _FOREIGN_SMALL, _FOREIGN_CAPITAL, _BLANK, _TAB, _CHANGED, _END, _MARK,
) = range(_KINDS)  # fmt: skip
"""Kinds of characters; a mark makes one character with some of those before it, a changed one never stays."""

_BLOCKS_OF_SIGNS = (
    *range(0x3400),
    *range(0xF900, 0x10000),
    *range(0x11000, 0x11A00),
    *range(0x1BC00, 0x1D200),
    *range(0xE0000, 0xE1000),
)
"""Blocks that hold all characters of `_HIDES`, and all that compose but for those of Korean."""

_KINDS_OF_HIDDEN = (characters.INVISIBLE, characters.CONTROLS, characters.BLANKS, characters.COMBINING_LINES)
_HIDES = re.compile("|".join((*(kind.pattern for kind in _KINDS_OF_HIDDEN), "[\r\u0085\u2028\u2029]")))
"""Characters that are left out, or stand for a blank or a line end: `re` makes one class of them, which is fast."""


def normalise(text: str) -> str:
    """A text as it was before somebody hid its mark, as far as the text shows that; mostly the same text."""
    return normalise_all([text])[0]


def normalise_all(texts: Sequence[str]) -> list[str]:
    """As `normalise`, of several texts, which takes a tenth of the time of one after the other."""
    forms = normal_forms(texts, _utf8(texts))
    return [forms.get(place, text) for place, text in enumerate(texts)]


def normal_forms(texts: Sequence[str], utf8: Utf8) -> dict[int, str]:
    """The normal forms of texts that are not their own, by their places; texts and utf8 are the same texts."""
    disguised = _look_disguised(counts_of(utf8), texts)
    signs: list[int] = transport_signs(utf8.data, utf8.offsets, NO_PROSE).tolist()
    plain = {place: arrived_text(texts[place], sign) for place, sign in enumerate(signs) if sign}
    arrived = {place: text for place, text in plain.items() if text != texts[place]}
    if arrived:
        disguised[[*arrived]] = _look_disguised(counts_of(_utf8([*arrived.values()])), [*arrived.values()])
    places: list[int] = np.flatnonzero(disguised).tolist()
    forms = arrived | dict(zip(places, _undisguised([arrived.get(i, texts[i]) for i in places]), strict=True))
    return {place: form for place, form in sorted(forms.items()) if form != texts[place]}


class LetterCounts(NamedTuple):
    """What texts have, each int64[D].

    changes: characters that a disguise leaves; words, lines: those with something in them; indented: lines among them;
    initials: letters that begin words; great_initials: capitals among them; inner, great_inner: the same of all others.
    """

    changes: NDArray[np.int64]
    words: NDArray[np.int64]
    lines: NDArray[np.int64]
    indented: NDArray[np.int64]
    initials: NDArray[np.int64]
    great_initials: NDArray[np.int64]
    inner: NDArray[np.int64]
    great_inner: NDArray[np.int64]


def counts_of(texts: Utf8) -> LetterCounts:
    """What texts have, counted in one pass over their characters."""
    return LetterCounts(*_count(texts.data, texts.offsets, *_TABLES).T)


def in_capitals(counts: LetterCounts) -> NDArray[np.bool_]:
    """bool[D]: whether three words in five begin with a capital, or a quarter of other letters are capitals."""
    enough = counts.initials >= LEAST_WORDS
    return enough & ((5 * counts.great_initials > 3 * counts.initials) | (4 * counts.great_inner > counts.inner))


def in_short_lines(counts: LetterCounts) -> NDArray[np.bool_]:
    """bool[D]: whether lines are too short for prose, and too few of them indented for code."""
    enough = (counts.lines >= LEAST_WORDS) & (counts.words < SHORT_LINES * counts.lines)
    enough &= 2 * counts.initials > counts.words  # Chinese has no blanks, and numbers stand in tables
    return enough & (LINES_OF_CODE * counts.indented < counts.lines)


def _look_disguised(counts: LetterCounts, texts: Sequence[str]) -> NDArray[np.bool_]:
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    changed = (counts.changes > 0) & (counts.changes * CHARACTERS_A_CHANGE >= lengths)
    return changed | in_capitals(counts) | in_short_lines(counts)


def _undisguised(texts: Sequence[str]) -> list[str]:
    """Texts without their disguises, all of them a round at a time; a round changes no text of settled characters."""
    forms, left = [*texts], [*range(len(texts))]
    for _ in range(_ROUNDS):
        if not left:
            break
        now = _in_lines_and_sentences([_of_plain_characters(forms[place]) for place in left])
        changed = {place: form for place, form in zip(left, now, strict=True) if form != forms[place]}
        for place, form in changed.items():
            forms[place] = form
        left = [place for place, form in changed.items() if _unsettled().search(form)]
    return forms


def _utf8(texts: Sequence[str]) -> Utf8:
    stored = [text.encode(errors="surrogatepass") for text in texts]
    offsets = np.zeros(len(stored) + 1, np.int64)
    np.cumsum([*map(len, stored)], out=offsets[1:])
    return Utf8(np.frombuffer(b"".join(stored), np.uint8), offsets)


def _of_plain_characters(text: str) -> str:
    """The text with the usual characters for others that look the same, or that show nothing."""
    if not _unsettled().search(text):
        return text
    if _HIDES.search(text):
        text = characters.BLANKS.sub(" ", characters.CONTROLS.sub("", characters.LINE_ENDS.sub("\n", text)))
        text = characters.COMBINING_LINES.sub("", characters.INVISIBLE.sub("", text))
    if text.isascii():
        return text
    text = _WIDE.sub(lambda sign: chr(ord(sign[0]) - 0xFEE0), text)
    if _MAY_BE_STYLED.search(text):
        text = text.translate(_PLAIN)
    one = compose(text)
    of_one_script = _words_of_one_script(one)
    return text if text == one == of_one_script else compose(of_one_script)


@functools.cache
def _unsettled() -> re.Pattern[str]:
    """Characters that `_of_plain_characters` may change, by themselves or beside others.

    With them small letters that are not counted as such, though their capitals are: their texts are counted anew.
    """
    kinds = _TABLES[0]
    changing = np.flatnonzero(np.isin(kinds, [_CHANGED, _MARK, _FOREIGN_SMALL, _FOREIGN_CAPITAL]))
    small = "".join(chr(code).lower() for code in np.flatnonzero(kinds == _LATIN_CAPITAL))
    uncounted = (letter for letter in small if kinds[ord(letter)] not in (_LATIN_SMALL, _LATIN_CAPITAL))
    signs = {*map(chr, changing), *uncounted, *combining()}
    near = re.escape("".join(sorted(filter("\U00010000".__gt__, signs))))
    return re.compile(f"[{near}\u1100-\u11ff\uff01-\uff5e\U00010000-\U0010ffff]")  # parts of Hangul, full-width ones


def _in_lines_and_sentences(texts: Sequence[str]) -> list[str]:
    """Texts with single blanks, with blanks for the ends of short lines, and with small letters for great ones."""
    texts = [_with_single_blanks(text) for text in texts]
    counts = counts_of(_utf8(texts))  # of letters, as many in lines that are joined
    texts = [
        " ".join(text.split()) if short else text for text, short in zip(texts, in_short_lines(counts), strict=True)
    ]
    return [
        _SENTENCE.sub(_with_capital, "\n" + text.lower())[1:] if capitals else text
        for text, capitals in zip(texts, in_capitals(counts), strict=True)
    ]


def _with_single_blanks(text: str) -> str:
    if "\t" in text or "  " in text:
        text = _DOUBLED.sub(" ", text)
    return _TRAILING.sub("", text) if " \n" in text or "\t\n" in text else text


def _with_capital(begin: re.Match[str]) -> str:
    letter = begin[0][-1]
    capital = letter.upper()
    return begin[0][:-1] + (capital if capital.lower() == letter else letter)  # not SS for ß


def _words_of_one_script(text: str) -> str:
    """The text with words of one script for words that mix letters which look the same."""
    # A word tells its script by letters that no other script has. A word without such letters goes with the last mixed
    # word before it, unless a word between them is plainly of another script: so words of two languages stay.
    if not _MIXED.search(text):
        return text
    tells = (_script_of(set(word[0]), None) for word in _WORD.finditer(text))
    script: Script | None = next((script if mixed else None for script, mixed in tells if script), None)

    def mended(word: re.Match[str]) -> str:
        nonlocal script
        letters = set(word[0])
        of, mixed = _script_of(letters, script)
        if of:
            script = of if mixed or of == script else None
        return word[0] if script is None or (mixed and not of) else word[0].translate(_AS_SCRIPT[script])

    return _WORD.sub(mended, text)


def _script_of(letters: set[str], now: Script | None) -> tuple[Script | None, bool]:
    """The script of a word by letters that look like none of another, or None; and whether it has letters of two."""
    # None and two: a word with such letters of both. now: of mixed words so far, where it has Latin letters alone.
    latin = {letter for letter in letters if letter not in _FOREIGN}
    others = {_FOREIGN[letter] for letter in letters - latin}
    other = now if not others else others.pop() if len(others) == 1 else None
    surely_latin = not latin <= AS_FOREIGN.get(other or "Latin", {}).keys()
    surely_other = not letters - latin <= LOOK_ALIKES.keys()
    mixed = 0 < len(latin) < len(letters)
    if surely_latin:
        return (None, True) if surely_other or (mixed and not latin <= _LATIN) else ("Latin", mixed)
    return (other if surely_other else None), mixed and surely_other


_AS_SCRIPT: Mapping[Script, dict[int, str]] = {
    "Latin": str.maketrans(dict(LOOK_ALIKES)),
    **{script: str.maketrans(dict(letters)) for script, letters in AS_FOREIGN.items()},
}


_PAIRED = 16
"""Most kinds of characters; a state is the kind of the last one, plus this where its line has only blanks so far."""


def _kinds() -> NDArray[np.uint8]:
    """The kind of each character, uint8[0x110000]."""
    kinds = np.full(0x110000, _OTHER, np.uint8)
    for script, blocks in SCRIPTS.items():
        for letter in (chr(code) for block in blocks for code in block):
            if letter.isalpha():
                capital = letter != letter.lower()
                kinds[ord(letter)] = (_LATIN_SMALL if script == "Latin" else _FOREIGN_SMALL) + capital
    for last in {pair & 0xFFFFFFFF for pair in _composing()}:
        kinds[last] = _MARK
    for code in _BLOCKS_OF_SIGNS:
        if _HIDES.match(chr(code)) or unicodedata.normalize("NFC", chr(code)) != chr(code):
            kinds[code] = _CHANGED
    kinds[[ord(letter) for letter in STYLED if letter not in "０１２３４５６７８９"]] = _CHANGED  # usual in Japanese
    kinds[[ord(" "), ord("\t"), ord("\n")]] = _BLANK, _TAB, _END
    return kinds


def _composing() -> list[int]:
    """Pairs of characters that become one in NFC, first << 32 | second, in order."""
    pairs = []
    for code in _BLOCKS_OF_SIGNS:
        parts = unicodedata.normalize("NFD", chr(code))
        first = unicodedata.normalize("NFC", parts[:-1])
        if len(parts) > 1 == len(first) and unicodedata.normalize("NFC", parts) == chr(code):
            pairs.append(ord(first) << 32 | ord(parts[-1]))
    return sorted(pairs)


def _of_pairs() -> NDArray[np.uint64]:
    """What a state and the kind after it add to the fields of LetterCounts, a byte each, uint64[32 * 16]."""
    added = np.zeros((2, _PAIRED, _PAIRED), np.uint64)
    blanks, small, capitals = (_BLANK, _TAB, _END), (_LATIN_SMALL, _FOREIGN_SMALL), (_LATIN_CAPITAL, _FOREIGN_CAPITAL)
    letters = {*small, *capitals}
    for begins, last, kind in np.ndindex(2, _KINDS, _KINDS):
        doubled = last in (_BLANK, _TAB) and kind in blanks
        hidden = not begins and (doubled or (kind == _TAB and last != _END))
        mixed = last in letters and kind in letters and (last < _FOREIGN_SMALL) != (kind < _FOREIGN_SMALL)
        fields = (
            hidden or mixed or kind == _CHANGED,
            last in blanks and kind not in blanks,
            begins and kind not in blanks,
            begins and kind not in blanks and last != _END,
            last not in letters and kind in letters,
            last not in letters and kind in capitals,
            last in letters and kind in letters,
            last in letters and kind in capitals,
        )
        added[begins, last, kind] = sum(int(one) << 8 * place for place, one in enumerate(fields))
    return added.ravel()


def _after() -> NDArray[np.uint64]:
    """The state after each kind, without and with what it keeps of the state before, uint64[2, 16]."""
    after = np.zeros((2, _PAIRED), np.uint64)
    after[0] = np.arange(_PAIRED)
    after[0, _END] += _PAIRED
    after[1, [_BLANK, _TAB]] = _PAIRED
    return after


@kernel
def _count(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    added: NDArray[np.uint64],
    after: NDArray[np.uint64],
    pairs: NDArray[np.uint64],
) -> NDArray[np.int64]:
    """Fields of LetterCounts, int64[D, 8], of texts in UTF-8; pairs: as `_composing` gives them.

    Nothing but a character of several bytes is a branch, since a processor guesses wrong where lines end.
    """
    counts = np.zeros((len(offsets) - 1, 8), np.int64)
    one, begun, kept = np.uint64(1), after[0], after[1]
    for d in range(len(counts)):
        i, end = np.uint64(offsets[d]), np.uint64(offsets[d + 1])
        state = begun[_END]
        while i < end:
            sums, stop = np.uint64(0), min(i + np.uint64(255), end)
            while i < stop:
                code = np.uint32(data[i])
                i += one
                if code >= 0x80:
                    first = i - one
                    code, i = _decoded(data, i)
                    if kinds[code] == _MARK and first > np.uint64(offsets[d]):
                        counts[d, 0] += _composes(data, first, code, pairs)
                kind = np.uint64(kinds[code])
                sums += added[state << np.uint64(4) | kind]
                state = begun[kind] | (state & kept[kind])
            for field in range(8):
                counts[d, field] += np.int64(sums >> np.uint64(8 * field) & np.uint64(255))
    return counts


@inlined
def _decoded(data: NDArray[np.uint8], i: np.uint64) -> tuple[np.uint32, np.uint64]:
    """The character of several bytes whose second one is at a place, and the place behind it; of valid UTF-8."""
    one, six, low = np.uint64(1), np.uint32(6), np.uint32(63)
    code = np.uint32(data[i - one])
    if code < 0xE0:
        return (code & np.uint32(31)) << six | (np.uint32(data[i]) & low), i + one
    more = (np.uint32(data[i]) & low) << six | (np.uint32(data[i + one]) & low)
    if code < 0xF0:
        return (code & np.uint32(15)) << np.uint32(12) | more, i + np.uint64(2)
    last = np.uint32(data[i + np.uint64(2)]) & low
    return (code & np.uint32(7)) << np.uint32(18) | more << six | last, i + np.uint64(3)


@kernel
def _composes(data: NDArray[np.uint8], first: np.uint64, code: np.uint32, pairs: NDArray[np.uint64]) -> bool:
    """Whether a character becomes one with the character before it; first: its own first byte, none of the text's."""
    i = first - np.uint64(1)
    while data[i] & 0xC0 == 0x80:
        i -= np.uint64(1)
    before = np.uint32(data[i])
    if before >= 0x80:
        before, _ = _decoded(data, i + np.uint64(1))
    pair = np.uint64(before) << np.uint64(32) | np.uint64(code)
    place = np.searchsorted(pairs, pair)
    return bool(place < len(pairs) and pairs[place] == pair)


_TABLES: tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]] = (
    _kinds(),
    _of_pairs(),
    _after(),
    np.array(_composing(), np.uint64),
)
