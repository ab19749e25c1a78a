"""The ``luke`` command: one sub-command a stage, its module imported only when it is called."""

import atexit
import errno
import importlib
import logging
import os
import sys
from pathlib import Path

import click

from luke import __version__
from luke.errors import StoppedWorkError, UserError

# name: (module in luke.commands, what the sub-command does). The module holds a click command named ``command``.
_COMMANDS: dict[str, tuple[str, str]] = {
    "build-dump-db": ("build_dump_db", "Wikipedia dump -> page store"),
    "build-corpus-db": ("build_corpus_db", "your own text with links (JSON lines) -> page store"),
    "build-entity-vocab": ("build_entity_vocab", "page store -> entity vocabulary"),
    "build-interwiki-db": ("build_interwiki_db", "Wikidata dump -> which titles of several Wikipedias are one entity"),
    "build-multilingual-entity-vocab": ("build_multilingual_entity_vocab", "vocabularies of several languages -> one"),
    "build-wikipedia-pretraining-dataset": ("build_dataset", "page store + vocabulary -> pretraining dataset"),
    "build-multilingual": ("build_multilingual", "dumps of several languages -> datasets with one vocabulary"),
    "compute-total-training-steps": ("compute_total_training_steps", "dataset, batch size, epochs -> steps"),
    "plan": ("plan", "base + configuration + GPU -> what fits into its memory"),
    "pretrain": ("pretrain", "pretraining dataset -> checkpoints"),
    "analyze-logs": ("analyze_logs", "the logs of a run -> speed, stragglers, what holds it up"),
    "evaluate-pretraining": ("evaluate_pretraining", "checkpoint + held-out items -> loss and accuracy"),
    "convert-luke-to-huggingface-model": ("convert", "checkpoint -> a folder that transformers loads"),
    "create-model-archive": ("create_model_archive", "checkpoint -> one file to pass on"),
    "build-candidates": ("build_candidates", "page store -> candidate table for entity disambiguation"),
    "convert-checkpoint": ("convert_checkpoint", "checkpoint -> a model for entity disambiguation"),
    "list-candidates": ("list_candidates", "benchmarks -> the titles of their candidates, a white list"),
    "evaluate-ed": ("evaluate_ed", "model + benchmarks -> F1, accuracy, baselines, a page of links"),
    "link": ("link", "text -> entities"),
    "serve": ("serve", "linking over HTTP"),
    "finetune": ("finetune", "model + labelled data -> a model for a task"),
    "evaluate": ("evaluate", "fine-tuned model + labelled data -> metrics"),
    "predict": ("predict", "fine-tuned model + data -> JSON lines"),
    "pretraining-report": ("pretraining_report", "runs + evaluations -> table, report.html, report.json"),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"luke.commands.{_COMMANDS[cmd_name][0]}").command
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="luke")
def luke() -> None:
    """The whole road to a model that reads words and entities: dump, vocabulary, dataset, pretraining, export."""


def report_errors(error: BaseException) -> int:
    """Prints one line about a mistake of the user's or work that stopped, and returns the exit status; re-raises the
    rest."""
    status = 2
    if isinstance(error, UserError):
        message = str(error)
    elif isinstance(error, StoppedWorkError):
        message, status = str(error), 1
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = f"no space left on the disk of {error.filename or Path.cwd()}; free some and run the same command again"
    elif isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        message = f"{error.filename}: {error.strerror}"
    else:
        raise error
    if os.environ.get("RANK", "0") == "0":
        print(f"luke: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def run_command(command: click.Command) -> None:
    """Runs a command line; exit status 2 for a user's mistake, which the first of several training processes reports."""
    logging.basicConfig(level=logging.INFO, format="luke: %(message)s", stream=sys.stderr)
    if os.environ.get("RANK", "0") != "0":
        logging.getLogger().setLevel(logging.WARNING)
    try:
        command(standalone_mode=True)
    except SystemExit as ended:
        _exit(ended.code)
    except Exception as error:
        _exit(report_errors(error))


def _exit(status: str | int | None) -> None:
    """Ends the process. One that a launcher started skips the interpreter's own end: threads of the communication
    libraries that outlive it abort the process now and then, and the launcher then calls a finished run failed."""
    if "LOCAL_RANK" not in os.environ or isinstance(status, str):
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def main() -> None:
    """The ``luke`` command."""
    run_command(luke)


if __name__ == "__main__":
    main()
