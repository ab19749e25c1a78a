"""``luke build-multilingual``: the commands of several languages, one after the other."""

from pathlib import Path

import click

from luke.commands.build_interwiki_db import language_codes


@click.command()
@click.option("--languages", callback=language_codes, required=True, help="Codes, as ja,ko,en.")
@click.option("--dumps", type=click.Path(path_type=Path), required=True, help="Folder of the Wikipedias' dumps.")
@click.option("--dump-pattern", help="Name of a dump, {language} in it.  [default: as on dumps.wikimedia.org]")
@click.option("--wikidata", type=click.Path(path_type=Path), required=True, help="Wikidata JSON dump.")
@click.option("--tokenizer", required=True, help="Folder of the base encoder or its tokenizer.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder of all that is made.")
@click.option("--vocab-size", type=int, default=1_200_000, show_default=True, help="Entries, special tokens counted.")
@click.option(
    "--min-num-languages", type=int, default=3, show_default=True, help="Languages that an entity needs a title in."
)
@click.option("--allow-missing-pages", is_flag=True, help="Keep link targets without a page, as in partial dumps.")
@click.option("--max-seq-length", type=int, default=512, show_default=True, help="Words of an item with [CLS] and [SEP].")
@click.option("--held-out-fraction", type=float, default=0.0, show_default=True, help="Share of pages kept for evaluation.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes. [default: one a CPU]")
def command(
    languages: tuple[str, ...],
    dumps: Path,
    dump_pattern: str | None,
    wikidata: Path,
    tokenizer: str,
    output: Path,
    vocab_size: int,
    min_num_languages: int,
    allow_missing_pages: bool,
    max_seq_length: int,
    held_out_fraction: float,
    workers: int | None,
) -> None:
    """Dumps of several languages -> OUT/LANGUAGE/dataset, all with OUT/entity_vocab.jsonl. What is finished is kept."""
    from luke.entity_vocab import VocabOptions
    from luke.multilingual import MultilingualRecipe
    from luke.multilingual_vocab import MultilingualOptions
    from luke.pretraining.build_dataset import DatasetOptions

    recipe = MultilingualRecipe(languages, dumps, dump_pattern, wikidata, tokenizer, output, workers)
    recipe.build(
        VocabOptions(allow_missing_pages=allow_missing_pages),
        MultilingualOptions(vocab_size, min_num_languages),
        DatasetOptions(max_seq_length=max_seq_length, held_out_fraction=held_out_fraction),
    )
    click.echo(f"{output}: train with --dataset-dir '{output}/*/dataset'")
