"""``luke build-dump-db``."""

from pathlib import Path

import click


@click.command()
@click.argument("dumps", metavar="DUMP...", nargs=-1, required=True)
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--language", help="Language code of the wiki. [default: by the files' names, else by the dump]")
@click.option("--workers", "--pool-size", type=click.IntRange(min=1), help="Processes. [default: one a CPU]")
@click.option("--strict", is_flag=True, help="Stop at a damaged part of a .bz2 dump, in place of losing the pages in it.")
@click.option(
    "--template-rules",
    type=click.Path(path_type=Path),
    help='JSON file of templates whose words stay: {"name": "{1} of {2|text}"}, see docs/corpora.md.',
)
def command(
    dumps: tuple[str, ...],
    output: Path,
    language: str | None,
    workers: int | None,
    strict: bool,
    template_rules: Path | None,
) -> None:
    """Makes the page store OUT from a dump of a Wikipedia, also in several part files; DUMP may have wildcards.

    A dump is pages-articles XML, an Enterprise HTML dump, or structured contents (JSON lines or Parquet), as it is or
    compressed with bzip2, gzip or zstd, or in a tar archive."""
    from luke.corpus.sources import build_page_store

    metadata = build_page_store(dumps, output, workers, language, strict, template_rules)
    counts = metadata["counts"]
    skipped = f", {counts['skipped']:,} bad lines left out (see skipped.jsonl there)" if counts.get("skipped") else ""
    if damaged := metadata.get("damaged"):
        size = sum(region["end"] - region["start"] for region in damaged)
        skipped += f", {len(damaged)} damaged places ({size:,} bytes) left out (see metadata.json there)"
    language = metadata["language"]
    click.echo(f"{output}: {counts['pages']:,} pages, {counts['redirects']:,} redirects, language {language}{skipped}")
