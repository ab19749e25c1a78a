"""Every form of file that a task reads, and what it says of broken ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from luke.errors import UserError
from luke.processor import LukeProcessor
from luke.tasks.cloze import Cloze
from luke.tasks.entity_typing import EntityTyping, EntityTypingOptions
from luke.tasks.question_answering import QuestionAnswering, QuestionAnsweringOptions
from luke.tasks.relation_classification import RelationClassification, RelationExample, RelationOptions
from luke.tasks.task import Task, TaskOptions, crop_around
from luke.tasks.text_classification import TextClassification
from luke.tokenization import load_tokenizer
from tests.tasks.tiny_models import write_lines
from tests.tokenizers import write_tokenizer

DATA = Path(__file__).parents[3] / "shared" / "data"
shared = pytest.mark.skipif(not DATA.exists(), reason="the shared files are not here")


def parts(example: RelationExample) -> tuple[str, str, str | None]:
    return example.text[slice(*example.head)], example.text[slice(*example.tail)], example.label


def test_typing_forms(tmp_path: Path) -> None:
    ufet = {
        "left_context_token": ["In", "1938", ","],
        "mention_span": "Rico Lebrun",
        "right_context_token": ["taught", "."],
        "y_str": ["person", "artist"],
    }
    ernie = {"sent": "Rico Lebrun taught.", "start": 0, "end": 11, "labels": ["person"]}
    ours = {"text": "Rico Lebrun taught.", "start": 0, "end": 11, "labels": ["person"]}
    for row in (ufet, ernie, ours):
        mention = EntityTyping.read(write_lines(tmp_path / "a.json", [row]), EntityTypingOptions())[0]
        assert mention.text[slice(*mention.span)] == "Rico Lebrun" and mention.types and "person" in mention.types
    (tmp_path / "list.json").write_text(json.dumps([ernie, ernie], indent=1))
    assert len(EntityTyping.read(tmp_path / "list.json", EntityTypingOptions())) == 2
    general = EntityTyping.read(write_lines(tmp_path / "a.json", [ufet]), EntityTypingOptions(types="general"))
    assert general[0].types == {"person"}


def test_relation_forms(tmp_path: Path) -> None:
    tacred = {
        "id": "1",
        "relation": "per:title",
        "token": ["Tom", "Thabane", "is", "prime", "minister"],
        **{"subj_start": 0, "subj_end": 1, "obj_start": 3, "obj_end": 4},
    }
    fewrel = {"P39": [{"tokens": tacred["token"], "h": ["tom thabane", "Q1", [[0, 1]]], "t": ["pm", "Q2", [[3, 4]]]}]}
    ours = {"text": "Tom Thabane is prime minister", "head": [0, 11], "tail": [15, 29], "label": "x"}
    for content, label in (([tacred], "per:title"), (fewrel, "P39"), ([ours], "x")):
        (tmp_path / "a.json").write_text(json.dumps(content))
        example = RelationClassification.read(tmp_path / "a.json", RelationOptions())[0]
        assert parts(example) == ("Tom Thabane", "prime minister", label)
    (tmp_path / "kbp.txt").write_text(
        '1\t" <e2> Prime Minister </e2> , <e1>Tom Thabane</e1> . "\nper:title(e1,e2)\nComment:\n\n'
        '2\t"The <e1>x</e1> of <e2>y</e2>"\nno_relation\nComment: none\n'
    )
    examples = RelationClassification.read(tmp_path / "kbp.txt", RelationOptions())
    assert [parts(example) for example in examples] == [
        ("Tom Thabane", "Prime Minister", "per:title(e1,e2)"),
        ("x", "y", "no_relation"),
    ]
    (tmp_path / "relx.txt").write_text("7\t<e1>Tom</e1> is <e2>PM</e2>\tper:title\n")
    assert parts(RelationClassification.read(tmp_path / "relx.txt", RelationOptions())[0]) == ("Tom", "PM", "per:title")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\tno mentions\n", "line 1: neither a text with <e1>"),
        ('1\t"<e1>a</e1> <e2>b</e2>"\n', "line 1: no relation behind or below"),
        ("1\t<e1>a</e1> <e2> </e2>\tx\n", "line 1: <e2>…</e2> is missing or empty"),
        ('{"text": "a b", "head": [0, 1], "label": "x"}', "example 1: no 'tail' in it; due is"),
        (
            '{"token": ["a"], "subj_start": 0, "subj_end": 0, "obj_start": 1, "obj_end": 1, "relation": "x"}',
            "words 1 to 1 lies outside",
        ),
    ],
)
def test_broken_relations(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        RelationClassification.read(tmp_path / "a.txt", RelationOptions())


def test_question_forms(tmp_path: Path) -> None:
    squad = {
        "version": "v2.0",
        "data": [
            {
                "title": "x",
                "paragraphs": [
                    {
                        "context": "Tokyo is a city.",
                        "qas": [
                            {"id": "1", "question": "What?", "answers": [{"text": "a city", "answer_start": 9}]},
                            {"id": "2", "question": "Who?", "answers": [], "is_impossible": True},
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    questions = QuestionAnswering.read(tmp_path / "squad.json", QuestionAnsweringOptions())
    assert [(question.id, question.answers) for question in questions] == [("1", ((9, "a city"),)), ("2", ())]
    row = {"question": "What?", "context": "Tokyo is.", "answers": [{"text": "Tokyo", "start": 1}]}
    with pytest.raises(UserError, match=r"example 1: the answer 'Tokyo' does not stand at 1 of the context, but 'okyo '"):
        QuestionAnswering.read(write_lines(tmp_path / "a.jsonl", [row]), QuestionAnsweringOptions())


def test_cloze_forms(tmp_path: Path) -> None:
    record = {
        "data": [
            {
                "passage": {"text": "Tom met Ann.", "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}]},
                "qas": [{"id": "1", "query": "@placeholder met Ann", "answers": [{"start": 0, "end": 2, "text": "Tom"}]}],
            }
        ]
    }
    (tmp_path / "record.json").write_text(json.dumps(record))
    example = Cloze.read(tmp_path / "record.json", TaskOptions())[0]
    assert [example.text[slice(*span)] for span in example.candidates] == ["Tom", "Ann"] and example.answers == ("Tom",)
    for row, message in (
        ({"text": "a", "entities": [{"start": 0, "end": 1}], "query": "none"}, "must hold @placeholder once"),
        ({"text": "a", "entities": [], "query": "@placeholder"}, "has no entities"),
    ):
        with pytest.raises(UserError, match=message):
            Cloze.read(write_lines(tmp_path / "b.jsonl", [row]), TaskOptions())


def test_text_forms(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", [{"text": "a", "text_pair": "b", "label": 1}])
    (tmp_path / "a.tsv").write_text("label\ttext\ttext_pair\n1\ta\tb\n")
    for path in (lines, tmp_path / "a.tsv"):
        example = TextClassification.read(path, TaskOptions())[0]
        assert (example.text, example.pair, example.label) == ("a", "b", "1")
    (tmp_path / "b.tsv").write_text("label\ttext\n1\ta\n1\n")
    with pytest.raises(UserError, match=r"b.tsv, line 3: 1 columns where line 1 names 2"):
        TextClassification.read(tmp_path / "b.tsv", TaskOptions())
    with pytest.raises(UserError, match="some examples have a text_pair and some have none"):
        TextClassification.read(
            write_lines(tmp_path / "c.jsonl", [{"text": "a"}, {"text": "a", "text_pair": "b"}]), TaskOptions()
        )


@pytest.mark.parametrize(
    ("task", "options"),
    [(EntityTyping, EntityTypingOptions()), (RelationClassification, RelationOptions()), (Cloze, TaskOptions())],
)
def test_missing_and_empty_files(tmp_path: Path, task: type[Task[Any, Any]], options: Any) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        task.read(tmp_path / "none.jsonl", options)
    (tmp_path / "empty.jsonl").write_text("[]")
    with pytest.raises(UserError, match="holds no examples"):
        task.read(tmp_path / "empty.jsonl", options)


def test_long_texts_are_cropped_around_their_mentions(tmp_path: Path) -> None:
    processor = LukeProcessor(load_tokenizer(write_tokenizer("word-piece", tmp_path)))
    text = "tokyo is far. " * 30 + "Aristotle was born in Stagira" + " tokyo is far." * 30
    spans = [(text.index("Aristotle"), text.index("Aristotle") + 9), (text.index("Stagira"), text.index("Stagira") + 7)]
    cropped, inside = crop_around(processor, text, spans, 60)
    assert [cropped[slice(*span)] for span in inside] == ["Aristotle", "Stagira"]
    assert 50 < len(processor(cropped).inputs["input_ids"][0]) - 2 <= 60
    before = cropped.index("Aristotle")
    assert before > 40 and len(cropped) - cropped.index("Stagira") > 40
    assert crop_around(processor, text, spans, 10**6) == (text, spans)
    start = crop_around(processor, text, [(0, 5)], 20)
    assert start[1] == [(0, 5)] and text.startswith(start[0])


@shared
def test_shared_files_are_read() -> None:
    relations = RelationClassification.read(DATA / "re" / "fewrel" / "val_wiki.json", RelationOptions())
    assert len(relations) == 11200 and len(RelationClassification.labels_of(relations)) == 16
    assert parts(relations[0])[:2] == ("Cape Girardeau Bridge", "Mississippi River")
    for language in ("en", "de", "vi"):
        questions = QuestionAnswering.read(DATA / "qa" / "xquad" / f"xquad.{language}.json", QuestionAnsweringOptions())
        assert len(questions) == 1190
