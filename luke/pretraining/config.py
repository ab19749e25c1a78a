"""The DeepSpeed JSON file and the options of ``luke pretrain``, checked once, into what the rest of the code relies on."""

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from luke.errors import UserError
from luke.pretraining.masking import MaskingOptions

# Keys of ours in the DeepSpeed file; they are taken out before DeepSpeed sees it.
_OUR_KEYS = ("gradient_checkpointing", "num_workers")
_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# https://www.deepspeed.ai/docs/config-json/ and deepspeed/runtime/constants.py of 0.19.8.
_DEEPSPEED_KEYS = (
    *_BATCH_KEYS,
    "activation_checkpointing",
    "aio",
    "amp",
    "autotuning",
    "bf16",
    "checkpoint",
    "comms_logger",
    "communication_data_type",
    "compile",
    "compression_training",
    "csv_monitor",
    "data_efficiency",
    "data_types",
    "dataloader_drop_last",
    "disable_allgather",
    "dump_state",
    "elasticity",
    "eigenvalue",
    "flops_profiler",
    "fp16",
    "gradient_allreduce_op",
    "gradient_clipping",
    "gradient_predivide_factor",
    "managed_gradient_accumulation",
    "memory_breakdown",
    "optimizer",
    "prescale_gradients",
    "scheduler",
    "seq_parallel_communication_data_type",
    "sparse_attention",
    "sparse_gradients",
    "steps_per_print",
    "tensor_parallel",
    "tensorboard",
    "timers",
    "torch_autocast",
    "wall_clock_breakdown",
    "wandb",
    "comet",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "zero_optimization",
)
_OPTIMIZER_PARAMS = ("lr", "betas", "eps", "weight_decay", "bias_correction", "torch_adam", "adam_w_mode")


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter 2019); without bias correction as in BERT's pretraining."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    bias_correction: bool = True


@dataclass(frozen=True)
class DeepSpeedSettings:
    """A DeepSpeed file, resolved for a number of processes and a number of steps.

    Attributes:
        config: What DeepSpeed gets.
        optimizer: AdamW's settings; None if the file names another optimizer, which DeepSpeed then makes.
        train_batch_size: Items of an optimizer step, over all processes.
        micro_batch_size: Full sequences of a micro batch, which make its token budget.
        gradient_checkpointing: Recompute activations in the backward pass.
        num_workers: Processes that load data, for each training process.
        tensor_parallel_size: Processes that share one copy of the encoder's layers; they work on the same items.
    """

    config: dict[str, Any]
    optimizer: OptimizerSettings | None
    train_batch_size: int
    micro_batch_size: int
    gradient_checkpointing: bool
    num_workers: int
    tensor_parallel_size: int = 1


_POSITIVE = (
    "num_epochs",
    "log_interval_steps",
    "entity_emb_size",
    "save_interval_steps",
    "max_train_steps",
    "keep_last",
    "eval_interval_steps",
    "eval_items",
)


@dataclass(frozen=True)
class PretrainingOptions:
    """The options of ``luke pretrain``, under the public code's names."""

    dataset_dir: str
    output_dir: Path
    deepspeed_config_file: Path
    bert_model_name: str = ""
    log_dir: Path | None = None
    worker_log_dir: Path = Path("deepspeed_logs")
    masking: MaskingOptions = field(default_factory=MaskingOptions)
    num_epochs: float = 1
    entity_emb_size: int | None = None
    entity_emb_init: str = "random"
    cls_entity_prediction: bool = False
    disable_entity_prediction_bias: bool = False
    fix_bert_weights: bool = False
    freeze_entity_emb: bool = False
    word_only_training: bool = False
    sampling_smoothing: float = 0.7
    save_interval_steps: int | None = None
    keep_last: int | None = None
    export_checkpoints: bool = False
    resume: str = "auto"
    resume_checkpoint_id: str | None = None
    reset_optimization_states: bool = False
    resume_hf_checkpoint_file: Path | None = None
    num_workers: int | None = None
    override: Sequence[str] = ()
    seed: int = 0
    max_train_steps: int | None = None
    log_interval_steps: int = 1
    loss_average: str = "global"
    on_nan: str = "stop"
    loss_spike_factor: float = 5.0
    eval_interval_steps: int | None = None
    eval_items: int = 2000
    backend: str | None = None

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if (value := getattr(self, name)) is not None and value <= 0:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be positive")
        if self.loss_spike_factor and self.loss_spike_factor <= 1:
            raise UserError(f"--loss-spike-factor {self.loss_spike_factor}: must be above 1, or 0 for no such check")
        if self.reset_optimization_states and not self.resume_checkpoint_id:
            raise UserError("--reset-optimization-states needs --resume-checkpoint-id: whose states are to be reset?")
        if self.resume_checkpoint_id and self.resume_hf_checkpoint_file:
            raise UserError("give --resume-checkpoint-id or --resume-hf-checkpoint-file, not both")
        if self.word_only_training and self.cls_entity_prediction:
            raise UserError("--word-only-training leaves no entity for --cls-entity-prediction to predict")
        if self.word_only_training and not self.masking.masked_lm_prob:
            raise UserError("--word-only-training with --masked-lm-prob 0 leaves nothing to train")
        if self.fix_bert_weights and self.word_only_training:
            raise UserError("--fix-bert-weights with --word-only-training leaves nothing to train")


def read_deepspeed_file(path: Path, override: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object in ``path``, with ``--override key=value`` applied (dots reach into blocks) and its keys checked.

    Raises:
        UserError: no such file, not JSON (with line and column), or an unknown key (with the nearest known one).
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: the DeepSpeed configuration file was not found") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: must hold a JSON object, not a {type(config).__name__}")
    for assignment in override:
        _apply_override(config, assignment)
    _check_keys(config, (*_DEEPSPEED_KEYS, *_OUR_KEYS), str(path))
    return config


def _apply_override(config: dict[str, Any], assignment: str) -> None:
    name, equals, text = assignment.partition("=")
    if not equals or not name:
        raise UserError(f"--override {assignment}: write key=value, such as train_batch_size=8 or optimizer.params.lr=1e-4")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    *blocks, key = name.split(".")
    for block in blocks:
        config = config.setdefault(block, {})
        if not isinstance(config, dict):
            raise UserError(f"--override {assignment}: {block} is not a block of the configuration")
    config[key] = value


def _check_keys(block: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in block:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, 1, cutoff=0)
            raise UserError(f'{where}: unknown key "{key}"; did you mean "{nearest[0]}"?')


def resolve_deepspeed(
    file: Mapping[str, Any],
    where: str,
    world_size: int,
    total_steps: int | None,
    on_cpu: bool,
    micro_batch_limit: int = 4,
) -> DeepSpeedSettings:
    """Checks a DeepSpeed configuration and fills in what is ``"auto"``.

    Args:
        file: What `read_deepspeed_file` returned.
        where: The file's name, for messages.
        world_size: Number of training processes.
        total_steps: Steps of the run, for ``"total_num_steps": "auto"``.
        on_cpu: There is no GPU: fp16 is refused.
        micro_batch_limit: What ``"train_micro_batch_size_per_gpu": "auto"`` may not exceed.
    """
    config: dict[str, Any] = json.loads(json.dumps(file))
    checkpointing = _take(config, "gradient_checkpointing", False, bool, where)
    num_workers = _take(config, "num_workers", 1, int, where)
    shards = _resolve_tensor_parallel(config, world_size, where)
    batch, micro = _resolve_batch(config, world_size // shards, where, micro_batch_limit)
    if on_cpu and _enabled(config, "fp16"):
        raise UserError(f'{where}: fp16 does not run on a CPU; use "bf16": {{"enabled": true}} instead')
    if _enabled(config, "fp16") and _enabled(config, "bf16"):
        raise UserError(f"{where}: fp16 and bf16 are both enabled; choose one")
    _resolve_scheduler(config, total_steps, where)
    optimizer = _take_optimizer(config, where)
    _set_our_mode(config, where)
    config.update(
        train_batch_size=batch * shards,  # DeepSpeed counts the items of each process, also where some share theirs
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=batch // (micro * (world_size // shards)),
    )
    return DeepSpeedSettings(config, optimizer, batch, micro, checkpointing, num_workers, shards)


def _take(config: dict[str, Any], key: str, default: Any, kind: type, where: str) -> Any:
    value = config.pop(key, default)
    if type(value) is not kind:
        raise UserError(f'{where}: "{key}" must be {"true or false" if kind is bool else "a whole number"}, not {value!r}')
    return value


def _enabled(config: Mapping[str, Any], block: str) -> bool:
    return bool(config.get(block, {}).get("enabled", False))


def has_auto_micro_batch(file: Mapping[str, Any]) -> bool:
    """Whether the micro batch is to be found: it, and what would give it, are left out or "auto"."""
    return all(file.get(key) in (None, "auto") for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))


def _resolve_batch(config: Mapping[str, Any], world_size: int, where: str, limit: int) -> tuple[int, int]:
    values = {key: None if config.get(key) == "auto" else config.get(key) for key in _BATCH_KEYS}
    for key, value in values.items():
        if value is not None and (type(value) is not int or value <= 0):
            raise UserError(f'{where}: "{key}" must be a positive whole number or "auto", not {value!r}')
    batch, micro, accumulation = values.values()
    if batch is None and (micro is None or accumulation is None):
        raise UserError(f'{where}: "train_batch_size" is missing')
    if batch is None:
        batch = (micro or 0) * (accumulation or 0) * world_size
    if micro is None:
        micro = batch // (world_size * accumulation) if accumulation else _largest_divisor(batch // world_size, limit)
    if micro <= 0 or batch % (micro * world_size):
        fitting = [size for size in range(1, batch + 1) if batch % (size * world_size) == 0]
        advice = (
            f"with {world_size} processes the micro batch could be {_few(fitting, micro)}"
            if fitting
            else f"with {world_size} processes the batch could be {_few([world_size * k for k in range(1, 9)], batch)}"
        )
        raise UserError(
            f'{where}: "train_batch_size" {batch} is not divisible by micro batch {micro} x {world_size} processes; {advice}'
        )
    if accumulation is not None and batch != micro * world_size * accumulation:
        raise UserError(
            f'{where}: "train_batch_size" {batch} is not micro batch {micro} x {world_size} processes x '
            f'"gradient_accumulation_steps" {accumulation}; the last would have to be {batch // (micro * world_size)}'
        )
    return batch, micro


# How tensor parallelism cuts a layer (Shoeybi et al. 2019, section 3): the first of two linear layers by its outputs (heads,
# inner units), the second by its inputs, whose partial products are summed.
TENSOR_PARALLEL_OUTPUTS = r".*attention\.self\.(query|key|value|w2e_query|e2w_query|e2e_query)\.(weight|bias)$"
TENSOR_PARALLEL_INNER = r".*encoder\.layer\.\d+\.intermediate\.dense\.(weight|bias)$"
TENSOR_PARALLEL_INPUTS = r".*encoder\.layer\.\d+\.(attention\.)?output\.dense\.weight$"


def _resolve_tensor_parallel(config: dict[str, Any], world_size: int, where: str) -> int:
    """``"tensor_parallel": {"autotp_size": n}``: how DeepSpeed is to cut this model, unless the file says it."""
    block = config.get("tensor_parallel")
    if block is None:
        return 1
    size = block.get("autotp_size", 1) if isinstance(block, dict) else None
    if type(size) is not int or size <= 0 or world_size % size:
        raise UserError(
            f'{where}: tensor_parallel: "autotp_size" {size!r} must be a whole number that divides {world_size} processes'
        )
    if size == 1:
        del config["tensor_parallel"]
        return 1
    cuts = {"column": [TENSOR_PARALLEL_OUTPUTS, TENSOR_PARALLEL_INNER], "row": [TENSOR_PARALLEL_INPUTS]}
    specs = [{"patterns": patterns, "partition_type": kind} for kind, patterns in cuts.items()]
    block.setdefault("partition_config", {"use_default_specs": False, "layer_specs": specs})
    zero = config.setdefault("zero_optimization", {})
    if not zero.get("stage"):
        zero["stage"] = 1  # the gradient's norm over shards is a ZeRO optimizer's
    return size


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of ``number`` up to ``limit``; 1 of 0, which the caller then finds not to fit."""
    return max((n for n in range(1, min(number, limit) + 1) if number % n == 0), default=1)


def _few(numbers: Sequence[int], near: int) -> str:
    return " or ".join(str(number) for number in sorted(sorted(numbers, key=lambda number: abs(number - near))[:4]))


def _resolve_scheduler(config: dict[str, Any], total_steps: int | None, where: str) -> None:
    scheduler = config.get("scheduler")
    if scheduler is None:
        return
    params = scheduler.get("params", {})
    if params.get("total_num_steps") == "auto":
        params["total_num_steps"] = total_steps
    total, warmup = params.get("total_num_steps"), params.get("warmup_num_steps", 0)
    if isinstance(total, int) and isinstance(warmup, int) and warmup >= total:
        raise UserError(f'{where}: "warmup_num_steps" {warmup} must be less than "total_num_steps" {total}')


def _take_optimizer(config: dict[str, Any], where: str) -> OptimizerSettings | None:
    block = config.get("optimizer")
    if not isinstance(block, dict) or "type" not in block:
        raise UserError(f'{where}: "optimizer" with its "type" is missing')
    if block["type"].lower() not in ("adam", "adamw"):
        return None
    params = dict(block.get("params", {}))
    _check_keys(params, _OPTIMIZER_PARAMS, f"{where}: optimizer.params")
    params.pop("torch_adam", None)
    if not params.pop("adam_w_mode", True):
        raise UserError(f'{where}: "adam_w_mode": false is not supported; weight decay is decoupled')
    if "lr" not in params:
        raise UserError(f'{where}: optimizer.params: "lr" is missing')
    del config["optimizer"]
    try:
        params["betas"] = tuple(float(beta) for beta in params.get("betas", OptimizerSettings.betas))
        settings = OptimizerSettings(**params)
        numbers = (settings.lr, *settings.betas, settings.eps, settings.weight_decay)
        valid = len(settings.betas) == 2 and all(math.isfinite(number) and number >= 0 for number in numbers)
    except TypeError:
        valid = False
    if not valid:
        raise UserError(f"{where}: optimizer.params: lr, two betas, eps and weight_decay must be numbers, zero or more")
    return settings


def _set_our_mode(config: dict[str, Any], where: str) -> None:
    """The accumulation is ours: a step has as many micro batches as its tokens need, and losses are already divided by
    the counts of the whole step."""
    if config.get("managed_gradient_accumulation") or config.get("gradient_allreduce_op", "mean") != "mean":
        raise UserError(
            f'{where}: leave out "managed_gradient_accumulation" and "gradient_allreduce_op": they are set by luke'
        )
    config["managed_gradient_accumulation"] = False
    config["gradient_allreduce_op"] = "mean"
    config.setdefault("steps_per_print", 1_000_000_000)
    zero = config.setdefault("zero_optimization", {})
    # DeepSpeed keeps fp32 weights, and sums gradients in fp32, only with a ZeRO optimizer.
    if (_enabled(config, "bf16") or _enabled(config, "fp16")) and not zero.get("stage"):
        zero["stage"] = 1
    if zero.get("stage", 0) in (0, 1):
        zero.setdefault("overlap_comm", False)
    if _enabled(config, "bf16"):
        config.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")
    config["zero_allow_untested_optimizer"] = True
    config["zero_force_ds_cpu_optimizer"] = False


def total_training_steps(num_items: int, batch_size: int, num_epochs: float) -> int:
    """ceil(items / batch · epochs) (spec of the public code)."""
    return math.ceil(num_items / batch_size * num_epochs)
