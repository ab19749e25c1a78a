"""``luke build-entity-vocab``."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("dump_db", metavar="DB", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("-v", "--vocab-size", type=int, default=1_000_000, show_default=True, help="Entries, special tokens counted.")
@click.option("--min-count", type=int, default=0, show_default=True, help="Links that an entity needs.")
@click.option("-w", "--white-list", type=click.Path(path_type=Path), help="File of titles that are kept if linked at all.")
@click.option("--white-list-only", is_flag=True, help="Keep no other titles.")
@click.option("--allow-missing-pages", is_flag=True, help="Keep link targets without a page, as in a partial dump.")
@click.option("--language", help="Language code written with each title.")
def command(dump_db: Path, output: Path, **options: Any) -> None:
    """Counts the links of the page store DB and writes the entity vocabulary OUT (JSON lines)."""
    from luke.entity_vocab import VocabOptions, build_entity_vocab

    metadata = build_entity_vocab(dump_db, output, VocabOptions(**options))
    counts = metadata["counts"]
    click.echo(f"{output}: {counts['entities']:,} entities, {counts['links']:,} links")
