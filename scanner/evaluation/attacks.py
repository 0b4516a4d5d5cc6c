"""Attacks on a marked text before it is scanned: pure functions of the text, a generator and two tokenizers.

Tokens are replaced, deleted and inserted among the tokens of the model's own tokenizer, which is the best that an
attacker can have. Then they become text again, and detection tokenises that text, as it does any text of a platform.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tokenizers

from scanner.errors import TokenizerError

EVERY = (
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
"""Attacks of the report; the first is the paper's (Robustness Analysis)."""

HOMOGLYPHS: Mapping[str, str] = dict(zip("aceopxyABCEHKMOPTX", "асеорхуАВСЕНКМОРТХ", strict=True))
"""Latin letters, with the Cyrillic letters that look the same."""

ZERO_WIDTH = "\u200b"


@dataclass(frozen=True)
class Tools:
    """The tools of attackers.

    tokenizer: the model's; other: another one, for retokenise; human: texts by people, for paste.
    """

    tokenizer: tokenizers.Tokenizer
    other: tokenizers.Tokenizer | None = None
    human: Sequence[str] = field(default=(), repr=False)

    @classmethod
    def load(cls, tokenizer: Path, other: Path | None = None, human: Sequence[str] = ()) -> "Tools":
        """Read the tokenizers from their tokenizer.json; the model's reads special tokens as text, as a scan does.

        Raises:
            TokenizerError: one is missing or is no tokenizer.
        """
        own = _load(tokenizer)
        own.encode_special_tokens = True
        return cls(own, None if other is None else _load(other), human)

    @property
    def ordinary(self) -> int:
        """Smallest id that is not drawn as a random token: tokens added to the vocabulary begin there."""
        return self.tokenizer.get_vocab_size(with_added_tokens=False)

    def ids(self, text: str) -> list[int]:
        """Tokens of a text, special ones read as text."""
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

    Args:
        name: as in schemas.evaluation.Attack, such as `substitute:0.3`.
        text: any.
        random: decides everything that is random.
        tools: the attackers' tools.

    Raises:
        ValueError: another name.
    """
    kind, _, rate = name.partition(":")
    if kind not in _KINDS:
        raise ValueError(f"attack {name!r} is unknown; allowed: {', '.join(EVERY)}, with other rates too")
    return _KINDS[kind](text, float(rate or 0), random, tools)


def substitute(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Replace each token with probability `rate` by another one, all others being equally likely."""
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
    at = np.flatnonzero(random.random(len(ids)) < rate)
    return _text(np.insert(ids, at, random.integers(0, tools.ordinary, len(at))), tools)


def paste(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Put the whole text into text by people, at a random place, so that it makes up `rate` of all tokens.

    Raises:
        ValueError: there is no text by people.
    """
    if not any(map(str.strip, tools.human)):
        raise ValueError("paste needs text by people, and there is none")
    wanted = round(len(tools.ids(text)) * (1 - rate) / rate)
    around: list[int] = []
    while len(around) < wanted:
        around += tools.ids(tools.human[int(random.integers(len(tools.human)))] + "\n")
    place = int(random.integers(wanted + 1))
    return f"{_text(around[:place], tools)}{text}{_text(around[place:wanted], tools)}"


def lower(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Write everything in lower case."""
    return text.lower()


def homoglyphs(text: str, rate: float, random: np.random.Generator, tools: Tools) -> str:
    """Replace each letter that has a Cyrillic twin by it with probability `rate`."""
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
    """Tokens as text; bytes that are no UTF-8 become replacement characters, as a platform would show them."""
    return str(tools.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))


_KINDS: Mapping[str, Callable[[str, float, np.random.Generator, Tools], str]] = {
    "substitute": substitute,
    "delete": delete,
    "insert": insert,
    "paste": paste,
    "lower": lower,
    "homoglyphs": homoglyphs,
    "zero-width": zero_width,
    "retokenise": retokenise,
}
