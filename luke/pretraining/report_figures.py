"""The report's figures: SVG for the inside of a page, in the page's own colours and font, light and dark."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from luke.pretraining.report import RUNS

# Matplotlib knows no CSS variables: these stand for them until the SVG is written.
_INK, _MUTED, _GRID, _FIRST, _SECOND = (f"#0a0b0{number}" for number in range(1, 6))
_VARIABLES = {_INK: "ink", _MUTED: "muted", _GRID: "rule", _FIRST: "first", _SECOND: "second"}
_STYLE: Any = {
    "figure.constrained_layout.h_pad": 0.08,
    "svg.fonttype": "none",
    "svg.hashsalt": "luke",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _MUTED,
    "axes.titlecolor": _INK,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "text.color": _INK,
    "legend.frameon": False,
}
_LOSSES = {"masked_lm_loss": ("words", _FIRST), "masked_entity_loss": ("entities", _SECOND)}

Runs = Mapping[str, Mapping[str, Any]]
_WIDTH, _ROW_HEIGHT = 9.6, 2.3


def loss_figure(runs: Runs) -> str:
    """Training losses: a row for words and one for entities, a column for each stage. Light: as logged; strong: smoothed."""
    names = [name for name in _LOSSES if any(name in run["curves"] for run in runs.values())]
    with matplotlib.rc_context(_STYLE):
        figure, panels = _panels(len(names))
        for row, name in zip(panels, names, strict=True):
            what, colour = _LOSSES[name]
            for axes, (stage, label) in zip(row, RUNS.items(), strict=True):
                axes.set_title(f"{label}: masked {what}")
                curve = runs[stage]["curves"]
                if name in curve:
                    _line(axes, curve["step"], curve[name], colour, alpha=0.3, linewidth=0.8)
                    _line(axes, curve["step"], curve[f"{name}_smoothed"], colour, linewidth=1.8)
            row[0].set_ylabel("cross entropy")
        return _svg(figure, "Training loss of masked words and masked entities over the steps of stage 1 and stage 2")


def speed_figure(runs: Runs) -> str:
    """Throughput, and the shares of time waited for data and of padding, over the steps of each stage."""
    with matplotlib.rc_context(_STYLE):
        figure, panels = _panels(2)
        for axes, (stage, label) in zip(panels[0], RUNS.items(), strict=True):
            curve = runs[stage]["curves"]
            axes.set_title(f"{label}: word tokens per second")
            _line(axes, curve["step"], curve["tokens_per_second"], _FIRST, linewidth=1.2)
            axes.set_ylim(bottom=0)
        for axes, (stage, label) in zip(panels[1], RUNS.items(), strict=True):
            curve = runs[stage]["curves"]
            axes.set_title(f"{label}: data wait and padding")
            for name, text, colour in (
                ("data_wait_share", "data wait, share of the time", _FIRST),
                ("padding_share", "padding, share of the tokens", _SECOND),
            ):
                per_cent = [None if value is None else 100 * value for value in curve[name]]
                _line(axes, curve["step"], per_cent, colour, linewidth=1.2, label=text)
            axes.set_ylim(bottom=0)
        panels[1][0].set_ylabel("per cent")
        figure.legend(*panels[1][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return _svg(figure, "Word tokens per second, data-wait share and padding share over the steps of both stages")


def _panels(rows: int) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    figure = Figure(figsize=(_WIDTH, _ROW_HEIGHT * rows), layout="constrained")
    panels: Any = figure.subplots(rows, len(RUNS), sharey="row", squeeze=False)
    for axes in panels[-1]:
        axes.set_xlabel("optimizer step")
    return figure, panels


def _line(axes: Axes, steps: Sequence[float], values: Sequence[float | None], colour: str, **style: Any) -> None:
    known = [math.nan if value is None else value for value in values]
    # A line of one point is invisible.
    axes.plot(steps, known, color=colour, marker="o" if len(steps) == 1 else None, **style)


def _svg(figure: Figure, description: str) -> str:
    """The figure as an SVG element with ``description`` as its text for those who do not see it."""
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    drawing = stream.getvalue()
    for colour, variable in _VARIABLES.items():
        drawing = drawing.replace(colour, f"var(--{variable})")
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", drawing, count=1, flags=re.DOTALL)
    drawing = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawing, count=1)
    drawing = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawing, count=1)
    return drawing.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)
