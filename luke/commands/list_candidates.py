"""``luke list-candidates``."""

from pathlib import Path
from typing import Any

import click

from luke.commands.evaluate_ed import read_options


@click.command()
@click.argument("benchmarks", metavar="DATA...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--candidates", type=click.Path(path_type=Path), help="A candidate table; else the benchmark's candidates.")
@read_options
@click.option("--max-candidates", type=int, default=30, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The file of titles, one a line.")
def command(benchmarks: tuple[Path, ...], candidates: Path | None, max_candidates: int, output: Path, **read: Any) -> None:
    """Writes the titles of all candidates of benchmarks: the white list of the vocabulary that a model for them needs."""
    from luke.entity_disambiguation.benchmark_files import ReadOptions, list_candidates

    number = list_candidates(benchmarks, ReadOptions(**read), candidates, max_candidates, output)
    click.echo(f"{output}: {number:,} titles")
