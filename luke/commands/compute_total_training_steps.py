"""``luke compute-total-training-steps``."""

import click


@click.command()
@click.option("--dataset-dir", required=True, help="A dataset, or a quoted glob of several.")
@click.option("--train-batch-size", type=click.IntRange(min=1), required=True)
@click.option("--num-epochs", type=click.FloatRange(min=0, min_open=True), required=True)
def command(dataset_dir: str, train_batch_size: int, num_epochs: float) -> None:
    """Prints ceil(items / batch size x epochs), the optimizer steps of a run."""
    from luke.pretraining.config import total_training_steps
    from luke.pretraining.dataset import open_datasets

    items = sum(len(dataset) for dataset in open_datasets(dataset_dir))
    click.echo(total_training_steps(items, train_batch_size, num_epochs))
