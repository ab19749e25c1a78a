"""The figures of the steps between two log lines."""

import contextlib
import time
from collections.abc import Iterator

import torch

from luke.model import PackedBatch
from luke.pretraining.engine import Engine, Processes
from luke.pretraining.logs import memory_gib


class Meter:
    """Means over steps and processes. Tokens are word tokens with [CLS] and [SEP], without padding."""

    def __init__(self, processes: Processes) -> None:
        self.processes, self.steps = processes, 0
        self._start, self._waited, self._computed_for = time.perf_counter(), 0.0, 0.0
        self._figures: dict[str, float] = {}
        self._words = self._entities = self._computed = 0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Times what happens inside as waiting for data."""
        begin = time.perf_counter()
        yield
        self._waited += time.perf_counter() - begin

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Times what happens inside as this process's own work, for which no other process is waited for."""
        begin = time.perf_counter()
        yield
        self._computed_for += time.perf_counter() - begin

    def add(self, figures: dict[str, float], micro_batches: list[PackedBatch]) -> None:
        """Adds a step: losses and accuracies over all processes, and what this process ran."""
        self.steps += 1
        for name, value in figures.items():
            self._figures[name] = self._figures.get(name, 0.0) + value
        for batch in micro_batches:
            self._words += batch.word_ids.numel()
            self._entities += batch.entity_ids.numel()
            self._computed += batch.token_order.numel()

    def read(self, step: int, engine: Engine) -> dict[str, float]:
        """The figures since the last reading."""
        local = torch.tensor([self._words, self._entities, self._computed, self._waited], dtype=torch.float64)
        words, entities, computed, waited = self.processes.sum(local).tolist()
        seconds = time.perf_counter() - self._start
        means = {name: value / self.steps for name, value in self._figures.items()}
        return {
            "step": step,
            "loss": sum(value for name, value in means.items() if name.endswith("_loss")),
            **means,
            "learning_rate": engine.learning_rate,
            "grad_norm": engine.grad_norm,
            "tokens_per_second": words / seconds,
            "entities_per_second": entities / seconds,
            "padding_share": 1 - (words + entities) / max(1, computed),
            "data_wait_share": waited / (seconds * self.processes.data_world_size),
            "seconds_per_step": seconds / self.steps,
            "memory_gib": memory_gib(self.processes.device),
        }

    def read_own(self) -> dict[str, float]:
        """What is this process's own, which tells the one that the others wait for: seconds of a step spent on forward and
        backward passes, and the share of its time waited for data."""
        seconds = time.perf_counter() - self._start
        return {"own_seconds_per_step": self._computed_for / self.steps, "own_data_wait_share": self._waited / seconds}
