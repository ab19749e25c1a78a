"""``luke analyze-logs``: what the logs of a run's workers say about its speed, and which worker the others wait for."""

import json
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luke.errors import UserError

STRAGGLER = 1.1  # times the median worker's own time for a step
_DATA_BOUND = 0.1  # share of the time waited for data
_LOG = re.compile(r"worker_(\d+)\.log")
_PERCENTILES = (50, 90, 99)
_FIGURES = (
    "loss",
    "masked_lm_loss",
    "masked_entity_loss",
    "masked_entity_accuracy",
    "grad_norm",
    "tokens_per_second",
    "seconds_per_step",
    "own_seconds_per_step",
    "data_wait_share",
    "memory_gib",
)
_REFRESH_SECONDS = 5.0

Record = dict[str, float]


def read_log(path: Path) -> list[Record]:
    """The steps of a worker's log, of each step the last record: a restart does steps again. Other lines are left aside, as
    is a last line that is still being written."""
    records: dict[int, Record] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        if not line.endswith("\n") or " step=" not in line:
            continue
        record: Record = {}
        for word in line.split():
            name, equals, text = word.partition("=")
            if equals:
                try:
                    record[name] = float(text)
                except ValueError:
                    break
        if "seconds_per_step" in record and "loss" in record:
            step = int(record["step"])
            records = {done: kept for done, kept in records.items() if done < step}
            records[step] = record
    return list(records.values())


def read_logs(folder: Path) -> dict[int, list[Record]]:
    """The logs of all workers, by rank.

    Raises:
        UserError: there is no log in ``folder``, or none with a step.
    """
    paths = {int(match[1]): path for path in sorted(folder.glob("worker_*.log")) if (match := _LOG.fullmatch(path.name))}
    if not paths:
        raise UserError(f"{folder}: no worker_<rank>.log there; give the run's --worker-log-dir, by default deepspeed_logs")
    logs = {rank: records for rank, path in sorted(paths.items()) if (records := read_log(path))}
    if not logs:
        raise UserError(f"{folder}: the workers have logged no step yet")
    return logs


@dataclass(frozen=True)
class Analysis:
    """What the logs say.

    Attributes:
        steps: The last step of all workers.
        figures: For each figure its mean, median, 90th and 99th percentile and last value, over the steps of the first
            worker, which are means over all.
        workers: For each rank its own mean seconds for a step's passes, waiting share, and peak memory in GiB.
        stragglers: Ranks slower than the median by 10 %.
        bound: ``data`` if over a tenth of the time is waited for data, else ``compute``.
    """

    steps: int
    figures: dict[str, dict[str, float]]
    workers: dict[int, dict[str, float]]
    stragglers: list[int]
    bound: str


def analyze(logs: Mapping[int, Sequence[Record]]) -> Analysis:
    """Analyses the steps that the workers have logged. The first step, in which things warm up, is left out where there are
    more."""
    steady = {rank: records[1:] or records for rank, records in logs.items()}
    first = steady[min(steady)]
    figures = {name: _summary([r[name] for r in first if name in r]) for name in _FIGURES if name in first[-1]}
    workers = {rank: _worker(records) for rank, records in steady.items()}
    middle = statistics.median(worker["own_seconds_per_step"] for worker in workers.values())
    slow = [rank for rank, worker in workers.items() if worker["own_seconds_per_step"] > STRAGGLER * middle]
    waiting = statistics.fmean(worker["data_wait_share"] for worker in workers.values())
    return Analysis(
        min(int(records[-1]["step"]) for records in logs.values()),
        figures,
        workers,
        slow,
        "data" if waiting > _DATA_BOUND else "compute",
    )


def _summary(values: Sequence[float]) -> dict[str, float]:
    import numpy as np

    percentiles = {f"p{p}": float(np.percentile(values, p)) for p in _PERCENTILES}
    return {"mean": statistics.fmean(values), **percentiles, "last": values[-1]}


def _worker(records: Sequence[Record]) -> dict[str, float]:
    def mean(name: str, otherwise: str) -> float:
        return statistics.fmean(record.get(name, record.get(otherwise, 0.0)) for record in records)

    return {
        "steps": float(len(records)),
        "own_seconds_per_step": mean("own_seconds_per_step", "seconds_per_step"),
        "data_wait_share": mean("own_data_wait_share", "data_wait_share"),
        "memory_gib": max(record.get("memory_gib", 0.0) for record in records),
    }


def print_analysis(analysis: Analysis) -> None:
    """Tables for people, and a sentence on what holds the run up."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{analysis.steps:,} steps")
    for name in ("", "mean", "p50", "p90", "p99", "last"):
        table.add_column(name, justify="right" if name else "left")
    for name, summary in analysis.figures.items():
        table.add_row(name, *(f"{value:,.4g}" for value in summary.values()))
    console.print(table)
    workers = Table(title="Workers")
    for name in ("rank", "own seconds a step", "waited for data", "memory (GiB)"):
        workers.add_column(name, justify="right")
    for rank, worker in analysis.workers.items():
        mark = " slow" if rank in analysis.stragglers else ""
        workers.add_row(
            f"{rank}{mark}",
            f"{worker['own_seconds_per_step']:.4g}",
            f"{100 * worker['data_wait_share']:.1f} %",
            f"{worker['memory_gib']:.2f}",
        )
    console.print(workers)
    for line in conclusions(analysis):
        console.print(line)


def conclusions(analysis: Analysis) -> list[str]:
    """What the figures mean, and what to do."""
    lines = [f"{analysis.bound}-bound"]
    if analysis.bound == "data":
        lines[0] += ': raise "num_workers" in the DeepSpeed file, or --num-workers'
    if analysis.stragglers:
        ranks = ", ".join(map(str, analysis.stragglers))
        lines.append(f"slower than the median worker by over {100 * (STRAGGLER - 1):.0f} %: {ranks}; the others wait for it")
    return lines


def plot(logs: Mapping[int, Sequence[Record]], path: Path) -> None:
    """Loss, tokens a second, and each worker's own time for a step, over the steps, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    from luke.artifacts import replace_file

    figure, axes = pyplot.subplots(3, 1, figsize=(9, 9), sharex=True, layout="constrained")
    first = logs[min(logs)]
    steps = [record["step"] for record in first]
    for axis, name, label in zip(axes, ("loss", "tokens_per_second"), ("loss", "tokens/s"), strict=False):
        axis.plot(steps, [record.get(name, float("nan")) for record in first])
        axis.set_ylabel(label)
    for rank, records in logs.items():
        own = [record.get("own_seconds_per_step", record["seconds_per_step"]) for record in records]
        axes[2].plot([record["step"] for record in records], own, label=f"worker {rank}")
    axes[2].set_ylabel("own seconds a step")
    axes[2].set_xlabel("step")
    axes[2].legend()
    with replace_file(path) as stream:
        figure.savefig(stream, format="png", dpi=120)
    pyplot.close(figure)


def as_json(analysis: Analysis) -> str:
    """The analysis as a JSON object."""
    content: dict[str, Any] = {
        "steps": analysis.steps,
        "figures": analysis.figures,
        "workers": {str(rank): worker for rank, worker in analysis.workers.items()},
        "stragglers": analysis.stragglers,
        "bound": analysis.bound,
        "conclusions": conclusions(analysis),
    }
    return json.dumps(content, indent=2)


def follow(folder: Path, show: Callable[[Analysis], None], polls: int | None = None) -> None:
    """Shows the analysis again whenever the logs have grown, until interrupted, or for ``polls`` looks."""
    seen, looks = -1, 0
    while polls is None or looks < polls:
        looks += 1
        size = sum(path.stat().st_size for path in folder.glob("worker_*.log"))
        if size != seen:
            seen = size
            show(analyze(read_logs(folder)))
        if polls is None or looks < polls:
            time.sleep(_REFRESH_SECONDS)
