"""The training loop in one process and through the real launcher, on a tiny base."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from luke.entity_vocab import EntityVocab
from luke.pretraining.checkpoint import list_checkpoints, newest_valid
from luke.tokenization import load_tokenizer, tokenizer_fingerprint

from ..tiny_bases import make_base
from .items import random_item, write_dataset

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ENTITIES = 30


def deepspeed_config(path: Path, **changes: Any) -> Path:
    config = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01, "bias_correction": False},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 3, "total_num_steps": "auto",
                       "warmup_type": "linear"},
        },
        "gradient_clipping": 1.0,
        "num_workers": 0,
        **changes,
    }  # fmt: skip
    path.write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT-shaped base without dropout, a dataset of random items in its tokenizer, a DeepSpeed file."""
    folder = tmp_path_factory.mktemp("training")
    make_base(
        "bert", folder / "base", with_head=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        max_position_embeddings=64,
    )  # fmt: skip
    tokenizer = load_tokenizer(folder / "base")
    rng = np.random.default_rng(0)
    sizes = [(int(rng.integers(6, 40)), int(rng.integers(1, 6))) for _ in range(4)]
    few = [random_item(rng, words, entities, tokenizer.vocab_size, ENTITIES) for words, entities in sizes]
    items = few * 24  # so that there is something to learn in a dozen steps
    vocabulary = folder / "entity_vocab.jsonl"
    titles = ["[PAD]", "[UNK]", "[MASK]", *(f"Entity {number}" for number in range(ENTITIES - 3))]
    vocabulary.write_text(
        "".join(json.dumps({"id": n, "entities": [[title, None]], "count": 0}) + "\n" for n, title in enumerate(titles))
    )
    dataset = write_dataset(
        folder / "dataset",
        items,
        word_vocab_size=tokenizer.vocab_size,
        entity_vocab_size=ENTITIES,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        entity_vocab_fingerprint=EntityVocab(vocabulary).fingerprint,
    )
    tokenizer.save(dataset / "tokenizer")
    (dataset / "entity_vocab.jsonl").write_bytes(vocabulary.read_bytes())
    deepspeed_config(folder / "ds.json")
    return folder


def arguments(work: Path, output: Path, *options: object) -> list[str]:
    fixed = {
        "--dataset-dir": work / "dataset",
        "--output-dir": output,
        "--bert-model-name": work / "base",
        "--worker-log-dir": output.with_name(output.name + "_logs"),
        "--entity-emb-size": 16,
    }
    words = [str(word) for pair in fixed.items() for word in pair] + [str(option) for option in options]
    return words if "--deepspeed-config-file" in words else ["--deepspeed-config-file", str(work / "ds.json"), *words]


def environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def luke(work: Path, output: Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [BIN / "luke", "pretrain", *arguments(work, output, *options)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)


def launch(work: Path, output: Path, processes: int, *options: object) -> None:
    with socket.socket() as server:  # another run may hold the launcher's usual port
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    command = ["deepspeed", f"--num_gpus={processes}", f"--master_port={port}", ROOT / "luke/pretraining/train.py"]
    command += arguments(work, output, *options)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stdout + done.stderr


def metrics(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def losses(output: Path) -> list[float]:
    return [entry["loss"] for entry in metrics(output)]


def weights(output: Path) -> dict[str, torch.Tensor]:
    newest = newest_valid(output)
    assert newest is not None
    return load_file(newest / "model.safetensors")


@pytest.fixture(scope="module")
def reference(work: Path) -> Path:
    """Twelve steps (one pass over the data), straight through, in one process."""
    output = work / "reference"
    done = luke(work, output, "--save-interval-steps", 5)
    assert done.returncode == 0, done.stderr
    return output


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
    assert all(f"{name}=" in log for name in wanted) and "step=12 " in log
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
    assert luke(work, work / "untrained", "--no-resume", "--max-train-steps", 1).returncode == 0
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


def test_sigterm_saves_and_exits_well(work: Path, reference: Path) -> None:
    output = work / "terminated"
    command = [str(BIN / "luke"), "pretrain", *arguments(work, output, "--num-epochs", 1, "--num-workers", 1)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        (output / "metrics.jsonl").exists() and (output / "metrics.jsonl").read_text().count("\n") >= 2
    ):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)  # as schedulers do: the loader process gets it too
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    done = luke(work, output)
    assert done.returncode == 0, done.stderr
    assert losses(output) == losses(reference)


def test_dry_run_says_what_would_be_and_writes_nothing(work: Path) -> None:
    output = work / "dry"
    done = luke(work, output, "--fix-bert-weights", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not output.exists()
    for pattern in (r"items: 96", r"steps: 12 of 8 items", r"parameters: [\d,]+ trained, [\d,]+ frozen", r"GiB a device"):
        assert re.search(pattern, done.stdout), pattern
    assert '"fix_bert_weights": true' in done.stdout and '"bias_correction": false' in done.stdout


def bad(work: Path, message: str, *options: object, output: Path | None = None) -> None:
    """One line on stderr that says it, status 2, no traceback, nothing under the final name."""
    target = output or work / "bad"
    done = luke(work, target, *options)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("luke: error:")]
    assert len(errors) == 1 and re.search(message, errors[0]), done.stderr
    assert "Traceback" not in done.stderr
    assert output is not None or not target.exists()


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


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("processes", "micro_batch"), [(1, 1), (2, 1), (2, 4)])
def test_neither_processes_nor_micro_batch_nor_zero_stage_changes_a_loss(
    work: Path, reference: Path, zero_stage: int, processes: int, micro_batch: int
) -> None:
    output = work / f"matrix_{zero_stage}_{processes}_{micro_batch}"
    overrides = (f"zero_optimization.stage={zero_stage}", f"train_micro_batch_size_per_gpu={micro_batch}")
    launch(work, output, processes, *(word for option in overrides for word in ("--override", option)))
    assert losses(output) == pytest.approx(losses(reference), rel=1e-4)
