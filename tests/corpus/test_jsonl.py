"""People's own corpora -> page store: both forms, every way a line can be bad, aliases, and a knowledge base end to end."""

import bz2
import json
from pathlib import Path
from typing import Any

import pytest

from luke.corpus.jsonl import CorpusOptions, build_corpus_db, parse_record
from luke.corpus.page_store import Link, Page, PageStore, Paragraph, read_pages
from luke.corpus.record_store import BadRecordError
from luke.corpus.streams import Line
from luke.entity_vocab import EntityVocab
from luke.errors import UserError
from luke.pretraining.dataset import PretrainingDataset
from luke.tokenization import load_tokenizer
from tests.command_line import refused, run_luke
from tests.tokenizers import write_tokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "domain_knowledge_base"


def write_lines(path: Path, *entries: Any) -> Path:
    """Strings are lines as they stand."""
    lines = [entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False) for entry in entries]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def stored(folder: Path) -> list[Page]:
    return [page for file in PageStore(folder).page_files for page in read_pages(file)]


def parse(entry: Any) -> Page:
    data = entry if isinstance(entry, bytes) else json.dumps(entry).encode()
    record = parse_record(Line("folder/corpus.jsonl", 7, data))
    assert record is not None
    return record.page


def test_a_page_with_paragraphs() -> None:
    links = [{"start": 6, "end": 8, "title": " p53 "}, {"start": 0, "end": 1, "title": "😀"}]
    entry = {
        "title": "x y",
        "page_id": 12,
        "paragraphs": [{"text": "😀 and p5", "links": links}, {"text": "z", "abstract": False}],
    }
    assert parse(entry) == Page(
        "x y", 12, [Paragraph("😀 and p5", True, [Link("😀", 0, 1), Link("p53", 6, 8)]), Paragraph("z", False)]
    )


def test_a_text_with_entities_is_named_by_its_place() -> None:
    entry = {"text": "a b", "entities": [{"start": 2, "end": 3, "title": "B"}]}
    assert parse(entry) == Page("corpus.jsonl:7", 7, [Paragraph("a b", True, [Link("B", 2, 3)])])


def text(*entities: Any, **more: Any) -> dict[str, Any]:
    return {"text": "abc  d", "entities": list(entities), **more}


BAD: list[tuple[Any, str]] = [
    (b"{", "not JSON"),
    (b"\xff", "not JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"text": "\\ud800"}', "half a surrogate pair"),
    ([], "the line is [], not an object"),
    ({"title": "a"}, 'neither "paragraphs" nor "text"'),
    ({"title": 3, "text": "a"}, '"title" is 3, not a title'),
    ({"title": "  ", "text": "a"}, "not a title"),
    ({"title": "a", "paragraphs": {}}, '"paragraphs" is {}, not a list'),
    ({"title": "a", "paragraphs": ["x"]}, 'paragraph 1 is "x", not an object'),
    ({"title": "a", "paragraphs": [{"text": "b"}, {}]}, 'paragraph 2: "text" is missing'),
    ({"title": "a", "paragraphs": [{"text": "b", "abstract": 1}]}, '"abstract" is 1, not true or false'),
    ({"title": "a", "paragraphs": [{"text": "b", "links": 0}]}, 'paragraph 1: "links" is 0, not a list'),
    (text(3), "the text, link 1 is 3, not an object"),
    (text({"start": 0, "end": 7, "title": "t"}), "[0, 7) does not lie in its text of 6 characters"),
    (text({"start": -1, "end": 1, "title": "t"}), "[-1, 1) does not lie"),
    (text({"start": 2, "end": 2, "title": "t"}), "[2, 2) does not lie"),
    (text({"start": 0.0, "end": 1, "title": "t"}), "are 0.0 and 1, not two whole numbers"),
    (text({"start": True, "end": 2, "title": "t"}), "are true and 2, not two whole numbers"),
    (text({"start": 1, "title": "t"}), "are 1 and missing, not two"),
    (text({"start": 3, "end": 5, "title": "t"}), "[3, 5) holds nothing but white space"),
    (text({"start": 0, "end": 1, "title": "t"}, {"start": 0, "end": 1}), 'link 2: "title" is missing, not a title'),
    (text(page_id="Q1"), '"page_id" is "Q1", not a whole number'),
    (text(page_id=2**63), "not a whole number"),
]


@pytest.mark.parametrize(("entry", "reason"), BAD)
def test_bad_record(entry: Any, reason: str) -> None:
    with pytest.raises(BadRecordError) as caught:
        parse(entry)
    assert reason in str(caught.value)


def test_each_bad_line_is_named_with_its_number_and_reason(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "c.jsonl", text(), "", text({"start": 9, "end": 10, "title": "t"}), text(), "{")
    line = refused("build-corpus-db", corpus, tmp_path / "out", leaving=tmp_path / "out")
    assert f"{corpus}, line 3: the text, link 1: [9, 10) does not lie in its text of 6 characters" in line
    assert f"{corpus}, line 5: not JSON" in line and "--skip-bad" in line


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "c.jsonl", *["{"] * 50)
    with pytest.raises(UserError, match=r"line 20: not JSON[^;]*; and 30 more\."):
        build_corpus_db([corpus], tmp_path / "out", CorpusOptions())


def test_skip_bad_counts_and_lists_them(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "c.jsonl", text(), "{", text(), "3")
    result = run_luke("build-corpus-db", corpus, tmp_path / "out", "--skip-bad", "--workers", 1)
    assert result.returncode == 0 and "2 pages" in result.stdout and "2 bad lines left out" in result.stdout
    assert PageStore(tmp_path / "out").metadata["counts"]["skipped"] == 2
    skipped = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [(entry["line"], entry["reason"][:10]) for entry in skipped] == [(2, "not JSON: "), (4, "the line i")]
    assert [page.page_id for page in stored(tmp_path / "out")] == [1, 3]


def test_nothing_but_bad_lines(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "c.jsonl", "{", "{")
    with pytest.raises(UserError, match=r"holds no page \(its 2 lines are bad\)"):
        build_corpus_db([corpus], tmp_path / "out", CorpusOptions(skip_bad=True))


def test_several_files_workers_and_compression_do_not_change_the_result(tmp_path: Path) -> None:
    entries = [text({"start": 0, "end": 3, "title": f"t{n}"}, title=f"p{n}", text="abc " * 2000) for n in range(400)]
    corpus = write_lines(tmp_path / "c.jsonl", *entries)
    (tmp_path / "b1.jsonl.bz2").write_bytes(bz2.compress(corpus.read_bytes()))
    for output, workers in (("one", 1), ("two", 2)):
        build_corpus_db([corpus], tmp_path / output, CorpusOptions(), workers)
    one, two = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two and "pages-00002.parquet" in one
    build_corpus_db([tmp_path / "b1.jsonl.bz2", corpus], tmp_path / "both", CorpusOptions(), 1)
    assert [page.title for page in stored(tmp_path / "both")] == [f"p{n}" for n in range(400)] * 2


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_aliases(tmp_path: Path, form: str) -> None:
    pairs = [("T2DM", "Type 2 diabetes"), ("DM2", "T2DM")]
    lines = [f"{a}\t{t}" for a, t in pairs] if form == "tsv" else [{"alias": a, "title": t} for a, t in pairs]
    aliases = write_lines(tmp_path / "aliases", *lines)
    corpus = write_lines(tmp_path / "c.jsonl", text(title="Type 2 diabetes"))
    build_corpus_db([corpus], tmp_path / "out", CorpusOptions(aliases=aliases))
    assert PageStore(tmp_path / "out").redirects() == {"T2DM": "Type 2 diabetes", "DM2": "Type 2 diabetes"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [("a b", "has 1 columns"), ("a\tb\tc", "has 3 columns"), ("\tb", "the alias is"), ('{"alias": "a"}', "title")],
)
def test_bad_aliases(tmp_path: Path, line: str, reason: str) -> None:
    aliases = write_lines(tmp_path / "aliases.tsv", "a\tb", line)
    corpus = write_lines(tmp_path / "c.jsonl", text())
    message = refused("build-corpus-db", corpus, tmp_path / "out", "--aliases", aliases, leaving=tmp_path / "out")
    assert "aliases.tsv, line 2" in message and reason in message


def test_missing_files(tmp_path: Path) -> None:
    assert "no such" in refused("build-corpus-db", tmp_path / "no.jsonl", tmp_path / "out", leaving=tmp_path / "out")
    message = refused("build-corpus-db", tmp_path / "*.jsonl", tmp_path / "out", leaving=tmp_path / "out")
    assert "no file matches this pattern" in message


def test_a_domain_knowledge_base_end_to_end(tmp_path: Path) -> None:
    """The commands of docs/corpora.md: text and aliases -> store -> vocabulary -> dataset."""
    tokenizer = write_tokenizer("byte-bpe", tmp_path / "tokenizer")
    commands: list[tuple[object, ...]] = [
        ("build-corpus-db", EXAMPLE / "corpus.jsonl", "kb", "--aliases", EXAMPLE / "aliases.tsv", "--language", "en"),
        ("build-entity-vocab", "kb", "vocab.jsonl", "--allow-missing-pages", "--min-count", 2),
        ("build-wikipedia-pretraining-dataset", "kb", tokenizer, "vocab.jsonl", "dataset", "--workers", 1),
    ]
    for command in commands:
        inside = [tmp_path / word if word in ("kb", "vocab.jsonl", "dataset") else word for word in command]
        result = run_luke(*inside)
        assert result.returncode == 0, result.stderr
    vocabulary = EntityVocab(tmp_path / "vocab.jsonl")
    titles = dict(zip((vocabulary.get_title(n) for n in range(len(vocabulary))), vocabulary.counts, strict=True))
    # Glucose and the liver have no page; Glucophage and T2DM count for what they are names of; p53 is linked once.
    assert titles == {
        "[PAD]": 0, "[UNK]": 0, "[MASK]": 0, "Insulin": 5, "Glucose": 4, "Hypoglycaemia": 3, "Liver": 4, "Metformin": 4,
        "Glucagon": 2, "Pancreas": 2, "Type 2 diabetes": 2,
    }  # fmt: skip
    words = load_tokenizer(str(tokenizer))
    dataset = PretrainingDataset(tmp_path / "dataset")
    mentions = {
        (vocabulary.get_title(int(entity)), words.decode(item.word_ids[start:end].tolist()).strip())
        for item in (dataset[n] for n in range(len(dataset)))
        for entity, start, end in zip(item.entity_ids, item.entity_starts, item.entity_ends, strict=True)
    }
    assert {("Type 2 diabetes", "T2DM"), ("Metformin", "Glucophage"), ("Glucose", "glucose")} <= mentions
