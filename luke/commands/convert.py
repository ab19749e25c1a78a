"""``luke convert-luke-to-huggingface-model``: a checkpoint -> a folder that transformers loads."""

from pathlib import Path

import click

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("checkpoint", type=_FILE, required=False)
@click.argument("output", type=_FILE, required=False, metavar="[OUT]")
@click.option("--checkpoint-path", type=_FILE, help="The same as CHECKPOINT.")
@click.option("--transformers-model-save-path", type=_FILE, help="The same as OUT.")
@click.option("--metadata-path", type=_FILE, help="metadata.json of a checkpoint of the public code.  [default: found]")
@click.option("--entity-vocab-path", type=_FILE, help="The entity vocabulary, JSON lines.  [default: the checkpoint's]")
@click.option("--tokenizer", help="Folder or hub name of the tokenizer.  [default: the checkpoint's]")
@click.option(
    "--tokenizer-class",
    type=click.Choice(["LukeTokenizer", "MLukeTokenizer"]),
    help="Refuse a tokenizer that this class does not read.  [default: the class that fits]",
)
@click.option(
    "--set-entity-aware-attention-default",
    type=bool,
    metavar="true|false",
    help="Load the folder with entity-aware attention unless told otherwise.  [default: as trained]",
)
@click.option("--remove-entity-embeddings", is_flag=True, help="Keep only the special tokens in the entity table.")
def command(
    checkpoint: Path | None,
    output: Path | None,
    checkpoint_path: Path | None,
    transformers_model_save_path: Path | None,
    metadata_path: Path | None,
    entity_vocab_path: Path | None,
    tokenizer: str | None,
    tokenizer_class: str | None,
    set_entity_aware_attention_default: bool | None,
    remove_entity_embeddings: bool,
) -> None:
    """Writes OUT, a folder that transformers loads without this project: AutoModel, LukeForMaskedLM, AutoTokenizer.

    CHECKPOINT is a checkpoint folder of `luke pretrain`, the output folder of a run (its newest checkpoint), or a
    checkpoint of the public LUKE code (mp_rank_00_model_states.pt or its folder).
    """
    from luke.export import convert_checkpoint

    if checkpoint_path is not None and checkpoint is not None and output is None:
        checkpoint, output = None, checkpoint  # the one positional argument left is OUT
    checkpoint = _only_one(checkpoint, checkpoint_path, "CHECKPOINT", "--checkpoint-path")
    output = _only_one(output, transformers_model_save_path, "OUT", "--transformers-model-save-path")
    convert_checkpoint(
        checkpoint,
        output,
        tokenizer=tokenizer,
        metadata=metadata_path,
        entity_vocab=entity_vocab_path,
        tokenizer_class=tokenizer_class,
        entity_aware_attention_default=set_entity_aware_attention_default,
        remove_entity_embeddings=remove_entity_embeddings,
    )


def _only_one(argument: Path | None, option: Path | None, argument_name: str, option_name: str) -> Path:
    given = [value for value in (argument, option) if value is not None]
    if len(given) != 1:
        raise click.UsageError(f"give {argument_name} or {option_name}" + (", not both" if given else ""))
    return given[0]
