"""Choose marked tokens as SGLang does."""

import numpy as np
from numpy.typing import NDArray

from scanner.generation.processor import Marking
from scanner.generation.stacks.processor import Ids, StackProcessor
from scanner.watermark import Tokens
from scanner.watermark.positions import Positions
from scanner.watermark.stacks.sglang.format import (
    Sglang,
    SglangOneKeyFormat,
    SglangTwoKeysFormat,
    centre,
    seeds_of,
)
from scanner.watermark.stacks.sglang.user_keys import SglangUserKeysFormat, SglangUsers

MOST_MARKED = 4096
"""Largest number of positions that SGLang marks in a request."""


class SglangProcessor(StackProcessor[Sglang | SglangUsers]):
    """SGLang's rule: contexts extend into the prompt, and each hash of a context is marked once."""

    def context_of(self, before: Ids, prompt: int) -> Ids | None:
        """Return the tokens that the next draw depends on.

        None if their hash occurred before, or enough tokens are marked.
        """
        ids = np.append(before, 0).astype(np.uint32)  # with a token for the place that is about to be written
        places = np.arange(prompt, len(ids))
        hashes = seeds_of(ids, np.array([0, len(ids)]), places, self.mark.width)
        met = set(hashes[:-1].tolist())
        if int(hashes[-1]) in met or len(met) >= MOST_MARKED:
            return None
        return before[-self.mark.width :]

    def draw(self, row: int, tokens: Tokens, ends: Positions) -> NDArray[np.float64]:
        """Return the draws of a user's key, in the middle of their cells."""
        mark = self.mark
        one = mark.of_user(self.messages[row]) if isinstance(mark, SglangUsers) else mark
        return centre(one.draws(tokens, ends))


MARKING = {
    form.name: Marking(SglangProcessor, samples=True)
    for form in (SglangOneKeyFormat, SglangTwoKeysFormat, SglangUserKeysFormat)
}
