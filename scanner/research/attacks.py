"""Attack a marked text before it is scanned, as people, platforms and public removers do, and make forgeries.

All attacks are pure functions of the text, a generator and two tokenizers. Tokens are replaced, deleted and inserted
among those of the model's own tokenizer, the best one for an attacker. The result becomes text again. Detection
tokenises that text like any other.
"""

import hashlib
import random as standard
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers

from scanner.errors import TokenizerError, did_you_mean
from scanner.printable import BLANKS, INVISIBLE, with_manifest

ATTACKS_OF_REPORT = (
    "substitute:0.3",
    "delete:0.1",
    "insert:0.1",
    "paste:0.5",
    "paste:0.25",
    "paste:0.1",
    "lower",
    "homoglyphs:0.1",
    "zero-width:0.1",
    "retokenise",
)
"""Attacks of the report. The first is the paper's (Robustness Analysis)."""

HOMOGLYPHS: Mapping[str, str] = dict(zip("aceopxyABCEHKMOPTX", "асеорхуАВСЕНКМОРТХ", strict=True))
"""Latin letters, with the Cyrillic letters that look the same."""

ZERO_WIDTH = "\u200b"


@dataclass(frozen=True)
class Tools:
    """The tools of attackers.

    tokenizer: the model's tokenizer.
    other: another tokenizer, for `retokenise`.
    human: texts by people, for `paste`.
    """

    tokenizer: tokenizers.Tokenizer
    other: tokenizers.Tokenizer | None = None
    human: Sequence[str] = field(default=(), repr=False)

    @classmethod
    def load(cls, tokenizer: Path, other: Path | None = None, human: Sequence[str] = ()) -> "Tools":
        """Read the tokenizers from their tokenizer.json. The model's reads special tokens as text, as a scan does.

        Raises:
            TokenizerError: one is missing or is no tokenizer.
        """
        loaded = _load(tokenizer)
        loaded.encode_special_tokens = True
        return cls(loaded, None if other is None else _load(other), human)

    @property
    def ordinary(self) -> int:
        """Return the smallest id that is not drawn as a random token. Tokens added to the vocabulary begin there."""
        return self.tokenizer.get_vocab_size(with_added_tokens=False)

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text. Special tokens are read as text."""
        encoded: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return encoded


def _load(path: Path) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(f"tokenizer {path}: cannot be loaded ({error}); name a tokenizer.json") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def attack(name: str, text: str, random: np.random.Generator, tools: Tools) -> str:
    """Attack a text.

    name: as in schemas.evaluation.Attack, for example `substitute:0.3`.

    Raises:
        ValueError: no attack has this name.
    """
    kind, _, rate = name.partition(":")
    if kind not in ATTACKS:
        near = did_you_mean(name, ATTACKS_OF_REPORT)
        raise ValueError(
            f"attack {name!r} is unknown{near}; allowed: {', '.join(ATTACKS_OF_REPORT)}, also with other rates"
        )
    return ATTACKS[kind](text, float(rate or 0), random, tools)


def substitute(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Replace each token with probability `rate` by another one. All others are equally likely."""
    ids = np.array(tools.ids(text), np.int64)
    chosen = random.random(len(ids)) < rate
    # 1 … n−1 steps round the vocabulary: never the token itself
    steps = random.integers(1, tools.ordinary, len(ids))
    return _text(np.where(chosen, (ids + steps) % tools.ordinary, ids), tools)


def delete(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Leave each token out with probability `rate`."""
    ids = np.array(tools.ids(text), np.int64)
    return _text(ids[random.random(len(ids)) >= rate], tools)


def insert(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Put a random token before each token with probability `rate`."""
    ids = np.array(tools.ids(text), np.int64)
    places = np.flatnonzero(random.random(len(ids)) < rate)
    return _text(np.insert(ids, places, random.integers(0, tools.ordinary, len(places))), tools)


def paste(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Put the whole text into text by people, at a random place, so that it makes up `rate` of all tokens.

    Raises:
        ValueError: there is no text by people.
    """
    if not any(map(str.strip, tools.human)):
        raise ValueError("paste needs text written by people, and there is none")
    length = round(len(tools.ids(text)) * (1 - rate) / rate)
    around: list[int] = []
    while len(around) < length:
        around += tools.ids(tools.human[int(random.integers(len(tools.human)))] + "\n")
    place = int(random.integers(length + 1))
    return f"{_text(around[:place], tools)}{text}{_text(around[place:length], tools)}"


def lower(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Write everything in lower case."""
    return text.lower()


def homoglyphs(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Replace each letter that has a Cyrillic twin by that twin with probability `rate`."""
    chosen = random.random(len(text)) < rate
    return "".join(HOMOGLYPHS.get(c, c) if swap else c for c, swap in zip(text, chosen, strict=True))


def zero_width(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Put a zero-width space behind each character with probability `rate`."""
    chosen = random.random(len(text)) < rate
    return "".join(c + ZERO_WIDTH if more else c for c, more in zip(text, chosen, strict=True))


def retokenise(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Send the text through another tokenizer and back, which may lose case, spaces and rare characters.

    Raises:
        ValueError: there is no other tokenizer.
    """
    if tools.other is None:
        raise ValueError("retokenise needs another tokenizer, and there is none")
    ids = tools.other.encode(text, add_special_tokens=False).ids
    return str(tools.other.decode(ids, skip_special_tokens=True))


def _text(ids: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]], tools: Tools) -> str:
    """Write tokens as text. Bytes that are no UTF-8 become replacement characters, as a platform would show them."""
    return str(tools.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))


_PAIRS = """
about/around also/too although/though always/constantly answer/reply area/region ask/request because/since become/grow
before/earlier begin/start believe/think bring/carry build/construct buy/purchase change/alter choose/pick clear/plain
close/near collect/gather come/arrive common/usual complete/finish continue/proceed correct/right create/make
danger/risk decide/determine describe/depict different/distinct difficult/hard during/throughout early/soon
easy/simple effect/result end/conclusion enough/sufficient ensure/guarantee especially/particularly example/instance
explain/clarify fast/quick find/discover first/initial full/entire get/obtain give/provide goal/aim good/fine
great/grand group/set grow/expand happy/glad help/assist however/still idea/notion important/essential improve/enhance
include/contain increase/raise information/data interesting/intriguing job/task keep/retain know/understand large/big
last/final learn/study likely/probable little/small main/chief method/way mistake/error modern/current more/additional
most/nearly much/considerable need/require new/novel often/frequently old/aged only/just people/persons perhaps/maybe
place/spot plan/scheme possible/feasible power/strength problem/issue provide/supply purpose/intent question/query
real/actual reason/cause reduce/lower remember/recall rest/remainder safe/secure say/state see/notice several/various
show/display significant/notable simple/basic small/little some/certain sometimes/occasionally start/begin
strong/powerful support/backing sure/certain take/grab tell/inform therefore/thus thing/item total/whole try/attempt
use/employ useful/handy usually/normally various/diverse very/quite want/wish way/manner well/nicely whole/entire
work/labour world/globe write/compose
"""

SYNONYMS: Mapping[str, str] = dict(pair.split("/") for pair in _PAIRS.split())
"""English words with a synonym for each. They suffice to imitate removers, which replace about one word in ten."""

_WORD = re.compile(r"[A-Za-z]+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_MANIFEST = bytes(range(256)) * 6  # as long as a small manifest with its signature


def synonyms(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Replace every word of SYNONYMS, keeping a capital."""

    def other(word: re.Match[str]) -> str:
        synonym = SYNONYMS.get(word[0].lower(), word[0])
        return synonym.capitalize() if word[0][0].isupper() else synonym

    return _WORD.sub(other, text)


def swap_letters(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Swap the second and third letter of each word of four letters and more with probability `rate`."""

    def swapped(word: re.Match[str]) -> str:
        letters = word[0]
        return letters if len(letters) < 4 or random.random() >= rate else letters[0] + letters[2:0:-1] + letters[3:]

    return _WORD.sub(swapped, text)


def strip_unicode(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Remove characters that show nothing, and write blanks, quotes, dashes and styled letters in their plain form."""
    return unicodedata.normalize("NFKC", BLANKS.sub(" ", INVISIBLE.sub("", text)).translate(_PLAIN))


_PLAIN = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "•": "-"})


def upper(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Write everything in capitals."""
    return text.upper()


def markdown(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Put a heading and bullets before lines, and stars round each word with probability `rate`."""
    lines = [
        _WORD.sub(lambda word: f"**{word[0]}**" if random.random() < rate else word[0], line) for line in _lines(text)
    ]
    return "\n".join(["## Answer", "", *(f"- {line}" if line.strip() else line for line in lines)])


def quote(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Quote every line, as a reply by mail does."""
    return "\n".join(f"> {line}" for line in _lines(text))


def _lines(text: str) -> list[str]:
    return text.split("\n")


def append_manifest(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Append a C2PA manifest in a wrapper of variation selectors."""
    return with_manifest(text, _MANIFEST)


def rearrange(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Put the sentences in random order."""
    sentences = [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]
    return " ".join(sentences[i] for i in random.permutation(len(sentences)))


def excerpt(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Cut a part with `rate` of the characters out of the text, and paste it into equally much text by people."""
    begin = int(random.integers(len(text) - int(rate * len(text)) + 1))
    return paste(text[begin : begin + int(rate * len(text))], 0.5, random, tools)


def truncate(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Keep the first `rate` of the characters."""
    return text[: int(rate * len(text))]


ATTACKS: Mapping[str, Callable[[str, float, np.random.Generator, Tools], str]] = {
    "substitute": substitute,
    "delete": delete,
    "insert": insert,
    "paste": paste,
    "lower": lower,
    "homoglyphs": homoglyphs,
    "zero-width": zero_width,
    "retokenise": retokenise,
    "synonyms": synonyms,
    "swap-letters": swap_letters,
    "strip-unicode": strip_unicode,
    "upper": upper,
    "markdown": markdown,
    "quote": quote,
    "c2pa": append_manifest,
    "rearrange": rearrange,
    "excerpt": excerpt,
    "truncate": truncate,
}
"""Attacks by their names, without rates."""


class ShownAttack(NamedTuple):
    """An attack with its rate, and its name for readers."""

    name: str
    words: str


EDITS = (
    ShownAttack("delete:0.1", "each token left out with probability 0.1"),
    ShownAttack("delete:0.3", "each token left out with probability 0.3"),
    ShownAttack("insert:0.1", "a random token inserted before each with probability 0.1"),
    ShownAttack("insert:0.3", "a random token inserted before each with probability 0.3"),
    ShownAttack("substitute:0.1", "each token replaced by a random one with probability 0.1"),
    ShownAttack("substitute:0.3", "each token replaced by a random one with probability 0.3"),
    ShownAttack("homoglyphs:0.1", "one in ten letters that have a Cyrillic look-alike replaced by it"),
    ShownAttack("zero-width:0.1", "an invisible character inserted after one character in ten"),
    ShownAttack("lower", "everything in lower case"),
    ShownAttack("upper", "everything in capitals"),
    ShownAttack("markdown:0.1", "Markdown: a heading, bullets, one word in ten bold"),
    ShownAttack("c2pa", "a C2PA manifest appended in its wrapper"),
    ShownAttack("quote", "every line quoted, as in a reply"),
    ShownAttack("paste:0.5", "mixed with others' text: half of it is the marked text"),
    ShownAttack("paste:0.25", "mixed with others' text: a quarter of it is the marked text"),
    ShownAttack("paste:0.1", "mixed with others' text: a tenth of it is the marked text"),
    ShownAttack("rearrange", "its sentences cut out and pasted in random order"),
    ShownAttack("excerpt:0.5", "half of it cut out and pasted into as much of others' text"),
    ShownAttack("truncate:0.5", "cut off after its first half"),
    ShownAttack("truncate:0.25", "cut off after its first quarter"),
)
"""Edits by people and platforms."""

REMOVERS = (
    ShownAttack("strip-unicode", "invisible characters removed; blanks, quotes, dashes and styled letters made plain"),
    ShownAttack("swap-letters:0.3", "two letters swapped in three words out of ten"),
    ShownAttack("synonyms", "every word on a list of common English words replaced by a synonym"),
)
"""Steps of public programs that remove marks."""


def attack_texts(name: str, texts: Sequence[str], seed: str, tools: Tools) -> list[str]:
    """Attack each text. Randomness depends only on seed, attack and text."""
    return [attack(name, text, generator_of(seed, name, text), tools) for text in texts]


def generator_of(seed: str, name: str, text: str) -> np.random.Generator:
    """Return the generator of an attack on a text."""
    what = f"{seed}|{name}|{text}".encode(errors="surrogatepass")
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(what, digest_size=16).digest(), "little"))


def followers(texts: Sequence[Sequence[int]], window: int) -> dict[tuple[int, ...], list[int]]:
    """Return the tokens that follow each n-gram of `window` tokens, each as often as it follows.

    texts: token ids.
    """
    followers_of: dict[tuple[int, ...], list[int]] = {}
    for ids in texts:
        for end in range(window, len(ids)):
            followers_of.setdefault(tuple(ids[end - window : end]), []).append(ids[end])
    return followers_of


def imitate_text(
    followers_of: Mapping[tuple[int, ...], Sequence[int]], window: int, length: int, seed: str
) -> list[int]:
    """Return the tokens of a forgery: a chain of n-grams from marked texts of one user.

    Each token is drawn at random from those that follow the `window` previous tokens in one of the texts. If no token
    follows, the chain begins again elsewhere. So all its n-grams were marked, whatever it says. Without n-grams there
    is no forgery, and the result is [].

    window: number of previous tokens that decide a token's draw.
    """
    draw, begins, made = standard.Random(seed), list(followers_of), list[int]()  # noqa: S311 - no secret
    while begins and len(made) < length:
        after = followers_of.get(tuple(made[len(made) - window :]))
        made += [draw.choice(after)] if after else draw.choice(begins)
    return made[:length]


def new_share(made: Sequence[int], texts: Sequence[Sequence[int]], run: int = 8) -> float:
    """Return the share of a forgery's runs of so many tokens that are in none of its texts. NaN: it has no run.

    texts: tokens of the texts that the forgery was made from.
    """
    text_runs = {tuple(ids[i : i + run]) for ids in texts for i in range(len(ids) - run + 1)}
    runs = [tuple(made[i : i + run]) for i in range(len(made) - run + 1)]
    return sum(made_run not in text_runs for made_run in runs) / len(runs) if runs else float("nan")
