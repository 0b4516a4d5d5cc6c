"""A tiny language model with random weights, made here: it knows no language, and so has the entropy to be marked.

Fixtures import torch, which takes seconds, so that tests which need none do not wait for it.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

if TYPE_CHECKING:
    from scanner.generation import LocalModel

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers

VOCABULARY = 97


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder as `save_pretrained` writes it, with a tokenizer of words w3 … w96 and no chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-model")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.4,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<unk>": 1, "<end>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<unk>", "<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> "LocalModel":
    from scanner.generation import load_model

    return load_model(tiny_folder)
