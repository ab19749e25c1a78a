"""``luke finetune``: a pretrained model + labelled data -> a model for a task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_FILE = click.Path(path_type=Path)

# Options of single tasks; a task refuses those of others.
_TASK_OPTIONS: list[Callable[[Any], Any]] = [
    click.option("--max-length", type=int, help="Most tokens of a row.  [default: 512]"),
    click.option("--encoding", help="Of files of columns.  [default: utf-8]"),
    click.option("--types", type=click.Choice(["all", "general"]), help="entity-typing: all types, or Open Entity's nine."),
    click.option("--threshold", type=float, help="entity-typing: probability from which a type counts.  [default: 0.5]"),
    click.option("--negative-label", help="relation-classification: the label that F1 leaves out.  [default: no_relation]"),
    click.option("--max-span-words", type=int, help="ner: longest mention in words.  [default: 16]"),
    click.option(
        "--decoding", type=click.Choice(["greedy", "exact"]), help="ner: how overlaps are solved.  [default: greedy]"
    ),
    click.option("--context/--no-context", default=None, help="ner: show a sentence's document.  [default: if it has one]"),
    click.option(
        "--pruning", type=float, help="ner: share of mentions that pruning may lose; 0: no pruning.  [default: 0.005]"
    ),
    click.option("--stride", type=int, help="question-answering: tokens that windows share.  [default: 128]"),
    click.option("--max-answer-tokens", type=int, help="question-answering: longest answer.  [default: 30]"),
    click.option("--candidates", help="question-answering: candidate table whose entities are shown to a LUKE."),
    click.option("--answer-language", help="question-answering: whose articles the score leaves out.  [default: en]"),
]


def task_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of all tasks."""
    for option in reversed(_TASK_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("task")
@click.option("--model", required=True, help="Folder or hub name: a LUKE, or a plain encoder as the baseline.")
@click.option("--train", type=_FILE, required=True, help="Labelled data.")
@click.option("--validation", type=_FILE, help="Labelled data that choose the best epoch.")
@click.option("--output", type=_FILE, required=True, help="Folder of the fine-tuned model.")
@click.option("--learning-rate", type=float, help="Peak rate.  [default: the paper's]")
@click.option("--batch-size", type=int, help="Rows of an optimizer step.  [default: the paper's]")
@click.option("--epochs", type=float, help="Passes over the data.  [default: the paper's]")
@click.option("--micro-batch-size", type=int, default=8, show_default=True, help="Most rows of one pass.")
@click.option("--warmup-ratio", type=float, default=0.06, show_default=True)
@click.option("--weight-decay", type=float, default=0.01, show_default=True)
@click.option(
    "--entity-aware-attention/--plain-attention", default=None, help="Of a LUKE.  [default: as the model is configured]"
)
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True)
@click.option("--gradient-checkpointing", is_flag=True, help="Less memory, a third more time.")
@click.option("--num-workers", type=int, default=0, show_default=True, help="Processes that prepare batches.")
@click.option("--seed", type=int, default=42, show_default=True)
@click.option("--deepspeed", type=_FILE, help="DeepSpeed JSON (ZeRO, precision, offloading).")
@click.option("--sweep", help="A grid, such as 'learning_rate=1e-5,3e-5;seed=1,2,3'; OUTPUT holds a model for each point.")
@task_options
def command(
    task: str,
    model: str,
    train: Path,
    validation: Path | None,
    output: Path,
    sweep: str | None,
    learning_rate: float | None,
    batch_size: int | None,
    epochs: float | None,
    micro_batch_size: int,
    warmup_ratio: float,
    weight_decay: float,
    entity_aware_attention: bool | None,
    precision: str,
    gradient_checkpointing: bool,
    num_workers: int,
    seed: int,
    deepspeed: Path | None,
    **options: Any,
) -> None:
    """Fine-tunes MODEL for TASK: entity-typing, relation-classification, ner, question-answering, cloze or
    text-classification. docs/fine_tuning.md shows the forms of the data."""
    from luke.errors import UserError
    from luke.tasks import training

    how = training.FineTuning(
        learning_rate,
        batch_size,
        epochs,
        micro_batch_size,
        warmup_ratio,
        weight_decay,
        entity_aware_attention,
        seed,
        precision,
        gradient_checkpointing,
        num_workers,
        deepspeed,
    )
    if sweep is None:
        metrics = training.fine_tune(task, model, train, validation, output, how, **options)
        click.echo(training.format_metrics(metrics))
        return
    if validation is None:
        raise UserError("--sweep needs --validation, whose metric decides")
    for row in training.sweep(task, model, train, validation, output, training.parse_sweep(sweep), how, **options):
        name = training.task_class(task).metric
        settings = ", ".join(f"{key} {value}" for key, value in row["settings"].items()) or "defaults"
        mean, deviation = row["mean"][name] * 100, row["deviation"][name] * 100
        click.echo(f"{settings}: {name} {mean:.2f} ± {deviation:.2f} ({row['runs']} seeds)")
