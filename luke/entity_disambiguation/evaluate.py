"""Benchmarks through a model: figures as JSON, a table for the terminal, and a page that shows every link."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from luke.artifacts import fingerprint_file, fingerprint_folder, metadata_path, write_json
from luke.entity_disambiguation.benchmark_files import ReadOptions, read_benchmark
from luke.entity_disambiguation.candidate_table import CandidateTable, with_table_candidates
from luke.entity_disambiguation.documents import Collection
from luke.entity_disambiguation.inference import Disambiguator, InferenceOptions, Prediction
from luke.entity_disambiguation.metrics import figures, outcomes
from luke.pretraining.allocator import keep_freed_memory

_PERCENT = ("micro_f1", "accuracy", "macro_accuracy", "candidate_recall", "prior_accuracy")


@dataclass(frozen=True)
class EvaluationOptions:
    """What is evaluated, and how.

    Attributes:
        model: A model's folder; None evaluates the highest prior alone.
        candidates: A candidate table, whose candidates take the place of the benchmark's.
        device: Where the model runs.
        seed: Of the bootstrap.
    """

    model: Path | None
    read: ReadOptions = field(default_factory=ReadOptions)
    inference: InferenceOptions = field(default_factory=InferenceOptions)
    candidates: Path | None = None
    device: str = "cpu"
    seed: int = 0


def evaluate(
    benchmarks: Sequence[Path], options: EvaluationOptions, output: Path | None = None, html: Path | None = None
) -> dict[str, Any]:
    """Evaluates a model on benchmarks, and writes the figures to ``output`` (JSON) and the links to ``html``.

    Returns:
        The figures: ``{"benchmarks": {name: …}, "made_from": …}``.
    """
    from luke.entity_disambiguation.evaluation_page import write_page

    collections = {str(path): read_benchmark(path, options.read) for path in benchmarks}
    limit = options.inference.windows.max_candidates
    if options.candidates is not None:
        table = CandidateTable(options.candidates)
        collections = {name: with_table_candidates(found, table, limit) for name, found in collections.items()}
    keep_freed_memory()
    disambiguator = Disambiguator.from_pretrained(options.model, options.device) if options.model else None
    results, answers = {}, {}
    for name, collection in collections.items():
        begin = time.perf_counter()
        answers[name] = _answers(collection, disambiguator, options)
        seconds = time.perf_counter() - begin
        results[name] = {
            **_figures(collection, answers[name], disambiguator, options),
            "seconds": round(seconds, 3),
            "read": collection.report.as_dict(),
        }
    result = {"benchmarks": results, "made_from": _made_from(benchmarks, options)}
    if output is not None:
        write_json(output, result)
    if html is not None:
        write_page(html, collections, answers, results)
    return result


def _answers(
    collection: Collection, disambiguator: Disambiguator | None, options: EvaluationOptions
) -> list[list[Prediction]]:
    if disambiguator is not None:
        return disambiguator.predict(collection.documents, options.inference, show_progress=True)
    return [
        [
            Prediction(0, mention.candidates[0].title, mention.candidates[0].prior)
            if mention.candidates
            else Prediction(None, None, 0.0)
            for mention in document.mentions
        ]
        for document in collection.documents
    ]


def _figures(
    collection: Collection,
    answers: Sequence[Sequence[Prediction]],
    disambiguator: Disambiguator | None,
    options: EvaluationOptions,
) -> dict[str, Any]:
    links = None
    if disambiguator is not None:
        vocab = disambiguator.vocab
        titles = vocab.titles(options.inference.windows.language)
        links = {title: vocab.counts[entity_id] for title, entity_id in titles.items()}
    titles_answered = [[prediction.title for prediction in row] for row in answers]
    limit = options.inference.windows.max_candidates
    return figures(outcomes(collection.documents, titles_answered, links, limit), options.seed)


def _made_from(benchmarks: Sequence[Path], options: EvaluationOptions) -> dict[str, Any]:
    paths = {
        "model": options.model,
        "candidates": options.candidates,
        **{f"benchmark {n}": p for n, p in enumerate(benchmarks)},
    }
    inputs = {
        name: {"path": str(path), "fingerprint": _fingerprint(path)} for name, path in paths.items() if path is not None
    }
    described = {"read": asdict(options.read), "inference": asdict(options.inference), "seed": options.seed}
    return {"options": _plain(described), "inputs": inputs}


def _fingerprint(path: Path) -> str:
    if not path.is_dir():
        return fingerprint_file(path)
    metadata = metadata_path(path)
    if metadata.exists():
        return str(json.loads(metadata.read_text(encoding="utf-8"))["fingerprint"])
    return fingerprint_folder(path)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return str(value) if isinstance(value, Path) else value


def print_result(result: dict[str, Any]) -> None:
    """A table of the benchmarks on the terminal, intervals below each figure's name."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if Console().is_terminal else 160)
    table = Table(
        "benchmark", "mentions", "micro F1", "in-KB accuracy", "macro", "candidate recall", "prior baseline", "ambiguous"
    )
    for name, found in result["benchmarks"].items():
        cells = [_with_interval(found, figure) for figure in _PERCENT]
        table.add_row(Path(name).name, f"{found['mentions']:,}", *cells, _ambiguous(found["ambiguous"]))
    console.print(table)
    for title, key in (("by type", "by_type"), ("by links of the right entity", "by_frequency")):
        for name, found in result["benchmarks"].items():
            if found[key]:
                console.print(_detail(f"{Path(name).name}, {title}", found[key]))


def _with_interval(found: dict[str, Any], figure: str) -> str:
    text = f"{100 * found[figure]:.1f}"
    if found["intervals"]:
        low, high = found["intervals"][figure]
        text += f" [{100 * low:.1f}, {100 * high:.1f}]"
    return text


def _ambiguous(found: dict[str, Any]) -> str:
    return f"{_with_interval(found, 'accuracy')}, prior {100 * found['prior_accuracy']:.1f} ({found['mentions']:,})"


def _detail(title: str, groups: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("", "mentions", "accuracy", "candidate recall", "prior baseline", title=title)
    for name, found in groups.items():
        cells = [f"{100 * found[figure]:.1f}" for figure in ("accuracy", "candidate_recall", "prior_accuracy")]
        table.add_row(name, f"{found['mentions']:,}", *cells)
    return table
