"""The report of a run of two stages: held-out figures beside the baselines, loss and speed curves, example predictions.

The report is one plain dictionary, which is ``report.json``; the page and the terminal's tables are made from it alone.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from luke.artifacts import StagedFolder, fingerprint_value, write_json
from luke.errors import UserError
from luke.pretraining.logs import METRICS_FILE

KIND = "pretraining-report"
HTML_FILE, JSON_FILE = "report.html", "report.json"
MODELS = {"before": "before training", "stage_1": "after stage 1", "stage_2": "after stage 2"}
RUNS = {"stage_1": "Stage 1", "stage_2": "Stage 2"}
BASELINES = {"most_frequent": "most-frequent-entity baseline", "same_anchor": "anchor-text baseline"}
_BASELINE_ROWS = {"most_frequent": "most frequent entity", "same_anchor": "same anchor text"}
RANK_FIGURES = {
    "accuracy_at_1": "accuracy@1",
    "accuracy_at_5": "accuracy@5",
    "mean_reciprocal_rank": "mean reciprocal rank",
}
_LOSSES = ("masked_lm_loss", "masked_entity_loss")

# What an evaluation must hold.
_REQUIRED = {
    "masked_words": ("loss", "accuracy", "count"),
    "masked_entities": ("loss", *RANK_FIGURES, "count"),
    "baselines.most_frequent": tuple(RANK_FIGURES),
    "baselines.same_anchor": tuple(RANK_FIGURES),
}
_MAKE_IT = "make it with luke evaluate-pretraining"
_EXAMPLE_KEYS = ("before", "mention", "after", "entity", "rank", "best")
# What each line of metrics.jsonl must hold.
_COLUMNS = (
    "step",
    "tokens_per_second",
    "entities_per_second",
    "padding_share",
    "data_wait_share",
    "seconds_per_step",
    "memory_gib",
)
_CURVE_POINTS = 500
_SMOOTHING_SHARE = 0.05
_TEMPLATE = "report.html.jinja"

Report = dict[str, Any]
Floats = npt.NDArray[np.float64]


def write_report(
    before: Path, stage1: Path, stage2: Path, stage1_run: Path, stage2_run: Path, output: Path, title: str
) -> Report:
    """Writes ``report.html``, one self-contained page, and ``report.json`` into the folder ``output``.

    Args:
        before, stage1, stage2: Evaluations (`luke.pretraining.evaluate`) before training and after each stage.
        stage1_run, stage2_run: Output folders of the runs, with their ``metrics.jsonl``.
        output: The folder; it appears whole.
        title: The page's heading.

    Returns:
        What ``report.json`` holds.

    Raises:
        UserError: an input is missing or broken (named), the evaluations cannot be compared, a library for the figures is
            not installed, or ``output`` holds something else.
    """
    sources = {"before": before, "stage_1": stage1, "stage_2": stage2}
    evaluations = {name: read_evaluation(path) for name, path in sources.items()}
    runs = {name: read_metrics(folder) for name, folder in (("stage_1", stage1_run), ("stage_2", stage2_run))}
    report = build_report(evaluations, runs, sources, title)
    plan = {"options": {"title": title}, "inputs": _inputs(evaluations, runs, sources, stage1_run, stage2_run)}
    with StagedFolder(output, KIND, plan) as folder:
        if not folder.done:
            page = render_html(report)
            (folder.work / HTML_FILE).write_text(page, encoding="utf-8")
            write_json(folder.work / JSON_FILE, report)
            folder.finish()
    return report


def _inputs(
    evaluations: Mapping[str, Any],
    runs: Mapping[str, Any],
    sources: Mapping[str, Path],
    stage1_run: Path,
    stage2_run: Path,
) -> dict[str, Any]:
    inputs = {
        f"evaluation {name}": {"path": str(sources[name]), "fingerprint": fingerprint_value(evaluation)}
        for name, evaluation in evaluations.items()
    }
    for name, folder in (("stage_1", stage1_run), ("stage_2", stage2_run)):
        metrics = {column: values.tolist() for column, values in runs[name].items()}
        inputs[f"run {name}"] = {"path": str(folder), "fingerprint": fingerprint_value(metrics)}
    return inputs


def read_evaluation(path: Path) -> dict[str, Any]:
    """An evaluation, checked to hold all that the report needs.

    Raises:
        UserError: no such file, not JSON, or something is missing in it (named).
    """
    try:
        evaluation = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: not found; {_MAKE_IT}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    for block, names in _REQUIRED.items():
        for name in names:
            if not _is_number(_lookup(evaluation, f"{block}.{name}")):
                raise UserError(f"{path}: not an evaluation: the number {block}.{name} is missing; {_MAKE_IT}")
    for name in ("made_from.inputs.dataset.fingerprint", "made_from.options.comparable.masking"):
        if _lookup(evaluation, name) is None:
            raise UserError(f"{path}: not an evaluation: {name} is missing; {_MAKE_IT}")
    examples = evaluation.get("examples")
    if not isinstance(examples, list) or not all(_is_example(example) for example in examples):
        raise UserError(f"{path}: not an evaluation: its examples are missing or lack one of {', '.join(_EXAMPLE_KEYS)}")
    return dict(evaluation)


def _lookup(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_example(value: Any) -> bool:
    return isinstance(value, dict) and set(_EXAMPLE_KEYS) <= set(value) and isinstance(value["best"], list)


def read_metrics(run: Path) -> dict[str, Floats]:
    """The figures of a run, a float64 array (L,) for each over its L log lines; NaN where a line has none.

    Raises:
        UserError: the run has no ``metrics.jsonl``, or a line of it is broken (named).
    """
    path = run / METRICS_FILE
    try:
        # A run in progress may have written half a line.
        lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: not found; give the output folder of luke pretrain") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    rows = [_metrics_line(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]
    if not rows:
        raise UserError(f"{path}: holds no figures; has the run made a step?")
    if not any(name in row for row in rows for name in _LOSSES):
        raise UserError(f"{path}: holds neither {' nor '.join(_LOSSES)}")
    names = sorted({name for row in rows for name in row})
    return {name: np.array([row.get(name, math.nan) for row in rows], np.float64) for name in names}


def _metrics_line(line: str, where: str) -> dict[str, float]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg}") from None
    for name in _COLUMNS:
        if not _is_number(_lookup(row, name)):
            raise UserError(f"{where}: the number {name} is missing")
    return {name: float(value) for name, value in row.items() if _is_number(value)}


def build_report(
    evaluations: Mapping[str, dict[str, Any]], runs: Mapping[str, dict[str, Floats]], sources: Mapping[str, Path], title: str
) -> Report:
    """All numbers of the report.

    Args:
        evaluations: What `read_evaluation` returned, by the keys of `MODELS`.
        runs: What `read_metrics` returned, by the keys of `RUNS`.
        sources: The evaluations' files, for messages.
        title: The heading.

    Raises:
        UserError: the evaluations are of different datasets, or masked differently.
    """
    _check_comparable(evaluations, sources)
    models = {
        name: {block: evaluation[block] for block in ("masked_words", "masked_entities")}
        for name, evaluation in evaluations.items()
    }
    last = evaluations["stage_2"]
    baselines = last["baselines"]
    report = {
        "title": title,
        "models": models,
        "baselines": baselines,
        "accuracy_at_1_over_most_frequent": _ratio(
            models["stage_2"]["masked_entities"]["accuracy_at_1"], baselines["most_frequent"]["accuracy_at_1"]
        ),
        "findings": findings(models, baselines),
        "made_from": {name: evaluation["made_from"] for name, evaluation in evaluations.items()},
        "runs": {name: {"summary": summarize(metrics), "curves": curves(metrics)} for name, metrics in runs.items()},
        "examples": _examples(evaluations),
    }
    finite: Report = _without_nan(report)
    return finite


def _check_comparable(evaluations: Mapping[str, dict[str, Any]], sources: Mapping[str, Path]) -> None:
    def conditions(name: str) -> tuple[Any, Any]:
        source = evaluations[name]["made_from"]
        return source["inputs"]["dataset"]["fingerprint"], source["options"]["comparable"]

    for name in ("stage_1", "stage_2"):
        for what, ours, theirs in zip(
            ("on different datasets", "with different masks or passes"), conditions("before"), conditions(name), strict=True
        ):
            if ours != theirs:
                raise UserError(f"{sources['before']} and {sources[name]} were evaluated {what}; they cannot be compared")


def _ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _examples(evaluations: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Stage 2's examples, each with its rank by every model (None where that model's evaluation does not list it)."""

    def key(example: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(example[name] for name in ("before", "mention", "after", "entity"))

    ranks = {name: {key(example): example["rank"] for example in value["examples"]} for name, value in evaluations.items()}
    return [
        {
            **{name: example[name] for name in _EXAMPLE_KEYS},
            "ranks": {name: ranks[name].get(key(example)) for name in MODELS},
        }
        for example in evaluations["stage_2"]["examples"]
    ]


def summarize(metrics: Mapping[str, Floats]) -> dict[str, float]:
    """A run in a few numbers: rates and shares are means over its time, memory is the peak."""
    steps = np.diff(metrics["step"], prepend=0.0)
    seconds = metrics["seconds_per_step"] * steps
    means = {
        name: float(np.average(metrics[name], weights=seconds)) if seconds.sum() > 0 else math.nan
        for name in ("tokens_per_second", "entities_per_second", "padding_share", "data_wait_share")
    }
    return {
        "steps": float(metrics["step"][-1]),
        "seconds": float(seconds.sum()),
        "seconds_per_step": float(seconds.sum() / max(1.0, metrics["step"][-1])),
        **means,
        "memory_gib": float(metrics["memory_gib"].max()),
    }


def curves(metrics: Mapping[str, Floats]) -> dict[str, list[float]]:
    """Each figure over the steps, as at most 500 points (means of neighbours), and smoothed losses."""
    lines = len(metrics["step"])
    width = -(-lines // _CURVE_POINTS)
    starts = range(0, lines, width)
    thinned = {name: np.array([_mean(values[k : k + width]) for k in starts]) for name, values in metrics.items()}
    smoothed = {f"{name}_smoothed": smooth(thinned[name]) for name in _LOSSES if name in thinned}
    return {name: values.tolist() for name, values in {**thinned, **smoothed}.items()}


def _mean(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def smooth(values: Floats) -> Floats:
    """The centred moving mean over 5 % of the points, over fewer at the ends; values that are not finite do not count."""
    half = round(len(values) * _SMOOTHING_SHARE / 2)
    return np.array([_mean(values[max(0, place - half) : place + half + 1]) for place in range(len(values))])


def findings(models: Mapping[str, Any], baselines: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What the numbers say, in sentences computed from them: also where a baseline wins."""
    before, after = models["before"], models["stage_2"]
    entities = after["masked_entities"]
    sentences = [compare(entities, baselines[name], f"the {what}") for name, what in BASELINES.items()]
    right, base = entities["accuracy_at_1"], baselines["most_frequent"]["accuracy_at_1"]
    ratio = _ratio(right, base)
    sentences.insert(
        1,
        f"After stage 2, accuracy@1 is {ratio:.1f} times that of the most-frequent-entity baseline."
        if ratio is not None
        else "The most-frequent-entity baseline is never right here, so there is no ratio of accuracy@1 to it.",
    )
    for block, what in (("masked_words", "Masked-word"), ("masked_entities", "Masked-entity")):
        first, last = before[block]["loss"], after[block]["loss"]
        sentences.append(
            f"{what} loss {_change(first, last)} from {first:.3f} before training to {last:.3f} after stage 2 "
            f"({models['stage_1'][block]['loss']:.3f} after stage 1)."
        )
    return sentences


def _change(first: float, last: float) -> str:
    return "fell" if last < first else "rose" if last > first else "went"


def compare(model: Mapping[str, float], baseline: Mapping[str, float], name: str) -> str:
    """One sentence that says at which rank figures the model after stage 2 or the baseline ``name`` is better."""
    sides = (f"{name} is better than the model after stage 2 at", f"the model after stage 2 is better than {name} at")
    equal = f"the model after stage 2 and {name} are equal at"
    figures: dict[str, list[str]] = {clause: [] for clause in (*sides, equal)}
    for figure, words in RANK_FIGURES.items():
        ours, theirs = model[figure], baseline[figure]
        clause = equal if ours == theirs else sides[ours > theirs]
        figures[clause].append(f"{words} ({show(figure, max(ours, theirs))} against {show(figure, min(ours, theirs))})")
    sentence = "; ".join(f"{clause} {_listing(parts)}" for clause, parts in figures.items() if parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _listing(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def show(figure: str, value: float | None) -> str:
    """A figure for people: accuracies and shares in per cent, losses and reciprocal ranks with three decimals."""
    if value is None:
        return "–"
    if figure.startswith("accuracy") or figure.endswith("_share"):
        return f"{100 * value:.1f} %" if value >= 0.1 or value == 0 else f"{100 * value:.2f} %"
    return f"{value:.3f}"


# The columns of the table of held-out figures: (block, figure, heading, 1 if more is better, -1 if less is).
_TABLE = (
    ("masked_words", "loss", "loss", -1),
    ("masked_words", "accuracy", "accuracy", 1),
    ("masked_entities", "loss", "loss", -1),
    ("masked_entities", "accuracy_at_1", "accuracy@1", 1),
    ("masked_entities", "accuracy_at_5", "accuracy@5", 1),
    ("masked_entities", "mean_reciprocal_rank", "MRR", 1),
)


def figure_rows(
    models: Mapping[str, Any], baselines: Mapping[str, Mapping[str, float]]
) -> list[tuple[str, list[tuple[str, bool]]]]:
    """The table of held-out figures: a row for each model and baseline, of cells (text, whether the column's best)."""
    entries = {**models, **{_BASELINE_ROWS[name]: {"masked_entities": figures} for name, figures in baselines.items()}}
    columns = []
    for block, figure, _, sign in _TABLE:
        values = [entry.get(block, {}).get(figure) for entry in entries.values()]
        best = max((sign * value for value in values if value is not None), default=None)
        columns.append([(show(figure, value), value is not None and sign * value == best) for value in values])
    return [(name, [column[row] for column in columns]) for row, name in enumerate(entries)]


def print_figures(models: Mapping[str, Any], baselines: Mapping[str, Mapping[str, float]]) -> None:
    """Prints the held-out figures of models, by name, and of the baselines as a table."""
    from rich.table import Table

    table = Table(title="Held-out masked words (W) and masked entities (E), beside what counting links gives")
    table.add_column("")
    for block, _, heading, _ in _TABLE:
        table.add_column(f"{'W' if block == 'masked_words' else 'E'} {heading}", justify="right")
    rows = figure_rows(models, baselines)
    for number, (name, cells) in enumerate(rows, start=1):
        table.add_row(name, *(text for text, _ in cells), end_section=number == len(models))
    _console().print(table)


def print_report(report: Report) -> None:
    """Prints the report's figures and findings."""
    from rich.table import Table

    print_figures({MODELS[name]: figures for name, figures in report["models"].items()}, report["baselines"])
    headings, rows = run_rows(report)
    table = Table(title="Training")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console = _console()
    console.print(table)
    for sentence in report["findings"]:
        console.print(f"- {sentence}")


def _console() -> Any:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, emoji=False, width=100)


def run_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """The table of the runs: headings and a row for each stage."""
    headings = ["", "steps", "minutes", "s/step", "words/s", "entities/s", "data wait", "padding", "peak memory"]
    rows = []
    for name, label in RUNS.items():
        summary = report["runs"][name]["summary"]
        rows.append(
            [
                label,
                _count(summary["steps"]),
                f"{summary['seconds'] / 60:.1f}",
                f"{summary['seconds_per_step']:.2f}",
                _count(summary["tokens_per_second"]),
                _count(summary["entities_per_second"]),
                show("data_wait_share", summary["data_wait_share"]),
                show("padding_share", summary["padding_share"]),
                f"{summary['memory_gib']:.2f} GiB",
            ]
        )
    return headings, rows


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def render_html(report: Report) -> str:
    """The report as one page that needs no other file. All text is escaped.

    Raises:
        UserError: matplotlib or Jinja is not installed.
    """
    try:
        import jinja2

        from luke.pretraining.report_figures import loss_figure, speed_figure
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; the report needs it: pip install 'luke[pretraining]'") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    headings, rows = run_rows(report)
    return environment.get_template(_TEMPLATE).render(
        report=report,
        models=MODELS,
        columns=_TABLE,
        figures=figure_rows({MODELS[name]: figures for name, figures in report["models"].items()}, report["baselines"]),
        run_headings=headings,
        run_rows=rows,
        # Made here, of numbers alone: the only text that goes in unescaped.
        loss_figure=jinja2.utils.markupsafe.Markup(loss_figure(report["runs"])),
        speed_figure=jinja2.utils.markupsafe.Markup(speed_figure(report["runs"])),
        show=show,
    )
