"""From the items of an optimizer step to the micro batches of each process, and from items to flat tensors.

The unit of loading is the optimizer step. All processes cut its items into the same micro batches by their lengths alone,
so that how many processes there are, and how large a micro batch is, changes neither the items of a step nor its gradient.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from luke.model import PackedBatch
from luke.pretraining.dataset import Item, PretrainingDataset, Sample, SampleOrder
from luke.pretraining.masking import MaskedItem, Masker


def cut_step(lengths: Sequence[int], token_budget: int, world_size: int) -> list[list[int]]:
    """Cuts a step into micro batches of about equal size.

    The number of micro batches is the smallest multiple of ``world_size`` for which longest-first packing into the emptiest
    one keeps within the budget; an item longer than the budget has one of its own. Equal sizes keep processes in step.

    Args:
        lengths: Tokens of each item.
        token_budget: Tokens of a micro batch.
        world_size: Number of processes; it must not exceed the number of items.

    Returns:
        Item numbers of each micro batch; process r runs numbers r, r + world_size, …
    """
    longest_first = sorted(range(len(lengths)), key=lambda item: (-lengths[item], item))
    budget = max(token_budget, lengths[longest_first[0]])
    number = world_size * -(-sum(lengths) // (budget * world_size))
    while True:
        bins: list[list[int]] = [[] for _ in range(number)]
        emptiest = [(0, bin_) for bin_ in range(number)]
        for item in longest_first:
            tokens, bin_ = emptiest[0]
            if tokens + lengths[item] > budget and number < len(lengths):
                break
            bins[bin_].append(item)
            heapq.heapreplace(emptiest, (tokens + lengths[item], bin_))
        else:
            return [sorted(bin_) for bin_ in bins]
        number += world_size


def pack_items(items: Sequence[MaskedItem], cls_id: int, sep_id: int) -> PackedBatch:
    """Masked items -> one flat batch; [CLS] and [SEP] are put around each item's words."""
    word_lengths = np.array([len(item.word_ids) + 2 for item in items])
    entity_lengths = np.array([len(item.entity_ids) for item in items])
    word_starts = _starts(word_lengths)
    flat_starts = _starts(word_lengths + entity_lengths)

    word_ids = np.empty(word_lengths.sum(), np.int64)
    word_ids[word_starts] = cls_id
    word_ids[word_starts + word_lengths - 1] = sep_id
    inner = np.ones(len(word_ids), bool)
    inner[word_starts] = inner[word_starts + word_lengths - 1] = False
    word_ids[inner] = np.concatenate([item.word_ids for item in items])
    word_position_ids = np.arange(len(word_ids)) - np.repeat(word_starts, word_lengths)

    mention_starts = np.concatenate([item.item.entity_starts for item in items]).astype(np.int64) + 1
    mention_lengths = np.concatenate([item.item.entity_ends for item in items]).astype(np.int64) + 1 - mention_starts
    mention_offsets = np.concatenate([[0], np.cumsum(mention_lengths)])
    mention_position_ids = np.arange(mention_offsets[-1]) + np.repeat(mention_starts - mention_offsets[:-1], mention_lengths)

    is_entity = np.repeat(np.tile([False, True], len(items)), np.stack([word_lengths, entity_lengths], 1).ravel())
    token_order = np.empty(len(is_entity), np.int64)
    token_order[~is_entity] = np.arange(len(word_ids))
    token_order[is_entity] = np.arange(len(word_ids), len(is_entity))

    entity_starts = flat_starts + word_lengths
    in_vocabulary = np.array([item.item.page_id >= 0 for item in items])
    return PackedBatch(
        word_ids=torch.from_numpy(word_ids),
        word_position_ids=torch.from_numpy(word_position_ids),
        entity_ids=_concatenate([item.entity_ids for item in items]),
        mention_position_ids=torch.from_numpy(mention_position_ids),
        mention_offsets=torch.from_numpy(mention_offsets),
        token_order=torch.from_numpy(token_order),
        word_lengths=word_lengths.tolist(),
        entity_lengths=entity_lengths.tolist(),
        masked_word_index=_concatenate(
            [item.masked_word_positions + start + 1 for item, start in zip(items, flat_starts, strict=True)]
        ),
        masked_word_labels=_concatenate([item.masked_word_labels for item in items]),
        masked_entity_index=_concatenate(
            [item.masked_entity_positions + start for item, start in zip(items, entity_starts, strict=True)]
        ),
        masked_entity_labels=_concatenate([item.masked_entity_labels for item in items]),
        page_index=torch.from_numpy(flat_starts[in_vocabulary]),
        page_entity_ids=_concatenate([np.array([item.item.page_id for item in items if item.item.page_id >= 0], np.int64)]),
    )


def _starts(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.cumsum(lengths) - lengths


def _concatenate(arrays: Sequence[npt.NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.int64))


class StepBatches(NamedTuple):
    """What one process runs in one optimizer step."""

    step: int
    samples: list[list[Sample]]
    micro_batches: list[PackedBatch]


class StepLoader(torch.utils.data.Dataset[StepBatches]):
    """``loader[step]`` is what a process runs in that step: the same for any number of loader workers, at any restart.

    Args:
        datasets: What is mixed.
        order: The order of samples.
        masker: Masks an item.
        cls_id, sep_id: Word ids put around an item.
        batch_size: Items of a step, over all processes.
        token_budget: Tokens of a micro batch.
        rank, world_size: This process and their number.
        word_only: Leave out the entities.
    """

    def __init__(
        self,
        datasets: Sequence[PretrainingDataset],
        order: SampleOrder,
        masker: Masker,
        cls_id: int,
        sep_id: int,
        batch_size: int,
        token_budget: int,
        rank: int = 0,
        world_size: int = 1,
        word_only: bool = False,
    ) -> None:
        self.datasets, self.order, self.masker = datasets, order, masker
        self.cls_id, self.sep_id = cls_id, sep_id
        self.batch_size, self.token_budget = batch_size, token_budget
        self.rank, self.world_size = rank, world_size
        self.word_only = word_only

    def __getitem__(self, step: int) -> StepBatches:
        samples = [self.order[k] for k in range(step * self.batch_size, (step + 1) * self.batch_size)]
        lengths = [self.datasets[sample.dataset].num_tokens(sample.row) for sample in samples]
        cut = cut_step(lengths, self.token_budget, self.world_size)[self.rank :: self.world_size]
        mine = [[samples[number] for number in micro_batch] for micro_batch in cut]
        return StepBatches(step, mine, [self._pack(micro_batch) for micro_batch in mine])

    def _pack(self, samples: Sequence[Sample]) -> PackedBatch:
        items = [self.datasets[sample.dataset][sample.row] for sample in samples]
        if self.word_only:
            items = [Item(-1, item.word_ids, *(item.entity_ids[:0],) * 3) for item in items]
        masked = [self.masker(item, sample) for item, sample in zip(items, samples, strict=True)]
        return pack_items(masked, self.cls_id, self.sep_id)
