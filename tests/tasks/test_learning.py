"""A tiny model learns each of the remaining tasks, with entities and as a plain encoder."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from transformers import LukeForEntityPairClassification, LukeForQuestionAnswering, LukeForSequenceClassification

from luke.tasks.question_answering import QuestionAnswering, QuestionAnsweringOptions
from luke.tasks.training import FineTuning, evaluate, fine_tune, load_fine_tuned, load_processor, predict
from tests.tasks.tiny_models import make_luke, make_plain, write_lines

NAMES = ["Tokyo", "Athens", "Pella", "Stagira"]


def relation_rows(count: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        verb, label = [("lies in", "in"), ("wrote to", "to"), ("and", "no_relation")][number % 3]
        head, tail = NAMES[number % 4], NAMES[(number // 2) % 4]
        text = f"the {head} {verb} {tail}."
        start = text.index(tail, text.index(verb))
        rows.append({"text": text, "head": [4, 4 + len(head)], "tail": [start, start + len(tail)], "label": label})
    return rows


def question_rows(count: int, unanswerable: bool) -> list[dict[str, Any]]:
    generator = random.Random(count)
    rows = []
    for number in range(count):
        before, after = generator.randint(0, 6), generator.randint(0, 6)
        name = generator.choice(NAMES)
        answered = not (unanswerable and number % 3 == 0)
        context = " ".join(["the bay"] * before + [f"capital {name}" if answered else "old"] + ["of old"] * after)
        start = context.find(name)
        answers = [{"text": name, "start": start}] if answered else []
        entities = [{"start": start, "end": start + len(name), "title": name}] if answered else []
        rows.append(
            {"id": str(number), "question": "capital?", "context": context, "answers": answers, "entities": entities}
        )
    return rows


def cloze_rows(count: int) -> list[dict[str, Any]]:
    generator = random.Random(count)
    rows = []
    for number in range(count):
        names = generator.sample(NAMES, 3)
        text = f"{names[0]} is old. {names[1]} is the capital. {names[2]} is far."
        entities = [{"start": text.index(name), "end": text.index(name) + len(name)} for name in names]
        rows.append(
            {
                "id": str(number),
                "text": text,
                "entities": entities,
                "query": "@placeholder is the capital",
                "answers": [names[1]],
            }
        )
    return rows


def text_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"text": f"{NAMES[number % 4]} is {word}", "text_pair": "the bay", "label": word}
        for number in range(count)
        for word in ("old", "far")
    ]


TASKS = {
    "relation-classification": (relation_rows, LukeForEntityPairClassification),
    "question-answering": (lambda count: question_rows(count, True), LukeForQuestionAnswering),
    "cloze": (cloze_rows, None),
    "text-classification": (text_rows, LukeForSequenceClassification),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bases")
    make_luke(root / "luke", family="roberta", use_entity_aware_attention=True)
    make_plain(root / "plain", family="roberta")
    make_plain(root / "bert", family="bert")
    return root


@pytest.mark.parametrize("base", ["luke", "plain"])
@pytest.mark.parametrize("task", sorted(TASKS))
def test_tiny_models_learn(bases: Path, tmp_path: Path, task: str, base: str) -> None:
    rows, head = TASKS[task]
    train, dev = write_lines(tmp_path / "train.jsonl", rows(96)), write_lines(tmp_path / "dev.jsonl", rows(24))
    how = FineTuning(learning_rate=4e-3, batch_size=16, epochs=8, micro_batch_size=16)
    metrics = fine_tune(task, str(bases / base), train, dev, tmp_path / "out", how, max_length=96)
    tuned = load_fine_tuned(tmp_path / "out", task)
    assert metrics[tuned.task.metric] > 0.8, metrics
    assert evaluate(tuned, dev) == metrics
    assert predict(tuned, dev, tmp_path / "p.jsonl") == len(dev.read_text().splitlines())
    json.loads((tmp_path / "p.jsonl").read_text().splitlines()[0])
    if head is not None and base == "luke":
        _, info = head.from_pretrained(tmp_path / "out", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]


def test_long_contexts_are_windows_and_answers_come_from_all(bases: Path) -> None:
    processor = load_processor(bases / "luke")
    options = QuestionAnsweringOptions(max_length=40, stride=8)
    task = QuestionAnswering(options, processor)
    context = "the bay of old Tokyo lies there. " * 6 + "the capital is Pella."
    row = {"question": "what?", "context": context, "answers": [{"text": "Pella", "start": context.index("Pella")}]}
    example = task.read(write_lines(bases / "long.jsonl", [row]), options)
    units = task.units(example, True)
    assert len(units) > 4 and all(len(unit.inputs["input_ids"]) <= 40 for unit in units)
    answered = [unit for unit in units if unit.answer != (0, 0)]
    assert answered and answered[-1] is units[-1]
    for unit in answered:
        start, end = unit.info.characters(unit.answer[0], unit.answer[1] + 1)
        assert context[start:end] == "Pella"


def test_bert_reads_token_types(bases: Path) -> None:
    from luke.tasks.task import TaskOptions
    from luke.tasks.text_classification import TextClassification, TextExample

    task = TextClassification(TaskOptions(), load_processor(bases / "bert"), ["x"])
    types = task.collate([TextExample("the bay", "old", "x")], False)["token_type_ids"][0].tolist()
    assert sorted(types) == types and set(types) == {0, 1}
