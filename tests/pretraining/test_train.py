"""The training loop in one process and through the real launcher, on a tiny base."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from luke.pretraining.checkpoint import list_checkpoints

from ..tiny_bases import make_base
from .runs import ENTITIES, bad, launch, losses, luke, metrics, weights


def test_a_run_learns_and_leaves_what_it_should(work: Path, reference: Path) -> None:
    assert len(losses(reference)) == 12
    assert losses(reference)[-1] < losses(reference)[0] - 1
    assert [folder.name for folder in list_checkpoints(reference)] == ["step00000012", "step00000010", "step00000005"]
    wanted = {
        "loss",
        "masked_lm_loss",
        "masked_lm_accuracy",
        "masked_entity_loss",
        "masked_entity_accuracy",
        "learning_rate",
    }
    wanted |= {"grad_norm", "tokens_per_second", "entities_per_second", "padding_share", "data_wait_share", "memory_gib"}
    assert wanted <= metrics(reference)[0].keys()
    assert all(entry["grad_norm"] > 0 and entry["memory_gib"] > 0.05 for entry in metrics(reference))
    log = (work / "reference_logs" / "worker_0.log").read_text()
    assert all(f"{name}=" in log for name in (*wanted, "own_seconds_per_step", "own_data_wait_share")) and "step=12 " in log
    assert list((reference / "tensorboard").glob("events*"))
    config = json.loads((list_checkpoints(reference)[0] / "config.json").read_text())
    assert config["model_type"] == "luke" and config["entity_vocab_size"] == ENTITIES


def test_the_same_command_again_does_nothing(work: Path, reference: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*") if path.is_file()}
    done = luke(work, reference, "--save-interval-steps", 5)
    assert done.returncode == 0 and "already finished" in done.stderr
    assert before == {path: path.stat().st_mtime_ns for path in reference.rglob("*") if path.is_file()}


def test_a_resumed_run_ends_bit_for_bit_like_one_straight_through(work: Path, reference: Path) -> None:
    output = work / "resumed"
    assert luke(work, output, "--max-train-steps", 5).returncode == 0
    done = luke(work, output)
    assert done.returncode == 0, done.stderr
    assert losses(output) == losses(reference)
    ours, theirs = weights(output), weights(reference)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_two_processes_and_zero_give_the_same_losses(work: Path, reference: Path) -> None:
    """Neither the number of processes, nor the micro batch, nor the ZeRO stage, nor checkpointing changes training."""
    output = work / "two"
    options = ("train_micro_batch_size_per_gpu=2", "zero_optimization.stage=2", "gradient_checkpointing=true")
    launch(work, output, 2, *(word for option in options for word in ("--override", option)))
    assert losses(output) == pytest.approx(losses(reference), rel=1e-4)
    assert (work / "two_logs" / "worker_1.log").exists()
    ours, theirs = weights(output), weights(reference)
    assert all((ours[name] - theirs[name]).abs().max() < 1e-3 for name in ours)


def test_a_run_of_two_processes_continues_in_one_at_another_zero_stage(work: Path, reference: Path) -> None:
    output = work / "elastic"
    launch(work, output, 2, "--max-train-steps", 6, "--override", "zero_optimization.stage=3")
    done = luke(work, output, "--override", "zero_optimization.stage=1")
    assert done.returncode == 0, done.stderr
    assert losses(output) == pytest.approx(losses(reference), rel=1e-4)


def test_stages(work: Path) -> None:
    """Stage 1 trains the entity side and the fresh head alone; stage 2 takes its weights, and trains all."""
    stage1, stage2 = work / "stage1", work / "stage2"
    assert luke(work, stage1, "--fix-bert-weights", "--max-train-steps", 4).returncode == 0
    frozen = weights(stage1)
    assert luke(work, work / "untrained", "--resume", "never", "--max-train-steps", 1).returncode == 0
    base = {k: v for k, v in load_file(work / "base" / "model.safetensors").items() if "position_ids" not in k}
    same = [name for name, value in base.items() if f"luke.{name}" in frozen and torch.equal(frozen[f"luke.{name}"], value)]
    assert "embeddings.word_embeddings.weight" in same and "encoder.layer.1.output.dense.weight" in same
    moments = load_file(list_checkpoints(stage1)[0] / "optimizer.safetensors")
    trained = {name.split(".", 1)[1] for name in moments}
    assert {"luke.entity_embeddings.entity_embeddings.weight", "entity_predictions.transform.dense.weight"} <= trained
    assert {"lm_head.dense.weight", "lm_head.bias"} <= trained, "a head that the base did not bring is trained too"
    assert not [name for name in trained if name.startswith(("luke.encoder", "luke.embeddings", "luke.pooler"))]
    done = luke(
        work, stage2, "--resume-checkpoint-id", stage1, "--reset-optimization-states", "--max-train-steps", 3
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [entry["step"] for entry in metrics(stage2)] == [1, 2, 3]
    after = weights(stage2)
    assert not torch.equal(
        after["luke.encoder.layer.0.output.dense.weight"], frozen["luke.encoder.layer.0.output.dense.weight"]
    )


@pytest.mark.parametrize(
    ("option", "frozen", "trained"),
    [
        (["--freeze-entity-emb"], "luke.entity_embeddings.entity_embeddings.weight", "entity_predictions.bias"),
        (["--disable-entity-prediction-bias"], "entity_predictions.bias", "luke.encoder.layer.0.output.dense.weight"),
        (["--word-only-training"], "luke.entity_embeddings.LayerNorm.weight", "lm_head.dense.weight"),
        (["--masked-lm-prob", 0], "lm_head.dense.weight", "entity_predictions.transform.dense.weight"),
        (["--cls-entity-prediction"], "luke.pooler.dense.weight", "cls_entity_predictions.transform.dense.weight"),
    ],
)
def test_options_that_say_what_is_trained(work: Path, option: list[object], frozen: str, trained: str) -> None:
    output = work / ("option" + str(option[0]).replace("-", "_"))
    done = luke(work, output, *option, "--max-train-steps", 1)
    assert done.returncode == 0, done.stderr
    moments = load_file(list_checkpoints(output)[0] / "optimizer.safetensors")
    assert f"exp_avg.{trained}" in moments and f"exp_avg.{frozen}" not in moments
    if "--cls-entity-prediction" in option:
        assert metrics(output)[0]["cls_entity_loss"] > 0


def test_deepspeeds_monitors_get_the_figures(work: Path) -> None:
    output, folder = work / "monitored", work / "csv"
    monitor = {"enabled": True, "output_path": str(folder), "job_name": "run"}
    done = luke(work, output, "--max-train-steps", 2, "--override", f"csv_monitor={json.dumps(monitor)}")
    assert done.returncode == 0, done.stderr
    (file,) = folder.rglob("*Train_loss.csv")
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    assert [int(step) for step, _ in rows] == [1, 2]
    assert [float(loss) for _, loss in rows] == pytest.approx(losses(output), rel=1e-5)


def test_dry_run_says_what_would_be_and_writes_nothing(work: Path) -> None:
    output = work / "dry"
    done = luke(work, output, "--fix-bert-weights", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not output.exists()
    for pattern in (r"items: 96", r"steps: 12 of 8 items", r"parameters: [\d,]+ trained, [\d,]+ frozen", r"GiB a device"):
        assert re.search(pattern, done.stdout), pattern
    assert '"fix_bert_weights": true' in done.stdout and '"bias_correction": false' in done.stdout


def test_bad_input(work: Path) -> None:
    odd = work / "odd"
    odd.mkdir()
    (odd / "note.txt").write_text("mine")
    bad(work, "holds something else", output=odd)
    bad(work, "no dataset there", "--dataset-dir", work / "nothing*")
    bad(work, "not divisible by micro batch 3", "--override", "train_micro_batch_size_per_gpu=3")
    bad(work, 'use "bf16"', "--override", "fp16.enabled=true")
    bad(work, 'unknown key "train_batchsize"; did you mean "train_batch_size"', "--override", "train_batchsize=4")
    (work / "broken.json").write_text("{\n  oops\n}")
    bad(work, "not JSON at line 2, column 3", "--deepspeed-config-file", work / "broken.json")
    bad(work, "neither a checkpoint nor a run", "--resume-checkpoint-id", "nowhere")
    bad(work, "--masked-lm-prob 2.0", "--masked-lm-prob", 2)


def test_another_run_in_the_output_folder_is_refused(work: Path, reference: Path) -> None:
    bad(work, "holds a run with other options", "--masked-lm-prob", 0.3, output=reference)


def test_a_dataset_of_another_tokenizer_is_refused_with_both_named(work: Path) -> None:
    make_base("roberta", work / "other_base")
    bad(work, r"dataset was tokenized with another tokenizer than .*other_base", "--bert-model-name", work / "other_base")


def test_a_checkpoint_of_another_vocabulary_is_refused_with_both_named(work: Path, reference: Path) -> None:
    other = work / "other_dataset"
    subprocess.run(["cp", "-r", str(work / "dataset"), str(other)], check=True)
    metadata = json.loads((other / "metadata.json").read_text())
    metadata["entity_vocab_fingerprint"] = "other"
    (other / "metadata.json").write_text(json.dumps(metadata))
    bad(
        work, r"step00000012 and .*other_dataset were made with different entity vocabularies",
        "--dataset-dir", other, "--resume-checkpoint-id", reference,
    )  # fmt: skip
    bad(work, "different entity vocabularies", "--dataset-dir", work / "*dataset")
