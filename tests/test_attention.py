"""Attention with dropout on a CPU; without it the forms are compared in test_model.py."""

import torch

from luke.attention import Segments, attend_by_segment
from luke.dropout import keep_mask


def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(7, 2, size, dtype=dtype, requires_grad=True) for size in (6, 6, 3)]


SEGMENTS = Segments([4, 3], None)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(1)
    return attend_by_segment(query, key, value, SEGMENTS, 0.4)


def test_dropped_probabilities_weigh_the_values() -> None:
    query, key, value = inputs(torch.float64)
    torch.manual_seed(1)
    expected = []
    for q, k, v in zip(query.split([4, 3]), key.split([4, 3]), value.split([4, 3]), strict=True):
        scores = torch.einsum("ins,jns->nij", q, k) / 3**0.5
        probabilities = scores.softmax(-1) * keep_mask(scores.shape, 0.4) / 0.6
        expected.append(torch.einsum("nij,jns->ins", probabilities, v))
    assert torch.allclose(attend(query, key, value), torch.cat(expected))


def test_gradients() -> None:
    assert torch.autograd.gradcheck(attend, inputs(torch.float64))
