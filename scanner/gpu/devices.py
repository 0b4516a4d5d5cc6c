"""Which devices this process can score on."""

import torch
from triton import knobs


def devices() -> list[torch.device]:
    """Every CUDA device; under TRITON_INTERPRET=1 the CPU, where Triton's interpreter runs the kernels instead."""
    if knobs.runtime.interpret:
        return [torch.device("cpu")]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def wake(device: torch.device) -> None:
    """Make this process known to the device, which maps its address space."""
    torch.zeros(1, device=device)
