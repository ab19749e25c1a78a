"""From a model's sums over a micro batch to the loss of an optimizer step.

The loss of a step is the mean over all targets of the whole step, whichever micro batch or process they fell to, so that how
a batch is cut does not change training. ``--loss-average micro-batch`` is the public code's: the mean of the micro batches'
means, in which a word of a micro batch with few masked words counts more.
"""

from collections.abc import Mapping

from luke.model import PackedBatch

# The model's sums are named KIND_loss and KIND_correct.
TARGETS = ("masked_lm", "masked_entity", "cls_entity")


def target_counts(batch: PackedBatch) -> dict[str, int]:
    """The number of targets of each kind in a micro batch."""
    labels = (batch.masked_word_labels, batch.masked_entity_labels, batch.page_entity_ids)
    return {name: values.numel() for name, values in zip(TARGETS, labels, strict=True)}


def global_weights(totals: Mapping[str, int]) -> dict[str, float]:
    """What each kind's sum is multiplied by, given the numbers of targets in the whole step."""
    return {name: 1 / max(1, totals[name]) for name in TARGETS}


def micro_batch_weights(batch: PackedBatch, num_micro_batches: int) -> dict[str, float]:
    """The same for the mean of means over ``num_micro_batches`` of all processes."""
    return {name: 1 / (max(1, count) * num_micro_batches) for name, count in target_counts(batch).items()}
