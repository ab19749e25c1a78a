"""The processor against transformers' LUKE tokenizers, and where it differs from them on purpose."""

import json
import random
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, LukeTokenizer, MLukeTokenizer, PreTrainedTokenizer

import luke
from luke.errors import UserError
from luke.processor import LukeProcessor, Span
from luke.tokenization import load_tokenizer
from tests.tiny_bases import make_base
from tests.tokenizers import KINDS, TEXT, write_tokenizer

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "Tokyo": 3, "ja:東京": 4, "[MASK2]": 5}
CASES = 2000


def make_folder(kind: str, folder: Path) -> Path:
    """A tokenizer with the word tokens of LUKE, and an entity vocabulary."""
    family = {"byte-bpe": "roberta", "unigram": "xlm-roberta", "word-piece": "bert"}[kind]
    make_base(family, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<ent>", "<ent2>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    (folder / "entity_vocab.json").write_text(json.dumps(VOCABULARY))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: make_folder(kind, root / kind) for kind in ("byte-bpe", "unigram", "word-piece")}


def reference(kind: str, folder: Path, task: str | None) -> Any:
    """transformers' tokenizer with the same vocabulary."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    markers = {token["content"]: token["id"] for token in added}
    if kind == "byte-bpe":
        tokenizer = LukeTokenizer(
            vocab=model["vocab"],
            merges=[tuple(merge) for merge in model["merges"]],
            entity_vocab=VOCABULARY,
            task=task,
        )
    else:
        from tokenizers import AddedToken

        special = {name: AddedToken(f"<{name}>", normalized=False, special=True) for name in ("ent", "ent2", "mask")}
        tokenizer = MLukeTokenizer(
            vocab=[tuple(piece) for piece in model["vocab"]],
            entity_vocab=VOCABULARY,
            task=task,
            entity_1_token=special["ent"],
            entity_2_token=special["ent2"],
            mask_token=special["mask"],
        )
    if not hasattr(tokenizer, "truncate_sequences"):
        # transformers 5 calls it without having it: with entities its truncation ends in an AttributeError.
        tokenizer.truncate_sequences = MethodType(PreTrainedTokenizer.truncate_sequences, tokenizer)
    assert [tokenizer.convert_tokens_to_ids(token) for token in ("<ent>", "<ent2>")] == [markers["<ent>"], markers["<ent2>"]]
    return tokenizer


ALPHABET = [*"abcdeTokyo Athens's 1,234.-@#(é東京ō", " ", " ", " the", " of", " Tokyo", "\u2013"]


def random_case(generator: random.Random, kind: str, count: int) -> tuple[str, list[Span]]:
    """A text and spans in it; for `unigram` only of characters that its model knows and without runs of spaces."""
    if kind == "unigram":
        words = [word for line in TEXT[:2] for word in line.split() if word.isascii()]
        words = [word.strip(";,.") for word in words if word.isalpha()]
        text = " ".join(generator.choice(words) for _ in range(generator.randint(3, 40)))
    else:
        text = "".join(generator.choice(ALPHABET) for _ in range(generator.randint(8, 160)))
    spans: list[Span] = []
    while len(spans) < count:
        start = generator.randrange(len(text))
        end = min(len(text), start + generator.randint(1, 20))
        if text[start:end].strip() == text[start:end] and text[start:end]:
            spans.append((start, end))
    return text, spans


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram"])
@pytest.mark.parametrize("task", [None, "entity_classification", "entity_pair_classification", "entity_span_classification"])
def test_equals_transformers(folders: dict[str, Path], kind: str, task: Any) -> None:
    processor = LukeProcessor.from_pretrained(folders[kind], task=task)
    tokenizer = reference(kind, folders[kind], task)
    generator = random.Random(f"{kind} {task}")
    for number in range(CASES // 4):
        count = {"entity_classification": 1, "entity_pair_classification": 2}.get(task, generator.randint(1, 9))
        text, spans = random_case(generator, kind, count)
        if task == "entity_pair_classification":
            spans.sort()
            if spans[0][1] > spans[1][0]:
                spans = [spans[0], (len(text) - 1, len(text))]
                if spans[0][1] >= len(text) or text[-1] == " ":
                    continue
            generator.shuffle(spans)
        titles = [generator.choice(["Tokyo", "ja:東京", "nobody", "[MASK]"]) for _ in spans] if task is None else None
        pair = random_case(generator, kind, 2) if task is None and number % 2 else None
        length = generator.choice([None, None, 24, 40])
        theirs = tokenizer(
            text,
            pair[0] if pair else None,
            entity_spans=spans,
            entity_spans_pair=pair[1] if pair else None,
            entities=titles,
            entities_pair=["Tokyo", "nobody"] if pair else None,
            max_length=length,
            truncation=length is not None,
            return_tensors="np",
        )
        ours = processor(
            text,
            pair[0] if pair else None,
            spans=spans,
            spans_pair=pair[1] if pair else None,
            entities=titles,
            entities_pair=["Tokyo", "nobody"] if pair else None,
            max_length=length,
            return_tensors="np",
        )
        assert set(ours.inputs) == set(theirs)
        for name, value in ours.inputs.items():
            expected = theirs[name]
            if name.startswith("entity") and expected.size == 0:
                assert value.size == 0
            else:
                np.testing.assert_array_equal(value, expected, err_msg=f"{name} of {text!r} {spans}")
        kept = len(spans) + (2 if pair else 0) - len(ours.dropped_spans[0])
        assert kept == ours.inputs["entity_ids"].shape[1]


def test_batches_are_padded_as_transformers_pads(folders: dict[str, Path]) -> None:
    generator = random.Random(5)
    cases = [random_case(generator, "byte-bpe", count) for count in (1, 4, 2, 7)]
    texts, spans = [text for text, _ in cases], [spans for _, spans in cases]
    tokenizer = reference("byte-bpe", folders["byte-bpe"], None)
    processor = LukeProcessor.from_pretrained(folders["byte-bpe"])
    for options in ({"padding": "longest"}, {"padding": "max_length", "max_length": 200}, {"pad_to_multiple_of": 8}):
        # Without entities transformers answers from another code path, so spans are always given.
        theirs = tokenizer(texts, entity_spans=spans, return_tensors="np", **{"padding": "longest", **options})
        ours = processor(texts, spans=spans, return_tensors="np", **options)
        for name in theirs:
            np.testing.assert_array_equal(ours.inputs[name], theirs[name], err_msg=name)


def test_batch_equals_single_texts(folders: dict[str, Path]) -> None:
    generator = random.Random(6)
    processor = LukeProcessor.from_pretrained(folders["word-piece"])
    cases = [random_case(generator, "word-piece", 3) for _ in range(20)]
    batch = processor([text for text, _ in cases], spans=[spans for _, spans in cases])
    for row, (text, spans) in enumerate(cases):
        alone = processor(text, spans=spans)
        words = int(batch.inputs["attention_mask"][row].sum())
        assert batch.inputs["input_ids"][row, :words].tolist() == alone.inputs["input_ids"][0].tolist()
        assert batch.inputs["entity_position_ids"][row].tolist() == alone.inputs["entity_position_ids"][0].tolist()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.text(alphabet=st.sampled_from([*"ab 's<mask>\u0301\u3000\t\n\x1c\x85é東."]), max_size=30),
)
def test_words_looked_up_are_the_texts_tokens(tmp_path_factory: pytest.TempPathFactory, kind: str, text: str) -> None:
    folder = tmp_path_factory.getbasetemp() / f"kinds-{kind}"
    if not folder.exists():
        write_tokenizer(kind, folder)
    processor = LukeProcessor(load_tokenizer(folder))
    expected = processor._backend.encode(text, add_special_tokens=False).ids
    assert processor(text).inputs["input_ids"][0, 1:-1].tolist() == expected


def test_offsets_lead_back_to_characters(folders: dict[str, Path]) -> None:
    text = "Tokyo is the  capital of Ōta-ku, 東京."
    for kind, folder in folders.items():
        processor = LukeProcessor.from_pretrained(folder)
        span = (text.index("capital"), text.index(" of"))
        result = processor("the bay", text, spans=[], spans_pair=[span])
        row = result.rows[0]
        positions = [p for p in result.inputs["entity_position_ids"][0, 0].tolist() if p >= 0]
        assert row.characters(positions[0], positions[-1] + 1) == span, kind
        assert row.characters(1, 3)[0] == 0
        assert (row.offsets[0].tolist(), row.offsets[-1].tolist()) == ([0, 0], [0, 0])


def test_windows_overlap_and_keep_whole_mentions(folders: dict[str, Path]) -> None:
    processor = LukeProcessor.from_pretrained(folders["word-piece"])
    text = " ".join(["tokyo"] * 50)
    single = len(processor("tokyo").inputs["input_ids"][0]) - 2
    spans = [(6 * i, 6 * i + 5) for i in range(50)]
    result = processor(text, spans=spans, max_length=20 * single + 2, windows=True, stride=5 * single, max_entity_length=99)
    assert len(result.rows) == 3
    assert [row.spans[0] for row in result.rows] == [0, 15, 30]
    assert sorted({number for row in result.rows for number in row.spans}) == list(range(50))
    assert result.dropped_spans == [[]]
    for row, info in enumerate(result.rows):
        for column, number in enumerate(info.spans):
            positions = [p for p in result.inputs["entity_position_ids"][row, column].tolist() if p >= 0]
            assert info.characters(positions[0], positions[-1] + 1) == spans[number]


def test_windows_of_a_pair_cut_the_second_text(folders: dict[str, Path]) -> None:
    processor = LukeProcessor.from_pretrained(folders["byte-bpe"])
    question, context = "Where is Tokyo?", "Tokyo is the capital of Japan. " * 6
    whole = processor(question, context)
    result = processor(question, context, spans=[(9, 14)], spans_pair=[(0, 5)], max_length=40, windows=True, stride=4)
    heads = {tuple(row[: result.rows[0].second_start].tolist()) for row in result.inputs["input_ids"]}
    assert len(heads) == 1 and len(result.rows) > 2
    seen = {place for info in result.rows for place in info.offsets[info.second_start :, 0].tolist()}
    assert seen >= set(whole.rows[0].offsets[whole.rows[0].second_start :, 0].tolist())
    assert [info.spans for info in result.rows] == [[0, 1]] + [[0]] * (len(result.rows) - 1)


def test_spans_that_fall_off_are_reported(folders: dict[str, Path]) -> None:
    processor = LukeProcessor.from_pretrained(folders["byte-bpe"])
    text = "Tokyo is the capital of Japan. " * 4
    spans = [(0, 5), (24, 29), (117, 122)]
    assert processor(text, spans=spans).dropped_spans == [[]]
    assert processor(text, spans=spans, max_length=20).dropped_spans == [[2]]
    assert processor(text, spans=spans, max_entity_length=1).dropped_spans == [[1, 2]]


def test_entities_by_title_and_language(folders: dict[str, Path]) -> None:
    processor = LukeProcessor.from_pretrained(folders["byte-bpe"])
    ids = processor("Tokyo 東京 x", spans=[(0, 5), (6, 8), (9, 10)], entities=["Tokyo", "東京", "x"], language="ja")
    assert ids.inputs["entity_ids"].tolist() == [[3, 4, 1]]


def test_token_types_when_asked_for(folders: dict[str, Path]) -> None:
    processor = LukeProcessor.from_pretrained(folders["word-piece"])
    theirs = AutoTokenizer.from_pretrained(folders["word-piece"])("the bay", "of Tokyo", return_tensors="np")
    ours = processor("the bay", "of Tokyo", return_token_type_ids=True, return_tensors="np")
    for name in theirs:
        np.testing.assert_array_equal(ours.inputs[name], theirs[name])


@pytest.mark.parametrize("kind", ["byte-bpe", "unigram", "word-piece"])
def test_saved_folder_is_read_by_both(folders: dict[str, Path], kind: str, tmp_path: Path) -> None:
    text, spans = "Tokyo is the capital of Japan", [(0, 5)]
    processor = LukeProcessor.from_pretrained(folders[kind])
    processor.save_pretrained(tmp_path / "saved")
    again = LukeProcessor.from_pretrained(tmp_path / "saved")
    assert again(text, spans=spans).inputs["input_ids"].equal(processor(text, spans=spans).inputs["input_ids"])
    assert again.entity_vocab == VOCABULARY
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs(text)["input_ids"] == processor(text).inputs["input_ids"][0].tolist()


# -- faults of transformers' tokenizers that are not repeated ----------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 11), (6, 11)], "<ent> tokyo <ent2> japan <ent2> <ent>"),
        ([(6, 11), (0, 11)], "<ent2> tokyo <ent> japan <ent> <ent2>"),
        ([(0, 5), (0, 11)], "<ent2> <ent> tokyo <ent> japan <ent2>"),
        ([(0, 5), (6, 11)], "<ent> tokyo <ent> <ent2> japan <ent2>"),
    ],
)
def test_nested_mentions_are_marked_in_pairs(folders: dict[str, Path], spans: list[Span], expected: str) -> None:
    """LukeTokenizer puts the markers of nested mentions at the wrong tokens."""
    processor = LukeProcessor.from_pretrained(folders["word-piece"], task="entity_pair_classification")
    result = processor("tokyo japan", spans=spans)
    ids, decode = result.inputs["input_ids"][0].tolist(), processor.tokenizer.decode
    assert decode(ids[1:-1]) == expected
    for (start, end), positions in zip(spans, result.inputs["entity_position_ids"][0].tolist(), strict=True):
        inside = decode([ids[p] for p in positions if p >= 0])
        assert inside.replace("<ent> ", "").replace("<ent2> ", "").startswith("tokyo japan"[start:end])
        assert inside.split()[0] == inside.split()[-1]


def test_entity_tokens_are_no_words(folders: dict[str, Path], tmp_path: Path) -> None:
    """MLukeTokenizer adds [MASK], [PAD]… of the entity vocabulary as words with ids that no word table has."""
    theirs = reference("unigram", folders["unigram"], None)
    assert max(theirs("[MASK] [UNK]")["input_ids"]) >= theirs.convert_tokens_to_ids("<ent2>")
    theirs.save_pretrained(tmp_path)
    (tmp_path / "entity_vocab.json").write_text(json.dumps(VOCABULARY))
    processor = LukeProcessor.from_pretrained(tmp_path)
    assert processor("[MASK] [UNK]").inputs["input_ids"].max() <= theirs.convert_tokens_to_ids("<ent2>")


def test_unknown_pieces_are_unknown(folders: dict[str, Path]) -> None:
    """MLukeTokenizer alone answers with the id of <s> for them when it is called without entities."""
    processor = LukeProcessor.from_pretrained(folders["unigram"])
    unknown = processor.tokenizer.unk_id
    assert unknown in processor("ж").inputs["input_ids"][0].tolist()
    assert processor("ж").inputs["input_ids"][0].tolist().count(processor.tokenizer.cls_id) == 1


@pytest.mark.parametrize(
    ("text", "span", "message"),
    [
        ("Tokyo", (2, 2), r"the span \(2, 2\) is empty"),
        ("Tokyo", (3, 2), r"the span \(3, 2\) is empty"),
        ("Tokyo", (0, 6), r"lies outside a text of 5 characters"),
        ("Tokyo", (-1, 3), r"lies outside a text of 5 characters"),
        ("cafe\u0301 x", (0, 4), r"a span border at 4 cuts"),
        ("👩\u200d👧 x", (0, 1), r"a span border at 1 cuts"),
    ],
)
def test_bad_spans_are_refused(folders: dict[str, Path], text: str, span: Span, message: str) -> None:
    with pytest.raises(UserError, match=message):
        LukeProcessor.from_pretrained(folders["byte-bpe"])(text, spans=[span])


def test_mismatched_arguments_are_refused(folders: dict[str, Path]) -> None:
    processor = LukeProcessor.from_pretrained(folders["byte-bpe"])
    with pytest.raises(UserError, match="2 spans but 1 entities"):
        processor("Tokyo", spans=[(0, 1), (1, 2)], entities=["Tokyo"])
    with pytest.raises(UserError, match="2 texts but 1 lists of spans"):
        processor(["a", "b"], spans=[[]])
    with pytest.raises(UserError, match="takes 2 spans a text, not 1"):
        processor("Tokyo", spans=[(0, 1)], task="entity_pair_classification")
    with pytest.raises(UserError, match="need the spans"):
        processor("Tokyo", entities=["Tokyo"])
    with pytest.raises(UserError, match="must exceed the stride"):
        processor("Tokyo is the capital", max_length=6, windows=True, stride=4)


def test_luke_offers_the_processor() -> None:
    assert luke.LukeProcessor is LukeProcessor
