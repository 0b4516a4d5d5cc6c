"""Make the paper's Table 2: similarity of marked texts to unmarked ones, and detection before and after attacks."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scanner.research.attacks import Tools, attack_texts
from scanner.research.scores import Figure, OneMessage, figure, mean, score_each, share
from scanner.research.units import Setting, WritingUnit
from scanner.storage.locations import read_named
from scanner.text import Tokenizer
from scanner.watermark import Watermark

NOT_MARKED = "not marked"
"""Name in the place of an attack for unmarked text of the same prompt, tested under the same key."""


@dataclass(frozen=True)
class CellTexts:
    """The rows of a cell: prompts, numbers of the keys (empty: not marked), texts, and numbers of written tokens."""

    setting: Setting
    prompts: tuple[str, ...]
    keys: tuple[int, ...]
    messages: tuple[int, ...]
    texts: tuple[str, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(
        cls, units: Sequence[WritingUnit], texts: Sequence[Sequence[str]], lengths: Sequence[Sequence[int]]
    ) -> "CellTexts":
        """Put units of one setting together."""
        return cls(
            setting=units[0].setting,
            prompts=tuple(chain.from_iterable(unit.prompts for unit in units)),
            keys=tuple(chain.from_iterable(unit.keys for unit in units)),
            messages=tuple(chain.from_iterable(unit.messages for unit in units)),
            texts=tuple(chain.from_iterable(texts)),
            lengths=tuple(chain.from_iterable(lengths)),
        )

    def watermarks(self, seed: str) -> list[Watermark]:
        """Return the mark of each row, whose key is drawn from the seed."""
        return WritingUnit(self.setting, 0, self.prompts, seed, self.keys, self.messages).watermarks()

    @property
    def clusters(self) -> tuple[NDArray[np.str_], ...]:
        """Return the labels of each row: its prompt and, if it is marked, its key."""
        labels = (np.array(self.prompts), np.array([str(key) for key in self.keys]))
        return labels if self.keys else labels[:1]

    @property
    def units(self) -> str:
        """Return the units that count as independent, in words."""
        prompts = f"{len(set(self.prompts))} prompts"
        return f"{prompts}, {len(set(self.keys))} keys" if self.keys else prompts


def detect(
    cell: CellTexts, unmarked: Mapping[str, str], attacks: Sequence[str], seed: str, tools: Tools, tokenizer: Tokenizer,
    min_scored: int,
) -> dict[str | None, OneMessage]:  # fmt: skip
    """Test every text of a cell for its mark: as it is (None), after each attack, and the unmarked text of its prompt.

    Args:
        cell: the texts.
        unmarked: an unmarked text for each prompt, or none.
        attacks: the attacks, by name.
        seed: seed of the attacks.
        tools: tools of the attacks.
        tokenizer: tokenizer of the mark.
        min_scored: number of scored tokens below which a text is too short to be flagged.
    """
    marks = cell.watermarks(seed)
    texts: dict[str | None, Sequence[str]] = {None: cell.texts}
    texts |= {name: attack_texts(name, cell.texts, seed, tools) for name in attacks}
    if unmarked:
        texts[NOT_MARKED] = [unmarked[prompt] for prompt in cell.prompts]
    return {name: score_each(marks, tokenizer.encode(those), 0, min_scored) for name, those in texts.items()}


def detection_figures(
    cell: CellTexts, scores: Mapping[str | None, OneMessage], false_positive_rate: float
) -> list[Figure]:
    """Compute the figures of one cell: shares flagged, and the mean numbers of scored and of written tokens."""
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
    cell: CellTexts, reference: CellTexts, vectors: NDArray[np.float32], reference_vectors: NDArray[np.float32]
) -> Figure:
    """Compute the mean cosine between each text and the unmarked text of the same prompt and temperature.

    Args:
        cell: marked texts, or another sample of unmarked ones (the baseline).
        reference: the unmarked texts.
        vectors: embeddings of the cell, float32[D, size], each row of length 1.
        reference_vectors: embeddings of the reference, likewise.
    """
    row_of = {prompt: row for row, prompt in enumerate(reference.prompts)}
    references = reference_vectors[[row_of[prompt] for prompt in cell.prompts]]
    cosine = (vectors * references).sum(axis=1, dtype=np.float64)
    return figure("robustness", cell.setting, "similarity", mean(cosine, *cell.clusters), clusters=cell.units)


TEXTS_EMBEDDED_TOGETHER = 16


class SentenceModel:
    """A sentence-embedding model in the layout of sentence-transformers (Sentence-BERT, Reimers and Gurevych 2019).

    An embedding is the mean of the last hidden states over the tokens of a text, scaled to length 1. It needs only
    transformers.

    folder: config.json, weights, tokenizer.json and, if there is one, sentence_bert_config.json with the most tokens
        that are read of a text.

    Raises:
        Refused: the model cannot be loaded.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        import torch
        from tokenizers import Tokenizer
        from transformers import AutoModel

        from scanner.generation import load_pretrained, refused_alike

        torch.set_num_threads(threads)
        named = f"sentence model {str(folder)!r}"
        self._model = load_pretrained(AutoModel, folder, named, torch.float32).eval()
        settings = folder / "sentence_bert_config.json"
        with refused_alike(named):
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            max_tokens = (
                json.loads(read_named(settings))["max_seq_length"]
                if settings.is_file()
                else self._model.config.max_position_embeddings
            )
            self._tokenizer.enable_truncation(max_tokens)
            self._tokenizer.enable_padding()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Compute embeddings of D texts, each of length 1: float32[D, size]."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        out = np.empty((len(texts), self._model.config.hidden_size), np.float32)
        for begin in range(0, len(order), TEXTS_EMBEDDED_TOGETHER):
            rows = order[begin : begin + TEXTS_EMBEDDED_TOGETHER]
            out[rows] = self._embed_batch([texts[i] for i in rows])
        return out

    def _embed_batch(self, texts: list[str]) -> NDArray[np.float32]:
        import torch

        encoded = self._tokenizer.encode_batch(texts)
        ids = torch.tensor([encoding.ids for encoding in encoded])
        mask = torch.tensor([encoding.attention_mask for encoding in encoded])
        with torch.inference_mode():
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].to(hidden.dtype)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        vectors: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return vectors
