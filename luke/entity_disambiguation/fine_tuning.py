"""Fine-tuning on annotated documents (Yamada et al. 2022, section 4.2): 90 % of the mentions masked, candidates alone
scored, the entity table and the head's bias left as they are; by pretraining's engine, with its checkpoints and logs."""

import logging
import math
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from luke.artifacts import (
    StagedFolder,
    fingerprint_file,
    fingerprint_folder,
    fingerprint_value,
    make_metadata,
    metadata_path,
    read_metadata,
    write_json,
)
from luke.entity_disambiguation.benchmark_files import ReadOptions, read_benchmark
from luke.entity_disambiguation.candidate_table import CandidateTable, with_table_candidates
from luke.entity_disambiguation.convert import load_parts, save_parts
from luke.entity_disambiguation.fine_tuning_data import FineTuningSteps, make_examples
from luke.entity_disambiguation.model import KIND as MODEL_KIND
from luke.entity_disambiguation.windows import WindowMaker, WindowOptions
from luke.errors import UserError
from luke.model import PackedBatch
from luke.pretraining import checkpoint as checkpoints
from luke.pretraining.allocator import keep_freed_memory
from luke.pretraining.config import DeepSpeedSettings, read_deepspeed_file, resolve_deepspeed, total_training_steps
from luke.pretraining.engine import Engine, Processes
from luke.pretraining.logs import RunLog, memory_gib, quiet_libraries
from luke.tokenization import tokenizer_fingerprint

logger = logging.getLogger(__name__)

RUN_KIND = "entity-disambiguation-fine-tuning"
MODEL_FOLDER = "model"
_WARMUP_SHARE = 0.1
_FROZEN = ("luke.entity_embeddings.entity_embeddings.", "entity_predictions.bias")


@dataclass(frozen=True)
class FineTuningOptions:
    """A run of fine-tuning.

    Attributes:
        data: Annotated documents, in any form that `read_benchmark` reads.
        model: Where it starts: a model folder, a checkpoint, or a run's folder.
        candidates: A candidate table, if the documents bring no candidates.
        masked_entity_prob: Share of mentions that are masked.
    """

    data: Path
    model: Path
    output_dir: Path
    deepspeed_config_file: Path
    override: tuple[str, ...] = ()
    read: ReadOptions = field(default_factory=ReadOptions)
    candidates: Path | None = None
    windows: WindowOptions = field(default_factory=WindowOptions)
    masked_entity_prob: float = 0.9
    num_epochs: float = 2
    max_train_steps: int | None = None
    seed: int = 0
    worker_log_dir: Path = Path("deepspeed_logs")

    def __post_init__(self) -> None:
        if not 0 < self.masked_entity_prob <= 1:
            raise UserError(f"--masked-entity-prob {self.masked_entity_prob}: must be above 0 and at most 1")
        if self.num_epochs <= 0:
            raise UserError(f"--num-epochs {self.num_epochs}: must be positive")


def fine_tune(options: FineTuningOptions) -> None:
    """Fine-tunes to the end, or to a stop signal, from wherever an earlier start left off. The result is the folder
    ``model`` in the output folder.

    Raises:
        UserError: options, configuration, data and model do not fit together.
    """
    quiet_libraries()
    if not torch.cuda.is_available():
        keep_freed_memory()
    processes = Processes()
    try:
        run = _Run(options, processes)
        if run.is_finished:
            logger.info("%s: already finished", options.output_dir)
            return
        run.train()
    finally:
        processes.close()


class _Run:
    """A run in progress, in one process."""

    def __init__(self, options: FineTuningOptions, processes: Processes) -> None:
        self.options, self.processes = options, processes
        self.stopping = False
        self.parts = load_parts(options.model)
        examples = self._examples()
        file = read_deepspeed_file(options.deepspeed_config_file, options.override)
        self.settings, total_steps = _settings(file, options, len(examples), processes)
        self.total_steps = min(total_steps, options.max_train_steps or total_steps)
        self.is_whole = self.total_steps == total_steps
        self.plan = _plan(options, file)
        processes.on_first(lambda: _check_output_dir(options.output_dir, self.plan))
        start = checkpoints.newest_valid(options.output_dir)
        self.step = int(checkpoints.read_metadata(start, checkpoints.KIND)["step"]) if start else 0
        self.is_finished = self.step >= self.total_steps and (
            (options.output_dir / MODEL_FOLDER).exists() or not self.is_whole
        )
        if self.is_finished:
            return
        torch.manual_seed(options.seed)
        if start:
            self.parts.model.load_weights(checkpoints.load_weights(start), str(start))
        model = self.parts.model
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not name.startswith(_FROZEN)
        model.luke.encoder.gradient_checkpointing = self.settings.gradient_checkpointing
        self.engine = Engine(model, self.settings, processes)
        if start:
            self.engine.load_moments(checkpoints.load_moments(start), self.step)
        self.steps = FineTuningSteps(
            examples,
            options.masked_entity_prob,
            options.seed,
            self.settings.train_batch_size,
            self.settings.micro_batch_size * options.windows.max_seq_length,
            processes.rank,
            processes.world_size,
        )
        self.steps_an_epoch = math.ceil(len(examples) / self.settings.train_batch_size)

    def _examples(self) -> list[Any]:
        options = self.options
        collection = read_benchmark(options.data, options.read)
        if options.candidates is not None:
            table = CandidateTable(options.candidates)
            collection = with_table_candidates(collection, table, options.windows.max_candidates)
        maker = WindowMaker(self.parts.tokenizer, self.parts.vocab, options.windows)
        examples, dropped = make_examples(collection.documents, maker)
        for line in collection.report.lines():
            logger.info("%s: %s", options.data, line)
        logger.info("%d mentions left out: the right entity is no candidate, or not in the vocabulary", dropped)
        if not examples:
            raise UserError(
                f"{options.data}: no mention whose right entity is among its candidates and in the vocabulary of "
                f"{options.model}; give --candidates for documents without candidates"
            )
        return examples

    def train(self) -> None:
        """Trains until the last step, or a stop signal; saves after each epoch and at the end."""
        options = self.options
        self.processes.on_first(lambda: _claim_output_dir(options.output_dir, self.plan))
        previous = signal.signal(signal.SIGTERM, self._stop)
        log = RunLog(
            options.worker_log_dir,
            self.processes.rank,
            options.output_dir,
            options.output_dir / "tensorboard",
            self.total_steps,
            self.step,
        )
        saved = self.step
        try:
            with log:
                self.engine.train()
                while self.step < self.total_steps and (figures := self._train_step()):
                    self.step += 1
                    log.write({"step": self.step, **figures}, 1)
                    if self.step % self.steps_an_epoch == 0 or self.step == self.total_steps:
                        self._save()
                        saved = self.step
                if saved != self.step:
                    self._save()
        finally:
            signal.signal(signal.SIGTERM, previous)
        if self.step == self.total_steps and self.is_whole:
            self.processes.on_first(self._write_model)
        elif self.is_whole:
            logger.info("stopped at step %d of %d; start the same command again to continue", self.step, self.total_steps)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _train_step(self) -> dict[str, float]:
        """One optimizer step and its figures; none, with nothing done, if any process was told to stop."""
        begin = time.perf_counter()
        batches = self.steps[self.step]
        labels = [cast(Tensor, batch.labels).numel() for batch in batches]
        mentions, stop = self.processes.sum(torch.tensor([sum(labels), int(self.stopping)])).tolist()
        if stop:
            return {}
        # Dropout is a function of (seed, step, process, micro batch), so that a resumed run repeats it.
        seed = [self.options.seed, self.step, self.processes.rank]
        sums = torch.zeros(3, dtype=torch.float64)
        for number, batch in enumerate(batches):
            torch.manual_seed(int(fingerprint_value([*seed, number])[:15], 16))
            moved = cast(PackedBatch, batch.to(self.processes.device))
            figures = self.engine.forward_backward(moved, {"masked_entity": 1 / max(1, mentions)})
            sums[:2] += torch.stack([figures["masked_entity_loss"], figures["masked_entity_correct"]]).double().cpu()
            sums[2] += batch.packed.word_ids.numel()
        self.engine.step()
        loss, correct, words = self.processes.sum(sums).tolist()
        seconds = time.perf_counter() - begin
        return {
            "loss": loss / mentions,
            "masked_entity_accuracy": correct / mentions,
            "learning_rate": self.engine.learning_rate,
            "grad_norm": self.engine.grad_norm,
            "tokens_per_second": words / seconds,
            "entities_per_second": mentions / seconds,
            "seconds_per_step": seconds,
            "memory_gib": memory_gib(self.processes.device),
        }

    def _save(self) -> None:
        """Writes a checkpoint. All processes take part; process 0 writes."""
        weights, moments = dict(self.engine.weights()), dict(self.engine.moments())
        self.processes.on_first(lambda: self._write_checkpoint(weights, moments))

    def _write_checkpoint(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        folder = checkpoints.checkpoint_folder(self.options.output_dir, self.step)
        companions = [self.options.output_dir / name for name in ("tokenizer", "entity_vocab.jsonl")]
        self.parts.tokenizer.save(companions[0])
        self.parts.vocab.save(companions[1])
        writer = checkpoints.CheckpointWriter(folder, self.parts.model.config.to_dict(), companions)
        writer.write(
            weights,
            moments,
            self.plan,
            step=self.step,
            total_steps=self.total_steps,
            tokenizer_fingerprint=tokenizer_fingerprint(self.parts.tokenizer),
            entity_vocab_fingerprint=self.parts.vocab.fingerprint,
        )
        logger.info("saved %s", folder)

    def _write_model(self) -> None:
        """The last checkpoint as a model folder."""
        last = checkpoints.checkpoint_folder(self.options.output_dir, self.step)
        self.parts.model.load_weights(checkpoints.load_weights(last), str(last))
        output = self.options.output_dir / MODEL_FOLDER
        with StagedFolder(output, MODEL_KIND, self.plan) as folder:
            if not folder.done:
                save_parts(self.parts, folder.work)
                folder.finish(counts={"entities": len(self.parts.vocab)})
        logger.info("%s: the fine-tuned model", output)


def _settings(
    file: dict[str, Any], options: FineTuningOptions, examples: int, processes: Processes
) -> tuple[DeepSpeedSettings, int]:
    """The configuration; ``"warmup_num_steps": "auto"`` is a tenth of the steps."""
    where, on_cpu = str(options.deepspeed_config_file), processes.device.type == "cpu"
    params = file.get("scheduler", {}).get("params", {})
    auto_warmup = params.get("warmup_num_steps") == "auto"
    if auto_warmup:
        params["warmup_num_steps"] = 0
    batch = resolve_deepspeed(file, where, processes.world_size, 1 << 62, on_cpu).train_batch_size
    steps = total_training_steps(examples, batch, options.num_epochs)
    if auto_warmup:
        params["warmup_num_steps"] = max(1, int(steps * _WARMUP_SHARE))
    return resolve_deepspeed(file, where, processes.world_size, steps, on_cpu), steps


def _plan(options: FineTuningOptions, file: dict[str, Any]) -> dict[str, Any]:
    """What decides the result: neither paths nor the number of processes or the micro batch."""
    names = ("windows", "masked_entity_prob", "num_epochs", "seed", "read")
    chosen = {name: value for name, value in asdict(options).items() if name in names}
    chosen["deepspeed"] = {
        name: file.get(name) for name in ("train_batch_size", "optimizer", "scheduler", "gradient_clipping")
    }
    paths = {"data": options.data, "model": options.model, "candidates": options.candidates}
    inputs = {
        name: {"path": str(path), "fingerprint": fingerprint_folder(path) if path.is_dir() else fingerprint_file(path)}
        for name, path in paths.items()
        if path is not None
    }
    return {"options": _plain(chosen), "inputs": inputs}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return str(value) if isinstance(value, Path) else value


def _check_output_dir(output: Path, plan: dict[str, Any]) -> None:
    """Refuses an output folder that is not this run's."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not metadata_path(output).exists():
        raise UserError(f"--output-dir {output}: exists and holds something else; choose another folder")
    if read_metadata(output, RUN_KIND)["fingerprint"] != fingerprint_value(plan):
        raise UserError(f"--output-dir {output}: holds a run with other options or data; choose another folder or delete it")


def _claim_output_dir(output: Path, plan: dict[str, Any]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    if not metadata_path(output).exists():
        write_json(metadata_path(output), make_metadata(RUN_KIND, plan, fingerprint_value(plan)))
    checkpoints.remove_unfinished(output)
