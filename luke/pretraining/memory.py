"""How much memory a run takes on each device, part by part, before it is started."""

from dataclasses import dataclass

from luke.model import LukeForPretraining
from luke.pretraining.config import DeepSpeedSettings
from luke.pretraining.masking import MaskingOptions

_GIB = 1 << 30
_FP32 = 4
# Saved for the backward pass of one layer, per token: in units of the hidden size H the layer's input, query, key, value,
# context, two dropped and two summed residuals, two LayerNorm outputs and dropout masks; in units of the intermediate size
# I the input and output of the activation.
_SAVED_HIDDEN, _SAVED_INTERMEDIATE = 11, 2
_HEAD_COPIES = 3  # logits, their fp32 softmax, their gradient


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


def estimate_memory(
    model: LukeForPretraining, settings: DeepSpeedSettings, world_size: int, max_seq_length: int, masking: MaskingOptions
) -> MemoryEstimate:
    """Weights, gradients, AdamW's moments (and fp32 copies in half precision) under ZeRO; activations and logits of one
    micro batch of full sequences."""
    config, zero = model.config, settings.config["zero_optimization"].get("stage", 0)
    half = any(settings.config.get(kind, {}).get("enabled") for kind in ("bf16", "fp16"))
    size = 2 if half else _FP32
    parameters = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)

    def shared_from(stage: int) -> int:
        return world_size if zero >= stage else 1

    tokens = settings.micro_batch_size * max_seq_length
    layer = size * (_SAVED_HIDDEN * config.hidden_size + _SAVED_INTERMEDIATE * config.intermediate_size)
    kept = size * config.hidden_size * config.num_hidden_layers + layer
    per_token = kept if settings.gradient_checkpointing else layer * config.num_hidden_layers
    rows = min(1024, round(tokens * masking.masked_lm_prob)) * config.vocab_size
    entity_rows = min(1024, round(settings.micro_batch_size * 32 * masking.masked_entity_prob)) * config.entity_vocab_size
    return MemoryEstimate(
        weights=parameters * size // shared_from(3),
        gradients=trained * _FP32 // shared_from(2),
        optimizer=trained * _FP32 * (3 if half else 2) // shared_from(1),
        activations=tokens * per_token,
        logits=_HEAD_COPIES * _FP32 * max(rows, entity_rows),
    )


def describe_memory(estimate: MemoryEstimate) -> str:
    """One line for people."""
    parts = ", ".join(f"{name} {value / _GIB:.2f}" for name, value in vars(estimate).items())
    return f"{estimate.total / _GIB:.2f} GiB a device ({parts})"
