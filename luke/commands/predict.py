"""``luke predict``: a fine-tuned model + data -> predictions."""

from pathlib import Path
from typing import Any

import click

from luke.commands.finetune import task_options

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("task")
@click.option("--model", type=_FILE, required=True, help="What luke finetune wrote.")
@click.option("--data", type=_FILE, required=True, help="Data, with or without labels.")
@click.option("--output", type=_FILE, required=True, help="File of JSON lines, one an example.")
@click.option("--batch-size", type=int, default=16, show_default=True, help="Rows of one pass.")
@task_options
def command(task: str, model: Path, data: Path, output: Path, batch_size: int, **options: Any) -> None:
    """Writes what a fine-tuned MODEL says of DATA, in the form that luke finetune reads."""
    from luke.tasks import training

    count = training.predict(training.load_fine_tuned(model, task, batch_size, **options), data, output)
    click.echo(f"{output}: {count:,} examples")
