"""Training for entity disambiguation (Yamada et al. 2022), started by DeepSpeed's launcher:

    deepspeed --num_gpus=4 examples/entity_disambiguation/train.py \
        --deepspeed_config examples/entity_disambiguation/deepspeed_config/stage1.json
    deepspeed --num_gpus=4 examples/entity_disambiguation/train.py \
        --deepspeed_config examples/entity_disambiguation/deepspeed_config/stage2.json
    deepspeed --num_gpus=1 examples/entity_disambiguation/train.py --fine-tune aida_train.csv \
        --deepspeed_config examples/entity_disambiguation/deepspeed_config/fine_tuning.json

What a command line does not say is in ``defaults.json`` beside this file, or in the environment variables
``LUKE_ED_DATASET_DIR``, ``LUKE_ED_BASE_MODEL`` and ``LUKE_ED_OUTPUT_DIR``. The two stages take every option of
``luke pretrain``.
"""

import os
from pathlib import Path
from typing import Any

import click

from luke.cli import run_command
from luke.commands.evaluate_ed import read_options
from luke.entity_disambiguation.training import STAGES, fine_tuning_start, pretraining_arguments, read_places, stage_of

DEFAULTS = Path(__file__).resolve().with_name("defaults.json")
_PATH = click.Path(path_type=Path)


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option(
    "--deepspeed_config",
    "--deepspeed-config",
    "--deepspeed-config-file",
    "--deepspeed_config_file",
    type=_PATH,
    required=True,
)
@click.option("--stage", type=click.Choice(STAGES), help="What is trained. [default: what the file's name says]")
@click.option(
    "--fine-tune", metavar="DATA", type=_PATH, help="Fine-tune on annotated documents, in any form evaluate-ed reads."
)
@click.option("--model", type=_PATH, help="Where fine-tuning starts. [default: the last checkpoint of stage 2]")
@click.option("--candidates", type=_PATH, help="A candidate table, for documents without candidates.")
@read_options
@click.pass_context
def command(
    context: click.Context,
    deepspeed_config: Path,
    stage: str | None,
    fine_tune: Path | None,
    model: Path | None,
    candidates: Path | None,
    **read: Any,
) -> None:
    """Trains for entity disambiguation: stage 1, stage 2, or fine-tuning with --fine-tune."""
    places = read_places(DEFAULTS)
    if fine_tune is None:
        from luke.commands.pretrain import command as pretrain

        stage = stage or stage_of(deepspeed_config)
        if stage == "fine_tuning":
            raise click.UsageError("give the annotated documents with --fine-tune")
        arguments = ["--deepspeed_config", str(deepspeed_config), *context.args]
        pretrain.main(pretraining_arguments(stage, places, arguments), standalone_mode=False)
        return
    fine_tuning.main(
        [*context.args],
        standalone_mode=False,
        obj={
            "data": fine_tune,
            "model": model or fine_tuning_start(places),
            "candidates": candidates,
            "read": read,
            "deepspeed_config_file": deepspeed_config,
            "output_dir": places.run("fine_tuning"),
        },
    )


@click.command()
@click.option("--output-dir", type=_PATH)
@click.option("--override", multiple=True, metavar="KEY=VALUE")
@click.option("--masked-entity-prob", type=float, default=0.9)
@click.option("--num-epochs", type=float, default=2)
@click.option("--max-train-steps", type=int)
@click.option("--max-seq-length", type=int, default=512)
@click.option("--max-candidates", type=int, default=30)
@click.option("--seed", type=int, default=0)
@click.option("--worker-log-dir", type=_PATH, default=Path("deepspeed_logs"))
@click.option("--local-rank", "--local_rank", type=int)
@click.pass_obj
def fine_tuning(
    given: dict[str, Any],
    output_dir: Path | None,
    max_seq_length: int,
    max_candidates: int,
    local_rank: int | None,
    **options: Any,
) -> None:
    """The options of fine-tuning alone."""
    from luke.entity_disambiguation.benchmark_files import ReadOptions
    from luke.entity_disambiguation.fine_tuning import FineTuningOptions, fine_tune
    from luke.entity_disambiguation.windows import WindowOptions

    if local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(local_rank))
    places = given | {"output_dir": output_dir or given["output_dir"], "read": ReadOptions(**given["read"])}
    windows = WindowOptions(max_seq_length=max_seq_length, max_candidates=max_candidates)
    fine_tune(FineTuningOptions(**places, windows=windows, **options))


if __name__ == "__main__":
    run_command(command)
