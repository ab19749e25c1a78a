"""Every command in the guides is one that the command line accepts: names, options, and the files of this repository."""

import json
import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from luke.cli import luke
from luke.commands.pretrain import command as pretrain
from luke.entity_disambiguation.training import Places, pretraining_arguments, stage_of
from luke.pretraining.config import read_deepspeed_file, resolve_deepspeed
from luke.tasks.training import TASKS, task_class

ROOT = Path(__file__).parents[1]
GUIDES = (
    "README.md",
    "pretraining.md",
    "docs/corpora.md",
    "docs/entity_disambiguation.md",
    "docs/fine_tuning.md",
    "docs/reproduce.md",
)
TRAIN_SCRIPT = "luke/pretraining/train.py"
DISAMBIGUATION_SCRIPT = "examples/entity_disambiguation/train.py"


def shell_lines(guide: str) -> list[str]:
    """The commands in a guide's sh blocks, continued lines joined."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / guide).read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip()]


COMMANDS = sorted({(guide, line) for guide in GUIDES for line in shell_lines(guide)})
LUKE_COMMANDS = [(guide, line) for guide, line in COMMANDS if line.startswith("luke ")]
LAUNCHES = [(guide, line) for guide, line in COMMANDS if line.startswith("deepspeed ") and TRAIN_SCRIPT in line]
DISAMBIGUATION_LAUNCHES = [line for _, line in COMMANDS if DISAMBIGUATION_SCRIPT in line]


def test_guides_show_the_whole_road() -> None:
    shown = {shlex.split(line)[1] for _, line in LUKE_COMMANDS}
    assert shown == set(luke.list_commands(click.Context(luke)))
    assert any("--num_nodes=2" in line for _, line in LAUNCHES)


@pytest.mark.parametrize(("guide", "line"), LUKE_COMMANDS)
def test_luke_command_is_accepted(guide: str, line: str) -> None:
    _, name, *words = shlex.split(line)
    command = luke.get_command(click.Context(luke), name)
    assert command is not None, f"{guide}: luke {name} does not exist"
    command.make_context(name, words)


@pytest.mark.parametrize(("guide", "line"), LAUNCHES)
def test_launch_is_accepted(guide: str, line: str) -> None:
    words = shlex.split(line)
    launcher, script_words = words[1 : words.index(TRAIN_SCRIPT)], words[words.index(TRAIN_SCRIPT) + 1 :]
    context = pretrain.make_context(TRAIN_SCRIPT, script_words)
    gpus = int(next(word.split("=")[1] for word in launcher if word.startswith("--num_gpus=")))
    nodes = int(next((word.split("=")[1] for word in launcher if word.startswith("--num_nodes=")), "1"))
    file = ROOT / context.params["deepspeed_config_file"]
    settings = resolve_deepspeed(read_deepspeed_file(file), str(file), gpus * nodes, None, on_cpu=False)
    assert settings.train_batch_size == json.loads(file.read_text(encoding="utf-8"))["train_batch_size"]


@pytest.mark.parametrize("line", DISAMBIGUATION_LAUNCHES)
def test_disambiguation_launch_is_accepted(line: str) -> None:
    """Its own options are taken, and what is left over belongs to pretraining or fine-tuning."""
    script = runpy.run_path(str(ROOT / DISAMBIGUATION_SCRIPT))
    words = shlex.split(line)
    context = script["command"].make_context("train.py", words[words.index(DISAMBIGUATION_SCRIPT) + 1 :])
    file = ROOT / context.params["deepspeed_config"]
    assert read_deepspeed_file(file)["train_batch_size"] > 0
    if context.params["fine_tune"] is None:
        given = ["--deepspeed_config", str(file), *context.args, "--dataset-dir", "d", "--resume-checkpoint-id", "c"]
        places = Places(Path("d"), "base", Path("runs"))
        pretrain.make_context("train.py", pretraining_arguments(stage_of(file), places, given))
    else:
        script["fine_tuning"].make_context("train.py", context.args)


@pytest.mark.parametrize("guide", [*GUIDES, "CHANGELOG.md", "docs/architecture.md"])
def test_links_lead_somewhere(guide: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / guide).read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not ((ROOT / guide).parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("guide", GUIDES)
def test_make_targets_exist(guide: str) -> None:
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"\bmake ([a-z-]+)", "\n".join(shell_lines(guide)))
    assert set(named) <= set(rules)


FINE_TUNING = (ROOT / "docs/fine_tuning.md").read_text(encoding="utf-8")
TASK_FORMS = re.findall(r"### ([a-z-]+)\n.*?```json\n(.*?)\n```", FINE_TUNING, re.DOTALL)


def test_every_task_has_a_documented_form() -> None:
    assert {task for task, _ in TASK_FORMS} == set(TASKS)


@pytest.mark.parametrize(("task", "line"), TASK_FORMS)
def test_documented_forms_are_read_with_their_labels(tmp_path: Path, task: str, line: str) -> None:
    chosen = task_class(task)
    (tmp_path / "data.jsonl").write_text(line + "\n", encoding="utf-8")
    (example,) = chosen.read(tmp_path / "data.jsonl", chosen.options_class())
    assert chosen.gold(chosen, example)
