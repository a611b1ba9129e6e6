"""BatchNorm and ReLU: the fused kernels, interpreted, against the plain layer."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from interpreted import interpret
from torch import Tensor, nn

from reshift.nets.norm import BatchNormReLU

SHAPES = [(2, 32, 4, 6), (3, 5, 3, 7), (2, 1, 1, 1), (1, 3, 8, 23)]
LIMITS = [((2048, 1024), (2048, 512)), ((64, 5), (32, 3))]  # the second: several tiles in a slab, and the last not full


def make(c: int, *, train: bool = True) -> BatchNormReLU:
    """Weights of both signs and one of 0, statistics that are not those of any batch."""
    norm = BatchNormReLU(c)
    nn.init.uniform_(norm.weight, -1.5, 1.5)
    nn.init.uniform_(norm.bias, -0.5, 1.0)
    with torch.no_grad():
        norm.weight[c // 2] *= 0.0 if c > 2 else 1.0
        norm.running_mean.uniform_(-1.0, 1.0)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return norm.train(train)


def outcome(norm: BatchNormReLU, x: Tensor, back: Tensor, way: str) -> dict[str, Tensor]:
    """Output, gradients and what is left in the buffers, which are put back."""
    from reshift.kernels.batch_norm_relu import fused

    before = {name: value.clone() for name, value in norm.state_dict().items()}
    given = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = norm(given) if way == "plain" else fused(given, norm)
    learned = {name: value for name, value in norm.named_parameters() if value.requires_grad}
    grads = torch.autograd.grad(y, (given, *learned.values()), back.to(y.dtype))
    buffers = {name: value.clone() for name, value in norm.named_buffers()}
    norm.load_state_dict(before)
    return {"y": y.detach(), **dict(zip(("dx", *learned), grads, strict=True)), **buffers}


def images(*shape: int) -> Tensor:
    """Channels last, around a mean that is not 0."""
    return (2.0 * torch.randn(*shape) + 0.7).contiguous(memory_format=torch.channels_last)


def one_rank_and_more_than_one_value_only() -> None:
    from reshift.kernels.batch_norm_relu import fits

    norm = make(2)
    assert fits(torch.zeros(1, 2, 5, 7), norm)
    assert not fits(torch.zeros(0, 2, 5, 7), norm)
    assert not fits(torch.zeros(1, 2, 1, 1), norm)  # torch refuses to train on it
    norm.spans_ranks = lambda: True  # type: ignore[method-assign]
    assert not fits(torch.zeros(1, 2, 5, 7), norm)
    assert fits(torch.zeros(1, 2, 1, 1), make(2, train=False))


def compare(dtype: torch.dtype, tolerance: float, shapes: Sequence[tuple[int, ...]]) -> None:
    """Against float32 on the same numbers: shapes that fill no tile, several tiles, several slabs; also with fixed weights."""
    from reshift.kernels import batch_norm, batch_norm_relu

    for limits, shape, train in product(LIMITS, shapes, (True, False)):
        batch_norm.STATISTICS, batch_norm_relu.ELEMENTS = limits
        torch.manual_seed(0)
        norm, x, back = make(shape[1], train=train), images(*shape).to(dtype), torch.randn(*shape).to(dtype)
        for learns in (True, False) if limits == LIMITS[0] else (True,):
            norm.requires_grad_(learns)
            ours, exact = outcome(norm, x, back, "fused"), outcome(norm, x.float(), back.float(), "plain")
            assert ours["y"].dtype == ours["dx"].dtype == dtype
            assert ours["y"].is_contiguous(memory_format=torch.channels_last)
            assert ours.keys() == exact.keys()
            for name, value in exact.items():
                close = tolerance if name in ("y", "dx") else 1e-4
                assert name in ("y", "dx") or ours[name].dtype == value.dtype
                torch.testing.assert_close(ours[name].to(value.dtype), value, atol=close, rtol=close, msg=f"{name} of {shape}")


def keeps_nan() -> None:
    """A NaN is not taken for 0, nor is its gradient."""
    torch.manual_seed(0)
    norm, x, back = make(3), images(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    x[0, 1, 3, 3] = float("nan")
    for train, spoilt in ((True, 128), (False, 1)):
        ours, theirs = (outcome(norm.train(train), x, back, way) for way in ("fused", "plain"))
        assert int(ours["y"].isnan().sum()) == int(ours["y"][:, 1].isnan().sum()) == spoilt
        assert torch.equal(ours["dx"].isnan(), theirs["dx"].isnan())
        assert train or ours["dx"][0, 1, 3, 3] == theirs["dx"][0, 1, 3, 3]


def refuses_statistics_that_have_moved() -> None:
    """As torch does: going back with running statistics, these must still be those that were used."""
    from reshift.kernels.batch_norm_relu import fused

    norm, x = make(3, train=False), images(2, 3, 4, 4).requires_grad_()
    y = fused(x, norm)
    fused(x, norm.train())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def compare_all() -> None:
    one_rank_and_more_than_one_value_only()
    compare(torch.float32, 1e-4, SHAPES)
    compare(torch.float16, 2e-3, SHAPES[1:2])
    compare(torch.bfloat16, 1.6e-2, SHAPES[1:2])
    keeps_nan()
    refuses_statistics_that_have_moved()


def test_fused_kernels_agree_with_torch() -> None:
    interpret("test_batch_norm_relu", "compare_all")
