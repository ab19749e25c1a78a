"""``luke convert-checkpoint``."""

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("checkpoint", metavar="CHECKPOINT", type=_PATH)
@click.argument("output", metavar="OUT", type=_PATH)
@click.option("--tokenizer", help="Folder or hub name of the tokenizer.  [default: the checkpoint's]")
@click.option("--metadata-file", type=_PATH, help="metadata.json of the public code.  [default: found]")
@click.option("--entity-vocab-file", type=_PATH, help="The entity vocabulary.  [default: the checkpoint's]")
def command(
    checkpoint: Path, output: Path, tokenizer: str | None, metadata_file: Path | None, entity_vocab_file: Path | None
) -> None:
    """Makes OUT, a model for entity disambiguation, of a checkpoint of pretraining or of a model of the public code.

    CHECKPOINT is a checkpoint folder of `luke pretrain`, the output folder of a run (its newest checkpoint), or of the
    public code a checkpoint (mp_rank_00_model_states.pt) or a disambiguation model (the folder of pytorch_model.bin).
    """
    from luke.entity_disambiguation.convert import convert_checkpoint

    convert_checkpoint(checkpoint, output, tokenizer=tokenizer, metadata=metadata_file, entity_vocab=entity_vocab_file)
    click.echo(f"{output}: written")
