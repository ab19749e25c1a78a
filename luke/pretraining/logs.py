"""What a run leaves to read: one plain log a worker, figures a step as JSON lines, TensorBoard, a progress line."""

import json
import logging
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from luke.artifacts import replace_file
from luke.progress import Progress

_GIB = 1 << 30
METRICS_FILE = "metrics.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
logger = logging.getLogger(__name__)


def memory_gib(device: torch.device) -> float:
    """Peak memory in GiB: of the device on a GPU, of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GIB


class RunLog:
    """The logs of one process of a run.

    Args:
        folder: Where ``worker_<rank>.log`` lies (the guide's ``deepspeed_logs``).
        rank: This process; process 0 also writes the figures, TensorBoard and the progress line.
        output_dir: Where ``metrics.jsonl`` and ``evaluations.jsonl`` lie.
        tensorboard_dir: TensorBoard's folder.
        total_steps, start_step: For the progress, and to cut off figures of steps that a restart does again.
    """

    def __init__(
        self, folder: Path, rank: int, output_dir: Path, tensorboard_dir: Path, total_steps: int, start_step: int
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._handler = logging.FileHandler(folder / f"worker_{rank}.log", encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logging.getLogger("luke").addHandler(self._handler)
        self._metrics: Any = None
        self._evaluations = Path()
        self._writer: Any = None
        self._progress: Progress | None = None
        if rank == 0:
            _keep_steps(output_dir / METRICS_FILE, start_step)
            _keep_steps(output_dir / EVALUATIONS_FILE, start_step)
            self._evaluations = output_dir / EVALUATIONS_FILE
            self._metrics = (output_dir / METRICS_FILE).open("a", encoding="utf-8")
            self._writer = _tensorboard(tensorboard_dir, start_step)
            self._progress = Progress("steps", total_steps, "steps", start_step)

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.__enter__()
        return self

    def write(self, metrics: dict[str, float], steps: int, own: Mapping[str, float] | None = None) -> None:
        """Logs the figures of the last ``steps`` steps, in this process's log with what is its ``own``."""
        step = int(metrics["step"])
        line = " ".join(f"{name}={_short(value)}" for name, value in {**metrics, **(own or {})}.items())
        self._handler.emit(logging.makeLogRecord({"msg": line, "created": time.time(), "levelno": logging.INFO}))
        if self._progress:
            print(json.dumps(metrics), file=self._metrics, flush=True)
            if self._writer:
                for name, value in metrics.items():
                    if name != "step":
                        self._writer.add_scalar(name, value, step)
            self._progress.advance(steps, f"loss {metrics['loss']:.3f}, {metrics['tokens_per_second']:,.0f} tokens/s")

    def write_evaluation(self, figures: dict[str, float]) -> None:
        """Logs figures on held-out items, which go to ``evaluations.jsonl``."""
        line = " ".join(f"{name}={_short(value)}" for name, value in figures.items())
        self._handler.emit(logging.makeLogRecord({"msg": line, "created": time.time(), "levelno": logging.INFO}))
        if self._progress:
            with self._evaluations.open("a", encoding="utf-8") as stream:
                print(json.dumps(figures), file=stream)
            if self._writer:
                for name, value in figures.items():
                    self._writer.add_scalar(name, value, int(figures["step"]))
            logger.info("step %d: held-out loss %.3f", figures["step"], figures["eval_loss"])

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            record = {"msg": f"stopped: {error}", "created": time.time(), "exc_info": (error_type, error, trace)}
            self._handler.emit(logging.makeLogRecord(record))
        if self._progress:
            self._progress.__exit__(error_type, error, trace)
            self._metrics.close()
            if self._writer:
                self._writer.close()
        logging.getLogger("luke").removeHandler(self._handler)
        self._handler.close()


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _keep_steps(path: Path, last_step: int) -> None:
    """Drops the figures of steps after ``last_step``, which will be done again, and a line that a kill cut short."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        with replace_file(path, "w") as stream:
            stream.writelines(line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= last_step)


def _tensorboard(folder: Path, start_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        logger.info("TensorBoard is not installed; figures go to %s only", METRICS_FILE)
        return None
    return SummaryWriter(str(folder), purge_step=start_step or None)


def quiet_libraries() -> None:
    """Libraries' chatter goes to no terminal: it drowns the progress line."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("DeepSpeed", "transformers", "datasets"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore", FutureWarning)
