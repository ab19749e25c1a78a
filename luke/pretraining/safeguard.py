"""Notices a loss that ruins a run: one that is not finite, or that leaps far above those before it."""

import math
import statistics
from collections import deque
from pathlib import Path

from luke.artifacts import write_json
from luke.pretraining.batching import StepBatches
from luke.pretraining.dataset import PretrainingDataset

_WINDOW, _FEWEST = 100, 20


class LossGuard:
    """Judges each step's loss before its gradient is applied.

    Args:
        spike_factor: A loss above this many times the median of the last 100 good steps is a leap; 0 lets all pass. Judged
            from the 20th step after a start on.
    """

    def __init__(self, spike_factor: float) -> None:
        self.spike_factor = spike_factor
        self._recent: deque[float] = deque(maxlen=_WINDOW)

    def problem(self, loss: float) -> str | None:
        """What is wrong with ``loss``, if anything; a good one is remembered."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if self.spike_factor and len(self._recent) >= _FEWEST:
            median = statistics.median(self._recent)
            if loss > self.spike_factor * median:
                return f"the loss leapt to {loss:.4g} from a median of {median:.4g}"
        self._recent.append(loss)
        return None


def write_bad_step(folder: Path, rank: int, problem: str, batch: StepBatches, datasets: list[PretrainingDataset]) -> Path:
    """Leaves the step's item ids for those who look for the cause: for each micro batch of this process its items as
    [dataset folder, pass, row]."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step{batch.step + 1:08d}_rank{rank}.json"
    items = [[[str(datasets[s.dataset].folder), s.epoch, s.row] for s in samples] for samples in batch.samples]
    write_json(path, {"step": batch.step + 1, "problem": problem, "micro_batches": items})
    return path
