"""``luke pretraining-report``."""

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)
_TITLE = "LUKE pretraining"


@click.command()
@click.option("--before", type=_PATH, required=True, help="Evaluation (evaluate-pretraining) before training.")
@click.option("--stage1", type=_PATH, required=True, help="Evaluation after stage 1.")
@click.option("--stage2", type=_PATH, required=True, help="Evaluation after stage 2.")
@click.option("--stage1-run", type=_PATH, required=True, help="Stage 1's output folder.")
@click.option("--stage2-run", type=_PATH, required=True, help="Stage 2's output folder.")
@click.option("--output", type=_PATH, required=True, help="The folder for report.html and report.json.")
@click.option("--title", default=_TITLE, show_default=True)
def command(before: Path, stage1: Path, stage2: Path, stage1_run: Path, stage2_run: Path, output: Path, title: str) -> None:
    """Writes OUTPUT/report.html and OUTPUT/report.json about a run of two stages and prints its figures."""
    from luke.pretraining.report import print_report, write_report

    print_report(write_report(before, stage1, stage2, stage1_run, stage2_run, output, title))
    click.echo(f"{output / 'report.html'}")
