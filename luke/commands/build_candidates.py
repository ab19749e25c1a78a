"""``luke build-candidates``."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("dump_db", metavar="DB", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--min-links", type=int, default=1, show_default=True, help="Links that an anchor needs to an entity.")
@click.option("--max-candidates", type=int, default=100, show_default=True, help="Entities kept for an anchor.")
@click.option(
    "--max-anchor-tokens",
    type=int,
    default=20,
    show_default=True,
    help="Longest anchor looked for in texts, spaces counted.",
)
@click.option("--allow-missing-pages", is_flag=True, help="Keep link targets without a page, as in a partial dump.")
@click.option(
    "--held-out-fraction", type=float, default=0.0, show_default=True, help="Leave out these pages, as the dataset."
)
@click.option("--disambiguation-suffix", help="Ending of disambiguation pages' titles in a language that is not known.")
@click.option("--workers", type=int, help="Processes. [default: one a CPU]")
def command(dump_db: Path, output: Path, workers: int | None, **options: Any) -> None:
    """Makes the candidate table OUT of the page store DB: anchor text -> entities, with priors and link probabilities."""
    from luke.entity_disambiguation.build_candidates import CandidateOptions, build_candidates

    metadata = build_candidates(dump_db, output, CandidateOptions(**options), workers)
    counts = metadata["counts"]
    click.echo(f"{output}: {counts['anchors']:,} anchor texts, {counts['entities']:,} entities")
