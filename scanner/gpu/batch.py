"""Devices that can score, and a ragged batch of documents on one."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from triton import knobs


def devices() -> list[torch.device]:
    """Every CUDA device; under TRITON_INTERPRET=1 the CPU, where Triton's interpreter runs the kernels instead."""
    if knobs.runtime.interpret:
        return [torch.device("cpu")]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def wake(device: torch.device) -> None:
    """Make this process known to the device, which maps its address space."""
    torch.zeros(1, device=device)


class Batch(NamedTuple):
    """Scored tokens of D documents on a device, in the kernels' types.

    key: int32[8], the ChaCha key; ids: int32[P]; nonces: int32[P, 2], low and high words; begins, ends: int32[D].
    """

    key: torch.Tensor
    ids: torch.Tensor
    nonces: torch.Tensor
    begins: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def put(
        cls,
        key: NDArray[np.uint32],
        ids: NDArray[np.uint32],
        nonces: NDArray[np.uint64],
        offsets: NDArray[np.int64],
        device: torch.device,
    ) -> "Batch":
        """Copy uint32[8], uint32[P], uint64[P] and int64[D+1] to a device.

        Raises:
            ValueError: 2^30 positions or more: kernels number the words of their nonces, two each, in 31 bits.
        """
        if offsets[-1] >= 2**30:
            raise ValueError(f"{offsets[-1]} scored positions are too many for one batch; fewer than 2^30 can be")

        def put(values: NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(np.array(values, order="C")).to(device)

        return cls(
            put(key.view(np.int32)),
            put(ids.view(np.int32)),
            put(nonces.view(np.int32).reshape(-1, 2)),
            put(offsets[:-1].astype(np.int32)),
            put(offsets[1:].astype(np.int32)),
        )

    def of(self, documents: NDArray[np.int64]) -> "Batch":
        """Some of the documents; the tokens are shared."""
        chosen = torch.from_numpy(documents).to(self.ids.device)
        return self._replace(begins=self.begins[chosen], ends=self.ends[chosen])
