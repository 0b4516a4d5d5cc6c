"""The requests of a batch in each of vLLM's two model runners: windows, messages and sampling of each row.

Model Runner V2 keeps tokens on the device, in slots: nothing waits for it, and rows are handled together. V1 hands out
Python lists, whose ends are put together for every step. Neither imports vLLM: tests drive them by stand-ins.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from brickscan_vllm.door import StepCounts
from brickscan_vllm.marking import Marker
from brickscan_vllm.request import MarkRequest
from scanner.gpu.vectors import RowSampling

_COLUMNS = ("message", "temperature", "top_p", "min_p", "top_k")
_UNUSED = (0.0, 1.0, 1.0, 0.0, 0.0)

Read = Callable[[Any], MarkRequest]
"""Function that reads a request from vLLM's SamplingParams."""


def _row(request: MarkRequest) -> tuple[float, ...]:
    """Write a request as numbers, exact in float64: messages lie below 2^32."""
    return tuple(float(getattr(request, name)) for name in _COLUMNS)


def _sampling(rows: torch.Tensor, cuts: bool) -> RowSampling:
    """Read the sampling of rows, float64[R, 5]."""
    _, temperature, top_p, min_p, top_k = rows.unbind(dim=1)
    return RowSampling(temperature, top_p, min_p, top_k.long(), cuts)


class SlotRows:
    """Requests of Model Runner V2.

    Args:
        marker: marks rows.
        read: reads a request.
        states: vLLM's request states: device, max_num_reqs, all_token_ids, prefill_len.
    """

    def __init__(self, marker: Marker, read: Read, states: Any) -> None:  # noqa: ANN401 - of vLLM
        self._marker, self._read, self._states = marker, read, states
        self._host = np.tile(np.array(_UNUSED), (states.max_num_reqs, 1))
        self._device = torch.from_numpy(self._host.copy()).to(states.device)
        self._new: list[int] = []
        self._counts = StepCounts(states.max_num_reqs, states.device)

    def add_request(self, slot: int, params: Any) -> bool:  # noqa: ANN401 - of vLLM
        """Put a request into a slot and forget the slot's previous request.

        Returns whether it is marked: always True.
        """
        self._host[slot] = _row(self._read(params))
        self._new.append(slot)
        return True

    def apply_staged_writes(self) -> None:
        """Bring new requests to the device."""
        if not self._new:
            return
        self._counts.begin(self._to_device(torch.tensor(self._new)))
        self._device.copy_(self._to_device(torch.from_numpy(self._host.copy())))
        self._new.clear()

    def apply(self, logits: torch.Tensor, context: Any) -> torch.Tensor:  # noqa: ANN401 - of vLLM
        """Mark the rows of a step, drafts of speculative decoding among them, each by its own window."""
        slots, last = context.expanded_idx_mapping.long(), context.pos.long()
        first_of_step = last - context.expanded_local_pos.long()
        real, slots = slots >= 0, slots.clamp(min=0)
        on = real & (last + 1 >= self._marker.window)
        rows = self._device[slots]
        cuts = bool((self._host[context.idx_mapping_np, 2:] != _UNUSED[2:]).any())
        windows = self._windows(context.input_ids, slots, last, first_of_step)
        forced = self._marker.mark(logits, windows, rows[:, 0].long(), on, _sampling(rows, cuts))
        self._counts.step(slots, on, forced, real & (last + 1 >= self._states.prefill_len.gpu[slots]))
        return logits

    def _windows(
        self, input_ids: torch.Tensor, slots: torch.Tensor, last: torch.Tensor, first_of_step: torch.Tensor
    ) -> torch.Tensor:
        """Return the h tokens up to each row's last: committed ones, and from this step's first one the tokens fed."""
        row = torch.arange(len(slots), device=slots.device)[:, None]
        back = torch.arange(1 - self._marker.window, 1, device=slots.device)
        place = last[:, None] + back
        committed = self._states.all_token_ids.gpu[slots[:, None], place.clamp(min=0)].long()
        fed = input_ids[(row + back).clamp(min=0)].long()
        return torch.where(place >= first_of_step[:, None], fed, committed)

    def _to_device(self, values: torch.Tensor) -> torch.Tensor:
        if self._states.device.type != "cuda":
            return values
        return values.pin_memory().to(self._states.device, non_blocking=True)


class _Request:
    """A request of V1: its reading, prompt, output (a list that grows), slot, and length when last counted."""

    def __init__(self, mark_request: MarkRequest, prompt: list[int] | None, output: list[int], slot: int) -> None:
        self.mark_request, self.row, self.slot, self.counted = mark_request, _row(mark_request), slot, -1
        self.prompt, self.output = prompt, output

    def window(self, width: int) -> list[int] | None:
        """Return the last tokens before the step; None: too few. A prompt that was given as vectors has none."""
        tokens_out = self.output[-width:] if width else []
        missing = width - len(tokens_out)
        if missing:
            tokens_out = ((self.prompt or [])[-missing:]) + tokens_out
        return tokens_out if len(tokens_out) == width else None

    def counts_now(self) -> bool:
        """Whether this step writes another token than the last one: a prompt that is read in parts comes again."""
        before, self.counted = self.counted, len(self.output)
        return before != self.counted


class BatchRows:
    """Requests of the V1 runner.

    Args:
        marker: marks rows.
        read: reads a request.
        device: the logits' device.
        slots: requests that can run at a time.
        penalise: adds penalties to the logits of rows, as vLLM does after a plugin: a Gumbel choice needs them before.
    """

    def __init__(
        self,
        marker: Marker,
        read: Read,
        device: torch.device,
        slots: int,
        penalise: Callable[[torch.Tensor, list[tuple[list[int], list[int], tuple[float, float, float]]]], torch.Tensor],
    ) -> None:
        self._marker, self._read, self._device, self._penalise = marker, read, device, penalise
        self._rows: dict[int, _Request] = {}
        self._free = list(range(slots))
        self._counts = StepCounts(slots, device)

    def update_state(self, update: Any) -> None:  # noqa: ANN401 - vLLM's BatchUpdate, or None
        """Follow the rows of the batch: removed, added, moved, in that order."""
        if update is None:
            return
        for row in update.removed:
            self._remove(row)
        for row, params, prompt, output in update.added:
            self._remove(row)
            self._rows[row] = _Request(self._read(params), prompt, output, self._free.pop())
        for one, other, direction in update.moved:
            moved, replaced = self._rows.pop(one, None), self._rows.pop(other, None)
            if moved is not None:
                self._rows[other] = moved
            if replaced is not None and direction.name == "SWAP":
                self._rows[one] = replaced
            elif replaced is not None:
                self._end(replaced)

    def _remove(self, row: int) -> None:
        request = self._rows.pop(row, None)
        if request is not None:
            self._end(request)

    def _end(self, request: _Request) -> None:
        self._counts.begin(torch.tensor([request.slot], device=self._device))
        self._free.append(request.slot)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mark the rows of a step.

        Raises:
            RuntimeError: a row that no request asked for, or a window whose tokens vLLM has not all given: text marked
                by it could not be read back.
        """
        requests = [self._rows.get(row) for row in range(len(logits))]
        if None in requests:
            raise RuntimeError(f"row {requests.index(None)} of {len(logits)} has no request that brickscan knows")
        known = [request for request in requests if request is not None]
        windows = [request.window(self._marker.window) for request in known]
        if any(-1 in window for window in windows if window):
            raise RuntimeError(
                "vLLM hides the newest tokens from plugins (-1, asynchronous scheduling), and nothing can be marked "
                "without them; start it with --no-async-scheduling"
            )
        none = [0] * self._marker.window
        on = self._put([window is not None for window in windows])
        rows = self._put([request.row for request in known], torch.float64)
        table = self._put([window or none for window in windows]).view(len(known), self._marker.window).long()
        cuts = any(request.mark_request.top_k or request.mark_request.top_p < 1.0 for request in known)
        if not self._marker.is_green_list:
            logits = self._with_penalties(logits, known)
        forced = self._marker.mark(logits, table, rows[:, 0].long(), on, _sampling(rows, cuts))
        counted = self._put([request.counts_now() for request in known])
        self._counts.step(self._put([request.slot for request in known]), on, forced, counted)
        return logits

    def _with_penalties(self, logits: torch.Tensor, requests: list[_Request]) -> torch.Tensor:
        """Logits with penalties, for a Gumbel choice. vLLM adds its own later, when one token is left."""
        rows = [row for row, one in enumerate(requests) if one.mark_request.penalties != (1.0, 0.0, 0.0)]
        if not rows:
            return logits
        at = self._put(rows)
        penalised = [
            (requests[row].prompt or [], requests[row].output, requests[row].mark_request.penalties) for row in rows
        ]
        logits[at] = self._penalise(logits[at], penalised)
        return logits

    def _put(self, values: list[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
        made = torch.tensor(values, dtype=dtype)
        return made.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else made
