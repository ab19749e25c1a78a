"""AdamW with the choice of leaving out bias correction, on torch's fused kernels (CPU and GPU, nothing to compile)."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from luke.pretraining.config import OptimizerSettings

# A step count at which beta ** step is 0 in double precision, so that both corrections, 1 - beta ** step, are exactly 1.
# It does not move: 1e9 + 1 is 1e9 in fp32.
_FAR = 1e9


class AdamW(torch.optim.AdamW):
    """torch's AdamW; ``bias_correction=False`` gives the moments as they are (Devlin et al. 2019)."""

    def __init__(self, params: Iterable[Any], settings: OptimizerSettings) -> None:
        super().__init__(
            params, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay, fused=True
        )
        self.bias_correction = settings.bias_correction

    def _init_group(self, group: Any, params: Any, grads: Any, avgs: Any, sq_avgs: Any, max_avgs: Any, steps: Any) -> Any:
        result = super()._init_group(group, params, grads, avgs, sq_avgs, max_avgs, steps)
        if not self.bias_correction:
            for step in steps:
                step.fill_(_FAR)
        return result


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups of the parameters that are trained: no weight decay on biases and LayerNorm (spec 4)."""
    decayed: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_norm = "LayerNorm" in name or "layer_norm" in name
            (others if name.endswith("bias") or is_norm else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
