"""Checkpoints as transformers alone writes them, in its old and its new form: read, evaluated, trained, kept whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import LukeConfig

from luke.errors import UserError
from luke.processor import LukeProcessor
from luke.tasks.models import load_task_model, save_task_model
from luke.tasks.training import PUBLISHED_HEADS, FineTuning, evaluate, fine_tune, load_fine_tuned
from tests.tasks.tiny_models import make_luke, write_lines

LABELS = {
    "LukeForEntityClassification": ["location", "person"],
    "LukeForEntityPairClassification": ["no_relation", "lies in"],
    "LukeForEntitySpanClassification": ["NIL", "LOC"],
    "LukeForQuestionAnswering": ["LABEL_0", "LABEL_1"],
    "LukeForSequenceClassification": ["no", "yes"],
}
TASK_OF_HEAD = {
    "entity": "entity-typing",
    "pair": "relation-classification",
    "spans": "ner",
    "answer": "question-answering",
    "sequence": "text-classification",
}
TEXT = "the bay of Tokyo"
ROWS: dict[str, dict[str, Any]] = {
    "entity-typing": {"text": TEXT, "start": 11, "end": 16, "labels": ["location"]},
    "relation-classification": {"text": TEXT, "head": [4, 7], "tail": [11, 16], "label": "lies in"},
    "ner": {"text": TEXT, "entities": [{"start": 11, "end": 16, "label": "LOC"}]},
    "question-answering": {"question": "which bay", "context": TEXT, "answers": [{"text": "Tokyo", "start": 11}]},
    "text-classification": {"text": TEXT, "label": "yes"},
}


def publish(folder: Path, family: str, architecture: str, old_form: bool = False, **config: Any) -> Path:
    """A fine-tuned tiny LUKE with nothing of ours in its folder but the tokenizer's files, which transformers' are too."""
    make_luke(folder, family, **config)
    settings = LukeConfig.from_pretrained(folder)
    names = LABELS[architecture]
    settings.num_labels = len(names)
    settings.id2label, settings.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    torch.manual_seed(5)
    model = getattr(transformers, architecture)(settings)
    model.save_pretrained(folder)
    if old_form:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        path = folder / "tokenizer_config.json"
        tokens = json.loads(path.read_text())
        tokens.pop("extra_special_tokens", None)
        tokens["additional_special_tokens"] = ["<ent>", "<ent2>", "<ent>", "<ent2>"]  # repeated, as published
        path.write_text(json.dumps(tokens))
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    if (folder / "model.safetensors").exists():
        return dict(load_file(folder / "model.safetensors"))
    return dict(torch.load(folder / "pytorch_model.bin", weights_only=True))


def assert_same(found: dict[str, torch.Tensor], due: dict[str, torch.Tensor]) -> None:
    assert found.keys() == due.keys()
    for name, value in due.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("old_form", [False, True], ids=["new form", "old form"])
@pytest.mark.parametrize("entity_aware", [False, True], ids=["plain", "entity-aware"])
@pytest.mark.parametrize("architecture", PUBLISHED_HEADS)
def test_published_models_are_evaluated_and_kept_bit_for_bit(
    tmp_path: Path, architecture: str, entity_aware: bool, old_form: bool
) -> None:
    family = "xlm-roberta" if old_form else "roberta"
    folder = publish(tmp_path / "m", family, architecture, old_form, use_entity_aware_attention=entity_aware)
    head = PUBLISHED_HEADS[architecture]
    task = TASK_OF_HEAD[head]
    data = write_lines(tmp_path / "data.jsonl", [ROWS[task]])
    tuned = load_fine_tuned(folder, task, threshold=0.01) if task == "entity-typing" else load_fine_tuned(folder, task)
    assert evaluate(tuned, data)
    example = tuned.task.read(data, tuned.task.options)
    units = tuned.task.units(example, False)
    inputs = tuned.task.collate(units, False)
    plain = getattr(transformers, architecture).from_pretrained(folder).eval()
    with torch.no_grad():
        due = plain(**inputs)[0]
    found = tuned.logits(units)
    first = torch.stack([torch.from_numpy(row[0] if isinstance(row, tuple) else row) for row in found])
    torch.testing.assert_close(first, due, atol=1e-5, rtol=1e-5)
    save_task_model(tuned.model, tmp_path / "again")
    assert_same(weights(tmp_path / "again"), weights(folder))


@pytest.mark.parametrize("form", ["base", "lite", "untied", "entity-aware"])
@pytest.mark.parametrize("old_form", [False, True], ids=["new form", "old form"])
def test_published_pretrained_models_are_fine_tuned(tmp_path: Path, form: str, old_form: bool) -> None:
    """Lite: a table of the special entities alone. Untied: an entity decoder of its own beside the table."""
    config = {"entity-aware": {"use_entity_aware_attention": True}, "untied": {"tie_word_embeddings": False}}.get(form, {})
    folder = make_luke(tmp_path / "m", "xlm-roberta", **config)
    if form == "lite":
        vocabulary = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3}
        (folder / "entity_vocab.json").write_text(json.dumps(vocabulary))
        settings = json.loads((folder / "config.json").read_text())
        settings["entity_vocab_size"] = 4
        transformers.LukeForMaskedLM(LukeConfig(**settings)).save_pretrained(folder)
    if old_form:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    before = weights(folder)
    model = load_task_model(folder, "entity", ["location", "person"], True, None, 0)
    found = {f"luke.{name}": value for name, value in model.luke.state_dict().items()}
    shared = {name: value for name, value in before.items() if name in found and "position_ids" not in name}
    assert len(shared) > 20
    assert_same({name: found[name] for name in shared}, shared)
    assert LukeProcessor.from_pretrained(folder).entity_vocab["[MASK2]"] == (3 if form == "lite" else 6)
    data = write_lines(
        tmp_path / "data.jsonl",
        [ROWS["entity-typing"], {**ROWS["entity-typing"], "labels": ["person"], "start": 4, "end": 7}],
    )
    fine_tune("entity-typing", str(folder), data, None, tmp_path / "out", FineTuning(epochs=1, batch_size=2))
    trained = weights(tmp_path / "out")
    name = "luke.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(trained[name], before[name])
    again = load_fine_tuned(tmp_path / "out", "entity-typing")
    save_task_model(again.model, tmp_path / "kept")
    assert_same(weights(tmp_path / "kept"), trained)


def test_a_head_of_another_task_is_named(tmp_path: Path) -> None:
    folder = publish(tmp_path / "m", "roberta", "LukeForEntityClassification")
    with pytest.raises(UserError, match="its head, LukeForEntityClassification, is not one for ner"):
        load_fine_tuned(folder, "ner")
    settings = json.loads((folder / "config.json").read_text())
    settings["architectures"] = ["LukeForEntitySpanClassification"]
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="its label 0 is 'location'; ner needs 'NIL' there"):
        load_fine_tuned(folder, "ner")
    with pytest.raises(UserError, match=r"not a fine-tuned model \(luke_task.json is missing\)"):
        load_fine_tuned(make_luke(tmp_path / "p"), "ner")
