"""How similar two texts are: the cosine of their sentence embeddings (Sentence-BERT, Reimers and Gurevych 2019).

It is computed with transformers alone: the mean of the last hidden states over the tokens of a text, of length 1.
Imports torch: import it late.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from scanner.errors import Refused

BATCH = 16


class SentenceModel:
    """A sentence-embedding model of sentence-transformers' layout, mean pooling.

    Args:
        folder: config.json, weights, tokenizer.json and, if there is one, sentence_bert_config.json with the most
            tokens that are read of a text.
        threads: CPU threads of torch in this process.

    Raises:
        Refused: the model cannot be loaded.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            model = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception
            raise Refused(f"sentence model {str(folder)!r} cannot be loaded: {error}") from None
        self._model = model.eval()
        settings = folder / "sentence_bert_config.json"
        most = (
            json.loads(settings.read_text())["max_seq_length"]
            if settings.is_file()
            else model.config.max_position_embeddings
        )
        self._tokenizer.enable_truncation(most)
        self._tokenizer.enable_padding()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings of D texts, each of length 1: float32[D, size]."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        out = np.empty((len(texts), self._model.config.hidden_size), np.float32)
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            out[rows] = self._embed_batch([texts[i] for i in rows])
        return out

    def _embed_batch(self, texts: list[str]) -> NDArray[np.float32]:
        encoded = self._tokenizer.encode_batch(texts)
        ids = torch.tensor([one.ids for one in encoded])
        mask = torch.tensor([one.attention_mask for one in encoded])
        with torch.inference_mode():
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].to(hidden.dtype)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        found: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return found
