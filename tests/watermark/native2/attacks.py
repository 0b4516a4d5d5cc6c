"""Texts by which somebody tries to have somebody else named, at the level of tokens: each a batch of D texts.

Text is marked as a model without a will of its own would write: of some random tokens the one that scores highest.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.native.numbered import Numbered
from scanner.watermark.search import decide, search
from tests.watermark.pairs import ragged

VOCABULARY = 2**15
CHOICES = 8

Ids = NDArray[np.uint32]
Messages = NDArray[np.int64]


class Case(NamedTuple):
    """D texts, whom they accuse, who wrote each, and who may be named: lists of messages."""

    texts: list[Ids]
    victims: Messages
    authors: list[set[int]]


def favoured(mark: Watermark, contexts: Ids, choices: Ids, messages: Messages) -> NDArray[np.int64]:
    """Which of C tokens a model that is marked for messages chooses after D contexts: int64[D].

    Args:
        mark: an opened key of window h.
        contexts: uint32[D, h], the window of each.
        choices: uint32[D, C].
        messages: int64[D].
    """
    texts, count = choices.shape
    rows = np.concatenate([np.repeat(contexts, count, axis=0), choices.reshape(-1, 1)], axis=1)
    width = rows.shape[1]
    tokens = Tokens(rows.ravel(), np.arange(0, rows.size + 1, width))
    places = Positions(np.arange(width - 1, rows.size, width), np.arange(len(rows) + 1))
    scores = np.asarray(mark.score(tokens, places, np.repeat(messages, count)), np.float64)
    return scores.reshape(texts, count).argmax(axis=1)


def write(
    mark: Watermark,
    messages: Messages,
    length: int,
    rng: np.random.Generator,
    *,
    kept: Callable[[Ids], NDArray[np.bool_]] | None = None,
    shift: Messages | None = None,
) -> list[Ids]:
    """Texts of so many tokens, each marked for a message.

    Args:
        mark: an opened key of window h.
        messages: int64[D].
        length: of each text.
        rng: draws what there is to choose from.
        kept: of windows, uint32[D, h]: where the choice is kept; elsewhere a random token stands.
        shift: int64[D], is added to each token before it is written: what a framer of version 1 does.
    """
    window, texts = mark.rule.context, len(messages)
    out = np.empty((texts, length), np.uint32)
    moved = np.zeros(texts, np.int64) if shift is None else shift
    for t in range(length):
        choices = rng.integers(VOCABULARY // 4, VOCABULARY // 2, (texts, CHOICES), dtype=np.uint32)
        chosen = np.zeros(texts, np.int64)
        if t >= window:
            contexts = out[:, t - window : t]
            chosen = favoured(mark, contexts, choices, messages)
            if kept is not None:
                chosen *= kept(contexts)
        out[:, t] = choices[np.arange(texts), chosen] + moved
    return list(out)


def own_text(mark: Watermark, messages: Messages, rng: np.random.Generator) -> Case:
    """Nobody is accused."""
    return Case(write(mark, messages[:, 0], 200, rng), messages[:, 1], [{m} for m in messages[:, 0].tolist()])


def moved_tokens(mark: Watermark, messages: Messages, rng: np.random.Generator) -> Case:
    """Whoever holds text of message a moves every (h+1)-th token x to x + a − b, b being the victim's."""
    own, victims = messages[:, 0], messages[:, 1]
    length, step = 200 * (mark.rule.context + 1), mark.rule.context + 1
    texts = write(mark, own, length, rng)
    for text, by in zip(texts, (own - victims).tolist(), strict=True):
        text[step - 1 :: step] = (text[step - 1 :: step].astype(np.int64) + by).astype(np.uint32)
    return Case(texts, victims, [{m} for m in own.tolist()])


def queried_model(mark: Watermark, messages: Messages, rng: np.random.Generator) -> Case:
    """Whoever may ask the model that is marked for a writes each time not its token x, but x + a − b."""
    own, victims = messages[:, 0], messages[:, 1]
    return Case(write(mark, own, 200, rng, shift=own - victims), victims, [{m} for m in own.tolist()])


def spliced(mark: Watermark, messages: Messages, rng: np.random.Generator) -> Case:
    """Three accounts put their texts together, in pieces of 25 tokens."""
    thirds = [write(mark, messages[:, i], 150, rng) for i in range(3)]
    texts = [
        np.concatenate([of_one[at : at + 25] for at in range(0, 150, 25) for of_one in three])
        for three in zip(*thirds, strict=True)
    ]
    return Case(texts, messages[:, 3], [set(row[:3].tolist()) for row in messages])


def collage(
    mark: Watermark, messages: Messages, shares: tuple[int, ...], length: int, rng: np.random.Generator
) -> Case:
    """A text of several people's, as much of each as their shares say, in pieces of 100 tokens by turns."""
    total, pieces = sum(shares), []
    for share, own in zip(shares, messages.T, strict=True):
        pieces.append(write(mark, own, length * share // total, rng))
    texts = []
    for of_text in zip(*pieces, strict=True):
        parts = [[piece[at : at + 100] for at in range(0, len(piece), 100)] for piece in of_text]
        longest = max(map(len, parts))
        texts.append(np.concatenate([part[i] for i in range(longest) for part in parts if i < len(part)]))
    return Case(texts, messages[:, 0], [set(row.tolist()) for row in messages])


def group_steps_alone(mark: Numbered, messages: Messages, rng: np.random.Generator) -> Case:
    """The mark is kept in the steps that a group shares alone: nobody's text, and it fits all of the group."""

    def shared(contexts: Ids) -> NDArray[np.bool_]:
        rows = np.concatenate([contexts, np.zeros((len(contexts), 1), np.uint32)], axis=1)
        width = rows.shape[1]
        tokens = Tokens(rows.ravel(), np.arange(0, rows.size + 1, width))
        return mark.group_steps(tokens, Positions(np.arange(width - 1, rows.size, width), np.arange(len(rows) + 1)))

    texts = write(mark, messages[:, 0], 500, rng, kept=shared)
    return Case(texts, messages[:, 1], [set() for _ in texts])


def named(
    mark: Watermark, texts: list[Ids], messages: int, rate: float, misnaming_rate: float
) -> tuple[list[set[int]], NDArray[np.bool_]]:
    """Whom a scan under one key names for each text, and whether it is flagged: bool[D]."""
    tokens = ragged(texts)
    found = search(mark, tokens, mark.rule.positions(tokens, "ngram"), messages)
    decided = decide([found], rate, misnaming_rate)
    of_each = [set(row[of_it].tolist()) for row, of_it in zip(found.message, decided.named[0], strict=True)]
    return of_each, decided.flagged
