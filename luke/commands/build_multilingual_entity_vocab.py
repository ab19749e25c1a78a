"""``luke build-multilingual-entity-vocab``."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.option(
    "-v", "--vocab", "vocabs", type=click.Path(path_type=Path), multiple=True, required=True, help="One a language."
)
@click.option("-i", "--interwiki", type=click.Path(path_type=Path), required=True, help="What build-interwiki-db wrote.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The vocabulary (JSON lines).")
@click.option("--vocab-size", type=int, default=1_200_000, show_default=True, help="Entries, special tokens counted.")
@click.option(
    "--min-num-languages", type=int, default=3, show_default=True, help="Languages that an entity needs a title in."
)
def command(vocabs: tuple[Path, ...], interwiki: Path, output: Path, **options: Any) -> None:
    """Merges vocabularies that were built with --language: titles of one Wikidata item share an id, counts add up."""
    from luke.multilingual_vocab import MultilingualOptions, build_multilingual_entity_vocab

    counts = build_multilingual_entity_vocab(vocabs, interwiki, output, MultilingualOptions(**options))["counts"]
    click.echo(f"{output}: {counts['entities']:,} entities, {counts['links']:,} links")
