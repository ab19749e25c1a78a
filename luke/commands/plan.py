"""``luke plan``: what fits into a GPU's memory."""

from dataclasses import asdict
from pathlib import Path

import click

from luke.pretraining.config import PretrainingOptions
from luke.pretraining.masking import MaskingOptions


@click.command()
@click.option("--config", "config", type=click.Path(path_type=Path), required=True, help="DeepSpeed's JSON file.")
@click.option("--model", required=True, help="The base: roberta-base and the like by name, or a folder with config.json.")
@click.option("--gpu-memory", required=True, help="Memory of a device, such as 24GB.")
@click.option("--gpus", type=int, default=1, show_default=True, help="Number of devices.")
@click.option("--override", multiple=True, metavar="KEY=VALUE", help="Changes a value of the file, as in pretrain.")
@click.option("--entity-vocab-size", type=int, default=500_000, show_default=True)
@click.option("--entity-emb-size", type=int, default=256, show_default=True)
@click.option("--max-seq-length", type=int, default=512, show_default=True, help="Words of an item.")
@click.option("--fix-bert-weights", is_flag=True, help="Plan stage 1, which trains the entity side only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    config: Path,
    model: str,
    gpu_memory: str,
    gpus: int,
    override: tuple[str, ...],
    entity_vocab_size: int,
    entity_emb_size: int,
    max_seq_length: int,
    fix_bert_weights: bool,
    as_json: bool,
) -> None:
    """Prints where the memory of a pretraining run goes, the largest micro batch that fits, and what to set."""
    import json

    from luke.errors import UserError
    from luke.pretraining import planner
    from luke.pretraining.initialization import InitialModel, set_trainable
    from luke.pretraining.memory import empty_model

    for name, value in (("gpus", gpus), ("entity-vocab-size", entity_vocab_size), ("entity-emb-size", entity_emb_size)):
        if value <= 0:
            raise UserError(f"--{name} {value}: must be positive")
    if max_seq_length <= 2:
        raise UserError(f"--max-seq-length {max_seq_length}: must be above 2")
    memory = planner.parse_memory(gpu_memory)
    settings = planner.read_plan_settings(config, override, gpus)
    empty = empty_model(planner.named_config(model, entity_vocab_size, entity_emb_size))
    options = PretrainingOptions("", Path(), config, masking=MaskingOptions(), fix_bert_weights=fix_bert_weights)
    set_trainable(InitialModel(empty, fresh_mlm_head=False), options)
    plan = planner.make_plan(empty, settings, options, gpus, max_seq_length, memory)
    if as_json:
        click.echo(json.dumps({**asdict(plan), "advice": planner.advice(plan, settings)}, indent=2))
    else:
        planner.print_plan(plan, settings)
