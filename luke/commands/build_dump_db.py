"""``luke build-dump-db``."""

from pathlib import Path

import click


@click.command()
@click.argument("dump", metavar="DUMP", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--workers", "--pool-size", type=click.IntRange(min=1), help="Processes. [default: one a CPU]")
def command(dump: Path, output: Path, workers: int | None) -> None:
    """Makes the page store OUT from DUMP, a pages-articles dump (.xml, .bz2 or .gz) of a Wikipedia."""
    from luke.corpus.wikipedia_dump import build_dump_db

    metadata = build_dump_db(dump, output, workers)
    counts = metadata["counts"]
    click.echo(f"{output}: {counts['pages']:,} pages, {counts['redirects']:,} redirects, language {metadata['language']}")
