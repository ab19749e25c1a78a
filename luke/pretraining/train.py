"""Pretraining: the loop, and the script that the ``deepspeed`` launcher starts.

``deepspeed --num_gpus=8 luke/pretraining/train.py OPTIONS`` trains on all processes that the launcher starts; ``luke
pretrain OPTIONS`` is the same code in one process. Started again, a run continues from its newest valid checkpoint.
"""

import json
import logging
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    # As a script, this folder is on the path before the package: `dataset` or `config` there would be ours.
    _here = Path(__file__).resolve()
    sys.path[:] = [str(_here.parents[2])] + [entry for entry in sys.path if Path(entry or ".").resolve() != _here.parent]

import torch
from torch.utils.data import DataLoader

from luke.artifacts import fingerprint_value
from luke.errors import StoppedWorkError, UserError
from luke.export import convert_checkpoint
from luke.model import PackedBatch
from luke.pretraining import checkpoint as checkpoints
from luke.pretraining.allocator import keep_freed_memory
from luke.pretraining.batching import StepBatches
from luke.pretraining.config import PretrainingOptions
from luke.pretraining.engine import Engine, Processes
from luke.pretraining.initialization import InitialModel, initial_model, set_trainable
from luke.pretraining.launcher import stop_with_launcher
from luke.pretraining.logs import RunLog, quiet_libraries
from luke.pretraining.losses import TARGETS, global_weights, micro_batch_weights, target_counts
from luke.pretraining.memory import describe_memory, estimate_memory, out_of_memory_advice
from luke.pretraining.meter import Meter
from luke.pretraining.run_plan import Run, Start, check_output_dir, claim_output_dir, find_start, prepare
from luke.pretraining.safeguard import LossGuard, write_bad_step
from luke.pretraining.validation import Validation

logger = logging.getLogger(__name__)


def pretrain(options: PretrainingOptions) -> None:
    """Runs pretraining to its end, or to a stop signal, from wherever an earlier start left off.

    Raises:
        UserError: options, configuration, data and checkpoints do not fit together, or there is no room for a checkpoint.
        StoppedWorkError: a step's loss was not finite, or the loop failed; the workers' logs say how.
    """
    quiet_libraries()
    stop_with_launcher()
    if not torch.cuda.is_available():
        keep_freed_memory()
    processes = Processes(options.backend)
    try:
        run = prepare(options, processes.world_size, processes.device.type == "cpu")
        processes.share_layers(run.settings.tensor_parallel_size)
        processes.on_first(lambda: check_output_dir(run))
        start = find_start(run)
        if start.step >= run.total_steps:
            logger.info("%s: already finished (%d steps)", options.output_dir, start.step)
            return
        training = Training(run, start, processes)
        processes.on_first(lambda: claim_output_dir(run))
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


def _is_out_of_memory(error: Exception) -> bool:
    """Of a GPU, or of the machine (of which torch says so in words only)."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


class Training:
    """A run in progress, in one process."""

    def __init__(self, run: Run, start: Start, processes: Processes) -> None:
        self.run_, self.start, self.processes = run, start, processes
        torch.manual_seed(run.options.seed)
        self.initial: InitialModel = initial_model(run.options, run.datasets[0], start.source)
        set_trainable(self.initial, run.options)
        model = self.initial.model
        model.luke.encoder.gradient_checkpointing = run.settings.gradient_checkpointing
        self.validation = Validation(run, processes) if run.options.eval_interval_steps else None
        self.engine = Engine(model, run.settings, processes)
        if start.with_moments and start.source is not None:
            self.engine.load_moments(checkpoints.load_moments(start.source), start.step)
        self.step = self.saved_step = start.step
        self.guard = LossGuard(run.options.loss_spike_factor)
        self.evaluation: dict[str, float] = {}
        self.stopping = False

    def run(self) -> None:
        """Trains until the last step, or a stop signal; saves at intervals, each epoch and at the end."""
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
                    self.save(log)
        except (UserError, StoppedWorkError, OSError):
            raise
        except Exception as error:
            if _is_out_of_memory(error):
                raise UserError(out_of_memory_advice(run.settings, self.processes.data_world_size)) from error
            problem = str(error).partition("\n")[0] or type(error).__name__
            where = options.worker_log_dir / f"worker_{self.processes.rank}.log"
            raise StoppedWorkError(f"training stopped at step {self.step + 1}: {problem} (more in {where})") from error
        finally:
            signal.signal(signal.SIGTERM, previous)
        if self.step < run.total_steps:
            logger.info("stopped at step %d of %d; start the same command again to continue", self.step, run.total_steps)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _batches(self) -> Iterator[StepBatches]:
        loader = self.run_.loader(self.processes.data_rank, self.processes.data_world_size)
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
            if self._train_step(batch, meter, log):
                break
            self.step += 1
            last = self.step == self.run_.total_steps
            if meter.steps and (self.step % options.log_interval_steps == 0 or last):
                own = meter.read_own()
                figures = meter.read(self.step, self.engine)
                log.write(figures, meter.steps, own)
                self.engine.write_monitors(figures, self.step)
                meter = Meter(self.processes)
            if options.eval_interval_steps and self.step % options.eval_interval_steps == 0:
                self._evaluate(log)
                meter = Meter(self.processes)
            interval = options.save_interval_steps
            if (interval and self.step % interval == 0) or self.run_.ends_epoch(self.step) or last:
                self.save(log)
                meter = Meter(self.processes)

    def _train_step(self, batch: StepBatches, meter: Meter, log: RunLog) -> bool:
        """One optimizer step; True, with nothing done, if any process was told to stop."""
        counts = {name: sum(target_counts(b)[name] for b in batch.micro_batches) for name in TARGETS}
        local = torch.tensor([*counts.values(), int(self.stopping)])
        *totals, stop = self.processes.sum(local).tolist()
        if stop:
            return True
        step_weights = global_weights(dict(zip(TARGETS, totals, strict=True)))
        with meter.computing():
            figures = self._forward_backward(batch, step_weights)
        self._apply(batch, self._reduced(figures), meter, log)
        return False

    def _forward_backward(self, batch: StepBatches, step_weights: dict[str, float]) -> dict[str, torch.Tensor]:
        """Adds up the gradients of this process's micro batches; its share of each loss and accuracy, on the CPU."""
        figures: dict[str, torch.Tensor] = {}
        for number, micro_batch in enumerate(batch.micro_batches):
            self._seed_dropout(number)
            weights = self._weights(micro_batch, len(batch.micro_batches), step_weights)
            sums = self.engine.forward_backward(micro_batch.to(self.processes.device), weights)
            for name, value in sums.items():
                kind, is_loss = name.rsplit("_", 1)[0], name.endswith("_loss")
                weighted = value * (weights if is_loss else step_weights)[kind]
                figures[name] = figures[name] + weighted if name in figures else weighted
        values = torch.stack([value.double() for value in figures.values()]).cpu()
        return dict(zip(figures, values, strict=True))

    def _seed_dropout(self, micro_batch: int) -> None:
        """Dropout is a function of (seed, step, process, micro batch) too, so that a resumed run repeats it."""
        place = [self.run_.options.seed, self.step, self.processes.data_rank, micro_batch]
        torch.manual_seed(int(fingerprint_value(place)[:15], 16))

    def _weights(self, batch: PackedBatch, num_micro_batches: int, step_weights: dict[str, float]) -> dict[str, float]:
        if self.run_.options.loss_average == "global":
            return step_weights
        return micro_batch_weights(batch, num_micro_batches * self.processes.data_world_size)

    def _reduced(self, figures: dict[str, torch.Tensor]) -> dict[str, float]:
        """Losses and accuracies of a step over all processes."""
        local = torch.stack(list(figures.values()))
        names = [name.replace("_correct", "_accuracy") for name in figures]
        return dict(zip(names, self.processes.sum(local).tolist(), strict=True))

    def _apply(self, batch: StepBatches, figures: dict[str, float], meter: Meter, log: RunLog) -> None:
        """Updates the weights, unless the loss or the gradient would ruin them.

        Raises:
            StoppedWorkError: they would, and the run is to stop; a checkpoint of the state before has been written.
        """
        loss = sum(value for name, value in figures.items() if name.endswith("_loss"))
        problem = self.guard.problem(loss)
        stop = self.run_.options.on_nan == "stop"
        if not (problem and stop) and not self.engine.step(discard=bool(problem)) and not problem:
            if self.engine.scales_losses:
                return
            problem = "the gradient is not finite"
        if problem is None:
            meter.add(figures, batch.micro_batches)
            return
        path = write_bad_step(
            self.run_.options.output_dir / "bad_steps", self.processes.rank, problem, batch, self.run_.datasets
        )
        if stop:
            if self.saved_step != self.step:
                self.save(log)
            raise StoppedWorkError(
                f"step {self.step + 1}: {problem}; its items are listed in {path}, the state before it is saved; "
                "--on-nan skip leaves such steps out"
            )
        logger.warning("step %d left out: %s; its items are listed in %s", self.step + 1, problem, path)

    def _evaluate(self, log: RunLog) -> None:
        assert self.validation is not None
        self.evaluation = {"step": self.step, **self.validation(self.engine)}
        log.write_evaluation(self.evaluation)
        self.engine.write_monitors(self.evaluation, self.step)

    def save(self, log: RunLog) -> None:
        """Writes a checkpoint of this step, evaluated if the run evaluates. All processes take part; process 0 writes.

        Raises:
            UserError: there is no room for it; the checkpoints before it are intact.
        """
        if self.validation and self.evaluation.get("step") != self.step:
            self._evaluate(log)
        weights, moments = dict(self.engine.weights()), dict(self.engine.moments())
        self.processes.on_first(lambda: self._write_checkpoint(weights, moments))
        self.saved_step = self.step

    def _write_checkpoint(self, weights: dict[str, torch.Tensor], moments: dict[str, torch.Tensor]) -> None:
        try:
            self._write_files(weights, moments)
        except OSError as error:
            newest = next(iter(checkpoints.list_checkpoints(self.run_.options.output_dir)), "none yet")
            raise UserError(
                f"the checkpoint of step {self.step} could not be written: {error.strerror}; the last one is {newest}; "
                "free some space and run the same command again"
            ) from error

    def _write_files(self, weights: dict[str, torch.Tensor], moments: dict[str, torch.Tensor]) -> None:
        run, dataset = self.run_, self.run_.datasets[0]
        options = run.options
        folder = checkpoints.checkpoint_folder(options.output_dir, self.step)
        companions = [dataset.folder / "tokenizer", dataset.folder / "entity_vocab.jsonl"]
        writer = checkpoints.CheckpointWriter(folder, self.initial.model.config.to_dict(), companions)
        writer.write(
            weights,
            moments,
            run.plan,
            step=self.step,
            total_steps=run.total_steps,
            evaluation=self.evaluation or None,
            fresh_mlm_head=self.initial.fresh_mlm_head,
            position_offset=int(self.initial.model.luke.embeddings.position_offset),
            tokenizer_fingerprint=dataset.metadata["tokenizer_fingerprint"],
            entity_vocab_fingerprint=dataset.metadata["entity_vocab_fingerprint"],
        )
        logger.info("saved %s", folder)
        if options.export_checkpoints:
            export = checkpoints.export_folder(folder)
            export.parent.mkdir(exist_ok=True)
            convert_checkpoint(folder, export)
        if options.keep_last:
            checkpoints.prune(options.output_dir, options.keep_last)


if __name__ == "__main__":
    from luke.cli import run_command
    from luke.commands.pretrain import command

    run_command(command)
