"""The arithmetic that a model's mathematics asks for, to judge a speed by: padding and recomputation do not count."""

from transformers import LukeConfig

from luke.model import PackedBatch


def training_flops(config: LukeConfig, batch: PackedBatch) -> int:
    """Floating-point operations of a forward and a backward pass with gradients of all weights.

    Two operations a multiplication and addition, and a backward pass of twice the forward pass, so 6 N T for T tokens and N
    weights of the layers; 12 L H s for each token of an item of s tokens (both products of attention); the heads at their
    masked positions only (Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, appendix B). T counts words and entities.
    """
    hidden, size = config.hidden_size, config.entity_emb_size
    layer_weights = 4 * hidden * hidden + 2 * hidden * config.intermediate_size
    if config.use_entity_aware_attention:
        layer_weights += hidden * hidden  # a word and an entity each have two queries
    lengths = batch.sequence_lengths
    encoder = config.num_hidden_layers * (
        6 * layer_weights * sum(lengths) + 12 * hidden * sum(length * length for length in lengths)
    )
    words, entities = batch.masked_word_labels.numel(), batch.masked_entity_labels.numel()
    word_head = 6 * words * hidden * (hidden + config.vocab_size)
    entity_head = 6 * entities * size * (hidden + config.entity_vocab_size)
    entity_input = 6 * batch.entity_ids.numel() * size * hidden if size != hidden else 0
    return encoder + word_head + entity_head + entity_input
