"""``luke evaluate-ed``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path)


def read_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how benchmarks are read."""
    for option in reversed(
        (
            click.option(
                "--format",
                "form",
                type=click.Choice(["auto", "mulrel", "aida", "json-lines", "nif", "pages"]),
                default="auto",
                show_default=True,
                help="Form of the benchmarks; auto goes by the names.",
            ),
            click.option("--part", type=click.Choice(["train", "testa", "testb", "all"]), default="all", show_default=True),
            click.option("--text-file", type=_PATH, help="The mulrel-nel form's text file. [default: the one beside]"),
            click.option("--persons", type=_PATH, help="Titles of persons, for the mulrel-nel form's coreferences."),
            click.option("--ppr-for-ned-dir", type=_PATH, help="Take PPRforNED's candidates."),
            click.option("--titles-file", type=_PATH, help="Titles of articles, one a line: others are no right entities."),
            click.option("--redirects-file", type=_PATH, help="Redirects, source TAB target a line."),
            click.option("--titles-db", type=_PATH, help="Instead of both: a page store."),
            click.option("--wikidata-titles", type=_PATH, help="Wikidata item TAB title a line, for benchmarks of items."),
            click.option("--held-out-fraction", type=float, default=0.0, help="Of a page store: only the pages held out."),
        )
    ):
        function = option(function)
    return function


@click.command()
@click.argument("benchmarks", metavar="DATA...", type=_PATH, nargs=-1, required=True)
@click.option("--model", "--model-dir", type=_PATH, help="The model's folder. Without it the highest prior is evaluated.")
@click.option("--candidates", type=_PATH, help="A candidate table (luke build-candidates); else the benchmark's candidates.")
@read_options
@click.option(
    "--inference", "--inference-mode", type=click.Choice(["local", "global", "beam"]), default="global", show_default=True
)
@click.option("--beam-size", type=int, default=4, show_default=True)
@click.option(
    "--split",
    "--document-split-mode",
    type=click.Choice(["simple", "per_mention"]),
    default="simple",
    show_default=True,
    help="Long documents: even parts, or a window around each mention.",
)
@click.option("--max-seq-length", type=int, default=512, show_default=True)
@click.option("--max-entity-length", type=int, default=128, show_default=True)
@click.option("--max-mention-length", type=int, default=30, show_default=True)
@click.option("--max-candidates", "--max-candidate-length", type=int, default=30, show_default=True)
@click.option("--language", help="Language of the vocabulary's titles, if it has several.")
@click.option("--token-budget", type=int, default=8192, show_default=True, help="Tokens of a batch: speed and memory only.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--output", type=_PATH, help="Write the figures as JSON.")
@click.option("--html", type=_PATH, help="Write a page with every document, right and wrong links coloured.")
def command(
    benchmarks: tuple[Path, ...],
    model: Path | None,
    candidates: Path | None,
    inference: str,
    beam_size: int,
    split: str,
    max_seq_length: int,
    max_entity_length: int,
    max_mention_length: int,
    max_candidates: int,
    language: str | None,
    token_budget: int,
    device: str,
    output: Path | None,
    html: Path | None,
    **read: Any,
) -> None:
    """Evaluates entity disambiguation on benchmarks: the mulrel-nel form, AIDA's own, JSON lines (plain, BLINK, ZELDA,
    ELEVANT), NIF, or a page store's links."""
    from luke.entity_disambiguation.benchmark_files import ReadOptions
    from luke.entity_disambiguation.evaluate import EvaluationOptions, evaluate, print_result
    from luke.entity_disambiguation.inference import InferenceOptions
    from luke.entity_disambiguation.windows import WindowOptions

    windows = WindowOptions(split, max_seq_length, max_entity_length, max_mention_length, max_candidates, language)
    how = InferenceOptions(inference, beam_size, windows, token_budget)
    result = evaluate(benchmarks, EvaluationOptions(model, ReadOptions(**read), how, candidates, device), output, html)
    for name, found in result["benchmarks"].items():
        report = found["read"]
        click.echo(f"{name}: {report['documents']:,} documents, {report['mentions']:,} mentions, {report['kept']:,} kept")
        for reason, number in report["dropped"].items():
            click.echo(f"  dropped {number:,}: {reason}")
        for note, number in report["notes"].items():
            click.echo(f"  {number:,} {note}")
    print_result(result)
