"""LUKE: words and entities as tokens of one encoder (Yamada et al. 2020, arXiv 2010.01057).

Parameters carry the names of ``transformers.LukeForMaskedLM``, so that a saved state dict *is* a transformers model. The
forward pass is unpadded: the tokens of all items lie on one flat axis, item after item, each item's words before its
entities, so that every linear layer and norm works on real tokens only; attention never crosses items.

Shape letters: B items, W words of an item, E entities of an item, P word positions of a mention, T tokens on the flat axis,
M masked words, K masked entities, C items with a known page entity, H hidden size, D entity embedding size, V words,
U entities, N heads, S size of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LukeConfig
from transformers.activations import ACT2FN

from luke.attention import Attention, Segments, choose_attention
from luke.dropout import Dropout

# Rows of logits computed at a time: bounds the memory of a head (1024 x 500K x 4 bytes = 2 GB) while the dense gradient
# of the decoder is still written once for many rows.
HEAD_ROWS = 1024


@dataclass
class PackedBatch:
    """Items on one flat axis.

    Attributes:
        word_ids: int64 (sum of W,), the words of all items.
        word_position_ids: int64 (sum of W,), each word's index in its item, [CLS] being 0.
        entity_ids: int64 (sum of E,).
        mention_position_ids: int64 (sum of P,), the word indices of all mentions, one after another.
        mention_offsets: int64 (sum of E + 1,), where each mention begins in ``mention_position_ids``.
        token_order: int64 (T,), indices into words followed by entities that give the order item by item.
        word_lengths, entity_lengths: W and E of each item, known on the host.
        masked_word_index: int64 (M,), positions on the flat axis; masked_word_labels: int64 (M,).
        masked_entity_index: int64 (K,), positions on the flat axis; masked_entity_labels: int64 (K,).
        page_index: int64 (C,), flat positions of the [CLS] of items whose page is an entity; page_entity_ids: int64 (C,).
    """

    word_ids: Tensor
    word_position_ids: Tensor
    entity_ids: Tensor
    mention_position_ids: Tensor
    mention_offsets: Tensor
    token_order: Tensor
    word_lengths: list[int]
    entity_lengths: list[int]
    masked_word_index: Tensor
    masked_word_labels: Tensor
    masked_entity_index: Tensor
    masked_entity_labels: Tensor
    page_index: Tensor
    page_entity_ids: Tensor

    @property
    def sequence_lengths(self) -> list[int]:
        """W + E of each item."""
        return [words + entities for words, entities in zip(self.word_lengths, self.entity_lengths, strict=True)]

    def to(self, device: torch.device | str) -> Self:
        """A copy on ``device``; tensors in pinned memory travel without waiting."""
        values: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        return type(self)(**moved)


class WordEmbeddings(nn.Module):
    """Token + position + type, LayerNorm, dropout. Row ``pad_token_id + 1`` of the position table is position 0."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.position_offset = int(config.pad_token_id or 0) + 1

    def forward(self, word_ids: Tensor, position_ids: Tensor) -> Tensor:
        """(sum of W,) ids and indices in the item -> (sum of W, H)."""
        embeddings = self.word_embeddings(word_ids) + self.position_embeddings(position_ids + self.position_offset)
        embeddings = embeddings + self.token_type_embeddings.weight[0]
        hidden: Tensor = self.dropout(self.LayerNorm(embeddings))
        return hidden


class EntityEmbeddings(nn.Module):
    """U·A[e] + mean of D over the mention's word positions + type, LayerNorm, dropout (paper, section 3.1)."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.entity_embeddings = nn.Embedding(config.entity_vocab_size, config.entity_emb_size, padding_idx=0)
        self.entity_embedding_dense: nn.Linear | None = None
        if config.entity_emb_size != config.hidden_size:
            self.entity_embedding_dense = nn.Linear(config.entity_emb_size, config.hidden_size, bias=False)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, entity_ids: Tensor, mention_position_ids: Tensor, mention_offsets: Tensor) -> Tensor:
        """(sum of E,) ids, (sum of P,) word indices, (sum of E + 1,) offsets -> (sum of E, H)."""
        embeddings = self.entity_embeddings(entity_ids)
        if self.entity_embedding_dense is not None:
            embeddings = self.entity_embedding_dense(embeddings)
        embeddings = embeddings + self._mention_positions(mention_position_ids, mention_offsets)
        embeddings = embeddings + self.token_type_embeddings.weight[0]
        hidden: Tensor = self.dropout(self.LayerNorm(embeddings))
        return hidden

    def _mention_positions(self, position_ids: Tensor, offsets: Tensor) -> Tensor:
        """Mean over each mention's positions; 0 for a mention without any."""
        positions = self.position_embeddings(position_ids)
        lengths = offsets.diff()
        mention = torch.repeat_interleave(lengths, output_size=position_ids.numel())
        sums = positions.new_zeros(lengths.numel(), positions.size(-1)).index_add(0, mention, positions)
        return sums / lengths.clamp(min=1).to(sums.dtype)[:, None]


class SelfAttention(nn.Module):
    """Self-attention over words and entities, plain or entity-aware (paper, section 3.2).

    Entity-aware attention has one query matrix for each pair of types, keys and values being shared. It is one fused call:
    row i carries its two queries side by side, [Q x_i; Q_w2e x_i] for a word and [Q_e2w x_i; Q_e2e x_i] for an entity, and
    the keys are [k; 0] for words and [0; k] for entities, so that the product picks the query of the pair.
    """

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.num_heads, self.head_size = config.num_attention_heads, hidden // config.num_attention_heads
        self.dropout = float(config.attention_probs_dropout_prob)
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.entity_aware = bool(config.use_entity_aware_attention)
        if self.entity_aware:
            self.w2e_query = nn.Linear(hidden, hidden)
            self.e2w_query = nn.Linear(hidden, hidden)
            self.e2e_query = nn.Linear(hidden, hidden)

    def forward(self, hidden: Tensor, segments: Segments, attend: Attention) -> Tensor:
        """(T, H) -> (T, H)."""

        def heads(flat: Tensor) -> Tensor:
            # As many as are here: tensor parallelism leaves each process some of the heads.
            return flat.unflatten(-1, (-1, self.head_size))

        key, value = heads(self.key(hidden)), heads(self.value(hidden))
        if segments.is_entity is not None:
            query, key = self._entity_aware(hidden, key, segments.is_entity, heads)
        else:
            query = heads(self.query(hidden))
        context = attend(query, key, value, segments, self.dropout if self.training else 0.0)
        return context.flatten(1)

    def _entity_aware(
        self, hidden: Tensor, key: Tensor, is_entity: Tensor, heads: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        words, entities = ~is_entity, is_entity
        query = key.new_empty(*key.shape[:2], 2 * self.head_size)
        from_words, from_entities = hidden[words], hidden[entities]
        query[words] = torch.cat([heads(self.query(from_words)), heads(self.w2e_query(from_words))], dim=-1)
        query[entities] = torch.cat([heads(self.e2w_query(from_entities)), heads(self.e2e_query(from_entities))], dim=-1)
        mask = entities[:, None, None]
        return query, torch.cat([key.masked_fill(mask, 0), key.masked_fill(~mask, 0)], dim=-1)


class ResidualOutput(nn.Module):
    """Dense, dropout, then LayerNorm over the sum with the residual (post-LayerNorm)."""

    def __init__(self, config: LukeConfig, input_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """(T, input size), (T, H) -> (T, H)."""
        output: Tensor = self.LayerNorm(self.dropout(self.dense(hidden)) + residual)
        return output


class AttentionBlock(nn.Module):
    """Self-attention and its output."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = ResidualOutput(config, config.hidden_size)

    def forward(self, hidden: Tensor, segments: Segments, attend: Attention) -> Tensor:
        """(T, H) -> (T, H)."""
        output: Tensor = self.output(self.self(hidden, segments, attend), hidden)
        return output


class Intermediate(nn.Module):
    """The widening half of the feed-forward block."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """(T, H) -> (T, intermediate size)."""
        output: Tensor = self.activation(self.dense(hidden))
        return output


class Layer(nn.Module):
    """One transformer layer of the BERT type."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.attention = AttentionBlock(config)
        self.intermediate = Intermediate(config)
        self.output = ResidualOutput(config, config.intermediate_size)

    def forward(self, hidden: Tensor, segments: Segments, attend: Attention) -> Tensor:
        """(T, H) -> (T, H)."""
        attended = self.attention(hidden, segments, attend)
        output: Tensor = self.output(self.intermediate(attended), attended)
        return output


class Encoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.gradient_checkpointing = False

    def forward(self, hidden: Tensor, segments: Segments, attend: Attention) -> Tensor:
        """(T, H) -> (T, H)."""
        for layer in self.layer:
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(layer, hidden, segments, attend, use_reentrant=False)
            else:
                hidden = layer(hidden, segments, attend)
        return hidden


class Pooler(nn.Module):
    """Dense and tanh over [CLS]. Pretraining does not use it; it is carried for the tasks that do."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, H) -> (B, H)."""
        return torch.tanh(self.dense(hidden))


class LukeModel(nn.Module):
    """The encoder. ``attention`` replaces the attention chosen for the device, for comparisons."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = WordEmbeddings(config)
        self.entity_embeddings = EntityEmbeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config)
        self.attention: Attention | None = None

    def forward(self, batch: PackedBatch) -> Tensor:
        """A packed batch -> hidden states (T, H) in the order of `PackedBatch.token_order`."""
        words = self.embeddings(batch.word_ids, batch.word_position_ids)
        # Also without any entity: processes that train together must all reach the same parameters.
        entities = self.entity_embeddings(batch.entity_ids, batch.mention_position_ids, batch.mention_offsets)
        hidden = torch.cat([words, entities]).index_select(0, batch.token_order)
        is_entity = None
        if self.config.use_entity_aware_attention:
            is_entity = batch.token_order >= batch.word_ids.numel()
        dropout = float(self.config.attention_probs_dropout_prob) if self.training else 0.0
        attend = self.attention or choose_attention(hidden.device, hidden.dtype, dropout)
        output: Tensor = self.encoder(hidden, Segments(batch.sequence_lengths, is_entity), attend)
        return output


class TiedDecoder(nn.Module):
    """Logits over a vocabulary from a weight that is an embedding table. A module of its own, so that sharded training
    (ZeRO 3) gathers the table when the decoder runs."""

    weight: Tensor

    def tie(self, table: nn.Embedding) -> None:
        """Shares the weight with ``table``."""
        self.weight = table.weight

    def loss(self, features: Tensor, labels: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Sum of the cross entropies and number of right predictions.

        Args:
            features: (R, size of the table's rows). labels: int64 (R,). bias: (V,) or None.

        Returns:
            Two scalars, both fp32.
        """
        loss = features.new_zeros((), dtype=torch.float32)
        correct = features.new_zeros((), dtype=torch.float32)
        for rows, row_labels in zip(features.split(HEAD_ROWS), labels.split(HEAD_ROWS), strict=True):
            logits = F.linear(rows, self.weight, bias)
            loss = loss + F.cross_entropy(logits.float(), row_labels, reduction="sum")
            correct = correct + (logits.detach().argmax(-1) == row_labels).sum()
        return loss, correct

    def forward(
        self, features: Tensor, labels: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (R, V) without labels, else as `loss`."""
        return F.linear(features, self.weight, bias) if labels is None else self.loss(features, labels, bias)


class MaskedLMHead(nn.Module):
    """Dense, GELU, LayerNorm, decoder tied to the word embedding, bias."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = TiedDecoder()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Any:
        """(M, H) -> logits (M, V), or with labels (M,) the summed loss and the number right."""
        return self.decoder(self.layer_norm(F.gelu(self.dense(hidden))), labels, self.bias)


class EntityTransform(nn.Module):
    """Dense to the entity embedding's size, GELU, LayerNorm."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.entity_emb_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.entity_emb_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """(K, H) -> (K, D)."""
        output: Tensor = self.LayerNorm(self.activation(self.dense(hidden)))
        return output


class EntityPredictionHead(nn.Module):
    """Transform, decoder tied to the entity embedding, bias."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.transform = EntityTransform(config)
        self.decoder = TiedDecoder()
        self.bias = nn.Parameter(torch.zeros(config.entity_vocab_size))

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Any:
        """(K, H) -> logits (K, U), or with labels (K,) the summed loss and the number right."""
        return self.decoder(self.transform(hidden), labels, self.bias)


class PageEntityHead(nn.Module):
    """Predicts the embedding of the page's entity from [CLS] (``--cls-entity-prediction``)."""

    def __init__(self, config: LukeConfig) -> None:
        super().__init__()
        self.transform = EntityTransform(config)
        self.decoder = nn.Linear(config.entity_emb_size, config.entity_emb_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """(C, H) -> (C, D)."""
        output: Tensor = self.decoder(self.transform(hidden))
        return output


class LukeForPretraining(nn.Module):
    """The encoder with the masked-word and the masked-entity head, both run at masked positions only.

    Args:
        config: Sizes and dropout.
        cls_entity_prediction: Adds the head that predicts the page's entity from [CLS].

    Attributes:
        predict_words, predict_entities: Whether the heads run.
    """

    def __init__(self, config: LukeConfig, cls_entity_prediction: bool = False) -> None:
        super().__init__()
        self.config = config
        self.luke = LukeModel(config)
        self.lm_head = MaskedLMHead(config)
        self.entity_predictions = EntityPredictionHead(config)
        self.cls_entity_predictions = PageEntityHead(config) if cls_entity_prediction else None
        self.predict_words = self.predict_entities = True
        self.apply(self._init_weights)
        self.tie_weights()

    def _init_weights(self, module: nn.Module) -> None:
        """N(0, initializer_range), zero biases and padding row, LayerNorm 1 and 0: as BERT and the public code."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])

    def tie_weights(self) -> None:
        """The decoders' weights are the embedding tables."""
        self.lm_head.decoder.tie(self.luke.embeddings.word_embeddings)
        self.entity_predictions.decoder.tie(self.luke.entity_embeddings.entity_embeddings)

    def forward(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Sums over the batch, fp32 scalars, so that the caller divides by the counts of the whole step.

        Returns:
            ``masked_lm_loss``, ``masked_lm_correct`` if `predict_words`; ``masked_entity_loss``, ``masked_entity_correct``
            if `predict_entities`; with the page head ``cls_entity_loss`` (summed over items, averaged over D). A head runs
            also without targets, so that processes that train together all reach the same parameters.
        """
        hidden = self.luke(batch)
        sums: dict[str, Tensor] = {}
        if self.predict_words:
            words = hidden.index_select(0, batch.masked_word_index)
            sums["masked_lm_loss"], sums["masked_lm_correct"] = self.lm_head(words, batch.masked_word_labels)
        if self.predict_entities:
            entities = hidden.index_select(0, batch.masked_entity_index)
            loss, correct = self.entity_predictions(entities, batch.masked_entity_labels)
            sums["masked_entity_loss"], sums["masked_entity_correct"] = loss, correct
        if self.cls_entity_predictions is not None:
            predicted = self.cls_entity_predictions(hidden.index_select(0, batch.page_index))
            # The table is the target, not a second prediction: without detach both would meet at a constant.
            target = self.luke.entity_embeddings.entity_embeddings(batch.page_entity_ids).detach()
            sums["cls_entity_loss"] = F.mse_loss(predicted.float(), target.float(), reduction="none").mean(-1).sum()
        return sums


def pack_padded(
    word_ids: Tensor,
    word_mask: Tensor,
    entity_ids: Tensor | None = None,
    entity_mask: Tensor | None = None,
    entity_position_ids: Tensor | None = None,
) -> PackedBatch:
    """The packed form of padded inputs, without labels.

    Args:
        word_ids, word_mask: (B, W); the mask is 1 at real words, which come first.
        entity_ids, entity_mask: (B, E). entity_position_ids: (B, E, P), -1 where there is none.
    """
    device = word_ids.device
    if entity_ids is None or entity_mask is None or entity_position_ids is None:
        entity_ids = entity_mask = word_ids.new_zeros(word_ids.size(0), 0)
        entity_position_ids = word_ids.new_zeros(word_ids.size(0), 0, 1)
    words, entities = word_mask.bool(), entity_mask.bool()
    positions = entity_position_ids[entities]
    items = torch.arange(word_ids.size(0), device=device)[:, None]
    owner = torch.cat([items.expand_as(words)[words], items.expand_as(entities)[entities]])
    empty = word_ids.new_zeros(0)
    return PackedBatch(
        word_ids=word_ids[words],
        word_position_ids=torch.arange(word_ids.size(1), device=device).expand_as(word_ids)[words],
        entity_ids=entity_ids[entities],
        mention_position_ids=positions[positions != -1],
        mention_offsets=F.pad((positions != -1).sum(-1).cumsum(0), (1, 0)),
        token_order=torch.argsort(owner, stable=True),
        word_lengths=words.sum(1).tolist(),
        entity_lengths=entities.sum(1).tolist(),
        masked_word_index=empty,
        masked_word_labels=empty,
        masked_entity_index=empty,
        masked_entity_labels=empty,
        page_index=empty,
        page_entity_ids=empty,
    )


def unpack_hidden(hidden: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Hidden states (T, H) -> words (B, W, H) and entities (B, E, H), padded with zeros."""
    pieces = hidden.split([n for pair in zip(batch.word_lengths, batch.entity_lengths, strict=True) for n in pair])
    words = nn.utils.rnn.pad_sequence(list(pieces[0::2]), batch_first=True)
    entities = nn.utils.rnn.pad_sequence(list(pieces[1::2]), batch_first=True)
    return words, entities
