"""Attempts to have somebody else named, made at the level of tokens: each is a batch of D texts.

Text is marked as by `brickscan calibrate`: each token is the one of some random tokens that scores highest.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark import Watermark
from scanner.watermark.native.version3_marks import Version3Mark
from scanner.watermark.rule import decide, search
from tests.bench.wrong_names import Ids, Messages, choices_as_texts, take_turns
from tests.bench.wrong_names import write_marked as write
from tests.watermark.pairs import batch_tokens


class Case(NamedTuple):
    """D texts, the message that each accuses, and the messages of its authors, who alone may be named."""

    texts: list[Ids]
    victims: Messages
    authors: list[set[int]]


def own_text(mark: Watermark, messages: Messages, rng: np.random.Generator) -> Case:
    """Honest texts of one author each, who accuses nobody."""
    return Case(write(mark, messages[:, 0], 200, rng), messages[:, 1], [{m} for m in messages[:, 0].tolist()])


def moved_tokens(mark: Watermark, messages: Messages, rng: np.random.Generator) -> Case:
    """Texts of message a in which every (h+1)-th token x is moved to x + a − b; b is the victim's message."""
    own, victims = messages[:, 0], messages[:, 1]
    length, step = 200 * (mark.rule.context + 1), mark.rule.context + 1
    texts = write(mark, own, length, rng)
    moved = [move(text, by, step) for text, by in zip(texts, (own - victims).tolist(), strict=True)]
    return Case(moved, victims, [{m} for m in own.tolist()])


def move(text: Ids, by: int, step: int) -> Ids:
    """A text in which every `step`-th token x is x + by."""
    out = text.copy()
    out[step - 1 :: step] = (text[step - 1 :: step].astype(np.int64) + by).astype(np.uint32)
    return out


def queried_model(mark: Watermark, messages: Messages, rng: np.random.Generator) -> Case:
    """Texts by somebody who asks the model marked for a, and writes x + a − b in place of every token x."""
    own, victims = messages[:, 0], messages[:, 1]

    def moved(_: Ids, choices: Ids, best: NDArray[np.int64]) -> Ids:
        return (choices[np.arange(len(best)), best] + own - victims).astype(np.uint32)

    return Case(write(mark, own, 200, rng, moved), victims, [{m} for m in own.tolist()])


def spliced(mark: Watermark, messages: Messages, rng: np.random.Generator) -> Case:
    """Three accounts put their texts together, in pieces of 25 tokens."""
    thirds = [write(mark, messages[:, i], 150, rng) for i in range(3)]
    texts = [splice(three) for three in zip(*thirds, strict=True)]
    return Case(texts, messages[:, 3], [set(row[:3].tolist()) for row in messages])


def splice(texts: Sequence[Ids]) -> Ids:
    """The first 150 tokens of several texts together, in pieces of 25 tokens by turns."""
    return np.concatenate([text[at : at + 25] for at in range(0, 150, 25) for text in texts])


def collage(
    mark: Watermark, messages: Messages, shares: tuple[int, ...], length: int, rng: np.random.Generator
) -> Case:
    """Texts of several users in pieces of 100 tokens by turns, as much of each user as their share says."""
    total, pieces = sum(shares), []
    for share, own in zip(shares, messages.T, strict=True):
        pieces.append(write(mark, own, length * share // total, rng))
    texts = [take_turns(of_text) for of_text in zip(*pieces, strict=True)]
    return Case(texts, messages[:, 0], [set(row.tolist()) for row in messages])


def group_steps_alone(mark: Version3Mark, messages: Messages, rng: np.random.Generator) -> Case:
    """Texts marked only in the steps that a group shares: they are nobody's, and fit the whole group."""

    def only_shared(contexts: Ids, choices: Ids, best: NDArray[np.int64]) -> Ids:
        shared = mark.group_steps(*choices_as_texts(contexts, choices[:, :1]))
        return choices[np.arange(len(best)), best * shared]

    texts = write(mark, messages[:, 0], 500, rng, only_shared)
    return Case(texts, messages[:, 1], [set() for _ in texts])


def named(
    mark: Watermark, texts: list[Ids], messages: int, rate: float, misnaming_rate: float
) -> tuple[list[set[int]], NDArray[np.bool_]]:
    """Messages that a scan under one key names for each text, and whether the text is flagged: bool[D]."""
    tokens = batch_tokens(texts)
    found = search(mark, tokens, mark.rule.positions(tokens, "ngram"), messages)
    decided = decide([found], rate, misnaming_rate)
    of_each = [set(row[of_it].tolist()) for row, of_it in zip(found.message, decided.named[0], strict=True)]
    return of_each, decided.flagged
