"""``luke evaluate``: a fine-tuned model + labelled data -> metrics."""

import json
from pathlib import Path
from typing import Any

import click

from luke.commands.finetune import task_options

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("task")
@click.option("--model", type=_FILE, required=True, help="What luke finetune wrote.")
@click.option("--data", type=_FILE, required=True, help="Labelled data.")
@click.option("--output", type=_FILE, help="JSON file of the metrics.")
@click.option("--batch-size", type=int, default=16, show_default=True, help="Rows of one pass.")
@task_options
def command(task: str, model: Path, data: Path, output: Path | None, batch_size: int, **options: Any) -> None:
    """Prints the metrics of a fine-tuned MODEL on DATA."""
    from luke.artifacts import write_json
    from luke.tasks import training

    metrics = training.evaluate(training.load_fine_tuned(model, task, batch_size, **options), data)
    click.echo(json.dumps(metrics, indent=2))
    if output is not None:
        write_json(output, metrics)
