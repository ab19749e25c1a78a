"""``luke pretrain`` and the options of ``luke/pretraining/train.py``."""

from pathlib import Path
from typing import Any

import click

from luke.pretraining.config import PretrainingOptions
from luke.pretraining.masking import MaskingOptions


def _default(name: str) -> Any:
    """The default lives in one place: the dataclass."""
    owner = MaskingOptions if name in MaskingOptions.__dataclass_fields__ else PretrainingOptions
    return owner.__dataclass_fields__[name].default


def _probability(name: str, help_text: str) -> Any:
    return click.option(f"--{name.replace('_', '-')}", type=float, default=_default(name), show_default=True, help=help_text)


@click.command()
@click.option("--dataset-dir", required=True, help="A dataset, or a quoted glob of several, which are mixed.")
@click.option("--output-dir", type=click.Path(path_type=Path), required=True, help="The run's folder: checkpoints, figures.")
@click.option(
    "--deepspeed-config-file",
    "--deepspeed_config_file",
    "--deepspeed_config",
    type=click.Path(path_type=Path),
    required=True,
    help="DeepSpeed's JSON file; examples lie in pretraining_config/.",
)
@click.option("--override", multiple=True, metavar="KEY=VALUE", help="Changes a value of that file; dots reach into blocks.")
@click.option("--bert-model-name", default="", help="The base encoder: a folder (or a hub name) of BERT, RoBERTa or XLM-R.")
@click.option("--num-epochs", type=float, default=_default("num_epochs"), show_default=True)
@click.option("--max-train-steps", type=int, help="Stop after this many steps, whatever the epochs.")
@click.option("--log-dir", type=click.Path(path_type=Path), help="TensorBoard's folder. [default: OUTPUT_DIR/tensorboard]")
@click.option(
    "--worker-log-dir",
    type=click.Path(path_type=Path),
    default=_default("worker_log_dir"),
    show_default=True,
    help="Where each process writes worker_<rank>.log.",
)
@click.option("--log-interval-steps", type=int, default=_default("log_interval_steps"), show_default=True)
@click.option(
    "--save-interval-steps", type=int, help="Write a checkpoint every so many steps, besides each epoch's and the last."
)
@click.option("--keep-last", type=int, help="Keep only so many of the newest checkpoints, and the best.  [default: all]")
@click.option("--export-checkpoints", is_flag=True, help="Beside each checkpoint write a folder that transformers loads.")
@click.option(
    "--resume",
    type=click.Choice(["auto", "never"]),
    default=_default("resume"),
    show_default=True,
    help="auto: continue from the run's newest valid checkpoint; never: begin again.",
)
@click.option(
    "--resume-checkpoint-id", help="Start from this checkpoint: a name of this run's, a folder, or another run's folder."
)
@click.option("--reset-optimization-states", is_flag=True, help="Take only its weights: how stage 2 starts from stage 1.")
@click.option("--resume-hf-checkpoint-file", type=click.Path(path_type=Path), help="Start from a LUKE model's weights file.")
@click.option("--entity-emb-size", type=int, help="Size of an entity's embedding. [default: 256]")
@click.option(
    "--entity-emb-init",
    type=click.Choice(["random", "titles"]),
    default=_default("entity_emb_init"),
    show_default=True,
    help="Where entity embeddings start; titles: at the base's embeddings of their words, for small corpora.",
)
@click.option("--cls-entity-prediction", is_flag=True, help="Also predict the page's entity embedding from [CLS].")
@click.option("--disable-entity-prediction-bias", is_flag=True, help="The entity head has no bias.")
@click.option("--fix-bert-weights", is_flag=True, help="Stage 1: train the entity side only.")
@click.option("--freeze-entity-emb", is_flag=True, help="Do not train the entity embeddings.")
@click.option("--word-only-training", is_flag=True, help="Leave out the entities.")
@_probability("masked_lm_prob", "Share of words to predict.")
@_probability("masked_entity_prob", "Share of entities to predict.")
@_probability("random_word_prob", "Share of those words shown as a random word.")
@_probability("unmasked_word_prob", "Share of those words shown as they are.")
@_probability("random_entity_prob", "Share of those entities shown as a random entity.")
@_probability("unmasked_entity_prob", "Share of those entities shown as they are.")
@click.option("--whole-word-masking/--subword-masking", default=True, help="What is masked together. [default: whole words]")
@click.option("--mask-words-in-entity-span", is_flag=True, help="Mask the words of masked entities first.")
@click.option(
    "--unk-entity-targets/--no-unk-entity-targets",
    default=True,
    help="Whether links outside the vocabulary are targets, as [UNK]. [default: they are]",
)
@click.option("--sampling-smoothing", type=float, default=_default("sampling_smoothing"), show_default=True)
@click.option("--num-workers", type=int, help='Processes that load data; also "num_workers" in the DeepSpeed file.')
@click.option(
    "--loss-average",
    type=click.Choice(["global", "micro-batch"]),
    default=_default("loss_average"),
    show_default=True,
    help="What a loss is the mean of: the targets of the whole step, or micro batches' means (the public code's).",
)
@click.option(
    "--on-nan",
    type=click.Choice(["stop", "skip"]),
    default=_default("on_nan"),
    show_default=True,
    help="At a loss that is not finite or leaps up: stop with a checkpoint of the state before, or leave the step out.",
)
@click.option(
    "--loss-spike-factor",
    type=float,
    default=_default("loss_spike_factor"),
    show_default=True,
    help="A loss so many times the median of the last 100 steps is a leap; 0: none is.",
)
@click.option("--eval-interval-steps", type=int, help="Evaluate on the dataset's held-out items every so many steps.")
@click.option("--eval-items", type=int, default=_default("eval_items"), show_default=True, help="How many of them, at most.")
@click.option(
    "--backend", type=click.Choice(["nccl", "gloo"]), help="What processes talk through.  [default: nccl on GPUs, else gloo]"
)
@click.option("--seed", type=int, default=_default("seed"), show_default=True)
@click.option("--local-rank", "--local_rank", type=int, help="Which device of this machine to use; set by launchers.")
@click.option("--dry-run", is_flag=True, help="Print what would be run, and train nothing.")
def command(local_rank: int | None, dry_run: bool, **options: Any) -> None:
    """Pretrains LUKE on DATASET_DIR.

    In one process; with several, `deepspeed luke/pretraining/train.py` takes the same options. Started again, it continues
    from its newest valid checkpoint.
    """
    import os

    from luke.pretraining import train

    if local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(local_rank))
    masking = MaskingOptions(**{name: options.pop(name) for name in MaskingOptions.__dataclass_fields__})
    checked = PretrainingOptions(masking=masking, **options)
    if dry_run:
        click.echo(train.dry_run(checked))
    else:
        train.pretrain(checked)
