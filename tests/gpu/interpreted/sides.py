"""The interpreted device, which is the CPU."""

import torch

CPU = torch.device("cpu")
