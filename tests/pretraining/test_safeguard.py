import json
import math
from pathlib import Path

import pytest

from luke.pretraining.safeguard import LossGuard

from .runs import luke, metrics, weights


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_a_problem_from_the_first_step(loss: float) -> None:
    assert LossGuard(0).problem(loss) == f"the loss is {loss}"


def test_a_leap_is_a_problem_once_there_is_something_to_compare_with() -> None:
    guard = LossGuard(3)
    assert guard.problem(1.0) is None
    assert guard.problem(50.0) is None, "too early to tell"
    for _ in range(30):
        assert guard.problem(2.0) is None
    assert guard.problem(5.9) is None
    assert guard.problem(6.1) == "the loss leapt to 6.1 from a median of 2"
    assert guard.problem(2.0) is None, "a bad loss is not remembered"
    assert LossGuard(0).problem(1e9) is None


def test_a_ruined_run_stops_with_the_state_before_and_names_the_items(work: Path) -> None:
    """At such a rate the second step's loss overflows."""
    output = work / "ruined"
    rate = ("--override", "scheduler.params.warmup_max_lr=1e30", "--override", "scheduler.params.warmup_num_steps=1")
    done = luke(work, output, *rate)
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("luke: error:")]
    assert len(errors) == 1 and "is saved" in errors[0] and "Traceback" not in done.stderr
    (bad,) = (output / "bad_steps").iterdir()
    step = json.loads(bad.read_text())["step"]
    assert f"step {step}: the " in errors[0] and step == len(metrics(output)) + 1
    items = [item for micro_batch in json.loads(bad.read_text())["micro_batches"] for item in micro_batch]
    assert len(items) == 8 and items[0][0] == str(work / "dataset")
    assert [folder.name for folder in (output / "checkpoints").iterdir()] == [f"step{step - 1:08d}"]


@pytest.mark.parametrize("zero_stage", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_skipping_leaves_the_step_out_and_goes_on(work: Path, zero_stage: int) -> None:
    """At a small rate the loss is the items' own: steps dearer than the median are left out, and nothing else."""
    overrides = ("scheduler.params.warmup_max_lr=1e-7", f"zero_optimization.stage={zero_stage}")
    common = ("--num-epochs", 3, *(word for override in overrides for word in ("--override", override)))
    straight, skipping = work / f"straight{zero_stage}", work / f"skipping{zero_stage}"
    assert luke(work, straight, *common).returncode == 0
    done = luke(work, skipping, *common, "--on-nan", "skip", "--loss-spike-factor", 1.02)
    assert done.returncode == 0, done.stderr
    left_out = {json.loads(path.read_text())["step"] for path in (skipping / "bad_steps").iterdir()}
    assert left_out and left_out == set(range(1, 37)) - {entry["step"] for entry in metrics(skipping)}
    before = min(left_out) - 1
    assert metrics(skipping)[before - 1]["loss"] == metrics(straight)[before - 1]["loss"]
    rates = {entry["step"]: entry["learning_rate"] for entry in metrics(straight)}
    assert all(entry["learning_rate"] == rates[entry["step"]] for entry in metrics(skipping)), "the schedule goes on"
    ours, theirs = weights(skipping), weights(straight)
    assert any(not ours[name].equal(theirs[name]) for name in ours)
