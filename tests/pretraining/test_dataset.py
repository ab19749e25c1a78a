import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from luke.errors import UserError
from luke.pretraining.dataset import PretrainingDataset, SampleOrder

from .items import random_item, write_dataset


def test_items_come_back_as_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    items = [random_item(rng, int(rng.integers(5, 60)), int(rng.integers(0, 9))) for _ in range(50)]
    dataset = PretrainingDataset(write_dataset(tmp_path / "data", items))
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(dataset) == len(copy) == 50
    for row in rng.permutation(50):
        for reader in (dataset, copy):
            read = reader[row]
            assert read.page_id == items[row].page_id
            assert all(np.array_equal(a, b) for a, b in zip(read[1:], items[row][1:], strict=True))
            assert reader.num_tokens(row) == len(read.word_ids) + len(read.entity_ids) + 2
    with pytest.raises(IndexError):
        dataset[50]


def test_errors_name_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not found"):
        PretrainingDataset(tmp_path / "missing")
    folder = write_dataset(tmp_path / "data", [random_item(np.random.default_rng(0), 9, 1)] * 4)
    with pytest.raises(UserError, match="--held-out-fraction"):
        PretrainingDataset(folder, held_out=True)
    (folder / "data-00000-of-00002.arrow").write_bytes(b"not arrow at all")
    with pytest.raises(UserError, match="cannot be read as Arrow"):
        PretrainingDataset(folder)


def test_each_pass_reads_each_item_once_in_another_order() -> None:
    order = SampleOrder([100], seed=3)
    passes = [[order[k] for k in range(start, start + 100)] for start in (0, 100)]
    for epoch, samples in enumerate(passes):
        assert sorted(sample.row for sample in samples) == list(range(100))
        assert {sample.epoch for sample in samples} == {epoch}
    assert [s.row for s in passes[0]] != [s.row for s in passes[1]]
    assert [s.row for s in passes[0]] != [SampleOrder([100], seed=4)[k].row for k in range(100)]


def test_order_is_the_same_wherever_it_is_entered() -> None:
    sizes = [70, 30, 500]
    whole = SampleOrder(sizes, seed=1)
    straight = [whole[k] for k in range(3000)]
    for start in (2999, 1234, 0, 65_536 * 3 + 5):
        assert SampleOrder(sizes, seed=1)[start] == whole[start]
    assert straight == [whole[k] for k in range(3000)]


@pytest.mark.parametrize("smoothing", [0.0, 0.7, 1.0])
def test_mixture_follows_smoothed_sizes_and_reads_each_dataset_in_full(smoothing: float) -> None:
    sizes = [900, 300, 60]
    order = SampleOrder(sizes, seed=1, smoothing=smoothing)
    number = 100_000
    samples = [order[k] for k in range(number)]
    weights = np.array(sizes, float) ** smoothing
    shares = weights / weights.sum()
    counts = Counter(sample.dataset for sample in samples)
    # Exact at block borders; inside a block the order is random.
    assert [counts[d] / number for d in range(3)] == pytest.approx(shares.tolist(), abs=0.01)
    for dataset, size in enumerate(sizes):
        mine = [sample for sample in samples if sample.dataset == dataset]
        for epoch in range(len(mine) // size):
            rows = [sample.row for sample in mine[epoch * size : (epoch + 1) * size]]
            assert sorted(rows) == list(range(size))
            assert {sample.epoch for sample in mine[epoch * size : (epoch + 1) * size]} == {epoch}


def test_a_vanishing_dataset_cannot_be_mixed() -> None:
    with pytest.raises(UserError, match="too small"):
        SampleOrder([1, 10_000_000], seed=0, smoothing=1.0)
