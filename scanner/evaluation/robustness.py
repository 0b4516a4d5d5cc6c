"""The paper's Table 2: attacks on marked texts, similarity to unmarked ones, and detection before and after.

Attacks on a marked text before it is scanned: pure functions of the text, a generator and two tokenizers.

Tokens are replaced, deleted and inserted among the tokens of the model's own tokenizer, which is the best that an
attacker can have. Then they become text again, and detection tokenises that text, as it does any text of a platform.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from scanner.errors import TokenizerError
from scanner.evaluation.scores import Figure, OneMessage, figure, mean, score_each, share
from scanner.evaluation.units import Setting, WritingUnit
from scanner.text import Tokenizer

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
        loaded = _load(tokenizer)
        loaded.encode_special_tokens = True
        return cls(loaded, None if other is None else _load(other), human)

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


NOT_MARKED = "not marked"
"""Name in the place of an attack for unmarked text of the same prompt, tested under the same key."""


@dataclass(frozen=True)
class Written:
    """The rows of a cell: prompts, numbers of the keys (empty: not marked), texts and tokens that the model wrote."""

    setting: Setting
    prompts: tuple[str, ...]
    keys: tuple[int, ...]
    messages: tuple[int, ...]
    texts: tuple[str, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(
        cls, units: Sequence[WritingUnit], texts: Sequence[Sequence[str]], lengths: Sequence[Sequence[int]]
    ) -> "Written":
        """Put units of one setting together."""
        return cls(
            setting=units[0].setting,
            prompts=tuple(chain.from_iterable(unit.prompts for unit in units)),
            keys=tuple(chain.from_iterable(unit.keys for unit in units)),
            messages=tuple(chain.from_iterable(unit.messages for unit in units)),
            texts=tuple(chain.from_iterable(texts)),
            lengths=tuple(chain.from_iterable(lengths)),
        )

    @property
    def clusters(self) -> tuple[NDArray[np.str_], ...]:
        """Labels of each row: its prompt and, when it is marked, its key."""
        labels = (np.array(self.prompts), np.array([str(key) for key in self.keys]))
        return labels if self.keys else labels[:1]

    @property
    def units(self) -> str:
        """The units that are taken for independent, in words."""
        prompts = f"{len(set(self.prompts))} prompts"
        return f"{prompts}, {len(set(self.keys))} keys" if self.keys else prompts


def attacked(name: str, texts: Sequence[str], seed: str, tools: Tools) -> list[str]:
    """Attack each text; randomness depends on seed, attack and text alone."""
    done = []
    for text in texts:
        what = f"{seed}|{name}|{text}".encode(errors="surrogatepass")
        random = np.random.default_rng(int.from_bytes(hashlib.blake2b(what, digest_size=16).digest(), "little"))
        done.append(attack(name, text, random, tools))
    return done


def detect(
    cell: Written, unmarked: Mapping[str, str], attacks: Sequence[str], seed: str, tools: Tools, tokenizer: Tokenizer,
    min_scored: int,
) -> dict[str | None, OneMessage]:  # fmt: skip
    """Test every text of a cell for its mark: as it is (None), after each attack, and the unmarked text of its prompt.

    Args:
        cell: marked texts.
        unmarked: an unmarked text for each prompt, or none.
        attacks: names.
        seed: the seed of keys and attacks.
        tools: the attackers' tools.
        tokenizer: the keys' tokenizer, as a scan loads it.
        min_scored: scored tokens below which a text is too short to be flagged.
    """
    unit = WritingUnit(cell.setting, 0, cell.prompts, seed, cell.keys, cell.messages)
    marks = unit.watermarks()
    texts: dict[str | None, Sequence[str]] = {None: cell.texts}
    texts |= {name: attacked(name, cell.texts, seed, tools) for name in attacks}
    if unmarked:
        texts[NOT_MARKED] = [unmarked[prompt] for prompt in cell.prompts]
    return {name: score_each(marks, tokenizer.encode(those), 0, min_scored) for name, those in texts.items()}


def detection_figures(
    cell: Written, scores: Mapping[str | None, OneMessage], false_positive_rate: float
) -> list[Figure]:
    """Figures of one cell: shares flagged, and the mean numbers of scored and of written tokens."""
    make = functools.partial(figure, "robustness", cell.setting, clusters=cell.units)
    rows = [
        make(
            "flagged",
            share(score.log10_p <= np.log10(false_positive_rate), *cell.clusters),
            attack=name,
            false_positive_rate=false_positive_rate,
            messages=1,
        )
        for name, score in scores.items()
    ]
    counts = {"scored": scores[None].scored.astype(np.float64), "tokens": np.array(cell.lengths, np.float64)}
    return rows + [make(name, mean(values, *cell.clusters)) for name, values in counts.items()]


def similarity_figure(
    cell: Written, reference: Written, embedded: NDArray[np.float32], of_reference: NDArray[np.float32]
) -> Figure:
    """Mean cosine between each text and the unmarked text of the same prompt and temperature.

    Args:
        cell: marked texts, or another sample of unmarked ones (the baseline).
        reference: unmarked texts, one for each prompt.
        embedded: embeddings of the cell, float32[D, size], each row of length 1.
        of_reference: embeddings of the reference, likewise.
    """
    row_of = {prompt: row for row, prompt in enumerate(reference.prompts)}
    beside = of_reference[[row_of[prompt] for prompt in cell.prompts]]
    cosine = (embedded * beside).sum(axis=1, dtype=np.float64)
    return figure("robustness", cell.setting, "similarity", mean(cosine, *cell.clusters), clusters=cell.units)
