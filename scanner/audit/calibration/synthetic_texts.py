"""Marked text without a language model: at each step the mark's favourite among some random tokens is written.

Windows hardly ever come twice, so that texts of one key are as good as independent.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scanner.watermark import Positions, Tokens, Watermark

TOKENS = 8192, 16384
"""Range of token ids to choose from: from, to."""

CHOICES = 8
"""Tokens that a step chooses among: three bits a token, as much as a model that is free in its words."""

PIECE = 100
"""Tokens of one user before the next user's, where a text is several users'."""

Ids = NDArray[np.uint32]
Messages = NDArray[np.int64]
Edit = Callable[[Ids, Ids, NDArray[np.int64]], Ids]
"""Function from windows, uint32[D, h], choices, uint32[D, C], and places of the mark's favourites to the written
tokens.
"""


def write_marked(
    mark: Watermark, messages: Messages, length: int, rng: np.random.Generator, edit: Edit | None = None
) -> list[Ids]:
    """Write texts of so many tokens, each marked for a message.

    Args:
        mark: an opened key of window h.
        messages: int64[D].
        length: tokens of each text.
        rng: draws the choices.
        edit: what is written in place of the mark's favourites; None: the favourites.

    Returns:
        D texts, uint32[length] each.
    """
    window, texts = mark.rule.context, len(messages)
    out = np.empty((texts, length), np.uint32)
    for t in range(length):
        choices = rng.integers(*TOKENS, (texts, CHOICES), dtype=np.uint32)
        if t < window:
            out[:, t] = choices[:, 0]
            continue
        contexts = out[:, t - window : t]
        best = favoured(mark, contexts, choices, messages)
        out[:, t] = choices[np.arange(texts), best] if edit is None else edit(contexts, choices, best)
    return list(out)


def favoured(mark: Watermark, contexts: Ids, choices: Ids, messages: Messages) -> NDArray[np.int64]:
    """Which of C tokens scores highest after each of D windows: int64[D], ties to the first.

    Args:
        mark: an opened key of window h.
        contexts: uint32[D, h].
        choices: uint32[D, C].
        messages: int64[D].
    """
    texts, count = choices.shape
    tokens, places = after(contexts, choices)
    scores = np.asarray(mark.score(tokens, places, np.repeat(messages, count)), np.float64)
    best: NDArray[np.int64] = scores.reshape(texts, count).argmax(axis=1)
    return best


def after(contexts: Ids, choices: Ids) -> tuple[Tokens, Positions]:
    """Each choice behind its window as a text of its own, whose last position alone is scored.

    Args:
        contexts: uint32[D, h].
        choices: uint32[D, C].
    """
    rows = np.concatenate([np.repeat(contexts, choices.shape[1], axis=0), choices.reshape(-1, 1)], axis=1)
    width = rows.shape[1]
    tokens = Tokens(rows.ravel(), np.arange(0, rows.size + 1, width))
    return tokens, Positions(np.arange(width - 1, rows.size, width), np.arange(len(rows) + 1))


def by_turns(texts: Sequence[Ids]) -> Ids:
    """One text made of several, in pieces of PIECE tokens by turns, for as long as each lasts."""
    parts = [[text[at : at + PIECE] for at in range(0, len(text), PIECE)] for text in texts]
    longest = max(map(len, parts))
    return np.concatenate([part[i] for i in range(longest) for part in parts if i < len(part)])


def joined(texts: Sequence[Ids]) -> Tokens:
    """D texts as a batch."""
    return Tokens(np.concatenate(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64))
