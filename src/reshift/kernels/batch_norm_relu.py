"""BatchNorm and ReLU in one operation. Replaces ``nets.norm.BatchNormReLU``, for which torch launches five or six
kernels each way.

With the batch's statistics there are three launches each way. With running ones it is one, whose programs read mean
and variance directly; the backward pass then needs sums only where weight or bias learn. It finds u again from x,
since it needs x̂.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from reshift.kernels import available
from reshift.kernels.available import Twin
from reshift.kernels.batch_norm import Tiling, add_up, apply, load_channels, measure, store_sums
from reshift.nets.norm import BatchNormReLU

ELEMENTS = 2048, 512  # of a tile, and slabs at most


class FusedBatchNormReLU(Twin, BatchNormReLU):
    """``BatchNormReLU``; torch's own where the batch spans ranks."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → the same shape."""
        return fused(input, self) if available.on_gpu(input) and fits(input, self) else super().forward(input)


def fits(x: Tensor, norm: BatchNormReLU) -> bool:
    """Whether every statistic is on this rank, and there is one: torch refuses to train on one value per channel."""
    enough = x.numel() > (x.shape[1] if norm.training else 0)
    return enough and not norm.spans_ranks()


def fused(x: Tensor, norm: BatchNormReLU) -> Tensor:
    """Run ``norm`` by Triton; on the CPU only where Triton interprets its kernels."""
    return apply(BatchNormReLUFunction, norm, x)


@triton.jit
def _coefficients(mean, spread, weight, bias, C, eps, TRAIN: tl.constexpr, CP: tl.constexpr):
    """Mean, 1 / deviation, weight and bias as rows; ``spread`` is 1 / deviation or, of running statistics, the variance."""
    m, r, w, b = load_channels(mean, spread, weight, bias, C, CP)
    if not TRAIN:
        r = 1.0 / tl.sqrt(r.to(tl.float32) + eps)
    return m, r, w, b


@triton.jit
def _places(row, N, C, CP: tl.constexpr):
    """Where some rows lie, and which of their places exist."""
    channel = tl.arange(0, CP)
    return row.to(tl.int64)[:, None] * C + channel[None, :], (row < N)[:, None] & (channel < C)[None, :]


@triton.jit
def _slope(x, dy, at, inside, m, r, w, b):
    """du and x̂; as torch's, a gradient passes where u is NaN."""
    hat = (tl.load(x + at, inside, 0.0).to(tl.float32) - m) * r
    return tl.where(hat * w + b <= 0.0, 0.0, tl.load(dy + at, inside, 0.0).to(tl.float32)), hat


@triton.jit
def _apply(x, mean, spread, weight, bias, out, N, C, eps, TRAIN: tl.constexpr, R: tl.constexpr, CP: tl.constexpr):
    """y = relu(u), u = w·(x - mean) / deviation + b."""
    m, r, w, b = _coefficients(mean, spread, weight, bias, C, eps, TRAIN, CP)
    at, inside = _places(tl.program_id(0) * R + tl.arange(0, R), N, C, CP)
    u = (tl.load(x + at, inside, 0.0).to(tl.float32) - m) * r * w + b
    tl.store(out + at, tl.where(u <= 0.0, 0.0, u).to(out.dtype.element_ty), inside)  # unlike maximum, this lets NaN pass


@triton.jit
def _back_sums(
    x, dy, mean, spread, weight, bias, part, N, C, eps,
    TRAIN: tl.constexpr, LOOP: tl.constexpr, R: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Per channel Σdu and Σdu·x̂ over one slab."""
    slab, channel = tl.program_id(0), tl.arange(0, CP)
    m, r, w, b = _coefficients(mean, spread, weight, bias, C, eps, TRAIN, CP)
    first, second = tl.zeros([R, CP], tl.float32), tl.zeros([R, CP], tl.float32)
    for i in range(LOOP):
        at, inside = _places((slab * LOOP + i) * R + tl.arange(0, R), N, C, CP)
        du, hat = _slope(x, dy, at, inside, m, r, w, b)
        first += du
        second += du * hat
    store_sums(part, slab, C, channel, first, second)


@triton.jit
def _back(x, dy, mean, spread, weight, bias, sums, dx, N, C, eps, TRAIN: tl.constexpr, R: tl.constexpr, CP: tl.constexpr):
    """dx = w / deviation · (du - Σdu / N - x̂ · Σdu·x̂ / N), the last two only where the statistics were x's own."""
    m, r, w, b = _coefficients(mean, spread, weight, bias, C, eps, TRAIN, CP)
    at, inside = _places(tl.program_id(0) * R + tl.arange(0, R), N, C, CP)
    du, hat = _slope(x, dy, at, inside, m, r, w, b)
    if TRAIN:
        channel = tl.arange(0, CP)
        level, slope = tl.load(sums + channel, channel < C, 0.0) / N, tl.load(sums + C + channel, channel < C, 0.0) / N
        du -= level[None, :] + hat * slope[None, :]
    tl.store(dx + at, (w * r * du).to(dx.dtype.element_ty), inside)


class BatchNormReLUFunction(torch.autograd.Function):
    """``relu(batch_norm(x))`` of a channels-last tensor."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor, Tensor], train: bool, momentum: float,
        eps: float,
    ) -> Tensor:  # fmt: skip
        """Normalise, and in training move the running mean, variance and count; what backward needs is x."""
        n, c = x.numel() // x.shape[1], x.shape[1]
        mean, spread = measure(x, running, train, momentum, eps) if train else running[:2]
        out, tiling = torch.empty_like(x), Tiling(n, c, ELEMENTS)
        _apply[(tiling.tiles,)](x, mean, spread, weight, bias, out, n, c, eps, TRAIN=train, **tiling.sizes)
        ctx.save_for_backward(x, weight, bias, mean, spread)
        ctx.how = train, eps
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        (x, weight, bias, mean, spread), (train, eps) = ctx.saved_tensors, ctx.how
        n, c = x.numel() // x.shape[1], x.shape[1]
        dy, dx = grads[0].contiguous(memory_format=torch.channels_last), torch.empty_like(x)
        tiling, given = Tiling(n, c, ELEMENTS), (x, dy, mean, spread, weight, bias)
        sums, by_weight, by_bias = mean, None, None  # without sums the kernel reads none
        if train or any(ctx.needs_input_grad[1:3]):
            part = tiling.parts(x)
            _back_sums[(tiling.slabs,)](*given, part, n, c, eps, TRAIN=train, LOOP=tiling.loop, **tiling.sizes)
            sums = add_up(part)
            by_bias, by_weight = sums[0].to(bias.dtype), sums[1].to(weight.dtype)
        _back[(tiling.tiles,)](*given, sums, dx, n, c, eps, TRAIN=train, **tiling.sizes)
        return dx, by_weight, by_bias, None, None, None, None
