"""What a step computes: the same however it is cut over processes and micro batches, and what a plain loop computes."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import LukeForMaskedLM

from luke.model import PackedBatch
from luke.pretraining.config import PretrainingOptions
from luke.pretraining.initialization import initial_model
from luke.pretraining.run_plan import prepare

from .runs import launch, losses, luke, metrics

STEPS = 30
# At the other tests' rate of 1e-2 the rounding of fp32 grows to 1 % of the loss within 30 steps.
RATE = "scheduler.params.warmup_max_lr=1e-3"


@pytest.fixture(scope="module")
def thirty_steps(work: Path) -> Path:
    output = work / "thirty"
    done = luke(work, output, "--num-epochs", STEPS / 12, "--override", RATE)
    assert done.returncode == 0, done.stderr
    return output


OFFLOADED_OPTIMIZER = "zero_optimization.offload_optimizer.device=cpu"
OFFLOADED_PARAMETERS = "zero_optimization.offload_param.device=cpu"
CHECKPOINTING = "gradient_checkpointing=true"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "micro_batch", "zero_stage", "others"),
    [
        (1, 1, 0, ()),
        (1, 2, 1, ()),
        (1, 4, 2, (CHECKPOINTING,)),
        (1, 2, 3, (OFFLOADED_OPTIMIZER, OFFLOADED_PARAMETERS)),
        (2, 1, 0, (CHECKPOINTING,)),
        (2, 2, 0, ()),
        (2, 4, 1, ()),
        (2, 1, 1, (OFFLOADED_OPTIMIZER,)),
        (2, 2, 2, (OFFLOADED_OPTIMIZER,)),
        (2, 4, 2, ()),
        (2, 1, 3, ()),
        (2, 2, 3, (OFFLOADED_OPTIMIZER, OFFLOADED_PARAMETERS, CHECKPOINTING)),
    ],
)
def test_how_a_step_is_cut_changes_no_loss(
    work: Path, thirty_steps: Path, processes: int, micro_batch: int, zero_stage: int, others: tuple[str, ...]
) -> None:
    output = work / "_".join(["cut", str(processes), str(micro_batch), str(zero_stage), *(o.split("=")[0] for o in others)])
    overrides = (f"zero_optimization.stage={zero_stage}", f"train_micro_batch_size_per_gpu={micro_batch}", RATE, *others)
    options = [word for override in overrides for word in ("--override", override)]
    launch(work, output, processes, "--num-epochs", STEPS / 12, *options)
    assert losses(output) == pytest.approx(losses(thirty_steps), rel=1e-4)
    shutil.rmtree(output)


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 2])
def test_tensor_parallelism_changes_no_loss(work: Path, thirty_steps: Path, zero_stage: int) -> None:
    """Two copies of the encoder, each over two processes; the checkpoint is whole, and continues in one process."""
    output = work / f"tensor_parallel_{zero_stage}"
    overrides = ("tensor_parallel.autotp_size=2", f"zero_optimization.stage={zero_stage}", RATE)
    options = [word for override in overrides for word in ("--override", override)]
    launch(work, output, 4, "--num-epochs", STEPS / 12, *options, "--max-train-steps", 20)
    assert losses(output) == pytest.approx(losses(thirty_steps)[:20], rel=1e-4)
    norms, expected = ([entry["grad_norm"] for entry in metrics(run)] for run in (output, thirty_steps))
    assert norms == pytest.approx(expected[:20], rel=1e-3)
    done = luke(work, output, "--num-epochs", STEPS / 12, "--override", RATE)
    assert done.returncode == 0, done.stderr
    assert losses(output) == pytest.approx(losses(thirty_steps), rel=1e-4)


def padded(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """The inputs of `LukeForMaskedLM`, from a packed batch."""
    rows, words, entities = len(batch.word_lengths), max(batch.word_lengths), max(1, *batch.entity_lengths)
    inputs = {
        "input_ids": torch.zeros(rows, words, dtype=torch.long),
        "attention_mask": torch.zeros(rows, words, dtype=torch.long),
        "labels": torch.full((rows, words), -100),
        "entity_ids": torch.zeros(rows, entities, dtype=torch.long),
        "entity_attention_mask": torch.zeros(rows, entities, dtype=torch.long),
        "entity_labels": torch.full((rows, entities), -100),
        "entity_position_ids": torch.full((rows, entities, 30), -1),
    }
    word_labels = dict(zip(batch.masked_word_index.tolist(), batch.masked_word_labels.tolist(), strict=True))
    entity_labels = dict(zip(batch.masked_entity_index.tolist(), batch.masked_entity_labels.tolist(), strict=True))
    flat = word = entity = 0
    for row, (num_words, num_entities) in enumerate(zip(batch.word_lengths, batch.entity_lengths, strict=True)):
        for column in range(num_words):
            inputs["input_ids"][row, column] = batch.word_ids[word]
            inputs["attention_mask"][row, column] = 1
            inputs["labels"][row, column] = word_labels.get(flat, -100)
            word, flat = word + 1, flat + 1
        for column in range(num_entities):
            inputs["entity_ids"][row, column] = batch.entity_ids[entity]
            inputs["entity_attention_mask"][row, column] = 1
            inputs["entity_labels"][row, column] = entity_labels.get(flat, -100)
            begin, end = batch.mention_offsets[entity], batch.mention_offsets[entity + 1]
            inputs["entity_position_ids"][row, column, : end - begin] = batch.mention_position_ids[begin:end]
            entity, flat = entity + 1, flat + 1
    return inputs


def learning_rate(step: int, highest: float, warmup: int, total: int) -> float:
    """Linear warm-up, linear decay; ``step`` counts from 0. DeepSpeed's schedule begins with the second step."""
    step = max(0, step - 1)
    return highest * (step / warmup if step < warmup else (total - step) / (total - warmup))


def test_a_hundred_steps_match_a_plain_loop_with_the_transformers_model(work: Path) -> None:
    output, steps = work / "hundred", 100
    overrides = ("optimizer.params.bias_correction=true", "scheduler.params.warmup_max_lr=1e-3")
    options = [word for override in overrides for word in ("--override", override)]
    done = luke(work, output, "--num-epochs", steps / 12, *options)
    assert done.returncode == 0, done.stderr

    plain = PretrainingOptions(
        str(work / "dataset"), output, work / "ds.json", bert_model_name=str(work / "base"), entity_emb_size=16,
        num_epochs=steps / 12, override=overrides,
    )  # fmt: skip
    run = prepare(plain, 1, on_cpu=True)
    torch.manual_seed(plain.seed)
    ours = initial_model(plain, run.datasets[0], None).model
    theirs = LukeForMaskedLM(ours.config).train()
    weights = {**ours.state_dict(), "lm_head.decoder.weight": ours.luke.embeddings.word_embeddings.weight}
    weights |= {
        "lm_head.decoder.bias": ours.lm_head.bias,
        "entity_predictions.decoder.weight": weights["luke.entity_embeddings.entity_embeddings.weight"],
    }
    assert not [name for name in theirs.load_state_dict(weights, strict=False).missing_keys if "position_ids" not in name]
    theirs.lm_head.decoder.weight = theirs.luke.embeddings.word_embeddings.weight
    theirs.entity_predictions.decoder.weight = theirs.luke.entity_embeddings.entity_embeddings.weight
    theirs.luke.pooler.requires_grad_(False)
    names = {name: parameter for name, parameter in theirs.named_parameters() if parameter.requires_grad}
    undecayed = [p for name, p in names.items() if name.endswith("bias") or "LayerNorm" in name or "layer_norm" in name]
    decayed = [p for p in names.values() if not any(p is other for other in undecayed)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": undecayed, "weight_decay": 0.0}], eps=1e-6
    )
    loader = run.loader(0, 1)
    curve = []
    for step in range(steps):
        micro_batches = loader[step].micro_batches
        num_words = sum(batch.masked_word_labels.numel() for batch in micro_batches)
        num_entities = sum(batch.masked_entity_labels.numel() for batch in micro_batches)
        total = 0.0
        for batch in micro_batches:
            inputs = padded(batch)
            labels, entity_labels = inputs.pop("labels"), inputs.pop("entity_labels")
            outputs = theirs(**inputs)
            word_loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
            entity_loss = F.cross_entropy(
                outputs.entity_logits.flatten(0, 1), entity_labels.flatten(), reduction="sum", ignore_index=-100
            )
            loss = word_loss / num_words + entity_loss / max(1, num_entities)
            loss.backward()
            total += loss.item()
        curve.append(total)
        torch.nn.utils.clip_grad_norm_(list(names.values()), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, 1e-3, 3, steps)
        optimizer.step()
        optimizer.zero_grad()
    assert losses(output) == pytest.approx(curve, rel=1e-3)
    assert curve[-1] < curve[0] - 0.5
    rates = [entry["learning_rate"] for entry in metrics(output)]
    assert rates == pytest.approx([learning_rate(step, 1e-3, 3, steps) for step in range(steps)], rel=1e-5)
