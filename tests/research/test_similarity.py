"""Sentence embeddings against a plain computation, one text at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertModel

from scanner.errors import Refused
from scanner.research.robustness import CellTexts, SentenceModel, similarity_figure
from scanner.research.units import Setting
from scanner.watermark.native.format import GumbelFormat

PLAIN = Setting(None, None, 0.8, 0.95, 64)


def test_embeddings_are_means_over_a_texts_own_tokens(sentence_folder: Path):
    texts = [" ".join(f"w{3 + (7 * i + j) % 90}" for j in range(length)) for i, length in enumerate(range(1, 70, 3))]
    found = SentenceModel(sentence_folder).embed(texts)
    model, tokenizer = (
        BertModel.from_pretrained(sentence_folder).eval(),
        Tokenizer.from_file(str(sentence_folder / "tokenizer.json")),
    )
    for text, vector in zip(texts, found, strict=True):
        ids = tokenizer.encode(text).ids[:40]
        with torch.no_grad():
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0).numpy()
        assert vector == pytest.approx(mean / np.sqrt((mean**2).sum()), abs=2e-6)


def test_similarity_is_the_cosine_with_the_text_of_the_same_prompt():
    reference = CellTexts(PLAIN, ("a", "b"), (), (), ("A", "B"), (1, 1))
    marked = Setting(GumbelFormat(window=4), None, 0.8, 0.95, 64)
    cell = CellTexts(marked, ("b", "a", "b"), (0, 1, 1), (0, 0, 0), ("x", "y", "z"), (1, 1, 1))
    of_reference = np.array([[1, 0], [0, 1]], np.float32)
    embedded = np.array([[0.6, 0.8], [0.8, 0.6], [1, 0]], np.float32)
    row = similarity_figure(cell, reference, embedded, of_reference)
    assert row["value"] == pytest.approx((0.8 + 0.8 + 0.0) / 3)
    assert (row["n"], row["measure"], row["clusters"]) == (3, "similarity", "2 prompts, 2 keys")


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(Refused, match=r"sentence model .* no config\.json"):
        SentenceModel(tmp_path)
