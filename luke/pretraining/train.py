"""Pretraining: the loop, and the script that the ``deepspeed`` launcher starts.

``deepspeed --num_gpus=8 luke/pretraining/train.py OPTIONS`` trains on all processes that the launcher starts; ``luke
pretrain OPTIONS`` is the same code in one process. Started again, a run continues from its newest valid checkpoint.
"""

import json
import logging
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # As a script, this folder is on the path before the package: `dataset` or `config` there would be ours.
    _here = Path(__file__).resolve()
    sys.path[:] = [str(_here.parents[2])] + [entry for entry in sys.path if Path(entry or ".").resolve() != _here.parent]

import torch
from torch.utils.data import DataLoader

from luke.artifacts import fingerprint_value, make_metadata, metadata_path, read_metadata, write_json
from luke.errors import UserError
from luke.pretraining import checkpoint as checkpoints
from luke.pretraining.allocator import keep_freed_memory
from luke.pretraining.batching import StepBatches, StepLoader
from luke.pretraining.config import (
    DeepSpeedSettings,
    PretrainingOptions,
    read_deepspeed_file,
    resolve_deepspeed,
    total_training_steps,
)
from luke.pretraining.dataset import PART_NAMES, PretrainingDataset, SampleOrder, open_datasets
from luke.pretraining.engine import Engine, Processes
from luke.pretraining.initialization import InitialModel, initial_model, set_trainable
from luke.pretraining.logs import RunLog, memory_gib, quiet_libraries
from luke.pretraining.masking import Masker, WordVocab
from luke.pretraining.memory import describe_memory, estimate_memory

logger = logging.getLogger(__name__)

RUN_KIND = "pretraining-run"
# Losses and the name of the number of their targets in a step.
LOSSES = {"masked_lm_loss": "words", "masked_entity_loss": "entities", "cls_entity_loss": "pages"}


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

    def loader(self, rank: int, world_size: int) -> StepLoader:
        """What a process runs, step by step."""
        options = self.options
        return StepLoader(
            self.datasets,
            SampleOrder([len(dataset) for dataset in self.datasets], options.seed, options.sampling_smoothing),
            Masker(options.masking, self.words, self.entity_vocab_size, options.seed),
            self.cls_id,
            self.sep_id,
            self.settings.train_batch_size,
            self.settings.micro_batch_size * self.max_seq_length,
            rank,
            world_size,
            options.word_only_training,
        )


def prepare(options: PretrainingOptions, world_size: int, on_cpu: bool) -> Run:
    """Checks options, configuration and datasets against each other."""
    from luke.tokenization import load_tokenizer

    file = read_deepspeed_file(options.deepspeed_config_file, options.override)
    datasets = open_datasets(options.dataset_dir)
    where = str(options.deepspeed_config_file)
    probe = resolve_deepspeed(file, where, world_size, None if _is_auto(file) else 1 << 62, on_cpu)
    items = sum(len(dataset) for dataset in datasets)
    total_steps = total_training_steps(items, probe.train_batch_size, options.num_epochs)
    settings = resolve_deepspeed(file, where, world_size, total_steps, on_cpu)
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
    "resume",
    "log_interval_steps",
    "max_train_steps",
)
_DEEPSPEED_CONTENT = ("train_batch_size", "scheduler", "gradient_clipping")


def _plan(
    options: PretrainingOptions, file: dict[str, Any], settings: DeepSpeedSettings, datasets: list[PretrainingDataset]
) -> dict[str, Any]:
    """What decides the run's result: neither paths nor the number of processes, micro batch or ZeRO stage."""
    chosen = {name: value for name, value in asdict(options).items() if name not in _NOT_CONTENT}
    content = {name: settings.config[name] for name in _DEEPSPEED_CONTENT if name in settings.config}
    chosen["deepspeed"] = {**content, "optimizer": file.get("optimizer")}
    inputs = {
        f"dataset {number}": {"path": str(dataset.folder), "fingerprint": dataset.metadata["fingerprint"]}
        for number, dataset in enumerate(datasets)
    }
    return {"options": json.loads(json.dumps(chosen, default=str)), "inputs": inputs}


def check_output_dir(run: Run) -> None:
    """Refuses an output folder that is not this run's.

    Raises:
        UserError: it holds something else, or another run.
    """
    output = run.options.output_dir
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not metadata_path(output).exists():
        raise UserError(f"--output-dir {output}: exists and holds something else; choose another folder")
    if read_metadata(output, RUN_KIND)["fingerprint"] != fingerprint_value(run.plan):
        raise UserError(f"--output-dir {output}: holds a run with other options or data; choose another folder or delete it")


def claim_output_dir(run: Run) -> None:
    """Makes the output folder this run's, once all else has been checked: a refused run leaves nothing."""
    output = run.options.output_dir
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output-dir {output}: cannot be made: {error.strerror}") from None
    if not metadata_path(output).exists():
        write_json(metadata_path(output), make_metadata(RUN_KIND, run.plan, fingerprint_value(run.plan)))
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
    own = checkpoints.newest_valid(options.output_dir) if options.resume else None
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


def pretrain(options: PretrainingOptions) -> None:
    """Runs pretraining to its end, or to a stop signal, from wherever an earlier start left off.

    Raises:
        UserError: options, configuration, data and checkpoints do not fit together.
    """
    quiet_libraries()
    if not torch.cuda.is_available():
        keep_freed_memory()
    processes = Processes()
    try:
        run = prepare(options, processes.world_size, processes.device.type == "cpu")
        if processes.rank == 0:
            check_output_dir(run)
        start = find_start(run)
        if start.step >= run.total_steps:
            logger.info("%s: already finished (%d steps)", options.output_dir, start.step)
            return
        training = Training(run, start, processes)
        if processes.rank == 0:
            claim_output_dir(run)
        processes.barrier()
        training.run()
    finally:
        processes.close()


def dry_run(options: PretrainingOptions, world_size: int = 1) -> str:
    """What a run would be: configuration, items, steps, parameters, memory. Trains nothing, writes nothing."""
    on_cpu = not torch.cuda.is_available()
    run = prepare(options, world_size, on_cpu)
    initial = initial_model(options, run.datasets[0], find_start(run).source)
    set_trainable(initial, options)
    parameters = [(p.numel(), p.requires_grad) for p in initial.model.parameters()]
    trained = sum(number for number, needs_gradient in parameters if needs_gradient)
    frozen = sum(number for number, needs_gradient in parameters if not needs_gradient)
    optimizer = asdict(run.settings.optimizer) if run.settings.optimizer else "DeepSpeed's"
    estimate = estimate_memory(initial.model, run.settings, world_size, run.max_seq_length, options.masking)
    return "\n".join(
        [
            f"options: {json.dumps(run.plan['options'], ensure_ascii=False)}",
            f"deepspeed: {json.dumps(run.settings.config, ensure_ascii=False)}",
            f"optimizer: {json.dumps(optimizer)}",
            f"datasets: {', '.join(str(dataset.folder) for dataset in run.datasets)}",
            f"items: {sum(len(dataset) for dataset in run.datasets):,}",
            f"steps: {run.total_steps:,} of {run.settings.train_batch_size:,} items",
            f"parameters: {trained:,} trained, {frozen:,} frozen",
            f"memory, estimated: {describe_memory(estimate)}",
        ]
    )


def _ignore_stop_signal(_: int) -> None:
    """Launchers and schedulers send SIGTERM to loader processes too; their death would keep the run from saving."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Training:
    """A run in progress, in one process."""

    def __init__(self, run: Run, start: Start, processes: Processes) -> None:
        self.run_, self.start, self.processes = run, start, processes
        torch.manual_seed(run.options.seed)
        self.initial: InitialModel = initial_model(run.options, run.datasets[0], start.source)
        set_trainable(self.initial, run.options)
        model = self.initial.model
        model.luke.encoder.gradient_checkpointing = run.settings.gradient_checkpointing
        self.engine = Engine(model, run.settings, processes)
        if start.with_moments and start.source is not None:
            self.engine.load_moments(checkpoints.load_moments(start.source), start.step)
        self.step = self.saved_step = start.step
        self.stopping = False

    def run(self) -> None:
        """Trains until the last step, or a stop signal; saves at intervals and at the end."""
        options, run = self.run_.options, self.run_
        previous = signal.signal(signal.SIGTERM, self._stop)
        tensorboard_dir = options.log_dir or options.output_dir / "tensorboard"
        log = RunLog(
            options.worker_log_dir, self.processes.rank, options.output_dir, tensorboard_dir, run.total_steps, self.step
        )
        try:
            with log:
                self._train(log)
                if self.saved_step != self.step:
                    self.save()
        finally:
            signal.signal(signal.SIGTERM, previous)
        if self.step < run.total_steps:
            logger.info("stopped at step %d of %d; start the same command again to continue", self.step, run.total_steps)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _batches(self) -> Iterator[StepBatches]:
        loader = self.run_.loader(self.processes.rank, self.processes.world_size)
        workers = self.run_.options.num_workers
        workers = self.run_.settings.num_workers if workers is None else workers
        on_gpu = self.processes.device.type == "cuda"
        steps = range(self.step, self.run_.total_steps)
        return iter(
            DataLoader(
                loader,
                batch_size=None,
                sampler=steps,
                num_workers=workers,
                pin_memory=on_gpu,
                worker_init_fn=_ignore_stop_signal,
            )
        )

    def _train(self, log: RunLog) -> None:
        options, batches = self.run_.options, self._batches()
        meter = Meter(self.processes)
        self.engine.train()
        while self.step < self.run_.total_steps:
            with meter.waiting():
                batch = next(batches)
            if self._train_step(batch, meter):
                break
            self.step += 1
            if self.step % options.log_interval_steps == 0 or self.step == self.run_.total_steps:
                metrics = meter.read(self.step, self.engine)
                log.write(metrics, meter.steps)
                meter = Meter(self.processes)
            if options.save_interval_steps and self.step % options.save_interval_steps == 0:
                self.save()

    def _train_step(self, batch: StepBatches, meter: "Meter") -> bool:
        """One optimizer step; True, with nothing done, if any process was told to stop."""
        counts = {
            "words": sum(b.masked_word_labels.numel() for b in batch.micro_batches),
            "entities": sum(b.masked_entity_labels.numel() for b in batch.micro_batches),
            "pages": sum(b.page_entity_ids.numel() for b in batch.micro_batches),
            "stop": int(self.stopping),
        }
        total = dict(zip(counts, self.processes.sum(torch.tensor(list(counts.values()))).tolist(), strict=True))
        if total["stop"]:
            return True
        scales = {name: 1 / max(1, total[count]) for name, count in LOSSES.items()}
        for number, micro_batch in enumerate(batch.micro_batches):
            # Dropout is a function of (seed, step, process, micro batch) too, so that a resumed run repeats it.
            torch.manual_seed(
                int(fingerprint_value([self.run_.options.seed, self.step, self.processes.rank, number])[:15], 16)
            )
            sums = self.engine.forward_backward(micro_batch.to(self.processes.device), scales)
            meter.add(micro_batch, sums)
        meter.count(total)
        self.engine.step()
        return False

    def save(self) -> None:
        """Writes a checkpoint of this step. All processes take part; process 0 writes."""
        weights, moments = dict(self.engine.weights()), dict(self.engine.moments())
        self.saved_step = self.step
        if self.processes.rank == 0:
            run, dataset = self.run_, self.run_.datasets[0]
            folder = checkpoints.checkpoint_folder(run.options.output_dir, self.step)
            companions = [dataset.folder / "tokenizer", dataset.folder / "entity_vocab.jsonl"]
            writer = checkpoints.CheckpointWriter(folder, self.initial.model.config.to_dict(), companions)
            writer.write(
                weights,
                moments,
                run.plan,
                step=self.step,
                total_steps=run.total_steps,
                fresh_mlm_head=self.initial.fresh_mlm_head,
                position_offset=int(self.initial.model.luke.embeddings.position_offset),
                tokenizer_fingerprint=dataset.metadata["tokenizer_fingerprint"],
                entity_vocab_fingerprint=dataset.metadata["entity_vocab_fingerprint"],
            )
            logger.info("saved %s", folder)
        self.processes.barrier()


class Meter:
    """Figures over the steps between two log lines, as means over all processes."""

    def __init__(self, processes: Processes) -> None:
        self.processes, self.steps = processes, 0
        self._start, self._waited = time.perf_counter(), 0.0
        self._sums: dict[str, torch.Tensor] = {}
        self._totals: dict[str, int] = {}
        self._words = self._entities = self._computed = 0

    class _Wait:
        def __init__(self, meter: "Meter") -> None:
            self.meter = meter

        def __enter__(self) -> None:
            self.begin = time.perf_counter()

        def __exit__(self, *_: object) -> None:
            self.meter._waited += time.perf_counter() - self.begin

    def waiting(self) -> "Meter._Wait":
        """Times what happens inside as waiting for data."""
        return self._Wait(self)

    def add(self, batch: Any, sums: dict[str, torch.Tensor]) -> None:
        """Adds a micro batch."""
        for name, value in sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._words += batch.word_ids.numel()
        self._entities += batch.entity_ids.numel()
        self._computed += batch.token_order.numel()

    def count(self, totals: dict[str, int]) -> None:
        """Adds a step's numbers of targets over all processes."""
        self.steps += 1
        for name, value in totals.items():
            self._totals[name] = self._totals.get(name, 0) + value

    def read(self, step: int, engine: Engine) -> dict[str, float]:
        """The figures. Tokens are word tokens with [CLS] and [SEP], without padding."""
        names = sorted(self._sums)
        local = [self._words, self._entities, self._computed, self._waited]
        values = torch.tensor([*(float(self._sums[name]) for name in names), *local], dtype=torch.float64)
        *sums, words, entities, computed, waited = self.processes.sum(values).tolist()
        seconds = time.perf_counter() - self._start
        figures: dict[str, float] = {"step": step, "loss": 0.0}
        for name, value in zip(names, sums, strict=True):
            count = self._totals[LOSSES[name.replace("_correct", "_loss")]]
            figures[name.replace("_correct", "_accuracy")] = value / max(1, count)
        figures["loss"] = sum(value for name, value in figures.items() if name.endswith("_loss"))
        figures["learning_rate"] = engine.learning_rate
        figures["grad_norm"] = engine.grad_norm
        figures["tokens_per_second"] = words / seconds
        figures["entities_per_second"] = entities / seconds
        figures["padding_share"] = 1 - (words + entities) / max(1, computed)
        figures["data_wait_share"] = waited / (seconds * self.processes.world_size)
        figures["seconds_per_step"] = seconds / max(1, self.steps)
        figures["memory_gib"] = memory_gib(self.processes.device)
        return figures


if __name__ == "__main__":
    from luke.cli import run_command
    from luke.commands.pretrain import command

    run_command(command)
