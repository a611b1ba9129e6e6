"""BatchNorm, ReLU and max-pooling: the fused kernels, interpreted, against the plain layer."""

from itertools import product

import torch
from interpreted import interpret
from torch import Tensor

from reshift.nets.norm import BatchNormReLUPool

SHAPES = [(2, 32, 4, 6), (3, 5, 6, 10), (1, 1, 2, 2), (1, 3, 8, 22)]
LIMITS = [((2048, 1024), (1024, 512)), ((64, 5), (32, 3))]  # the second: several tiles in a slab, and the last not full


def make(c: int, *, train: bool = True) -> BatchNormReLUPool:
    """Weights of both signs and one of 0, statistics that are not those of any batch."""
    norm = BatchNormReLUPool(c)
    torch.nn.init.uniform_(norm.weight, -1.5, 1.5)
    torch.nn.init.uniform_(norm.bias, -0.5, 1.0)
    with torch.no_grad():
        norm.weight[c // 2] *= 0.0 if c > 2 else 1.0
        norm.running_mean.uniform_(-1.0, 1.0)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return norm.train(train)


def outcome(norm: BatchNormReLUPool, x: Tensor, back: Tensor, way: str) -> dict[str, Tensor]:
    """Output, gradients and what is left in the buffers, which are put back."""
    from reshift.kernels.batch_norm_relu_pool import fused

    before = {name: value.clone() for name, value in norm.state_dict().items()}
    given = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = norm(given) if way == "plain" else fused(given, norm)
    dx, dw, db = torch.autograd.grad(y, (given, norm.weight, norm.bias), back.to(y.dtype))
    buffers = {name: value.clone() for name, value in norm.named_buffers()}
    norm.load_state_dict(before)
    return {"y": y.detach(), "dx": dx, "dw": dw, "db": db, **buffers}


def images(*shape: int, ties: bool = False) -> Tensor:
    """Channels last, around a mean that is not 0; with ``ties`` of few different values."""
    x = 2.0 * torch.randn(*shape) + 0.7
    return (x.round() if ties else x).contiguous(memory_format=torch.channels_last)


def even_sides_and_one_rank_only() -> None:
    from reshift.kernels.batch_norm_relu_pool import fits

    norm = make(2)
    assert fits(torch.zeros(1, 2, 4, 6), norm)
    assert not fits(torch.zeros(1, 2, 5, 6), norm)
    assert not fits(torch.zeros(1, 2, 4, 7), norm)
    norm.spans_ranks = lambda: True  # type: ignore[method-assign]
    assert not fits(torch.zeros(1, 2, 4, 6), norm)


def compare_in_float32() -> None:
    """Everything, in shapes that fill no tile, several tiles and several slabs; with ties torch chooses the same positions."""
    from reshift.kernels import batch_norm, batch_norm_relu_pool

    for limits, shape, train, ties in product(LIMITS, SHAPES, (True, False), (True, False)):
        if ties and limits != LIMITS[0]:
            continue
        batch_norm.STATISTICS, batch_norm_relu_pool.WINDOWS = limits
        torch.manual_seed(0)
        norm, x = make(shape[1], train=train), images(*shape, ties=ties)
        back = torch.randn(shape[0], shape[1], shape[2] // 2, shape[3] // 2)
        ours, theirs = outcome(norm, x, back, "fused"), outcome(norm, x, back, "plain")
        assert ours["y"].is_contiguous(memory_format=torch.channels_last)
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, atol=1e-4, rtol=1e-4, msg=f"{name} of {shape}")


def compare_in_bf16() -> None:
    """Against float32 on the same numbers: only tensors that are written lose digits, once."""
    for shape in SHAPES[:2]:
        for train in (True, False):
            torch.manual_seed(0)
            norm, x = make(shape[1], train=train), images(*shape).to(torch.bfloat16)
            back = torch.randn(shape[0], shape[1], shape[2] // 2, shape[3] // 2).to(torch.bfloat16)
            ours, exact = outcome(norm, x, back, "fused"), outcome(norm, x.float(), back.float(), "plain")
            assert ours["y"].dtype == ours["dx"].dtype == torch.bfloat16
            assert ours["dw"].dtype == ours["running_var"].dtype == torch.float32
            for name, value in exact.items():
                rtol = 2.0**-7 if name in ("y", "dx") else 1e-4  # Triton's interpreter truncates where a GPU rounds
                torch.testing.assert_close(ours[name].to(value.dtype), value, atol=1e-5, rtol=rtol)


def keeps_digits_and_nan() -> None:
    """A mean of a thousand deviations leaves the variance right, and a NaN is not taken for 0."""
    torch.manual_seed(0)
    norm, x, back = make(3), images(2, 3, 8, 8) + 2000.0, torch.randn(2, 3, 4, 4)
    ours = outcome(norm, x, back, "fused")
    expected = 0.9 * norm.running_var + 0.1 * x.double().transpose(0, 1).flatten(1).var(1)  # type: ignore[operator]
    torch.testing.assert_close(ours["running_var"].double(), expected, rtol=1e-5, atol=0.0)
    x[0, 1, 3, 3] = float("nan")
    for train, spoilt in ((True, 32), (False, 1)):
        found = outcome(norm.train(train), x, back, "fused")["y"].isnan()
        assert int(found.sum()) == int(found[:, 1].sum()) == spoilt


def compare() -> None:
    even_sides_and_one_rank_only()
    compare_in_float32()
    compare_in_bf16()
    keeps_digits_and_nan()


def test_fused_kernels_agree_with_torch() -> None:
    interpret("test_batch_norm_relu_pool", "compare")
