"""Progress of long work: a bar with rate and time left on a terminal, plain periodic lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, Self

_SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Counts units of work.

    Args:
        description: What is being done, such as ``pages``.
        total: The number of units, if known.
        unit: What is counted, shown behind the rate.
        done: Units that an earlier run did; they do not count for the rate.
    """

    def __init__(self, description: str, total: int | None = None, unit: str = "items", done: int = 0) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.count = self._done = done
        self._start = self._last_line = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.description, total=self.total, completed=self._done, note="")
        return self

    def advance(self, units: int = 1, note: str = "") -> None:
        """Adds ``units`` to the count; ``note`` is shown behind the rate."""
        self.count += units
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, advance=units, note=f"{self._rate(now)} {note}".strip())
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            print(self._line(now, note), file=sys.stderr, flush=True)

    def _rate(self, now: float) -> str:
        return f"{(self.count - self._done) / max(now - self._start, 1e-9):,.1f} {self.unit}/s"

    def _line(self, now: float, note: str) -> str:
        parts = [f"{self.description}: {self.count:,}"]
        if self.total:
            parts[0] += f" of {self.total:,}"
            left = (now - self._start) / max(self.count - self._done, 1) * (self.total - self.count)
            parts.append(f"{max(left, 0):.0f} s left")
        parts.insert(1, self._rate(now))
        if note:
            parts.append(note)
        return ", ".join(parts)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif error_type is None:
            print(self._line(time.monotonic(), "done"), file=sys.stderr, flush=True)
