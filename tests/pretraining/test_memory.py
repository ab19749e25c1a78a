"""The memory estimate against what torch really keeps, and the planner's answers."""

import numpy as np
import pytest
import torch
from transformers import LukeConfig

from luke.model import LukeForPretraining, PackedBatch
from luke.pretraining.batching import pack_items
from luke.pretraining.config import resolve_deepspeed
from luke.pretraining.dataset import Sample
from luke.pretraining.masking import Masker, MaskingOptions, WordVocab
from luke.pretraining.memory import (
    GIB,
    MemorySettings,
    activation_bytes,
    empty_model,
    estimate,
    largest_micro_batch,
    logit_bytes,
    out_of_memory_advice,
    parameters_by_component,
)

from .items import random_item

WORDS, ITEMS = 120, 3


def tiny(**changes: object) -> LukeConfig:
    sizes = {
        "vocab_size": 200,
        "entity_vocab_size": 50,
        "entity_emb_size": 32,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": 130,
        "use_entity_aware_attention": False,
    }
    return LukeConfig(**{**sizes, **changes})  # type: ignore[arg-type]


def packed() -> PackedBatch:
    rng = np.random.default_rng(0)
    masker = Masker(MaskingOptions(), WordVocab(np.ones(200, bool), np.arange(200) < 5, 4), 50, 0)
    items = [masker(random_item(rng, WORDS, 8), Sample(0, 0, row)) for row in range(ITEMS)]
    return pack_items(items, 1, 2)


def kept_bytes(model: LukeForPretraining, batch: PackedBatch) -> int:
    """Bytes of distinct storages that the forward pass keeps for the backward pass, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, tuple[int, torch.Tensor]] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes(), tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        sums = model(batch)
    assert sums["masked_lm_loss"] > 0
    return sum(size for size, _ in storages.values())


@pytest.mark.parametrize("entity_aware", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_is_within_15_percent_of_what_is_kept(entity_aware: bool, dropout: float, checkpointing: bool) -> None:
    torch.manual_seed(0)
    config = tiny(use_entity_aware_attention=entity_aware, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model, batch = LukeForPretraining(config).train(), packed()
    model.luke.encoder.gradient_checkpointing = checkpointing
    masked = batch.masked_word_index.numel() + batch.masked_entity_index.numel()
    settings = MemorySettings(gradient_checkpointing=checkpointing, keeps_probabilities=dropout > 0 or entity_aware)
    tokens = batch.token_order.numel()
    expected = activation_bytes(config, tokens, tokens // ITEMS, masked, settings)
    if checkpointing:  # the layer that is computed again comes in the backward pass only
        whole = MemorySettings(keeps_probabilities=dropout > 0 or entity_aware)
        one, none = (
            activation_bytes(tiny(**{**config.to_dict(), "num_hidden_layers": layers}), tokens, tokens // ITEMS, 0, whole)
            for layers in (1, 0)
        )
        expected -= one - none
    expected += 4 * (batch.masked_word_labels.numel() * 200 + batch.masked_entity_labels.numel() * 50)
    assert kept_bytes(model, batch) == pytest.approx(expected, rel=0.15)


def test_gradient_checkpointing_keeps_less_than_a_third() -> None:
    torch.manual_seed(0)
    model, batch = LukeForPretraining(tiny()).train(), packed()
    whole = kept_bytes(model, batch)
    model.luke.encoder.gradient_checkpointing = True
    assert kept_bytes(model, batch) < whole / 3


def roberta_large() -> LukeForPretraining:
    return empty_model(
        LukeConfig(
            vocab_size=50265,
            entity_vocab_size=500_000,
            entity_emb_size=256,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
            max_position_embeddings=514,
            use_entity_aware_attention=False,
        )
    )


def test_components_are_the_published_sizes() -> None:
    counts = {name: whole for name, (whole, _) in parameters_by_component(roberta_large()).items()}
    assert counts["entity table"] == 500_000 * 256
    assert counts["word embeddings"] == (50265 + 514 + 2 + 2) * 1024, "words, positions, types, LayerNorm"
    assert 480e6 < sum(counts.values()) < 490e6, "LUKE-large: 484M"


def test_zero_shares_what_its_stage_says() -> None:
    model, masking = roberta_large(), MaskingOptions()
    stages = [estimate(model, MemorySettings(stage, 8), 4, 512, masking) for stage in range(4)]
    assert stages[1].optimizer * 8 == pytest.approx(stages[0].optimizer * 1.5, rel=1e-6)
    assert stages[2].gradients * 8 == pytest.approx(stages[1].gradients, rel=1e-6)
    assert stages[3].weights * 8 == pytest.approx(stages[2].weights, rel=1e-6)
    offloaded = estimate(model, MemorySettings(3, 8, offload_optimizer=True, offload_parameters=True), 4, 512, masking)
    assert offloaded.optimizer == offloaded.gradients == offloaded.weights == 0


def test_the_largest_micro_batch_fits_and_one_more_does_not() -> None:
    model, masking, settings = roberta_large(), MaskingOptions(), MemorySettings()
    largest = largest_micro_batch(model, settings, 512, masking, 24 * GIB)
    assert estimate(model, settings, largest, 512, masking).total <= 24 * GIB * 0.92
    assert estimate(model, settings, largest + 1, 512, masking).total > 24 * GIB * 0.92
    assert largest_micro_batch(model, settings, 512, masking, 4 * GIB) == 0
    checkpointing = MemorySettings(gradient_checkpointing=True)
    assert largest_micro_batch(model, checkpointing, 512, masking, 24 * GIB) > 2 * largest


def test_logits_are_counted_by_rows() -> None:
    config = tiny()
    assert logit_bytes(config, 10, 0, False) == 10 * 200 * (4 + 8)
    assert logit_bytes(config, 10, 0, True) == 10 * 200 * (4 + 4)


def test_out_of_memory_is_answered_with_levers_and_values() -> None:
    config = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1}},
    }
    advice = out_of_memory_advice(resolve_deepspeed(config, "ds.json", 1, 10, True), 1)
    for lever in (
        '"train_micro_batch_size_per_gpu": 4 (now 8)',
        '"gradient_checkpointing": true',
        '"bf16"',
        "offload_optimizer",
    ):
        assert lever in advice
    checkpointed = {**config, "gradient_checkpointing": True, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    advice = out_of_memory_advice(resolve_deepspeed(checkpointed, "ds.json", 2, 10, True), 2)
    assert "micro_batch" not in advice and "checkpointing" not in advice and '"zero_optimization": {"stage": 2}' in advice
