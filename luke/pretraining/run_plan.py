"""What is decided before the first step of a run: configuration and data that fit together, its folder, where it starts."""

import errno
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from luke.artifacts import fingerprint_value, make_metadata, metadata_path, read_metadata, write_json
from luke.errors import UserError
from luke.pretraining import checkpoint as checkpoints
from luke.pretraining.batching import StepLoader
from luke.pretraining.config import (
    DeepSpeedSettings,
    PretrainingOptions,
    has_auto_micro_batch,
    read_deepspeed_file,
    resolve_deepspeed,
    total_training_steps,
)
from luke.pretraining.dataset import PART_NAMES, PretrainingDataset, SampleOrder, open_datasets
from luke.pretraining.masking import Masker, WordVocab
from luke.pretraining.planner import micro_batch_limit

RUN_KIND = "pretraining-run"
_LOCK_SECONDS = 60.0


@dataclass
class Run:
    """Everything that is decided before the first step."""

    options: PretrainingOptions
    settings: DeepSpeedSettings
    datasets: list[PretrainingDataset]
    words: WordVocab
    cls_id: int
    sep_id: int
    total_steps: int
    plan: dict[str, Any]

    @property
    def entity_vocab_size(self) -> int:
        """U."""
        return int(self.datasets[0].metadata["entity_vocab_size"])

    @property
    def max_seq_length(self) -> int:
        """The longest item, in words with [CLS] and [SEP]."""
        return max(int(dataset.metadata["max_seq_length"]) for dataset in self.datasets)

    @property
    def num_items(self) -> int:
        """Items of all datasets: an epoch."""
        return sum(len(dataset) for dataset in self.datasets)

    @property
    def token_budget(self) -> int:
        """Tokens of a micro batch: as many as its full sequences have."""
        return self.settings.micro_batch_size * self.max_seq_length

    def masker(self, seed: int) -> Masker:
        """Masks items as the options say."""
        return Masker(self.options.masking, self.words, self.entity_vocab_size, seed)

    def loader(self, rank: int, world_size: int) -> StepLoader:
        """What a process runs, step by step."""
        options = self.options
        return StepLoader(
            self.datasets,
            SampleOrder([len(dataset) for dataset in self.datasets], options.seed, options.sampling_smoothing),
            self.masker(options.seed),
            self.cls_id,
            self.sep_id,
            self.settings.train_batch_size,
            self.token_budget,
            rank,
            world_size,
            options.word_only_training,
        )

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch's last item is in the step before ``step``."""
        batch = self.settings.train_batch_size
        return step * batch // self.num_items > (step - 1) * batch // self.num_items


def prepare(options: PretrainingOptions, world_size: int, on_cpu: bool) -> Run:
    """Checks options, configuration and datasets against each other."""
    from luke.tokenization import load_tokenizer

    file = read_deepspeed_file(options.deepspeed_config_file, options.override)
    datasets = open_datasets(options.dataset_dir)
    where = str(options.deepspeed_config_file)
    probe = resolve_deepspeed(file, where, world_size, None if _is_auto(file) else 1 << 62, on_cpu)
    items = sum(len(dataset) for dataset in datasets)
    total_steps = total_training_steps(items, probe.train_batch_size, options.num_epochs)
    limit = probe.micro_batch_size
    if has_auto_micro_batch(file):
        max_length = max(int(dataset.metadata["max_seq_length"]) for dataset in datasets)
        limit = micro_batch_limit(options, probe, datasets[0], world_size, max_length)
    settings = resolve_deepspeed(file, where, world_size, total_steps, on_cpu, limit)
    tokenizer = load_tokenizer(datasets[0].folder / "tokenizer")
    words = WordVocab(tokenizer.word_start_mask(), tokenizer.special_token_mask(), tokenizer.mask_id)
    return Run(
        options,
        settings,
        datasets,
        words,
        tokenizer.cls_id,
        tokenizer.sep_id,
        min(total_steps, options.max_train_steps or total_steps),
        _plan(options, file, settings, datasets),
    )


def _is_auto(file: dict[str, Any]) -> bool:
    return bool(file.get("scheduler", {}).get("params", {}).get("total_num_steps") == "auto")


# Options that change where or how fast a run goes, not what it computes.
_NOT_CONTENT = (
    "dataset_dir",
    "output_dir",
    "log_dir",
    "worker_log_dir",
    "deepspeed_config_file",
    "num_workers",
    "override",
    "save_interval_steps",
    "keep_last",
    "export_checkpoints",
    "resume",
    "log_interval_steps",
    "max_train_steps",
    "on_nan",
    "loss_spike_factor",
    "eval_interval_steps",
    "eval_items",
    "backend",
)
_DEEPSPEED_CONTENT = ("scheduler", "gradient_clipping")


def _plan(
    options: PretrainingOptions, file: dict[str, Any], settings: DeepSpeedSettings, datasets: list[PretrainingDataset]
) -> dict[str, Any]:
    """What decides the run's result: neither paths nor the number of processes, micro batch or ZeRO stage."""
    chosen = {name: value for name, value in asdict(options).items() if name not in _NOT_CONTENT}
    content = {name: settings.config[name] for name in _DEEPSPEED_CONTENT if name in settings.config}
    chosen["deepspeed"] = {
        **content,
        "train_batch_size": settings.train_batch_size,
        "optimizer": file.get("optimizer"),
    }
    inputs = {
        f"dataset {number}": {"path": str(dataset.folder), "fingerprint": dataset.metadata["fingerprint"]}
        for number, dataset in enumerate(datasets)
    }
    return {"options": json.loads(json.dumps(chosen, default=str)), "inputs": inputs}


def check_output_dir(run: Run) -> None:
    """Refuses an output folder that is not this run's; locks one that is.

    Raises:
        UserError: it holds something else, or another run, or this one is still going on.
    """
    output = run.options.output_dir
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not metadata_path(output).exists():
        raise UserError(f"--output-dir {output}: exists and holds something else; choose another folder")
    if read_metadata(output, RUN_KIND)["fingerprint"] != fingerprint_value(run.plan):
        raise UserError(f"--output-dir {output}: holds a run with other options or data; choose another folder or delete it")
    _lock(output)


_locks: dict[Path, int] = {}


def _lock(folder: Path) -> None:
    """Holds ``folder`` until this process ends. One that was just killed may take some seconds to be gone."""
    if folder.resolve() in _locks:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                os.close(descriptor)  # a file system without locks
                return
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise UserError(f"--output-dir {folder}: another process is training into it; stop it first") from None
            time.sleep(0.2)
        else:
            _locks[folder.resolve()] = descriptor
            return


def claim_output_dir(run: Run) -> None:
    """Makes the output folder this run's, once all else has been checked: a refused run leaves nothing."""
    output = run.options.output_dir
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output-dir {output}: cannot be made: {error.strerror}") from None
    if not metadata_path(output).exists():
        write_json(metadata_path(output), make_metadata(RUN_KIND, run.plan, fingerprint_value(run.plan)))
    _lock(output)
    checkpoints.remove_unfinished(output)


@dataclass
class Start:
    """Where a run begins: the model's source, the first step, and the moments to continue with, if any."""

    source: Path | None
    step: int
    with_moments: bool


def find_start(run: Run) -> Start:
    """The newest valid checkpoint of this run; else what the options name; else the base model."""
    options = run.options
    own = checkpoints.newest_valid(options.output_dir) if options.resume == "auto" else None
    if own is not None:
        return Start(own, int(checkpoints.read_metadata(own, checkpoints.KIND)["step"]), True)
    if options.resume_checkpoint_id:
        named = checkpoints.find_checkpoint(options.resume_checkpoint_id, options.output_dir)
        metadata = checkpoints.verify(named)
        for part in ("tokenizer", "entity_vocab"):
            if metadata[f"{part}_fingerprint"] != run.datasets[0].metadata[f"{part}_fingerprint"]:
                raise UserError(f"{named} and {run.datasets[0].folder} were made with different {PART_NAMES[part]}")
        reset = options.reset_optimization_states
        return Start(named, 0 if reset else int(metadata["step"]), not reset)
    return Start(None, 0, False)
