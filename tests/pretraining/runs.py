"""Pretraining runs on a tiny base: in one process, and through the real launcher."""

import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from luke.cli import main
from luke.entity_vocab import EntityVocab
from luke.pretraining.checkpoint import newest_valid
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


# Most of a short run is importing libraries: its processes are forks of one that has imported them and done nothing else.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["deepspeed", "luke.pretraining.train", "torch.utils.tensorboard"])


def luke(work: Path, output: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """``luke pretrain`` in a process of its own."""
    words = ["pretrain", *arguments(work, output, *options)]
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder) / name for name in ("stdout", "stderr")]
        process = _FORKS.Process(target=_run_luke, args=(words, environment(), printed))
        process.start()
        process.join(300)
        assert process.exitcode is not None, f"{words} takes over 300 s"
        return subprocess.CompletedProcess(words, process.exitcode, *(path.read_text() for path in printed))


def _run_luke(words: list[str], variables: dict[str, str], printed: list[Path]) -> None:
    for descriptor, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["luke", *words]
    main()


def free_port() -> int:
    """A port for the launcher: another run may hold its usual one."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def launch_command(work: Path, output: Path, processes: int, *options: object) -> list[str]:
    command = [
        "deepspeed",
        f"--num_gpus={processes}",
        f"--master_port={free_port()}",
        str(ROOT / "luke/pretraining/train.py"),
    ]
    return command + arguments(work, output, *options)


def launch(work: Path, output: Path, processes: int, *options: object) -> None:
    command = launch_command(work, output, processes, *options)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def metrics(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def evaluations(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "evaluations.jsonl").read_text().splitlines()]


def losses(output: Path) -> list[float]:
    return [entry["loss"] for entry in metrics(output)]


def weights(output: Path) -> dict[str, torch.Tensor]:
    newest = newest_valid(output)
    assert newest is not None
    return load_file(newest / "model.safetensors")


def make_work(folder: Path) -> None:
    """A tiny BERT-shaped base without dropout, a dataset of random items in its tokenizer, a DeepSpeed file."""
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
    facts = {
        "word_vocab_size": tokenizer.vocab_size,
        "entity_vocab_size": ENTITIES,
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
        "entity_vocab_fingerprint": EntityVocab(vocabulary).fingerprint,
    }
    for name, held_out in (("dataset", few * 3), ("whole", [])):
        dataset = write_dataset(folder / name, items, held_out=held_out, **facts)
        tokenizer.save(dataset / "tokenizer")
        (dataset / "entity_vocab.jsonl").write_bytes(vocabulary.read_bytes())
    deepspeed_config(folder / "ds.json")


def bad(work: Path, message: str, *options: object, output: Path | None = None) -> None:
    """One line on stderr that says it, status 2, no traceback, nothing under the final name."""
    target = output or work / "bad"
    done = luke(work, target, *options)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("luke: error:")]
    assert len(errors) == 1 and re.search(message, errors[0]), done.stderr
    assert "Traceback" not in done.stderr
    assert output is not None or not target.exists()
