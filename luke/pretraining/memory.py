"""How much memory a run takes on each device, part by part, before it is started; and the largest micro batch that fits.

Counted are weights, gradients and the optimizer's state under ZeRO, what the forward pass keeps for the backward pass, and
the logits of the heads. Not counted, and covered by `HEADROOM`: the allocator's fragments, communication buffers, the
CUDA context.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import LukeConfig

from luke.model import HEAD_ROWS, LukeForPretraining
from luke.pretraining.config import DeepSpeedSettings
from luke.pretraining.masking import MaskingOptions

GIB = 1 << 30
HEADROOM = 0.08
_FP32 = 4
_ENTITIES_PER_ITEM = 24  # of a full item of 512 words of the English Wikipedia, with [UNK]
_COMPONENTS = {
    "word embeddings": ("luke.embeddings.",),
    "entity table": ("luke.entity_embeddings.entity_embeddings.",),
    "encoder": ("luke.",),
    "heads": ("",),
}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one device."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


@dataclass(frozen=True)
class MemorySettings:
    """What decides the memory besides the model.

    Attributes:
        zero_stage: DeepSpeed's.
        world_size: Processes that share what ZeRO shares.
        half: bf16 or fp16: weights and activations of 2 bytes, gradients and the optimizer's copy of the weights in fp32.
        offload_optimizer, offload_parameters: Kept in the host's memory.
        gradient_checkpointing: Only each layer's input is kept.
        keeps_probabilities: The attention's probabilities are kept, as `keeps_probabilities` says.
    """

    zero_stage: int = 0
    world_size: int = 1
    half: bool = False
    offload_optimizer: bool = False
    offload_parameters: bool = False
    gradient_checkpointing: bool = False
    keeps_probabilities: bool = False

    @classmethod
    def of(cls, settings: DeepSpeedSettings, world_size: int, keeps_probabilities: bool) -> "MemorySettings":
        """Those of a resolved configuration."""
        zero: Mapping[str, Any] = settings.config["zero_optimization"]

        def offloads(block: str) -> bool:
            return (zero.get(block) or {}).get("device", "none") != "none"

        return cls(
            zero_stage=int(zero.get("stage", 0)),
            world_size=world_size,
            half=any(settings.config.get(kind, {}).get("enabled") for kind in ("bf16", "fp16")),
            offload_optimizer=offloads("offload_optimizer"),
            offload_parameters=offloads("offload_param"),
            gradient_checkpointing=settings.gradient_checkpointing,
            keeps_probabilities=keeps_probabilities,
        )


def empty_model(config: LukeConfig) -> LukeForPretraining:
    """A model without memory, to count its parameters."""
    with torch.device("meta"):
        return LukeForPretraining(config)


def parameters_by_component(model: LukeForPretraining) -> dict[str, tuple[int, int]]:
    """(all, trained) parameters of the word embeddings, the entity table, the encoder and the heads."""
    counts = {name: [0, 0] for name in _COMPONENTS}
    for name, parameter in model.named_parameters():
        component = next(key for key, prefixes in _COMPONENTS.items() if name.startswith(prefixes))
        counts[component][0] += parameter.numel()
        counts[component][1] += parameter.numel() if parameter.requires_grad else 0
    return {name: (whole, trained) for name, (whole, trained) in counts.items()}


def activation_bytes(config: LukeConfig, tokens: int, item_length: int, masked: int, settings: MemorySettings) -> int:
    """What the forward pass of a packed micro batch keeps for the backward pass.

    Of a token and layer: the layer's input, query, key, value, context, the input of either LayerNorm and the first one's
    output, each of size H; the input and output of the activation, of size I; two dropout masks of H bytes. Attention adds
    its output and a number a head, or on a CPU the probabilities and their mask. Entity-aware attention keeps queries and
    keys of twice the size, and the words' and entities' inputs apart.

    Args:
        tokens: T, words and entities of the micro batch.
        item_length: Tokens of an item.
        masked: Masked words and entities; the heads keep four tensors a row.
    """
    size = 2 if settings.half else _FP32
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    per_layer = size * (8 * hidden + 2 * inner)
    if config.use_entity_aware_attention:
        per_layer += size * 3 * hidden
    if config.hidden_dropout_prob:
        per_layer += 2 * hidden
    if settings.keeps_probabilities:
        per_layer += heads * item_length * (size + 1)
    else:
        per_layer += size * hidden + heads * _FP32
    embeddings = size * 2 * hidden + (hidden if config.hidden_dropout_prob else 0)
    if settings.gradient_checkpointing:
        layers = config.num_hidden_layers * size * hidden + per_layer
    else:
        layers = config.num_hidden_layers * per_layer
    return tokens * (embeddings + layers) + masked * 4 * size * hidden


def logit_bytes(config: LukeConfig, masked_words: int, masked_entities: int, half: bool) -> int:
    """The heads' fp32 log-probabilities of all rows, and logits and gradients of the rows that are worked on."""
    size = 2 if half else _FP32
    kept = _FP32 * (masked_words * config.vocab_size + masked_entities * config.entity_vocab_size)
    word_chunk = min(HEAD_ROWS, masked_words) * config.vocab_size
    entity_chunk = min(HEAD_ROWS, masked_entities) * config.entity_vocab_size
    return kept + (2 * size) * max(word_chunk, entity_chunk)


def estimate(
    model: LukeForPretraining,
    settings: MemorySettings,
    micro_batch: int,
    max_seq_length: int,
    masking: MaskingOptions,
) -> MemoryEstimate:
    """Memory of one device.

    Args:
        micro_batch: Full sequences of a micro batch.
        max_seq_length: Words of a full sequence.
    """
    config = model.config
    counts = parameters_by_component(model).values()
    whole, trained = (sum(numbers) for numbers in zip(*counts, strict=True))
    size = 2 if settings.half else _FP32

    def shared_from(stage: int) -> int:
        return settings.world_size if settings.zero_stage >= stage else 1

    words = micro_batch * max_seq_length
    entities = micro_batch * max(1, _ENTITIES_PER_ITEM * max_seq_length // 512)
    masked_words = round(words * masking.masked_lm_prob) if model.predict_words else 0
    masked_entities = max(1, round(entities * masking.masked_entity_prob)) if model.predict_entities else 0
    item_length = max_seq_length + entities // micro_batch
    # A ZeRO optimizer works on flat fp32 copies of the weights that it updates.
    optimizer_size = _FP32 * (3 if settings.half or settings.zero_stage else 2)
    return MemoryEstimate(
        weights=0 if settings.offload_parameters else whole * size // shared_from(3),
        gradients=0 if settings.offload_optimizer else trained * _FP32 // shared_from(2),
        optimizer=0 if settings.offload_optimizer else trained * optimizer_size // shared_from(1),
        activations=activation_bytes(config, words + entities, item_length, masked_words + masked_entities, settings),
        logits=logit_bytes(config, masked_words, masked_entities, settings.half),
    )


def estimate_memory(
    model: LukeForPretraining, settings: DeepSpeedSettings, world_size: int, max_seq_length: int, masking: MaskingOptions
) -> MemoryEstimate:
    """The memory of a run on this machine's kind of device."""
    memory = MemorySettings.of(settings, world_size, keeps_probabilities(model.config))
    return estimate(model, memory, settings.micro_batch_size, max_seq_length, masking)


def keeps_probabilities(config: LukeConfig) -> bool:
    """Whether attention on this machine keeps its probabilities: a CPU's fused form has neither dropout nor queries of twice
    the values' size."""
    on_cpu = not torch.cuda.is_available()
    return on_cpu and bool(config.attention_probs_dropout_prob or config.use_entity_aware_attention)


def largest_micro_batch(
    model: LukeForPretraining, settings: MemorySettings, max_seq_length: int, masking: MaskingOptions, memory: int
) -> int:
    """The largest micro batch with which a run fits into ``memory`` bytes with some headroom; 0 if none does."""
    limit = memory * (1 - HEADROOM)

    def fits(micro_batch: int) -> bool:
        return estimate(model, settings, micro_batch, max_seq_length, masking).total <= limit

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def describe_memory(estimate: MemoryEstimate) -> str:
    """One line for people."""
    parts = ", ".join(f"{name} {value / GIB:.2f}" for name, value in asdict(estimate).items())
    return f"{estimate.total / GIB:.2f} GiB a device ({parts})"


def out_of_memory_advice(settings: DeepSpeedSettings, world_size: int) -> str:
    """What to change after running out of memory, with values."""
    smaller = max(
        (n for n in range(1, settings.micro_batch_size) if settings.train_batch_size % (n * world_size) == 0), default=0
    )
    levers = []
    if smaller:
        levers.append(f'"train_micro_batch_size_per_gpu": {smaller} (now {settings.micro_batch_size})')
    if not settings.gradient_checkpointing:
        levers.append('"gradient_checkpointing": true')
    if not any(settings.config.get(kind, {}).get("enabled") for kind in ("bf16", "fp16")):
        levers.append('"bf16": {"enabled": true} (or "fp16")')
    stage = int(settings.config["zero_optimization"].get("stage", 0))
    if stage < 3 and world_size > 1:
        levers.append(f'"zero_optimization": {{"stage": {stage + 1}}}')
    else:
        levers.append('"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}')
    return f"out of memory; set in the DeepSpeed file one of: {'; '.join(levers)}"
