"""The kernels of nets/norm_pool.py. A tensor is (N, C) in memory: N = B·H·W positions of C channels, channels last.

Forward: sums per channel over slabs of positions → mean and 1 / deviation, and the running ones → normalise and pool. Backward
finds each window's maximum again from x, hence the sums behind the gradients of weight and bias → dx. All arithmetic is fp32,
whatever the tensors are; every sum has its fixed order, and nothing waits for the host.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements a program looks at at once, and slabs at most: about as many as a large GPU runs at a time, by the registers they take.
STATISTICS = 4096, 528
WINDOWS = 1024, 512  # pooled elements, each of four
CHANNELS = 8  # whose slabs a program adds up


@triton.jit
def _keep(part, slab, C, channel, first, second):
    """Store a slab's two sums."""
    out = part + slab * 2 * C + channel
    tl.store(out, tl.sum(first, 0), channel < C)
    tl.store(out + C, tl.sum(second, 0), channel < C)


@triton.jit
def _statistics(x, part, N, C, LOOP: tl.constexpr, R: tl.constexpr, CP: tl.constexpr):
    """Per channel Σ(x - pivot) and Σ(x - pivot)² over one slab; the pivot, the first position, keeps the digits of small ones."""
    slab, channel = tl.program_id(0), tl.arange(0, CP)
    known = channel < C
    pivot = tl.load(x + channel, known, 0.0).to(tl.float32)[None, :]
    first, second = tl.zeros([R, CP], tl.float32), tl.zeros([R, CP], tl.float32)
    for i in range(LOOP):
        row = (slab * LOOP + i) * R + tl.arange(0, R)
        inside = (row < N)[:, None] & known[None, :]
        value = tl.load(x + row.to(tl.int64)[:, None] * C + channel[None, :], inside, 0.0).to(tl.float32)
        value = tl.where(inside, value - pivot, 0.0)
        first += value
        second += value * value
    _keep(part, slab, C, channel, first, second)


@triton.jit
def _total(part, slabs, C, channel, known, S: tl.constexpr):
    """Add up the slabs of some channels."""
    slab = tl.arange(0, S)
    at = part + slab[:, None] * 2 * C + channel[None, :]
    inside = (slab < slabs)[:, None] & known[None, :]
    return tl.sum(tl.load(at, inside, 0.0), 0), tl.sum(tl.load(at + C, inside, 0.0), 0)


@triton.jit
def _facts(
    x, part, mean, rstd, running_mean, running_var, steps, slabs, N, C, momentum, eps,
    TRAIN: tl.constexpr, S: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation of some channels: the batch's, which then move the running ones, or the running ones themselves."""
    channel = tl.program_id(0) * K + tl.arange(0, K)
    known = channel < C
    m, var = tl.load(running_mean + channel, known, 0.0), tl.load(running_var + channel, known, 0.0)
    if TRAIN:
        old_m, old_var = m, var
        first, second = _total(part, slabs, C, channel, known, S)
        shift = first / N
        m = tl.load(x + channel, known, 0.0).to(tl.float32) + shift
        var = second / N - shift * shift
        var = tl.where(var < 0.0, 0.0, var)  # unlike maximum, this lets NaN pass
        unbiased = var * (N / (N - 1))
        tl.store(running_mean + channel, old_m + momentum * (m - old_m), known)
        tl.store(running_var + channel, old_var + momentum * (unbiased - old_var), known)
        if tl.program_id(0) == 0:
            tl.store(steps, tl.load(steps) + 1)
    tl.store(mean + channel, m, known)
    tl.store(rstd + channel, 1.0 / tl.sqrt(var + eps), known)


@triton.jit
def _add_up(part, sums, slabs, C, S: tl.constexpr, K: tl.constexpr):
    """Both sums of some channels."""
    channel = tl.program_id(0) * K + tl.arange(0, K)
    first, second = _total(part, slabs, C, channel, channel < C, S)
    tl.store(sums + channel, first, channel < C)
    tl.store(sums + C + channel, second, channel < C)


@triton.jit
def _channels(mean, rstd, weight, bias, C, CP: tl.constexpr):
    """What every window needs of its channel, as rows: mean, 1 / deviation, weight, bias."""
    channel = tl.arange(0, CP)
    known = channel < C
    m, r = tl.load(mean + channel, known, 0.0), tl.load(rstd + channel, known, 0.0)
    w, b = tl.load(weight + channel, known, 0.0).to(tl.float32), tl.load(bias + channel, known, 0.0).to(tl.float32)
    return m[None, :], r[None, :], w[None, :], b[None, :]


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
    m, r, w, b = _channels(mean, rstd, weight, bias, C, CP)
    pooled, at, inside = _places(tl.program_id(0) * R + tl.arange(0, R), C, W, P, CP)
    _, _, _, _, top, _, _ = _windows(x, at, inside, W, C, m, r, w, b)
    tl.store(out + pooled, tl.where(top <= 0.0, 0.0, top).to(out.dtype.element_ty), inside)


@triton.jit
def _back_sums(x, dy, mean, rstd, weight, bias, part, P, W, C, LOOP: tl.constexpr, R: tl.constexpr, CP: tl.constexpr):
    """Per channel Σdu and Σdu·x̂ over one slab of windows, whose maximum alone has a gradient."""
    slab, channel = tl.program_id(0), tl.arange(0, CP)
    m, r, w, b = _channels(mean, rstd, weight, bias, C, CP)
    first, second = tl.zeros([R, CP], tl.float32), tl.zeros([R, CP], tl.float32)
    for i in range(LOOP):
        pooled, at, inside = _places((slab * LOOP + i) * R + tl.arange(0, R), C, W, P, CP)
        _, _, _, _, top, hat, _ = _windows(x, at, inside, W, C, m, r, w, b)
        du = tl.where(top <= 0.0, 0.0, tl.load(dy + pooled, inside, 0.0).to(tl.float32))
        first += du
        second += du * hat
    _keep(part, slab, C, channel, first, second)


@triton.jit
def _put(dx, at, inside, du, hat, scale, level, slope):
    tl.store(dx + at, (scale * (du - level - hat * slope)).to(dx.dtype.element_ty), inside)


@triton.jit
def _back(x, dy, mean, rstd, weight, bias, db, dw, dx, N, P, W, C, TRAIN: tl.constexpr, R: tl.constexpr, CP: tl.constexpr):
    """dx = w / deviation · (du - db / N - x̂ · dw / N), the last two only where the statistics were x's own."""
    channel = tl.arange(0, CP)
    m, r, w, b = _channels(mean, rstd, weight, bias, C, CP)
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


class _Cut:
    """How ``count`` rows of ``c`` channels are cut up: into tiles, and these into slabs."""

    def __init__(self, count: int, c: int, limits: tuple[int, int]) -> None:
        (tile, slabs), padded = limits, triton.next_power_of_2(c)
        self.rows = max(1, tile // padded)  # not by the number of rows: few kernels to compile
        self.tiles = triton.cdiv(count, self.rows)
        self.loop = triton.cdiv(self.tiles, slabs)  # tiles in a slab
        self.slabs = triton.cdiv(self.tiles, self.loop)
        self.sizes = {"R": self.rows, "CP": padded}

    def parts(self, x: Tensor) -> Tensor:
        """Room for two sums per slab and channel."""
        return torch.empty(self.slabs, 2, x.shape[1], dtype=torch.float32, device=x.device)


def measure(x: Tensor, running: tuple[Tensor, Tensor, Tensor], train: bool, momentum: float, eps: float) -> Tensor:
    """Mean and 1 / deviation, ``(2, C)``; in training those of ``x``, which move the running mean, variance and count."""
    n, c = x.numel() // x.shape[1], x.shape[1]
    facts = torch.empty(2, c, dtype=torch.float32, device=x.device)
    cut = _Cut(n, c, STATISTICS)
    part = cut.parts(x) if train else facts
    if train:
        _statistics[(cut.slabs,)](x, part, n, c, LOOP=cut.loop, **cut.sizes)
    adding = {"S": triton.next_power_of_2(cut.slabs) if train else 1, "K": CHANNELS, "num_warps": 8}
    _facts[(triton.cdiv(c, CHANNELS),)](
        x, part, facts[0], facts[1], *running, cut.slabs, n, c, momentum, eps, TRAIN=train, **adding
    )  # fmt: skip
    for moved in running if train else ():
        torch.autograd.graph.increment_version(moved)  # as torch's own: a graph that still needs the old ones must refuse
    return facts


def add_up(part: Tensor) -> Tensor:
    """``(slabs, 2, C)`` → ``(2, C)``. torch's own sum of so few channels over so many slabs took 8 to 11 µs on an H200."""
    slabs, _, c = part.shape
    sums = torch.empty(2, c, dtype=torch.float32, device=part.device)
    adding = {"S": triton.next_power_of_2(slabs), "K": CHANNELS, "num_warps": 8}
    _add_up[(triton.cdiv(c, CHANNELS),)](part, sums, slabs, c, **adding)
    return sums


class NormPoolFunction(torch.autograd.Function):
    """``max_pool2d(relu(batch_norm(x)), 2)`` of a channels-last tensor with even sides."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor, Tensor], train: bool, momentum: float,
        eps: float,
    ) -> Tensor:  # fmt: skip
        """Normalise and pool, and in training move the running mean, variance and count; what backward needs is x."""
        (b, c, h, w), n = x.shape, x.numel() // x.shape[1]
        facts = measure(x, running, train, momentum, eps)
        out = torch.empty(b, c, h // 2, w // 2, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        pooled = _Cut(n // 4, c, WINDOWS)
        _apply[(pooled.tiles,)](x, facts[0], facts[1], weight, bias, out, n // 4, w, c, **pooled.sizes)
        ctx.save_for_backward(x, weight, bias, facts)
        ctx.train = train
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        x, weight, bias, facts = ctx.saved_tensors
        (_, c, _, w), n = x.shape, x.numel() // x.shape[1]
        dy, dx = grads[0].contiguous(memory_format=torch.channels_last), torch.empty_like(x)
        cut, given = _Cut(n // 4, c, WINDOWS), (x, dy, facts[0], facts[1], weight, bias)
        part = cut.parts(x)
        _back_sums[(cut.slabs,)](*given, part, n // 4, w, c, LOOP=cut.loop, **cut.sizes)
        db, dw = add_up(part)
        _back[(cut.tiles,)](*given, db, dw, dx, n, n // 4, w, c, TRAIN=ctx.train, **cut.sizes)
        return dx, dw.to(weight.dtype), db.to(bias.dtype), None, None, None, None
