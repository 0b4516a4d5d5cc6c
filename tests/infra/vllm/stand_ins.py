"""Stand-ins for the objects that vLLM's two model runners hand to a plugin, with the fields that it reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from brickscan_vllm.request import MESSAGE

CPU = torch.device("cpu")


def params(message: object = None, **given: Any) -> SimpleNamespace:
    """A stand-in for vLLM's SamplingParams, with vLLM's defaults."""
    extra = {} if message is None else {MESSAGE: message}
    plain: Mapping[str, Any] = {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "n": 1, "max_tokens": 16, "logprobs": None,
        "detokenize": True, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, "extra_args": extra, **given})


class Direction(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass
class Update:
    """A stand-in for vLLM's BatchUpdate."""

    removed: Sequence[int] = ()
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]] = ()
    moved: Sequence[tuple[int, int, Direction]] = ()


@dataclass
class States:
    """A stand-in for the request states of Model Runner V2: the tokens of each slot."""

    max_num_reqs: int = 8
    max_len: int = 64
    device: torch.device = CPU
    tokens: torch.Tensor = field(init=False)
    prefill: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = torch.full((self.max_num_reqs, self.max_len), 77, dtype=torch.int32)  # tokens of earlier requests
        self.prefill = torch.zeros(self.max_num_reqs, dtype=torch.int32)

    @property
    def all_token_ids(self) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.tokens)

    @property
    def prefill_len(self) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.prefill)

    def put(self, slot: int, tokens: Sequence[int], prompt: int) -> None:
        self.tokens[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.prefill[slot] = prompt


def step(rows: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> SimpleNamespace:
    """A stand-in for LogitsContext, from each request's slot, its committed tokens and the drafts that follow them."""
    slot, local, fed, place = [], [], [], []
    for one, committed, drafts in rows:
        for at, token in enumerate([committed[-1], *drafts]):
            slot.append(one)
            local.append(at)
            fed.append(token)
            place.append(len(committed) - 1 + at)
    mapping = [one for one, _, _ in rows]
    return SimpleNamespace(
        expanded_idx_mapping=torch.tensor(slot, dtype=torch.int32),
        idx_mapping=torch.tensor(mapping, dtype=torch.int32),
        idx_mapping_np=np.array(mapping, np.int32),
        expanded_local_pos=torch.tensor(local, dtype=torch.int32),
        input_ids=torch.tensor(fed, dtype=torch.int32),
        pos=torch.tensor(place, dtype=torch.int64),
    )
