import json
from pathlib import Path

import pytest

from luke.pretraining.checkpoint import best_checkpoint, list_checkpoints

from .runs import bad, evaluations, launch, luke


def test_held_out_items_are_evaluated_alike_by_any_number_of_processes(work: Path) -> None:
    options = ("--eval-interval-steps", 4, "--max-train-steps", 9, "--keep-last", 1, "--save-interval-steps", 2)
    one, two = work / "evaluated", work / "evaluated_by_two"
    done = luke(work, one, *options)
    assert done.returncode == 0, done.stderr
    assert "held-out loss" in done.stderr
    figures = evaluations(one)
    assert [entry["step"] for entry in figures] == [2, 4, 6, 8, 9], "at the interval, and with each checkpoint"
    assert figures[-1]["eval_loss"] < figures[0]["eval_loss"]
    wanted = {"eval_masked_lm_loss", "eval_masked_lm_accuracy", "eval_masked_entity_loss", "eval_masked_entity_accuracy"}
    assert wanted <= figures[0].keys()
    assert figures[0]["eval_loss"] == pytest.approx(
        figures[0]["eval_masked_lm_loss"] + figures[0]["eval_masked_entity_loss"]
    )
    best = min(figures, key=lambda entry: entry["eval_loss"])["step"]
    kept = [folder.name for folder in list_checkpoints(one)]
    assert kept == sorted({"step00000009", f"step{best:08d}"}, reverse=True), "the newest and the best are kept"
    found = best_checkpoint(one)
    assert found is not None and found.name == f"step{best:08d}"
    metadata = json.loads((found / "metadata.json").read_text())
    assert metadata["evaluation"]["eval_loss"] == min(entry["eval_loss"] for entry in figures)
    launch(work, two, 2, *options, "--override", "zero_optimization.stage=3")
    assert [e["eval_loss"] for e in evaluations(two)] == pytest.approx([e["eval_loss"] for e in figures], rel=1e-4)


def test_eval_items_limits_what_is_evaluated(work: Path) -> None:
    losses = {}
    for number in (5, 2000):
        output = work / f"eval_items_{number}"
        options = ("--eval-items", number, "--eval-interval-steps", 1, "--max-train-steps", 1)
        assert luke(work, output, *options).returncode == 0
        losses[number] = evaluations(output)[0]["eval_loss"]
    assert losses[5] != losses[2000]


def test_a_dataset_without_held_out_items_is_refused(work: Path) -> None:
    bad(work, "has no held-out items", "--eval-interval-steps", 1, "--dataset-dir", work / "whole")
