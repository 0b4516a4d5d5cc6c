"""Ways to hide a mark that cost who posts a text nothing, or little: functions of a text."""

import html
import quopri
import re
import textwrap
from collections.abc import Callable
from string import ascii_letters, ascii_lowercase, ascii_uppercase

from scanner.look_alikes import STYLED

Evasion = Callable[[str], str]


def between_letters(sign: str) -> Evasion:
    return lambda text: re.sub(r"(?<=\w)(?=\w)", sign, text)


def after_letters(sign: str) -> Evasion:
    return lambda text: re.sub(r"([A-Za-z])", r"\1" + sign, text)


def for_blanks(sign: str) -> Evasion:
    return lambda text: text.replace(" ", sign)


def for_letters(plain: str, others: str) -> Evasion:
    return lambda text: text.translate(dict(zip(map(ord, plain), others, strict=True)))


def in_style(first_capital: str, first_small: str) -> Evasion:
    """Letters by their place in an alphabet of another style; a letter with a place of its own stays as it is."""
    others = [chr(ord(first_capital) + i) for i in range(26)] + [chr(ord(first_small) + i) for i in range(26)]
    return lambda text: text.translate(
        {ord(a): b for a, b in zip(ascii_uppercase + ascii_lowercase, others, strict=True) if b in STYLED}
    )


def by_word(change: Callable[[str, int], str]) -> Evasion:
    """Change each word by its place in the text."""

    def evade(text: str) -> str:
        places = iter(range(len(text)))
        return re.sub(r"[A-Za-z]+", lambda word: change(word[0], next(places)), text)

    return evade


def capitals_but_for_one(text: str) -> str:
    place = next(i for i in range(len(text) // 2, len(text)) if text[i] in ascii_lowercase)
    return text[:place].upper() + text[place] + text[place + 1 :].upper()


def every_blank(count: int, sign: str) -> Evasion:
    """Put a sign in the place of one blank in so many."""

    def evade(text: str) -> str:
        places = iter(range(1, len(text) + 1))
        return re.sub(" ", lambda blank: sign if next(places) % count == 0 else blank[0], text)

    return evade


def every_capital(count: int) -> Evasion:
    return by_word(lambda word, place: word.capitalize() if place % count == 0 else word)


def swapped(word: str, place: int) -> str:
    return word[0] + word[2] + word[1] + word[3:] if len(word) > 3 and place % 3 == 0 else word


def one_look_alike(word: str, _: int) -> str:
    return re.sub("[aceo]", lambda letter: TWELVE[1][TWELVE[0].index(letter[0])], word, count=1)


def alternating(text: str) -> str:
    return "".join(letter.upper() if i % 2 else letter.lower() for i, letter in enumerate(text))


def for_letters_and_marks(letter: str, other: str) -> Evasion:
    return lambda text: text.replace(letter, other)


def armoured(text: str) -> str:
    """The text as a reference in armour of C2PA, where blanks were once all that ended one."""
    lines = re.sub(r"\s", "\u2800", text)
    return f"-----BEGIN C2PA MANIFEST-----\nhttps://{lines}\n-----END C2PA MANIFEST-----"


TWELVE = "aceopxyijsAB", "асеорхуіјѕАВ"
LISU = "ABDEFGHJKLMNOPRSTUVWXYZ", "ꓮꓐꓓꓰꓝꓖꓧꓙꓗꓡꓟꓠꓳꓑꓣꓢꓔꓴꓦꓪꓫꓬꓜ"
SMALL_CAPITALS = "abcdefghijklmnoprstuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ"
RAISED = "abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ"
TURNED = "abcdefghijklmnopqrstuvwxyz", "ɐqɔpǝɟƃɥᴉɾʞlɯuodbɹsʇnʌʍxʎz"

EVASIONS: dict[str, Evasion] = {
    "zero-width spaces between letters": between_letters("\u200b"),
    "soft hyphens between letters": between_letters("\u00ad"),
    "word joiners between letters": between_letters("\u2060"),
    "control characters between letters": between_letters("\x01"),
    "marks of direction between letters": between_letters("\u200e"),
    "variation selectors after letters": after_letters("\ufe0f"),
    "tag characters after letters": after_letters("\U000e0041"),
    "no-break spaces for blanks": for_blanks("\u00a0"),
    "thin spaces for blanks": for_blanks("\u2009"),
    "empty Braille for blanks": for_blanks("\u2800"),
    "two blanks for one": for_blanks("  "),
    "tabs for blanks": for_blanks("\t"),
    "form feeds for blanks": for_blanks("\f"),
    "line ends for blanks": for_blanks("\n"),
    "a line end for every second blank": every_blank(2, "\n"),
    "a line end for every fourth blank": every_blank(4, "\n"),
    "a line end for every twelfth blank": every_blank(12, "\n"),
    "lines of 30 characters": lambda text: "\n".join(textwrap.fill(line, 30) for line in text.split("\n")),
    "blank lines for blanks": for_blanks("\n\n"),
    "Unicode's line separators for blanks": for_blanks("\u2028"),
    "twelve Cyrillic look-alikes throughout": for_letters(*TWELVE),
    "Greek look-alikes throughout": for_letters("aiouvpABEZHKMNOPTYX", "αιουνρΑΒΕΖΗΚΜΝΟΡΤΥΧ"),
    "one Cyrillic look-alike a word": by_word(one_look_alike),
    "capitals": str.upper,
    "capitals but for one letter": capitals_but_for_one,
    "capitals in Lisu look-alikes": lambda text: for_letters(*LISU)(text.upper()),
    "title case": str.title,
    "every second letter a capital": alternating,
    "every second word a capital": every_capital(2),
    "every tenth word a capital": every_capital(10),
    "small Roman numerals": for_letters("cdilmvx", "ⅽⅾⅰⅼⅿⅴⅹ"),
    "dotless i with a dot": for_letters_and_marks("i", "\u0131\u0307"),
    "blackletter e, Georgian o": for_letters("eo", "ꬲჿ"),
    "words reversed under an override": by_word(lambda word, _: f"\u202e{word[::-1]}\u202c"),
    "comments of HTML between words": for_blanks(" <!-- -->"),
    "soft hyphens and breaks of HTML": for_blanks(" &shy;<wbr>"),
    "armour of C2PA, empty Braille for blanks": armoured,
    "small capitals": for_letters(*SMALL_CAPITALS),
    "full-width letters": in_style("Ａ", "ａ"),
    "circled letters": in_style("Ⓐ", "ⓐ"),
    "white on black squares": lambda text: in_style("🅰", "ａ")(text.upper()),
    "bold mathematical letters": in_style("𝐀", "𝐚"),
    "raised letters": for_letters(*RAISED),
    "struck through": after_letters("\u0336"),
    "lower case": str.lower,
    "curly quotes and long dashes": lambda text: text.replace("'", "’").replace('"', "”").replace("-", "–"),
    "no signs but full stops": lambda text: re.sub(r"[^\w\s.]", "", text),
    "accents on vowels": for_letters("aeiou", "áéíóú"),
    "a blank after each letter": lambda text: " ".join(text),
    "underscores for blanks": for_blanks("_"),
    "no blanks": for_blanks(""),
    "digits for letters": for_letters("aeiost", "431057"),
    "two letters of each third long word swapped": by_word(swapped),
    "a star on both sides of each word": lambda text: re.sub(r"(\w+)", r"*\1*", text),
    "letters upside down": lambda text: for_letters(*TURNED)(text.lower()),
    "a pile of marks on each letter": after_letters("\u0316\u0321\u034e\u0363\u0489"),
    "HTML's numbers for letters": lambda text: "".join(f"&#{ord(c)};" if c in ascii_letters else c for c in text),
}
"""Evasions by their names, in the order of the guide's table (`python -m tests.bench.evasions`)."""


def wrapped(text: str, end: str) -> str:
    """Each line of a text broken after words, at 72 characters."""
    lines = (
        textwrap.wrap(line, 72, break_long_words=False, break_on_hyphens=False) or [""] for line in text.split("\n")
    )
    return "\n".join(end.join(parts) for parts in lines)


def emphasised(text: str) -> str:
    places = iter(range(len(text)))
    return re.sub(r"\w+", lambda word: f"**{word[0]}**" if next(places) % 10 == 0 else word[0], text)


PLATFORMS: dict[str, Evasion] = {
    "HTML: & < > and quotes as entities": html.escape,
    "HTML: paragraphs and line ends as tags": lambda text: (
        "<p>"
        + "</p><p>".join(part.replace("\n", "<br>") for part in html.escape(text, quote=False).split("\n\n"))
        + "</p>"
    ),
    "HTML: no-break space between sentences": lambda text: re.sub(r"(?<=[.!?]) (?=[A-Z])", "&nbsp;", text),
    "mail: lines of 72 characters": lambda text: wrapped(text, "\n"),
    "mail: lines of 72 characters, flowed (RFC 3676)": lambda text: wrapped(text, " \n"),
    "mail: quoted-printable (RFC 2045)": lambda text: quopri.encodestring(text.encode()).decode(),
    "mail: quoted lines": lambda text: "> " + text.replace("\n", "\n> "),
    "Markdown: signs with backslashes": lambda text: re.sub(r"([\\`*_{}\[\]()#+\-.!])", r"\\\1", text),
    "Markdown: backslashes where signs have a meaning": lambda text: re.sub(r"([\\`*_\[\]#])", r"\\\1", text),
    "Markdown: emphasis on each tenth word": emphasised,
}
"""Changes by platforms to texts on their way, by their names (`python -m tests.bench.evasions --platforms`)."""
