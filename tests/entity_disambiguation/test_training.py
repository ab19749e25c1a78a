"""The guide's command lines, run to completion on a tiny base; what is missing is named; fine-tuning and its resuming."""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from luke.entity_disambiguation.benchmark_files import write_json_lines
from luke.entity_disambiguation.documents import Collection, ReadReport
from luke.entity_disambiguation.fine_tuning_data import FineTuningSteps, make_examples
from luke.entity_disambiguation.inference import Disambiguator
from luke.entity_disambiguation.training import Places, pretraining_arguments, read_places, stage_of
from luke.entity_disambiguation.windows import WindowMaker, WindowOptions
from luke.entity_vocab import EntityVocab
from luke.errors import UserError
from luke.pretraining.checkpoint import list_checkpoints, newest_valid
from luke.tokenization import load_tokenizer, tokenizer_fingerprint

from ..pretraining.items import random_item, write_dataset
from ..tiny_bases import make_base
from .tiny_disambiguators import ENTITIES, make_disambiguator, random_document, write_vocab

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SCRIPT = "examples/entity_disambiguation/train.py"
CONFIGS = "examples/entity_disambiguation/deepspeed_config"
STAGE1 = f"deepspeed --num_gpus=4 {SCRIPT} --deepspeed_config {CONFIGS}/stage1.json"
STAGE2 = f"deepspeed --num_nodes=2 --num_gpus=4 {SCRIPT} --deepspeed_config {CONFIGS}/stage2.json"
FINE_TUNING = f"deepspeed --num_gpus=1 {SCRIPT} --deepspeed_config {CONFIGS}/fine_tuning.json"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base and a dataset of random items in its tokenizer."""
    folder = tmp_path_factory.mktemp("training")
    make_base(
        "bert", folder / "base", with_head=False, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    tokenizer = load_tokenizer(folder / "base")
    vocab = EntityVocab(write_vocab(folder / "entity_vocab.jsonl"))
    rng = np.random.default_rng(0)
    items = [random_item(rng, int(rng.integers(6, 40)), 3, tokenizer.vocab_size, ENTITIES) for _ in range(40)]
    dataset = write_dataset(
        folder / "dataset", items, word_vocab_size=tokenizer.vocab_size, entity_vocab_size=ENTITIES,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer), entity_vocab_fingerprint=vocab.fingerprint,
    )  # fmt: skip
    tokenizer.save(dataset / "tokenizer")
    vocab.save(dataset / "entity_vocab.jsonl")
    documents = [random_document(rng, 16, 5, str(number)) for number in range(24)]
    write_json_lines(Collection(documents, ReadReport()), folder / "documents.jsonl")
    return folder


def run(line: str, work: Path, *options: object, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """A command line of the guide, with as many processes as this machine bears."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    words = [word for word in shlex.split(line) if not word.startswith(("--num_gpus", "--num_nodes"))]
    words[1:1] = [f"--num_gpus={processes}", f"--master_port={port}"]
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT), "LUKE_ED_DATASET_DIR": str(work / "dataset"), "LUKE_ED_BASE_MODEL": str(work / "base"),
        "LUKE_ED_OUTPUT_DIR": str(work / "runs"),
    }  # fmt: skip
    words += ["--worker-log-dir", str(work / "logs"), *map(str, options)]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


SMALL = ("--override", "train_batch_size=16", "--override", "scheduler.params.warmup_num_steps=1", "--seed", 3)


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_guides_lines_to_completion(work: Path) -> None:
    missing = run(STAGE2, work, *SMALL, processes=1)
    assert missing.returncode != 0 and "stage1.json first" in missing.stderr and "Traceback (most" not in missing.stderr
    first = run(STAGE1, work, *SMALL)
    assert first.returncode == 0, first.stderr
    second = run(STAGE2, work, *SMALL, "--num-epochs", 2)
    assert second.returncode == 0, second.stderr
    steps = {stage: len(metrics(work / "runs" / stage)) for stage in ("stage1", "stage2")}
    assert steps == {"stage1": 3, "stage2": 5}  # 40 items, batches of 16: one pass, two passes
    before = newest_weights(work, "stage1")
    after = newest_weights(work, "stage2")
    base = load_file(work / "base" / "model.safetensors")
    query = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(before[f"luke.{query}"], base[query]), "stage 1 trains the entity side alone"
    assert not torch.equal(after[f"luke.{query}"], base[query])
    plan = json.loads((work / "runs" / "stage1" / "metadata.json").read_text())["options"]
    assert plan["masking"]["masked_lm_prob"] == 0.0 and plan["masking"]["masked_entity_prob"] == 0.3
    assert (work / "logs" / "worker_1.log").exists()


def newest_weights(work: Path, stage: str) -> dict[str, torch.Tensor]:
    newest = newest_valid(work / "runs" / stage)
    assert newest is not None
    return load_file(newest / "model.safetensors")


@pytest.mark.slow
def test_fine_tuning_from_stage_2_and_again(work: Path) -> None:
    if not list_checkpoints(work / "runs" / "stage2"):
        test_the_guides_lines_to_completion(work)
    options = ("--fine-tune", work / "documents.jsonl", "--max-seq-length", 64, "--num-epochs", 3)
    options += ("--override", "optimizer.params.lr=0.01", "--override", "scheduler.params.warmup_max_lr=0.01")
    done = run(FINE_TUNING, work, *options)
    assert done.returncode == 0, done.stderr
    output = work / "runs" / "fine_tuning"
    assert len(metrics(output)) == 5  # 24 windows, batches of 16, 3 epochs: 4.5 steps
    start, end = newest_weights(work, "stage2"), load_file(output / "model" / "model.safetensors")
    for name in ("luke.entity_embeddings.entity_embeddings.weight", "entity_predictions.bias"):
        assert torch.equal(start[name], end[name])
    head = "entity_predictions.transform.dense.weight"
    assert not torch.equal(start[head], end[head])
    Disambiguator.from_pretrained(output / "model")
    again = run(FINE_TUNING, work, *options, processes=1)
    assert again.returncode == 0 and "already finished" in again.stderr
    # A run that was stopped after the first epoch ends with the same weights, with another number of processes too.
    stopped = (*options, "--output-dir", work / "stopped")
    limited = run(FINE_TUNING, work, *stopped, "--max-train-steps", 3, processes=1)
    assert limited.returncode == 0 and not (work / "stopped" / "model").exists()
    resumed = run(FINE_TUNING, work, *stopped, processes=1)
    assert resumed.returncode == 0, resumed.stderr
    again_end = load_file(work / "stopped" / "model" / "model.safetensors")
    for name, value in end.items():
        torch.testing.assert_close(again_end[name], value, rtol=0, atol=5e-3)
    other = run(FINE_TUNING, work, *options, "--masked-entity-prob", 0.5, processes=1)
    assert other.returncode != 0 and "other options or data" in other.stderr


def test_defaults_and_stages(tmp_path: Path) -> None:
    places = Places(tmp_path / "dataset", "bert", tmp_path / "runs")
    with pytest.raises(UserError, match="luke build-wikipedia-pretraining-dataset"):
        pretraining_arguments("stage1", places, [])
    given = pretraining_arguments("stage1", places, ["--dataset-dir=x", "--bert-model-name", "y"])
    assert str(tmp_path / "dataset") not in given and "bert" not in given and "--fix-bert-weights" in given
    places.dataset_dir.mkdir()
    with pytest.raises(UserError, match=r"stage1.json first"):
        pretraining_arguments("stage2", places, [])
    assert stage_of(Path("my_stage2.json")) == "stage2"
    with pytest.raises(UserError, match="--stage"):
        stage_of(Path("config.json"))
    defaults = ROOT / "examples" / "entity_disambiguation" / "defaults.json"
    assert read_places(defaults, {}).base_model == "bert-base-uncased"
    assert read_places(defaults, {"LUKE_ED_DATASET_DIR": "there"}).dataset_dir == Path("there")
    (tmp_path / "defaults.json").write_text("{}")
    with pytest.raises(UserError, match=r"defaults.json"):
        read_places(tmp_path / "defaults.json", {})


def test_fine_tuning_masks(tmp_path: Path) -> None:
    disambiguator = make_disambiguator(tmp_path)
    documents = [random_document(np.random.default_rng(n), 24, 10, str(n)) for n in range(8)]
    maker = WindowMaker(disambiguator.tokenizer, disambiguator.vocab, WindowOptions(max_seq_length=64))
    examples, dropped = make_examples(documents, maker)
    assert sum(len(example.entity_ids) for example in examples) == 80 - dropped and dropped > 0
    for example in examples:
        rows = np.arange(len(example.columns))
        assert (example.window.candidate_ids[rows, example.columns] == example.entity_ids).all()

    def labels(prob: float, rank: int = 0, world_size: int = 1, seed: int = 0, budget: int = 1000) -> list[int]:
        steps = FineTuningSteps(examples, prob, seed, len(examples), budget, rank, world_size)
        return [0 if b.labels is None else b.labels.numel() for step in range(2) for b in steps[step]]

    sizes = [len(example.entity_ids) for example in examples]
    assert sum(labels(0.9)) == 2 * sum(round(size * 0.9) or 1 for size in sizes)
    assert sum(labels(0.3)) < sum(labels(0.9)) < sum(labels(1.0)) == 2 * sum(sizes)
    assert sum(labels(0.9, 0, 2)) + sum(labels(0.9, 1, 2)) == sum(labels(0.9))
    steps = FineTuningSteps(examples, 0.5, 0, len(examples), 10_000)
    first, second = steps[0][0].packed.entity_ids, steps[1][0].packed.entity_ids
    assert (first == 2).sum() == (second == 2).sum() and not torch.equal(first, second)
