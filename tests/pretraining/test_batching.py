from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from luke.model import LukeForPretraining, pack_padded
from luke.pretraining.batching import StepBatches, StepLoader, cut_step, pack_items
from luke.pretraining.dataset import PretrainingDataset, Sample, SampleOrder
from luke.pretraining.masking import Masker, MaskingOptions

from ..test_model import tiny_config
from .items import random_item, write_dataset
from .test_masking import ENTITIES, vocab

CLS, SEP = 1, 2


def masker(**options: object) -> Masker:
    return Masker(MaskingOptions(**options), vocab(), ENTITIES, seed=9)  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 600), min_size=4, max_size=60), st.integers(1, 3000), st.integers(1, 4))
def test_a_step_is_cut_within_the_budget_for_any_number_of_processes(lengths: list[int], budget: int, world: int) -> None:
    bins = cut_step(lengths, budget, world)
    assert sorted(item for bin_ in bins for item in bin_) == list(range(len(lengths)))
    assert len(bins) % world == 0
    within = [sum(lengths[i] for i in bin_) <= max(budget, max(lengths)) for bin_ in bins]
    assert all(within) or len(bins) >= len(lengths)


def test_micro_batches_are_full() -> None:
    lengths = np.random.default_rng(0).integers(100, 500, 256).tolist()
    bins = cut_step(lengths, 2048, 2)
    assert sum(lengths) / (len(bins) * 2048) > 0.9


def test_packed_items_equal_padded_ones_in_loss_and_gradient() -> None:
    """Packing items is the same as padding them, and as running them one by one: nothing crosses items."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = LukeForPretraining(tiny_config(vocab_size=200, entity_vocab_size=ENTITIES), cls_entity_prediction=True)
    items = [random_item(rng, words, entities) for words, entities in ((40, 6), (7, 0), (60, 12), (1, 1))]
    masked = [masker()(item, Sample(0, 0, row)) for row, item in enumerate(items)]

    def gradients(groups: list[list[int]]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        model.zero_grad()
        sums: dict[str, float] = {}
        for group in groups:
            parts = model(pack_items([masked[i] for i in group], CLS, SEP))
            sum(v for k, v in parts.items() if k.endswith("loss")).backward()  # type: ignore[union-attr]
            for name, value in parts.items():
                sums[name] = sums.get(name, 0.0) + value.item()
        return sums, {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}

    together, packed = gradients([[0, 1, 2, 3]])
    for groups in ([[0], [1], [2], [3]], [[3, 0], [2, 1]]):
        alone, single = gradients(groups)
        assert alone == pytest.approx(together, rel=1e-5)
        for name, gradient in packed.items():
            torch.testing.assert_close(gradient, single[name], atol=1e-5, rtol=1e-4, msg=name)


def test_packing_agrees_with_padding() -> None:
    rng = np.random.default_rng(1)
    items = [random_item(rng, words, entities) for words, entities in ((9, 3), (4, 0), (12, 2))]
    masked = [masker()(item, Sample(0, 0, row)) for row, item in enumerate(items)]
    batch = pack_items(masked, CLS, SEP)
    words = torch.zeros(3, 14, dtype=torch.long)
    entities = torch.zeros(3, 3, dtype=torch.long)
    positions = torch.full((3, 3, 4), -1)
    for row, m in enumerate(masked):
        words[row, : len(m.word_ids) + 2] = torch.tensor([CLS, *m.word_ids, SEP])
        entities[row, : len(m.entity_ids)] = torch.tensor(m.entity_ids)
        for e, (start, end) in enumerate(zip(m.item.entity_starts, m.item.entity_ends, strict=True)):
            positions[row, e, : end - start] = torch.arange(int(start), int(end)) + 1
    padded = pack_padded(words, words != 0, entities, entities != 0, positions)
    for name in ("word_ids", "word_position_ids", "entity_ids", "mention_position_ids", "mention_offsets", "token_order"):
        assert torch.equal(getattr(batch, name), getattr(padded, name)), name
    assert batch.sequence_lengths == padded.sequence_lengths
    flat = torch.cat([batch.word_ids, batch.entity_ids])[batch.token_order]
    both = [m.word_ids[m.masked_word_positions] for m in masked]
    assert flat[batch.masked_word_index].tolist() == np.concatenate(both).tolist()
    assert flat[batch.masked_entity_index].tolist() == [2] * len(batch.masked_entity_labels)
    assert batch.word_ids[batch.word_position_ids == 0].tolist() == [CLS] * 3


def loader(folder: Path, rank: int = 0, world: int = 1, budget: int = 200) -> StepLoader:
    datasets = [PretrainingDataset(folder / name) for name in ("a", "b")]
    order = SampleOrder([len(d) for d in datasets], seed=9)
    return StepLoader(datasets, order, masker(), CLS, SEP, 16, budget, rank, world)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(5)
    for name, size in (("a", 90), ("b", 30)):
        write_dataset(
            root / name, [random_item(rng, int(rng.integers(5, 60)), int(rng.integers(0, 9))) for _ in range(size)]
        )
    return root


def words_by_sample(steps: list[StepBatches]) -> dict[tuple[int, Sample], list[int]]:
    """(step, sample) -> its masked words and entities: what the model sees of each item."""
    seen = {}
    for step in steps:
        for samples, batch in zip(step.samples, step.micro_batches, strict=True):
            flat = torch.cat([batch.word_ids, batch.entity_ids + 10_000])[batch.token_order]
            for sample, tokens in zip(samples, flat.split(batch.sequence_lengths), strict=True):
                seen[step.step, sample] = tokens.tolist()
    return seen


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("budget", [64, 200, 1000])
def test_ranks_and_micro_batches_change_nothing_of_a_step(folder: Path, world: int, budget: int) -> None:
    expected = words_by_sample([loader(folder)[step] for step in range(6)])
    ranks = [loader(folder, rank, world, budget) for rank in range(world)]
    steps = [ranked[step] for ranked in ranks for step in range(6)]
    assert words_by_sample(steps) == expected
    assert len({len(ranked[3].micro_batches) for ranked in ranks}) == 1, "processes must run in step"


@pytest.mark.parametrize("workers", [1, 3])
def test_loader_workers_and_resuming_change_nothing(folder: Path, workers: int) -> None:
    expected = words_by_sample([loader(folder)[step] for step in range(4, 9)])
    resumed = DataLoader(loader(folder), batch_size=None, sampler=range(4, 9), num_workers=workers)
    assert words_by_sample(list(resumed)) == expected
