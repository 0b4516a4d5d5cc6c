"""A tiny language model and a tiny sentence model with random weights, and prompts for them."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.generation.conftest import VOCABULARY, tiny, tiny_folder

__all__ = ["tiny", "tiny_folder"]

PROMPTS = [f"w{3 + i} w{40 + i} w{20 + i} w{60 - i} w{50 - i}" for i in range(12)]


@pytest.fixture(scope="session")
def sentence_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence model's folder: BERT over the words w3 … w96, which reads 40 tokens at most."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("sentence-model")
    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    words = {"<pad>": 0, "<unk>": 1, "<end>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS) + "\n\n")
    return path
