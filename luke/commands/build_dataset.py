"""``luke build-wikipedia-pretraining-dataset``."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("dump_db", metavar="DB", type=click.Path(path_type=Path))
@click.argument("tokenizer", metavar="TOKENIZER")
@click.argument("entity_vocab", metavar="VOCAB", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--sentence-splitter", type=click.Choice(["sentencex", "icu", "none"]), default="sentencex", show_default=True)
@click.option("--max-seq-length", type=int, default=512, show_default=True, help="Words of an item with [CLS] and [SEP].")
@click.option("--max-entity-length", type=int, default=128, show_default=True, help="Entities of an item.")
@click.option("--max-mention-length", type=int, default=30, show_default=True, help="Words of a mention.")
@click.option("--min-sentence-length", type=int, default=5, show_default=True, help="Words of a sentence; shorter: dropped.")
@click.option("--abstract-only", is_flag=True, help="Only what comes before a page's first heading.")
@click.option("--include-sentences-without-entities", is_flag=True, help="Keep items without links.")
@click.option("--include-unk-entities", is_flag=True, help="Keep links outside the vocabulary, as [UNK].")
@click.option("--max-num-documents", type=int, help="Read this many pages.")
@click.option("--predefined-entities-only", is_flag=True, help="Only pages that are in the vocabulary.")
@click.option("--language", help="Of the vocabulary's titles and of the sentence splitter.  [default: the page store's]")
@click.option("--held-out-fraction", type=float, default=0.0, show_default=True, help="Share of pages kept for evaluation.")
@click.option("--workers", "--pool-size", type=int, help="Processes. [default: one a CPU]")
def command(dump_db: Path, tokenizer: str, entity_vocab: Path, output: Path, workers: int | None, **options: Any) -> None:
    """Makes the dataset OUT from the page store DB, the tokenizer in folder TOKENIZER and the entity vocabulary VOCAB."""
    from luke.pretraining.build_dataset import DatasetOptions, build_pretraining_dataset

    metadata = build_pretraining_dataset(dump_db, tokenizer, entity_vocab, output, DatasetOptions(**options), workers)
    for name, counts in (("", metadata["counts"]), ("held out: ", metadata["held_out_counts"])):
        if counts:
            click.echo(
                f"{output}: {name}{counts['items']:,} items, {counts['word_tokens']:,} words, "
                f"{counts['entities']:,} entities ({counts['unk_entities']:,} [UNK])"
            )
