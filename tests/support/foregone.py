"""Texts most of whose words are foregone, and a model that knows which: it expects the next word of a chain."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.groups import make_key
from tests.support.two_keys import TOKENIZER, Words, words_of_one_token
from tests.watermark.pairs import batch_tokens

if TYPE_CHECKING:
    from scanner.detection.attribution import OpenedKey

WIDTH, SURE = 64, 20.0
"""Numbers that stand for a word, and the logit of the word that is next in the chain."""

RUN = 8
"""Words of the chain between two that were chosen."""

Writes = Callable[[int | None, int, int], str]
"""Function that writes a text: for a message, None: unmarked; of so many chosen words; from a seed."""


def write_model(folder: Path, words: Words) -> Path:
    """Write a model of one layer that adds nothing: what comes next depends on the word before alone."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = 49152
    sizes = {"hidden_size": WIDTH, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=vocabulary, max_position_embeddings=4096, tie_word_embeddings=False, **sizes)
    )
    signs = torch.from_numpy(np.random.default_rng(7).choice([-1.0, 1.0], (vocabulary, WIDTH)).astype(np.float32))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(signs)
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        model.lm_head.weight[words.tokens[1:]] = SURE / WIDTH * signs[words.tokens[:-1]]
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    return folder


def unknowing(model: Path, folder: Path) -> Path:
    """A model of the same files but for its weights, which expects every token alike: it finds nothing."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: 0 * of for name, of in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def writer_of_foregone(key: "OpenedKey", words: Words) -> Writes:
    """Writes text of runs of the chain; between two stands a word that is the best of 20 for the message."""
    mark, rule = key.watermark, key.watermark.rule

    def write(message: int | None, chosen: int, seed: int) -> str:
        generator = np.random.default_rng(seed)
        places: list[int] = []
        for _ in range(chosen):
            start = int(generator.integers(len(words.words) - RUN))
            places += range(start, start + RUN)
            drawn = generator.integers(len(words.words), size=20).tolist()
            best = 0
            if message is not None:
                tokens = batch_tokens([words.tokens[[*places[-rule.context :], one]] for one in drawn])
                best = int(mark.score(tokens, rule.positions(tokens, "none"), message).argmax())
            places.append(drawn[best])
        return "".join(" " + words.words[place] for place in places)

    return write


@pytest.fixture(scope="module")
def chain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    return write_model(tmp_path_factory.mktemp("chain-model"), words_of_one_token())


@pytest.fixture(scope="module")
def chain_key(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, OpenedKey]":
    """A registry with one key of many messages, and the opened key."""
    return make_key(tmp_path_factory.mktemp("chain") / "registry", "gumbel-v3")
