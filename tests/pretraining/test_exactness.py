"""How a step is cut over processes, micro batches and ZeRO stages changes no loss."""

from pathlib import Path

import pytest

from .runs import launch, losses


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
