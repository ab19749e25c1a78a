"""``luke create-model-archive``."""

from pathlib import Path

import click


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
def command(checkpoint: Path, output: Path) -> None:
    """Packs CHECKPOINT, or the newest checkpoint of a run, into OUT (.tar or .tar.gz): weights, configuration, tokenizer,
    entity vocabulary. Unpacked it is a checkpoint for stage 2 or for export, but not for continuing the run."""
    from luke.pretraining.archive import create_model_archive

    files = create_model_archive(checkpoint, output)
    click.echo(f"{output}: {len(files)} files, {output.stat().st_size / 1e6:,.1f} MB")
