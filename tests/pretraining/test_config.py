import json
from pathlib import Path
from typing import Any

import pytest
import torch

from luke.errors import UserError
from luke.pretraining.config import (
    DeepSpeedSettings,
    OptimizerSettings,
    PretrainingOptions,
    read_deepspeed_file,
    resolve_deepspeed,
    total_training_steps,
)
from luke.pretraining.optimizer import AdamW, parameter_groups

ROOT = Path(__file__).parents[2]


def base(**changes: Any) -> dict[str, Any]:
    return {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        **changes,
    }


def resolve(config: dict[str, Any], world: int = 1, total: int | None = 100, on_cpu: bool = True) -> DeepSpeedSettings:
    return resolve_deepspeed(config, "ds.json", world, total, on_cpu)


def write(path: Path, config: object) -> Path:
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


# spec 5: learning rate, warmup, total steps, clipping
FILES = {
    "pretraining_config/luke_base_stage1": (5e-4, 2500, 98168, 10000),
    "pretraining_config/luke_large_stage1": (5e-4, 2500, 98168, 10000),
    "pretraining_config/luke_base_stage2": (1e-5, 2500, 98168, 10000),
    "pretraining_config/luke_large_stage2": (1e-5, 2500, 98168, 10000),
    "pretraining_config/mluke_base_stage1": (5e-4, 2500, 540326, 10000),
    "pretraining_config/mluke_large_stage1": (5e-4, 2500, 540326, 10000),
    "pretraining_config/mluke_base_stage2": (1e-4, 2500, 540326, 10000),
    "pretraining_config/mluke_large_stage2": (5e-5, 2500, 540326, 10000),
    "examples/entity_disambiguation/deepspeed_config/stage1": (5e-4, 1000, 4866, 1),
    "examples/entity_disambiguation/deepspeed_config/stage2": (5e-5, 1000, 29196, 1),
}


@pytest.mark.parametrize("name", FILES)
def test_shipped_files_hold_the_published_values(name: str) -> None:
    lr, warmup, total, clipping = FILES[name]
    settings = resolve(read_deepspeed_file(ROOT / f"{name}.json"), world=8, on_cpu=False)
    assert settings.optimizer == OptimizerSettings(lr, (0.9, 0.999), 1e-6, 0.01, False)
    assert (settings.train_batch_size, settings.micro_batch_size) == (2048, 4)
    assert settings.config["scheduler"]["type"] == "WarmupDecayLR"
    params = settings.config["scheduler"]["params"]
    assert params == {
        "warmup_min_lr": 0,
        "warmup_max_lr": lr,
        "warmup_num_steps": warmup,
        "warmup_type": "linear",
        "total_num_steps": total,
    }
    assert settings.config["gradient_clipping"] == clipping
    assert settings.config["gradient_accumulation_steps"] == 64


def test_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='unknown key "train_batchsize"; did you mean "train_batch_size"'):
        read_deepspeed_file(write(tmp_path / "ds.json", {"train_batchsize": 8}))
    with pytest.raises(UserError, match='unknown key "weight_decai"; did you mean "weight_decay"'):
        resolve(base(optimizer={"type": "AdamW", "params": {"lr": 1, "weight_decai": 0}}))


def test_not_json_names_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not JSON at line 2, column 24"):
        read_deepspeed_file(write(tmp_path / "ds.json", '{\n "train_batch_size": 8,,\n}'))
    with pytest.raises(UserError, match="must hold a JSON object"):
        read_deepspeed_file(write(tmp_path / "ds.json", [1]))
    with pytest.raises(UserError, match="was not found"):
        read_deepspeed_file(tmp_path / "missing.json")


def test_overrides_reach_into_blocks(tmp_path: Path) -> None:
    path = write(tmp_path / "ds.json", base())
    config = read_deepspeed_file(path, ["train_batch_size=8", "optimizer.params.lr=0.5", "zero_optimization.stage=2"])
    settings = resolve(config)
    assert settings.train_batch_size == 8
    assert settings.optimizer is not None and settings.optimizer.lr == 0.5
    assert settings.config["zero_optimization"]["stage"] == 2
    with pytest.raises(UserError, match="write key=value"):
        read_deepspeed_file(path, ["train_batch_size"])
    with pytest.raises(UserError, match="unknown key"):
        read_deepspeed_file(path, ["batch=8"])


def test_batch_that_does_not_divide_says_which_would() -> None:
    with pytest.raises(UserError, match=r"16 is not divisible by micro batch 5 x 2 .* could be 1 or 2 or 4 or 8"):
        resolve(base(train_micro_batch_size_per_gpu=5), world=2)
    with pytest.raises(UserError, match="the batch could be 12 or 15 or 18 or 21"):
        resolve(base(), world=3)
    with pytest.raises(UserError, match="the last would have to be 4"):
        resolve(base(gradient_accumulation_steps=3))
    with pytest.raises(UserError, match="positive whole number"):
        resolve(base(train_batch_size=0))


def test_auto_values() -> None:
    auto = base(train_batch_size="auto", gradient_accumulation_steps=3)
    assert resolve(auto, world=2).train_batch_size == 24
    settings = resolve(base(gradient_accumulation_steps="auto"), world=2)
    assert settings.config["gradient_accumulation_steps"] == 2
    scheduler = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 10}}
    assert resolve(base(scheduler=scheduler), total=77).config["scheduler"]["params"]["total_num_steps"] == 77
    with pytest.raises(UserError, match="warmup_num_steps"):
        resolve(base(scheduler=scheduler), total=10)


def test_our_keys_are_taken_out_and_precision_gets_fp32_sums() -> None:
    settings = resolve(base(gradient_checkpointing=True, num_workers=3, bf16={"enabled": True}))
    assert settings.gradient_checkpointing and settings.num_workers == 3
    assert "gradient_checkpointing" not in settings.config and "num_workers" not in settings.config
    assert settings.config["zero_optimization"]["stage"] == 1
    assert settings.config["data_types"] == {"grad_accum_dtype": "fp32"}
    with pytest.raises(UserError, match='"gradient_checkpointing" must be true or false'):
        resolve(base(gradient_checkpointing="yes"))


def test_fp16_on_a_cpu_says_bf16() -> None:
    with pytest.raises(UserError, match="fp16 does not run on a CPU"):
        resolve(base(fp16={"enabled": True}))
    assert resolve(base(fp16={"enabled": True}), on_cpu=False).config["fp16"]["enabled"]


@pytest.mark.parametrize(
    ("params", "message"),
    [({}, '"lr" is missing'), ({"lr": "fast"}, "must be numbers"), ({"lr": 1, "betas": [0.9]}, "two betas")],
)
def test_bad_optimizer_values(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(base(optimizer={"type": "AdamW", "params": params}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_epochs": 0}, "--num-epochs 0: must be positive"),
        ({"save_interval_steps": -1}, "--save-interval-steps"),
        ({"reset_optimization_states": True}, "needs --resume-checkpoint-id"),
        ({"word_only_training": True, "cls_entity_prediction": True}, "--word-only-training"),
        ({"word_only_training": True, "fix_bert_weights": True}, "nothing to train"),
    ],
)
def test_contradictory_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PretrainingOptions("data", Path("out"), Path("ds.json"), **options)


def test_steps_round_up() -> None:
    assert total_training_steps(10_052_000, 2048, 20) == 98165
    assert total_training_steps(1257, 16, 1) == 79


@pytest.mark.parametrize("bias_correction", [True, False])
def test_adamw_follows_its_definition(bias_correction: bool) -> None:
    """Loshchilov and Hutter 2019, algorithm 2; without correction the moments are used as they are."""
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.999, 1e-6, 0.1
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(50, dtype=torch.float64))
    expected, m, v = parameter.detach().clone(), torch.zeros(50).double(), torch.zeros(50).double()
    optimizer = AdamW([parameter], OptimizerSettings(lr, (beta1, beta2), eps, decay, bias_correction))
    for step in range(1, 30):
        gradient = torch.randn(50, dtype=torch.float64)
        parameter.grad = gradient.clone()
        optimizer.step()
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        first, second = (1 - beta1**step, 1 - beta2**step) if bias_correction else (1.0, 1.0)
        expected = expected - lr * decay * expected - lr * (m / first) / ((v / second).sqrt() + eps)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-9, atol=1e-12)


def test_biases_and_layer_norms_do_not_decay() -> None:
    model = torch.nn.ModuleDict({"dense": torch.nn.Linear(3, 3), "LayerNorm": torch.nn.LayerNorm(3)})
    model["dense"].weight.requires_grad_(True)
    decayed, others = parameter_groups(model, 0.1)
    assert decayed["params"] == [model["dense"].weight] and decayed["weight_decay"] == 0.1
    assert len(others["params"]) == 3 and others["weight_decay"] == 0
    model["dense"].bias.requires_grad_(False)
    assert len(parameter_groups(model, 0.1)[1]["params"]) == 2


def test_tensor_parallelism_leaves_fewer_copies_to_share_the_batch() -> None:
    settings = resolve({**base(), "tensor_parallel": {"autotp_size": 2}}, world=4)
    assert settings.tensor_parallel_size == 2 and settings.config["gradient_accumulation_steps"] == 2
    assert settings.train_batch_size == 16 and settings.config["zero_optimization"]["stage"] == 1
    with pytest.raises(UserError, match='"autotp_size" 3 must be a whole number that divides 4 processes'):
        resolve({**base(), "tensor_parallel": {"autotp_size": 3}}, world=4)
