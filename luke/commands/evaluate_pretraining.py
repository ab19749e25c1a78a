"""``luke evaluate-pretraining``."""

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--dataset-dir", type=_PATH, required=True, help="A dataset built with --held-out-fraction.")
@click.option("--checkpoint", type=_PATH, help="A checkpoint, or a run's folder (its newest checkpoint).")
@click.option("--bert-model-name", default="", help="Instead: the base encoder, for the model before training.")
@click.option("--entity-emb-size", type=int, help="Size of an entity's embedding before training. [default: 256]")
@click.option("--entity-emb-init", type=click.Choice(["random", "titles"]), default="random", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="The run's, for what is random before training.")
@click.option("--masked-lm-prob", type=float, default=0.15, show_default=True, help="Share of words to predict.")
@click.option("--masked-entity-prob", type=float, default=0.15, show_default=True, help="Share of entities to predict.")
@click.option("--passes", type=int, default=4, show_default=True, help="How often the held-out items are masked anew.")
@click.option("--examples", type=int, default=10, show_default=True, help="Mentions whose best entities are listed.")
@click.option("--output", type=_PATH, required=True, help="The JSON file to write.")
def command(
    dataset_dir: Path,
    checkpoint: Path | None,
    bert_model_name: str,
    entity_emb_size: int | None,
    entity_emb_init: str,
    seed: int,
    masked_lm_prob: float,
    masked_entity_prob: float,
    passes: int,
    examples: int,
    output: Path,
) -> None:
    """Evaluates a model on the held-out items of DATASET_DIR: masked words, masked entities, and baselines without a model.

    The masks are the same for every model. [UNK] entities are not targets.
    """
    from luke.pretraining.evaluate import EvaluationOptions, evaluate_to_file
    from luke.pretraining.masking import MaskingOptions
    from luke.pretraining.report import print_figures

    masking = MaskingOptions(masked_lm_prob=masked_lm_prob, masked_entity_prob=masked_entity_prob)
    options = EvaluationOptions(
        dataset_dir, checkpoint, bert_model_name, entity_emb_size, entity_emb_init, seed, masking, passes, examples
    )
    result = evaluate_to_file(options, output)
    print_figures({str(checkpoint or bert_model_name): result}, result["baselines"])
