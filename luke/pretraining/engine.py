"""Everything that touches DeepSpeed: start, forward and backward, step, and the full state whatever the ZeRO stage.

DeepSpeed averages gradients over processes; losses come here already divided by the counts of the whole step, so they are
multiplied by the number of processes. (Its sum, ``gradient_allreduce_op``, does not exist at ZeRO stage 3.)
"""

import logging
import math
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from luke.errors import UserError
from luke.model import PackedBatch
from luke.pretraining.config import (
    TENSOR_PARALLEL_INNER,
    TENSOR_PARALLEL_INPUTS,
    TENSOR_PARALLEL_OUTPUTS,
    DeepSpeedSettings,
)
from luke.pretraining.optimizer import AdamW, parameter_groups

logger = logging.getLogger(__name__)

MOMENTS = ("exp_avg", "exp_avg_sq")


class Processes:
    """The training processes: this one's place among them, its device, and sums over all of them.

    Started by a launcher (DeepSpeed's, Slurm's or MPI's, which set RANK and WORLD_SIZE), or alone.

    Args:
        backend: What processes talk through; None takes NCCL on GPUs, gloo elsewhere.

    Raises:
        UserError: the backend does not fit the machine, or the processes cannot meet.
    """

    def __init__(self, backend: str | None = None) -> None:
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
        if backend == "nccl" and not on_gpu:
            raise UserError("--backend nccl needs GPUs, and this machine shows none; leave it out, or give gloo")
        self.device = torch.device("cuda", self.local_rank) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
        try:
            deepspeed.init_distributed(dist_backend=backend or ("nccl" if on_gpu else "gloo"), verbose=False)
        except torch.distributed.DistNetworkError as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            raise UserError(
                f"the processes cannot meet at {where} (another run may hold the port: deepspeed --master_port=N): {error}"
            ) from None
        self.rank, self.world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.share_layers(1)
        if not on_gpu and "OMP_NUM_THREADS" not in os.environ:
            local_world = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", self.world_size)))
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world))

    def share_layers(self, tensor_parallel_size: int) -> None:
        """Says that so many neighbours share one copy of the encoder's layers, and work on the same items."""
        self.shard = self.rank % tensor_parallel_size
        self.data_rank, self.data_world_size = self.rank // tensor_parallel_size, self.world_size // tensor_parallel_size

    def sum(self, values: Tensor) -> Tensor:
        """``values`` summed over all processes; of those that share their items only the first counts."""
        total = values.to(self.device) if self.shard == 0 else torch.zeros_like(values, device=self.device)
        if self.world_size > 1:
            torch.distributed.all_reduce(total)
        return total

    def on_first(self, task: Callable[[], None]) -> None:
        """Runs ``task`` in process 0 while the others wait. All must call it.

        Raises:
            UserError: ``task`` did, in every process, so that none waits for one that is gone.
        """
        problem: UserError | None = None
        if self.rank == 0:
            try:
                task()
            except UserError as error:
                problem = error
        if self.sum(torch.tensor([int(problem is not None)])).item():
            raise problem or UserError("process 0 met a mistake")

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
        config = getattr(model, "config", None)
        if config is not None and config.num_attention_heads % settings.tensor_parallel_size:
            raise UserError(
                f"tensor_parallel: {config.num_attention_heads} attention heads cannot be shared evenly by "
                f'"autotp_size" {settings.tensor_parallel_size} processes'
            )
        self.model, self.processes, self._shards = model, processes, settings.tensor_parallel_size
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
        if settings.tensor_parallel_size > 1:
            # It compares the batches of the processes by pickling them; ours are a function of the step.
            self._engine.first_dataloader_check.remove()
        self.zero_stage = int(self._engine.zero_optimization_stage())
        self._discarded = False
        if settings.optimizer:
            self._start_optimizer(settings.optimizer.lr)
        self._grad_norm = 0.0
        self.learning_rate = 0.0  # of the last step
        if self._is_plain():
            # DeepSpeed's own clipping keeps no norm here, and is left out where there is nothing to clip to.
            self._clip_to = self._engine.gradient_clipping() or math.inf
            self._engine.clip_fp32_gradients, self._engine.gradient_clipping = self._clip, lambda: self._clip_to
        else:
            self._let_steps_be_discarded()

    def _let_steps_be_discarded(self) -> None:
        """DeepSpeed leaves out a step whose gradient is not finite only in half precision; here always, and on demand."""
        overflows = self._optimizer.has_overflow if self._engine.fp16_enabled() else lambda *_, **__: False
        self._optimizer.has_overflow = lambda *args, **kwargs: self._discarded or overflows(*args, **kwargs)
        self._optimizer.check_grad_overflow = True
        if self.zero_stage == 3 and not self._engine.fp16_enabled():
            check = self._optimizer._overflow_check_and_loss_scale_update

            def check_discarded(update_scale: bool = True) -> bool:
                found = check(update_scale)
                self._optimizer.overflow = self._optimizer.overflow or self._discarded
                return bool(found or self._discarded)

            self._optimizer._overflow_check_and_loss_scale_update = check_discarded

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
        self._grad_norm = float(nn.utils.clip_grad_norm_(parameters, self._clip_to))
        if self._discarded or not math.isfinite(self._grad_norm):
            self._discarded = True
            for parameter in parameters:
                parameter.grad = None

    def train(self) -> None:
        """Puts the model in training mode."""
        self._engine.train()

    def forward_backward(self, batch: PackedBatch, weights: Mapping[str, float]) -> dict[str, Tensor]:
        """Runs a micro batch and adds to the gradients.

        Args:
            batch: The micro batch.
            weights: What the sum of each kind of loss is multiplied by (`luke.pretraining.losses`).

        Returns:
            The model's sums, detached.
        """
        sums: dict[str, Tensor] = self._engine(batch)
        losses = [sums[f"{kind}_loss"] * weight for kind, weight in weights.items() if f"{kind}_loss" in sums]
        self._engine.backward(sum(losses) * self.processes.data_world_size, scale_wrt_gas=False)
        return {name: value.detach() for name, value in sums.items()}

    @torch.no_grad()
    def evaluate(self, batch: PackedBatch) -> dict[str, Tensor]:
        """The model's sums of a micro batch, without dropout and gradients. All processes must evaluate as many."""
        self._engine.eval()
        sums: dict[str, Tensor] = self._engine(batch)
        self._engine.train()
        return sums

    def step(self, discard: bool = False) -> bool:
        """Sums the gradients over processes, clips, updates the weights and the learning rate, clears the gradients.

        Args:
            discard: Leave weights and moments as they are; only the schedule goes on.

        Returns:
            Whether the gradient was applied: one that is not finite never is.
        """
        self._discarded = discard
        self.learning_rate = float(self._base_optimizer.param_groups[0]["lr"])
        self._engine.step()
        applied = not (self._discarded or getattr(self._optimizer, "overflow", False))
        if not applied and not self._is_plain() and self._scheduler is not None:
            self._scheduler.step()  # DeepSpeed holds it back then, but a step's rate depends on its number alone
        return applied

    @property
    def scales_losses(self) -> bool:
        """Whether gradients that are not finite belong to the search for a loss scale (fp16)."""
        return bool(self._engine.fp16_enabled())

    def write_monitors(self, figures: Mapping[str, float], step: int) -> None:
        """Hands figures to the monitors that the DeepSpeed file enables (W&B, Comet, CSV, TensorBoard)."""
        monitor = self._engine.monitor
        if monitor.enabled:
            monitor.write_events([(f"Train/{name}", value, step) for name, value in figures.items() if name != "step"])

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
            yield name, self._whole(name, full).float().cpu()
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
                    yield f"{key}.{name}", self._whole(name, full).float().cpu()

    def _whole(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor of which tensor parallelism left this process a shard."""
        dimension = self._sharded_dimension(name)
        if dimension is None:
            return tensor
        shards = [torch.empty_like(tensor) for _ in range(self._shards)]
        torch.distributed.all_gather(shards, tensor.contiguous(), group=self._engine.mpu.get_tensor_model_parallel_group())
        return torch.cat(shards, dimension)

    def _shard(self, name: str, tensor: Tensor) -> Tensor:
        """This process's shard of a whole tensor."""
        dimension = self._sharded_dimension(name)
        return tensor if dimension is None else tensor.chunk(self._shards, dimension)[self.processes.shard].contiguous()

    def _sharded_dimension(self, name: str) -> int | None:
        if self._shards == 1:
            return None
        if re.match(TENSOR_PARALLEL_INPUTS, name):
            return 1
        return 0 if re.match(TENSOR_PARALLEL_OUTPUTS, name) or re.match(TENSOR_PARALLEL_INNER, name) else None

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
                    moment = self._shard(name, moments[f"{key}.{name}"])
                    safe_set_full_optimizer_state(parameter, moment.to(parameter.device), key)
        for state in self._base_optimizer.state.values():
            state["step"].fill_(float(step))
        self._engine.global_steps = step
        if self._scheduler is not None and step:
            self._scheduler.last_batch_iteration = step - 1
            self._scheduler.step(step - 1)
