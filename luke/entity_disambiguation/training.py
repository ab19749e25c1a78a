"""What ``examples/entity_disambiguation/train.py`` does with a command line that says little: the paper's two stages and
fine-tuning, each with the options that it needs, the data and models where the step before left them."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from luke.errors import UserError
from luke.pretraining.checkpoint import list_checkpoints

STAGES = ("stage1", "stage2", "fine_tuning")
_GUIDE = "pretraining.md, chapter Entity disambiguation"
# Entity masking only; the first stage trains the entity side (Yamada et al. 2022, section 3.2 and appendix A).
_COMMON = ("--masked-lm-prob", "0.0", "--masked-entity-prob", "0.3", "--save-interval-steps", "1000")
_OPTIONS = {
    "stage1": ("--num-epochs", "1", "--fix-bert-weights", *_COMMON),
    "stage2": ("--num-epochs", "6", "--reset-optimization-states", *_COMMON),
}


@dataclass(frozen=True)
class Places:
    """Where things lie.

    Attributes:
        dataset_dir: The dataset of pretraining, built with the candidates' vocabulary.
        base_model: The encoder that stage 1 starts from.
        output_dir: The folder of the runs ``stage1``, ``stage2`` and ``fine_tuning``.
    """

    dataset_dir: Path
    base_model: str
    output_dir: Path

    def run(self, stage: str) -> Path:
        """The folder of a stage's run."""
        return self.output_dir / stage


def read_places(defaults_file: Path, environment: Mapping[str, str] = os.environ) -> Places:
    """The places in a JSON file, each replaced by an environment variable if that is set: ``LUKE_ED_DATASET_DIR``,
    ``LUKE_ED_BASE_MODEL``, ``LUKE_ED_OUTPUT_DIR``.

    Raises:
        UserError: the file is not there, or lacks a place.
    """
    try:
        values = json.loads(defaults_file.read_text(encoding="utf-8"))
        names = ("dataset_dir", "base_model", "output_dir")
        dataset, base, output = (environment.get(f"LUKE_ED_{name.upper()}") or str(values[name]) for name in names)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{defaults_file}: not a JSON object with dataset_dir, base_model and output_dir: {error}") from None
    return Places(Path(dataset), base, Path(output))


def stage_of(deepspeed_config: Path) -> str:
    """The stage that a configuration file is for, by its name.

    Raises:
        UserError: the name says none.
    """
    found = [stage for stage in STAGES if stage in deepspeed_config.stem]
    if len(found) != 1:
        raise UserError(f"{deepspeed_config}: its name says none of {', '.join(STAGES)}; give --stage")
    return found[0]


def pretraining_arguments(stage: str, places: Places, given: list[str]) -> list[str]:
    """The command line of ``luke pretrain`` for a stage: what ``given`` says, and a default for what it does not.

    Raises:
        UserError: the dataset, or for stage 2 the checkpoint of stage 1, is not there; the message names the command that
            makes it.
    """
    arguments = [*_OPTIONS[stage], "--output-dir", str(places.run(stage))]
    if not _is_given(given, "--dataset-dir"):
        if not places.dataset_dir.exists():
            raise UserError(
                f"{places.dataset_dir}: no dataset there; make it with luke build-wikipedia-pretraining-dataset ({_GUIDE}), "
                "or name another with --dataset-dir or LUKE_ED_DATASET_DIR"
            )
        arguments += ["--dataset-dir", str(places.dataset_dir)]
    if stage == "stage1" and not _is_given(given, "--bert-model-name"):
        arguments += ["--bert-model-name", places.base_model]
    if stage == "stage2" and not _is_given(given, "--resume-checkpoint-id"):
        first = places.run("stage1")
        if not list_checkpoints(first):
            raise UserError(
                f"{first}: no checkpoint of stage 1 there; run the same script with stage1.json first, or name a checkpoint "
                "with --resume-checkpoint-id"
            )
        arguments += ["--resume-checkpoint-id", str(first)]
    # Of an option that stands twice the last one counts.
    return [*arguments, *given]


def _is_given(arguments: list[str], option: str) -> bool:
    return any(argument == option or argument.startswith(option + "=") for argument in arguments)


def fine_tuning_start(places: Places) -> Path:
    """The model that fine-tuning starts from: stage 2's last checkpoint.

    Raises:
        UserError: there is none.
    """
    second = places.run("stage2")
    if not list_checkpoints(second):
        raise UserError(
            f"{second}: no checkpoint of stage 2 there; run the same script with stage2.json first, or give --model"
        )
    return second
