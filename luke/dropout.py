"""Dropout (Srivastava et al. 2014) with quick random numbers on a CPU.

torch draws a CPU's dropout masks one number at a time, a tenth of a training step. Here a mask takes 16 bits a number from a
generator four times as quick, seeded by torch's, so that it follows ``torch.manual_seed`` and checkpointing repeats it.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_STEPS = 1 << 16


def keep_mask(shape: torch.Size, dropout: float) -> Tensor:
    """bool (shape), False with probability ``dropout``, rounded to 1/65536."""
    seed = int(torch.randint(1 << 62, ()))
    numbers = np.random.Generator(np.random.SFC64(seed)).integers(1 << 64, size=-(-shape.numel() // 4), dtype=np.uint64)
    draws = torch.from_numpy(numbers.view(np.int16))[: shape.numel()].view(shape)
    return draws >= round(dropout * _STEPS) - _STEPS // 2


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, dropout: float) -> Tensor:
        kept = keep_mask(values.shape, dropout)
        ctx.save_for_backward(kept)
        ctx.rise = 1 / (1 - dropout)
        return (values * kept).mul_(ctx.rise)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (gradient * kept).mul_(ctx.rise), None


class Dropout(nn.Module):
    """Zeroes values with probability ``p`` in training and scales the others up by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        if not self.training or not self.p:
            return values
        if values.device.type == "cpu":
            dropped: Tensor = _CpuDropout.apply(values, self.p)
            return dropped
        return F.dropout(values, self.p)
