"""The class that vLLM loads, by its entry point, for both of its model runners.

Each runner makes it in its own way: V1 from configuration, device and whether memory is pinned, Model Runner V2 from
configuration and request states. One class serves both, since V2 does not start beside a class for V1 alone.
"""

import weakref
from typing import Any

import torch
from vllm.distributed import get_tp_group
from vllm.v1.sample.logits_processor import LogitsProcessor as BatchLogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotLogitsProcessor

from brickscan_vllm.door import let_in
from brickscan_vllm.marking import open_marker
from brickscan_vllm.request import Reads
from brickscan_vllm.runners import BatchRows, SlotRows
from brickscan_vllm.settings import read_settings
from brickscan_vllm.start import check_server

_active: "dict[int, weakref.ref[Marks]]" = {}
"""Marks in use, by the identity of their configuration: vLLM loads a class by entry point and by name, so twice."""


class Marks(BatchLogitsProcessor, SlotLogitsProcessor):  # type: ignore[misc]
    """Marks each row of a batch for the user whom its request names. Its arguments depend on the runner that makes it.

    Raises:
        Refused: settings, registry, key or server are not right; the server does not start then.
    """

    def __init__(self, vllm_config: Any, *rest: Any) -> None:  # noqa: ANN401 - of vLLM
        before = _active.get(id(vllm_config), lambda: None)()
        self._rows: BatchRows | SlotRows | None = None
        if before is not None:
            return
        _active[id(vllm_config)] = weakref.ref(self)
        settings, version = read_settings(), 2 if len(rest) == 1 else 1
        check_server(vllm_config, settings, version)
        read, tensor_parallel = Reads(settings), get_tp_group()
        ranks = tensor_parallel.device_group if tensor_parallel.world_size > 1 else None
        if version == 2:
            self._rows = SlotRows(open_marker(settings, rest[0].device, ranks), read, rest[0])
        else:
            device, slots = torch.device(rest[0]), 2 * vllm_config.scheduler_config.max_num_seqs
            self._rows = BatchRows(open_marker(settings, device, ranks), read, device, slots, penalised)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:  # noqa: ANN401 - of vLLM
        """Raise ValueError, which becomes HTTP 400, for a request that is not served."""
        let_in(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """No: greedy text is marked too, by a green list."""
        return False

    def update_state(self, batch_update: Any) -> None:  # noqa: ANN401 - of vLLM
        """Follow the batch of V1, which has changed."""
        if isinstance(self._rows, BatchRows):
            self._rows.update_state(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:  # noqa: ANN401 - of vLLM
        """Put a request of V2 into a slot."""
        return isinstance(self._rows, SlotRows) and self._rows.add_request(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Bring new requests of V2 to the device, once a step."""
        if isinstance(self._rows, SlotRows):
            self._rows.apply_staged_writes()

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:  # noqa: ANN401 - of vLLM
        """Return marked logits, for both runners."""
        if isinstance(self._rows, SlotRows):
            return self._rows.apply(logits, ctx)
        return logits if self._rows is None else self._rows.apply(logits)


def penalised(
    logits: torch.Tensor, penalised: list[tuple[list[int], list[int], tuple[float, float, float]]]
) -> torch.Tensor:
    """Logits [R, V] after vLLM's own penalties, by each row's prompt, output and three penalties."""
    from vllm.v1.sample.ops.penalties import apply_all_penalties

    width, device = max(len(prompt) for prompt, _, _ in penalised), logits.device
    prompts = torch.full((len(penalised), width), logits.shape[1], dtype=torch.int64)
    for row, (prompt, _, _) in enumerate(penalised):
        prompts[row, : len(prompt)] = torch.tensor(prompt)
    repetition, frequency, presence = torch.tensor([of_row for _, _, of_row in penalised]).to(device).unbind(dim=1)
    outputs = [output for _, output, _ in penalised]
    return apply_all_penalties(logits, prompts.to(device), presence, frequency, repetition, outputs)  # type: ignore[no-any-return]
