import numpy as np
import pytest

from luke.model import PackedBatch
from luke.pretraining.batching import pack_items
from luke.pretraining.losses import global_weights, micro_batch_weights, target_counts
from luke.pretraining.masking import Masker, MaskingOptions, WordVocab

from .items import random_item


def batches() -> list[PackedBatch]:
    rng = np.random.default_rng(0)
    starts = np.ones(200, bool)
    words = WordVocab(starts, np.arange(200) < 5, 4)
    masker = Masker(MaskingOptions(masked_entity_prob=0.5), words, 50, 0)
    from luke.pretraining.dataset import Sample

    sizes = [(60, 8), (10, 2), (30, 4)]
    return [pack_items([masker(random_item(rng, *size), Sample(0, 0, row))], 1, 2) for row, size in enumerate(sizes)]


def test_global_weights_make_the_mean_over_all_targets() -> None:
    cut = batches()
    totals = {name: sum(target_counts(batch)[name] for batch in cut) for name in target_counts(cut[0])}
    weights = global_weights(totals)
    summed = sum(target_counts(batch)["masked_lm"] * weights["masked_lm"] for batch in cut)
    assert summed == pytest.approx(1.0) and totals["masked_lm"] > 10


def test_micro_batch_weights_make_the_mean_of_means() -> None:
    cut = batches()
    for kind in ("masked_lm", "masked_entity"):
        shares = [target_counts(batch)[kind] * micro_batch_weights(batch, len(cut))[kind] for batch in cut]
        assert shares == pytest.approx([1 / 3] * 3), kind
    few, many = sorted((target_counts(batch)["masked_lm"], micro_batch_weights(batch, 3)["masked_lm"]) for batch in cut)[::2]
    assert few[1] > many[1], "a word among few counts more"


def test_no_target_is_no_division_by_zero() -> None:
    assert global_weights({"masked_lm": 0, "masked_entity": 0, "cls_entity": 0})["masked_lm"] == 1
