"""Which devices this process can score on."""

import torch
from triton import knobs


def devices() -> list[torch.device]:
    """Every CUDA device; under TRITON_INTERPRET=1 the CPU, where Triton's interpreter runs the kernels instead."""
    if knobs.runtime.interpret:
        return [torch.device("cpu")]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
