"""Attention inside the items of a flat axis, in the form that is fastest on each device.

Shape letters as in `luke.model`: T tokens, N heads, S size of a head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from luke.dropout import keep_mask


@dataclass
class Segments:
    """Where items begin and end on the flat axis, and which tokens are entities (bool (T,), for entity-aware attention)."""

    lengths: list[int]
    is_entity: Tensor | None


Attention = Callable[[Tensor, Tensor, Tensor, Segments, float], Tensor]


def attend_by_segment(query: Tensor, key: Tensor, value: Tensor, segments: Segments, dropout: float) -> Tensor:
    """Fused attention item by item: the fastest exact form on a CPU, where a kernel launch costs nothing.

    Args:
        query, key: (T, N, S'); S' is S, or 2 S with entity-aware attention. value: (T, N, S).

    Returns:
        (T, N, S).
    """
    scale = 1 / math.sqrt(value.size(-1))
    items = zip(query.split(segments.lengths), key.split(segments.lengths), value.split(segments.lengths), strict=True)
    heads_first = ([tensor.transpose(0, 1) for tensor in item] for item in items)
    if dropout:
        contexts = [_AttentionWithDropout.apply(*item, scale, dropout) for item in heads_first]
    else:
        contexts = [F.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale)[0] for q, k, v in heads_first]
    return torch.cat([context.transpose(0, 1) for context in contexts])


class _AttentionWithDropout(torch.autograd.Function):
    """Attention whose probabilities are dropped, for a CPU, where torch has no fused form of it: no mask of -inf is looked
    for, and what is kept is drawn and stored as bytes."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, dropout: float) -> Tensor:
        """(N, s, S'), (N, s, S'), (N, s, S) -> (N, s, S)."""
        probabilities = torch.bmm(query * scale, key.transpose(1, 2)).softmax(-1)
        kept = keep_mask(probabilities.shape, dropout)
        ctx.save_for_backward(query, key, value, probabilities, kept)
        ctx.scale, ctx.rise = scale, 1 / (1 - dropout)
        return torch.bmm((probabilities * kept).mul_(ctx.rise), value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Of the softmax: P (dP - row sum of P dP)."""
        query, key, value, probabilities, kept = ctx.saved_tensors
        dropped = (probabilities * kept).mul_(ctx.rise)
        value_gradient = torch.bmm(dropped.transpose(1, 2), gradient)
        score_gradient = torch.bmm(gradient, value.transpose(1, 2)).mul_(kept).mul_(ctx.rise)
        score_gradient = torch._softmax_backward_data(score_gradient, probabilities, -1, probabilities.dtype)
        score_gradient.mul_(ctx.scale)
        return torch.bmm(score_gradient, key), torch.bmm(score_gradient.transpose(1, 2), query), value_gradient, None, None


def attend_padded(query: Tensor, key: Tensor, value: Tensor, segments: Segments, dropout: float) -> Tensor:
    """One call over items padded to the longest: for devices without variable-length attention, and with dropout there.

    Args and Returns: as `attend_by_segment`.
    """
    lengths = torch.tensor(segments.lengths, device=query.device)
    longest = max(segments.lengths)
    valid = torch.arange(longest, device=query.device) < lengths[:, None]  # (B, longest)

    def pad(flat: Tensor) -> Tensor:
        padded = flat.new_zeros(len(segments.lengths), longest, *flat.shape[1:])
        padded[valid] = flat
        return padded.transpose(1, 2)

    context = F.scaled_dot_product_attention(
        pad(query),
        pad(key),
        pad(value),
        attn_mask=valid[:, None, None, :],
        dropout_p=dropout,
        scale=1 / math.sqrt(value.size(-1)),
    )
    return context.transpose(1, 2)[valid]


def attend_varlen(query: Tensor, key: Tensor, value: Tensor, segments: Segments, dropout: float) -> Tensor:
    """One variable-length flash attention call (CUDA, half precision). It has no dropout of attention probabilities.

    Args and Returns: as `attend_by_segment`.
    """
    from torch.nn.attention.varlen import varlen_attn

    if dropout:
        raise ValueError("variable-length attention has no dropout; use attend_padded")
    lengths = torch.tensor([0, *segments.lengths], dtype=torch.int32)
    offsets = lengths.cumsum(0, dtype=torch.int32).to(query.device, non_blocking=True)
    longest, size = max(segments.lengths), value.size(-1)
    if query.size(-1) != size:  # entity-aware: the kernel wants equal sizes, and its output's second half is zero
        value = F.pad(value, (0, query.size(-1) - size))
    context: Any = varlen_attn(query, key, value, offsets, offsets, longest, longest, scale=1 / math.sqrt(size))
    output: Tensor = context[..., :size]
    return output


def choose_attention(device: torch.device, dtype: torch.dtype, dropout: float) -> Attention:
    """The fastest exact attention for a device."""
    if device.type == "cpu":
        return attend_by_segment
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and not dropout:
        return attend_varlen
    return attend_padded
