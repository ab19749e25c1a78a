"""``luke analyze-logs``: the logs of a run's workers -> averages, stragglers, what holds the run up."""

import contextlib
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw loss, speed and the workers' times.")
@click.option("--follow", is_flag=True, help="Show it again whenever the logs grow, until Ctrl-C.")
def command(folder: Path, json_: bool, plot: Path | None, follow: bool) -> None:
    """Analyses the worker_<rank>.log files in DIR, a run's --worker-log-dir."""
    from luke.pretraining import log_analysis

    def show(analysis: log_analysis.Analysis) -> None:
        if json_:
            click.echo(log_analysis.as_json(analysis))
        else:
            log_analysis.print_analysis(analysis)

    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            log_analysis.follow(folder, show)
        return
    logs = log_analysis.read_logs(folder)
    show(log_analysis.analyze(logs))
    if plot:
        log_analysis.plot(logs, plot)
