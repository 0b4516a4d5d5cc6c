"""Choose marked tokens as vLLM does."""

import numpy as np
from numpy.typing import NDArray

from scanner.generation.processor import Marking
from scanner.generation.stacks.processor import Ids, StackProcessor
from scanner.watermark import Tokens
from scanner.watermark.positions import Positions
from scanner.watermark.stacks.vllm.format import Vllm, VllmDualKeyFormat, VllmGumbelFormat, uniforms

HISTORY = 8192
"""`deduplicate_contexts_max_history`: number of positions back in which vLLM looks for a context."""


class VllmProcessor(StackProcessor[Vllm]):
    """vLLM's rule: contexts are within the completion, shorter at its start, each marked once (`single_turn`)."""

    def context_of(self, before: Ids, prompt: int) -> Ids | None:
        """Return the last tokens of the completion. None if they occurred before."""
        width = self.mark.width
        padded = np.concatenate([np.full(width, -1), before[prompt:]])
        windows = np.lib.stride_tricks.sliding_window_view(padded, width)
        if (windows[:-1][-HISTORY:] == windows[-1]).all(axis=1).any():
            return None
        return before[prompt:][-width:]

    def draw(self, row: int, tokens: Tokens, ends: Positions) -> NDArray[np.float64]:
        """Return the draws of one key. Of two keys, the second one is used with chance alpha."""
        words = self.mark.words(tokens, ends)
        second = len(words) == 2 and self.random.random() < self.mark.alpha
        return uniforms(words[second])


MARKING = {form.name: Marking(VllmProcessor, samples=True) for form in (VllmGumbelFormat, VllmDualKeyFormat)}
