"""What the fused BatchNorms share: statistics over a batch, and sums per channel. A tensor is (N, C) in memory,
channels last.

Sums per channel over slabs of positions → mean and 1 / deviation, and the running ones. All arithmetic is fp32; every
sum has a fixed order, and nothing waits for the host.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202 (a kernel has no types)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from reshift.nets.norm import BatchNorm

# Elements of a tile, and slabs at most: about as many as a large GPU runs at a time, by the registers they take.
STATISTICS = 4096, 528
CHANNELS = 8  # whose slabs a program adds up


def apply(function: Any, norm: BatchNorm, x: Tensor) -> Tensor:
    """``x`` through an ``autograd.Function`` that wants channels last and updates the running statistics itself."""
    running = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    x = x.contiguous(memory_format=torch.channels_last)
    out: Tensor = function.apply(x, norm.weight, norm.bias, running, norm.training, norm.momentum, norm.eps)
    return out


@triton.jit
def store_sums(part, slab, C, channel, first, second):
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
    store_sums(part, slab, C, channel, first, second)


@triton.jit
def _total(part, slabs, C, channel, known, S: tl.constexpr):
    """Add up the slabs of some channels."""
    slab = tl.arange(0, S)
    at = part + slab[:, None] * 2 * C + channel[None, :]
    inside = (slab < slabs)[:, None] & known[None, :]
    return tl.sum(tl.load(at, inside, 0.0), 0), tl.sum(tl.load(at + C, inside, 0.0), 0)


@triton.jit
def _finish(
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
def load_channels(mean, rstd, weight, bias, C, CP: tl.constexpr):
    """What every window needs of its channel, as rows: mean, 1 / deviation, weight, bias."""
    channel = tl.arange(0, CP)
    known = channel < C
    m, r = tl.load(mean + channel, known, 0.0), tl.load(rstd + channel, known, 0.0)
    w, b = tl.load(weight + channel, known, 0.0).to(tl.float32), tl.load(bias + channel, known, 0.0).to(tl.float32)
    return m[None, :], r[None, :], w[None, :], b[None, :]


class Tiling:
    """How ``count`` rows of ``c`` channels are divided: into tiles, and these into slabs."""

    def __init__(self, count: int, c: int, limits: tuple[int, int]) -> None:
        (tile, slabs), padded = limits, triton.next_power_of_2(c)
        self.rows = max(1, tile // padded)  # not by the number of rows: few kernels to compile
        self.tiles = triton.cdiv(count, self.rows)
        self.loop = triton.cdiv(self.tiles, slabs)  # tiles in a slab
        self.slabs = triton.cdiv(self.tiles, self.loop)
        self.sizes = {"R": self.rows, "CP": padded}

    def parts(self, x: Tensor) -> Tensor:
        """Memory for two sums per slab and channel."""
        return torch.empty(self.slabs, 2, x.shape[1], dtype=torch.float32, device=x.device)


def measure(x: Tensor, running: tuple[Tensor, Tensor, Tensor], train: bool, momentum: float, eps: float) -> Tensor:
    """Mean and 1 / deviation, ``(2, C)``; in training those of ``x``, which move the running mean, variance and count."""
    n, c = x.numel() // x.shape[1], x.shape[1]
    both = torch.empty(2, c, dtype=torch.float32, device=x.device)
    tiling = Tiling(n, c, STATISTICS)
    part = tiling.parts(x) if train else both
    if train:
        _statistics[(tiling.slabs,)](x, part, n, c, LOOP=tiling.loop, **tiling.sizes)
    adding = {"S": triton.next_power_of_2(tiling.slabs) if train else 1, "K": CHANNELS, "num_warps": 8}
    _finish[(triton.cdiv(c, CHANNELS),)](
        x, part, both[0], both[1], *running, tiling.slabs, n, c, momentum, eps, TRAIN=train, **adding
    )  # fmt: skip
    for moved in running if train else ():
        torch.autograd.graph.increment_version(moved)  # as torch's own: a graph that still needs the old ones must refuse
    return both


def add_up(part: Tensor) -> Tensor:
    """``(slabs, 2, C)`` → ``(2, C)``. torch's own sum of so few channels over so many slabs took 8 to 11 µs on an H200."""
    slabs, _, c = part.shape
    sums = torch.empty(2, c, dtype=torch.float32, device=part.device)
    adding = {"S": triton.next_power_of_2(slabs), "K": CHANNELS, "num_warps": 8}
    _add_up[(triton.cdiv(c, CHANNELS),)](part, sums, slabs, c, **adding)
    return sums
