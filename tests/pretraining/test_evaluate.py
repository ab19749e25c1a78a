"""Held-out figures: ranks, baselines counted by hand, and what an evaluation says it was made from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from luke.commands.evaluate_pretraining import command
from luke.entity_vocab import EntityVocab
from luke.errors import UserError
from luke.pretraining.dataset import Item, PretrainingDataset
from luke.pretraining.evaluate import EvaluationOptions, LinkBaselines, Ranking, evaluate_to_file
from luke.pretraining.masking import MaskingOptions
from luke.pretraining.report import read_evaluation
from luke.tokenization import load_tokenizer, tokenizer_fingerprint

from ..tiny_bases import make_base
from .items import random_item, write_dataset

ENTITIES = 30


def test_rank_figures() -> None:
    figures = Ranking([1, 2, 5, 10]).figures()
    assert figures == {
        "accuracy_at_1": 0.25,
        "accuracy_at_5": 0.75,
        "mean_reciprocal_rank": pytest.approx((1 + 1 / 2 + 1 / 5 + 1 / 10) / 4),
    }


def linked_item(links: list[tuple[int, int]]) -> Item:
    """An item of one-token anchors: (word id, entity id) each."""
    words, entities = (np.array(column, np.uint16) for column in zip(*links, strict=True))
    starts = np.arange(len(links), dtype=np.uint16)
    return Item(-1, words, entities, starts, starts + np.uint16(1))


def test_baselines_are_counted_from_links(tmp_path: Path) -> None:
    # Word 7 links to 5 twice and to 4 once; 6 is linked most, always by word 9. Entity 1 is [UNK].
    links = [(7, 5), (7, 5), (7, 4), (9, 6), (9, 6), (9, 6), (9, 1), (7, 1)]
    folder = write_dataset(tmp_path / "d", [linked_item(links[:4]), linked_item(links[4:])])
    baselines = LinkBaselines(PretrainingDataset(folder))
    assert [baselines.most_frequent_rank(entity, 20) for entity in (6, 5, 4, 8)] == [1, 2, 3, 20]
    # What word 7 linked to comes first; then the rest by frequency, without those already named.
    assert [baselines.same_anchor_rank((7,), entity, 20) for entity in (5, 4, 6, 8)] == [1, 2, 3, 20]
    assert baselines.same_anchor_rank((9,), 5, 20) == 2
    assert baselines.same_anchor_rank((8,), 6, 20) == 1  # an anchor never seen: by frequency


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base and a dataset of random items in its tokenizer, some held out."""
    folder = tmp_path_factory.mktemp("evaluation")
    make_base("bert", folder / "base", max_position_embeddings=64)
    tokenizer = load_tokenizer(folder / "base")
    rng = np.random.default_rng(0)
    items = [random_item(rng, 20, 4, tokenizer.vocab_size, ENTITIES) for _ in range(12)]
    titles = ["[PAD]", "[UNK]", "[MASK]", *(f"Entity {number}" for number in range(ENTITIES - 3))]
    vocabulary = folder / "entity_vocab.jsonl"
    vocabulary.write_text(
        "".join(json.dumps({"id": n, "entities": [[title, None]], "count": 0}) + "\n" for n, title in enumerate(titles))
    )
    dataset = write_dataset(
        folder / "dataset",
        items,
        word_vocab_size=tokenizer.vocab_size,
        entity_vocab_size=ENTITIES,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        entity_vocab_fingerprint=EntityVocab(vocabulary).fingerprint,
    )
    write_dataset(dataset / "held_out", items[:5])
    tokenizer.save(dataset / "tokenizer")
    (dataset / "entity_vocab.jsonl").write_bytes(vocabulary.read_bytes())
    return folder


def options_for(work: Path, **changes: Any) -> EvaluationOptions:
    return replace(EvaluationOptions(work / "dataset", bert_model_name=str(work / "base"), passes=2, examples=3), **changes)


def test_evaluation_is_what_the_report_reads(work: Path, tmp_path: Path) -> None:
    result = evaluate_to_file(options_for(work), tmp_path / "new" / "before.json")
    assert read_evaluation(tmp_path / "new" / "before.json") == result
    # 2 passes over 5 items of 20 words and 4 entities: 3 words and at most 1 entity of each.
    assert result["masked_words"]["count"] == 2 * 5 * 3
    assert 0 < result["masked_entities"]["count"] <= 2 * 5
    assert len(result["examples"]) == 3
    assert all(len(example["best"]) == 5 for example in result["examples"])
    assert not {"[PAD]", "[UNK]", "[MASK]"} & {entity for example in result["examples"] for entity in example["best"]}


def test_same_evaluation_is_not_made_again(work: Path, tmp_path: Path) -> None:
    output = tmp_path / "before.json"
    first = evaluate_to_file(options_for(work), output)
    # Were it made again, this mark would be gone.
    marked = {**first, "mark": True}
    output.write_text(json.dumps(marked), encoding="utf-8")
    assert evaluate_to_file(options_for(work), output) == marked


@pytest.mark.parametrize(
    "changes", [{"passes": 1}, {"seed": 1}, {"examples": 4}, {"masking": MaskingOptions(masked_entity_prob=0.3)}]
)
def test_other_evaluation_is_not_overwritten(work: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    output = tmp_path / "before.json"
    evaluate_to_file(options_for(work), output)
    before = output.read_bytes()
    with pytest.raises(
        UserError, match=r"before\.json: already holds an evaluation of another model or dataset, or with other"
    ):
        evaluate_to_file(options_for(work, **changes), output)
    assert output.read_bytes() == before


def test_file_of_another_kind_is_not_overwritten(work: Path, tmp_path: Path) -> None:
    output = tmp_path / "notes.json"
    output.write_text("[1]", encoding="utf-8")
    with pytest.raises(UserError, match=r"notes\.json: exists and holds something else"):
        evaluate_to_file(options_for(work), output)
    with pytest.raises(UserError, match=r"notes\.json is not a folder"):
        evaluate_to_file(options_for(work), output / "x.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --checkpoint, or --bert-model-name"),
        (["--bert-model-name", "b", "--checkpoint", "c"], "give --checkpoint, or --bert-model-name"),
        (["--bert-model-name", "b", "--masked-lm-prob", "0"], "--masked-lm-prob 0: both words and entities"),
        (["--bert-model-name", "b", "--masked-entity-prob", "2"], "--masked-entity-prob 2.0: must lie between 0 and 1"),
        (["--bert-model-name", "b", "--passes", "0"], "--passes must be positive"),
        (["--checkpoint", "nowhere"], "--checkpoint nowhere: neither a checkpoint nor a run's output folder"),
    ],
)
def test_options_are_checked(work: Path, tmp_path: Path, words: list[str], message: str) -> None:
    output = tmp_path / "o.json"
    done = CliRunner().invoke(command, ["--dataset-dir", str(work / "dataset"), *words, "--output", str(output)])
    assert isinstance(done.exception, UserError) and message in str(done.exception)
    assert not output.exists()


def test_command_prints_a_table(work: Path, tmp_path: Path) -> None:
    words = ["--dataset-dir", str(work / "dataset"), "--bert-model-name", str(work / "base"), "--passes", "1"]
    done = CliRunner().invoke(command, [*words, "--output", str(tmp_path / "o.json")])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))
    assert f"{result['masked_words']['loss']:.3f}" in done.output
    assert f"{result['baselines']['same_anchor']['mean_reciprocal_rank']:.3f}" in done.output
