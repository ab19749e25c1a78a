"""The shared trainer: two tasks end to end, continuing after a kill, options, sweeps, mistakes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import LukeForEntityClassification

from luke.dropout import Dropout
from luke.errors import UserError
from luke.tasks import training
from luke.tasks.models import UnpaddedLuke, load_task_model
from luke.tasks.training import FineTuning, evaluate, fine_tune, load_fine_tuned, parse_sweep, predict, sweep
from tests.command_line import refused, run_luke
from tests.pretraining.runs import environment, free_port
from tests.tasks.tiny_models import make_luke, make_plain, write_lines

FAST = FineTuning(learning_rate=5e-3, batch_size=4, epochs=6, micro_batch_size=4, precision="fp32")


def typing_rows(count: int) -> list[dict[str, Any]]:
    """The type is told by the mention's word."""
    words = {"Tokyo": ["place"], "Aristotle": ["person", "writer"]}
    rows = []
    for number in range(count):
        word = sorted(words)[number % 2]
        text = f"{'the harbour of ' * (number % 3)}{word} lies on the bay"
        start = text.index(word)
        rows.append({"text": text, "start": start, "end": start + len(word), "labels": words[word]})
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tasks")
    make_luke(root / "luke", use_entity_aware_attention=False)
    make_plain(root / "plain")
    write_lines(root / "train.jsonl", typing_rows(24))
    write_lines(root / "dev.jsonl", typing_rows(8))
    return root


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Path:
    fine_tune("entity-typing", str(folder / "luke"), folder / "train.jsonl", folder / "dev.jsonl", folder / "tuned", FAST)
    return folder / "tuned"


def test_luke_learns_and_transformers_loads_the_result(tuned: Path, folder: Path) -> None:
    metrics = evaluate(load_fine_tuned(tuned, "entity-typing"), folder / "dev.jsonl")
    assert metrics["f1"] == 1.0 and metrics["strict_accuracy"] == 1.0
    theirs, info = LukeForEntityClassification.from_pretrained(tuned, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    ours = load_fine_tuned(tuned, "entity-typing")
    examples = ours.task.read(folder / "dev.jsonl", ours.task.options)
    inputs = ours.task.collate(ours.task.units(examples, False), False)
    inputs = {name: value for name, value in inputs.items() if not name.endswith(("_start_positions", "_end_positions"))}
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(**inputs).logits, ours.model(**inputs).logits, atol=1e-5, rtol=1e-4)
    assert theirs.config.id2label == {0: "person", 1: "place", 2: "writer"}
    assert transformers.AutoTokenizer.from_pretrained(tuned)("the bay")["input_ids"]


def test_plain_encoder_learns_with_the_same_command(folder: Path, tmp_path: Path) -> None:
    metrics = fine_tune(
        "entity-typing", str(folder / "plain"), folder / "train.jsonl", folder / "dev.jsonl", tmp_path / "out", FAST
    )
    assert metrics["f1"] == 1.0
    assert evaluate(load_fine_tuned(tmp_path / "out", "entity-typing"), folder / "dev.jsonl") == metrics


def test_predictions_are_lines_that_can_be_read_again(tuned: Path, folder: Path, tmp_path: Path) -> None:
    unlabelled = write_lines(tmp_path / "new.jsonl", [{"text": "Tokyo lies on the bay", "start": 0, "end": 5}])
    model = load_fine_tuned(tuned, "entity-typing")
    assert predict(model, unlabelled, tmp_path / "out.jsonl") == 1
    line = json.loads((tmp_path / "out.jsonl").read_text())
    assert line["labels"] == ["place"] and line["scores"]["place"] > 0.5
    assert model.task.read(tmp_path / "out.jsonl", model.task.options)[0].types == {"place"}


def test_threshold_changes_what_is_predicted(tuned: Path, folder: Path, tmp_path: Path) -> None:
    predict(load_fine_tuned(tuned, "entity-typing", threshold=1e-9), folder / "dev.jsonl", tmp_path / "all.jsonl")
    assert {len(json.loads(line)["labels"]) for line in (tmp_path / "all.jsonl").read_text().splitlines()} == {3}


def test_finished_run_is_not_done_again(tuned: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_train", lambda *_: pytest.fail("trained again"))
    arguments = ("entity-typing", str(folder / "luke"), folder / "train.jsonl", folder / "dev.jsonl", tuned)
    assert fine_tune(*arguments, FAST)["f1"] == 1.0
    with pytest.raises(UserError, match="other options or input"):
        fine_tune(*arguments, FineTuning(learning_rate=1e-3))


def test_killed_run_continues_and_ends_the_same(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = FineTuning(learning_rate=5e-3, batch_size=4, epochs=3, micro_batch_size=4)
    arguments = ("entity-typing", str(folder / "luke"), folder / "train.jsonl", folder / "dev.jsonl")
    fine_tune(*arguments, tmp_path / "whole", how)
    calls = []

    class KillError(Exception):
        pass

    original = training._TaskTrainer.evaluate

    def evaluate_or_die(self: Any, *values: Any, **options: Any) -> Any:
        calls.append(self.state.epoch)
        if len(calls) == 2:
            raise KillError
        return original(self, *values, **options)

    monkeypatch.setattr(training._TaskTrainer, "evaluate", evaluate_or_die)
    with pytest.raises(KillError):
        fine_tune(*arguments, tmp_path / "killed", how)
    assert not (tmp_path / "killed").exists() and (tmp_path / "killed.partial" / "trainer" / "checkpoint-6").exists()
    calls.append(0.0)
    fine_tune(*arguments, tmp_path / "killed", how)
    assert calls[-2:] == [2.0, 3.0]
    left, right = (transformers.AutoModel.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "killed"))
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=1e-6, rtol=1e-5)
    assert not (tmp_path / "killed" / "trainer").exists()


def test_micro_batches_add_up_to_the_batch(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers does not average accumulated losses of models that take keyword arguments."""
    luke = make_luke(tmp_path / "luke", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    losses: dict[int, list[float]] = {8: [], 2: []}
    original = training._TaskTrainer.training_step

    def noted(self: Any, *values: Any, **options: Any) -> Any:
        loss = original(self, *values, **options)
        losses[self.args.per_device_train_batch_size].append(float(loss))
        return loss

    monkeypatch.setattr(training._TaskTrainer, "training_step", noted)
    states = []
    for micro in (8, 2):
        how = FineTuning(learning_rate=1e-3, batch_size=8, epochs=1, micro_batch_size=micro)
        fine_tune("entity-typing", str(luke), folder / "train.jsonl", None, tmp_path / f"out{micro}", how)
        states.append(LukeForEntityClassification.from_pretrained(tmp_path / f"out{micro}").state_dict())
    assert len(losses[8]) == 3 and sum(losses[2][:4]) == pytest.approx(losses[8][0], rel=1e-4)
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], atol=1e-4, rtol=1e-2)


@pytest.mark.parametrize("entity_aware", [True, False])
def test_unpadded_encoder_equals_transformers(folder: Path, entity_aware: bool) -> None:
    model = load_task_model(folder / "luke", "entity", ["a", "b"], True, entity_aware, 0)
    assert isinstance(model.luke, UnpaddedLuke)
    theirs = LukeForEntityClassification.from_pretrained(
        folder / "luke", num_labels=2, use_entity_aware_attention=entity_aware, attn_implementation="eager"
    )
    theirs.load_state_dict(model.state_dict())
    processor = training.load_processor(folder / "luke")
    batch = processor(["the bay of Tokyo", "Tokyo"], spans=[[(11, 16)], [(0, 5)]], task="entity_classification").inputs
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(**batch).logits, theirs.eval()(**batch).logits, atol=1e-5, rtol=1e-4)


def test_missing_entity_queries_start_as_the_plain_one(folder: Path) -> None:
    model = load_task_model(folder / "luke", "entity", ["a"], True, True, 0)
    state = model.state_dict()
    for kind in ("w2e_query", "e2w_query", "e2e_query"):
        name = f"luke.encoder.layer.1.attention.self.{kind}.weight"
        assert state[name].equal(state[name.replace(kind, "query")])


def test_gradient_checkpointing_gives_the_same_gradients(folder: Path) -> None:
    processor = training.load_processor(folder / "luke")
    batch = processor("the bay of Tokyo", spans=[(11, 16)], task="entity_classification").inputs
    grads = []
    for on in (False, True):
        torch.manual_seed(1)
        model = load_task_model(folder / "luke", "entity", ["a", "b"], False, None, 0).eval()
        if on:
            training.enable_gradient_checkpointing(model)
            assert model.luke.encoder.gradient_checkpointing
            model.luke.encoder.train()  # checkpoints are for training; without dropout it is the same arithmetic
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout | Dropout):
                    module.p = 0.0
            for layer in model.luke.encoder.layer:
                layer.attention.self.dropout = 0.0
        model(**batch, labels=torch.tensor([1])).loss.backward()
        grads.append(model.luke.encoder.layer[0].attention.self.key.weight.grad)
    torch.testing.assert_close(*grads)


def test_sweep_reports_mean_and_deviation(folder: Path, tmp_path: Path) -> None:
    how = FineTuning(batch_size=8, epochs=1, micro_batch_size=8)
    rows = sweep(
        "entity-typing",
        str(folder / "luke"),
        folder / "train.jsonl",
        folder / "dev.jsonl",
        tmp_path / "sweep",
        parse_sweep("learning_rate=1e-5,1e-2;seed=1,2"),
        how,
    )
    assert [row["runs"] for row in rows] == [2, 2]
    assert rows[0]["mean"]["f1"] >= rows[1]["mean"]["f1"]
    names = {path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()}
    assert names == {f"learning_rate={rate},seed={seed}" for rate in ("1e-05", "0.01") for seed in (1, 2)}
    stored = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    runs = [
        json.loads((tmp_path / "sweep" / f"learning_rate=0.01,seed={seed}" / "luke_task.json").read_text())
        for seed in (1, 2)
    ]
    values = [run["metrics"]["f1"] for run in runs]
    row = next(row for row in stored["rows"] if row["settings"] == {"learning_rate": 0.01})
    assert row["mean"]["f1"] == pytest.approx(sum(values) / 2)
    assert row["deviation"]["f1"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)


@pytest.mark.parametrize("text", ["momentum=1", "seed=one", ""])
def test_bad_sweeps_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--sweep"):
        parse_sweep(text)


def test_mistakes_are_one_line(folder: Path, tuned: Path, tmp_path: Path) -> None:
    arguments = ("entity-typing", str(folder / "luke"), folder / "train.jsonl", None, tmp_path / "out")
    with pytest.raises(UserError, match="no such task; there are entity-typing"):
        fine_tune("typing", *arguments[1:], FAST)
    with pytest.raises(UserError, match="entity-typing has no such option"):
        fine_tune(*arguments, FAST, stride=3)
    other = write_lines(tmp_path / "other.jsonl", [{"text": "Tokyo", "start": 0, "end": 5, "labels": ["city"]}])
    with pytest.raises(UserError, match=r"other.jsonl: the label 'city' is not among the model's \(person, place, writer\)"):
        evaluate(load_fine_tuned(tuned, "entity-typing"), other)
    with pytest.raises(UserError, match="fine-tuned for entity-typing, not for ner"):
        load_fine_tuned(tuned, "ner")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "Tokyo", "start": 0, "end": 5, "labels": []}\n{"text": \n')
    with pytest.raises(UserError, match=r"broken.jsonl, line 2: not JSON"):
        evaluate(load_fine_tuned(tuned, "entity-typing"), broken)
    outside = write_lines(tmp_path / "outside.jsonl", [{"text": "Tokyo", "start": 0, "end": 9, "labels": []}])
    with pytest.raises(UserError, match=r"example 1: the span \(0, 9\) lies outside a text of 5 characters"):
        evaluate(load_fine_tuned(tuned, "entity-typing"), outside)


def test_luke_without_entity_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    luke = make_luke(tmp_path / "luke")
    (luke / "entity_vocab.json").unlink()
    message = refused(
        *("finetune", "entity-typing", "--model", luke, "--train", folder / "train.jsonl", "--output", tmp_path / "out"),
        leaving=tmp_path / "out",
    )
    assert "a LUKE without entity_vocab.json" in message


def test_commands(tuned: Path, folder: Path, tmp_path: Path) -> None:
    result = run_luke(
        "evaluate", "entity-typing", "--model", tuned, "--data", folder / "dev.jsonl", "--output", tmp_path / "m.json"
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["f1"] == json.loads((tmp_path / "m.json").read_text())["f1"] == 1.0
    result = run_luke(
        "predict", "entity-typing", "--model", tuned, "--data", folder / "dev.jsonl", "--output", tmp_path / "p"
    )
    assert result.returncode == 0 and len((tmp_path / "p").read_text().splitlines()) == 8


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_two_processes_under_deepspeed(folder: Path, tmp_path: Path, stage: int) -> None:
    settings = tmp_path / "deepspeed.json"
    settings.write_text(json.dumps({"zero_optimization": {"stage": stage}}))
    launcher = [str(Path(sys.executable).parent / "deepspeed"), "--num_gpus=2", f"--master_port={free_port()}"]
    command = [
        *(
            *launcher,
            "--no_local_rank",
            "--module",
            "luke.cli",
            "finetune",
            "entity-typing",
            "--model",
            str(folder / "luke"),
        ),
        *(
            "--train",
            str(folder / "train.jsonl"),
            "--validation",
            str(folder / "dev.jsonl"),
            "--output",
            str(tmp_path / "o"),
        ),
        *("--deepspeed", str(settings), "--epochs", "3", "--learning-rate", "5e-3", "--batch-size", "4"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert result.returncode == 0, result.stderr[-2000:]
    metrics = json.loads((tmp_path / "o" / "luke_task.json").read_text())["metrics"]
    assert metrics["f1"] > 0.7
    # What was written is what was trained, whole on each process or sharded.
    assert evaluate(load_fine_tuned(tmp_path / "o", "entity-typing"), folder / "dev.jsonl") == pytest.approx(metrics)
