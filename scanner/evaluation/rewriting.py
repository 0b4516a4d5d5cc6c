"""Texts rewritten by a local model that a provider names: a paraphrase, and a translation there and back."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scanner.errors import Refused
from scanner.evaluation.error_rates import LONGEST_REWRITTEN

PARAPHRASE = "Rewrite this text in other words. Keep its meaning and its length. Write the new text alone.\n\n{}"
THERE = "Translate this text into French. Write the translation alone.\n\n{}"
BACK = "Translate this text into English. Write the translation alone.\n\n{}"

LEAST_PARAMETERS = 1_000_000_000
"""Fewest parameters of a model whose paraphrases say anything of robustness: smaller ones repeat or ramble."""

_AT_ONCE = 8


class Rewriter:
    """A model, loaded; every answer is sampled from one seed.

    Raises:
        Refused: transformers is missing, or the folder holds no model.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        if importlib.util.find_spec("transformers") is None:
            raise Refused("--model needs transformers; install it with `pip install 'brickscan[model]'`")
        from scanner.generation import load_model

        self._name, self._seed, self._model = folder.name, seed, load_model(folder)

    def steps(self) -> dict[str, Callable[[Sequence[str]], list[str]]]:
        """What the model does with texts, by the words of its row."""
        return {
            "paraphrased": lambda texts: self._ask(PARAPHRASE, texts),
            "translated into French and back": lambda texts: self._ask(BACK, self._ask(THERE, texts)),
        }

    def about(self) -> dict[str, Any]:
        """The model as the page describes it."""
        parameters = sum(one.numel() for one in self._model.model.parameters())
        size = {"parameters": parameters, "small": parameters < LEAST_PARAMETERS}
        return {"name": self._name, "longest": LONGEST_REWRITTEN} | size

    def _ask(self, request: str, texts: Sequence[str]) -> list[str]:
        from scanner.generation.mark import Sampling, complete

        sampling = Sampling(max_new_tokens=LONGEST_REWRITTEN, temperature=0.7)
        found: list[str] = []
        for begin in range(0, len(texts), _AT_ONCE):
            prompts = [request.format(text) for text in texts[begin : begin + _AT_ONCE]]
            found += [one.text for one in complete(self._model, prompts, sampling, self._seed + begin)]
        return found
