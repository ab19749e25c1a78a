"""Vocabularies of several languages become one, and datasets of several languages are trained on together."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from luke.entity_vocab import EntityVocab
from luke.errors import UserError
from luke.multilingual import MultilingualRecipe
from luke.multilingual_vocab import MultilingualOptions, build_multilingual_entity_vocab
from luke.pretraining.dataset import PretrainingDataset
from tests.command_line import refused, run_luke
from tests.corpus.test_interwiki import entity
from tests.tiny_bases import make_base

LINKED = {
    "en": {"Tokyo": 5, "Athens": 3, "Sea": 1, "Only English": 9},
    "ja": {"東京": 4, "アテネ": 2, "Sea": 7},
    "el": {"Τόκιο": 1, "Αθήνα": 6},
}
ITEMS = [
    entity("Q1490", enwiki="Tokyo", jawiki="東京", elwiki="Τόκιο"),
    entity("Q1524", enwiki="Athens", jawiki="アテネ", elwiki="Αθήνα"),
    entity("Q165", enwiki="Sea", jawiki="海"),  # the Japanese title "Sea" is another page than the English
]
SENTENCE = "the old harbour of {} lies on the wide bay of the sea"


def page_xml(title: str, number: int, text: str) -> str:
    return (
        f"<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><id>1</id><model>wikitext</model>"
        f"<format>text/x-wiki</format><text>{text}</text></revision></page>"
    )


def write_dump(folder: Path, language: str) -> None:
    pages = [page_xml(title, number, "nothing here") for number, title in enumerate(LINKED[language], 1)]
    text = "\n\n".join(SENTENCE.format(f"[[{title}]]") for title, count in LINKED[language].items() for _ in range(count))
    pages.append(page_xml("Links", 99, text))
    xml = (
        f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="{language}"><siteinfo>'
        f"<dbname>{language}wiki</dbname><case>first-letter</case><namespaces>"
        '<namespace key="0" case="first-letter"/><namespace key="14" case="first-letter">Category</namespace>'
        f"</namespaces></siteinfo>{''.join(pages)}</mediawiki>"
    )
    (folder / f"{language}wiki-20260101-pages-articles.xml").write_text(xml, encoding="utf-8")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("languages")
    (root / "dumps").mkdir()
    for language in LINKED:
        write_dump(root / "dumps", language)
    (root / "wikidata.json").write_text("\n".join(json.dumps(item) for item in ITEMS))
    make_base("xlm-roberta", root / "base", max_position_embeddings=70)
    result = run_luke(*command(root))
    assert result.returncode == 0, result.stderr
    return root


def command(root: Path, *options: object) -> list[object]:
    return [
        *("build-multilingual", "--languages", "en,ja,el", "--dumps", root / "dumps", "--wikidata", root / "wikidata.json"),
        *("--tokenizer", root / "base", "--output", root / "out", "--min-num-languages", 2, "--workers", 1),
        *("--max-seq-length", 64, *options),
    ]


def entries(path: Path) -> list[tuple[Any, int]]:
    return [(entry["entities"], entry["count"]) for entry in map(json.loads, path.read_text().splitlines())]


def test_titles_of_one_item_share_an_id(built: Path) -> None:
    assert entries(built / "out" / "entity_vocab.jsonl") == [
        *(([[token, None]], 0) for token in ("[PAD]", "[UNK]", "[MASK]")),
        ([["Αθήνα", "el"], ["Athens", "en"], ["アテネ", "ja"]], 11),
        ([["Τόκιο", "el"], ["Tokyo", "en"], ["東京", "ja"]], 10),
    ]
    vocabulary = EntityVocab(built / "out" / "entity_vocab.jsonl")
    assert vocabulary.get_id("東京", "ja") == vocabulary.get_id("Tokyo", "en") == 4
    assert vocabulary.get_id("Tokyo", "ja") is None and vocabulary.get_title(4, "el") == "Τόκιο"


def test_one_language_is_enough_where_asked_for(built: Path, tmp_path: Path) -> None:
    vocabs = [built / "out" / language / "entity_vocab.jsonl" for language in ("en", "ja")]
    build_multilingual_entity_vocab(vocabs, built / "out" / "interwiki", tmp_path / "v", MultilingualOptions(7, 1))
    assert entries(tmp_path / "v")[3:] == [
        ([["Only English", "en"]], 9),  # equal in count: by language and title
        ([["Tokyo", "en"], ["東京", "ja"]], 9),
        ([["Sea", "ja"]], 7),
        ([["Athens", "en"], ["アテネ", "ja"]], 5),
    ]


def test_items_carry_the_entities_of_their_language(built: Path) -> None:
    for language, counts in LINKED.items():
        dataset = PretrainingDataset(built / "out" / language / "dataset")
        assert dataset.metadata["language"] == language
        found = [int(entity_id) for row in range(len(dataset)) for entity_id in dataset[row].entity_ids]
        vocabulary = EntityVocab(built / "out" / "entity_vocab.jsonl")
        due = {vocabulary.get_id(title, language): count for title, count in counts.items()}
        assert {number: found.count(number) for number in set(found)} == {k: v for k, v in due.items() if k is not None}


def test_finished_steps_are_kept(built: Path) -> None:
    def state() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (built / "out").rglob("*") if path.is_file()}

    before = state()
    assert run_luke(*command(built)).returncode == 0
    assert state() == before
    other = run_luke(*command(built, "--vocab-size", 4))
    assert other.returncode == 2 and state() == before
    assert "entity_vocab.jsonl: already holds a vocabulary made with other options or input" in other.stderr


def test_training_mixes_the_datasets(built: Path) -> None:
    settings = {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    }
    (built / "ds.json").write_text(json.dumps(settings))
    arguments = ("--dataset-dir", built / "out" / "*" / "dataset", "--bert-model-name", built / "base")
    result = run_luke(
        *("pretrain", "--deepspeed-config-file", built / "ds.json", *arguments, "--output-dir", built / "run"),
        *("--worker-log-dir", built / "logs", "--num-epochs", 1, "--max-train-steps", 3),
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in (built / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines][-1] == 3


def test_items_too_long_for_the_base_are_refused(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built / "base", tmp_path / "short")
    config = json.loads((tmp_path / "short" / "config.json").read_text())
    (tmp_path / "short" / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 40}))
    line = refused(
        *("pretrain", "--deepspeed-config-file", built / "ds.json", "--dataset-dir", built / "out" / "el" / "dataset"),
        *("--bert-model-name", tmp_path / "short", "--output-dir", tmp_path / "run", "--dry-run"),
        leaving=tmp_path / "run",
    )
    assert "its items have up to 64 words, but the base model" in line and "reads 38" in line


def test_dumps_are_found_by_language(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text("{}")

    def recipe(pattern: str | None = None) -> list[str]:
        made = MultilingualRecipe(("ja",), tmp_path, pattern, tmp_path / "w.json", "t", tmp_path / "o", None)
        return [path.name for path in made.dump_files("ja")]

    with pytest.raises(UserError, match="no dump of the language ja there"):
        recipe()
    parts = [f"jawiki-20260101-pages-articles{part}.xml-p{part}p9.bz2" for part in (1, 2)]
    for name in [*parts, "jawiki-20260101-pages-articles-multistream.xml.bz2", "jawiki-mine.xml"]:
        (tmp_path / name).touch()
    assert recipe() == parts
    assert recipe("{language}wiki-mine.xml") == ["jawiki-mine.xml"]
    (tmp_path / "jawiki-20260101-pages-articles.xml.bz2").touch()
    assert recipe() == ["jawiki-20260101-pages-articles.xml.bz2"]
    (tmp_path / "jawiki-20251201-pages-articles.xml.bz2").touch()
    with pytest.raises(UserError, match=r"dumps of several dates of ja: jawiki-20251201, jawiki-20260101; keep one"):
        recipe()
    with pytest.raises(UserError, match=r"has no \{language\} in it"):
        recipe("jawiki*")


def test_vocabularies_that_do_not_fit_are_named(built: Path, tmp_path: Path) -> None:
    english, interwiki = built / "out" / "en" / "entity_vocab.jsonl", built / "out" / "interwiki"
    plain = tmp_path / "plain.jsonl"
    assert run_luke("build-entity-vocab", built / "out" / "en" / "pages", plain).returncode == 0
    for vocabs, message in (
        ([english, plain], "plain.jsonl: its titles have no language; build it with --language"),
        ([english, english], "are both of the language en"),
        ([english, tmp_path / "none"], "none: no such vocabulary file"),
        ([english], "no entity has a title in 3 of the languages; lower --min-num-languages"),
    ):
        options = [word for vocab in vocabs for word in ("-v", vocab)]
        output = tmp_path / "v"
        line = refused("build-multilingual-entity-vocab", *options, "-i", interwiki, "-o", output, leaving=output)
        assert message in line
