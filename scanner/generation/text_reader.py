"""A local model reads texts that it did not write, without a prompt, and says how much each character surprised it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scanner.generation.model import LocalModel, load_model, token_log_probabilities
from scanner.storage.locations import MOST_TOKENIZER, read_named
from scanner.text import HuggingFaceTokenizer
from scanner.text.surprise import of_characters
from schemas.config import ReaderDtype

FIRST = 4.0
"""Surprise of a text's first token, which no model can judge without a prompt."""


class TextReader:
    """A model that reads texts at temperature 1, with its own tokenizer, which reads no control tokens.

    Args:
        folder: the model's folder, as for `load_model`.
        device: torch's name of where the model runs.
        dtype: torch's name of the precision.

    Raises:
        Refused, TokenizerError: as `load_model`.
    """

    def __init__(self, folder: Path, device: str = "cpu", dtype: ReaderDtype = "float32") -> None:
        self._model: LocalModel = load_model(folder, device=device, dtype=dtype)
        self._tokenizer = HuggingFaceTokenizer(read_named(folder / "tokenizer.json", MOST_TOKENIZER))

    def surprise(self, texts: Sequence[str]) -> list[NDArray[np.uint8]]:
        """Steps of surprise of the characters of each text (scanner.text.surprise): uint8 of its length."""
        tokens = self._tokenizer.encode(texts)
        log_p = token_log_probabilities(self._model, np.split(tokens.ids, tokens.offsets[1:-1]))
        return [
            of_characters(np.nan_to_num(-of_text, nan=FIRST), self._tokenizer.begins(text), len(text))
            for text, of_text in zip(texts, log_p, strict=True)
        ]
