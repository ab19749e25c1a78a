"""Columns and tags, windows, pruning, decoding, and a tiny model that learns to find names."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score

from luke.errors import UserError
from luke.tasks.conll import read_columns, spans_of_tags, tags_of_spans
from luke.tasks.metrics import span_metrics
from luke.tasks.ner import NamedEntityRecognition, NerOptions, split_words
from luke.tasks.span_decoding import ScoredSpan, exact, greedy
from luke.tasks.span_pruning import SpanPruner, word_shape
from luke.tasks.training import FineTuning, evaluate, fine_tune, load_fine_tuned, load_processor, predict
from tests.tasks.tiny_models import make_luke, make_plain, write_lines

WNUT = Path(__file__).parents[3] / "shared" / "data" / "ner" / "wnut17" / "wnut17train.conll"


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("I-A I-A B-A O", [(0, 2, "A"), (2, 3, "A")]),  # IOB1
        ("B-A I-A B-A O", [(0, 2, "A"), (2, 3, "A")]),  # IOB2
        ("B-A E-A S-A O", [(0, 2, "A"), (2, 3, "A")]),  # BIOES
        ("B-A L-A U-A O", [(0, 2, "A"), (2, 3, "A")]),  # BILOU
        ("I-A I-B O I-B", [(0, 1, "A"), (1, 2, "B"), (3, 4, "B")]),  # IO
        ("O O", []),
        ("S-A S-A", [(0, 1, "A"), (1, 2, "A")]),
        ("B-A E-A I-A", [(0, 2, "A"), (2, 3, "A")]),
    ],
)
def test_tags_of_every_scheme(tags: str, spans: list[Any]) -> None:
    assert spans_of_tags(tags.split()) == spans


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), max_size=8))
def test_tags_as_seqeval_reads_them(tags: list[str]) -> None:
    from seqeval.metrics.sequence_labeling import get_entities

    assert spans_of_tags(tags) == [(start, end + 1, label) for label, start, end in get_entities(tags)]


def test_metrics_equal_seqeval() -> None:
    generator = random.Random(2)
    gold, found = (
        [[generator.choice(["O", "O", "B-A", "I-A", "B-B"]) for _ in range(9)] for _ in range(50)] for _ in range(2)
    )
    ours = span_metrics([spans_of_tags(tags) for tags in gold], [spans_of_tags(tags) for tags in found])
    for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        assert ours[name] == pytest.approx(score(gold, found))
    for label in "AB":
        only = [[[tag if tag.endswith(label) else "O" for tag in tags] for tags in side] for side in (gold, found)]
        assert ours[f"f1_{label}"] == pytest.approx(f1_score(*only))


def test_columns(tmp_path: Path) -> None:
    path = tmp_path / "dev.txt"
    path.write_text("-DOCSTART- O\n\nWolff B-PER\nin O\n\n\nMadrid B-LOC\n-DOCSTART- O\n\nyes O\n", encoding="utf-8")
    assert list(read_columns(path, "utf-8")) == [
        (1, ["Wolff", "in"], ["B-PER", "O"]),
        (1, ["Madrid"], ["B-LOC"]),
        (2, ["yes"], ["O"]),
    ]
    path.write_bytes("Coruña B-LOC\n".encode("latin-1"))
    assert list(read_columns(path, "latin-1")) == [(0, ["Coruña"], ["B-LOC"])]
    with pytest.raises(UserError, match=r"dev.txt, line 1: not utf-8; name the encoding"):
        list(read_columns(path, "utf-8"))
    path.write_text("a b O\nc O\n")
    with pytest.raises(UserError, match=r"dev.txt, line 2: 2 columns where the lines above have 3"):
        list(read_columns(path, "utf-8"))
    path.write_text("a O\nc PER\n")
    with pytest.raises(UserError, match=r"dev.txt, line 2: the last column, 'PER', is not a tag"):
        list(read_columns(path, "utf-8"))


def test_words_of_texts() -> None:
    def words(text: str, *borders: int) -> list[str]:
        return [text[start:end] for start, end in split_words(text, set(borders))]

    assert words("New-York isn't far.") == ["New", "-", "York", "isn", "'", "t", "far", "."]
    assert words("東京は日本") == list("東京は日本")
    assert words("cafe\u0301 नई") == ["cafe\u0301", "नई"]
    assert words("preTokyo", 3) == ["pre", "Tokyo"]


def test_lines_and_their_mistakes(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl", [{"text": "in preTokyo", "entities": [{"start": 6, "end": 11, "label": "LOC"}]}]
    )
    sentence = NamedEntityRecognition.read(path, NerOptions())[0]
    assert sentence.forms() == ["in", "pre", "Tokyo"] and sentence.entities == {(2, 3, "LOC")}
    entity = {"start": 0, "end": 2, "label": "A"}
    for row, message in (
        ({"text": "in", "entities": [entity, {**entity, "label": "B"}]}, "a span has two labels"),
        ({"text": "in", "entities": [{"start": 1, "end": 1, "label": "A"}]}, r"the span \(1, 1\) is empty"),
        ({"text": "in", "entities": [{"start": 1}]}, "no 'end' in it; due is"),
    ):
        with pytest.raises(UserError, match=f"example 1: {message}"):
            NamedEntityRecognition.read(write_lines(tmp_path / "b.jsonl", [row]), NerOptions())


# -- decoding ----------------------------------------------------------------------------------------------------------


def scored(start: int, end: int, gain: float, log_probability: float = -1.0) -> ScoredSpan:
    return ScoredSpan(start, end, "A", log_probability, gain)


def test_greedy_takes_the_most_probable_first() -> None:
    spans = [scored(0, 3, 2.0, -0.1), scored(0, 1, 1.5, -0.2), scored(2, 4, 1.5, -0.2), scored(5, 6, -1.0, -0.01)]
    assert [(s.start, s.end) for s in greedy(spans)] == [(0, 3)]
    assert [(s.start, s.end) for s in exact(spans)] == [(0, 1), (2, 4)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4), st.integers(-4, 9)), max_size=9))
def test_exact_is_the_best_of_all_sets(rows: list[tuple[int, int, int]]) -> None:
    spans = [scored(start, start + length, gain) for start, length, gain in rows]

    def fits(chosen: tuple[ScoredSpan, ...]) -> bool:
        return all(a.end <= b.start or b.end <= a.start for a, b in itertools.combinations(chosen, 2))

    sets = (chosen for size in range(len(spans) + 1) for chosen in itertools.combinations(spans, size) if fits(chosen))
    best = max(sum(span.gain for span in chosen) for chosen in sets)
    found = exact(spans)
    assert fits(tuple(found)) and sum(span.gain for span in found) == best
    assert found == sorted(found, key=lambda s: s.end)


# -- pruning -----------------------------------------------------------------------------------------------------------


def test_word_shapes() -> None:
    assert [word_shape(word) for word in ("McDonald's", "USA", "3rd", "@paul_1")] == ["XxXx'x", "X", "0x", "@x_0"]


def names(count: int, seed: int) -> list[tuple[list[str], list[tuple[int, int, str]]]]:
    generator = random.Random(seed)
    sentences = []
    for _ in range(count):
        words = [generator.choice(["the", "of", "sees", "and", "bay"]) for _ in range(8)]
        start = generator.randrange(6)
        name = [generator.choice(["Tokyo", "Athens", "Pella"]) for _ in range(generator.randint(1, 2))]
        words[start : start + len(name)] = name
        sentences.append((words, [(start, start + len(name), "LOC")]))
    return sentences


def test_pruning_keeps_mentions_and_little_else(tmp_path: Path) -> None:
    pruner = SpanPruner()
    pruner.fit(names(200, 1), 0.03)
    kept = total = right = 0
    for words, spans in names(50, 2):
        keep = pruner.keep(words)
        right += sum(int(keep[start, end - 1]) for start, end, _ in spans)
        kept, total = kept + int(np.triu(keep).sum()), total + 36
    assert kept < total / 5 and right >= 46
    cautious = SpanPruner()
    cautious.fit(names(20, 1), 0.01)  # too few mentions to promise one lost in a hundred
    assert cautious.keep(words).all()
    pruner.save(tmp_path)
    again = SpanPruner.load(tmp_path)
    words = names(1, 3)[0][0]
    assert (again.keep(words) == pruner.keep(words)).all()


# -- windows and the model ---------------------------------------------------------------------------------------------


def write_columns(
    path: Path, sentences: list[tuple[list[str], list[tuple[int, int, str]]]], documents: bool = False
) -> Path:
    lines = ["-DOCSTART- O\n"] if documents else []
    for words, spans in sentences:
        lines += [f"{word} {tag}" for word, tag in zip(words, tags_of_spans(len(words), spans), strict=True)] + [""]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ner")
    make_luke(root / "luke", use_entity_aware_attention=True)
    make_plain(root / "plain")
    write_columns(root / "train.txt", names(200, 1))
    write_columns(root / "dev.txt", names(20, 2))
    write_columns(root / "documents.txt", names(20, 2), documents=True)
    return root


def make_task(folder: Path, **options: Any) -> NamedEntityRecognition:
    return NamedEntityRecognition(NerOptions(**options), load_processor(folder / "luke"), ["NIL", "LOC"])


def test_all_short_spans_are_candidates(folder: Path) -> None:
    task = make_task(folder, max_span_words=3, pruning=0.0)
    sentence = task.read(folder / "dev.txt", task.options)[0]
    assert task.candidates(sentence, False) == [(i, j) for i in range(8) for j in range(i + 1, min(i + 3, 8) + 1)]


def test_windows_hold_sentences_of_one_document(folder: Path) -> None:
    task = make_task(folder, pruning=0.0, max_span_words=2, max_length=100)
    alone = task.units(task.read(folder / "dev.txt", task.options), False)
    assert len(alone) == 20 and all(len(unit.targets) == 1 for unit in alone)
    sentences = task.read(folder / "documents.txt", task.options)
    together = task.units(sentences, False)
    assert len(together) < 10
    assert [target.sentence for unit in together for target in unit.targets] == list(range(20))
    for unit in together:
        assert len(task.processor(unit.text).inputs["input_ids"][0]) <= 100
        for target in unit.targets:
            for (start, end), (low, high) in zip(target.spans, target.characters, strict=True):
                assert unit.text[low:high].split() == sentences[target.sentence].forms()[start:end]
    assert len(make_task(folder, pruning=0.0, max_span_words=2, context=False).units(sentences, False)) == 20


def test_long_sentences_lose_no_span(folder: Path) -> None:
    task = make_task(folder, pruning=0.0, max_span_words=4, max_length=20)
    words = [f"bay{number}" for number in range(40)]
    text = " ".join(words)
    sentence = task.read(write_lines(folder / "long.jsonl", [{"text": text, "entities": []}]), task.options)[0]
    units = task.units([sentence], False)
    spans = {span for unit in units for target in unit.targets for span in target.spans}
    assert spans >= {(i, j) for i in range(40) for j in range(i + 1, min(i + 3, 40) + 1)} and len(units) > 2
    assert all(len(task.processor(unit.text).inputs["input_ids"][0]) <= 20 for unit in units)


@pytest.mark.parametrize("base", ["luke", "plain"])
def test_a_tiny_model_finds_names(folder: Path, tmp_path: Path, base: str) -> None:
    how = FineTuning(learning_rate=5e-3, batch_size=8, epochs=8, micro_batch_size=8)
    metrics = fine_tune(
        "ner", str(folder / base), folder / "train.txt", folder / "dev.txt", tmp_path / "out", how, pruning=0.05
    )
    assert metrics["f1"] > 0.8
    tuned = load_fine_tuned(tmp_path / "out", "ner")
    assert evaluate(tuned, folder / "dev.txt") == metrics
    without = evaluate(load_fine_tuned(tmp_path / "out", "ner", pruning=0.0), folder / "dev.txt")
    assert without["f1"] < metrics["f1"], "what pruning leaves out is what so small a model gets wrong"
    sentences = names(20, 3)
    new = write_lines(tmp_path / "new.jsonl", [{"text": " ".join(words)} for words, _ in sentences])
    predict(tuned, new, tmp_path / "p.jsonl")
    lines = list(map(json.loads, (tmp_path / "p.jsonl").read_text().splitlines()))
    found = [[line["text"][e["start"] : e["end"]] for e in line["entities"]] for line in lines]
    due = [[" ".join(words[start:end]) for start, end, _ in spans] for words, spans in sentences]
    assert sum(map(list.__eq__, found, due)) >= 15


def test_decoding_option_changes_the_decoder(folder: Path) -> None:
    with pytest.raises(UserError, match="--decoding beam: not one of greedy, exact"):
        NerOptions(decoding="beam")


@pytest.mark.skipif(not WNUT.exists(), reason="the shared files are not here")
def test_reads_wnut17() -> None:
    sentences = NamedEntityRecognition.read(WNUT, NerOptions())
    assert len(sentences) == 3394 and sum(len(sentence.words) for sentence in sentences) == 62730
    assert NamedEntityRecognition.labels_of(sentences) == [
        *("NIL", "corporation", "creative-work", "group", "location", "person", "product")
    ]
