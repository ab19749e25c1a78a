"""``luke build-corpus-db``."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("corpus", metavar="CORPUS...", nargs=-1, required=True)
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--aliases", "--redirects", type=click.Path(path_type=Path), help="File of further names: alias TAB title.")
@click.option("--language", help="Language code of the text.")
@click.option("--skip-bad", is_flag=True, help="Leave bad lines out and count them; they are listed in OUT/skipped.jsonl.")
@click.option("--workers", "--pool-size", type=click.IntRange(min=1), help="Processes. [default: one a CPU]")
def command(corpus: tuple[str, ...], output: Path, workers: int | None, **options: Any) -> None:
    """Makes the page store OUT from your own text: JSON lines, one document a line; CORPUS may have wildcards.

    A line: {"title": …, "paragraphs": [{"text": …, "links": [{"start": 0, "end": 5, "title": …}]}]}
    or {"text": …, "entities": [{"start": 0, "end": 5, "title": …}]}; offsets count characters, end exclusive."""
    from luke.corpus.jsonl import CorpusOptions, build_corpus_db
    from luke.corpus.streams import expand_paths

    counts = build_corpus_db(expand_paths(corpus), output, CorpusOptions(**options), workers)["counts"]
    skipped = f", {counts['skipped']:,} bad lines left out" if counts["skipped"] else ""
    click.echo(f"{output}: {counts['pages']:,} pages, {counts['links']:,} links, {counts['redirects']:,} aliases{skipped}")
