"""Everything that touches DeepSpeed: start, forward and backward, step, and the full state whatever the ZeRO stage.

DeepSpeed averages gradients over processes; losses come here already divided by the counts of the whole step, so they are
multiplied by the number of processes. (Its sum, ``gradient_allreduce_op``, does not exist at ZeRO stage 3.)
"""

import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from luke.errors import UserError
from luke.model import PackedBatch
from luke.pretraining.config import DeepSpeedSettings
from luke.pretraining.optimizer import AdamW, parameter_groups

logger = logging.getLogger(__name__)

MOMENTS = ("exp_avg", "exp_avg_sq")


class Processes:
    """The training processes: this one's place among them, its device, and sums over all of them.

    Started by a launcher (DeepSpeed's, Slurm's or MPI's, which set RANK and WORLD_SIZE), or alone.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed

        # Without this DeepSpeed compiles a C++ extension at the first start (a minute or more) for sums over processes
        # on one CPU machine; gloo does them too.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        if "RANK" not in os.environ:
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=_free_port())
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", self.local_rank) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
        deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo", verbose=False)
        self.rank, self.world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if not on_gpu and "OMP_NUM_THREADS" not in os.environ:
            local_world = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", self.world_size)))
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world))

    def sum(self, values: Tensor) -> Tensor:
        """``values`` summed over all processes."""
        total = values.to(self.device)
        if self.world_size > 1:
            torch.distributed.all_reduce(total)
        return total

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.world_size > 1:
            torch.distributed.barrier()

    def close(self) -> None:
        """Leaves the process group, so that the others do not wait for this process."""
        torch.distributed.destroy_process_group()


def _free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


class Engine:
    """A model under DeepSpeed. Its weights must already be loaded: DeepSpeed copies them at the start.

    Args:
        model: Parameters to be trained have ``requires_grad``.
        settings: The resolved configuration.
        processes: The training processes.
    """

    def __init__(self, model: nn.Module, settings: DeepSpeedSettings, processes: Processes) -> None:
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        self.model, self.processes = model, processes
        decay = settings.optimizer.weight_decay if settings.optimizer else 0.0
        groups = parameter_groups(model, decay)
        # ZeRO 3 steps once with zero gradients to make its state: at a rate above 0 the weights would decay.
        optimizer = AdamW(groups, replace(settings.optimizer, lr=0.0)) if settings.optimizer else None
        try:
            self._engine, self._optimizer, _, self._scheduler = deepspeed.initialize(
                model=model,
                optimizer=optimizer,
                model_parameters=None if optimizer else groups,
                config=settings.config,
                dist_init_required=False,
            )
        except (ValueError, AssertionError, NotImplementedError) as error:
            raise UserError(f"DeepSpeed refuses the configuration: {error}") from error
        self.zero_stage = int(self._engine.zero_optimization_stage())
        if settings.optimizer:
            self._start_optimizer(settings.optimizer.lr)
        self._grad_norm = 0.0
        if self._is_plain():
            self._engine.clip_fp32_gradients = self._clip  # DeepSpeed's own keeps no norm here

    def _start_optimizer(self, lr: float) -> None:
        """Makes the moments now: DeepSpeed 0.19 links those of the first parameter group only if they come with a step."""
        base = self._base_optimizer
        for group in base.param_groups:
            if self._scheduler is None:
                group["lr"] = lr
            for parameter in group["params"]:
                state = base.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), device=parameter.device)
                    state.update({key: torch.zeros_like(parameter) for key in MOMENTS})
        if hasattr(self._optimizer, "_lazy_init_hp_params_optimizer_state"):
            self._optimizer._lazy_init_hp_params_optimizer_state()

    @property
    def _base_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer inside DeepSpeed's."""
        base: torch.optim.Optimizer = self._optimizer if self._is_plain() else self._optimizer.optimizer
        return base

    def _is_plain(self) -> bool:
        """fp32 at ZeRO stage 0: the optimizer works on the model's parameters themselves."""
        return self.zero_stage == 0

    def _clip(self) -> None:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        self._grad_norm = float(nn.utils.clip_grad_norm_(parameters, self._engine.gradient_clipping()))

    def train(self) -> None:
        """Puts the model in training mode."""
        self._engine.train()

    def forward_backward(self, batch: PackedBatch, scales: dict[str, float]) -> dict[str, Tensor]:
        """Runs a micro batch and adds to the gradients.

        Args:
            batch: The micro batch.
            scales: For each loss, 1 / (its number of targets in the whole step).

        Returns:
            The model's sums, detached.
        """
        sums: dict[str, Tensor] = self._engine(batch)
        losses = [sums[name] * scale for name, scale in scales.items() if name in sums]
        self._engine.backward(sum(losses) * self.processes.world_size, scale_wrt_gas=False)
        return {name: value.detach() for name, value in sums.items()}

    def step(self) -> None:
        """Sums the gradients over processes, clips, updates the weights and the learning rate, clears the gradients."""
        self._engine.step()

    @property
    def learning_rate(self) -> float:
        """The rate that the next step will use."""
        rates: list[float] = self._engine.get_lr()
        return float(rates[0])

    @property
    def grad_norm(self) -> float:
        """L2 norm of the last step's gradient, before clipping."""
        return self._grad_norm if self._is_plain() else float(self._engine.get_global_grad_norm() or 0.0)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, full fp32 weight on the CPU) of every parameter and buffer. All processes must iterate together."""
        from deepspeed import zero
        from deepspeed.utils import safe_get_full_fp32_param

        for name, parameter in self.model.named_parameters():
            full = safe_get_full_fp32_param(parameter) if not self._is_plain() and parameter.requires_grad else None
            if full is None:
                with zero.GatheredParameters([parameter], enabled=self.zero_stage == 3):
                    full = parameter.detach().clone()
            yield name, full.float().cpu()
        yield from ((name, buffer.cpu()) for name, buffer in self.model.named_buffers())

    def moments(self) -> Iterator[tuple[str, Tensor]]:
        """(``exp_avg.NAME`` or ``exp_avg_sq.NAME``, full fp32 moment) of every trained parameter. All iterate together."""
        from deepspeed.utils import safe_get_full_optimizer_state

        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                continue
            for key in MOMENTS:
                if self._is_plain():
                    state = self._optimizer.state.get(parameter, {})
                    full = state[key].detach() if key in state else None
                else:
                    full = safe_get_full_optimizer_state(parameter, key)
                if full is not None:
                    yield f"{key}.{name}", full.float().cpu()

    def load_moments(self, moments: dict[str, Tensor], step: int) -> None:
        """Puts saved moments in place and continues the schedule at ``step``."""
        from deepspeed.utils import safe_set_full_optimizer_state

        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad or f"{MOMENTS[0]}.{name}" not in moments:
                continue
            if self._is_plain():
                state = self._optimizer.state[parameter]
                for key in MOMENTS:
                    state[key].copy_(moments[f"{key}.{name}"])
            else:
                for key in MOMENTS:
                    safe_set_full_optimizer_state(parameter, moments[f"{key}.{name}"].to(parameter.device), key)
        for state in self._base_optimizer.state.values():
            state["step"].fill_(float(step))
        self._engine.global_steps = step
        if self._scheduler is not None and step:
            self._scheduler.last_batch_iteration = step - 1
            self._scheduler.step(step - 1)
