"""evaluate-ed and list-candidates from the command line, on a tiny model: figures, JSON, the page of links."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from luke.artifacts import StagedFolder
from luke.corpus.page_store import Link, Page, Paragraph
from luke.entity_disambiguation.benchmark_files import ReadOptions, write_json_lines
from luke.entity_disambiguation.convert import DisambiguationParts, save_parts
from luke.entity_disambiguation.documents import Candidate, Collection, Document, Mention, ReadReport
from luke.entity_disambiguation.evaluate import EvaluationOptions, evaluate
from luke.entity_disambiguation.evaluation_page import marked_parts
from luke.entity_disambiguation.inference import Prediction

from ..command_line import refused, run_luke
from ..golden_pages import write_page_store
from .tiny_disambiguators import make_disambiguator, random_document


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder and a benchmark."""
    folder = tmp_path_factory.mktemp("evaluation")
    made = make_disambiguator(folder)
    with StagedFolder(folder / "model", "entity-disambiguation-model", {"options": {}, "inputs": {}}) as stage:
        save_parts(DisambiguationParts(made.model, made.tokenizer, made.vocab), stage.work)
        stage.finish()
    documents = [random_document(np.random.default_rng(n), 20, 8, f"document <{n}>") for n in range(5)]
    write_json_lines(Collection(documents, ReadReport()), folder / "benchmark.jsonl")
    return folder


def test_figures_and_page(work: Path) -> None:
    done = run_luke(
        "evaluate-ed", work / "benchmark.jsonl", "--model", work / "model", "--output", work / "figures.json",
        "--html", work / "page.html",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "5 documents, 40 mentions, 40 kept" in done.stdout and "micro F1" in done.stdout
    result = json.loads((work / "figures.json").read_text())
    (found,) = result["benchmarks"].values()
    assert found["mentions"] == 40 and 0 < found["accuracy"] < found["candidate_recall"] <= 1
    assert found["read"]["mentions"] == 40 and set(result["made_from"]["inputs"]) == {"model", "benchmark 0"}
    page = (work / "page.html").read_text()
    assert page.count('<mark class="right"') - 1 == round(40 * found["accuracy"])
    assert page.count("<details") == 5 and "document &lt;0&gt;" in page


def test_without_a_model_the_prior_is_evaluated(work: Path) -> None:
    result = evaluate([work / "benchmark.jsonl"], EvaluationOptions(None), None, None)
    (found,) = result["benchmarks"].values()
    assert found["accuracy"] == found["prior_accuracy"] > 0 and found["gain_over_prior"] == 0


def test_candidates_of_a_table(work: Path) -> None:
    text = "Aristotle and Plato met Aristotle."
    links = [Link("Entity 1", 0, 9), Link("Entity 2", 24, 33)]
    store = write_page_store(work / "db", [Page("P", 1, [Paragraph(text, True, links)])], {})
    built = run_luke("build-candidates", store, work / "table", "--allow-missing-pages", "--workers", 1)
    assert built.returncode == 0, built.stderr
    document = Document("d", "Plato knew ARISTOTLE", [Mention(0, 5, "Plato"), Mention(11, 20, "Entity 2")])
    write_json_lines(Collection([document], ReadReport()), work / "bare.jsonl")
    options = EvaluationOptions(None, candidates=work / "table")
    (found,) = evaluate([work / "bare.jsonl"], options, None, None)["benchmarks"].values()
    assert found["candidate_recall"] == 0.5
    listed = run_luke(
        "list-candidates", work / "bare.jsonl", "--candidates", work / "table", "--output", work / "titles.txt"
    )
    assert listed.returncode == 0 and (work / "titles.txt").read_text() == "Entity 1\nEntity 2\n"
    message = refused("list-candidates", work / "bare.jsonl", "--output", work / "none.txt", leaving=work / "none.txt")
    assert "--candidates" in message


def test_what_does_not_fit_is_named(work: Path) -> None:
    assert "not found" in refused("evaluate-ed", work / "missing.jsonl", leaving=work / "unwritten")
    bad = refused("evaluate-ed", work / "benchmark.jsonl", "--model", work / "nothing", leaving=work / "unwritten")
    assert "convert-checkpoint" in bad


def test_parts_of_a_text() -> None:
    text = "New York City is in New York"
    candidates = [Candidate("A", 1.0)]
    mentions = [Mention(0, 13, "A", candidates), Mention(0, 8, "B", candidates), Mention(20, 28, "C")]
    answers = [Prediction(0, "A", 0.9), Prediction(0, "A", 0.8), Prediction(None, None, 0.0)]
    parts = marked_parts(Document("d", text, mentions), answers)
    assert [(part["text"], part["kind"]) for part in parts] == [
        ("New York City", "right"), ("New York", "wrong"), (" is in ", ""), ("New York", "none"), ("", ""),
    ]  # fmt: skip
    assert re.sub(r"New York$", "", "".join(p["text"] for p in parts if not p.get("nested"))) == text[:20]


def test_read_options_reach_the_reader(work: Path) -> None:
    (work / "titles.txt").write_text("Entity 1\nEntity 2\n")
    options = EvaluationOptions(None, ReadOptions(titles_file=work / "titles.txt"))
    (found,) = evaluate([work / "benchmark.jsonl"], options, None, None)["benchmarks"].values()
    assert found["mentions"] < 40 and sum(found["read"]["dropped"].values()) == 40 - found["mentions"]
