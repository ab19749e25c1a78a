"""Reading pretraining items, and their order: arithmetic on (seed, sample number), so that resuming costs the same at any
step and holds for any number of processes, workers and micro batches."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from luke.artifacts import Metadata, read_metadata
from luke.errors import UserError

KIND = "pretraining-dataset"
HELD_OUT = "held_out"

# Samples that one draw of the mixture covers: large, so that each dataset's share of a block is exact to one sample.
_MIXTURE_BLOCK = 1 << 16
_CACHED_PERMUTATIONS = 4

Array = npt.NDArray[Any]


class Item(NamedTuple):
    """One sequence: ``word_ids`` (W,), ``entity_ids`` (E,), and each mention's token span [start, end) into the words.

    ``page_id`` is the entity id of the page, -1 if it has none. All arrays are views into the memory-mapped file.
    """

    page_id: int
    word_ids: Array
    entity_ids: Array
    entity_starts: Array
    entity_ends: Array


class _Column(NamedTuple):
    offsets: Array
    values: Array

    def __getitem__(self, row: Any) -> Any:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


def _list_column(array: pa.ListArray) -> _Column:
    return _Column(array.offsets.to_numpy(), array.values.to_numpy())


class PretrainingDataset:
    """The items of a dataset folder, memory-mapped.

    Args:
        folder: What ``build-wikipedia-pretraining-dataset`` wrote.
        held_out: Read the held-out items instead.

    Raises:
        UserError: ``folder`` is not a pretraining dataset, or has no held-out items.
    """

    def __init__(self, folder: Path, held_out: bool = False) -> None:
        self.folder, self.held_out = folder, held_out
        self.metadata: Metadata = read_metadata(folder, KIND)
        items = folder / HELD_OUT if held_out else folder
        files = sorted(items.glob("data-*.arrow"))
        if not files:
            raise UserError(
                f"{folder}: has no held-out items; build it with --held-out-fraction"
                if held_out
                else f"{folder}: the dataset's data files are missing; build it again"
            )
        self._batches: list[pa.RecordBatch] = []
        for file in files:
            try:
                with pa.ipc.open_stream(pa.memory_map(str(file))) as reader:
                    self._batches.extend(reader)
            except (OSError, pa.ArrowInvalid) as error:
                raise UserError(f"{file}: cannot be read as Arrow: {error}; build the dataset again") from None
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._columns: list[tuple[Array, _Column, _Column, _Column, _Column] | None] = [None] * len(self._batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.held_out)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _columns_of(self, number: int) -> tuple[Array, _Column, _Column, _Column, _Column]:
        columns = self._columns[number]
        if columns is None:
            batch = self._batches[number]
            lists = (_list_column(batch[name]) for name in ("word_ids", "entity_ids", "entity_starts", "entity_ends"))
            columns = self._columns[number] = (batch["page_id"].to_numpy(), *lists)
        assert columns is not None
        return columns

    def _locate(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return number, index - int(self._starts[number])

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number, row = self._locate(index)
        page_ids, *columns = self._columns_of(number)
        return Item(int(page_ids[row]), *(column[row] for column in columns))

    def num_tokens(self, index: int) -> int:
        """W + E of an item, with [CLS] and [SEP], without reading its tokens."""
        number, row = self._locate(index)
        _, words, entities, _, _ = self._columns_of(number)
        size = words.offsets[row + 1] - words.offsets[row] + entities.offsets[row + 1] - entities.offsets[row]
        return int(size) + 2


# What datasets, checkpoints and models must share to go together, and what it is called.
PART_NAMES = {"tokenizer": "tokenizers", "entity_vocab": "entity vocabularies"}


def open_datasets(pattern: str) -> list[PretrainingDataset]:
    """The datasets that a path or glob names, which must share tokenizer and vocabulary.

    Raises:
        UserError: there is none, or two do not belong together (both named).
    """
    # Path.glob wants a root apart from the pattern, and does not expand an absolute pattern.
    folders = sorted(Path(name) for name in glob.glob(pattern) if Path(name).is_dir())  # noqa: PTH207
    if not folders:
        raise UserError(
            f"--dataset-dir {pattern}: no dataset there; build one with luke build-wikipedia-pretraining-dataset"
        )
    datasets = [PretrainingDataset(folder) for folder in folders]
    for dataset in datasets[1:]:
        for part in ("tokenizer", "entity_vocab"):
            if dataset.metadata[f"{part}_fingerprint"] != datasets[0].metadata[f"{part}_fingerprint"]:
                raise UserError(f"{datasets[0].folder} and {dataset.folder} were built with different {PART_NAMES[part]}")
    return datasets


class Sample(NamedTuple):
    """Which item is read at a place of the training order: number ``row`` of ``dataset`` in its pass ``epoch``."""

    dataset: int
    epoch: int
    row: int


@dataclass
class SampleOrder:
    """The order of training: ``order[k]`` is sample k.

    Each dataset is shuffled anew in each of its passes. Several are mixed with probabilities ∝ size^smoothing.

    Args:
        sizes: Items of each dataset.
        seed: The run's seed.
        smoothing: 1 draws in proportion to size, 0 equally.

    Raises:
        UserError: a dataset's share of the mixture is too small to be exact.
    """

    sizes: Sequence[int]
    seed: int
    smoothing: float = 0.7

    def __post_init__(self) -> None:
        weights = np.array(self.sizes, np.float64) ** self.smoothing
        if (weights / weights.sum()).min() * _MIXTURE_BLOCK < 2:
            raise UserError(f"a dataset of {min(self.sizes)} items is too small to be mixed with {max(self.sizes)}")
        self._cumulative = np.concatenate([[0.0], np.cumsum(weights / weights.sum())])
        self._cumulative[-1] = 1.0
        self._permutations: dict[tuple[int, int], Array] = {}
        self._block: tuple[int, Array, Array] | None = None

    def __getitem__(self, sample: int) -> Sample:
        dataset, rank = self._mixture(sample) if len(self.sizes) > 1 else (0, sample)
        epoch, place = divmod(rank, self.sizes[dataset])
        return Sample(dataset, epoch, int(self._permutation(dataset, epoch)[place]))

    def _mixture(self, sample: int) -> tuple[int, int]:
        """(dataset, how many of its samples came before). Counts at block borders are floors of cumulative shares, so they
        are exact at any distance; within a block the order is random."""
        number, place = divmod(sample, _MIXTURE_BLOCK)
        if self._block is None or self._block[0] != number:
            before = np.diff(np.floor(self._cumulative * (number * _MIXTURE_BLOCK))).astype(np.int64)
            after = np.diff(np.floor(self._cumulative * ((number + 1) * _MIXTURE_BLOCK))).astype(np.int64)
            datasets = np.repeat(np.arange(len(before)), after - before)
            np.random.default_rng([self.seed, 1, number]).shuffle(datasets)
            ranks = np.empty(len(datasets), np.int64)
            for dataset in range(len(before)):
                mine = datasets == dataset
                ranks[mine] = before[dataset] + np.arange(mine.sum())
            self._block = number, datasets, ranks
        _, datasets, ranks = self._block
        return int(datasets[place]), int(ranks[place])

    def _permutation(self, dataset: int, epoch: int) -> Array:
        key = dataset, epoch
        if key not in self._permutations:
            while len(self._permutations) >= _CACHED_PERMUTATIONS * len(self.sizes):
                self._permutations.pop(next(iter(self._permutations)))
            size = self.sizes[dataset]
            numbers = np.arange(size, dtype=np.int32 if size < 2**31 else np.int64)
            np.random.default_rng([self.seed, 0, dataset, epoch]).shuffle(numbers)
            self._permutations[key] = numbers
        return self._permutations[key]
