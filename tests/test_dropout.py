import pytest
import torch

from luke.dropout import Dropout, keep_mask


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_a_mask_drops_the_share_that_it_should_in_every_place(dropout: float) -> None:
    torch.manual_seed(0)
    number = 400_000
    kept = keep_mask(torch.Size([number // 4, 4]), dropout)
    deviation = (dropout * (1 - dropout) / (number / 4)) ** 0.5
    for lane in range(4):  # four numbers come from one draw
        assert abs(1 - kept[:, lane].float().mean().item() - dropout) < 5 * deviation
    both = (~kept[:, 0] & ~kept[:, 1]).float().mean().item()
    assert abs(both - dropout**2) < 5 * deviation, "they are independent"


def test_a_mask_follows_the_seed_and_goes_on() -> None:
    torch.manual_seed(3)
    first, second = (keep_mask(torch.Size([7, 9]), 0.3) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(keep_mask(torch.Size([7, 9]), 0.3), first) and not torch.equal(first, second)


def test_what_is_kept_rises_and_the_gradient_passes_there_alone() -> None:
    torch.manual_seed(0)
    values = torch.ones(1000, requires_grad=True)
    dropped = Dropout(0.2)(values)
    assert set(dropped.tolist()) == {0.0, 1.25}
    dropped.sum().backward()
    assert values.grad is not None and torch.equal(values.grad, dropped.detach())


def test_nothing_is_dropped_outside_training() -> None:
    values = torch.randn(5)
    assert Dropout(0.9).eval()(values) is values and Dropout(0.0)(values) is values
