"""BatchNorm, ReLU and 2×2 max-pooling in one operation that writes only the pooled map. Replaces
``nets.norm.BatchNormReLUPool``.

torch writes four whole maps and their indices for this, and reads them again in the backward pass. Here the backward
pass finds each window's maximum again from x, hence the sums behind the gradients of weight and bias → dx. Layout as
in batch_norm.py.
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
from reshift.nets.norm import BatchNormReLUPool

WINDOWS = 1024, 512  # pooled elements of a tile, each of four, and slabs at most


class FusedBatchNormReLUPool(Twin, BatchNormReLUPool):
    """``BatchNormReLUPool``; torch's own where the batch spans ranks."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → ``(B, C, H // 2, W // 2)``."""
        return fused(input, self) if available.on_gpu(input) and fits(input, self) else super().forward(input)


def fits(x: Tensor, norm: BatchNormReLUPool) -> bool:
    """Whether every position is in one window, and every statistic on this rank."""
    return x.numel() > 0 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and not norm.spans_ranks()


def fused(x: Tensor, norm: BatchNormReLUPool) -> Tensor:
    """Run ``norm`` by Triton; on the CPU only where Triton interprets its kernels."""
    return apply(BatchNormReLUPoolFunction, norm, x)


@triton.jit
def _places(row, C, W, P, CP: tl.constexpr):
    """Of windows counted row by row: each one's place in the pooled map, its corner in x, and which of them exist."""
    channel = tl.arange(0, CP)
    line = row // (W // 2)  # every image has an even number of lines, so no window is astride two of them
    corner = 2 * line.to(tl.int64) * W + 2 * (row - line * (W // 2))
    pooled = row.to(tl.int64)[:, None] * C + channel[None, :]
    return pooled, corner[:, None] * C + channel[None, :], (row < P)[:, None] & (channel < C)[None, :]


@triton.jit
def _higher(top, hat, which, other, other_hat, k: tl.constexpr):
    """The larger of two, the first where they are equal, and NaN before all: as torch chooses."""
    wins = (other > top) | (other != other)  # noqa: PLR0124 (only NaN is not itself)
    return tl.where(wins, other, top), tl.where(wins, other_hat, hat), tl.where(wins, k, which)


@triton.jit
def _windows(x, at, inside, W, C, m, r, w, b):
    """The four normalised values of every window, then of its maximum: the output, the normalised value, the place."""
    h0 = (tl.load(x + at, inside, 0.0).to(tl.float32) - m) * r
    h1 = (tl.load(x + at + C, inside, 0.0).to(tl.float32) - m) * r
    h2 = (tl.load(x + at + W * C, inside, 0.0).to(tl.float32) - m) * r
    h3 = (tl.load(x + at + (W + 1) * C, inside, 0.0).to(tl.float32) - m) * r
    top, hat, which = _higher(h0 * w + b, h0, tl.zeros(h0.shape, tl.int32), h1 * w + b, h1, 1)
    top, hat, which = _higher(top, hat, which, h2 * w + b, h2, 2)
    top, hat, which = _higher(top, hat, which, h3 * w + b, h3, 3)
    return h0, h1, h2, h3, top, hat, which


@triton.jit
def _apply(x, mean, rstd, weight, bias, out, P, W, C, R: tl.constexpr, CP: tl.constexpr):
    """y = relu(max(w·(x - mean) / deviation + b))."""
    m, r, w, b = load_channels(mean, rstd, weight, bias, C, CP)
    pooled, at, inside = _places(tl.program_id(0) * R + tl.arange(0, R), C, W, P, CP)
    _, _, _, _, top, _, _ = _windows(x, at, inside, W, C, m, r, w, b)
    tl.store(out + pooled, tl.where(top <= 0.0, 0.0, top).to(out.dtype.element_ty), inside)


@triton.jit
def _back_sums(x, dy, mean, rstd, weight, bias, part, P, W, C, LOOP: tl.constexpr, R: tl.constexpr, CP: tl.constexpr):
    """Per channel Σdu and Σdu·x̂ over one slab of windows, whose maximum alone has a gradient."""
    slab, channel = tl.program_id(0), tl.arange(0, CP)
    m, r, w, b = load_channels(mean, rstd, weight, bias, C, CP)
    first, second = tl.zeros([R, CP], tl.float32), tl.zeros([R, CP], tl.float32)
    for i in range(LOOP):
        pooled, at, inside = _places((slab * LOOP + i) * R + tl.arange(0, R), C, W, P, CP)
        _, _, _, _, top, hat, _ = _windows(x, at, inside, W, C, m, r, w, b)
        du = tl.where(top <= 0.0, 0.0, tl.load(dy + pooled, inside, 0.0).to(tl.float32))
        first += du
        second += du * hat
    store_sums(part, slab, C, channel, first, second)


@triton.jit
def _put(dx, at, inside, du, hat, scale, level, slope):
    tl.store(dx + at, (scale * (du - level - hat * slope)).to(dx.dtype.element_ty), inside)


@triton.jit
def _back(x, dy, mean, rstd, weight, bias, db, dw, dx, N, P, W, C, TRAIN: tl.constexpr, R: tl.constexpr, CP: tl.constexpr):
    """dx = w / deviation · (du - db / N - x̂ · dw / N), the last two only where the statistics were x's own."""
    channel = tl.arange(0, CP)
    m, r, w, b = load_channels(mean, rstd, weight, bias, C, CP)
    level, slope = tl.zeros([1, CP], tl.float32), tl.zeros([1, CP], tl.float32)
    if TRAIN:
        level = (tl.load(db + channel, channel < C, 0.0) / N)[None, :]
        slope = (tl.load(dw + channel, channel < C, 0.0) / N)[None, :]
    pooled, at, inside = _places(tl.program_id(0) * R + tl.arange(0, R), C, W, P, CP)
    h0, h1, h2, h3, top, _, which = _windows(x, at, inside, W, C, m, r, w, b)
    du = tl.where(top <= 0.0, 0.0, tl.load(dy + pooled, inside, 0.0).to(tl.float32))
    scale = w * r
    _put(dx, at, inside, tl.where(which == 0, du, 0.0), h0, scale, level, slope)
    _put(dx, at + C, inside, tl.where(which == 1, du, 0.0), h1, scale, level, slope)
    _put(dx, at + W * C, inside, tl.where(which == 2, du, 0.0), h2, scale, level, slope)
    _put(dx, at + (W + 1) * C, inside, tl.where(which == 3, du, 0.0), h3, scale, level, slope)


class BatchNormReLUPoolFunction(torch.autograd.Function):
    """``max_pool2d(relu(batch_norm(x)), 2)`` of a channels-last tensor with even sides."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor, Tensor], train: bool, momentum: float,
        eps: float,
    ) -> Tensor:  # fmt: skip
        """Normalise and pool, and in training move the running mean, variance and count; what backward needs is x."""
        (b, c, h, w), n = x.shape, x.numel() // x.shape[1]
        statistics = measure(x, running, train, momentum, eps)
        out = torch.empty(b, c, h // 2, w // 2, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        pooled = Tiling(n // 4, c, WINDOWS)
        _apply[(pooled.tiles,)](x, statistics[0], statistics[1], weight, bias, out, n // 4, w, c, **pooled.sizes)
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.train = train
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        x, weight, bias, statistics = ctx.saved_tensors
        (_, c, _, w), n = x.shape, x.numel() // x.shape[1]
        dy, dx = grads[0].contiguous(memory_format=torch.channels_last), torch.empty_like(x)
        tiling, given = Tiling(n // 4, c, WINDOWS), (x, dy, statistics[0], statistics[1], weight, bias)
        part = tiling.parts(x)
        _back_sums[(tiling.slabs,)](*given, part, n // 4, w, c, LOOP=tiling.loop, **tiling.sizes)
        db, dw = add_up(part)
        _back[(tiling.tiles,)](*given, db, dw, dx, n, n // 4, w, c, TRAIN=ctx.train, **tiling.sizes)
        return dx, dw.to(weight.dtype), db.to(bias.dtype), None, None, None, None
