"""``luke plan``: what fits into the memory of a GPU, and ``"train_micro_batch_size_per_gpu": "auto"``."""

import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import LukeConfig

from luke.backbones import FAMILIES, base_luke_config, luke_config
from luke.errors import UserError
from luke.model import LukeForPretraining
from luke.pretraining import checkpoint as checkpoints
from luke.pretraining.config import DeepSpeedSettings, PretrainingOptions
from luke.pretraining.dataset import PretrainingDataset
from luke.pretraining.initialization import DEFAULT_ENTITY_EMB_SIZE, InitialModel, set_trainable
from luke.pretraining.memory import (
    GIB,
    MemorySettings,
    empty_model,
    estimate,
    keeps_probabilities,
    largest_micro_batch,
    parameters_by_component,
)

# Published sizes, so that a plan needs no download: words, hidden, layers, heads, inner, positions.
_PUBLISHED = {
    "bert-base-uncased": ("bert", 30522, 768, 12, 12, 3072, 512),
    "bert-large-uncased": ("bert", 30522, 1024, 24, 16, 4096, 512),
    "roberta-base": ("roberta", 50265, 768, 12, 12, 3072, 514),
    "roberta-large": ("roberta", 50265, 1024, 24, 16, 4096, 514),
    "xlm-roberta-base": ("xlm-roberta", 250002, 768, 12, 12, 3072, 514),
    "xlm-roberta-large": ("xlm-roberta", 250002, 1024, 24, 16, 4096, 514),
}
# A CPU is no faster with more at a time, and its memory holds other things too.
_LARGEST_ON_CPU, _SHARE_ON_CPU = 16, 0.5


@dataclass(frozen=True)
class Plan:
    """What fits, and how much of it is what.

    Attributes:
        parameters: By component, (all, trained).
        rows: For each ZeRO stage, without and with gradient checkpointing: the parts of the memory of the largest micro
            batch that fits (of micro batch 1 where none does), in bytes.
    """

    parameters: dict[str, tuple[int, int]]
    memory: int
    rows: list[dict[str, Any]]


def parse_memory(text: str) -> int:
    """``24GB`` -> bytes. As on a GPU's box, GB are taken as GiB.

    Raises:
        UserError: not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([mg])i?b?\s*", text.lower())
    if match is None or not float(match[1]):
        raise UserError(f"--gpu-memory {text}: write a size such as 24GB")
    return int(float(match[1]) * (GIB if match[2] == "g" else 1 << 20))


def named_config(model: str, entity_vocab_size: int, entity_emb_size: int) -> LukeConfig:
    """The LUKE on a base: a folder with ``config.json``, or one whose sizes are published.

    Raises:
        UserError: neither.
    """
    if model not in _PUBLISHED:
        return base_luke_config(model, entity_vocab_size, entity_emb_size)
    family, words, hidden, layers, heads, inner, positions = _PUBLISHED[model]
    settings = {
        "vocab_size": words,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": positions,
        "pad_token_id": 0 if family == "bert" else 1,
    }
    return luke_config(settings, FAMILIES[family], entity_vocab_size, entity_emb_size)


def make_plan(
    model: LukeForPretraining,
    settings: DeepSpeedSettings,
    options: PretrainingOptions,
    world_size: int,
    max_seq_length: int,
    memory: int,
) -> Plan:
    """Tries each ZeRO stage, without and with gradient checkpointing, at the precision of the configuration."""
    given = MemorySettings.of(settings, world_size, keeps_probabilities=False)
    rows = []
    for stage in range(1 if given.half else 0, 4):
        for checkpointing in (False, True):
            tried = replace(given, zero_stage=stage, gradient_checkpointing=checkpointing)
            largest = largest_micro_batch(model, tried, max_seq_length, options.masking, memory)
            parts = estimate(model, tried, max(1, largest), max_seq_length, options.masking)
            rows.append(
                {
                    "zero_stage": stage,
                    "gradient_checkpointing": checkpointing,
                    "largest_micro_batch": largest,
                    **asdict(parts),
                    "total": parts.total,
                }
            )
    return Plan(parameters_by_component(model), memory, rows)


def advice(plan: Plan, settings: DeepSpeedSettings) -> list[str]:
    """What to set, in words."""
    stage = int(settings.config["zero_optimization"].get("stage", 0))
    chosen = [r for r in plan.rows if r["zero_stage"] == stage]
    now = next(r for r in chosen if r["gradient_checkpointing"] == settings.gradient_checkpointing)
    lines = []
    if now["largest_micro_batch"] >= settings.micro_batch_size:
        lines.append(
            f"the configuration fits: micro batch {settings.micro_batch_size}, up to {now['largest_micro_batch']} would"
        )
    else:
        lines.append(
            f"the configuration does not fit: micro batch {settings.micro_batch_size}, {now['largest_micro_batch']} would"
        )
        fitting = [r for r in plan.rows if r["largest_micro_batch"] >= settings.micro_batch_size]
        for row in sorted(fitting, key=lambda r: (r["gradient_checkpointing"], r["zero_stage"]))[:2]:
            checkpointing = ' and "gradient_checkpointing": true' if row["gradient_checkpointing"] else ""
            lines.append(f'try "zero_optimization": {{"stage": {row["zero_stage"]}}}{checkpointing}')
        if not fitting:
            lines.append('try "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}} or a smaller base')
    if not any(settings.config.get(kind, {}).get("enabled") for kind in ("bf16", "fp16")):
        lines.append('"bf16": {"enabled": true} halves weights and activations')
    return lines


def print_plan(plan: Plan, settings: DeepSpeedSettings) -> None:
    """The plan as a table."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    parts = ", ".join(f"{name} {whole / 1e6:,.0f}M" for name, (whole, _) in plan.parameters.items())
    total, trained = (sum(numbers) for numbers in zip(*plan.parameters.values(), strict=True))
    console.print(f"parameters: {total / 1e6:,.0f}M, of which {trained / 1e6:,.0f}M trained ({parts})")
    table = Table(title=f"Largest micro batch in {plan.memory / GIB:.0f} GiB a device, and where the memory goes (GiB)")
    names = ("weights", "gradients", "optimizer", "activations", "logits", "total")
    for name in ("ZeRO", "checkpointing", "micro batch", *names):
        table.add_column(name, justify="right")
    for row in plan.rows:
        cells = [f"{row[name] / GIB:.2f}" for name in names]
        table.add_row(
            str(row["zero_stage"]),
            "on" if row["gradient_checkpointing"] else "off",
            str(row["largest_micro_batch"] or "none"),
            *cells,
        )
    console.print(table)
    for line in advice(plan, settings):
        console.print(line)


def micro_batch_limit(
    options: PretrainingOptions, settings: DeepSpeedSettings, dataset: PretrainingDataset, world_size: int, max_length: int
) -> int:
    """The largest micro batch for this machine's devices: what ``"auto"`` asks for; at least 1."""
    model = empty_model(_config_of_run(options, dataset))
    set_trainable(InitialModel(model, fresh_mlm_head=False), options)
    memory = MemorySettings.of(settings, world_size, keeps_probabilities(model.config))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        available = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    else:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        available = int(whole * _SHARE_ON_CPU) // int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    largest = largest_micro_batch(model, memory, max_length, options.masking, available)
    return max(1, largest if on_gpu else min(largest, _LARGEST_ON_CPU))


def _config_of_run(options: PretrainingOptions, dataset: PretrainingDataset) -> LukeConfig:
    own = checkpoints.newest_valid(options.output_dir) if options.resume == "auto" else None
    source = own
    if own is None and options.resume_checkpoint_id:
        source = checkpoints.find_checkpoint(options.resume_checkpoint_id, options.output_dir)
    if source is not None:
        return LukeConfig(**checkpoints.read_config(source))
    if not options.bert_model_name:
        raise UserError("--bert-model-name is missing: which encoder should the model start from?")
    size = options.entity_emb_size or DEFAULT_ENTITY_EMB_SIZE
    return base_luke_config(options.bert_model_name, int(dataset.metadata["entity_vocab_size"]), size)


def read_plan_settings(path: Path, override: tuple[str, ...], world_size: int) -> DeepSpeedSettings:
    """The configuration that a plan is for; fp16 is as good as on a GPU."""
    from luke.pretraining.config import read_deepspeed_file, resolve_deepspeed

    return resolve_deepspeed(read_deepspeed_file(path, override), str(path), world_size, 1 << 62, on_cpu=False)
